"""The DiT as one ttnn program, as data: buffers, semaphores, constants, arguments and tensors of every core.

Two shapes of program share one plan:

* "basic", for bring-up: the products of the blocks. Every compute core holds the whole residual stream.
* "full": also the distributed LayerNorm (a core holds its tile row of the stream and normalises one tile), attention,
  the tail between two steps, and two hubs with a landing ring for what they gather.

and three variants: "block" (the first `n_blocks` blocks), "step" (blocks and output head; encoder, decoder and Euler
update are ordinary operations between launches), "steps4" (the whole denoising of a call, four steps or as many as the
configuration says).

All of it is plain Python: the limits are checked here, on a machine without ttnn. `program.materialise` makes the
`ttnn.ProgramDescriptor`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal

from ttsp_ros.dit.config import KeySet
from ttsp_ros.dit.megakernel import host_tensors
from ttsp_ros.dit.megakernel.arena import (
    BLOCK_COLUMNS,
    HEAD_DIM_PADDED,
    HEAD_TILES,
    OUT_SPLIT,
    READER_MODES,
    ROW_TILES,
    TILE,
    TILE_BYTES,
    TILE_ORDERS,
    TOKENS_PADDED,
    ArenaLayout,
)
from ttsp_ros.dit.megakernel.core_map import PER_CORE_WORDS, Core, CoreMap
from ttsp_ros.dit.megakernel.unified_kernel import KernelGroup, group_cores
from ttsp_ros.tenstorrent.program import CIRCULAR_BUFFERS, RUNTIME_ARGUMENT_WORDS, SEMAPHORES

Variant = Literal["block", "step", "steps4"]
Shape = Literal["basic", "full"]
Placement = Literal["dram", "dram_banks", "l1_compute", "l1_all"]
VARIANTS: tuple[Variant, ...] = ("block", "step", "steps4")
SHAPES: tuple[Shape, ...] = ("basic", "full")

KERNEL_GROUPS = 4  # readers, hubs, compute, spare: a binary each
#: L1 of a Blackhole core that buffers may use, as ttnn 0.81's allocator says: 1,536 KiB less 41,088 B of firmware and
#: mailboxes and the default kernel-config ring of 69 KiB. (Often rounded to 1,427 KiB, which is 128 B too much.)
L1_USABLE_BYTES = 1536 * 1024 - 41_088 - 69 * 1024
#: What the full program leaves free: a kernel-config ring that is 96 KiB larger for its long binaries, and room for the
#: L1 allocator to place the two tensor-backed buffers at one address on all cores.
L1_RESERVE_BYTES = 96 * 1024 + 24_000

#: [64, 64]: what one core makes of one product, and one head of query, key or value.
BLOCK_TILES = ROW_TILES * BLOCK_COLUMNS
HEAD_BLOCK_TILES = ROW_TILES * HEAD_TILES


class SpecError(ValueError):
    """The program does not fit the card, or its parts do not fit together."""


@dataclass(frozen=True)
class Buffer:
    """A circular buffer.

    Attributes:
        cores: name of a core set of `CoreMap.core_sets`.
        backing: io tensor whose L1 shard it is, instead of memory of its own.
        exact_fp32: the unpacker hands it to DST as fp32; else fp32 becomes TF32.
        purpose: what it holds, for the manifest.
    """

    name: str
    index: int
    cores: str
    pages: int
    page_bytes: int
    data_format: str
    purpose: str
    backing: str | None = None
    exact_fp32: bool = False

    @property
    def total_bytes(self) -> int:
        return self.pages * self.page_bytes


@dataclass(frozen=True)
class Semaphore:
    """A semaphore in every core of the rectangle, 0 at the start."""

    name: str
    index: int
    purpose: str


@dataclass(frozen=True)
class IoSlot:
    """A tensor of the program, whose address is a common runtime argument.

    Attributes:
        required: the kernel of this variant and version reads or writes it. Others may be missing: their address is 0.
        placement: "dram" interleaved; "dram_banks" one column of tiles a bank; "l1_compute", "l1_all" one shard a core.
        shard_rows: rows of a shard in L1.
    """

    name: str
    required: bool
    shape: tuple[int, ...]
    dtype: str
    layout: Literal["tile", "row_major"]
    purpose: str
    placement: Placement = "dram"
    shard_rows: int = 0


@dataclass(frozen=True)
class BasicBudget:
    """Depths of the basic program's buffers.

    Attributes:
        weight_blocks: K-blocks of the weight ring, by format: more than the six of a whole Wqkv piece, so that the next
            operation's weights arrive while this one runs.
        relay_blocks: K-blocks of a reader's landing buffer (relay mode).
        l1_bytes: what a compute core may use.
    """

    weight_blocks: Mapping[str, int] = field(default_factory=lambda: {"bfp8_b": 15, "bf16": 9})
    relay_blocks: int = 6
    l1_bytes: int = 1_000_000


@dataclass(frozen=True)
class FullBudget:
    """Depths of the full program's buffers.

    Attributes:
        weight_blocks: as for `BasicBudget`; bf16 blocks are larger, so fewer fit.
        relay_blocks: as for `BasicBudget`.
        slots: transactions in flight of products, partial sums, gain and shift, masks, keys and values.
        normed_tiles: normalised tiles on their way from compute to the hub.
        landing_pages: tiles of a hub's ring for what it gathers; two whole left operands, so that one lands while the
            other is sent.
        l1_bytes: what a compute core may use.
    """

    weight_blocks: Mapping[str, int] = field(default_factory=lambda: {"bfp8_b": 15, "bf16": 13})
    relay_blocks: int = 6
    slots: int = 2
    normed_tiles: int = 4
    landing_pages: int = 256
    l1_bytes: int = 1_340_000


Budget = BasicBudget | FullBudget


@dataclass(frozen=True)
class Stats:
    """Sizes of a program, as `check` compares them with the limits."""

    buffers: int
    named_args: int
    semaphores: int
    io_slots: int
    io_required: int
    per_core_words: int
    common_words: int
    kernel_groups: int
    l1_bytes: Mapping[str, int]


@dataclass(frozen=True)
class ProgramSpec:
    """Everything `program.materialise` needs but the tensors' addresses."""

    variant: Variant
    shape: Shape
    layout: ArenaLayout
    core_map: CoreMap
    budget: Budget
    buffers: tuple[Buffer, ...]
    semaphores: tuple[Semaphore, ...]
    io: tuple[IoSlot, ...]
    flags: Mapping[str, str]
    named_args: Mapping[str, int]
    step: int

    @cached_property
    def kernel_groups(self) -> tuple[KernelGroup, ...]:
        """The cores of the rectangle by their role flags: each group has its own binaries."""
        sets = self.core_map.core_sets
        return group_cores(self.core_map.all_cores(), {flag: sets[name] for flag, name in self.flags.items()})

    @property
    def per_core_args(self) -> dict[Core, tuple[int, ...]]:
        return self.core_map.per_core_args()

    def l1_bytes(self) -> dict[str, int]:
        """Bytes of circular buffers on a core of each role."""
        used = {}
        for role in ("compute", "readers", "hub", "hub2", "spare"):
            cores = self.core_map.core_sets[role]
            used[role] = sum(b.total_bytes for b in self.buffers if cores and cores <= self.core_map.core_sets[b.cores])
        return used

    def l1_limit(self, role: str) -> int:
        """Bytes that the buffers of a core of this role may take."""
        limit = L1_USABLE_BYTES - (L1_RESERVE_BYTES if self.shape == "full" else 0)
        return min(limit, self.budget.l1_bytes) if role == "compute" else limit

    def common_args(self, addresses: Mapping[str, int]) -> list[int]:
        """The common runtime arguments, for tensors at these addresses.

        Raises:
            SpecError: a required tensor has no address, or a name is unknown. Address 0 would be read silently: a
                missing image mask would let padding take part in the softmax.
        """
        unknown = sorted(set(addresses) - {slot.name for slot in self.io})
        if unknown:
            raise SpecError(f"tensors that the {self.variant} program does not have: {unknown}")
        missing = [slot.name for slot in self.io if slot.required and not addresses.get(slot.name)]
        if missing:
            raise SpecError(f"tensors that the {self.variant} program of {self.layout.config.version} lacks: {missing}")
        offsets = self.layout.offsets_table()
        return [addresses.get(slot.name, 0) for slot in self.io] + [self.step, len(offsets), *offsets]

    def stats(self) -> Stats:
        return Stats(
            buffers=len(self.buffers),
            named_args=len(self.named_args),
            semaphores=len(self.semaphores),
            io_slots=len(self.io),
            io_required=sum(slot.required for slot in self.io),
            per_core_words=len(PER_CORE_WORDS),
            common_words=len(self.io) + 2 + len(self.layout.offsets_table()),
            kernel_groups=len(self.kernel_groups),
            l1_bytes=self.l1_bytes(),
        )

    def check(self) -> None:
        """Raise SpecError, naming the buffer or argument and its size, unless the program fits the card."""
        _check_buffers(self)
        _check_memory(self)
        _check_arguments(self)

    def manifest(self) -> dict[str, Any]:
        """The whole program as JSON data, for a log or a comparison of two builds."""
        config = self.layout.config
        return {
            "variant": self.variant,
            "shape": self.shape,
            "version": config.version,
            "blocks": config.n_blocks,
            "keys": self.layout.keys.name,
            "dtype_stream": self.layout.dtype_stream,
            "grid": list(self.core_map.grid),
            "stats": asdict(self.stats()),
            "flags": dict(self.flags),
            "named_args": dict(self.named_args),
            "buffers": [asdict(buffer) | {"total_bytes": buffer.total_bytes} for buffer in self.buffers],
            "semaphores": [asdict(semaphore) for semaphore in self.semaphores],
            "io": [asdict(slot) for slot in self.io],
            "operations": {op.name: op.offset for op in self.layout.stream_ops + self.layout.tail_ops},
        }


def build_spec(
    layout: ArenaLayout,
    core_map: CoreMap,
    variant: Variant,
    *,
    shape: Shape = "full",
    budget: Budget | None = None,
    step: int = 0,
) -> ProgramSpec:
    """The program of a layout on a core map, checked.

    Args:
        budget: depths of the buffers; default: those of the shape.
        step: the Euler step that "block" and "step" run.

    Raises:
        SpecError: an argument is out of range, or the program does not fit.
    """
    for name, value, allowed in (("variant", variant, VARIANTS), ("shape", shape, SHAPES)):
        if value not in allowed:
            raise SpecError(f"{name}: got {value!r}, allowed are {', '.join(allowed)}")
    if not 0 <= step < layout.config.n_steps:
        raise SpecError(f"step: got {step}, allowed are 0 to {layout.config.n_steps - 1}")
    if (core_map.n_compute, core_map.n_banks) != (layout.n_compute, layout.n_banks):
        raise SpecError(
            f"the core map has {core_map.n_compute} compute cores and {core_map.n_banks} banks, the layout "
            f"{layout.n_compute} and {layout.n_banks}"
        )
    depths = budget or (FullBudget() if shape == "full" else BasicBudget())
    if isinstance(depths, FullBudget) != (shape == "full"):
        raise SpecError(f"budget: got {type(depths).__name__} for the {shape} program")
    requests = _full_buffers(layout, depths) if isinstance(depths, FullBudget) else _basic_buffers(layout, depths)
    buffers = _indexed(requests)
    semaphores = tuple(Semaphore(name, i, why) for i, (name, why) in enumerate(_semaphores(layout, shape)))
    io = tuple(_io(layout, core_map, variant, shape))
    spec = ProgramSpec(
        variant=variant,
        shape=shape,
        layout=layout,
        core_map=core_map,
        budget=depths,
        buffers=buffers,
        semaphores=semaphores,
        io=io,
        flags={"is_reader": "readers", "is_hub": "hubs" if shape == "full" else "hub", "is_compute": "compute"},
        named_args=_named_args(layout, core_map, variant, shape, buffers, semaphores, io),
        step=step,
    )
    spec.check()
    return spec


# ---- buffers


@dataclass(frozen=True)
class _Request:
    """A buffer without an index: name, cores, pages, format, purpose."""

    name: str
    cores: str
    pages: int
    data_format: str
    purpose: str
    backing: str | None = None
    exact_fp32: bool = False


def _indexed(requests: Iterable[_Request]) -> tuple[Buffer, ...]:
    """Numbers the buffers: those of all cores first, then those of each core set, which may share numbers."""
    ordered = sorted(requests, key=lambda request: request.cores != "all")
    shared = sum(request.cores == "all" for request in ordered)
    following: dict[str, int] = {}
    buffers = []
    for request in ordered:
        index = following.get(request.cores, 0 if request.cores == "all" else shared)
        following[request.cores] = index + 1
        buffers.append(
            Buffer(
                request.name,
                index,
                request.cores,
                request.pages,
                TILE_BYTES[request.data_format],
                request.data_format,
                request.purpose,
                request.backing,
                request.exact_fp32,
            )
        )
    return tuple(buffers)


def activation_tiles(layout: ArenaLayout) -> int:
    """Tiles of the left operand that a hub multicasts: the widest of stream, heads, an ff1 quarter, decoder parts."""
    decode2 = next(op for op in layout.tail_ops if op.kind == "decode2")
    return max(
        ROW_TILES * max(layout.width_tiles, layout.attention_tiles, layout.out_tiles, layout.hidden_tiles),
        ROW_TILES * layout.ff_tiles // OUT_SPLIT,
        ROW_TILES * decode2.k_split * layout.action_tiles,
    )


def _weight_pages(layout: ArenaLayout, weight_blocks: Mapping[str, int]) -> int:
    blocks = weight_blocks.get(layout.dtype_stream, 0)
    if blocks < 1:
        raise SpecError(f"weight_blocks: no depth for {layout.dtype_stream}, got {dict(weight_blocks)}")
    return blocks * layout.stream_ops[0].block_tiles


def _streams(layout: ArenaLayout, budget: Budget) -> Iterator[_Request]:
    """The buffers that both programs have: left operand, weights, and a reader's landing buffer in relay mode."""
    yield _Request("activations", "all", activation_tiles(layout), "bf16", "left operand, multicast", "activations")
    pages = _weight_pages(layout, budget.weight_blocks)
    yield _Request("weights", "compute", pages, layout.dtype_stream, "ring of streamed K-blocks")
    if layout.reader_mode == "relay":
        pages = budget.relay_blocks * layout.stream_ops[0].block_tiles
        yield _Request("relay", "readers", pages, layout.dtype_stream, "K-blocks read, not yet sent on")


def _basic_buffers(layout: ArenaLayout, budget: BasicBudget) -> Iterator[_Request]:
    stream = ROW_TILES * layout.width_tiles
    yield from _streams(layout, budget)
    yield _Request("residual", "compute", stream, "bf16", "the whole residual stream", "residual")
    yield _Request("product_a", "compute", BLOCK_TILES, "bf16", "result of a product")
    yield _Request("product_b", "compute", BLOCK_TILES, "bf16", "result of the next product")
    yield _Request("attended", "compute", HEAD_BLOCK_TILES, "bf16", "attention output of a head")
    yield _Request("bias_a", "compute", BLOCK_COLUMNS, "bf16", "bias of a product")
    yield _Request("bias_b", "compute", BLOCK_COLUMNS, "bf16", "bias of the next product")
    yield _Request("gain_shift", "compute", 8, "bf16", "AdaLN rows as read and as tiles")
    yield _Request("mask", "compute", 3 * HEAD_BLOCK_TILES, "bf16", "self mask and two chunks of a cross mask")
    yield _Request("key", "compute", HEAD_BLOCK_TILES, "bf16", "own head's key")
    yield _Request("value", "compute", HEAD_BLOCK_TILES, "bf16", "own head's value")
    yield _Request("key_value", "compute", 2 * 2 * HEAD_BLOCK_TILES, "bf16", "two chunks of cross keys and values")
    yield _Request("scores", "compute", 2 * HEAD_BLOCK_TILES, "fp32", "scores and probabilities of two chunks")
    action = ROW_TILES * layout.action_tiles
    yield _Request("actions", "hub", action, "fp32", "action state between steps")
    yield _Request("tokens", "hub", stream, "bf16", "state, future and action tokens of the next step")


def _full_buffers(layout: ArenaLayout, budget: FullBudget) -> Iterator[_Request]:
    yield from _streams(layout, budget)
    yield from _product_buffers(layout, budget)
    yield from _norm_buffers(budget)
    yield from _attention_buffers(budget)
    yield from _hub_buffers(layout, budget)


def _product_buffers(layout: ArenaLayout, budget: FullBudget) -> Iterator[_Request]:
    row = layout.width_tiles
    yield _Request("residual", "compute", row, "bf16", "own tile row of the residual stream", "residual")
    yield _Request("product", "compute", budget.slots * BLOCK_TILES, "bf16", "results on their way to the hub")
    yield _Request("partial", "compute", budget.slots * BLOCK_TILES, "fp32", "partial sums of a product")
    yield _Request("bias", "compute", 2 * BLOCK_COLUMNS, "bf16", "bias tiles, repeated down the rows")
    yield _Request("bias_raw", "compute", 2 * BLOCK_COLUMNS, "bf16", "bias rows as read")
    tail = max(op.piece_bytes // op.tile_bytes for op in layout.tail_ops)
    yield _Request("tail_weights", "compute", tail, "bf16", "one piece of a tail operation")
    yield _Request(
        "tail_constants", "compute", 3 * ROW_TILES, "bf16", "row bias, action-row mask, state and future rows"
    )


def _norm_buffers(budget: FullBudget) -> Iterator[_Request]:
    yield _Request("gain_shift", "compute", budget.slots * 2, "bf16", "AdaLN tiles of the own column")
    yield _Request("normed", "compute", budget.normed_tiles, "bf16", "own normalised tiles on their way to the hub")
    yield _Request("norm_stage", "compute", 2, "fp32", "row sums before they are combined")
    yield _Request("norm_mean", "compute", 1, "fp32", "negative row means", exact_fp32=True)
    yield _Request("norm_constants", "compute", 3, "bf16", "tiles of ones, identity, zero")


def _attention_buffers(budget: FullBudget) -> Iterator[_Request]:
    head, slots = HEAD_BLOCK_TILES, budget.slots
    yield _Request("query", "compute", head, "bf16", "own head's query")
    yield _Request("attended", "compute", head, "bf16", "own head's output")
    yield _Request("mask", "compute", slots * head, "bf16", "chunks of the additive mask")
    yield _Request("key", "compute", slots * head, "bf16", "chunks of keys")
    yield _Request("value", "compute", slots * head, "bf16", "chunks of values")
    yield _Request("key_transposed", "compute", head, "bf16", "a chunk of keys, transposed")
    yield _Request("scores", "compute", head, "fp32", "scores, then probabilities of a chunk")
    yield _Request("running_output", "compute", head, "fp32", "output not yet divided by the row sums")
    for name in ("row_max_old", "row_max_new", "row_sum_old", "row_sum_new", "rescale"):
        yield _Request(name, "compute", ROW_TILES, "fp32", "running softmax")
    parts = 2 * (2 * ROW_TILES + head)
    yield _Request("attention_parts", "compute", parts, "fp32", "maxima, sums, outputs of the head's two other cores")
    yield _Request("zero", "compute", 1, "bf16", "a tile of zeros")
    yield _Request("ones", "compute", 1, "bf16", "a tile of ones, scaler of row sums")


def _hub_buffers(layout: ArenaLayout, budget: FullBudget) -> Iterator[_Request]:
    columns, steps = layout.action_tiles, layout.config.n_steps
    action = ROW_TILES * columns
    yield _Request("actions", "hubs", action, "fp32", "action state between steps", exact_fp32=True)
    yield _Request("velocity", "hubs", steps * action, "bf16", "decoder output of each step")
    yield _Request("actions_bf16", "hubs", action, "bf16", "action state as the encoder takes it")
    yield _Request("euler_constants", "hubs", 3 * columns + 1, "bf16", "step width and decoder bias tiles, zero")
    yield _Request("euler_scratch", "hubs", 1, "fp32", "ordering of pack and unpack")
    yield _Request("parts_arrived", "hubs", 2, "bf16", "token: the decoder's partial sums lie in `activations`")
    yield _Request("parts_added", "hubs", 2, "bf16", "token: they may be overwritten")
    yield _Request("actions_rounded", "hubs", action, "bf16", "rounding of the bf16 Euler update")
    yield _Request("landing", "hubs", budget.landing_pages, "bf16", "gathered tiles, source of the multicasts")


def _semaphores(layout: ArenaLayout, shape: Shape) -> Iterator[tuple[str, str]]:
    if layout.reader_mode == "relay":
        yield "weights_landed", "a K-block has been written into the ring `weights`"
        yield "weights_credit", "a slot of that ring is free again"
    yield "head_arrived", "key and value of the own head have arrived"
    yield "multicast_sent", "valid bit that hub multicasts send along"
    yield "multicast_received", "rounds that a core has received from hub"
    yield "gathered_noc0", "pieces that arrived at a hub over NoC 0"
    yield "gathered_noc1", "pieces that arrived at a hub over NoC 1"
    yield "ring_credit", "chunks of the ff2 operand that may be overwritten"
    yield "riscs_in_step", "the RISCs of a core meet between two phases"
    if shape == "full":
        yield "hub_flushed", "rounds whose NoC 1 half a hub has sent"
        yield "ring_credit_odd", "as ring_credit, for the odd chunks: two are in flight"
        yield "multicast_received2", "rounds that a core has received from hub2"
        yield "landing_base2", "hub2 publishes where its landing ring begins"


# ---- tensors


def _io(layout: ArenaLayout, core_map: CoreMap, variant: Variant, shape: Shape) -> Iterator[IoSlot]:
    """Every tensor, in the order of the addresses."""
    config = layout.config
    width, n, steps = config.width, config.n_blocks, config.n_steps
    whole = variant == "steps4"
    rows = TILE if shape == "full" else TOKENS_PADDED
    columns = activation_tiles(layout) // ROW_TILES * TILE
    cores = len(core_map.all_cores())
    actions = (TOKENS_PADDED, config.action_dim_padded)

    def tile(name: str, required: bool, size: tuple[int, ...], purpose: str, dtype: str = "bf16") -> IoSlot:
        return IoSlot(name, required, size, dtype, "tile", purpose)

    def row_major(name: str, required: bool, size: tuple[int, ...], purpose: str) -> IoSlot:
        return IoSlot(name, required, size, "bf16", "row_major", purpose)

    yield IoSlot(
        "residual", True, (rows * layout.n_compute, width), "bf16", "tile", "residual stream", "l1_compute", rows
    )
    yield IoSlot(
        "activations",
        True,
        (TOKENS_PADDED * cores, columns),
        "bf16",
        "tile",
        "left operand: same address everywhere, multicast target",
        "l1_all",
        TOKENS_PADDED,
    )
    yield IoSlot(
        "arena_stream", True, layout.tensor_shape("stream"), layout.dtype_stream, "tile", "block weights", "dram_banks"
    )
    yield IoSlot(
        "arena_tail", variant != "block", layout.tensor_shape("tail"), layout.dtype_tail, "tile", "tail", "dram_banks"
    )
    yield row_major("modulation", True, (steps * (2 * n + 2), width), "AdaLN gain and shift")
    yield row_major("biases", True, (4 * n + 4, host_tensors.bias_columns(layout)), "biases of all products")
    yield row_major("step_bias", whole, (steps, width), "the time's share of the action encoder")
    yield tile("row_bias", whole, (TOKENS_PADDED, width), "position embedding on the action rows")
    future = config.n_future_tokens
    yield row_major("future_tokens", whole and future > 0, (future, width), "learned tokens")
    yield tile("self_mask", True, (1, 1, TOKENS_PADDED, TOKENS_PADDED), "hides rows beyond the last token")
    masks, padded = layout.keys.masks(config.key_sets), layout.keys.padded()
    key_sets: tuple[KeySet, ...] = ("text", "image", "all")
    for key_set in key_sets:
        size = (1, 1, TOKENS_PADDED, padded.get(key_set, 0))
        yield tile(f"{key_set}_mask", masks[key_set], size, f"hides padding of the {key_set} keys")
    for block in config.cross_blocks:
        size = (1, config.n_heads, layout.keys_padded(block), HEAD_DIM_PADDED)
        yield tile(f"key_{block}", True, size, f"cross keys of block {block}")
        yield tile(f"value_{block}", True, size, f"cross values of block {block}")
    if variant == "step":
        yield tile("head_out", True, (TOKENS_PADDED, layout.out_tiles * TILE), "output head's result")
    if whole:
        yield tile("noise", True, actions, "initial action state", "fp32")
        yield row_major("state", True, (1, width), "encoded state, first token")
        yield tile("chunk", True, actions, "resulting actions", "fp32")
        if shape == "full":
            yield tile("velocity_taps", False, (steps * TOKENS_PADDED, actions[1]), "decoder output of each step")


# ---- constants


def _named_args(
    layout: ArenaLayout,
    core_map: CoreMap,
    variant: Variant,
    shape: Shape,
    buffers: tuple[Buffer, ...],
    semaphores: tuple[Semaphore, ...],
    io: tuple[IoSlot, ...],
) -> dict[str, int]:
    """Constants that all cores share, by the name under which a kernel asks for them."""
    groups = (
        _structure(layout, variant),
        _geometry(core_map),
        {f"cb_{buffer.name}": buffer.index for buffer in buffers},
        {f"bytes_{buffer.name}": buffer.total_bytes for buffer in buffers},
        {f"sem_{semaphore.name}": semaphore.index for semaphore in semaphores},
        _argument_positions(io),
        _full_constants(layout) if shape == "full" else {},
    )
    args: dict[str, int] = {}
    for group in groups:
        twice = sorted(set(group) & set(args))
        if twice:
            raise SpecError(f"named arguments given twice: {twice}")
        args |= group
    return args


def _structure(layout: ArenaLayout, variant: Variant) -> dict[str, int]:
    config, padded = layout.config, layout.keys.padded()
    masks = layout.keys.masks(config.key_sets)
    return {
        "variant": VARIANTS.index(variant),
        "n_steps": config.n_steps if variant == "steps4" else 1,
        "n_blocks": config.n_blocks,
        "n_tokens": config.n_tokens,
        "tokens_padded": TOKENS_PADDED,
        "horizon": config.horizon,
        "first_action_row": config.action_rows[0],
        "n_future_tokens": config.n_future_tokens,
        "action_columns": config.action_dim_padded,
        "text_every": config.text_every,
        "text_keys": padded.get("text", 0),
        "image_keys": padded.get("image", 0),
        "all_keys": padded.get("all", 0),
        "text_mask_present": int(masks["text"]),
        "image_mask_present": int(masks["image"]),
        "all_mask_present": int(masks["all"]),
        "width": config.width,
        "n_heads": config.n_heads,
        "head_dim_padded": HEAD_DIM_PADDED,
        "ff_dim": config.ff_dim,
        "out_columns": layout.out_tiles * TILE,
        "hidden_columns": layout.hidden_tiles * TILE,
        "euler_fp32": int(config.euler_dtype == "fp32_actions_bf16_velocity"),
        "scale_folded": int(layout.fold_attn_scale),
        "reader_mode": READER_MODES.index(layout.reader_mode),
        "tile_order": TILE_ORDERS.index(layout.tile_order),
        "stream_tile_bytes": TILE_BYTES[layout.dtype_stream],
        "tail_tile_bytes": TILE_BYTES[layout.dtype_tail],
        "block_rows": layout.block_rows,
        "block_columns": BLOCK_COLUMNS,
        "out_split": OUT_SPLIT,
    }


def _geometry(core_map: CoreMap) -> dict[str, int]:
    return {
        "grid_x": core_map.grid[0],
        "grid_y": core_map.grid[1],
        "n_compute": core_map.n_compute,
        "n_banks": core_map.n_banks,
        "n_spare": len(core_map.spare),
    }


def _argument_positions(io: tuple[IoSlot, ...]) -> dict[str, int]:
    """Where each common runtime argument lies; of the cross keys only the first: key, value, key, value follow."""
    named = [slot.name for slot in io if not slot.name.startswith(("key_", "value_"))]
    positions = {slot.name: position for position, slot in enumerate(io)}
    first_key = next(position for position, slot in enumerate(io) if slot.name.startswith("key_"))
    return {
        **{f"io_{name}": positions[name] for name in named},
        "io_cross_keys": first_key,
        "arg_step": len(io),
        "arg_offset_count": len(io) + 1,
        "arg_offsets": len(io) + 2,
    }


def _full_constants(layout: ArenaLayout) -> dict[str, int]:
    decode2 = next(op for op in layout.tail_ops if op.kind == "decode2")
    return {"decode_split": decode2.k_split}


# ---- checks


def _check_buffers(spec: ProgramSpec) -> None:
    sets = spec.core_map.core_sets
    for buffer in spec.buffers:
        if buffer.pages < 1:
            raise SpecError(f"buffer {buffer.name}: got {buffer.pages} pages, needs at least one")
        if buffer.index >= CIRCULAR_BUFFERS:
            raise SpecError(f"buffer {buffer.name}: index {buffer.index}, Blackhole has {CIRCULAR_BUFFERS}")
        if buffer.page_bytes % 16:
            raise SpecError(f"buffer {buffer.name}: pages of {buffer.page_bytes} B are not aligned to 16 B")
    for i, first in enumerate(spec.buffers):
        for second in spec.buffers[i + 1 :]:
            if first.index == second.index and sets[first.cores] & sets[second.cores]:
                raise SpecError(f"buffers {first.name} and {second.name} share index {first.index} and cores")
    _check_transactions(spec)


def _check_transactions(spec: ProgramSpec) -> None:
    """Rings hold whole transactions: what wraps around in the middle of one cannot be read in one piece."""
    block = spec.layout.stream_ops[0].block_tiles
    units = {"weights": block, "relay": block, "product": BLOCK_TILES, "partial": BLOCK_TILES}
    if spec.shape == "full":
        units["landing"] = activation_tiles(spec.layout)
    for buffer in spec.buffers:
        unit = units.get(buffer.name, 1)
        if buffer.pages % unit:
            raise SpecError(
                f"buffer {buffer.name}: {buffer.pages} pages are no multiple of its {unit}-page transaction"
            )


def _check_memory(spec: ProgramSpec) -> None:
    sets = spec.core_map.core_sets
    for role, used in spec.l1_bytes().items():
        limit = spec.l1_limit(role)
        if used > limit:
            held = [b for b in spec.buffers if sets[role] <= sets[b.cores]]
            largest = sorted(held, key=lambda buffer: -buffer.total_bytes)[:3]
            named = ", ".join(f"{b.name} {b.total_bytes:,} B ({b.pages} x {b.page_bytes})" for b in largest)
            raise SpecError(
                f"a {role} core takes {used:,} B of L1, {limit:,} B are allowed, {used - limit:,} B too much; "
                f"the largest are {named}. Lower a depth of {type(spec.budget).__name__} or stream bfp8_b"
            )


def _check_arguments(spec: ProgramSpec) -> None:
    stats = spec.stats()
    for name, value in spec.named_args.items():
        if not 0 <= value < 2**32:
            raise SpecError(f"named argument {name} = {value} does not fit 32 bits")
    for op in spec.layout.stream_ops + spec.layout.tail_ops:
        if op.offset >= 2**32:
            raise SpecError(f"offset of {op.name}: {op.offset} does not fit 32 bits")
    for what, got, allowed in (
        # What ttnn 0.81 enforces. Until tt-metal #48686 it was 341, which some of its headers still say.
        ("runtime argument words", stats.per_core_words + stats.common_words, RUNTIME_ARGUMENT_WORDS),
        ("semaphores", stats.semaphores, SEMAPHORES),
        ("kernel groups", stats.kernel_groups, KERNEL_GROUPS),
    ):
        if got > allowed:
            raise SpecError(f"{got} {what}, {allowed} are possible")
