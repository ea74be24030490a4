"""Weights in files: tied tensors, no room, what stays behind, and every damaged byte."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from outlast.adapters.weight_transfer import KEPT, FileTransfer, fetch, state_digest
from outlast.errors import InfrastructureFailure
from outlast.model.ids import Incarnation, TrainerVersion, WeightVersion


def state(seed: int = 0) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(5, 7, generator=random),
        "b.weight": torch.randn(4, 6, generator=random).T,  # not contiguous
        "c.half": torch.randn(3, generator=random).to(torch.bfloat16),
        "d.scalar": torch.tensor(2.5),
    }


def version(number: int) -> WeightVersion:
    return WeightVersion(Incarnation(1), TrainerVersion(number))


def same(payload: object, right: dict[str, Tensor]) -> bool:
    fetched = fetch(payload)
    assert {name: t.dtype for name, t in fetched.items()} == {n: t.dtype for n, t in right.items()}
    return all(torch.equal(fetched[name], tensor) for name, tensor in right.items())


def test_tensors_that_share_memory_arrive_each_under_its_name(tmp_path: Path) -> None:
    tied = torch.randn(4, 4)
    transfer = FileTransfer(tmp_path)
    published = {"embed": tied, "head": tied, "part": tied[1:]}
    assert same(transfer.publish(published, version(0)), published)
    transfer.close()


def test_only_the_newest_files_stay_and_none_after_close(tmp_path: Path) -> None:
    transfer = FileTransfer(tmp_path)
    payloads = [transfer.publish(state(number), version(number)) for number in range(5)]
    assert len(list(tmp_path.rglob("*.safetensors"))) == KEPT
    assert all(same(payloads[-n], state(5 - n)) for n in range(1, KEPT + 1))
    with pytest.raises(InfrastructureFailure, match="No such file"):
        fetch(payloads[0])
    transfer.close()
    assert list(tmp_path.iterdir()) == []
    transfer.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_file_is_never_loaded(tmp_path: Path, seed: int) -> None:
    transfer = FileTransfer(tmp_path)
    payload = transfer.publish(state(), version(0))
    data = bytearray(Path(payload.path).read_bytes())
    place = seed * (len(data) - 1) // 7
    data[place] ^= 1 << seed
    Path(payload.path).write_bytes(data if seed % 2 else data[:place])
    with pytest.raises(InfrastructureFailure, match="digest"):
        fetch(payload)
    transfer.close()


def test_the_directory_of_a_killed_publisher_is_swept_and_a_living_ones_is_not(
    tmp_path: Path,
) -> None:
    script = (
        "import os, sys; from pathlib import Path; "
        "from outlast.adapters.weight_transfer import FileTransfer; "
        "t = FileTransfer(Path(sys.argv[1])); os.kill(os.getpid(), 9)"
    )
    dead = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False, timeout=60)
    assert dead.returncode == -9 and len(list(tmp_path.iterdir())) == 1
    mine, other = FileTransfer(tmp_path), FileTransfer(tmp_path)
    left = [path.name.split("-")[3] for path in tmp_path.iterdir()]
    assert left == [str(os.getpid())] * 2
    mine.close()
    other.close()


def test_a_file_that_cannot_be_written_is_a_failure_of_infrastructure(tmp_path: Path) -> None:
    transfer = FileTransfer(tmp_path)
    transfer.close()  # takes its directory away
    with pytest.raises(InfrastructureFailure, match="weights"):
        transfer.publish(state(), version(0))


def test_the_digest_knows_names_shapes_types_and_bytes() -> None:
    base = state()
    changes = (
        {"a.weight": base["a.weight"].reshape(7, 5)},
        {"a.weight": base["a.weight"] + 1e-6},
        {"c.half": base["c.half"].view(torch.int16)},
        {"e": torch.zeros(0)},
    )
    digests = {state_digest(base), *(state_digest({**base, **change}) for change in changes)}
    assert len(digests) == 5
    assert state_digest(dict(reversed(list(base.items())))) == state_digest(state())
