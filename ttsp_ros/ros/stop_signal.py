"""Ctrl-C and SIGTERM as one request to stop. Imports nothing heavy, so that it can be in force before anything else."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn


class StopSignal:
    """Turns SIGINT and SIGTERM into an event; further signals while stopping change nothing.

    rclpy's own handling raises KeyboardInterrupt wherever the main thread happens to be, in a callback or in an
    import, and leaves a thread that waits for the device waiting (rclpy #1166, #841). Here the main thread only waits
    for this event while another one spins.

    Until `hold` is called nothing is open yet, and a signal ends the process at once, with status 0.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self._event = threading.Event()
        self._held = False
        self._at = 0.0

    def install(self) -> StopSignal:
        """Take over both signals; only the main thread may do that."""
        for number in self.SIGNALS:
            signal.signal(number, self._on_signal)
        return self

    def uninstall(self) -> None:
        """Back to Python's own handling."""
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def hold(self) -> None:
        """From now on a signal only sets the event: somebody waits for it and closes what is open."""
        self._held = True

    def set(self) -> None:
        """The same request from within the program."""
        if not self._event.is_set():
            self._at = time.monotonic()
            self._event.set()

    def is_set(self) -> bool:
        """Whether stopping was asked for."""
        return self._event.is_set()

    def wait(self) -> None:
        """Wait until stopping is asked for."""
        self._event.wait()

    def seconds_left(self, grace: float) -> float:
        """What is left of `grace` seconds since stopping was asked for; at least 0."""
        return max(0.0, self._at + grace - time.monotonic())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._held:
            os._exit(0)
        self.set()


def leave(status: int) -> NoReturn:
    """End the process with `status` after everything was closed.

    Not through Python's own end: unloading torch takes it 1.6 seconds, which a user who pressed Ctrl-C would wait for.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
