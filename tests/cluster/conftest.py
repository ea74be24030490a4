"""One Ray cluster per module, started by the session that the adapters share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import pytest

from outlast.config.schema import RaySection

# Ray reads this once, when a test module imports it.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Connected for the whole module, so that its tests share one cluster."""
    from outlast.adapters.ray_session import SESSION

    SESSION.acquire(RaySection())
    yield
    SESSION.release()
