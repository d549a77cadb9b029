"""Measures launches in modelled cycles (simulator process); what the numbers mean is said in `cycles`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from framework.pe.rv.babyriscv import BabyRISCV
from framework.pe.rv.cost import STALL_REASON_NAMES
from framework.trace import EventCategory, get_bus

from ttsp_ros.simulator.control import Control
from ttsp_ros.simulator.state import FIRMWARE_END, RISCS, logical

LONGEST_WAY_TO_WAIT = 20_000  # cycles from the end of a kernel until all RISCs are known to wait


class Meter:
    """Notes, while the user asks for it, when each RISC enters and leaves its kernel and how long each unit works."""

    def __init__(self, device: Any, control: Control) -> None:
        self.device = device
        self.control = control
        self.measuring = False
        self.riscs: dict[Any, dict[str, Any]] = {}
        self.units: Counter[tuple[tuple[int, int], str]] = Counter()
        self.tick: Callable[..., None] = BabyRISCV.clock_tick
        bus = get_bus()
        for category in EventCategory:
            bus.set_category_enabled(category, category is EventCategory.COMPUTE)
        bus.subscribe(EventCategory.COMPUTE, self._work)

    def start(self, cores: Iterable[tuple[int, int]]) -> None:
        """A launch on these cores begins."""
        self.measuring = self.control.measuring.exists()
        if not self.measuring:
            return
        self._align({tile.get_coord_pair(): tile for tile in self.device.tensix_tiles}, list(cores))
        self.riscs, self.units = {}, Counter()
        self.names = {
            core: (logical(tile.get_coord_pair()), core.core_type.name)
            for tile in self.device.tensix_tiles
            for core in (tile.brisc, tile.ncrisc, tile.trisc0, tile.trisc1, tile.trisc2)
        }
        tick, riscs = self.tick, self.riscs

        def watched(core: Any, cycle: int) -> None:
            tick(core, cycle)
            if core.pc_register.read_uint() >= FIRMWARE_END:
                seen = riscs.get(core)
                if seen is None:
                    seen = riscs[core] = {"start": cycle, "before": _counters(core)}
                seen["end"] = cycle
                seen["after"] = _counters(core)

        BabyRISCV.clock_tick = watched
        get_bus().enabled = True

    def stop(self) -> None:
        """The launch has ended: a line in the control folder says what it took."""
        if not self.measuring:
            return
        self.measuring = False
        BabyRISCV.clock_tick = self.tick
        get_bus().enabled = False
        with self.control.launches.open("a") as launches:
            launches.write(json.dumps(self._record()) + "\n")

    def _align(self, tiles: dict[tuple[int, int], Any], cores: list[tuple[int, int]]) -> None:
        """Puts each RISC at the first instruction of the loop in which its firmware waits for work.

        Where in that loop it is depends on how long it has waited, and would change what follows by a few cycles.
        Wolfpine has proved these loops free of effects before it parks a core in one, so that any turn is as good.
        """
        riscs = [getattr(tiles[core], name) for core in cores for name in RISCS]
        for _ in range(LONGEST_WAY_TO_WAIT // 100):
            if all(risc.spin_parked for risc in riscs):
                break
            self.device.run(100)
        now = tiles[cores[0]].brisc.csrs.clock_owner.current_cycle
        for risc in riscs:
            if risc.spin_parked:
                _rewind(risc, now)

    def _work(self, event: Any) -> None:
        _, y, x, *_ = event.unit_id
        self.units[logical((x, y)), event.target_unit] += event.duration or 1

    def _record(self) -> dict[str, Any]:
        origin = min((seen["start"] for seen in self.riscs.values()), default=0)
        return {
            "riscs": [
                {
                    "core": self.names[core][0],
                    "risc": self.names[core][1],
                    "start": seen["start"] - origin,
                    "end": seen["end"] - origin + 1,
                    **{name: seen["after"][name] - before for name, before in seen["before"].items()},
                }
                for core, seen in self.riscs.items()
            ],
            "units": [{"core": core, "unit": unit, "busy": busy} for (core, unit), busy in self.units.items()],
        }


def _rewind(risc: Any, cycle: int) -> None:
    spin = risc._spin
    turns = range(spin.loop_len)
    counters = [int.from_bytes(pc, "little") for pc, _ in spin.traj]
    first = min(turns, key=lambda turn: (counters[turn], counters[turn - 1] == counters[turn]))
    for register, value in zip(risc.register_file.registers[1:], spin.traj[first][1], strict=True):
        register.value = value
    if risc.rv_cost is not None:
        risc.rv_cost.spin_restore(spin.cost_sigs[first], cycle)
    spin._unpark(risc, cycle, "a measured launch begins")


def _counters(core: Any) -> dict[str, int]:
    stalls = core.rv_cost.stall_by_reason if core.rv_cost is not None else [0] * len(STALL_REASON_NAMES)
    return {"instructions": core.csrs.retired, **dict(zip(STALL_REASON_NAMES, stalls, strict=True))}
