"""Flat dictionaries of tensors on disk, as torch Distributed Checkpoint (DCP) of one process, and
what reads those of any number of processes.

Writes inside a ``tmp_*`` tree that somebody else seals and publishes; files are synced, directories
are not. Only tensors are stored, because DCP reads anything else with an unrestricted pickle. Its
index ``.metadata`` is a pickle as well, so it is read by an unpickler that knows the index classes
and nothing else: a crafted file is refused instead of run. May import: torch, `errors`.
"""

from __future__ import annotations

import errno
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
)
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor

from outlast.errors import CorruptData, DiskError, DiskFull, NotRestorable

_METADATA = "torch.distributed.checkpoint.metadata"
_INDEX_CLASSES = frozenset(
    {
        *(
            (_METADATA, name)
            for name in (
                "Metadata",
                "MetadataIndex",
                "TensorStorageMetadata",
                "ChunkStorageMetadata",
                "TensorProperties",
                "StorageMeta",
                "_MEM_FORMAT_ENCODING",
                "BytesStorageMetadata",
            )
        ),
        ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
        ("torch", "Size"),
        ("torch.serialization", "_get_layout"),
        ("collections", "OrderedDict"),
        ("pathlib", "PosixPath"),
        ("pathlib", "WindowsPath"),
        ("pathlib._local", "PosixPath"),
    }
)


def write_checkpoint(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write `tensors` (on the CPU) below the existing `directory`, synced.

    Raises DiskFull or DiskError; what was written is then worthless and not removed.
    """
    with disk_errors(directory):
        _save(FileSystemWriter(directory, thread_count=1, sync_files=True), dict(tensors))


@contextmanager
def disk_errors(directory: Path) -> Iterator[None]:
    """Failures of the disk while a checkpoint is written become DiskFull or DiskError."""
    try:
        yield
    except OSError as error:
        raise _disk_error(directory, error) from error
    except RuntimeError as error:
        # torch's zip writer closes its archive while an OSError is in flight, and complains that
        # less was written than it counted: the disk failed, the program did not.
        failed = _os_error_behind(error)
        if failed is None:
            raise
        raise _disk_error(directory, failed) from error


def read_checkpoint(directory: Path, targets: Mapping[str, Tensor]) -> None:
    """Fill `targets` in place with exactly the tensors stored in `directory`; of a DTensor, with
    the shard that this process holds.

    Raises NotRestorable when names, shapes or dtypes differ, CorruptData when it is not readable
    as a checkpoint, DiskError when the disk fails.
    """
    try:
        reader = _Reader(directory)
        _check_same(directory, metadata=reader.read_metadata(), targets=targets)
        _load(reader, {name: t for name, t in targets.items() if held(t).numel()})
    except FileNotFoundError as error:
        raise CorruptData(f"checkpoint {directory}: {error.filename} is missing") from error
    except OSError as error:
        raise _disk_error(directory, error) from error
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise CorruptData(f"checkpoint {directory} is not readable: {error}") from error


def held(tensor: Tensor) -> Tensor:
    """The part of `tensor` that lives in this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# The two drivers below are what dcp.save and dcp.load do in one process. Calling the planner and
# the storage directly keeps their warning ("torch.distributed is uninitialized") and the wrapping
# of every OSError out of the way; a process-wide warning filter is no business of a thread.


def _save(writer: FileSystemWriter, tensors: dict[str, Any]) -> None:
    planner = DefaultSavePlanner()
    writer.reset(writer.path)
    planner.set_up_planner(tensors, writer.storage_meta(), is_coordinator=True)
    writer.set_up_storage_writer(is_coordinator=True)
    local = writer.prepare_local_plan(planner.create_local_plan())
    plans, metadata = planner.create_global_plan([local])
    plan = planner.finish_plan(writer.prepare_global_plan(plans)[0])
    results = writer.write_data(plan, planner)
    results.wait()
    writer.finish(metadata, [results.value()])


def _load(reader: FileSystemReader, targets: dict[str, Any]) -> None:
    planner, metadata = DefaultLoadPlanner(), reader.read_metadata()
    planner.set_up_planner(targets, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    local = reader.prepare_local_plan(planner.create_local_plan())
    plans = reader.prepare_global_plan(planner.create_global_plan([local]))
    reader.read_data(planner.finish_plan(plans[0]), planner).wait()


def _enum_member(kind: object, name: str) -> Enum:
    """What some releases of Python pickle an enum member as: `getattr` of an allowed class."""
    if isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__:
        return kind.__members__[name]
    raise pickle.UnpicklingError(f"getattr of {name!r} does not belong into a DCP index")


class _IndexUnpickler(pickle.Unpickler):
    """Builds the classes of a DCP index and refuses every other global."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        known = (module, name) in _INDEX_CLASSES
        if not known and isinstance(getattr(torch, name, None), torch.dtype) and module == "torch":
            known = True
        if not known:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong into a DCP index")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        with (Path(self.path) / ".metadata").open("rb") as file:
            metadata = _IndexUnpickler(file).load()
        if not isinstance(metadata, Metadata):
            raise pickle.UnpicklingError(f".metadata holds a {type(metadata).__name__}")
        if metadata.storage_meta is not None:
            metadata.storage_meta.load_id = self.load_id
        return metadata


def _check_same(directory: Path, *, metadata: Metadata, targets: Mapping[str, Tensor]) -> None:
    stored = metadata.state_dict_metadata
    faults = [f"{name} missing" for name in sorted(targets.keys() - stored.keys())]
    faults += [f"{name} unknown" for name in sorted(stored.keys() - targets.keys())]
    for name in sorted(targets.keys() & stored.keys()):
        found, target = stored[name], targets[name]
        if not isinstance(found, TensorStorageMetadata):
            faults.append(f"{name} is not a tensor")
        elif (found.size, found.properties.dtype) != (target.shape, target.dtype):
            faults.append(
                f"{name} is {found.properties.dtype}{list(found.size)}, "
                f"required {target.dtype}{list(target.shape)}"
            )
    if faults:
        raise NotRestorable(
            f"checkpoint {directory} refused, it belongs to another model or release: "
            f"{'; '.join(faults[:5])}{' ...' if len(faults) > 5 else ''}"
        )


def _os_error_behind(error: BaseException) -> OSError | None:
    """The OSError that `error` was raised from, or while it was handled, if there is one."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, OSError):
        seen = seen.__cause__ or seen.__context__
    return seen


def _disk_error(directory: Path, error: OSError) -> DiskError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return (DiskFull if full else DiskError)(f"checkpoint {directory}: {error}")
