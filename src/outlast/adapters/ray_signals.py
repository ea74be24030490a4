"""Gives the process its signal handlers back after Ray has connected.

Ray's core puts a handler of its own in front of those it finds: it prints a stack, calls the one
before it, and aborts the process three seconds later, in the middle of the last snapshot (P7).
May import: nothing of Outlast.
"""

from __future__ import annotations

import signal
import threading

STOPPING = (signal.SIGTERM, signal.SIGINT)


def take_signals_back() -> None:
    """Install the Python handlers of the stop signals again. Does nothing off the main thread,
    where nobody may set handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in STOPPING:
        handler = signal.getsignal(number)
        if handler is not None:  # None: set by something that is not Python, long before Ray
            signal.signal(number, handler)
            signal.siginterrupt(number, False)
