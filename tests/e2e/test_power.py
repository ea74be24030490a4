"""Power cuts of real runs on a disk image: what was acknowledged stands, and a lie would show.

They need root, loop devices and mkfs; elsewhere they are skipped, and say so.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from outlast.testing import power
from outlast.testing.chaos import main, run_campaign
from outlast.testing.chaos_blows import Kind
from outlast.testing.chaos_verdict import Campaign
from outlast.testing.power import BALLAST, Volume
from tests.e2e.program import SMALL

REASON = power.why_not()
needs_power = pytest.mark.skipif(REASON is not None, reason=f"power cuts NOT TESTED: {REASON}")
MIB = 1 << 20
NO_FSYNC = """
import os
os.fsync = os.fdatasync = lambda _: None
"""


def _mounted(path: Path) -> bool:
    return str(path) in Path("/proc/self/mounts").read_text()


def _synced(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@pytest.fixture(params=power.MAKE)
def kind(request: pytest.FixtureRequest) -> str:
    if request.param not in power.kinds():
        pytest.skip(f"power cuts NOT TESTED on {request.param}: there is no mkfs for it")
    return request.param


@needs_power
def test_a_cut_keeps_what_was_synced_and_nothing_else(tmp_path: Path, kind: str) -> None:
    with Volume(tmp_path, kind=kind, size_bytes=32 * MIB) as volume:
        _synced(volume.path / "kept", "kept")
        (volume.path / "lost").write_text("never synced")
        copy = volume.copy()
        _synced(volume.path / "later", "after the copy")
        volume.swap()
        found = {path.name for path in volume.path.iterdir()} - {"lost+found"}
        assert found == {"kept"} and (volume.path / "kept").read_text() == "kept"
        assert copy.tries >= 1 and copy.seconds > 0
        assert len(list(tmp_path.glob("image_*"))) == 1
    assert not _mounted(volume.path)


@needs_power
def test_a_full_volume_is_full_until_it_is_drained(tmp_path: Path, kind: str) -> None:
    with Volume(tmp_path, kind=kind, size_bytes=32 * MIB) as volume:
        volume.fill()
        with pytest.raises(OSError) as refused:
            (volume.path / "more").write_bytes(bytes(4 * MIB))
        assert refused.value.errno == errno.ENOSPC
        volume.drain()
        assert not (volume.path / BALLAST).exists()
        (volume.path / "more").write_bytes(bytes(4 * MIB))


@needs_power
def test_an_error_leaves_no_mount(tmp_path: Path) -> None:
    with (
        pytest.raises(ZeroDivisionError),
        Volume(tmp_path, size_bytes=16 * MIB) as volume,
        (volume.path / "held").open("w"),
    ):
        raise ZeroDivisionError
    assert not _mounted(volume.path)


def test_where_power_cannot_be_cut_the_campaign_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(power, "why_not", lambda: "mounting an image needs root")
    monkeypatch.setattr(power, "private_mounts", lambda: None)
    code = main(["--kills", "0", "--power-cuts", "2", "--directory", str(tmp_path), "--lineages=0"])
    said = capsys.readouterr()
    assert code == 0
    assert "power cuts NOT TESTED: mounting an image needs root" in said.err
    assert "full file systems NOT TESTED" in said.out and "power cuts NOT TESTED" in said.out


def _campaign(cuts: int, *, seed: int, **more: object) -> Campaign:
    return Campaign(
        power_cuts=cuts,
        seed=seed,
        overrides=(*SMALL, "algorithm.max_num_steps=8"),
        volume_bytes=128 * MIB,
        life_s=2.0,
        timeout_s=840,
        **{"kills": 0, **more},
    )


@needs_power
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_A2_power_cuts_lose_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    said: list[str] = []
    campaign = _campaign(2, seed=4, kills=1, kinds=(Kind.VOLUME_FULL,))
    verdict = run_campaign(campaign, tmp_path, say=said.append)
    assert verdict.violations == [], "\n".join(said)
    assert verdict.cuts >= 2 and verdict.kills >= 1 and verdict.finished >= 1
    assert (verdict.skipped, verdict.repeated) == (0, 0)
    assert not _mounted(tmp_path)


@needs_power
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_A2_a_program_that_never_syncs_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness has teeth: a kill would not show this, since the page cache survives it."""
    (tmp_path / "sitecustomize.py").write_text(NO_FSYNC)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    said: list[str] = []
    campaign = _campaign(4, seed=1, file_systems=power.kinds()[:1])
    verdict = run_campaign(campaign, tmp_path / "runs", say=said.append)
    print("\n".join(said))
    assert any("A2: cut" in text for text in verdict.violations), json.dumps(verdict.violations)
