"""NMS's part of `make bench-device`: modelled cycles of fold and window, and what cannot be undercut.

Measured on eight cores that have five rows of 640 pixels each, as 96 cores of an 11x10 grid have at 480x640. A core's
work is the same there; what is not seen is 96 cores asking DRAM at once (0.7 MB, about 1.5 us at 500 GB/s).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ttsp_ros.simulator.cycles import LaunchCycles, measure
from ttsp_ros.tenstorrent import layout
from ttsp_ros.tenstorrent.nms import DeviceNms, NmsPlan, kernel_plan

if TYPE_CHECKING:
    import ttnn

CLOCK_HZ = 1.35e9
RADIUS = 4
GRID_CORES = 11 * 10
CORES = 8
KEYPOINTS = 1024  # in the whole image
WORKERS = 5
L1_LOAD_CYCLES = 7 / 4  # the cost model's, from the ISA documentation: four loads in seven cycles


def fold_floor(plan: NmsPlan) -> int:
    """Cycles in which L1 gives a RISC its pixels, one load each: the two of a word lie in different cells."""
    rows = -(-plan.rows // WORKERS)
    return int(rows * plan.positions * layout.LANES * L1_LOAD_CYCLES)


def window_floor(plan: NmsPlan, maxima: float) -> int:
    """Instructions that Tensix must issue, then loads that the slower data-movement RISC must make.

    For `count` outputs of windows of 2 r + 1 inputs: count + 2 r loads, 2 r + 2 count - 3 maxima (what all windows
    share is reduced once), and a store, or a centre and a comparison, for each.

    Args:
        plan: with whole rows, in one block.
        maxima: of a slot of `split` rows, about.
    """
    window, vectors = 2 * plan.radius, 2

    def reduction(count: int) -> int:
        return (count + window) + (window + 2 * count - 3)

    half = plan.strip // 2
    vertical = vectors * plan.positions * (reduction(plan.rows) + plan.rows)
    horizontal = vectors * plan.rows * (reduction(half) + reduction(plan.strip - half) + 2 * plan.strip + 1)
    unpack = (plan.rows + window) * plan.positions * layout.LANES // (8 * 16)  # rows of 16 lanes, eight at a time
    scan = plan.slot_map.split * layout.LANES // 2 + maxima
    return int(vertical + horizontal + unpack + scan * L1_LOAD_CYCLES)


@dataclass(frozen=True)
class Stage:
    """One operation of NMS."""

    launch: LaunchCycles
    floor: int

    @property
    def cycles(self) -> int:
        return self.launch.span

    def summary(self) -> dict[str, object]:
        return {
            "cycles": self.cycles,
            "floor_cycles": self.floor,
            "ratio": round(self.cycles / self.floor, 2),
            "riscs": self.launch.by_risc(),
            "units": self.launch.by_unit(),
        }


def scores_like_a_photograph(height: int, width: int) -> torch.Tensor:
    """bf16 [1, 1, h * w, 65]: random, all magnitudes, so that one pixel in about 81 is a maximum."""
    generator = torch.Generator().manual_seed(0)
    return (0.9 / (1 + 100 * torch.rand(1, 1, height * width // 64, 65, generator=generator))).bfloat16()


def measure_section(device: ttnn.MeshDevice) -> dict[str, object]:
    """The section `nms` of build/bench/device.json; prints as it goes."""
    import ttnn

    whole = kernel_plan(480, 640, RADIUS, GRID_CORES)
    # 1,024 of the 480 * 640 / 81 maxima: those above this score.
    threshold = 0.9 / (1 + 100 * 0.0039)
    nms = DeviceNms(device, CORES * whole.rows, whole.width, RADIUS, threshold=threshold, border=4, core_limit=CORES)
    plan = nms.plan
    assert isinstance(plan, NmsPlan) and (plan.rows, plan.block, plan.cores) == (whole.rows, whole.block, CORES)
    scores = ttnn.from_torch(
        scores_like_a_photograph(plan.height, plan.width),
        dtype=ttnn.bfloat16,
        layout=ttnn.TILE_LAYOUT,
        device=device,
        memory_config=ttnn.DRAM_MEMORY_CONFIG,
    )
    fold, window = measure(device, lambda: nms(scores))
    ttnn.deallocate(scores)
    nms.release()
    maxima = plan.slot_map.split * plan.width / (2 * RADIUS + 1) ** 2
    stages = {"fold": Stage(fold, fold_floor(plan)), "window": Stage(window, window_floor(plan, maxima))}
    return _section(whole, stages)


def _section(whole: NmsPlan, stages: dict[str, Stage]) -> dict[str, object]:
    cycles = sum(stage.cycles for stage in stages.values())
    floor = sum(stage.floor for stage in stages.values())
    print(whole)
    for name, stage in stages.items():
        print(f"  {name}: {stage.summary()}")
    section = {
        "cycles": cycles,
        "floor_cycles": floor,
        "ratio": round(cycles / floor, 2),
        "modelled_us": round(1e6 * cycles / CLOCK_HZ, 2),
    }
    print(f"  sum: {section}")
    return {**section, **{name: stage.summary() for name, stage in stages.items()}, "measured_cores": CORES}
