"""Which files make up a split of a Hugging Face dataset directory. No network, no `datasets`.

Known layouts: a repository clone (``train.jsonl``, ``data/train-00000-of-00002.parquet``,
``train/*.parquet``) and `save_to_disk` (``train/data-00000-of-00001.arrow`` beside a
``state.json``, or that directly in the directory). May import: `config`, `errors`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from outlast.adapters.prompts.files import KINDS
from outlast.config.schema import DatasetSection
from outlast.errors import RecipeError

METADATA = frozenset({"state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"})


def split_files(section: DatasetSection, *, held_out: bool) -> list[Path]:
    """Files of the wanted split, in name order. Raises RecipeError listing the splits there are."""
    if section.name is None:
        raise RecipeError("dataset.source is hf; dataset.name must be a dataset directory")
    root = Path(section.name).expanduser()
    if not root.is_dir():
        raise RecipeError(f"dataset.name is {section.name!r}; there is no such directory")
    splits = find_splits(root)
    key, wanted = "dataset.split", section.split
    if held_out:
        key, wanted = "dataset.held_out", section.held_out or ""
        if wanted == section.split:
            raise RecipeError(f"{key} and dataset.split are both {wanted!r}; they must differ")
    if wanted not in splits:
        raise RecipeError(
            f"{key} is {wanted or None!r}, but {root} has the splits "
            f"{', '.join(sorted(splits)) or '(none)'}; name one of them"
            + (", or set validation.enabled: false" if held_out else "")
        )
    _refuse_indices(splits[wanted][0].parent)
    kinds = {path.suffix for path in splits[wanted]}
    if len(kinds) > 1:
        raise RecipeError(f"split {wanted!r} of {root} mixes {', '.join(sorted(kinds))} files")
    return splits[wanted]


def find_splits(root: Path) -> dict[str, list[Path]]:
    """Every split below `root` with its data files."""
    splits: dict[str, list[Path]] = {}
    for path in sorted([*root.glob("*"), *root.glob("*/*")]):
        if path.suffix not in KINDS or not path.is_file() or _is_metadata(path):
            continue
        splits.setdefault(_split_of(path, root), []).append(path)
    return splits


def _is_metadata(path: Path) -> bool:
    return path.name.startswith("cache-") or path.name in METADATA


def _split_of(path: Path, root: Path) -> str:
    if path.suffix == ".arrow":
        named = _saved_state(path.parent).get("_split")
        return str(named or (path.parent.name if path.parent != root else "train"))
    if path.parent != root and path.parent.name != "data":
        return path.parent.name
    return re.split(r"-\d{5}", path.stem)[0]


def _refuse_indices(directory: Path) -> None:
    # A filtered or shuffled dataset keeps its row numbers apart; reading on would change the order.
    if _saved_state(directory).get("_indices_data_files"):
        raise RecipeError(
            f"{directory} was saved with row indices; call flatten_indices() before save_to_disk()"
        )


def _saved_state(directory: Path) -> dict[str, object]:
    path = directory / "state.json"
    try:
        state = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise RecipeError(f"{path} is unreadable: {error}") from error
    return state if isinstance(state, dict) else {}
