"""How the restore planner looks into trees on a real disk. Changes nothing (S9).

May import: `verify`, `consumption`, `fingerprint`, `restore`, `files`.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from outlast.durable import names
from outlast.durable.consumption import read_log
from outlast.durable.files import Files
from outlast.durable.fingerprint import Fingerprint, read_fingerprint
from outlast.durable.manifest import FoundCut, TreeKind
from outlast.durable.restore import Inspector
from outlast.durable.verify import (
    read_manifest,
    read_payload,
    verify_inventory,
    verify_payload,
)
from outlast.errors import CorruptData


def state_directory(run_dir: PurePosixPath, found: FoundCut) -> PurePosixPath:
    """Where the files of a cut lie inside its tree."""
    directory = run_dir / found.path
    return directory if found.kind is TreeKind.SNAPSHOT else directory / names.ROLLOUT_STATE


def make_inspector(
    files: Files, run_dir: PurePosixPath, *, skip: tuple[str, ...] = ()
) -> Inspector:
    """An inspector that reads every byte of a cut and the consumption log it stands on.

    Files whose name starts with a prefix in `skip` are left out (trainer shards that each rank
    verifies while loading).
    """

    def verify(found: FoundCut) -> str | None:
        directory = run_dir / found.path
        try:
            manifest = read_manifest(files, directory)
            verify_inventory(files, directory, manifest)
            verify_payload(files, directory, manifest=manifest, skip=skip)
            read_log(files, run_dir / names.CONSUMPTION, manifest.log)
        except CorruptData as error:
            return str(error)
        return None

    def fingerprint(found: FoundCut) -> Fingerprint:
        path = state_directory(run_dir, found) / names.FINGERPRINT
        return read_fingerprint(read_payload(files, path), where=str(path))

    return Inspector(verify=verify, fingerprint=fingerprint)
