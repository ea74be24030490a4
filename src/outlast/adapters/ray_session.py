"""This process's connection to Ray, shared by whatever adapters of a run live there.

The first `acquire` connects, the last `release` disconnects; a cluster that was started for the run
ends with it. Authentication is on: a cluster of our own gets a random token. Ray is connected on a
thread of its own: on the main one it would take the SIGTERM handler away from the run (P7).
May import: ray (when called), `config`.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from outlast.adapters.ray_reaper import VARIABLE
from outlast.config.schema import RaySection
from outlast.errors import RecipeError

REACH_S = 10.0
"""How long the head of a cluster may take to accept a connection."""


class RaySession:
    """Counts who uses the connection. One instance per process: `SESSION`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._thread: ThreadPoolExecutor | None = None
        """Lives as long as the connection: a cluster of our own dies with the thread that started
        it (Linux tells children of the death of their parent's thread)."""
        self._reaper: subprocess.Popen[bytes] | None = None
        """Of a cluster of our own; ends when its standard input does."""

    def acquire(self, settings: RaySection) -> Any:
        """The `ray` module, connected. Blocks for seconds. Raises RecipeError when unreachable."""
        with self._lock:
            ray = import_ray(own_cluster=settings.address is None)
            if self._users == 0 and not ray.is_initialized():
                self._connect(ray, settings)
            self._users += 1
        return ray

    def _connect(self, ray: Any, settings: RaySection) -> None:
        if settings.address is not None:
            _expect_reachable(settings.address)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="outlast-ray")
        mark = secrets.token_hex(16)
        if settings.address is None:
            self._reaper = _start_reaper(mark)
            os.environ[VARIABLE] = mark  # for what Ray starts, not for later children of this run
        try:
            self._thread.submit(_connect, ray, settings).result()
        except BaseException:
            self._disconnect()
            raise
        finally:
            os.environ.pop(VARIABLE, None)

    def release(self) -> None:
        """Give one `acquire` back. Blocks while a cluster of our own ends."""
        with self._lock:
            self._users -= 1
            if self._users == 0:
                self._disconnect()

    def _disconnect(self) -> None:
        """Only from what we connected: a connection that was there before stays."""
        if self._thread is not None:
            self._thread.submit(import_ray().shutdown).result()
            self._thread.shutdown()
            self._thread = None
        if self._reaper is not None:
            self._reaper.communicate()
            self._reaper = None


SESSION = RaySession()


def import_ray(*, own_cluster: bool = False) -> Any:
    """Raises RecipeError that names the extra to install.

    Ray reads how to authenticate once, when it is imported: a cluster of our own gets a random
    token, unless somebody has imported Ray before us.
    """
    if own_cluster and "ray" not in sys.modules:
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    try:
        import ray
    except ImportError as error:
        raise RecipeError(
            f"the recipe places something on Ray, which cannot be imported here ({error}); "
            "install it with: pip install 'outlast[ray]'"
        ) from error
    return ray


def _expect_reachable(address: str) -> None:
    """Raises RecipeError. Ray itself tries an address that nobody answers for many minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return  # "auto": Ray looks on this machine, and says at once that there is none
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise RecipeError(
            f"ray.address: no connection to {address}: {error}; start the cluster (`ray start "
            "--head`) or leave ray.address out for one of the run's own"
        ) from error


def _start_reaper(mark: str) -> subprocess.Popen[bytes]:
    """In a session of its own: what ends the session of the controller must leave the reaper. Its
    own environment must not carry the mark."""
    return subprocess.Popen(
        [sys.executable, "-m", "outlast.adapters.ray_reaper", mark],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _connect(ray: Any, settings: RaySection) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)  # it warns that SIGTERM is left to us
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
