"""Circular buffers and semaphores of both shapes of the DiT program, and how deep the buffers are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from ttsp_ros.dit.megakernel.arena import BLOCK_COLUMNS, HEAD_TILES, OUT_SPLIT, ROW_TILES, TILE_BYTES, ArenaLayout

Shape = Literal["basic", "full"]
SHAPES: tuple[Shape, ...] = ("basic", "full")

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


def buffers_of(layout: ArenaLayout, budget: Budget) -> tuple[Buffer, ...]:
    """The numbered buffers of the program that the budget is for."""
    if isinstance(budget, FullBudget):
        return _indexed(_full_buffers(layout, budget))
    return _indexed(_basic_buffers(layout, budget))


def semaphores_of(layout: ArenaLayout, shape: Shape) -> tuple[Semaphore, ...]:
    """The numbered semaphores of a program."""
    return tuple(Semaphore(name, index, purpose) for index, (name, purpose) in enumerate(_semaphores(layout, shape)))


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
