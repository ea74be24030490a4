"""SIGTERM and SIGINT of a run: a last snapshot in the grace, and an exit in every case (P7, L3).

The first signal asks the controller to wind down. A second one leaves at once. A process that is
still there when the grace is over leaves too, whatever hangs: the previous cut stands.
May import: `runtime`.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import threading

from outlast.runtime.controller import Controller, Outcome

STOPPING = (signal.SIGTERM, signal.SIGINT)
PREEMPTED = 75


async def driven(controller: Controller, *, grace_s: float) -> Outcome:
    """Run `controller` with the signals of this process asking it to stop."""
    loop = asyncio.get_running_loop()
    deadline = threading.Timer(grace_s, _grace_over)
    deadline.daemon = True
    for number in STOPPING:
        stop = functools.partial(_on_signal, controller, number, deadline=deadline)
        loop.add_signal_handler(number, stop)
    after = signal.SIG_DFL
    try:
        outcome = await controller.run()
        after = signal.SIG_IGN  # all is written and said: a signal must not turn the exit code
        return outcome
    finally:
        deadline.cancel()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)  # no gap with the default action
        for number in STOPPING:
            loop.remove_signal_handler(number)
            signal.signal(number, after)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _on_signal(
    controller: Controller, number: signal.Signals, *, deadline: threading.Timer
) -> None:
    for again in STOPPING:
        signal.signal(again, lambda *_: os._exit(PREEMPTED))
    deadline.start()
    controller.stop(number.name)


def _grace_over() -> None:
    """Something hangs that no time-out reaches, such as a disk: end without it."""
    message = "outlast: the grace is over and something still hangs; the previous cut stands\n"
    sys.stderr.write(message)
    sys.stderr.flush()
    os._exit(PREEMPTED)
