"""The sampler's part of `make bench-device`: modelled cycles of its main program, and what can't be undercut.

All cores of the grid run, at 480x640 with the slots of 96 NMS cores, and start together, so that what they wait for in
the queues of DRAM and NoC is in the figures. That takes some minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ttsp_ros.simulator.cycles import LaunchCycles, measure
from ttsp_ros.tenstorrent import layout
from ttsp_ros.tenstorrent.sampler import DeviceSampler, SamplerPlan, records_of

if TYPE_CHECKING:
    import ttnn

HEIGHT, WIDTH = 480, 640
NMS_ROWS = 5  # of an NMS core: 96 cores of 11x10
COUNTS = (256, 1024)
CLOCK_HZ = 1.35e9
DRAM_BYTES_PER_CYCLE = 512e9 / CLOCK_HZ  # of a p150
NOC_BYTES_PER_CYCLE = 64
SFPU_VECTOR = 32
TAPS = 4
# A core knows where its taps are after two reads from other cores' L1, one after the other: counts, then records.
# 403 cycles each is the latency that tt-metal gives for Blackhole. No part of the floor can begin before.
LIST_CYCLES = 2 * 403


@dataclass(frozen=True)
class Floor:
    """Cycles that no program can undercut which gathers taps and weights from DRAM and sends rows there.

    Attributes:
        dram: of all cores together.
        noc: bytes that arrive at a core.
        sfpu: instructions of a core: for every vector a load and a product of each tap, three sums and a store; and two
            immediates for each weight.
    """

    dram: float
    noc: float
    sfpu: float

    @staticmethod
    def of(plan: SamplerPlan, count: int) -> Floor:
        share = -(-count // plan.cores)
        gathered = TAPS * (2 * plan.channels + 4)
        written = 4 * plan.channels + layout.RECORD_BYTES
        vector = 2 * TAPS + (TAPS - 1) + 1
        return Floor(
            dram=count * (gathered + written) / DRAM_BYTES_PER_CYCLE,
            noc=share * gathered / NOC_BYTES_PER_CYCLE,
            sfpu=share * (2 * TAPS + plan.channels / SFPU_VECTOR * vector),
        )

    @property
    def cycles(self) -> int:
        return int(max(self.dram, self.noc, self.sfpu))


@dataclass(frozen=True)
class SlotTensors:
    """Keypoints as NMS leaves them on the card, without NMS: records, counts and parameters."""

    records: ttnn.Tensor
    counts: ttnn.Tensor
    params: ttnn.Tensor


def slot_words(slot_map: layout.SlotMap, records: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The tensors `records` and `counts`, as uint32, of `layout.Record`s in raster order (uint32 [n, 4])."""
    first_rows = slot_map.first_rows()
    slots = np.searchsorted(first_rows, (records[:, 0] >> 16).astype(np.int64), side="right") - 1
    in_slot = np.arange(len(records)) - np.searchsorted(slots, slots, side="left")
    held = in_slot < slot_map.capacity
    words = np.zeros((slot_map.slots, slot_map.capacity, layout.RECORD_WORDS), np.uint32)
    words[slots[held], in_slot[held]] = records[held]
    counts = np.zeros((slot_map.count_pages * layout.COUNTS_PER_PAGE, layout.COUNT_BYTES // 4), np.uint32)
    counts[: slot_map.slots, 0] = np.bincount(slots, minlength=slot_map.slots)
    # What lies behind the last slot in the last page is nobody's.
    counts[slot_map.slots :] = 0xFFFFFFFF
    return words.reshape(slot_map.slots, -1), counts.reshape(slot_map.count_pages, -1)


def upload_slots(
    device: ttnn.Device, slot_map: layout.SlotMap, records: np.ndarray, params: layout.Params
) -> SlotTensors:
    """`slot_words` on the card, in the memory where NMS has them."""
    import ttnn

    record_words, count_words = slot_words(slot_map, records)
    cores = ttnn.num_cores_to_corerangeset(slot_map.cores, device.compute_with_storage_grid_size(), row_wise=True)
    shard = ttnn.ShardSpec(cores, [layout.SLOTS_PER_CORE, record_words.shape[1]], ttnn.ShardOrientation.ROW_MAJOR)
    sharded = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shard)
    return SlotTensors(
        records=_upload(device, record_words, sharded),
        counts=_upload(device, count_words, ttnn.L1_MEMORY_CONFIG),
        params=_upload(device, params.words()[None], ttnn.DRAM_MEMORY_CONFIG),
    )


def _upload(device: ttnn.Device, words: np.ndarray, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
    import ttnn

    return ttnn.from_torch(
        torch.from_numpy(words.view(np.int32)),
        dtype=ttnn.uint32,
        layout=ttnn.ROW_MAJOR_LAYOUT,
        device=device,
        memory_config=memory,
    )


def upload_dense(device: ttnn.Device, dense: torch.Tensor) -> ttnn.Tensor:
    """Descriptors bf16 [cells, channels] on the card, as the sampler reads them."""
    import ttnn

    return ttnn.from_torch(
        dense,
        dtype=ttnn.bfloat16,
        layout=ttnn.ROW_MAJOR_LAYOUT,
        device=device,
        memory_config=ttnn.DRAM_MEMORY_CONFIG,
    )


def random_records(count: int, seed: int = 0) -> np.ndarray:
    """`layout.Record`s of `count` keypoints anywhere in the image, in raster order."""
    generator = np.random.default_rng(seed)
    raster = np.sort(generator.choice(HEIGHT * WIDTH, count, replace=False))
    return records_of(raster // WIDTH, raster % WIDTH, generator.random(count, np.float32), HEIGHT, WIDTH)


def measure_section(device: ttnn.Device) -> dict[str, object]:
    """The section `sampler` of build/bench/device.json; prints as it goes."""
    grid = device.compute_with_storage_grid_size()
    plan = SamplerPlan(HEIGHT, WIDTH, grid.x, grid.x * grid.y)
    sampler = DeviceSampler(device, plan, layout.SlotMap(HEIGHT, WIDTH, NMS_ROWS, capacity=64))
    dense = upload_dense(device, torch.randn(plan.cells, plan.channels).bfloat16())
    section: dict[str, object] = {}
    for count in COUNTS:
        launch = _measure(device, sampler, dense, count)
        summary = _summary(launch, Floor.of(plan, count))
        print(f"  {count} keypoints: {summary}", flush=True)
        section[str(count)] = summary
    sampler.release()
    return section


def _measure(device: ttnn.Device, sampler: DeviceSampler, dense: ttnn.Tensor, count: int) -> LaunchCycles:
    plan = sampler.plan
    params = layout.Params(0, 0, HEIGHT, 0, WIDTH, plan.bucket(count), plan.kmax)
    slots = upload_slots(device, sampler.slot_map, random_records(count), params)
    (launch,) = measure(device, lambda: sampler.run(dense, slots.records, slots.counts, slots.params))
    if len(sampler.read(params.bucket).scores) != count:
        raise RuntimeError(f"the program did not sample all of the {count} keypoints: its cycles say nothing")
    return launch


def _summary(launch: LaunchCycles, floor: Floor) -> dict[str, object]:
    return {
        "cycles": launch.span,
        "floor_cycles": floor.cycles,
        "ratio": round(launch.span / floor.cycles, 2),
        "ratio_after_list": round(launch.span / (LIST_CYCLES + floor.cycles), 2),
        "modelled_us": round(1e6 * launch.span / CLOCK_HZ, 2),
        "floor_parts": {name: round(value) for name, value in vars(floor).items()},
        "riscs": launch.by_risc(),
        "units": launch.by_unit(),
    }
