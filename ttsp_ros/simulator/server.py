"""The simulator process: Wolfpine's Blackhole, watched.

Wolfpine answers ttnn's wire for ever; ttnn waits for an answer for ever. What is added here: the process ends with its
user, a program that hangs ends with the state of each RISC, a signal ends a wait, and launches can be measured.
The simulated machine itself is unchanged. ttnn starts it through run.sh.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from typing import TextIO

from framework.bridge import Device
from framework.device.deadlock import DeadlockDetector
from framework.sim.blackhole import __main__ as wolfpine
from framework.sim.blackhole.bh_device import LAUNCH_ENABLES_OFFSET, blackhole_factory
from framework.sim.blackhole.coords import TENSIX_COORD_MAP

from ttsp_ros.simulator.control import FAILURE_SIGNAL, Control
from ttsp_ros.simulator.meter import Meter
from ttsp_ros.simulator.state import describe

GO_BYTES = 4  # go_msg_t; the signal is its last byte
GO, DONE = 0x80, 0x00  # RUN_MSG_GO, RUN_MSG_DONE
TIMEOUT_VARIABLE = "TTSP_SIMULATOR_TIMEOUT"
HOLLOW_VARIABLE = "TTSP_SIMULATOR_HOLLOW"
HOLLOW = (
    "a program was started in a session whose compute kernels are empty (hollow), which is for "
    "ttsp_ros.tenstorrent.graph_capture only; run it without --hollow\n"
)


class WatchedDevice(Device):
    """Wolfpine's device, which follows each launch from GO to DONE and can end one that does not."""

    def __init__(
        self,
        control: Control,
        terminal: TextIO,
        timeout: float,
        hollow: bool,
        noc_translation: bool,
        cycles_per_poll: int,
    ) -> None:
        super().__init__(
            lambda diagnostics: blackhole_factory(diagnostics, noc_translation),
            TENSIX_COORD_MAP,
            cycles_per_poll=cycles_per_poll,
            launch_enables_offset=LAUNCH_ENABLES_OFFSET,
        )
        self.control = control
        self.terminal = terminal  # of the user; this process prints into the log
        self.timeout = timeout
        self.hollow = hollow  # programs are not to be started
        self.meter = Meter(self.tt_device, control)
        self.held: dict[tuple[int, int], tuple[int, bytes]] = {}  # core: address and bytes of a go message to come
        self.running: dict[tuple[int, int], int] = {}  # core: address of its go message
        self.started = 0.0
        self.released = False

    def write(self, core: tuple[int, int], address: int, data: bytes) -> None:
        if len(data) == GO_BYTES and data[-1] == GO:
            self.held[core] = address, data
        else:
            super().write(core, address, data)

    def _launch(self) -> None:
        """Hands GO to all cores of a program in one cycle, as on a card, when ttnn first asks whether they are done."""
        self.started = time.monotonic()
        self.meter.start(self.held)
        for core, (address, data) in self.held.items():
            self.running[core] = address
            if not self.hollow:
                self.write_without_pump(core, address, data)
        self.held = {}
        if self.hollow:
            self._end(HOLLOW)

    def read(self, core: tuple[int, int], address: int, size: int) -> bytes:
        if core in self.held and self.held[core][0] == address:
            self._launch()
        polled = size == GO_BYTES and self.running.get(core) == address
        if polled and self.released:
            self._finish(core)
            return bytes(GO_BYTES)
        data = super().read(core, address, size)
        if polled and data[-1] == DONE:
            self._finish(core)
        elif polled and time.monotonic() - self.started > self.timeout:
            self.fail(f"did not end within {self.timeout:g} seconds")
        return data

    def _finish(self, core: tuple[int, int]) -> None:
        del self.running[core]
        if not self.running:
            self.meter.stop()

    def fail(self, why: str) -> None:
        """Ends the running program: reports, lets ttnn go on, and signals the user."""
        if not self.running or self.released:
            return
        self._end(f"the program on the simulated Blackhole {why}\n{self._state()}")

    def _state(self) -> str:
        try:
            return describe(self.tt_device, self.running)
        except Exception as error:  # the reason is worth more than the state, and the user must not wait for ever
            return f"  (its state cannot be told: {error!r})\n"

    def _end(self, report: str) -> None:
        print(f"simulator: {report}", file=self.terminal)
        self.control.failure.write_text(report)
        self.release()
        os.kill(self.control.user, FAILURE_SIGNAL)

    def release(self) -> None:
        """Answers DONE and simulates nothing more, until the device is opened again."""
        self.released = True

    def deassert_reset(self, core: tuple[int, int]) -> None:
        """The user opens the device again: what hung has been reset."""
        self.released = False
        super().deassert_reset(core)

    def _maybe_pump(self) -> None:
        if self.released:
            return
        try:
            super()._maybe_pump()
        except Exception as error:  # the simulated machine refuses what the program does
            if not self.running:
                raise
            traceback.print_exc()
            self.fail(f"did what a Blackhole cannot do: {type(error).__name__}: {error}")


def watch_deadlocks(device: WatchedDevice) -> None:
    """Has Wolfpine's detector of a machine without progress end the program instead of printing for ever."""

    def report(detector: DeadlockDetector, cycle: int, active: Iterable[object]) -> None:
        device.fail(f"makes no progress: nothing changed for {detector.threshold:,} cycles")

    DeadlockDetector._report = report


def end_with(user: int) -> None:
    """Ends this process when the user's has ended, however it did."""
    while os.getppid() == user:
        time.sleep(0.5)
    shutil.rmtree(Control(user).folder, ignore_errors=True)
    os._exit(0)


def obey_signals(device: WatchedDevice) -> None:
    """Ends a wait inside ttnn when the user gets a signal; its handler runs when ttnn returns."""
    while True:
        with device.control.signals.open("rb", buffering=0) as signals:  # waits until the user has opened it
            while signals.read(1):
                if device.running:
                    device.release()


def main() -> int:
    control = Control(os.getppid())
    Control.remove_stale()
    control.prepare()
    control.failure.unlink(missing_ok=True)
    threading.Thread(target=end_with, args=(control.user,), daemon=True).start()
    terminal = os.fdopen(os.dup(2), "w", buffering=1)
    log = os.open(control.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def make_device(*, cycles_per_poll: int, noc_translation: bool, **_: object) -> WatchedDevice:
        device = WatchedDevice(
            control,
            terminal,
            float(os.environ.get(TIMEOUT_VARIABLE, "inf")),
            os.environ.get(HOLLOW_VARIABLE) == "1",
            noc_translation,
            cycles_per_poll,
        )
        watch_deadlocks(device)
        threading.Thread(target=obey_signals, args=(device,), daemon=True).start()
        return device

    wolfpine.make_device = make_device
    try:
        status = wolfpine.main([])
    except BaseException as error:
        print(f"simulator: {type(error).__name__}: {error}\n(see {control.log})", file=terminal)
        raise
    shutil.rmtree(control.folder, ignore_errors=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
