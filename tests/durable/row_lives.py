"""Lives whose rows really stand on disk, under a real fingerprint, for tools that read them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np

from outlast.config.load import parse_recipe
from outlast.config.schema import Recipe
from outlast.durable import names
from outlast.durable.cutcodec import load_cut
from outlast.durable.files import make_directory
from outlast.durable.fingerprint import Fingerprint, Identities, fingerprint_of
from outlast.durable.listing import read_run
from outlast.durable.manifest import FileEntry, Manifest, encode
from outlast.durable.publish import TmpTree
from outlast.durable.segments import Held, SegmentStore
from outlast.model.cut import Cut, PrefixRef, covered
from outlast.model.groups import Receipt, RecoveryLevel
from outlast.model.ids import AttemptKey, GroupId, TrainerVersion
from outlast.model.ids import Sequence as CutSequence
from outlast.rows import Row, row_digest
from tests.durable.lives import FILES, PER_STEP, Life

IDENTITIES = Identities(model="m", tokenizer="t", dataset="toy", environment="e")
TOKENS = 10


def recipe(*overrides: str) -> Recipe:
    """A recipe whose semantic fields fit the toy plan."""
    given = ("seed=3", f"algorithm.num_prompts_per_step={PER_STEP}", *overrides)
    return parse_recipe("", given, source="test").recipe


def fingerprint(*overrides: str, identities: Identities = IDENTITIES) -> Fingerprint:
    return fingerprint_of(recipe(*overrides), identities)


def make_row(key: AttemptKey, *, version: int, tokens: int = TOKENS) -> Row:
    rng = np.random.default_rng(key.group * 100 + key.sibling)
    return Row(
        key=key,
        prompt_ids=np.arange(2, dtype=np.int32),
        response_ids=rng.integers(0, 50, tokens, dtype=np.int32),
        logprobs=rng.standard_normal(tokens).astype(np.float32),
        weight_versions=np.full(tokens, version, dtype=np.int32),
        loss_mask=np.ones(tokens, dtype=np.bool_),
        reward=float(key.sibling),
        mask_sample=False,
    )


@dataclass
class RowLife(Life):
    """`Life`, with rows in segments, prefixes, and a fingerprint."""

    rows: dict[AttemptKey, Held] = field(default_factory=dict)
    prefixes: dict[AttemptKey, Row] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.state.plan = replace(self.state.plan, level=lambda prompt: RecoveryLevel.TOKEN)
        run_dir = PurePosixPath(self.path)
        self.store = SegmentStore(FILES, names.RunPaths(run_dir).segments, incarnation=self.number)
        if self.parent is None:
            return
        listing = read_run(FILES, run_dir, verify="manifest")
        found = next(f for f in listing.cuts if f.manifest and f.manifest.sequence == self.parent)
        loaded = load_cut(FILES, run_dir, found=found)
        if loaded.cut.row_keys:
            self.rows = self.store.load(loaded.rows, loaded.cut.row_keys)

    def finish(self, group: GroupId) -> None:
        state = self.state
        for sibling in state.ledger.groups[group].siblings:
            if not sibling.sealed:
                key = state.dispatch(group, sibling.index, version=state.version)
                state.seal(self._sealed(key))
        state.complete(group)
        state.commit(group, rewards=(0.0, 1.0), keep=(True, True))

    def begin(self, group: GroupId, tokens: int) -> None:
        """Sibling 0 has decoded `tokens` and goes on."""
        key = self.state.dispatch(
            group, self.state.ledger.groups[group].siblings[0].index, version=self.state.version
        )
        self.prefixes[key] = make_row(key, version=self.state.version, tokens=tokens)

    def _sealed(self, key: AttemptKey) -> Receipt:
        row = make_row(key, version=self.state.version)
        self.rows[key] = Held(row, row_digest(row))
        return Receipt(
            key=key,
            digest=row_digest(row),
            reward=row.reward,
            prompt_tokens=2,
            response_tokens=TOKENS,
            min_version=self.state.version,
            max_version=self.state.version,
            truncated=False,
            mask_sample=False,
        )

    # --------------------------------------------------------------------------- publishing

    def _save(self, tree: TmpTree, cut: Cut, *, link: bool) -> tuple[FileEntry, ...]:
        directory = self.publisher.rows_directory(tree)
        make_directory(FILES, directory)
        wanted = {key: self.rows[key] for key in cut.row_keys}
        return self.store.save(wanted, directory, link=link)

    def _cut(self) -> Cut:
        refs = tuple(
            PrefixRef(key=key, tokens=len(row.response_ids)) for key, row in self.prefixes.items()
        )
        state = self.state
        cut = state.cut(sequence=self.at, parent=self.parent, anchor=self.anchor, prefixes=refs)
        self.at = CutSequence(self.at + 1)
        return cut

    def snapshot(self) -> Manifest:
        cut = self._cut()
        tree = self.publisher.open_snapshot(cut.sequence)
        manifest = self.publisher.publish_snapshot(
            tree,
            cut=cut,
            rows=self._save(tree, cut, link=True),
            prefixes=self.prefixes.values(),
            fingerprint=encode(fingerprint()),
            recipe=b"seed: 3\n",
        )
        self.parent = cut.sequence
        return manifest

    def checkpoint(self) -> Manifest:
        cut = covered(self._cut())
        tree = self.publisher.open_checkpoint(cut.trainer_version, sequence=cut.sequence)
        shard = Path(tree.directory) / names.TRAINER / "deep" / "weights.bin"
        shard.parent.mkdir()
        shard.write_bytes(b"w" * 1000)
        manifest = self.publisher.publish_checkpoint(
            tree,
            cut=cut,
            rows=self._save(tree, cut, link=False),
            prefixes=self.prefixes.values(),
            fingerprint=encode(fingerprint()),
            recipe=b"seed: 3\n",
            metrics={"reward": 0.5},
        )
        self.state.durable(TrainerVersion(cut.trainer_version))
        self.anchor, self.parent = cut.anchor, cut.sequence
        return manifest


def busy(path: Path) -> RowLife:
    """Two lives; the newest snapshot is at version 3, two steps above ``step_1``, with a prefix."""
    path.mkdir(exist_ok=True)
    first = RowLife(path)
    first.admit(3)
    first.step()
    first.checkpoint()
    first.drop(first.admit(1)[0])
    first.snapshot()
    second = RowLife(path)
    second.admit(1)
    second.step()
    second.step()
    second.finish(second.admit(1)[0])
    second.begin(second.admit(1)[0], 4)
    second.snapshot()
    return second
