"""The environment in which ttnn opens a simulated Blackhole, and the worker grids that cards have.

ttnn reads it when it is imported, so it has to be there before. `python -m ttsp_ros.simulator run` gives it to a
command, `activate` to this process.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from ttsp_ros.simulator.hollow import hollow
from ttsp_ros.simulator.toolchain import SimulatorError, prepare, wolfpine_folder

PACKAGES = Path(__file__).parents[2]  # where `ttsp_ros` is imported from
HANG_SECONDS = 600.0
HANG_CYCLES = 20_000  # without any register or NoC counter changing; the longest wait for DRAM is some hundreds
SIMULATOR_VARIABLE = "TT_METAL_SIMULATOR"
TIMEOUT_VARIABLE = "TTSP_SIMULATOR_TIMEOUT"
COST_MODEL_VARIABLE = "TT_SIM_COST_MODEL"
HOLLOW_VARIABLE = "TTSP_SIMULATOR_HOLLOW"
GRID_VARIABLE = "TT_METAL_CORE_GRID_OVERRIDE_TODEPRECATE"


# Of udivsi3_const_divisor in ttnn's mod_div_lib.h.
L1_BANKS = (7, 12, 20, 28, 48, 56, 63, 70, 72, 80, 94, 108, 110, 117, 120, 124, 126, 130)


@dataclass(frozen=True)
class Grid:
    """A worker grid, as `device.compute_with_storage_grid_size()` gives it: columns x, rows y."""

    columns: int
    rows: int

    def __post_init__(self) -> None:
        if not (1 <= self.columns <= 13 and 1 <= self.rows <= 10):
            raise SimulatorError(f"a simulated grid of {self} was asked for; 1x1 to 13x10 are possible")
        cores = self.columns * self.rows
        if cores.bit_count() > 1 and cores not in L1_BANKS:
            raise SimulatorError(
                f"a simulated grid of {self} was asked for; ttnn interleaves L1 over {', '.join(map(str, L1_BANKS))} "
                f"cores or a power of two, not over {cores}"
            )

    @classmethod
    def parse(cls, text: str) -> Grid:
        """From columns x rows: "11x10"."""
        match = re.fullmatch(r"(\d+)x(\d+)", text)
        if match is None:
            raise SimulatorError(f"a grid is written like 11x10 (columns x rows), not {text!r}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return f"{self.columns}x{self.rows}"


P150 = Grid(11, 10)  # cards with current firmware
UNHARVESTED = Grid(13, 10)  # cards with older firmware


def variables(
    grid: Grid = P150, cost_model: bool = False, timeout: float = HANG_SECONDS, hollow_kernels: bool = False
) -> dict[str, str]:
    """The environment variables of a simulated run on `grid`; SimulatorError where something is missing.

    cost_model: simulate modelled cycles, about 4 times slower.
    timeout: seconds after which a launch that has not ended counts as hanging.
    hollow_kernels: build compute kernels empty, for graph capture without dispatch; starting a program is refused.
    """
    toolchain = hollow(prepare()) if hollow_kernels else prepare()
    return {
        SIMULATOR_VARIABLE: str(toolchain.simulator),
        COST_MODEL_VARIABLE: str(int(cost_model)),
        "TT_SIM_DEADLOCK_THRESHOLD": str(HANG_CYCLES),
        TIMEOUT_VARIABLE: str(timeout),
        HOLLOW_VARIABLE: str(int(hollow_kernels)),
        "TTSP_SIMULATOR_PYTHONPATH": str(PACKAGES),
        GRID_VARIABLE: f"{grid.columns - 1},{grid.rows - 1}",
        # Without it ttnn addresses workers by untranslated coordinates, of which NoC 1 takes some, (7, 10) among them,
        # for DRAM: what a core sends there is lost.
        "TT_METAL_MOCK_CLUSTER_DESC_PATH": str(wolfpine_folder() / "cluster_descriptor.yaml"),
        "TT_METAL_SLOW_DISPATCH_MODE": "1",
        "TT_METAL_RUNTIME_ROOT": str(toolchain.runtime_root),
        "TT_METAL_CACHE": str(toolchain.kernel_cache),
        "TT_METAL_LOGGER_LEVEL": os.environ.get("TT_METAL_LOGGER_LEVEL", "error"),
        # The inspector writes folders into the working directory and serves them on a port; nothing here reads them.
        "TT_METAL_INSPECTOR": "0",
        "TT_METAL_RISCV_DEBUG_INFO": "1",  # names the source line of each RISC when a program hangs
        "TT_METAL_DISABLE_BACKTRACE": os.environ.get("TT_METAL_DISABLE_BACKTRACE", "1"),
        "LOGURU_LEVEL": os.environ.get("LOGURU_LEVEL", "WARNING"),
        "WOLFPINE_PYTHON": sys.executable,
    }


def activate(grid: Grid | None = None, cost_model: bool | None = None, hollow_kernels: bool | None = None) -> None:
    """Points this process's ttnn at a simulated Blackhole; nothing changes where it is, with the same settings.

    None: as `simulator run` has set it for this process, else an 11x10 grid, no cost model and real kernels.
    """
    if cost_model is None:
        cost_model = os.environ.get(COST_MODEL_VARIABLE) == "1"
    if hollow_kernels is None:
        hollow_kernels = os.environ.get(HOLLOW_VARIABLE) == "1"
    timeout = float(os.environ.get(TIMEOUT_VARIABLE, HANG_SECONDS))
    wanted = variables(grid or active_grid() or P150, cost_model, timeout, hollow_kernels)
    if all(os.environ.get(name) == value for name, value in wanted.items()):
        return
    if "ttnn" in sys.modules:
        raise SimulatorError(
            "ttnn was imported before the simulated Blackhole was activated, and reads its environment only once.\n"
            "Run the program with `python -m ttsp_ros.simulator run -- COMMAND`, or import ttnn later."
        )
    os.environ.update(wanted)


def active_grid() -> Grid | None:
    """The grid of the simulated Blackhole that this process's ttnn is pointed at, or None where it sees real cards."""
    if SIMULATOR_VARIABLE not in os.environ:
        return None
    last_column, last_row = os.environ[GRID_VARIABLE].split(",")
    return Grid(int(last_column) + 1, int(last_row) + 1)
