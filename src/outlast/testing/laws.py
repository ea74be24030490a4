"""The laws of a simulated run, judged from outside (S1-S14, L2, L4; the driver judges L1 and L3).

The auditor is fed by the event stream, by the fakes (what the trainer really trained, what the
engine really loaded, what the plane really stored) and by the loop after every callback. It keeps
a shadow of the recovery state that shares no code with `model`; the instant of a cut is the instant
at which the plane is frozen. A broken law is an `AssertionError` that begins with the law's id.
May import: `telemetry.events`, `model`, `runtime.board`, `testing`.
"""

from __future__ import annotations

from outlast.model.ids import TrainerVersion, WeightVersion
from outlast.rows import Row
from outlast.telemetry import events
from outlast.testing.fake_trainer import INITIAL
from outlast.testing.law_steps import StepLaws
from outlast.testing.law_terms import FROZEN_MAX, STEPPED
from outlast.testing.shadow import Shadow


class Auditor(StepLaws):
    """One per simulation; it lives as long as the run directory, over all lives."""

    # --------------------------------------------------------------------------- from the fakes

    def stored(self, row: Row, digest: str) -> None:
        """The plane acknowledged a row."""
        name = str(row.key)
        self.require(name not in self.rows, f"S3: row {name} is stored twice under one key")
        self.rows[name] = digest
        self.check_row(row)

    def frozen(self) -> int:
        """The plane was frozen: this is the instant of a cut. Returns its sequence."""
        board = self._board
        if board is None or not self._pulse.alive:
            return 0
        sequence, shadow = board.next_sequence - 1, self.shadow.copy()
        stepped = self._stepped
        if stepped is not None and shadow.version + 1 == stepped[0] == board.state.version:
            shadow.finish(*stepped)  # a bundled cut is taken before its step is announced
        self._frozen[sequence] = shadow
        self.lineage[sequence] = self._life
        self._rows_recent.append(self._rows_held)
        self._frozen_mutations[sequence] = board.state.mutations
        while len(self._frozen) > FROZEN_MAX:
            del self._frozen[min(self._frozen)]
        self._frozen_versions[sequence] = self._durable, self.position(shadow)
        self.tokens_kept_by(sequence)
        return sequence

    def loaded(self, version: TrainerVersion, digest: str) -> None:
        """The trainer has loaded its anchor."""
        self._loaded = (version, digest)

    def updated(self, pair: WeightVersion, payload: str) -> None:
        """The engine has loaded weights."""
        self.require(
            pair.incarnation == self._life,
            f"S7: the engine got weights {pair} in life {self._life}",
        )

    # -------------------------------------------------------------------------- from the events

    def __call__(self, event: events.AnyEvent, wall: float, /) -> None:
        if not self._pulse.alive:
            return
        handler = getattr(self, f"_on_{type(event).__name__}", None)
        if handler is None:
            return
        try:
            handler(event)
        except Exception as error:  # boundary: the bus silences sinks that fail; this one may not
            self.require(False, f"the auditor failed on {event}: {type(error).__name__}: {error}")

    def _on_RunStarted(self, event: events.RunStarted) -> None:
        self.require(event.incarnation == self._life, f"S7: life {self._life} calls itself {event}")

    def _begin_fresh(self) -> None:
        """The first event of a life that restored nothing."""
        newest = self._acknowledged_before
        self.require(newest == 0, f"A2: a fresh start, though cut {newest} was acknowledged")
        self.shadow, self._ready, self._durable = Shadow(), True, 0
        self.tokens_restored(0)

    def _on_Restored(self, event: events.Restored) -> None:
        self.restored = self._ready = self._engine_due = True
        sequence = event.sequence or 0
        self._check_choice(sequence, event)
        self.continue_from(sequence, self._life)
        known = self._frozen.get(sequence)
        self.require(known is not None, f"S7: cut {sequence} was restored, but never taken")
        if known is None:
            return
        self.shadow, self._durable = known.copy(), event.trainer_version
        if self.bounds.whole_groups:
            self.shadow.forget_incomplete(self.bounds.siblings)
        self.tokens_restored(sequence)
        self._check_versions(event)
        self._check_restored()

    def _check_choice(self, sequence: int, event: events.Restored) -> None:
        """A2: the newest acknowledged cut that counts, or a newer one of its own lineage."""
        newest = self.newest_acknowledged
        if self.bounds.checkpoints_only:
            steps = [n for n, name in self.acknowledged.items() if name.startswith("step_")]
            newest = max((n for n in steps if n <= newest), default=0)
        self.require(
            sequence >= newest,
            f"A2: cut {sequence} was restored, but cut {newest} ({self.acknowledged.get(newest)}) "
            f"was acknowledged; {event.rejected}",
        )
        self.require(sequence in self.lineage, f"S7: cut {sequence} is not on the lineage")

    def continue_from(self, restored_from: int | None, life: int) -> None:
        """What the newest incarnation on disk says it restored: cuts beyond that are foreign."""
        base = restored_from or 0
        foreign = [n for n, owner in self.lineage.items() if n > base and owner != life]
        for sequence in foreign:
            del self.lineage[sequence]
            self.acknowledged.pop(sequence, None)
        self.newest_acknowledged = max(self.acknowledged, default=0)

    def _check_versions(self, event: events.Restored) -> None:
        shadow, version = self.shadow, event.trainer_version
        self.require(
            version + event.steps_to_replay == shadow.version,
            f"S7: restored at version {version} with {event.steps_to_replay} steps to replay, the "
            f"cut was taken at {shadow.version}",
        )
        if event.steps_to_replay:
            self._replay_at = version + 1
        digest = shadow.weights.get(version)
        self.require(
            self._loaded == (version, digest),
            f"S7: the trainer loaded {self._loaded}, its history says version {version}, {digest}",
        )

    def check_engine(self) -> None:
        """After a restore the engine serves this life's weights, whatever it served before."""
        self._engine_due = False
        pair, payload, foreign = self._engine()
        self.require(not foreign, f"S3: requests of dead lives run on in the engine: {foreign}")
        version = self.shadow.version
        if self._replay_at is not None:  # a stop request ended the replay early
            version = self._replay_at - 1
        digest = self.shadow.weights.get(version, INITIAL)
        self.require(
            pair is not None and (pair.incarnation, pair.version) == (self._life, version),
            f"S7: life {self._life} at version {version} starts with an engine that serves {pair}",
        )
        self.require(
            payload == digest,
            f"S7: the engine serves {payload[:12]} as version {version}, which is {digest[:12]}",
        )

    def _check_restored(self) -> None:
        """S2: what was sealed at the cut is there, row for row; nothing else is."""
        board = self._board
        if board is None:
            return
        ledger = board.state.ledger
        for group_id, sealed in self.shadow.live.items():
            group = ledger.groups.get(group_id)  # type: ignore[call-overload]
            self.require(group is not None, f"S2: group {group_id} is missing after the restore")
            if group is None:
                continue
            found = {r.key.sibling: str(r.key) for r in group.receipts()}
            self.require(
                found == sealed, f"S2: group {group_id} came back with {found}, sealed was {sealed}"
            )
            digests = {str(r.key): r.digest for r in group.receipts()}
            for key, digest in digests.items():
                self.require(self.rows.get(key) == digest, f"S2: row {key} has another digest")

    def _on_WeightsServed(self, event: events.WeightsServed) -> None:
        if self._ready:
            payload, digest = self._engine()[1], self.shadow.weights.get(event.version)
            self.require(payload == digest, f"S7: version {event.version} is served as {payload}")

    def _on_GroupsAdmitted(self, event: events.GroupsAdmitted) -> None:
        if not self._ready:
            self._begin_fresh()
        shadow = self.shadow
        for group in event.groups:
            known = group in shadow.live or group in shadow.trained or group in shadow.dropped
            self.require(not known, f"S4: group {group} is admitted a second time")
            shadow.live[group] = {}
        top = max(event.groups) + 1
        self.require(
            shadow.known == top, f"S4: groups up to {top} were drawn, {shadow.known} are known"
        )

    def _on_AttemptDispatched(self, event: events.AttemptDispatched) -> None:
        group, sibling, life = _parse(event.key)
        sealed = self.shadow.live.get(group)
        if self._engine_due and self._stepped is None:
            self.check_engine()
        self.require(life == self._life, f"S3: life {self._life} dispatched {event.key}")
        self.require(sealed is not None, f"S3: {event.key} was dispatched for a settled group")
        self.require(
            sealed is None or sibling not in sealed,
            f"S2: {event.key} is generated again, though the sibling is sealed",
        )
        self._attempts[group, sibling] = event.key

    def _on_SiblingSealed(self, event: events.SiblingSealed) -> None:
        group, sibling, _ = _parse(event.key)
        sealed = self.shadow.live.get(group)
        current = self._attempts.get((group, sibling))
        self.require(current == event.key, f"S3: {event.key} sealed, {current} is current")
        self.require(sealed is not None, f"S3: {event.key} sealed a settled group")
        if sealed is not None:
            self.require(sibling not in sealed, f"S3: {event.key} sealed a sealed sibling")
            sealed[sibling] = event.key
        self.tokens_of_sealed((group, sibling))

    def _on_AttemptFailed(self, event: events.AttemptFailed) -> None:
        group, sibling, _ = _parse(event.key)
        current = self._attempts.pop((group, sibling), None)
        # A prompt that cannot be read fails without having been sent anywhere.
        known = current in (None, event.key)
        self.require(known, f"S3: {event.key} failed, {current} is current")
        self.tokens_of_failed((group, sibling), event.key, data=event.kind == "data")
        sealed = self.shadow.live.get(group)
        if self.bounds.whole_groups and sealed is not None:
            sealed.clear()
            for slot in [s for s in self._attempts if s[0] == group]:
                del self._attempts[slot]

    def _on_GroupCommitted(self, event: events.GroupCommitted) -> None:
        sealed = self.shadow.live.get(event.group, {})
        whole = len(sealed) == self.bounds.siblings
        self.require(whole, f"S1: group {event.group} is committed with {sealed} sealed")
        self.shadow.committed.add(event.group)

    def _on_GroupDropped(self, event: events.GroupDropped) -> None:
        self.require(
            event.group in self.shadow.live, f"S4: group {event.group} is dropped while not live"
        )
        self.shadow.settle(event.group)
        self.shadow.dropped[event.group] = event.reason

    def _on_StepFinished(self, event: events.StepFinished) -> None:
        self.require(
            self._stepped == (event.step, event.groups),
            f"S1: step {event.step} is recorded with {event.groups}, trained was {self._stepped}",
        )
        self.shadow.finish(event.step, event.groups)
        self.shadow.outcomes[event.step] = dict(event.metrics)

    def _on_CheckpointPublished(self, event: events.CheckpointPublished) -> None:
        self.tally.outcomes["checkpoint"] += 1
        self._durable = max(self._durable, event.version)
        self._published(event.sequence, f"step_{event.version}")

    def _on_SnapshotPublished(self, event: events.SnapshotPublished) -> None:
        self.tally.outcomes["published"] += 1
        self._published(event.sequence, event.id)

    def _on_SnapshotSkipped(self, event: events.SnapshotSkipped) -> None:
        self.tally.outcomes[str(event.reason)] += 1

    def _published(self, sequence: int, name: str) -> None:
        self.require(
            sequence not in self.acknowledged, f"A5: sequence {sequence} is acknowledged twice"
        )
        self.require(sequence in self._frozen, f"S6: cut {sequence} was never frozen")
        self.acknowledged[sequence] = name
        self.newest_acknowledged = max(self.newest_acknowledged, sequence)
        self._saved_mutations = self._frozen_mutations.get(sequence, -1)
        self._eligible_since = None

    def at_cut(self, name: str | None) -> Shadow | None:
        """The shadow as it was at the instant of an acknowledged cut."""
        sequences = [number for number, known in self.acknowledged.items() if known == name]
        return self._frozen.get(max(sequences)) if sequences else None

    def rows_alive(self) -> int:
        """Rows that some unsettled group holds."""
        return sum(len(sealed) for sealed in self.shadow.live.values())

    def check_disk(self, *, live: int, segments: int) -> None:
        """S12: live snapshots and segments right after a publication."""
        keep = self.bounds.keep
        self.require(live <= keep + 1, f"S12: {live} live snapshots, {keep} are kept")
        most = max((*self._rows_recent, self._rows_held))
        self.require(
            segments <= most + len(self._attempts) + 2, f"S12: {segments} segments for {most} rows"
        )

    @property
    def _rows_held(self) -> int:
        """Rows of unsettled groups, and of applied ones until a checkpoint is durable."""
        state = self._board.state if self._board is not None else None
        groups = state.ledger.groups.values() if state is not None else ()
        applied = sum(len(g.siblings) for g in groups if g.state in STEPPED)
        return applied + self.rows_alive()

    def ended(self, how: str) -> None:
        """The life is over."""
        self.require(
            not self._silent or how in ("StallAbort", "killed"),
            f"S4: groups {sorted(self._silent)} vanished without a record; the life {how}",
        )


def _parse(key: str) -> tuple[int, int, int]:
    """(group, sibling, life) of an attempt key in its text form."""
    group, sibling, life, _ = (int(part[1:]) for part in key.split("."))
    return group, sibling, life
