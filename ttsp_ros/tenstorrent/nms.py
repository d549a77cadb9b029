"""Non-maximum suppression on the card: from the scores of the cells to the NMS map and the candidates of keypoints.

Two operations, launched by `ttnn.generic_op`:

    scores [1, 1, h * w, 65] bf16 --fold--> strips (L1) --window--> NMS map [H, W], candidates, records, counts

The layouts are in ``kernels/common/layout.hpp``, the kernels in ``kernels/nms``. Nothing computes: values are copied
and compared as integers, so the results equal those of `ttsp_ros.superpoint.keypoints` bit for bit. What the kernels
cannot take goes to ttnn's own operations (nms_chain.py), which give the map only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ttsp_ros.superpoint import keypoints
from ttsp_ros.superpoint.descriptors import SampleTables
from ttsp_ros.tenstorrent import layout, program
from ttsp_ros.tenstorrent.nms_chain import ChainPlan, run_chain

if TYPE_CHECKING:
    import ttnn

MAX_RADIUS = layout.CELL - 1
DST_TILES = 16  # bf16, the whole of DST
TILE_POSITIONS = 1024 // layout.LANES
FLAG_BITS = 14  # positions of a lane in one word of flags
SFPU_REGISTERS = 7  # of eight, one is for loading
DEFAULT_CAPACITY = 63  # a slot's candidates: a page of 256 bytes with their count
MAX_RING_ROWS = 4  # rows of the map that a RISC assembles before it has to wait for the first to be written
L1_BUDGET = 1_300_000  # bytes a core that one operation may take, of about 1.43 million


@dataclass(frozen=True)
class NmsPlan:
    """How NMS of one geometry is laid out on a grid; print it to see what was chosen.

    Attributes:
        height, width: score map, pixels.
        radius: of the (2 radius + 1)^2 window.
        rows: image rows of a core.
        cores: that have rows.
        block: output rows that DST takes at a time.
        loaded: positions of an image row in DST: all of them, or a tile's 16 where a row takes several chunks.
        capacity: entries of a slot.
    """

    height: int
    width: int
    radius: int
    rows: int
    cores: int
    block: int
    loaded: int
    capacity: int

    @property
    def strip(self) -> int:
        """Columns that a lane owns."""
        return -(-self.width // layout.LANES)

    @property
    def positions(self) -> int:
        """Columns that a lane holds: its own and the halo."""
        return self.strip + 2 * self.radius

    @property
    def chunks(self) -> int:
        return -(-self.strip // (self.loaded - 2 * self.radius))

    @property
    def flag_pages(self) -> int:
        """Tiles of flags of a core, see window.hpp: a page for every row where a block's fit one, which is usual."""
        words = -(-(self.loaded - 2 * self.radius) // FLAG_BITS)
        tiles = -(-self.block * words // TILE_POSITIONS)
        if self.chunks == tiles == 1:
            return self.rows
        return -(-self.rows // self.block) * self.chunks * tiles

    @property
    def shard_positions(self) -> int:
        """Positions of a core in the tensor `strips`; the unpacker copies whole tiles, so it reads past the last."""
        return (self.rows + 2 * self.radius) * self.positions + TILE_POSITIONS

    @property
    def slot_map(self) -> layout.SlotMap:
        return layout.SlotMap(self.height, self.width, self.rows, self.capacity)

    @property
    def ring_rows(self) -> int:
        return min(self.slot_map.split, MAX_RING_ROWS)

    @property
    def staging_bytes(self) -> int:
        """L1 of a core for the scores of its rows, as fold.hpp stages them."""
        cells = (layout.LANES * self.strip + self.radius - 1) // layout.CELL + 1
        return (self.rows + 1) // 2 * layout.aligned((2 + cells) * 32) + 64

    @property
    def work_bytes(self) -> int:
        """L1 scratch of one data-movement RISC in window_move.cpp."""
        return 64 + 64 + layout.aligned(4 * (1 + self.capacity)) + self.ring_rows * layout.aligned(2 * self.width) + 64

    @property
    def l1_bytes(self) -> int:
        """Most L1 that one operation takes on a core, the tensors that live on included."""
        strips = self.shard_positions * layout.POSITION_BYTES
        records = 2 * self.capacity * layout.RECORD_BYTES
        return strips + records + max(self.staging_bytes, self.flag_pages * 2048 + 2 * self.work_bytes)

    def row_count(self, core: int) -> int:
        """Image rows of a core: `rows`, or what is left for the last."""
        return min(self.rows, self.height - core * self.rows)

    def __str__(self) -> str:
        whole = "whole rows" if self.chunks == 1 else f"{self.chunks} chunks a row"
        return (
            f"NMS {self.height}x{self.width}, radius {self.radius}: kernels on {self.cores} cores, "
            f"{self.rows} rows a core; DST takes {self.block} output rows at a time, {whole}; "
            f"{self.slot_map.slots} slots of {self.capacity}; {self.l1_bytes} bytes of L1 a core"
        )


def choose_plan(
    height: int, width: int, radius: int, core_limit: int, capacity: int = DEFAULT_CAPACITY
) -> NmsPlan | ChainPlan:
    """The kernels where they take the geometry, ttnn's operations where only those do.

    Raises ValueError for what neither takes; it says why.
    """
    try:
        return kernel_plan(height, width, radius, core_limit, capacity)
    except UnsupportedGeometryError as reason:
        return ChainPlan(height, width, radius, str(reason))


class UnsupportedGeometryError(ValueError):
    """The kernels do not take this geometry."""


def kernel_plan(height: int, width: int, radius: int, core_limit: int, capacity: int = DEFAULT_CAPACITY) -> NmsPlan:
    """The layout for a geometry on up to `core_limit` cores: as many cores as there are, a row at least for each.

    Raises UnsupportedGeometryError for what the kernels cannot take, ValueError for what makes no sense.
    """
    if height % layout.CELL or width % layout.CELL or height < layout.CELL or width < layout.CELL:
        raise ValueError(f"score map: got {height}x{width}, allowed are positive multiples of {layout.CELL} pixels")
    if not 1 <= radius <= MAX_RADIUS:
        raise UnsupportedGeometryError(f"radius: got {radius}, the kernels take 1..{MAX_RADIUS} pixels")
    if core_limit < 1:
        raise ValueError(f"cores: got {core_limit}, at least 1 is needed")
    if not 1 <= capacity <= 4095:
        raise ValueError(f"slot capacity: got {capacity}, allowed is 1..4095 entries")
    if (height // layout.CELL) * (width // layout.CELL) > 1 << 16:
        raise UnsupportedGeometryError(f"score map: got {height}x{width}, but a record numbers at most 65536 cells")
    rows = -(-height // core_limit)
    strip = -(-width // layout.LANES)
    positions = strip + 2 * radius
    block = _block_rows(radius, positions)
    loaded = positions
    if block < 1:
        loaded, block = TILE_POSITIONS, min(DST_TILES - 2 * radius, 2 * radius, SFPU_REGISTERS)
    found = NmsPlan(height, width, radius, rows, -(-height // rows), min(block, rows), loaded, capacity)
    if found.slot_map.split * width > layout.CANDIDATE_PIXELS:
        raise UnsupportedGeometryError(
            f"{found.slot_map.split} rows of {width} pixels in a slot, at most {layout.CANDIDATE_PIXELS} pixels are "
            f"possible: use more than {core_limit} cores"
        )
    if found.l1_bytes > L1_BUDGET:
        raise UnsupportedGeometryError(
            f"{found}, more than {L1_BUDGET}: use more than {core_limit} cores or a smaller image"
        )
    return found


def _block_rows(radius: int, positions: int) -> int:
    """Output rows of whole image rows that DST takes at a time; 0 or less where it takes none."""
    held = DST_TILES * TILE_POSITIONS // positions
    return min(held - 2 * radius, 2 * radius, SFPU_REGISTERS)


@dataclass(frozen=True)
class HaloRun:
    """Image rows that a core copies from another's strips, or zeros (core None); rows counted in the shard."""

    core: int | None
    from_row: int
    to_row: int
    count: int


def halo_runs(found: NmsPlan, core: int) -> tuple[list[HaloRun], list[HaloRun]]:
    """The runs above and below the rows of a core, merged where they are neighbours."""
    first = core * found.rows
    above = range(first - found.radius, first)
    below = range(first + found.row_count(core), first + found.rows + found.radius)
    shard_start = first - found.radius
    return list(_runs(found, above, shard_start)), list(_runs(found, below, shard_start))


def _runs(found: NmsPlan, image_rows: range, shard_start: int) -> Iterator[HaloRun]:
    run: HaloRun | None = None
    for y in image_rows:
        inside = 0 <= y < found.height
        core = y // found.rows if inside else None
        from_row = found.radius + y % found.rows if inside else 0
        if run is not None and run.core == core:
            run = HaloRun(core, run.from_row, run.to_row, run.count + 1)
            continue
        if run is not None:
            yield run
        run = HaloRun(core, from_row, y - shard_start, 1)
    if run is not None:
        yield run


@dataclass(frozen=True)
class NmsOutput:
    """What a call gives; all tensors belong to the DeviceNms and are overwritten by its next call.

    Attributes:
        map: bf16 [1, 1, H, W] row-major in DRAM; None without emit_map.
        candidates, records, counts: None without emit_keypoints, and where the plan is a ChainPlan.
        candidates: uint32 [1, 1, slots, 1 + capacity] in DRAM.
        records: uint32 [1, 1, slots, 4 * capacity], the slots of a core in its own L1.
        counts: uint32 [1, 1, pages, 64], interleaved in L1.
    """

    map: ttnn.Tensor | None
    candidates: ttnn.Tensor | None
    records: ttnn.Tensor | None
    counts: ttnn.Tensor | None

    def tensors(self) -> list[ttnn.Tensor]:
        """Those that there are."""
        return [t for t in (self.records, self.counts, self.candidates, self.map) if t is not None]


class DeviceNms:
    """NMS of one geometry on one device. Plans and allocates once; a call writes nothing from the host.

    Args:
        device: an open ttnn device.
        height, width: of the score map, multiples of 8.
        radius: of the (2 radius + 1)^2 window, pixels.
        threshold, border: first parameters, see `set_params`.
        emit_map: write the NMS map.
        emit_keypoints: write candidates, records and counts.
        capacity: entries of a slot.
        core_limit: use at most this many cores (of the whole grid by default), row by row.

    Raises:
        ValueError: for a geometry that neither the kernels nor ttnn's operations take, or parameters not allowed.

    Attributes:
        plan: what was chosen; print it.
        cores: logical cores of the kernels, in the order of the image rows.
        written_params: what the parameter tensor holds.
        params: the parameter tensor, uint32 [1, 1, 1, 16] in DRAM.
        output: the tensors that a call fills.
    """

    def __init__(
        self,
        device: ttnn.MeshDevice,
        height: int,
        width: int,
        radius: int,
        *,
        threshold: float = 0.005,
        border: int = 4,
        emit_map: bool = True,
        emit_keypoints: bool = True,
        capacity: int = DEFAULT_CAPACITY,
        core_limit: int | None = None,
    ) -> None:
        if not (emit_map or emit_keypoints):
            raise ValueError("emit_map and emit_keypoints are both False: there would be no result")
        grid = device.compute_with_storage_grid_size()
        available = program.grid_cores(grid.x, grid.y)
        limit = min(core_limit or len(available), len(available))
        self.plan = choose_plan(height, width, radius, limit, capacity)
        if isinstance(self.plan, ChainPlan) and not emit_map:
            raise ValueError(f"{self.plan}: so emit_map has to be True")
        self.cores = available[: self.plan.cores] if isinstance(self.plan, NmsPlan) else []
        self._device = device
        self._noc = program.noc_coordinates(device, self.cores)
        self.written_params = self._params(threshold, border, None, 0, 0)
        self.params = _upload(device, self.written_params)
        self.output = _allocate(device, self.plan, self.cores, emit_map, emit_keypoints)
        self._released = False

    def _params(
        self, threshold: float, border: int, image_size: tuple[int, int] | None, bucket: int, limit: int
    ) -> layout.Params:
        height, width = image_size if image_size is not None else (self.plan.height, self.plan.width)
        if not 0.0 <= threshold < 1.0:
            raise ValueError(f"threshold: got {threshold}, allowed is 0 <= threshold < 1")
        if not (0 < height <= self.plan.height and 0 < width <= self.plan.width):
            raise ValueError(f"image size: got {height}x{width}, allowed is up to {self.plan.height}x{self.plan.width}")
        if border < 0 or 2 * border >= min(height, width):
            raise ValueError(f"border: got {border}, allowed is 0..{(min(height, width) - 1) // 2} pixels")
        bits = keypoints.bf16_threshold_bits(threshold)
        return layout.Params(bits, border, height - border, border, width - border, bucket, limit)

    def set_params(
        self,
        threshold: float,
        border: int,
        *,
        image_size: tuple[int, int] | None = None,
        bucket: int | None = None,
        limit: int | None = None,
    ) -> None:
        """What the next call or replay works with. The 64 bytes are sent only when they change; nothing is compiled.

        Args:
            threshold: a keypoint's score is greater; in [0, 1).
            border: no keypoints this close to the edges of the image, pixels.
            image_size: (height, width) of the image in the top-left corner of the map; the whole map by default.
            bucket, limit: of the sampler; as before by default.

        Raises:
            ValueError: says what is allowed; nothing has changed then.
        """
        import ttnn

        self._check_alive()
        before = self.written_params
        params = self._params(
            threshold,
            border,
            image_size,
            before.bucket if bucket is None else bucket,
            before.limit if limit is None else limit,
        )
        if params == before:
            return
        ttnn.copy_host_to_device_tensor(_host_params(params), self.params)
        self.written_params = params

    def __call__(self, scores: ttnn.Tensor) -> NmsOutput:
        """NMS of one image.

        Args:
            scores: bf16 [1, 1, h * w, 65] (or 64), TILE, interleaved in DRAM, not negative: the softmax of the cells.
        """
        import ttnn

        self._check_alive()
        self._check_scores(scores)
        if isinstance(self.plan, ChainPlan):
            ttnn.copy(run_chain(self.plan, scores), self.output.map)
            return self.output
        strips = allocate_strips(self._device, self.plan, self.cores)
        program.run([scores, strips], fold_program(self.plan, self.cores, scores, strips))
        program.run([strips, self.params, *self.output.tensors()], self.window_program(strips))
        ttnn.deallocate(strips)
        return self.output

    def window_program(self, strips: ttnn.Tensor) -> ttnn.ProgramDescriptor:
        """The second operation, from `strips` to `output`."""
        assert isinstance(self.plan, NmsPlan)
        return window_program(self.plan, self.cores, self._noc, strips, self.params, self.output)

    def _check_scores(self, scores: ttnn.Tensor) -> None:
        import ttnn

        cells = (self.plan.height // layout.CELL) * (self.plan.width // layout.CELL)
        shape = tuple(scores.shape)
        fits = len(shape) == 4 and shape[:3] == (1, 1, cells) and shape[3] in (64, 65)
        if not fits or scores.dtype != ttnn.bfloat16 or scores.layout != ttnn.TILE_LAYOUT:
            raise ValueError(
                f"scores: got {scores.dtype} {shape} {scores.layout}, "
                f"expected bfloat16 (1, 1, {cells}, 65) in TILE_LAYOUT"
            )
        if scores.memory_config() != ttnn.DRAM_MEMORY_CONFIG:
            raise ValueError(f"scores: got {scores.memory_config()}, expected them interleaved in DRAM")

    def _check_alive(self) -> None:
        if self._released:
            raise RuntimeError("this DeviceNms was released; build a new one")

    def release(self) -> None:
        """Frees all tensors; calling it again does nothing."""
        import ttnn

        if self._released:
            return
        self._released = True
        for tensor in [self.params, *self.output.tensors()]:
            ttnn.deallocate(tensor)


def _host_params(params: layout.Params) -> ttnn.Tensor:
    import ttnn

    words = torch.from_numpy(params.words().view("int32")).reshape(1, 1, 1, -1)
    return ttnn.from_torch(words, dtype=ttnn.uint32, layout=ttnn.ROW_MAJOR_LAYOUT)


def _upload(device: ttnn.MeshDevice, params: layout.Params) -> ttnn.Tensor:
    import ttnn

    return ttnn.to_device(_host_params(params), device, memory_config=ttnn.DRAM_MEMORY_CONFIG)


def _height_sharded(cores: list[program.Core], shape: list[int]) -> ttnn.MemoryConfig:
    import ttnn

    spec = ttnn.ShardSpec(program.core_ranges(cores), shape, ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, spec)


def allocate_strips(device: ttnn.MeshDevice, found: NmsPlan, cores: list[program.Core]) -> ttnn.Tensor:
    """The tensor `strips` (kernels/nms/strips.hpp), bf16, its contents undefined."""
    import ttnn

    shard = [found.shard_positions, layout.LANES]
    shape = ttnn.Shape([1, 1, found.cores * found.shard_positions, layout.LANES])
    memory = _height_sharded(cores, shard)
    return ttnn.allocate_tensor_on_device(shape, ttnn.bfloat16, ttnn.ROW_MAJOR_LAYOUT, device, memory)


def _allocate(
    device: ttnn.MeshDevice, found: NmsPlan | ChainPlan, cores: list[program.Core], emit_map: bool, emit_keypoints: bool
) -> NmsOutput:
    import ttnn

    def allocate(rows: int, columns: int, dtype: ttnn.DataType, memory: ttnn.MemoryConfig) -> ttnn.Tensor:
        shape = ttnn.Shape([1, 1, rows, columns])
        return ttnn.allocate_tensor_on_device(shape, dtype, ttnn.ROW_MAJOR_LAYOUT, device, memory)

    nms_map = candidates = records = counts = None
    if emit_map:
        nms_map = allocate(found.height, found.width, ttnn.bfloat16, ttnn.DRAM_MEMORY_CONFIG)
    if emit_keypoints and isinstance(found, NmsPlan):
        slots, entry_words = found.slot_map.slots, layout.RECORD_WORDS * found.capacity
        words = layout.CANDIDATE_FIRST_WORD + found.capacity
        candidates = allocate(slots, words, ttnn.uint32, ttnn.DRAM_MEMORY_CONFIG)
        records = allocate(slots, entry_words, ttnn.uint32, _height_sharded(cores, [2, entry_words]))
        page_words = layout.COUNT_PAGE_BYTES // 4
        counts = allocate(found.slot_map.count_pages, page_words, ttnn.uint32, ttnn.L1_MEMORY_CONFIG)
    return NmsOutput(nms_map, candidates, records, counts)


def _geometry(found: NmsPlan) -> dict[str, int]:
    """Constants that kernels/nms/strips.hpp asks for."""
    return {"width": found.width, "rows": found.rows, "radius": found.radius}


def fold_program(
    found: NmsPlan, cores: list[program.Core], scores: ttnn.Tensor, strips: ttnn.Tensor
) -> ttnn.ProgramDescriptor:
    """Scores to strips; see kernels/nms/fold.hpp."""
    import ttnn

    buffers = {"cb_staged": 0, "cb_half_0": 1, "cb_half_1": 2}
    common = {"scores": scores.buffer_address(), "strips": strips.buffer_address()}
    unique = {core: {"first_row": i * found.rows, "row_count": found.row_count(i)} for i, core in enumerate(cores)}
    constants = {**_geometry(found), **buffers, "tile_columns": scores.padded_shape[-1] // 32}

    def move(half: int) -> ttnn.KernelDescriptor:
        kind = program.reader if half == 0 else program.writer
        return kind(
            "nms/fold_move.cpp",
            cores,
            tensors=[scores],
            compile_time={**constants, "half": half},
            unique=unique,
            common=common,
        )

    scalar = program.compute("nms/fold_compute.cpp", cores, compile_time=constants, unique=unique, common=common)
    return ttnn.ProgramDescriptor(
        kernels=[move(0), move(1), scalar],
        semaphores=[],
        cbs=[
            program.circular_buffer(buffers["cb_staged"], cores, ttnn.uint16, found.staging_bytes, pages=1),
            *(
                program.circular_buffer(buffers[name], cores, ttnn.uint16, 64, pages=1)
                for name in ("cb_half_0", "cb_half_1")
            ),
        ],
    )


def window_program(
    found: NmsPlan,
    cores: list[program.Core],
    noc: list[program.Core],
    strips: ttnn.Tensor,
    params: ttnn.Tensor,
    output: NmsOutput,
) -> ttnn.ProgramDescriptor:
    """Strips to NMS map, candidates, records and counts; see kernels/nms/window.hpp."""
    import ttnn

    buffers = {
        "cb_strips": 0,
        "cb_halo_0": 1,
        "cb_halo_1": 2,
        "cb_flags": 3,
        "cb_work_0": 4,
        "cb_work_1": 5,
    }
    constants = {**_geometry(found), **buffers, "block": found.block, "loaded": found.loaded}
    runs = [halo_runs(found, i) for i in range(len(cores))]
    most_runs = max(len(side) for sides in runs for side in sides)

    def unique(half: int) -> dict[program.Core, dict[str, int]]:
        return {
            core: {"core": i, "row_count": found.row_count(i), **_halo_arguments(runs[i][half], most_runs, noc)}
            for i, core in enumerate(cores)
        }

    def move(half: int) -> ttnn.KernelDescriptor:
        kind = program.reader if half == 0 else program.writer
        absent = params  # stands in where nothing is written
        tensors = {
            "map": output.map or absent,
            "params": params,
            "candidates": output.candidates or absent,
            "counts": output.counts or absent,
        }
        addresses = {name: tensor.buffer_address() for name, tensor in tensors.items()}
        records = output.records.buffer_address() if output.records is not None else 0
        return kind(
            "nms/window_move.cpp",
            cores,
            tensors=list(tensors.values()),
            compile_time={
                **constants,
                "half": half,
                "height": found.height,
                "capacity": found.capacity,
                "halo_runs": most_runs,
                "ring_rows": found.ring_rows,
                "emit_map": int(output.map is not None),
                "emit_keypoints": int(output.candidates is not None),
            },
            unique=unique(half),
            common={**addresses, "strips": strips.buffer_address(), "records": records},
        )

    sfpu = program.compute("nms/window_compute.cpp", cores, full_dst=True, compile_time=constants)
    cb_strips = ttnn.cb_descriptor_from_sharded_tensor(buffers["cb_strips"], strips)
    cb_strips.format_descriptors = [
        ttnn.CBFormatDescriptor(
            buffer_index=buffers["cb_strips"], data_format=ttnn.bfloat16, page_size=layout.POSITION_BYTES
        )
    ]
    return ttnn.ProgramDescriptor(
        kernels=[move(0), move(1), sfpu],
        semaphores=[],
        cbs=[
            cb_strips,
            *(
                program.circular_buffer(buffers[name], cores, ttnn.uint16, 64, pages=1)
                for name in ("cb_halo_0", "cb_halo_1")
            ),
            program.circular_buffer(buffers["cb_flags"], cores, ttnn.bfloat16, 2048, pages=found.flag_pages),
            *(
                program.circular_buffer(buffers[name], cores, ttnn.uint16, found.work_bytes, pages=1)
                for name in ("cb_work_0", "cb_work_1")
            ),
        ],
    )


NO_CORE = 0xFFFFFFFF


def _halo_arguments(runs: list[HaloRun], most: int, noc: list[program.Core]) -> dict[str, int]:
    """Four words a run, the first named `halo`."""
    words: list[int] = []
    for run in runs:
        core = NO_CORE if run.core is None else noc[run.core][0] << 16 | noc[run.core][1]
        words += [core, run.from_row, run.to_row, run.count]
    words += [0] * (4 * most - len(words))
    return {"halo" if i == 0 else f"halo_{i}": word for i, word in enumerate(words)}


@dataclass(frozen=True)
class Golden:
    """What a DeviceNms has to give for the same scores.

    Attributes:
        map: bf16 [H, W].
        counts: int64 [slots].
        candidates: for each slot its words, the first `capacity` in raster order.
        records: for each slot int64 [n, 4].
    """

    map: torch.Tensor
    counts: torch.Tensor
    candidates: list[list[int]]
    records: list[torch.Tensor]


def golden(found: NmsPlan, cells: torch.Tensor, params: layout.Params) -> Golden:
    """The operation in torch, from the definitions in ttsp_ros.superpoint.

    Args:
        found: the plan.
        cells: bf16 [h * w, 64 or 65], the scores as the operation gets them.
        params: threshold and limits.
    """
    rows, columns = found.height // layout.CELL, found.width // layout.CELL
    scores = keypoints.fold(cells.reshape(rows, columns, -1).permute(2, 0, 1))
    nms_map = keypoints.nms(scores.view(torch.int16), found.radius).view(torch.bfloat16)
    bits = nms_map.view(torch.int16).int()
    keep = bits > params.threshold_bits
    keep[: params.top] = keep[params.bottom :] = False
    keep[:, : params.left] = keep[:, params.right :] = False
    tables = SampleTables.of(found.height, found.width)
    counts, candidates, records = [], [], []
    for slot in range(found.slot_map.slots):
        first, end = found.slot_map.bounds(slot)
        y, x = torch.nonzero(keep[first:end], as_tuple=True)
        counts.append(len(y))
        y, x = y[: found.capacity] + first, x[: found.capacity]
        score = bits[y, x].long()
        candidates.append((score << 16 | (y - first) * found.width + x).tolist())
        taps = tables.cells(y, x)
        records.append(torch.stack([y << 16 | x, score << 16, taps[0] | taps[1] << 16, taps[2] | taps[3] << 16], 1))
    return Golden(nms_map, torch.tensor(counts), candidates, records)
