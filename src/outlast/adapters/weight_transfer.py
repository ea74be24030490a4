"""How weights reach engines: published once by whoever has them, fetched by every engine.

| kind | payload | reaches |
|---|---|---|
| in_process | the mapping itself | this process |
| file | path and digest of a safetensors file, in /dev/shm where there is one | this host |
| ray | a reference into Ray's object store, and a digest | every node of the cluster |

Whoever fetches gets exactly what was published, or InfrastructureFailure: the digest is compared.
May import: torch, safetensors, ray (when chosen), `errors`, `model.ids`.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from outlast.adapters.ray_session import SESSION
from outlast.config.schema import RaySection
from outlast.errors import InfrastructureFailure, InvariantError, RecipeError
from outlast.model.ids import WeightVersion

State = Mapping[str, Tensor]
SHARED_MEMORY = Path("/dev/shm")
KEPT = 2
"""Files of the newest versions; an engine may still be reading the one before the newest."""


class WeightTransfer(Protocol):
    """The side that has the weights. Blocking; one call at a time."""

    def publish(self, state: State, version: WeightVersion, /) -> object:
        """Make `state` fetchable; tensors may change once it returns. The payload is picklable."""
        ...

    def close(self) -> None:
        """Remove what was published. Idempotent."""
        ...


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A safetensors file on this host."""

    path: str
    sha256: str


@dataclass(frozen=True, slots=True)
class WeightObject:
    """An object of Ray's store. Wrapped in a list: Ray would fetch a bare reference in passing."""

    reference: list[Any]
    sha256: str


def make_transfer(kind: str) -> WeightTransfer:
    """The transfer that a recipe names. Raises RecipeError."""
    kinds: dict[str, Callable[[], WeightTransfer]] = {
        "in_process": InProcess,
        "file": FileTransfer,
        "ray": RayTransfer,
    }
    if kind not in kinds:
        raise RecipeError(f"generation.weight_transfer: {kind!r}; required: {', '.join(kinds)}")
    return kinds[kind]()


def fetch(payload: object) -> State:
    """What was published. Raises InfrastructureFailure when it is gone or not the same."""
    if isinstance(payload, WeightFile):
        return _fetch_file(payload)
    if isinstance(payload, WeightObject):
        return _fetch_object(payload)
    if isinstance(payload, Mapping):
        return payload
    raise InvariantError(
        f"a weights payload of type {type(payload).__name__} is of no known transfer"
    )


def state_digest(state: State) -> str:
    """sha256 over name, dtype, shape and bytes of each tensor, in order of names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state.items()):
        value = tensor.detach().cpu().contiguous()
        digest.update(f"{name}\0{value.dtype}\0{list(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class InProcess:
    """Nothing moves."""

    def publish(self, state: State, version: WeightVersion, /) -> object:
        return state

    def close(self) -> None:
        """Nothing was made."""


class FileTransfer:
    """Files in a directory of its own, removed on `close`; a killed publisher leaves them behind
    until the machine restarts or the next one of the same user sweeps them."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or (SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
        _sweep(parent or Path(tempfile.gettempdir()))
        self._directory = tempfile.TemporaryDirectory(prefix=_prefix(os.getpid()), dir=parent)
        self._files: list[Path] = []

    def publish(self, state: State, version: WeightVersion, /) -> WeightFile:
        """Raises InfrastructureFailure when there is no room."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        name = f"{version.incarnation}_{version.version}_{secrets.token_hex(4)}.safetensors"
        path = Path(self._directory.name) / name
        try:
            save_file(_apart(state), path)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except (OSError, SafetensorError) as error:
            path.unlink(missing_ok=True)
            raise InfrastructureFailure(f"weights {version} into {path}: {error}") from error
        self._files.append(path)
        while len(self._files) > KEPT:
            self._files.pop(0).unlink(missing_ok=True)
        return WeightFile(str(path), digest)

    def close(self) -> None:
        self._directory.cleanup()


def _apart(state: State) -> dict[str, Tensor]:
    """Contiguous, and none sharing memory with another, which the format refuses (tied weights)."""
    seen: set[int] = set()
    apart = {}
    for name, tensor in state.items():
        value = tensor.detach().contiguous()
        place = value.untyped_storage().data_ptr()
        apart[name] = value.clone() if place in seen else value
        seen.add(place)
    return apart


def _prefix(pid: int) -> str:
    return f"outlast-weights-{os.getuid()}-{pid}-"


def _sweep(parent: Path) -> None:
    """Remove directories whose publisher is dead."""
    for path in parent.glob(f"outlast-weights-{os.getuid()}-*-*"):
        pid = path.name.split("-")[3]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(path, ignore_errors=True)


def _fetch_file(payload: WeightFile) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        data = Path(payload.path).read_bytes()
    except OSError as error:
        raise InfrastructureFailure(f"weights {payload.path}: {error}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != payload.sha256:
        raise InfrastructureFailure(
            f"weights {payload.path}: digest {found[:16]}, published was {payload.sha256[:16]}"
        )
    try:
        return load(data)
    except SafetensorError as error:
        raise InfrastructureFailure(f"weights {payload.path}: {error}") from error


class RayTransfer:
    """One object per version; Ray copies it to each node once, and forgets it with the last
    reference. Holds the connection that whoever fetches has made: without it, the loss of all
    engines at once would end the session, and with it the weights that new ones need."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._ray: Any = None

    def publish(self, state: State, version: WeightVersion, /) -> WeightObject:
        ray = self._ray = self._ray or SESSION.acquire(RaySection())
        arrays = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        reference = ray.put(arrays)
        self._kept = [*self._kept[-(KEPT - 1) :], reference]
        return WeightObject([reference], state_digest(arrays))

    def close(self) -> None:
        self._kept.clear()
        if self._ray is not None:
            self._ray = None
            SESSION.release()


def _fetch_object(payload: WeightObject) -> State:
    import ray

    try:
        state: State = ray.get(payload.reference[0])
    except ray.exceptions.RayError as error:
        raise InfrastructureFailure(f"weights in Ray's store: {error}") from error
    found = state_digest(state)
    if found != payload.sha256:
        raise InfrastructureFailure(
            f"weights in Ray's store: digest {found[:16]}, published was {payload.sha256[:16]}"
        )
    return state
