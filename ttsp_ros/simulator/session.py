"""An open simulated Blackhole for tests and tools."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from ttsp_ros.simulator.control import FAILURE_SIGNAL, Control
from ttsp_ros.simulator.environment import Grid, activate

if TYPE_CHECKING:
    import ttnn

L1_SMALL_BYTES = 32768  # where ttnn's convolutions keep their halo tables


class SimulatedFailure(RuntimeError):  # noqa: N818 (what happened, not a kind of error)
    """A program on the simulated Blackhole hung, or did what the machine cannot do: the message has the state of each
    RISC. The device can only be closed."""


@contextmanager
def open_device(
    grid: Grid | None = None,
    l1_small_size: int = L1_SMALL_BYTES,
    cost_model: bool | None = None,
    hollow_kernels: bool | None = None,
) -> Iterator[ttnn.MeshDevice]:
    """A simulated Blackhole, closed at the end; one at a time in a process.

    grid: of workers; None: the one that `simulator run` was given, else 11x10.
    l1_small_size: bytes at the top of each L1 that only ttnn's small buffers use.
    cost_model: simulate modelled cycles (`cycles.measure`), about 4 times slower; None: as `simulator run` was told.
    hollow_kernels: compute kernels are built empty, for graph capture without dispatch; None: as `simulator run` was
    told. A program that is started all the same raises SimulatedFailure, which says so.
    A program that hangs or breaks a rule of the machine raises SimulatedFailure in the main thread, at the call that
    waits for it. SimulatorError where the simulator is not prepared, or ttnn was imported before for something else.
    """
    activate(grid, cost_model, hollow_kernels)
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
    handler_before = signal.signal(FAILURE_SIGNAL, lambda number, frame: _raise_failure(control, frame))
    try:
        yield
    finally:
        signal.signal(FAILURE_SIGNAL, handler_before)
        signal.set_wakeup_fd(wakeup_before)
        os.close(pipe)


def _raise_failure(control: Control, _: FrameType | None) -> None:
    raise SimulatedFailure(control.failure.read_text())
