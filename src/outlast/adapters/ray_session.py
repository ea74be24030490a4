"""This process's connection to Ray, shared by whatever adapters of a run live there.

The first `acquire` connects, the last `release` disconnects; a cluster that was started for the run
ends with it. Authentication is on: a cluster of our own gets a random token. Never called on the
main thread, where Ray would take the SIGTERM handler away from the run (P7).
May import: ray (when called), `config`.
"""

from __future__ import annotations

import os
import secrets
import threading
from typing import Any

from outlast.config.schema import RaySection
from outlast.errors import InvariantError, RecipeError


class RaySession:
    """Counts who uses the connection. One instance per process: `SESSION`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0

    def acquire(self, settings: RaySection) -> Any:
        """The `ray` module, connected. Blocks for seconds. Raises RecipeError when unreachable."""
        if threading.current_thread() is threading.main_thread():
            raise InvariantError("Ray connected on the main thread would take SIGTERM from the run")
        ray = import_ray()
        with self._lock:
            if not ray.is_initialized():
                _connect(ray, settings)
            self._users += 1
        return ray

    def release(self) -> None:
        """Give one `acquire` back. Blocks while a cluster of our own ends."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                import_ray().shutdown()


SESSION = RaySession()


def import_ray() -> Any:
    """Raises RecipeError that names the extra to install."""
    try:
        import ray
    except ImportError as error:
        raise RecipeError(
            f"the recipe places something on Ray, which cannot be imported here ({error}); "
            "install it with: pip install 'outlast[ray]'"
        ) from error
    return ray


def _connect(ray: Any, settings: RaySection) -> None:
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    if settings.address is None:
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        ray.init(
            address="local" if settings.address is None else settings.address,
            num_cpus=settings.num_cpus if settings.address is None else None,
            include_dashboard=False if settings.address is None else None,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise RecipeError(
            f"ray.address: no connection to {settings.address or 'a local cluster'}: {error}"
        ) from error
