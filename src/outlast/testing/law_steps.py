"""The part of the auditor that judges optimizer steps: what was trained, replayed and kept.

S1, S2, S3, S7, S8 and S11 on each step that the trainer really took, and S14: a replay repeats the
step as it was, and rows of a step stay until a durable trainer checkpoint covers it. May import:
`model`, `telemetry.events`, `testing`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from outlast.model.ids import AttemptKey, Step
from outlast.telemetry import events
from outlast.testing.fake_trainer import SeenGroup
from outlast.testing.law_prefixes import PrefixLaws
from outlast.testing.shadow import Shadow


class StepLaws(PrefixLaws):
    """Judges what trainer and plane were told to do."""

    # ------------------------------------------------------------------------- from the trainer

    def trained(self, step: Step, groups: tuple[SeenGroup, ...], *, digest: str) -> None:
        """The trainer has taken an optimizer step over `groups`."""
        shadow = self.shadow
        ids = tuple(int(group.id) for group in groups)
        if step <= shadow.version:
            self._replayed(step, groups, digest=digest)
            return
        self.require(len(set(ids)) == len(ids), f"S1: step {step} trained a group twice: {ids}")
        self.require(step == shadow.version + 1, f"S7: step {step} at version {shadow.version}")
        self.require(
            self._replay_at is None, f"S1: step {step} before step {self._replay_at} was replayed"
        )
        most = self.bounds.groups_per_step
        self.require(0 < len(ids) <= most, f"S1: step {step} trained {len(ids)} of {most} groups")
        for group in groups:
            self._check_group(step, group)
            self._check_age(step, group)
        shadow.weights[step], shadow.steps[step] = digest, groups
        self._stepped = (step, ids)

    def _check_group(self, step: Step, group: SeenGroup) -> None:
        """S1, S2, S3: trained once, over the rows that were sealed, as they were stored."""
        shadow = self.shadow
        before = shadow.trained.get(group.id)
        self.require(before is None, f"S1: group {group.id} is trained by steps {before}, {step}")
        sealed = shadow.live.get(group.id, {})
        names = {key.sibling: str(key) for key in group.keys}
        self.require(
            names == sealed and len(names) == self.bounds.siblings,
            f"S3: step {step} trained rows {names} of group {group.id}, sealed are {sealed}",
        )
        stored = tuple(self.rows.get(str(key), "") for key in group.keys)
        self.require(
            stored == group.digests,
            f"S2: rows of group {group.id} differ from what was stored under their keys",
        )

    def _check_age(self, step: Step, group: SeenGroup) -> None:
        version, bound = step - 1, self.bounds.max_lag
        lag = version - group.oldest
        self.tally.lag_max = max(self.tally.lag_max, lag)
        where = f"group {group.id} (versions {group.oldest}..{group.newest}) at version {version}"
        self.require(group.newest <= version, f"S8: negative age: {where}")
        self.require(bound is None or lag <= bound, f"S8: {where} exceeds the bound {bound}")

    def _replayed(self, step: Step, groups: tuple[SeenGroup, ...], *, digest: str) -> None:
        """A step of an earlier life is executed again: the same one, as it was."""
        shadow = self.shadow
        before = shadow.steps.get(step, ())
        self.require(step == self._replay_at, f"S1: step {step} is repeated, not replayed")
        self.require(
            groups == before,
            f"S14: step {step} replays {_listed(groups)}, recorded is {_listed(before)}",
        )
        self.require(
            digest == shadow.weights.get(step),
            f"S11: the replay of step {step} gives other weights",
        )
        self._replay_at = step + 1 if step < shadow.version else None
        self.tally.outcomes["replayed"] += 1

    def _on_StepReplayed(self, event: events.StepReplayed) -> None:
        recorded = self.shadow.outcomes.get(event.step)
        self.require(
            event.metrics == recorded and not event.differences,
            f"S14: the replay of step {event.step} gives {event.metrics}, recorded is {recorded}",
        )

    # --------------------------------------------------------------------------- from the plane

    def released(self, keys: Collection[AttemptKey]) -> None:
        """The plane is told to forget rows: none of them may still be needed."""
        shadow, gone = self.shadow, set(map(str, keys))
        early = sorted(gone & shadow.rows_sealed())
        self.require(not early, f"S2: rows {early} are released, though they wait to be trained")
        early = sorted(gone & shadow.rows_applied(above=self._durable))
        self.require(
            not early,
            f"S14: rows {early} are released, though no trainer checkpoint above version "
            f"{self._durable} is durable",
        )

    def saving(self, sequence: int, keys: Collection[AttemptKey], *, bundled: bool) -> None:
        """A cut names its rows. One that is bundled with a trainer checkpoint covers its steps."""
        shadow, found = self._frozen.get(sequence), set(map(str, keys))
        if shadow is None:
            return
        sealed = shadow.rows_sealed()
        applied = shadow.rows_applied(above=self._frozen_versions[sequence][bundled])
        lost, missing = sorted(sealed - found), sorted(applied - found)
        odd = sorted(found - sealed - applied)
        self.require(not lost, f"S6: cut {sequence} lacks the sealed rows {lost}")
        self.require(not missing, f"S14: cut {sequence} lacks the rows {missing} of applied groups")
        self.require(not odd, f"S6: cut {sequence} names rows that belong to nobody: {odd}")

    def position(self, shadow: Shadow) -> int:
        """The trainer's version: below that of the shadow while steps are replayed."""
        return shadow.version if self._replay_at is None else self._replay_at - 1


def _listed(groups: Sequence[SeenGroup]) -> str:
    """Groups with their chunk, in order."""
    return "[" + ", ".join(f"{group.id} in chunk {group.chunk}" for group in groups) + "]"
