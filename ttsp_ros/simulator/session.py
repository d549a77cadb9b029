"""An open simulated Blackhole for tests and tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ttsp_ros.simulator.environment import P150, Grid, activate

if TYPE_CHECKING:
    import ttnn

L1_SMALL_BYTES = 32768  # what ttnn's convolutions keep their halo tables in


@contextmanager
def open_device(grid: Grid = P150, l1_small_size: int = L1_SMALL_BYTES) -> Iterator[ttnn.MeshDevice]:
    """A simulated Blackhole with this worker grid, closed at the end; one at a time in a process.

    SimulatorError where it is not prepared, or ttnn was imported before for something else.
    """
    activate(grid)
    import ttnn

    device = ttnn.open_device(device_id=0, l1_small_size=l1_small_size)
    try:
        yield device
    finally:
        ttnn.close_device(device)
