"""How the restore planner looks into trees on a real disk. Changes nothing (S9).

May import: `cutcodec`, `verify`, `fingerprint`, `restore`, `files`.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from outlast.durable import names
from outlast.durable.cutcodec import LoadedCut, load_cut
from outlast.durable.files import Files
from outlast.durable.fingerprint import Fingerprint, read_fingerprint
from outlast.durable.manifest import FoundCut, TreeKind
from outlast.durable.restore import Inspector
from outlast.durable.verify import verify_payload
from outlast.errors import CorruptData


class CutReader:
    """Verifies every byte of a candidate and keeps what it decoded on the way."""

    def __init__(self, files: Files, run_dir: PurePosixPath) -> None:
        self._files = files
        self._run_dir = run_dir
        self._loaded: dict[PurePosixPath, LoadedCut] = {}

    @property
    def inspector(self) -> Inspector:
        """For `plan_restore`."""
        return Inspector(
            verify=self._verify, fingerprint=self._fingerprint, histories=self._histories
        )

    def loaded(self, found: FoundCut) -> LoadedCut:
        """A cut that the planner has accepted."""
        return self._loaded[found.path]

    def _verify(self, found: FoundCut) -> str | None:
        if found.path in self._loaded:
            return None
        directory = self._run_dir / found.path
        try:
            loaded = load_cut(self._files, self._run_dir, found=found)
            if found.kind is TreeKind.TRAINER_CHECKPOINT:
                state = (f"{names.ROLLOUT_STATE}/",)
                verify_payload(self._files, directory, manifest=loaded.manifest, skip=state)
        except CorruptData as error:
            return str(error)
        self._loaded[found.path] = loaded
        return None

    def _histories(self, found: FoundCut) -> dict[int, str]:
        records = self._loaded[found.path].cut.applied_steps
        return {int(record.step): record.history for record in records}

    def _fingerprint(self, found: FoundCut) -> Fingerprint:
        return read_fingerprint(self._loaded[found.path].fingerprint, where=str(found.path))
