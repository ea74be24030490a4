"""The fingerprint: what rollouts mean, and whether stored state may go on under today's recipe.

Projection = every SEMANTIC and TRAINING value of the recipe plus the identities of model,
tokenizer, dataset and environment, as canonical JSON (DESIGN 11). A SEMANTIC change is refused
under every anchor and mode; a TRAINING change only where a step would be replayed. Values under
names that look like credentials never enter. May import: `config`, `durable.manifest`, `errors`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from outlast.config.fields import FieldClass
from outlast.config.schema import Recipe
from outlast.config.walk import Value, leaf_of, looks_secret, values_of
from outlast.durable import exclusions
from outlast.durable.manifest import FORMAT, decode, encode, require_format, sha256
from outlast.errors import FingerprintMismatch

_CLIP = 80
_LOGIN = re.compile(r"://[^/@\s]+@")


class Identities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Digests of what the recipe only points at, so that a swap under the same name is seen."""

    model: str
    """Initial weights and config."""
    tokenizer: str
    dataset: str
    """Size and content, or generator, version and arguments (known failure 77)."""
    environment: str
    """Kind and version of the environment and its reward."""


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """fingerprint.json. Its sha256 stands in every manifest."""

    format: int
    semantic: dict[str, Value]
    """By dotpath; the list of excluded paths is one of them."""
    training: dict[str, Value]
    identities: Identities

    @property
    def digest(self) -> str:
        """Hex sha256 of the canonical bytes."""
        return sha256(encode(self))


def fingerprint_of(recipe: Recipe, identities: Identities) -> Fingerprint:
    """Project `recipe`. Raises RecipeError for excluded paths that are refused."""
    values = values_of(recipe)
    patterns = recipe.rollout_checkpointing.extra_fingerprint_excluded_paths
    exclusions.check_exclusions(patterns, values)
    parts: dict[FieldClass, dict[str, Value]] = {kind: {} for kind in FieldClass}
    for dotpath, value in values.items():
        leaf = leaf_of(dotpath)
        kind = FieldClass.SEMANTIC if leaf is None else leaf.kind
        if not looks_secret(dotpath) and not exclusions.excluded(patterns, dotpath):
            parts[kind][dotpath] = value
    return Fingerprint(
        format=FORMAT,
        semantic=parts[FieldClass.SEMANTIC],
        training=parts[FieldClass.TRAINING],
        identities=identities,
    )


def read_fingerprint(data: bytes, *, where: str) -> Fingerprint:
    """Decode fingerprint.json. Raises CorruptData, or UnsupportedFormat for another format."""
    found = decode(data, Fingerprint, where=where)
    require_format(found.format, where=where)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between stored and current, fit to be shown."""

    dotpath: str
    kind: FieldClass
    old: str
    """Redacted and clipped JSON; `(absent)` where there was no such field."""
    new: str
    refused: bool
    remedy: str
    """Empty when the change is accepted."""

    def __str__(self) -> str:
        line = f"{self.dotpath} ({self.kind}): {self.old} -> {self.new}"
        return f"{line}. {self.remedy}" if self.remedy else line


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What changed, and whether the state may still be used."""

    changes: tuple[Change, ...]

    @property
    def accepted(self) -> bool:
        return not any(change.refused for change in self.changes)

    @property
    def refused(self) -> tuple[Change, ...]:
        """The changes that stand in the way."""
        return tuple(change for change in self.changes if change.refused)

    def message(self, *, where: str) -> str:
        """Each refused difference of `where` with its remedy."""
        count = len(self.refused)
        head = (
            f"{where} was made under another recipe: {count} "
            f"{'field differs' if count == 1 else 'fields differ'} (stored -> now). "
            "Nothing was changed."
        )
        foot = (
            "Undo the changes above to continue this run, or choose a new run directory to start "
            f"under the new ones. (A field listed in {exclusions.LIST} is not compared, but the "
            "list itself is: it helps only runs that began with it.)"
        )
        return "\n  ".join([head, *map(str, self.refused)]) + f"\n{foot}"

    def require(self, *, where: str) -> None:
        """Raise FingerprintMismatch unless accepted."""
        if not self.accepted:
            raise FingerprintMismatch(self.message(where=where))


def compare(stored: Fingerprint, current: Fingerprint, *, steps_to_replay: int) -> Verdict:
    """Judge using state made under `stored` with `current`, when so many steps must be replayed.

    Paths excluded on either side are not compared one by one: the lists themselves are.
    """
    lists = [*_patterns(stored), *_patterns(current)]
    changes: list[Change] = []
    for kind, old, new in (
        (FieldClass.SEMANTIC, stored.semantic, current.semantic),
        (FieldClass.TRAINING, stored.training, current.training),
    ):
        for dotpath in _differing(old, new):
            if not exclusions.excluded(lists, dotpath):
                refused = kind is FieldClass.SEMANTIC or steps_to_replay > 0
                remedy = _remedy(dotpath, kind, old=old) if refused else ""
                changes.append(_change(dotpath, kind, old=old, new=new, remedy=remedy))
    before, after = _identities(stored), _identities(current)
    for dotpath in _differing(before, after):
        remedy = _IDENTITY_REMEDIES[dotpath]
        kind = FieldClass.SEMANTIC
        changes.append(_change(dotpath, kind, old=before, new=after, remedy=remedy))
    return Verdict(changes=tuple(changes))


_IDENTITY_REMEDIES = {
    "identity.model": "Point model.path at the model the run began with",
    "identity.tokenizer": "Restore the tokenizer the run began with",
    "identity.dataset": "Restore the dataset as it was: one edited item changes its digest",
    "identity.environment": "Use the environment and reward of the version the run began with",
}


def _identities(fingerprint: Fingerprint) -> dict[str, Value]:
    names = ("model", "tokenizer", "dataset", "environment")
    return {f"identity.{name}": getattr(fingerprint.identities, name) for name in names}


def _patterns(fingerprint: Fingerprint) -> tuple[str, ...]:
    found = fingerprint.semantic.get(exclusions.LIST)
    return tuple(str(item) for item in found) if isinstance(found, tuple) else ()


def _differing(old: Mapping[str, Value], new: Mapping[str, Value]) -> Iterator[str]:
    for dotpath in sorted({*old, *new}):
        if _text(old, dotpath) != _text(new, dotpath):
            yield dotpath


def _change(
    dotpath: str,
    kind: FieldClass,
    *,
    old: Mapping[str, Value],
    new: Mapping[str, Value],
    remedy: str,
) -> Change:
    return Change(
        dotpath=dotpath,
        kind=kind,
        old=_shown(old, dotpath),
        new=_shown(new, dotpath),
        refused=bool(remedy),
        remedy=remedy,
    )


def _remedy(dotpath: str, kind: FieldClass, *, old: Mapping[str, Value]) -> str:
    back = f"Set it back to {_shown(old, dotpath)}" if dotpath in old else "Remove it"
    if kind is FieldClass.TRAINING:
        back += ", or restore a trainer checkpoint that needs no step replayed"
        back += " (rollout_checkpointing.restore_mode: trainer_checkpoint)"
    return back


def _text(values: Mapping[str, Value], dotpath: str) -> str:
    """Exact JSON, so that 1, 1.0 and true differ."""
    if dotpath not in values:
        return "(absent)"
    return msgspec.json.encode(values[dotpath]).decode()


def _shown(values: Mapping[str, Value], dotpath: str) -> str:
    if dotpath in values and looks_secret(dotpath):
        return "<hidden>"
    text = _LOGIN.sub("://<hidden>@", _text(values, dotpath))
    return text if len(text) <= _CLIP else f"{text[:_CLIP]}..."
