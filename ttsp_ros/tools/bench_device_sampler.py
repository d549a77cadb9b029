"""The sampler's part of `make bench-device`: modelled cycles on a simulated Blackhole, and what can't be undercut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from ttsp_ros.tenstorrent import layout

if TYPE_CHECKING:
    import ttnn


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
