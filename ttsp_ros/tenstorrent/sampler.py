"""DeviceSampler: from the keypoints that NMS left on the card and the dense descriptors to `Features`.

One program makes the keypoint list and samples the descriptors, on all cores at the same time; its result is a header
with the keypoints and float32 rows, together in one tensor just large enough (a *bucket*), so that one transfer brings
all home. `kernels/sampler/` has the kernels, `docs/kernels.md` describes how they work together, and
`superpoint/descriptors.py` is the definition that the rows are bit-identical to, before the last normalisation, which
is done here.

Which bucket is just large enough is known on the card alone, so the host guesses (`Speculation`), tells the card
through `Params.bucket` and reads that bucket. A guess too small costs a second transfer, never a keypoint.

More keypoints than `kmax`: the card says so, the host chooses the best from the candidates, uploads them, and a second
program samples there, into buckets of its own.

Denormal float32 numbers are zero to the card's vector unit; a descriptor below 1e-38 does not come up.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ttsp_ros.superpoint.descriptors import SampleTables, normalise
from ttsp_ros.superpoint.features import Features
from ttsp_ros.superpoint.keypoints import top_k
from ttsp_ros.tenstorrent import layout, program

if TYPE_CHECKING:
    import ttnn

CHANNELS_MAX = 256
CELLS_MAX = 1 << 16  # a record has 16 bits for a cell

# As kernels/sampler/share.hpp has them.
GROUP = 4
TAPS_BYTES = 4 * 2 * CHANNELS_MAX
GROUP_ROWS_BYTES = GROUP * 4 * CHANNELS_MAX
WEIGHT_PIXELS = 4
WEIGHT_BYTES = 64
SHARE_BYTES = 128

CB_EVEN, CB_ODD, CB_ROWS, CB_SHARE, CB_TASK, CB_WEIGHTS, CB_COUNTS = range(7)


@dataclass(frozen=True)
class SamplerPlan:
    """All that follows from the sizes alone; nothing here needs a card.

    Attributes:
        height, width: of the image, pixels; multiples of 8, at most 65536 cells of 8 x 8.
        columns, cores: the program runs on the first `cores` cores of a grid of `columns`, row by row.
        channels: of a descriptor, a multiple of 64 up to 256.
        kmax: keypoints that a bucket can hold at most, a multiple of `chunk`.
        chunk: bucket b has room for chunk (b + 1) keypoints.
        head_fraction: how much of the descriptors of a bucket lies in its head, which the host works on while the tail
            is in flight; 1 for no tail.
    """

    height: int
    width: int
    columns: int
    cores: int
    channels: int = CHANNELS_MAX
    kmax: int = 1024
    chunk: int = 32
    head_fraction: float = 1.0

    def __post_init__(self) -> None:
        _require(
            self.height % layout.CELL == 0 and self.width % layout.CELL == 0 and 0 < self.cells <= CELLS_MAX,
            f"size: got {self.height}x{self.width}, allowed are multiples of {layout.CELL} with at most "
            f"{CELLS_MAX} cells of {layout.CELL}x{layout.CELL} pixels; resize the image",
        )
        _require(
            self.channels % 64 == 0 and 0 < self.channels <= CHANNELS_MAX,
            f"channels: got {self.channels}, allowed are 64, 128, 192 and 256",
        )
        _require(
            self.chunk > 0 and self.kmax > 0 and self.kmax % self.chunk == 0,
            f"kmax: got {self.kmax}, allowed is a positive multiple of chunk ({self.chunk})",
        )
        _require(0 < self.head_fraction <= 1, f"head_fraction: got {self.head_fraction}, allowed is (0, 1]")
        _require(
            self.columns > 0 and 0 < self.cores <= self.kmax,
            f"cores: got {self.cores} in {self.columns} columns, allowed are 1 to kmax ({self.kmax}) cores",
        )

    @property
    def cells(self) -> int:
        return (self.height // layout.CELL) * (self.width // layout.CELL)

    @property
    def buckets(self) -> int:
        return self.kmax // self.chunk

    @property
    def row_bytes(self) -> int:
        """Of a descriptor, and of every row of a bucket."""
        return 4 * self.channels

    @property
    def share(self) -> int:
        """Keypoints of a core at most."""
        return -(-self.kmax // self.cores)

    def rows(self, bucket: int) -> int:
        """Descriptors that the bucket can hold."""
        return self.chunk * (bucket + 1)

    def header_rows(self, bucket: int) -> int:
        """Rows before the descriptors: the header with as many records as the bucket can hold."""
        return -(-4 * layout.header_size(self.rows(bucket)) // self.row_bytes)

    def head_rows(self, bucket: int) -> int:
        """Descriptors in the head of the bucket, whole chunks and at least one; the rest are in its tail."""
        chunks = max(1, round(self.head_fraction * (bucket + 1)))
        return self.chunk * chunks

    def tail_rows(self, bucket: int) -> int:
        return self.rows(bucket) - self.head_rows(bucket)

    def bucket(self, count: int) -> int:
        """The smallest bucket that holds `count` keypoints."""
        return max(0, count - 1) // self.chunk

    @property
    def core_list(self) -> list[program.Core]:
        rows = -(-self.cores // self.columns)
        return program.grid_cores(self.columns, rows)[: self.cores]


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


@dataclass(frozen=True)
class Sampled:
    """What one program gave.

    Attributes:
        y, x: int64 [n], pixels, in the order of the list (raster order, or as uploaded).
        scores: float32 [n].
        descriptors: float32 [n, channels]; not normalised as the card gave them, or of unit length, as asked for.
        total: keypoints that NMS found; greater than n when the list was too long or incomplete and n is 0.
        overflow_slots: slots of NMS that had more keypoints than they hold.
    """

    y: torch.Tensor
    x: torch.Tensor
    scores: torch.Tensor
    descriptors: torch.Tensor
    total: int
    overflow_slots: int

    @property
    def complete(self) -> bool:
        """Whether all keypoints are here. If not, the host must choose: `choose`, then the top-k program."""
        return len(self.scores) == self.total and self.overflow_slots == 0

    def best(self, count: int, mask: torch.Tensor | None = None) -> Sampled:
        """The `count` best that `mask` (see `choose`) allows, best first, equal scores as they stand."""
        order = top_k(self.scores, len(self.scores))
        if mask is not None:
            order = order[mask[self.y[order], self.x[order]]]
        order = order[:count]
        return replace(
            self, y=self.y[order], x=self.x[order], scores=self.scores[order], descriptors=self.descriptors[order]
        )


class Speculation:
    """The bucket that the next image will need, guessed from the last ones.

    The largest of the last `memory` images: reading a few rows too many costs less than a second transfer.
    """

    def __init__(self, plan: SamplerPlan, memory: int = 8) -> None:
        self._plan = plan
        self._buckets: deque[int] = deque([0], maxlen=memory)

    @property
    def bucket(self) -> int:
        return max(self._buckets)

    def observe(self, count: int) -> None:
        """Takes in how many keypoints the last image had."""
        self._buckets.append(self._plan.bucket(min(count, self._plan.kmax)))


def records_of(y: np.ndarray, x: np.ndarray, scores: np.ndarray, height: int, width: int) -> np.ndarray:
    """uint32 [n, 4]: `layout.Record` of keypoints at pixels y, x (integers) with float32 scores."""
    tables = SampleTables.of(height, width)
    cells = tables.cells(torch.as_tensor(y, dtype=torch.int64), torch.as_tensor(x, dtype=torch.int64)).numpy()
    records = np.empty((len(y), layout.RECORD_WORDS), np.uint32)
    records[:, 0] = y.astype(np.int64) << 16 | x.astype(np.int64)
    records[:, 1] = np.ascontiguousarray(scores, np.float32).view(np.uint32)
    records[:, 2] = cells[0] | cells[1] << 16
    records[:, 3] = cells[2] | cells[3] << 16
    return records


def choose(
    candidates: layout.CandidateList, count: int, mask: torch.Tensor | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(y, x, float32 scores) of the `count` best candidates, best first, of equal scores the first in raster order.

    Args:
        mask: bool [height, width], False where no keypoint is wanted; None for everywhere.
    """
    bits = candidates.score_bits.astype(np.uint32)
    order = np.argsort(-bits.astype(np.int64), kind="stable")
    if mask is not None:
        order = order[mask.numpy()[candidates.y[order], candidates.x[order]]]
    order = order[:count]
    return candidates.y[order], candidates.x[order], (bits[order] << 16).view(np.float32)


def features(sampled: Sampled, max_keypoints: int) -> Features:
    """The best `max_keypoints` of `sampled` (descriptors of unit length) as users get them."""
    best = sampled.best(max_keypoints)
    keypoints = torch.stack([best.x, best.y], 1).to(torch.float32)
    return Features(keypoints.numpy(), best.scores.numpy(), best.descriptors.numpy())


class DeviceSampler:
    """The two programs of the sampler and their buffers, all of which exist from the start.

    `run` and `run_top_k` write nothing from the host and allocate nothing, so that a trace can hold them; `read` and
    `read_top_k` belong after its execution, `upload` before that of the top-k trace.
    """

    def __init__(self, device: ttnn.Device, plan: SamplerPlan, slot_map: layout.SlotMap) -> None:
        """
        Args:
            device: an open device, whose grid has the cores of the plan.
            plan: sizes; `SamplerPlan.height` and `width` must be those of the slot map.
            slot_map: how NMS divides its keypoints.
        """
        import ttnn

        _require(
            (plan.height, plan.width) == (slot_map.height, slot_map.width),
            f"plan for {plan.height}x{plan.width}, slot map for {slot_map.height}x{slot_map.width}; they must agree",
        )
        grid = device.compute_with_storage_grid_size()
        _require(
            plan.columns == grid.x and plan.cores <= grid.x * grid.y,
            f"plan for {plan.cores} cores in {plan.columns} columns, the device has {grid.x} x {grid.y} cores",
        )
        self.plan = plan
        self.slot_map = slot_map
        self.speculation = Speculation(plan)
        self._device = device
        self._released = False
        tables = SampleTables.of(plan.height, plan.width)
        table = tables.weight_table().reshape(-1, 4 * WEIGHT_PIXELS)
        self._weights = self._upload(table, ttnn.float32)
        # Zero: a header that nobody has filled says that there is no keypoint, and no cell.
        words = torch.zeros(1, layout.header_size(plan.kmax), dtype=torch.int32)
        self._header = self._upload(words, ttnn.uint32)
        self._main = _Buckets(device, plan)
        self._top_k = _Buckets(device, _without_tails(plan))

    def _upload(self, values: torch.Tensor, dtype: Any) -> ttnn.Tensor:
        import ttnn

        return ttnn.from_torch(
            values,
            dtype=dtype,
            layout=ttnn.ROW_MAJOR_LAYOUT,
            device=self._device,
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )

    # ---- on the card ------------------------------------------------------------------------------------------------

    def run(self, dense: ttnn.Tensor, records: ttnn.Tensor, counts: ttnn.Tensor, params: ttnn.Tensor) -> None:
        """Enqueues the main program.

        Args:
            dense: bf16 [cells, channels] (leading dimensions of 1 allowed), row-major, DRAM interleaved.
            records, counts: of NMS, see `kernels/common/layout.hpp`.
            params: `layout.Params`; `bucket` is what `read` has to be called with, `limit` at most kmax counts.
        """
        program.run(*self.main_program(dense, records, counts, params))

    def run_top_k(self, dense: ttnn.Tensor) -> None:
        """Enqueues the top-k program, which samples `dense` (see `run`) at the keypoints of the last `upload`."""
        program.run(*self.top_k_program(dense))

    def main_program(
        self, dense: ttnn.Tensor, records: ttnn.Tensor, counts: ttnn.Tensor, params: ttnn.Tensor
    ) -> tuple[list[ttnn.Tensor], ttnn.ProgramDescriptor]:
        """What `run` runs, as `program.run` takes it."""
        named = {"counts": counts, "records": records, "params": params}
        compile_time = {"slots": self.slot_map.slots, "capacity": self.slot_map.capacity}
        return self._program("sampler/read_slots.cpp", dense, named, compile_time, self._main)

    def top_k_program(self, dense: ttnn.Tensor) -> tuple[list[ttnn.Tensor], ttnn.ProgramDescriptor]:
        """What `run_top_k` runs, as `program.run` takes it."""
        self._require_alive()  # the header is gone, too
        return self._program("sampler/read_header.cpp", dense, {"header": self._header}, {}, self._top_k)

    def upload(self, y: np.ndarray, x: np.ndarray, scores: np.ndarray, total: int, overflow_slots: int = 0) -> None:
        """Gives the top-k program its keypoints: pixels y, x (integers) and float32 scores, at most kmax of them."""
        import ttnn

        self._require_alive()
        plan = self.plan
        _require(len(y) <= plan.kmax, f"keypoints: got {len(y)}, allowed are up to kmax = {plan.kmax}")
        _require(
            len(y) == 0 or (y.min() >= 0 and y.max() < plan.height and x.min() >= 0 and x.max() < plan.width),
            f"keypoints outside of the image of {plan.height}x{plan.width} pixels",
        )
        words = np.zeros(layout.header_size(plan.kmax), np.uint32)
        words[: len(layout.HEADER_FIELDS)] = [len(y), total, overflow_slots, plan.bucket(len(y))]
        end = layout.HEADER_WORDS + layout.RECORD_WORDS * len(y)
        words[layout.HEADER_WORDS : end] = records_of(y, x, scores, plan.height, plan.width).reshape(-1)
        host = ttnn.from_torch(
            torch.from_numpy(words.view(np.int32))[None], dtype=ttnn.uint32, layout=ttnn.ROW_MAJOR_LAYOUT
        )
        ttnn.copy_host_to_device_tensor(host, self._header)

    # ---- to the host ------------------------------------------------------------------------------------------------

    def read(self, bucket: int, unit_length: bool = True) -> Sampled:
        """What the last `run` gave.

        Args:
            bucket: what `Params.bucket` was.
            unit_length: descriptors divided by their norm; else as the card gave them.
        """
        self._require_alive()
        sampled = self._main.read(bucket, unit_length)
        self.speculation.observe(sampled.total)
        return sampled

    def read_top_k(self, count: int, unit_length: bool = True) -> Sampled:
        """What the last `run_top_k` gave for the `count` keypoints of the upload."""
        self._require_alive()
        return self._top_k.read(self.plan.bucket(count), unit_length)

    def release(self) -> None:
        """Frees all buffers, once; the object can't be used afterwards."""
        import ttnn

        if self._released:
            return
        self._released = True
        for tensor in [self._weights, self._header, *self._main.tensors, *self._top_k.tensors]:
            ttnn.deallocate(tensor)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _require_alive(self) -> None:
        if self._released:
            raise RuntimeError("this DeviceSampler has been released and its buffers are gone; build a new one")

    def _require_dense(self, dense: ttnn.Tensor) -> None:
        import ttnn

        expected = (self.plan.cells, self.plan.channels)
        shape = tuple(dense.shape)
        _require(
            shape[-2:] == expected
            and all(size == 1 for size in shape[:-2])
            and dense.dtype == ttnn.bfloat16
            and dense.layout == ttnn.ROW_MAJOR_LAYOUT,
            f"dense descriptors: got {dense.dtype} {shape} {dense.layout}, expected bf16 {expected} row-major",
        )

    def _program(
        self,
        reader: str,
        dense: ttnn.Tensor,
        list_tensors: dict[str, ttnn.Tensor],
        list_compile_time: dict[str, int],
        buckets: _Buckets,
    ) -> tuple[list[ttnn.Tensor], ttnn.ProgramDescriptor]:
        import ttnn

        self._require_alive()
        self._require_dense(dense)
        plan, cores = self.plan, self.plan.core_list
        compile_time = {
            "cells": plan.cells,
            "width": plan.width,
            "channels": plan.channels,
            "kmax": plan.kmax,
            "chunk": plan.chunk,
            "buckets": plan.buckets,
            "columns": plan.columns,
            "cores": plan.cores,
            "cb_even": CB_EVEN,
            "cb_odd": CB_ODD,
            "cb_rows": CB_ROWS,
            "cb_share": CB_SHARE,
            "cb_task": CB_TASK,
            "cb_weights": CB_WEIGHTS,
            "cb_counts": CB_COUNTS,
        }
        gathered = {"map": dense.buffer_address(), "weights": self._weights.buffer_address()}
        kernels = [
            program.reader(
                reader,
                cores,
                tensors=[dense, self._weights, *list_tensors.values()],
                compile_time={**compile_time, **list_compile_time},
                common={**gathered, **{name: tensor.buffer_address() for name, tensor in list_tensors.items()}},
            ),
            program.compute("sampler/interpolate.cpp", cores, fp32=True, compile_time=compile_time),
            program.writer(
                "sampler/write.cpp",
                cores,
                tensors=[dense, self._weights, buckets.heads[0]],
                compile_time=compile_time,
                common={**gathered, **buckets.arguments},
            ),
        ]
        descriptor = ttnn.ProgramDescriptor(kernels=kernels, semaphores=[], cbs=self._circular_buffers())
        return [dense, self._weights, *list_tensors.values(), *buckets.tensors], descriptor

    def _circular_buffers(self) -> list[ttnn.CBDescriptor]:
        import ttnn

        cores = self.plan.core_list
        share_bytes = SHARE_BYTES + layout.RECORD_BYTES * self.plan.share + 2 * layout.DRAM_ALIGNMENT
        count_bytes = layout.PARAMS_BYTES + layout.COUNT_PAGE_BYTES * self.slot_map.count_pages
        return [
            program.circular_buffer(CB_EVEN, cores, ttnn.bfloat16, TAPS_BYTES, 2 * GROUP),
            program.circular_buffer(CB_ODD, cores, ttnn.bfloat16, TAPS_BYTES, 2 * GROUP),
            program.circular_buffer(CB_ROWS, cores, ttnn.float32, GROUP_ROWS_BYTES, 2),
            program.circular_buffer(CB_SHARE, cores, ttnn.uint32, layout.aligned(share_bytes), 1),
            program.circular_buffer(CB_TASK, cores, ttnn.uint32, layout.DRAM_ALIGNMENT, 1),
            program.circular_buffer(CB_WEIGHTS, cores, ttnn.float32, WEIGHT_BYTES * self.plan.share, 1),
            program.circular_buffer(CB_COUNTS, cores, ttnn.uint32, count_bytes, 1),
        ]


def _without_tails(plan: SamplerPlan) -> SamplerPlan:
    """The host knows the bucket of the top-k program, and has nothing to do meanwhile."""
    return replace(plan, head_fraction=1.0)


class _Buckets:
    """The buckets of one program."""

    def __init__(self, device: ttnn.Device, plan: SamplerPlan) -> None:
        self._device = device
        self._plan = plan
        every = range(plan.buckets)
        self.heads = [self._allocate(plan.header_rows(b) + plan.head_rows(b)) for b in every]
        self.tails = [self._allocate(plan.tail_rows(b)) if plan.tail_rows(b) else None for b in every]

    def _allocate(self, rows: int) -> ttnn.Tensor:
        import ttnn

        shape = ttnn.Shape([rows, self._plan.channels])
        return ttnn.allocate_tensor_on_device(
            shape, ttnn.float32, ttnn.ROW_MAJOR_LAYOUT, self._device, ttnn.DRAM_MEMORY_CONFIG
        )

    @property
    def tensors(self) -> list[ttnn.Tensor]:
        return [*(tail for tail in self.tails if tail is not None), *self.heads]

    @cached_property
    def arguments(self) -> dict[str, int]:
        """Common runtime arguments of write.cpp: three lists with an entry a bucket, each found by its first name."""
        plan = self._plan
        lists = {
            "heads": [head.buffer_address() for head in self.heads],
            "tails": [0 if tail is None else tail.buffer_address() for tail in self.tails],
            "head_rows": [plan.head_rows(bucket) for bucket in range(plan.buckets)],
        }
        return {
            name if bucket == 0 else f"{name}_{bucket}": value
            for name, values in lists.items()
            for bucket, value in enumerate(values)
        }

    def read(self, speculated: int, unit_length: bool) -> Sampled:
        """Reads the speculated bucket, and another one if its header says so."""
        plan = self._plan
        _require(0 <= speculated < plan.buckets, f"bucket: got {speculated}, allowed is 0 to {plan.buckets - 1}")
        head, tail = self._transfer(speculated)
        header = self._header(head)
        if header["bucket"] != speculated:
            head, tail = self._transfer(header["bucket"])
            header = self._header(head)
        return self._decode(header, head, tail, unit_length)

    def _transfer(self, bucket: int) -> tuple[torch.Tensor, ttnn.Tensor | None]:
        """The head of a bucket, float32 [rows, channels], and its tail, still in flight."""
        import ttnn

        head = self.heads[bucket].cpu(blocking=False)
        tail = self.tails[bucket]
        if tail is None:
            ttnn.synchronize_device(self._device)
            return ttnn.to_torch(head), None
        arrived = ttnn.record_event(self._device, 0)
        flying = tail.cpu(blocking=False)
        ttnn.event_synchronize(arrived)
        return ttnn.to_torch(head), flying

    def _header(self, head: torch.Tensor) -> dict[str, int]:
        words = head.reshape(-1)[: len(layout.HEADER_FIELDS)].view(torch.int32).tolist()
        header = dict(zip(layout.HEADER_FIELDS, words, strict=True))
        if not (0 <= header["count"] <= self._plan.kmax and 0 <= header["bucket"] < self._plan.buckets):
            raise RuntimeError(
                f"the card left no header where the host looks for it, but {header}; did its program run?"
            )
        return header

    def _decode(
        self, header: dict[str, int], head: torch.Tensor, tail: ttnn.Tensor | None, unit_length: bool
    ) -> Sampled:
        import ttnn

        plan, count, bucket = self._plan, header["count"], header["bucket"]
        first = plan.header_rows(bucket)
        in_head = min(count, plan.head_rows(bucket))
        records = head[:first].reshape(-1).view(torch.int32)[layout.HEADER_WORDS :]
        records = records[: layout.RECORD_WORDS * count].reshape(count, layout.RECORD_WORDS)
        finish = normalise if unit_length else torch.clone
        parts = [finish(head[first : first + in_head])]
        if tail is not None:
            ttnn.synchronize_device(self._device)
            parts.append(finish(ttnn.to_torch(tail)[: count - in_head]))
        return Sampled(
            y=(records[:, 0].to(torch.int64) >> 16) & 0xFFFF,
            x=(records[:, 0] & 0xFFFF).to(torch.int64),
            scores=records[:, 1].clone().view(torch.float32),
            descriptors=torch.cat(parts),
            total=header["total"],
            overflow_slots=header["overflow_slots"],
        )
