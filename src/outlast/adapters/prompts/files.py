"""Rows from jsonl, parquet and arrow files: random access, content digest computed once.

jsonl keeps an index of byte offsets (8 bytes a row) and reads a row when it is asked for; parquet
and arrow are held in memory as Arrow tables. Law A1 for prompts: an index always means the same
row, so a file that changes under the run is refused. May import: `columns`, `ports`, `errors`.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from outlast.adapters.prompts.columns import Columns
from outlast.errors import DataFailure, RecipeError, RefusedState
from outlast.ports import PromptItem

KINDS = {".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet", ".arrow": "arrow"}


class RowFile(Protocol):
    """One file of rows, by number from 0."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str: ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def __len__(self) -> int: ...

    def row(self, number: int) -> dict[str, object]: ...


class JsonlFile:
    """One JSON object a line; blank lines are no rows. Columns are those of the first row."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets = array("q")
        digest, place = hashlib.sha256(), 0
        with path.open("rb") as stream:
            self._stamp = _stamp(os.fstat(stream.fileno()))
            for line in stream:
                if line.strip():
                    self._offsets.append(place)
                digest.update(line)
                place += len(line)
        self.sha256 = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def columns(self) -> tuple[str, ...]:
        try:
            return tuple(self.row(0))
        except DataFailure as error:
            raise RecipeError(f"no columns can be read: {error}") from error

    def row(self, number: int) -> dict[str, object]:
        """Row `number`. DataFailure when it is no JSON object, RefusedState when the file moved."""
        line = self._line(number)
        try:
            row = json.loads(line)
        except ValueError as error:  # bad JSON or bad UTF-8
            raise DataFailure(f"{self.path} row {number} is unreadable: {error}") from error
        if not isinstance(row, dict):
            raise DataFailure(f"{self.path} row {number} is a {type(row).__name__}, not an object")
        return row

    def _line(self, number: int) -> bytes:
        advice = "Put the file back, or fork the run with the new one"
        try:
            with self.path.open("rb") as stream:
                same = _stamp(os.fstat(stream.fileno())) == self._stamp
                stream.seek(self._offsets[number])
                line = stream.readline()
        except OSError as error:
            raise RefusedState(f"{self.path} row {number}: {error}. {advice}") from error
        if not same:
            raise RefusedState(
                f"{self.path} changed while the run reads it; its rows are no longer those of "
                f"the dataset digest. {advice}"
            )
        return line


class TableFile:
    """A parquet file, or an arrow stream or file, held in memory."""

    def __init__(self, path: Path, kind: str) -> None:
        import pyarrow

        self.path = path
        try:
            self._table = _read_parquet(path) if kind == "parquet" else _read_arrow(path)
        except pyarrow.ArrowException as error:
            raise RecipeError(f"{path} is not a readable {kind} file: {error}") from error
        with path.open("rb") as stream:
            self.sha256 = hashlib.file_digest(stream, "sha256").hexdigest()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._table.column_names)

    def row(self, number: int) -> dict[str, object]:
        """Row `number`. DataFailure when a value cannot be represented (bad UTF-8, for one)."""
        import pyarrow

        try:
            rows: list[dict[str, object]] = self._table.slice(number, 1).to_pylist()
        except (pyarrow.ArrowException, ValueError) as error:
            raise DataFailure(f"{self.path} row {number} is unreadable: {error}") from error
        return rows[0]


class FilePrompts:
    """The rows of one or more files, in the order given, as prompt items."""

    def __init__(self, files: Sequence[RowFile], *, columns: Columns) -> None:
        self._files = tuple(files)
        self._columns = columns
        self._ends = list(accumulate(len(file) for file in self._files))
        names = ", ".join(str(file.path) for file in self._files)
        if not self._ends or not self._ends[-1]:
            raise RecipeError(f"the dataset has no rows ({names or 'no files'})")
        for file in self._files:
            if len(file):
                columns.check(file.columns, where=str(file.path))
        content = [[len(file), file.sha256] for file in self._files]
        self._digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def digest(self) -> str:
        """sha256 over rows and content of the files; their paths do not matter."""
        return self._digest

    def __len__(self) -> int:
        return self._ends[-1]

    def item(self, index: int) -> PromptItem:
        if not 0 <= index < len(self):
            raise IndexError(f"item {index} of a dataset of {len(self)}")
        which = bisect_right(self._ends, index)
        file = self._files[which]
        number = index - (self._ends[which - 1] if which else 0)
        return self._columns.item(file.row(number), where=f"{file.path} row {number}")


def open_files(paths: Sequence[Path], *, columns: Columns, kind: str | None = None) -> FilePrompts:
    """Index `paths`; `kind` (jsonl, parquet, arrow) follows from the suffix when it is None."""
    files: list[RowFile] = []
    for path in paths:
        found = kind or KINDS[path.suffix]
        try:
            files.append(JsonlFile(path) if found == "jsonl" else TableFile(path, found))
        except OSError as error:
            raise RecipeError(f"dataset file {path} cannot be read: {error}") from error
    return FilePrompts(files, columns=columns)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.read_table(path)


def _read_arrow(path: Path) -> Any:
    from pyarrow import ArrowInvalid, ipc, memory_map

    try:
        return ipc.open_stream(memory_map(str(path))).read_all()
    except ArrowInvalid:
        return ipc.open_file(memory_map(str(path))).read_all()
