"""An open simulated Blackhole for tests and tools."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from ttsp_ros.simulator.control import HANG_SIGNAL, Control
from ttsp_ros.simulator.environment import Grid, activate

if TYPE_CHECKING:
    import ttnn

L1_SMALL_BYTES = 32768  # where ttnn's convolutions keep their halo tables


class SimulatedHang(RuntimeError):  # noqa: N818 (what happened, not a kind of error)
    """A program on the simulated Blackhole hung: the message has the state of each RISC. Only closing is left."""


@contextmanager
def open_device(
    grid: Grid | None = None, l1_small_size: int = L1_SMALL_BYTES, cost_model: bool | None = None
) -> Iterator[ttnn.MeshDevice]:
    """A simulated Blackhole, closed at the end; one at a time in a process.

    grid: of workers; None: the one that `simulator run` was given, else 11x10.
    l1_small_size: bytes at the top of each L1 that only ttnn's small buffers use.
    cost_model: simulate modelled cycles (`cycles.measure`), about 4 times slower; None: as `simulator run` was told.
    A program that hangs raises SimulatedHang in the main thread, at the call that waits for it. SimulatorError where
    the simulator is not prepared, or ttnn was imported before for something else.
    """
    activate(grid, cost_model)
    import ttnn

    control = Control(os.getpid())
    control.prepare()
    with _signals_told(control):
        device = ttnn.open_device(device_id=0, l1_small_size=l1_small_size)
        try:
            yield device
        finally:
            ttnn.close_device(device)


@contextmanager
def _signals_told(control: Control) -> Iterator[None]:
    """Tells the simulator of every signal: Python's own handlers cannot run while the main thread is inside ttnn."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pipe = os.open(control.signals, os.O_RDWR | os.O_NONBLOCK)  # read-write: opening does not wait for the simulator
    wakeup_before = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    handler_before = signal.signal(HANG_SIGNAL, lambda number, frame: _raise_hang(control, frame))
    try:
        yield
    finally:
        signal.signal(HANG_SIGNAL, handler_before)
        signal.set_wakeup_fd(wakeup_before)
        os.close(pipe)


def _raise_hang(control: Control, _: FrameType | None) -> None:
    raise SimulatedHang(control.hang.read_text())
