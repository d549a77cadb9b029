"""The tensors of the DiT program: which, of what shape and format, and where they lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ttsp_ros.dit.config import KeySet
from ttsp_ros.dit.megakernel import host_tensors
from ttsp_ros.dit.megakernel.arena import HEAD_DIM_PADDED, ROW_TILES, TILE, TOKENS_PADDED, ArenaLayout
from ttsp_ros.dit.megakernel.buffers import Shape, activation_tiles
from ttsp_ros.dit.megakernel.core_map import CoreMap

Variant = Literal["block", "step", "steps4"]
Placement = Literal["dram", "dram_banks", "l1_compute", "l1_all"]
VARIANTS: tuple[Variant, ...] = ("block", "step", "steps4")


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


def io_slots(layout: ArenaLayout, core_map: CoreMap, variant: Variant, shape: Shape) -> Iterator[IoSlot]:
    """Every tensor of a program, in the order of the addresses."""
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
