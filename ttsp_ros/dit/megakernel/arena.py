"""Where every weight tile of the DiT lies in the card's DRAM, so that each core streams exactly its own.

A weight matrix [K, N] (`y = x @ W`) is cut into column blocks of two tiles and, for the output projections, into four
K-quarters; one core owns one such piece and streams it as K-blocks of 8 x 2 tiles. Core c reads from DRAM bank c % 8,
and an operation starts at the same byte in every bank: one word an operation finds any piece.

    operation   K x N in tiles   cores         then
    qkv         48 x 192         96            core c = one padded head: Q_h, K_h, V_h at h, 32 + h, 64 + h
    q           48 x 64          32            Q_h at core h; keys and values of cross blocks are computed once a call
    out         64 x 48          24 x 4        K-quarter q of column pair p at core 24 q + p: partial sums, 2 x 2 tiles
    ff1         48 x 192         96            core c owns columns 64 c.. of the inner activation
    ff2         192 x 48         24 x 4        K-quarter q is exactly what the cores 24 q .. 24 q + 23 made in ff1

The four cores of a column pair then add their partial sums, core (q, p) finishing the tile (row q // 2, column
2 p + q % 2) of the residual stream: 2 x 48 = 96 tiles, one a core. (Numbers are those of the published width 1536; the
module derives them for any width that divides.)

The tail (output head, action decoder and encoder) runs once a step from an arena of its own, always bf16: column tile n
at core n with all of K, but the decoder's last layer, which has only 1 to 5 column tiles, cut along K as well.

torch only; ttnn sees the result as one width-sharded tensor [tiles of a bank x 32, banks x 32], whose column of tiles b
is bank b.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from ttsp_ros.dit.config import GrootConfig, KeySet
from ttsp_ros.dit.megakernel import block_float

TILE = 32
ROW_TILES = 2  # of the token stream: up to 64 tokens
TOKENS_PADDED = ROW_TILES * TILE
HEAD_DIM_PADDED = 64
HEAD_TILES = HEAD_DIM_PADDED // TILE
BLOCK_COLUMNS = 2  # column tiles of a K-block: one padded head
OUT_SPLIT = ROW_TILES * BLOCK_COLUMNS  # cores that share a column pair, each finishing one of its four tiles
DECODER_SPLIT = 8  # the hub adds the decoder's partial sums: 8 x 2 row tiles x 5 column tiles fit its buffer of 128

StreamDtype = Literal["bf16", "bfp8_b"]
ReaderMode = Literal["direct", "relay"]
TileOrder = Literal["kn", "nk"]
Table = Literal["stream", "tail"]
STREAM_DTYPES: tuple[StreamDtype, ...] = ("bf16", "bfp8_b")
READER_MODES: tuple[ReaderMode, ...] = ("direct", "relay")
TILE_ORDERS: tuple[TileOrder, ...] = ("kn", "nk")
TILE_BYTES: Mapping[str, int] = {"bf16": 2048, "fp32": 4096, "bfp8_b": block_float.TILE_BYTES}

WeightOf = Callable[[str], torch.Tensor]
#: Name, K tiles, N tiles, rows and columns of a K-block, cores that share a column block.
Shape = tuple[str, int, int, int, int, int]


@dataclass(frozen=True)
class KeyLengths:
    """How many keys the cross attention of one deployment sees, each padded to whole tiles.

    Attributes:
        name: of the deployment; it appears in the manifest.
        text, all: padded length of the per-call key sets, None where the version has no such set.
        image: (real, padded) length of the image keys: the camera set-up fixes it, so its mask is constant.
    """

    name: str
    text: int | None = None
    image: tuple[int, int] | None = None
    all: int | None = None

    def __post_init__(self) -> None:
        for key_set, padded in self.padded().items():
            if padded < TILE or padded % TILE:
                raise ValueError(f"{self.name}: {key_set} keys: got {padded}, must be a positive multiple of {TILE}")
        if self.image is not None and not 0 < self.image[0] <= self.image[1]:
            raise ValueError(
                f"{self.name}: image keys: got {self.image}, must be (real, padded) with 0 < real <= padded"
            )

    def padded(self) -> dict[KeySet, int]:
        """Padded length of every key set that is there."""
        lengths: dict[KeySet, int] = {}
        if self.text is not None:
            lengths["text"] = self.text
        if self.image is not None:
            lengths["image"] = self.image[1]
        if self.all is not None:
            lengths["all"] = self.all
        return lengths

    def masks(self, key_sets: tuple[KeySet, ...]) -> dict[KeySet, bool]:
        """Which additive masks the kernel must read when its blocks use `key_sets`.

        Text and all change with every call. The image mask only hides padding: without padding there is none.
        """
        missing = [key_set for key_set in key_sets if key_set not in self.padded()]
        if missing:
            raise ValueError(f"key lengths {self.name!r} lack the key sets {missing}, which the blocks attend to")
        return {
            "text": "text" in key_sets,
            "image": "image" in key_sets and self.image is not None and self.image[0] != self.image[1],
            "all": "all" in key_sets,
        }


#: The deployments whose lengths are known: one 448-pixel view (N1.5), GR1 (N1.6: 81 image tokens) and DROID (N1.7).
KEY_LENGTHS: Mapping[str, KeyLengths] = {
    "n1.5": KeyLengths("n15", all=384),
    "n1.6": KeyLengths("gr1", text=64, image=(81, 96)),
    "n1.7": KeyLengths("droid", text=64, image=(448, 448)),
}


@dataclass(frozen=True)
class Piece:
    """What one core owns of an operation's weight, in tiles: rows k0 <= k < k1, columns n0 <= n < n1."""

    core: int
    k0: int
    k1: int
    n0: int
    n1: int


@dataclass(frozen=True)
class Operation:
    """One streamed matrix product: its padded weight, its cut into pieces and its place in every bank.

    Attributes:
        name: `block3.qkv` or `tail.decode1`.
        k_tiles, n_tiles: size of the padded weight in tiles.
        block_rows, block_columns: size of a K-block in tiles.
        k_split: cores that share a column block, each with its part of K.
        slots: pieces in a bank, empty ones of uneven cuts included.
        offset: first byte in every bank.
        tile_bytes: of the format in which the arena holds it.
    """

    name: str
    table: Table
    k_tiles: int
    n_tiles: int
    block_rows: int
    block_columns: int
    k_split: int
    slots: int
    offset: int
    tile_bytes: int

    @property
    def kind(self) -> str:
        """`qkv`, `q`, `out`, `ff1`, `ff2`, or a name of the tail."""
        return self.name.split(".")[1]

    @property
    def column_blocks(self) -> int:
        return self.n_tiles // self.block_columns

    @property
    def n_cores(self) -> int:
        """Cores that own a piece: the compute cores 0 .. n_cores - 1."""
        return self.column_blocks * self.k_split

    @property
    def k_blocks(self) -> int:
        """K-blocks of one piece."""
        return self.k_tiles // self.k_split // self.block_rows

    @property
    def block_tiles(self) -> int:
        return self.block_rows * self.block_columns

    @property
    def block_bytes(self) -> int:
        return self.block_tiles * self.tile_bytes

    @property
    def piece_bytes(self) -> int:
        return self.k_blocks * self.block_bytes

    @property
    def bank_bytes(self) -> int:
        """Bytes that the operation takes in each bank."""
        return self.slots * self.piece_bytes

    @property
    def tiles(self) -> int:
        """Weight tiles, each of which is streamed once a step."""
        return self.k_tiles * self.n_tiles

    def piece(self, core: int) -> Piece:
        """The piece of compute core `core`."""
        if not 0 <= core < self.n_cores:
            raise ValueError(f"{self.name}: core {core} owns no piece; the cores 0 to {self.n_cores - 1} do")
        part, column_block = divmod(core, self.column_blocks)
        rows = self.k_tiles // self.k_split
        first = column_block * self.block_columns
        return Piece(core, part * rows, (part + 1) * rows, first, first + self.block_columns)

    def pieces(self) -> Iterator[Piece]:
        return (self.piece(core) for core in range(self.n_cores))


@dataclass(frozen=True)
class ArenaLayout:
    """The plan of both arenas of one action head.

    Attributes:
        config: dimensions; `n_blocks` may be lowered to plan the first blocks alone.
        keys: lengths of the cross keys.
        dtype_stream: format of the block weights. The tail stays bf16.
        reader_mode: "direct": every compute core reads its pieces, each of which lies in one run. "relay": the reader
            core of a bank reads K-blocks in the order in which they are needed and sends them on; the first K-blocks
            of all pieces lie together, then the second, so that the reader reads one ascending run.
        tile_order: order of the tiles in a K-block, "kn" row by row, "nk" column by column.
        fold_attn_scale: 1 / sqrt(head_dim) is multiplied into the query weights and biases.
        block_rows: rows of a K-block in tiles.
        n_banks: DRAM banks.
    """

    config: GrootConfig
    keys: KeyLengths
    dtype_stream: StreamDtype = "bfp8_b"
    reader_mode: ReaderMode = "direct"
    tile_order: TileOrder = "kn"
    fold_attn_scale: bool = True
    block_rows: int = 8
    n_banks: int = 8
    dtype_tail: Literal["bf16"] = field(default="bf16", init=False)

    def __post_init__(self) -> None:
        _one_of("dtype_stream", self.dtype_stream, STREAM_DTYPES)
        _one_of("reader_mode", self.reader_mode, READER_MODES)
        _one_of("tile_order", self.tile_order, TILE_ORDERS)
        if self.n_banks < 1 or self.block_rows < 1:
            raise ValueError(f"n_banks and block_rows must be positive, got {self.n_banks} and {self.block_rows}")
        config = self.config
        if config.n_tokens > TOKENS_PADDED:
            raise ValueError(
                f"{config.n_tokens} tokens (1 + future + horizon): at most {TOKENS_PADDED} are planned for"
            )
        if config.head_dim > HEAD_DIM_PADDED:
            raise ValueError(f"head_dim: got {config.head_dim}, at most {HEAD_DIM_PADDED} is planned for")
        _whole("width", config.width, BLOCK_COLUMNS * TILE)
        _whole("ff_dim", config.ff_dim, BLOCK_COLUMNS * TILE)
        for name, tiles, parts in (
            ("width", self.width_tiles, 1),
            ("n_heads x 64", self.attention_tiles, OUT_SPLIT),
            ("ff_dim", self.ff_tiles, OUT_SPLIT),
        ):
            if tiles % (parts * self.block_rows):
                raise ValueError(
                    f"{name} is {tiles} tiles of K in {parts} part(s), which K-blocks of {self.block_rows} rows do not "
                    f"divide; choose another block_rows"
                )
        most = max(3 * config.n_heads, self.ff_tiles // BLOCK_COLUMNS)
        if most > self.n_compute:
            raise ValueError(
                f"{most} pieces (3 x {config.n_heads} heads, ff_dim {config.ff_dim}) for {self.n_compute} cores "
                f"(2 row tiles x {self.width_tiles} column tiles of the width)"
            )
        self.keys.masks(config.key_sets)
        self.offsets_table()  # places every operation, which fails where the cores do not suffice

    # ---- sizes

    @property
    def width_tiles(self) -> int:
        return self.config.width // TILE

    @property
    def attention_tiles(self) -> int:
        """Column tiles of all padded heads side by side."""
        return self.config.n_heads * HEAD_TILES

    @property
    def ff_tiles(self) -> int:
        return self.config.ff_dim // TILE

    @property
    def action_tiles(self) -> int:
        return self.config.action_dim_padded // TILE

    @property
    def out_tiles(self) -> int:
        return math.ceil(self.config.out_dim / TILE)

    @property
    def hidden_tiles(self) -> int:
        return math.ceil(self.config.hidden / TILE)

    @property
    def n_compute(self) -> int:
        """Compute cores: one a tile of the residual stream."""
        return ROW_TILES * self.width_tiles

    @property
    def attention_scale(self) -> float:
        return self.config.head_dim**-0.5

    def keys_padded(self, block: int) -> int:
        """Padded keys of a cross block."""
        return self.keys.padded()[self.config.keys_of(block)]

    # ---- operations

    @cached_property
    def stream_ops(self) -> tuple[Operation, ...]:
        """The operations of all blocks in the order in which they run."""
        return self._placed("stream", self.dtype_stream, self._stream_shapes())

    @cached_property
    def tail_ops(self) -> tuple[Operation, ...]:
        """Output head, action decoder, action encoder: the six operations between two passes over the blocks."""
        return self._placed("tail", self.dtype_tail, self._tail_shapes())

    def operations(self, table: Table) -> tuple[Operation, ...]:
        return self.stream_ops if table == "stream" else self.tail_ops

    def _stream_shapes(self) -> Iterator[Shape]:
        width, attention, ff = self.width_tiles, self.attention_tiles, self.ff_tiles
        block = (self.block_rows, BLOCK_COLUMNS)
        for i in range(self.config.n_blocks):
            if self.config.is_cross(i):
                yield (f"block{i}.q", width, attention, *block, 1)
            else:
                yield (f"block{i}.qkv", width, 3 * attention, *block, 1)
            yield (f"block{i}.out", attention, width, *block, OUT_SPLIT)
            yield (f"block{i}.ff1", width, ff, *block, 1)
            yield (f"block{i}.ff2", ff, width, *block, OUT_SPLIT)

    def _tail_shapes(self) -> Iterator[Shape]:
        width, out, hidden, action = self.width_tiles, self.out_tiles, self.hidden_tiles, self.action_tiles
        fits = [n for n in range(1, DECODER_SPLIT + 1) if hidden % n == 0 and n * action <= self.n_compute]
        split = max(fits, default=1)
        yield ("tail.project", width, out, width, 1, 1)
        yield ("tail.decode1", out, hidden, out, 1, 1)
        yield ("tail.decode2", hidden, action, hidden // split, 1, split)
        yield ("tail.encode1", action, width, action, 1, 1)
        yield ("tail.encode2", width, width, width, 1, 1)
        yield ("tail.encode3", width, width, width, 1, 1)

    def _placed(self, table: Table, dtype: str, shapes: Iterable[Shape]) -> tuple[Operation, ...]:
        placed: list[Operation] = []
        offset = 0
        for name, k_tiles, n_tiles, rows, columns, split in shapes:
            slots = math.ceil(n_tiles // columns * split / self.n_banks)
            op = Operation(name, table, k_tiles, n_tiles, rows, columns, split, slots, offset, TILE_BYTES[dtype])
            if op.n_cores > self.n_compute:
                raise ValueError(f"{name}: {op.n_cores} pieces for {self.n_compute} compute cores")
            placed.append(op)
            offset += op.bank_bytes
        return tuple(placed)

    # ---- places

    def bank_of(self, core: int) -> int:
        """The DRAM bank from which a compute core streams: every run of cores from 0 is spread evenly."""
        return core % self.n_banks

    def slot_of(self, core: int) -> int:
        """Number of the core among those of its bank."""
        return core // self.n_banks

    def block_offset(self, op: Operation, core: int, k_block: int) -> int:
        """First byte, in the core's bank, of a K-block."""
        if not 0 <= k_block < op.k_blocks:
            raise ValueError(f"{op.name}: K-block {k_block} of {op.k_blocks}")
        slot = self.slot_of(core)
        place = slot * op.k_blocks + k_block if self.reader_mode == "direct" else k_block * op.slots + slot
        return op.offset + place * op.block_bytes

    def offsets_table(self) -> list[int]:
        """The word of every operation (stream, then tail): its first byte in every bank of its arena."""
        return [op.offset for op in self.stream_ops + self.tail_ops]

    def bank_bytes(self, table: Table) -> int:
        """Bytes of an arena in each bank."""
        return sum(op.bank_bytes for op in self.operations(table))

    def total_bytes(self, table: Table) -> int:
        return self.n_banks * self.bank_bytes(table)

    def tensor_shape(self, table: Table) -> tuple[int, int]:
        """Shape of the width-sharded tensor of an arena; its shard is [shape[0], 32]."""
        tile_bytes = self.operations(table)[0].tile_bytes
        return self.bank_bytes(table) // tile_bytes * TILE, self.n_banks * TILE

    # ---- packing

    def new_tensor(self, table: Table, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """An empty (zero) arena tensor on the host: bf16 also for a bfp8_b arena, which ttnn encodes on upload."""
        return torch.zeros(self.tensor_shape(table), dtype=dtype)

    def _bank_tiles(self, arena: torch.Tensor, op: Operation, core: int, k_block: int) -> torch.Tensor:
        """View [tiles, 32, 32] of one K-block as it lies in the arena tensor."""
        first = self.block_offset(op, core, k_block) // op.tile_bytes
        bank = arena.unflatten(1, (self.n_banks, TILE))[:, self.bank_of(core)]
        return bank.unflatten(0, (-1, TILE))[first : first + op.block_tiles]

    def write(self, arena: torch.Tensor, op: Operation, weight: torch.Tensor) -> None:
        """Put a padded weight [32 k_tiles, 32 n_tiles] into its place in the arena tensor."""
        if tuple(weight.shape) != (op.k_tiles * TILE, op.n_tiles * TILE):
            raise ValueError(
                f"{op.name}: got a weight of shape {tuple(weight.shape)}, must be "
                f"{(op.k_tiles * TILE, op.n_tiles * TILE)} (padded; see `pad_weight`)"
            )
        tiles = weight.unflatten(1, (op.n_tiles, TILE)).unflatten(0, (op.k_tiles, TILE)).permute(0, 2, 1, 3)
        for piece, k_block, block in self._blocks(op):
            rows, columns = block
            source = tiles[rows, columns]
            if self.tile_order == "nk":
                source = source.transpose(0, 1)
            self._bank_tiles(arena, op, piece.core, k_block).copy_(source.reshape(-1, TILE, TILE))

    def read(self, arena: torch.Tensor, op: Operation) -> torch.Tensor:
        """The padded weight [32 k_tiles, 32 n_tiles] of an operation, collected from the arena tensor."""
        tiles = arena.new_zeros(op.k_tiles, op.n_tiles, TILE, TILE)
        for piece, k_block, block in self._blocks(op):
            tiles[block] = self.read_block(arena, op, piece.core, k_block)
        return tiles.permute(0, 2, 1, 3).reshape(op.k_tiles * TILE, op.n_tiles * TILE)

    def read_block(self, arena: torch.Tensor, op: Operation, core: int, k_block: int) -> torch.Tensor:
        """Tiles [block_rows, block_columns, 32, 32] of one K-block, as the core that streams it sees them."""
        stored = self._bank_tiles(arena, op, core, k_block)
        if self.tile_order == "nk":
            return stored.unflatten(0, (op.block_columns, op.block_rows)).transpose(0, 1)
        return stored.unflatten(0, (op.block_rows, op.block_columns))

    def _blocks(self, op: Operation) -> Iterator[tuple[Piece, int, tuple[slice, slice]]]:
        for piece in op.pieces():
            for k_block in range(op.k_blocks):
                first = piece.k0 + k_block * op.block_rows
                yield piece, k_block, (slice(first, first + op.block_rows), slice(piece.n0, piece.n1))

    def pack(self, table: Table, weight_of: WeightOf, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        """The arena tensor of a table, from one padded weight at a time.

        Args:
            weight_of: gives the padded weight of an operation's name; asked once for each, in order of place, so that
                a checkpoint is read bit by bit. `host_tensors.padded_weights` makes it of a checkpoint.
            dtype: of the host tensor; float32 keeps every bit for comparisons.
        """
        arena = self.new_tensor(table, dtype)
        for op in self.operations(table):
            self.write(arena, op, weight_of(op.name))
        return arena


def as_bfp8(arena: torch.Tensor) -> torch.Tensor:
    """An arena tensor's values after a round through bfp8_b, as the card will see them; any shape of whole tiles."""
    rows, columns = arena.shape
    tiles = arena.float().unflatten(1, (columns // TILE, TILE)).unflatten(0, (rows // TILE, TILE)).permute(0, 2, 1, 3)
    rounded = block_float.decode(block_float.encode(tiles.reshape(-1, TILE, TILE).numpy()))
    back = torch.from_numpy(rounded).reshape(rows // TILE, columns // TILE, TILE, TILE).permute(0, 2, 1, 3)
    return back.reshape(rows, columns).to(arena.dtype)


def pad_weight(weight: torch.Tensor, *, heads_out: int = 0, heads_in: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Pad a weight [K, N] to whole tiles, heads to 64 columns (`heads_out`) or rows (`heads_in`) each.

    Padding is zero, so that padded columns give zero and padded rows take nothing.
    """
    padded = weight
    if heads_out:
        padded = pad_heads(padded, heads_out, dim=1)
    if heads_in:
        padded = pad_heads(padded, heads_in, dim=0)
    if scale != 1.0:
        padded = padded * scale
    rows, columns = padded.shape
    return torch.nn.functional.pad(padded, (0, -columns % TILE, 0, -rows % TILE))


def pad_heads(tensor: torch.Tensor, n_heads: int, dim: int) -> torch.Tensor:
    """Pad each of `n_heads` equal parts of a dimension with zeros to 64."""
    if tensor.shape[dim] % n_heads:
        raise ValueError(f"dimension {dim} of {tuple(tensor.shape)} does not divide into {n_heads} heads")
    heads = tensor.unflatten(dim, (n_heads, tensor.shape[dim] // n_heads))
    inner = dim % tensor.ndim + 1
    padding = [0, 0] * (heads.ndim - 1 - inner) + [0, HEAD_DIM_PADDED - heads.shape[inner]]
    return torch.nn.functional.pad(heads, padding).flatten(inner - 1, inner)


def unpad_heads(tensor: torch.Tensor, n_heads: int, head_dim: int, dim: int) -> torch.Tensor:
    """The inverse of `pad_heads`."""
    inner = dim % tensor.ndim + 1
    heads = tensor.unflatten(dim, (n_heads, HEAD_DIM_PADDED)).narrow(inner, 0, head_dim)
    return heads.flatten(inner - 1, inner)


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}: got {value!r}, allowed are {', '.join(allowed)}")


def _whole(name: str, value: int, unit: int) -> None:
    if value % unit:
        raise ValueError(f"{name}: got {value}, must be a multiple of {unit}")
