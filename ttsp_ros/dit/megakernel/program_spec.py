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

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from ttsp_ros.dit.megakernel.arena import (
    BLOCK_COLUMNS,
    HEAD_DIM_PADDED,
    OUT_SPLIT,
    READER_MODES,
    TILE,
    TILE_BYTES,
    TILE_ORDERS,
    TOKENS_PADDED,
    ArenaLayout,
)
from ttsp_ros.dit.megakernel.buffers import (
    BLOCK_TILES,
    SHAPES,
    BasicBudget,
    Budget,
    Buffer,
    FullBudget,
    Semaphore,
    Shape,
    SpecError,
    activation_tiles,
    buffers_of,
    semaphores_of,
)
from ttsp_ros.dit.megakernel.core_map import PER_CORE_WORDS, Core, CoreMap
from ttsp_ros.dit.megakernel.tensors import VARIANTS, IoSlot, Variant, io_slots
from ttsp_ros.dit.megakernel.unified_kernel import KernelGroup, group_cores
from ttsp_ros.tenstorrent.program import CIRCULAR_BUFFERS, RUNTIME_ARGUMENT_WORDS, SEMAPHORES

KERNEL_GROUPS = 4  # readers, hubs, compute, spare: a binary each
#: L1 of a Blackhole core that buffers may use, as ttnn 0.81's allocator says: 1,536 KiB less 41,088 B of firmware and
#: mailboxes and the default kernel-config ring of 69 KiB. (Often rounded to 1,427 KiB, which is 128 B too much.)
L1_USABLE_BYTES = 1536 * 1024 - 41_088 - 69 * 1024
#: What the full program leaves free: a kernel-config ring that is 96 KiB larger for its long binaries, and room for the
#: L1 allocator to place the two tensor-backed buffers at one address on all cores.
L1_RESERVE_BYTES = 96 * 1024 + 24_000


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
    buffers, semaphores = buffers_of(layout, depths), semaphores_of(layout, shape)
    io = tuple(io_slots(layout, core_map, variant, shape))
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
