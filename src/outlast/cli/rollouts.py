"""`outlast rollouts RUN --to parquet|jsonl`: the groups and texts inside a cut.

May import: `durable`, `adapters`, `cli`, pyarrow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from outlast.errors import NotRestorable, RecipeError

if TYPE_CHECKING:
    from outlast.durable.cutcodec import LoadedCut
    from outlast.durable.manifest import RunListing
    from outlast.durable.rollouts import Rollout

Decode = Callable[[list[int]], str]
BATCH = 1024
"""Records in one Parquet row group."""


class To(StrEnum):
    """File format."""

    PARQUET = "parquet"
    JSONL = "jsonl"


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """`outlast rollouts --json`."""

    cut: str
    file: str
    rollouts: int
    groups: int
    stages: dict[str, int]
    tokens: int
    texts: bool
    """Whether texts were decoded; token ids are always there."""


def rollouts(
    *,
    run: Annotated[Path, typer.Argument(help="Run directory.", show_default=False)],
    to: Annotated[To, typer.Option(help="File format.", show_default=False)],
    snapshot: Annotated[
        str | None, typer.Option(metavar="ID", help="Cut; else the newest valid one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="New file; - is stdout. Else rollouts_ID.parquet or .jsonl.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Summary as JSON.")] = False,
) -> None:
    """Write every response that a cut holds, finished or not, with texts, rewards and versions."""
    from outlast.cli import cuts
    from outlast.cli.output import FILES, patiently, print_json
    from outlast.durable.cutcodec import load_cut
    from outlast.durable.rollouts import rollouts_of

    def read(run_dir: PurePosixPath, listing: RunListing) -> tuple[LoadedCut, list[Rollout]]:
        found = cuts.newest(listing) if snapshot is None else cuts.find(listing, snapshot)
        loaded = load_cut(FILES, run_dir, found=found)
        return loaded, list(rollouts_of(FILES, loaded))

    loaded, held = patiently(run, read)  # at once: a live run may remove the cut meanwhile
    name = loaded.directory.name
    target = _target(out, to=to, name=name)
    decode = _decoder(loaded)
    counted = _Counted()
    records = counted(_with_texts(held, decode))
    if target is None:
        for record in records:
            typer.echo(msgspec.json.encode(record).decode())
        return
    _write(records, target, to=to)
    summary = Summary(
        cut=name,
        file=str(target),
        rollouts=counted.stages.total(),
        groups=len(counted.groups),
        stages=dict(counted.stages),
        tokens=counted.tokens,
        texts=decode is not None,
    )
    print_json(summary) if as_json else typer.echo(_text(summary))


class _Counted:
    """Counts what passes."""

    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self.groups: set[int] = set()
        self.tokens = 0

    def __call__(self, records: Iterable[Rollout]) -> Iterator[Rollout]:
        for record in records:
            self.stages[record.stage.value] += 1
            self.groups.add(record.group)
            self.tokens += record.tokens
            yield record


def _target(out: Path | None, *, to: To, name: str) -> Path | None:
    """Where to write; None is stdout."""
    if out is not None and str(out) == "-":
        if to is To.PARQUET:
            raise typer.BadParameter("--out -: Parquet needs a file; jsonl can be streamed")
        return None
    target = out or Path(f"rollouts_{name}.{to.value}")
    if target.exists():
        raise NotRestorable(f"--out: {target} exists and is not overwritten. Choose another file.")
    return target


def _decoder(loaded: LoadedCut) -> Decode | None:
    """The tokenizer of the recipe that the cut carries; None, with a note, when it is not here."""
    from outlast.adapters.tokenizer import load_tokenizer
    from outlast.adapters.torch_model import resolve_model_directory
    from outlast.config.load import parse_recipe

    try:
        text = loaded.recipe.decode()
        recipe = parse_recipe(text, source=f"{loaded.directory.name}/recipe.yaml").recipe
        tokenizer = load_tokenizer(resolve_model_directory(recipe.model.path))
    except RecipeError as error:
        typer.echo(f"outlast: no texts, only token ids: {error}", err=True)
        return None

    def decode(ids: list[int]) -> str:
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    return decode


def _with_texts(records: Iterable[Rollout], decode: Decode | None) -> Iterator[Rollout]:
    for record in records:
        if decode is None or not record.prompt_ids:
            yield record
        else:
            yield msgspec.structs.replace(
                record, prompt=decode(record.prompt_ids), response=decode(record.response_ids)
            )


def _write(records: Iterable[Rollout], target: Path, *, to: To) -> None:
    """Write beside the target and rename: no half-written file under the name asked for."""
    temporary = target.with_name(f"tmp_{target.name}")
    try:
        if to is To.JSONL:
            with temporary.open("xb") as file:
                for record in records:
                    file.write(msgspec.json.encode(record) + b"\n")
        else:
            _write_parquet(records, temporary)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)


def _write_parquet(records: Iterable[Rollout], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema(
        [
            *((name, pa.int64()) for name in ("group", "sibling")),
            *((name, pa.string()) for name in ("state", "stage")),
            *((name, pa.int64()) for name in ("prompt_index", "prompt_epoch")),
            *((name, pa.string()) for name in ("prompt", "response")),
            *((name, pa.float64()) for name in ("reward", "trained_reward")),
            ("keep", pa.bool_()),
            *((name, pa.int64()) for name in ("min_version", "max_version")),
            ("truncated", pa.bool_()),
            ("tokens", pa.int64()),
            *((name, pa.list_(pa.int32())) for name in ("prompt_ids", "response_ids")),
            ("logprobs", pa.list_(pa.float32())),
            ("weight_versions", pa.list_(pa.int32())),
        ]
    )
    with pq.ParquetWriter(path, schema) as writer:
        batch: list[object] = []
        for record in records:
            batch.append(msgspec.to_builtins(record))
            if len(batch) == BATCH:
                writer.write_table(pa.Table.from_pylist(batch, schema))
                batch = []
        if batch:
            writer.write_table(pa.Table.from_pylist(batch, schema))


def _text(s: Summary) -> str:
    from outlast.cli import format as fmt

    stages = ", ".join(f"{n:,} {stage}" for stage, n in s.stages.items())
    texts = "" if s.texts else "; token ids only"
    return (
        f"{s.file}: {fmt.plural(s.rollouts, 'rollout')} of {fmt.plural(s.groups, 'group')} in "
        f"{s.cut} ({stages or 'empty'}), {fmt.count(s.tokens)} tokens{texts}"
    )
