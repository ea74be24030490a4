"""SIGTERM and SIGINT of a run: a last snapshot in the grace, and an exit in every case (P7, L3).

The first signal asks the controller to wind down. A second one leaves at once. A process that is
still there when the grace is over leaves too, whatever hangs: the previous cut stands.

A thread of its own waits for the signals, on a pipe of its own. `loop.add_signal_handler` shares
the pipe that wakes the event loop: when a busy loop has let that fill up, the signal is lost.
A process that is forked from the run, such as a worker of a reward, inherits handlers and pipe:
it gets the defaults back, or ending the worker would stop the run. May import: `runtime`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator

from outlast.errors import Preempted
from outlast.runtime.controller import Controller, Outcome

STOPPING = (signal.SIGTERM, signal.SIGINT)
ENDED = b"\0"
"""No signal has this number: the run is over, and whoever reads the pipe may go."""


async def driven(controller: Controller, *, grace_s: float) -> Outcome:
    """Run `controller` with the signals of this process asking it to stop."""
    after = signal.SIG_DFL
    with _signal_pipe() as pipe:
        watch = threading.Thread(
            target=_watch,
            args=(pipe, controller),
            kwargs={"loop": asyncio.get_running_loop(), "grace_s": grace_s},
            name="signals",
            daemon=True,
        )
        for number in STOPPING:
            signal.signal(number, _noted)
        watch.start()
        try:
            outcome = await controller.run()
            after = signal.SIG_IGN  # all is written and said: a signal must not turn the exit code
            return outcome
        finally:
            for number in STOPPING:
                signal.signal(number, after)


@contextlib.contextmanager
def _signal_pipe() -> Iterator[int]:
    """Read end of a pipe that gets the number of every signal, as soon as it arrives.

    The interpreter writes it even while the main thread is held by a call that does not return.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _piped.add(writing)
    try:
        yield reading
    finally:
        _piped.discard(writing)
        signal.set_wakeup_fd(before)
        os.write(writing, ENDED)  # closing alone says nothing where a child has the pipe too
        os.close(writing)


_piped: set[int] = set()
"""Write ends in use: empty in a process that drives no run."""


def _forget_in_child() -> None:
    """In a child that was just forked: its signals are its own business, not the run's."""
    if not _piped:
        return
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


os.register_at_fork(after_in_child=_forget_in_child)


def _noted(*_: object) -> None:
    """Keeps the default action away; the number went into the pipe."""


def _watch(
    pipe: int, controller: Controller, *, loop: asyncio.AbstractEventLoop, grace_s: float
) -> None:
    """Pass the first signal on; end the process at the second, or when the grace is over."""
    with contextlib.closing(os.fdopen(pipe, "rb", buffering=0)):
        first = _arrived(pipe, until=None)
        if first is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has come to its end meanwhile
            loop.call_soon_threadsafe(controller.stop, first.name)
        try:
            if _arrived(pipe, until=time.monotonic() + grace_s) is not None:
                os._exit(Preempted.exit_code)
        except TimeoutError:
            _grace_over()


def _arrived(pipe: int, *, until: float | None) -> signal.Signals | None:
    """The next stop request; None when the run has ended. Raises TimeoutError at `until`."""
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        if not select.select([pipe], [], [], left)[0]:
            raise TimeoutError
        number = os.read(pipe, 1)
        if number == ENDED:
            return None
        if number[0] in STOPPING:
            return signal.Signals(number[0])


def _grace_over() -> None:
    """Something hangs that no time-out reaches, such as a disk: end without it."""
    message = "outlast: the grace is over and something still hangs; the previous cut stands\n"
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(Preempted.exit_code)
