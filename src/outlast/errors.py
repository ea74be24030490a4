"""The exception tree of Outlast. Each class names the boundary that failed and what to do about it.

    OutlastError
    ├── RecipeError            the recipe, before anything ran                    exit 78
    ├── RefusedState           what stands on disk must not be used this way      exit 65
    │   ├── FingerprintMismatch    rollout semantics changed under the run
    │   ├── NotRestorable          a named refusal of the restore planner
    │   ├── UnsupportedFormat      a run, snapshot or record of another format
    │   ├── ForeignRun             a directory that is not (this) run
    │   ├── LockHeld               another controller owns the directory
    │   └── Fenced                 a newer incarnation has taken over
    ├── StallAbort             no progress, or a deadlock among the pumps         exit 69
    ├── InvariantError         Outlast contradicts itself; never retried          exit 70
    │   └── TransitionRefused      an event the ledger's table does not allow
    ├── DiskError              the disk failed; nothing was decided from it       exit 74
    │   └── DiskFull               no space: snapshots pause, training goes on
    ├── Preempted              stopped on request, state published: restart me    exit 75
    ├── CorruptData            proven mismatch of bytes at rest (read side)
    └── RolloutFailure         one attempt went wrong: data, never a crash
        ├── InfrastructureFailure  time-out, dead worker, transport
        └── DataFailure            deterministic for this prompt: its row, environment or reward

Every message says what was refused, where, what was found against what is required, and what to do.
"""

from __future__ import annotations


class OutlastError(Exception):
    """Base of every error that Outlast raises on purpose."""

    exit_code = 70


class RecipeError(OutlastError):
    """The recipe is wrong: fix it and start again. Nothing was written."""

    exit_code = 78


class RefusedState(OutlastError):
    """What stands on disk must not be used this way. Nothing was changed."""

    exit_code = 65


class FingerprintMismatch(RefusedState):
    """Rollout semantics differ from those the state was made under."""


class NotRestorable(RefusedState):
    """The restore planner refuses to start from what it found."""


class UnsupportedFormat(RefusedState):
    """A format version, schema or field that this release does not read."""


class ForeignRun(RefusedState):
    """The directory is not a run directory, or belongs to another run."""


class LockHeld(RefusedState):
    """Another controller owns the run directory."""


class Fenced(RefusedState):
    """A newer incarnation owns the run; this one must touch nothing more."""


class StallAbort(OutlastError):
    """Work remains and nothing moves; the message lists who waits for what."""

    exit_code = 69


class InvariantError(OutlastError):
    """A law is broken inside the process: stop at once, restart from the last snapshot."""


class TransitionRefused(InvariantError):
    """An event that the ledger's table refuses in the state the group is in."""


class DiskError(OutlastError):
    """The disk failed. It says nothing about whether the data is good: fix it and restart."""

    exit_code = 74


class DiskFull(DiskError):
    """No space left: free some; snapshots are skipped until then and training goes on."""


class Preempted(OutlastError):
    """Stopped on request with its state published. Run the same command again to continue."""

    exit_code = 75


class CorruptData(OutlastError):
    """Bytes at rest do not match their digest, size or framing: proven, not suspected."""

    exit_code = 65


class RolloutFailure(OutlastError):
    """One attempt of one sibling failed; the failure policy decides what happens next."""


class InfrastructureFailure(RolloutFailure):
    """Time-out, dead worker or transport: worth trying again elsewhere."""


class DataFailure(RolloutFailure):
    """Deterministic for this prompt: an unreadable row, a failing environment or reward."""
