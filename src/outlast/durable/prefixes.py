"""Prefixes of unfinished attempts: one Arrow stream beside the state of a cut.

A prefix is a row that has no reward yet: the tokens decoded before the cut, each with the logprob
and the version under which it was sampled. The file holds exactly the prefixes that the cut
names. Keeps A1. May import: `rowcodec`, `model`, `rows`.
"""

from __future__ import annotations

from collections.abc import Iterable

from outlast.durable.rowcodec import END_OF_STREAM, HEADER, decode_segment, encode_rows
from outlast.errors import CorruptData, InvariantError
from outlast.model.cut import Cut
from outlast.rows import Row


def encode_prefixes(prefixes: Iterable[Row], *, cut: Cut) -> bytes:
    """The whole file. Raises InvariantError unless `prefixes` are exactly those `cut` names."""
    rows = sorted(prefixes, key=lambda row: row.key)
    odd = _difference(rows, cut)
    if odd:
        raise InvariantError(f"S6: the prefixes to save differ from those of the cut, first {odd}")
    return HEADER + bytes(encode_rows(rows)) + END_OF_STREAM


def decode_prefixes(data: bytes, *, cut: Cut, where: str) -> tuple[Row, ...]:
    """The prefixes that `cut` names. Raises CorruptData when the file holds others."""
    rows = tuple(row for _, batch in decode_segment(data, where=where) for row in batch)
    odd = _difference(rows, cut)
    if odd:
        raise CorruptData(f"{where} does not hold the prefixes that the cut names, first {odd}")
    return rows


def _difference(rows: Iterable[Row], cut: Cut) -> str | None:
    held = {row.key: len(row.response_ids) for row in rows}
    named = {prefix.key: prefix.tokens for prefix in cut.prefixes}
    return min((str(key) for key, _ in held.items() ^ named.items()), default=None)
