"""Weights on their way to engines: what is fetched is what was published, or a named failure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outlast.adapters.weight_transfer import FileTransfer, fetch, make_transfer, state_digest
from outlast.errors import InfrastructureFailure, InvariantError, RecipeError
from outlast.model.ids import Incarnation, TrainerVersion, WeightVersion


def state(seed: int) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    half = torch.randn(4, 2, generator=random).bfloat16()
    return {"half": half, "turned": torch.randn(3, 5, generator=random).t()}


def version(number: int) -> WeightVersion:
    return WeightVersion(Incarnation(1), TrainerVersion(number))


@pytest.mark.parametrize("kind", ["in_process", "file"])
def test_what_is_fetched_is_what_was_published(kind: str) -> None:
    transfer = make_transfer(kind)
    found = fetch(transfer.publish(state(1), version(1)))
    assert state_digest(found) == state_digest(state(1)) != state_digest(state(2))
    transfer.close()
    transfer.close()


def test_the_newest_two_files_stay_and_none_after_close(tmp_path: Path) -> None:
    transfer = FileTransfer(tmp_path)
    payloads = [transfer.publish(state(number), version(number)) for number in range(3)]
    with pytest.raises(InfrastructureFailure, match="No such file"):
        fetch(payloads[0])
    for number in (1, 2):
        assert state_digest(fetch(payloads[number])) == state_digest(state(number))
    transfer.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", [0, 20, -1])
def test_a_changed_byte_is_refused_by_its_digest(tmp_path: Path, place: int) -> None:
    transfer = FileTransfer(tmp_path)
    payload = transfer.publish(state(1), version(1))
    data = bytearray(Path(payload.path).read_bytes())
    data[place] ^= 1
    Path(payload.path).write_bytes(data)
    with pytest.raises(InfrastructureFailure, match="digest"):
        fetch(payload)
    transfer.close()


def test_unknown_kinds_and_payloads_are_refused_by_name() -> None:
    with pytest.raises(RecipeError, match="weight_transfer: 'pigeon'"):
        make_transfer("pigeon")
    with pytest.raises(InvariantError, match="str"):
        fetch("weights")
