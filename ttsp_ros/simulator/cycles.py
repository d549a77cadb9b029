"""Modelled cycles of programs on the simulated Blackhole.

Wolfpine's cost model charges each instruction, NoC transfer and DRAM access what the public ISA documentation says it
takes at least, at 1.35 GHz on a p150. The counts are exact for that model and the same in every run.

What they are: good for comparing two ways to do the same, for finding the RISC or unit that bounds a program, and for
seeing that a change did not make it slower. What they are not: times of a card. They are floors: no cache misses of
instruction fetch, no refresh of DRAM, no traffic of others. Say "modelled cycles on a simulated Blackhole".

A launch is measured from the first instruction of a kernel on any RISC to the last: what the firmware does before and
after, the start of the device and the host's reads and writes do not count. All cores start together, as after a
multicast on a card.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ttsp_ros.simulator.control import Control
from ttsp_ros.simulator.environment import COST_MODEL_VARIABLE
from ttsp_ros.simulator.toolchain import SimulatorError

if TYPE_CHECKING:
    import ttnn

Core = tuple[int, int]


@dataclass(frozen=True)
class RiscCycles:
    """A kernel on one RISC: `risc` is BRISC, NCRISC, TRISC0 (unpack), TRISC1 (math) or TRISC2 (pack).

    start and end: cycles since the launch's first kernel instruction. instructions: retired, polling included.
    load_use, store_rate, integer_unit, load_rate: cycles for which the model held it back, by reason.
    """

    core: Core
    risc: str
    start: int
    end: int
    instructions: int
    load_use: int
    store_rate: int
    integer_unit: int
    load_rate: int

    @property
    def span(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class UnitCycles:
    """How long a unit of a core's coprocessor was occupied: Matrix (FPU), Vector (SFPU), Unpacker, Packer, ..."""

    core: Core
    unit: str
    busy: int


@dataclass(frozen=True)
class LaunchCycles:
    """One launch of one program."""

    riscs: tuple[RiscCycles, ...]
    units: tuple[UnitCycles, ...]

    @property
    def span(self) -> int:
        """Cycles from the first kernel instruction on any core to the last."""
        return max(risc.end for risc in self.riscs)

    def by_risc(self) -> dict[str, int]:
        """The longest span of each kind of RISC over the cores."""
        return _largest((risc.risc, risc.span) for risc in self.riscs)

    def by_unit(self) -> dict[str, int]:
        """The most cycles that a unit of each kind was occupied, over the cores."""
        return _largest((unit.unit, unit.busy) for unit in self.units)


def _largest(pairs: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, value in pairs:
        found[name] = max(found.get(name, 0), value)
    return dict(sorted(found.items()))


def measure(device: ttnn.MeshDevice, run: Callable[[], object]) -> list[LaunchCycles]:
    """What each program that `run` launches takes, in order.

    Needs a device with the cost model: `open_device(cost_model=True)`, `run --cycles`, or
    `@pytest.mark.simulator(cycles=True)`. Call `run` once before where the build of kernels should not take its time;
    the cycles are the same.
    """
    import ttnn

    if os.environ.get(COST_MODEL_VARIABLE) != "1":
        raise SimulatorError(
            "this device has no cost model; open it with open_device(cost_model=True), run the command with "
            "`python -m ttsp_ros.simulator run --cycles`, or mark the test simulator(cycles=True)"
        )
    control = Control(os.getpid())
    ttnn.synchronize_device(device)
    before = len(control.read_launches())
    control.measuring.touch()
    try:
        run()
        ttnn.synchronize_device(device)
    finally:
        control.measuring.unlink()
    return [_launch(record) for record in control.read_launches()[before:]]


def _launch(record: dict[str, Any]) -> LaunchCycles:
    def entries(kind: type, values: list[dict[str, Any]]) -> tuple[Any, ...]:
        found = [kind(**{**value, "core": tuple(value["core"])}) for value in values]
        return tuple(sorted(found, key=lambda entry: (entry.core, getattr(entry, "risc", getattr(entry, "unit", "")))))

    return LaunchCycles(entries(RiscCycles, record["riscs"]), entries(UnitCycles, record["units"]))
