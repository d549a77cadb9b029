"""Where the weights lie: every tile once, nothing on top of anything, and back again."""

import weakref
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from megakernel_cases import full_size, layouts, miniature, published

from ttsp_ros.dit.config import N16, N17
from ttsp_ros.dit.megakernel import host_tensors
from ttsp_ros.dit.megakernel.arena import (
    KEY_LENGTHS,
    TILE,
    ArenaLayout,
    KeyLengths,
    as_bfp8,
    pad_heads,
    unpad_heads,
)
from ttsp_ros.dit.weights import RandomWeights


def numbered(op) -> torch.Tensor:
    """A padded weight whose tiles are full of their own number, counted from 1."""
    numbers = torch.arange(1, op.tiles + 1, dtype=torch.float32).reshape(op.k_tiles, op.n_tiles)
    return numbers.repeat_interleave(TILE, 0).repeat_interleave(TILE, 1)


def ranges_of(layout, op) -> list[tuple[int, int, int]]:
    """(bank, first byte, end) of every K-block."""
    places = []
    for core in range(op.n_cores):
        for k_block in range(op.k_blocks):
            first = layout.block_offset(op, core, k_block)
            places.append((layout.bank_of(core), first, first + op.block_bytes))
    return places


@given(layouts())
@settings(max_examples=40, deadline=None)
def test_every_byte_has_one_owner_inside_its_bank(layout):
    for table in ("stream", "tail"):
        taken: dict[int, list[tuple[int, int]]] = {}
        for op in layout.operations(table):
            for bank, first, end in ranges_of(layout, op):
                assert op.offset <= first and end <= op.offset + op.bank_bytes <= layout.bank_bytes(table)
                assert first % 64 == 0, "a DRAM read begins at a multiple of 64 bytes"
                taken.setdefault(bank, []).append((first, end))
        for places in taken.values():
            places.sort()
            assert all(left[1] <= right[0] for left, right in pairwise(places))
        rows, columns = layout.tensor_shape(table)
        assert columns == TILE * layout.n_banks
        assert rows * TILE // TILE**2 * layout.operations(table)[0].tile_bytes == layout.bank_bytes(table)


@given(layouts())
@settings(max_examples=8, deadline=None)
def test_every_weight_tile_is_placed_exactly_once(layout):
    for op in (*layout.stream_ops[:8], *layout.tail_ops):
        arena = layout.new_tensor(op.table, torch.float32)
        weight = numbered(op)
        layout.write(arena, op, weight)
        found = arena[::TILE, ::TILE].flatten()
        assert torch.equal(found[found > 0].sort().values, torch.arange(1.0, op.tiles + 1))
        assert int((arena != 0).sum()) == op.tiles * TILE**2
        assert torch.equal(layout.read(arena, op), weight)


@given(layouts())
@settings(max_examples=25, deadline=None)
def test_pieces_cover_each_operation(layout):
    for op in (*layout.stream_ops[:8], *layout.tail_ops):
        owners = torch.zeros(op.k_tiles, op.n_tiles)
        for piece in op.pieces():
            owners[piece.k0 : piece.k1, piece.n0 : piece.n1] += 1
        assert (owners == 1).all() and op.n_cores <= layout.n_compute


def test_places_of_the_published_layout():
    """Worked out by hand for N1.6: head 5's key, a K-quarter of ff2, both orders of blocks and tiles."""
    direct = published("n1.6", dtype_stream="bf16")
    qkv = next(op for op in direct.stream_ops if op.name == "block1.qkv")
    assert (qkv.k_tiles, qkv.n_tiles, qkv.n_cores, qkv.k_blocks, qkv.block_bytes) == (48, 192, 96, 6, 32768)
    piece = qkv.piece(37)
    assert (piece.k0, piece.k1, piece.n0, piece.n1) == (0, 48, 74, 76), "K_5 begins at column tile 2 (32 + 5)"
    assert direct.bank_of(37) == 5
    assert direct.block_offset(qkv, 37, 2) == qkv.offset + (4 * 6 + 2) * 32768, "fifth core of its bank"
    relay = replace(direct, reader_mode="relay")
    assert relay.block_offset(qkv, 37, 2) == qkv.offset + (2 * 12 + 4) * 32768, "third K-block of all twelve"

    ff2 = next(op for op in direct.stream_ops if op.name == "block1.ff2")
    piece = ff2.piece(24 * 3 + 7)
    assert (piece.k0, piece.k1, piece.n0, piece.n1) == (144, 192, 14, 16)

    tiles = numbered(qkv)
    for order, second in (("kn", 2), ("nk", 193)):
        layout = replace(direct, config=replace(N16, n_blocks=2), tile_order=order)
        arena = layout.new_tensor("stream", torch.float32)
        op = next(op for op in layout.stream_ops if op.name == "block1.qkv")
        layout.write(arena, op, tiles)
        first = op.offset // op.tile_bytes * TILE
        assert arena[first, 0] == 1 and arena[first + TILE, 0] == second


def test_sizes_of_the_published_layouts(version):
    blocks = {"n1.5": 16, "n1.6": 32, "n1.7": 32}[version]
    bfp8, bf16 = published(version), published(version, dtype_stream="bf16")
    assert bfp8.stream_ops[0].block_bytes == 17408 and bf16.stream_ops[0].block_bytes == 32768
    # A cross block: 24,576 tiles; a self block: 30,720.
    assert bfp8.total_bytes("stream") == blocks // 2 * (24576 + 30720) * 1088
    assert bf16.total_bytes("stream") == blocks // 2 * (24576 + 30720) * 2048
    assert len(bfp8.offsets_table()) == 4 * blocks + 6
    assert bfp8.total_bytes("tail") == sum(op.tiles for op in bfp8.tail_ops) * 2048, "no padding slots"
    assert len(bfp8.tail_ops) == 6


def test_round_trip_at_full_size(version):
    """A cross and a self block, bf16: every weight comes back to the bit, from an arena of 113 MB."""
    layout = ArenaLayout(full_size(version), KEY_LENGTHS[version], dtype_stream="bf16")
    for table in ("stream", "tail"):
        ops = {op.name: op for op in layout.operations(table)}

        def weight(name, ops=ops):
            op = ops[name]
            generator = torch.Generator().manual_seed(len(name) + op.offset)
            bits = torch.randint(-(2**14), 2**14, (op.k_tiles * TILE, op.n_tiles * TILE), generator=generator)
            return bits.to(torch.int16).view(torch.bfloat16)

        arena = layout.pack(table, weight)
        assert arena.dtype == torch.bfloat16 and tuple(arena.shape) == layout.tensor_shape(table)
        for name, op in ops.items():
            assert torch.equal(layout.read(arena, op).view(torch.int16), weight(name).view(torch.int16)), name


def test_bfp8_round_trip_at_full_size():
    layout = ArenaLayout(full_size("n1.7"), KEY_LENGTHS["n1.7"])
    op = layout.stream_ops[0]
    weight = torch.randn(op.k_tiles * TILE, op.n_tiles * TILE, generator=torch.Generator().manual_seed(1)) / 40
    arena = layout.new_tensor("stream", torch.float32)
    layout.write(arena, op, weight)
    arena = as_bfp8(arena[: op.bank_bytes // op.tile_bytes * TILE])
    back = layout.read(arena, op)
    groups = weight.unflatten(1, (-1, 16)).abs().amax(-1, keepdim=True)
    unit = 2.0 ** (groups.log2().floor() - 6)
    error = (back - weight).unflatten(1, (-1, 16)).abs()
    assert (error <= unit).all() and 0 < error.mean() < unit.mean() / 3


def test_packing_holds_one_weight_at_a_time():
    layout = ArenaLayout(miniature("n1.6"), KEY_LENGTHS["n1.6"], block_rows=2)
    ops = {op.name: op for op in layout.stream_ops}
    alive: list[weakref.ref] = []

    def weight(name):
        assert all(reference() is None for reference in alive), "an earlier weight is still held"
        made = torch.ones(ops[name].k_tiles * TILE, ops[name].n_tiles * TILE)
        alive.append(weakref.ref(made))
        return made

    layout.pack("stream", weight)
    assert len(alive) == len(ops)


@pytest.mark.parametrize("fold", [True, False])
def test_a_checkpoint_comes_back_from_the_arena(version, fold):
    """Packed from checkpoint names, read from the arena, unpadded: the checkpoint's own numbers."""
    config = miniature(version)
    layout = ArenaLayout(config, KEY_LENGTHS[version], block_rows=2, fold_attn_scale=fold)
    weights = RandomWeights(config, seed=3)
    weight_of = host_tensors.padded_weights(layout, weights, embodiment=1)
    stream, tail = (layout.pack(table, weight_of, torch.float32) for table in ("stream", "tail"))
    scale = layout.attention_scale if fold else 1.0
    heads, dim, width = config.n_heads, config.head_dim, config.width
    ops = {op.name: op for op in layout.stream_ops + layout.tail_ops}
    name = "model.transformer_blocks.1"

    def linear(of):
        return weights.tensor(f"{of}.weight").T

    query, key, value = unpad_heads(layout.read(stream, ops["block1.qkv"]), 3 * heads, dim, 1).split(width, dim=1)
    assert torch.equal(query, linear(f"{name}.attn1.to_q") * scale)
    assert torch.equal(key, linear(f"{name}.attn1.to_k")) and torch.equal(value, linear(f"{name}.attn1.to_v"))
    out = unpad_heads(layout.read(stream, ops["block1.out"]), heads, dim, 0)
    assert torch.equal(out, linear(f"{name}.attn1.to_out.0"))
    assert torch.equal(layout.read(stream, ops["block1.ff1"]), linear(f"{name}.ff.net.0.proj"))
    assert torch.equal(layout.read(stream, ops["block1.ff2"]), linear(f"{name}.ff.net.2"))
    cross = layout.read(stream, ops["block0.q"])
    assert torch.equal(unpad_heads(cross, heads, dim, 1), linear("model.transformer_blocks.0.attn1.to_q") * scale)
    assert int((cross != 0).sum()) <= width * width, "padding is zero"

    tails = {
        "project": linear("model.proj_out_2"),
        "decode1": weights.row("action_decoder.layer1.W", 1),
        "decode2": weights.row("action_decoder.layer2.W", 1),
        "encode1": weights.row("action_encoder.W1.W", 1),
        "encode2": weights.row("action_encoder.W2.W", 1)[:width],
        "encode3": weights.row("action_encoder.W3.W", 1),
    }
    for kind, expected in tails.items():
        padded = layout.read(tail, ops[f"tail.{kind}"])
        rows, columns = expected.shape
        assert torch.equal(padded[:rows, :columns], expected), kind
        assert int((padded != 0).sum()) == int((expected != 0).sum())


def test_heads_are_padded_in_either_dimension():
    values = torch.arange(1.0, 97.0).reshape(96, 1)
    rows = pad_heads(values, 2, dim=0)
    assert rows.shape == (128, 1) and rows[48:64].eq(0).all() and torch.equal(rows[64:112], values[48:])
    assert torch.equal(pad_heads(values.T, 2, dim=1), rows.T)
    assert torch.equal(unpad_heads(rows, 2, 48, 0), values)
    with pytest.raises(ValueError, match="5 heads"):
        pad_heads(values, 5, dim=0)


def test_masks_that_a_version_reads():
    expected = {
        "n1.5": {"text": False, "image": False, "all": True},
        "n1.6": {"text": True, "image": True, "all": False},  # 81 image keys in 96
        "n1.7": {"text": True, "image": False, "all": False},  # 448 of 448
    }
    for version, masks in expected.items():
        layout = published(version)
        assert layout.keys.masks(layout.config.key_sets) == masks


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype_stream": "fp8"}, "dtype_stream: got 'fp8', allowed are bf16, bfp8_b"),
        ({"reader_mode": "fast"}, "allowed are direct, relay"),
        ({"tile_order": "x"}, "allowed are kn, nk"),
        ({"block_rows": 5}, "do not divide"),
        ({"block_rows": 32}, "n_heads x 64 is 64 tiles|width is 48 tiles"),
        ({"config": replace(N17, horizon=64)}, "65 tokens"),
        ({"config": replace(N17, n_heads=16, head_dim=96)}, "head_dim: got 96"),
        ({"config": replace(N17, ff_dim=8192)}, "128 pieces"),
        ({"config": replace(N17, n_heads=31)}, "width: got 1488, must be a multiple of 64"),
        ({"keys": KeyLengths("text only", text=64)}, r"lack the key sets \['image'\]"),
    ],
)
def test_refuses_what_cannot_be_planned(changes, message):
    with pytest.raises(ValueError, match=message):
        replace(published("n1.7"), **changes)


@pytest.mark.parametrize(
    "lengths", [{"text": 65}, {"image": (0, 96)}, {"image": (97, 96)}, {"all": 0}, {"image": (3, 40)}]
)
def test_refuses_key_lengths_that_are_no_tiles(lengths):
    with pytest.raises(ValueError, match="keys"):
        KeyLengths("wrong", **lengths)


def test_refuses_a_weight_or_block_of_another_operation():
    layout = published("n1.6")
    op = layout.stream_ops[0]
    with pytest.raises(ValueError, match=r"block0.q: got a weight of shape \(32, 32\), must be \(1536, 2048\)"):
        layout.write(torch.zeros(32, 256), op, torch.zeros(32, 32))
    with pytest.raises(ValueError, match="core 32 owns no piece"):
        op.piece(32)
    with pytest.raises(ValueError, match="K-block 6 of 6"):
        layout.block_offset(op, 0, 6)
