"""The plan in words and as a picture, because people would rather look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttsp_ros.dit.megakernel.arena import OUT_SPLIT, Operation
from ttsp_ros.dit.megakernel.core_map import CoreMap, Role
from ttsp_ros.dit.megakernel.program_spec import ProgramSpec
from ttsp_ros.dit.megakernel.traffic import DRAM_BYTES_PER_SECOND, busiest_core, model_traffic
from ttsp_ros.tenstorrent.program import Core

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUPS = "QKV"
COLOURS = {
    Role.READER: "#f4a259",
    Role.HUB: "#c1292e",
    Role.HUB2: "#c1292e",
    Role.SPARE: "#e6e6e6",
}
GROUP_COLOURS = ("#7fb7e6", "#8fd19e", "#c8b6e2")
NO_HEAD_COLOUR = "#d8dee4"


def text(spec: ProgramSpec) -> str:
    """Core map, operations, traffic and buffers of a program."""
    return "\n\n".join(
        "\n".join(part)
        for part in (_title(spec), _map(spec.core_map), _operations(spec), _traffic(spec), _program(spec))
    )


def _title(spec: ProgramSpec) -> Iterator[str]:
    layout, config = spec.layout, spec.layout.config
    masks = ", ".join(name for name, there in layout.keys.masks(config.key_sets).items() if there) or "none"
    lengths = ", ".join(f"{name} {padded}" for name, padded in layout.keys.padded().items())
    yield f"GR00T {config.version}: {config.n_blocks} blocks in {layout.dtype_stream}, {config.n_tokens} of 64 rows"
    yield f"keys of {layout.keys.name}: {lengths}; masks read: {masks}"
    yield (
        f"program {spec.variant}, {spec.shape}; weights {layout.reader_mode}, tiles {layout.tile_order}, "
        f"attention scale {'folded' if layout.fold_attn_scale else 'applied to queries'}"
    )


def _map(core_map: CoreMap) -> Iterator[str]:
    width, height = core_map.grid
    counts = f"{core_map.n_compute} compute, {core_map.n_banks} readers, 2 hubs, {len(core_map.spare)} spare"
    yield f"{width} x {height} cores: {counts}"
    yield "compute index with its head's part; R reads for a bank; H0, H1 hubs; . spare"
    labels = _labels(core_map)
    for y in range(height):
        yield " ".join(f"{labels[x, y]:>7}" for x in range(width))


def _labels(core_map: CoreMap) -> dict[Core, str]:
    labels = dict.fromkeys(core_map.spare, ".") | {core_map.hub: "H0", core_map.hub2: "H1"}
    labels |= {core: f"R{bank}" for bank, core in enumerate(core_map.readers)}
    return labels | {core: f"{i} {_head(core_map, i)}" for i, core in enumerate(core_map.compute)}


def _head(core_map: CoreMap, index: int) -> str:
    group = core_map.group_of(index)
    return "-" if group is None else f"{GROUPS[group]}{core_map.head_of(index)}"


def _operations(spec: ProgramSpec) -> Iterator[str]:
    layout = spec.layout
    columns = (
        ("K x N tiles", 14),
        ("cores", 8),
        ("K split", 9),
        ("K-blocks", 10),
        ("KB a core", 11),
        ("offset in bank", 16),
    )
    yield f"{'operation':<14}" + "".join(f"{name:>{size}}" for name, size in columns)
    shown = [op for op in layout.stream_ops if op.name.startswith(("block0.", "block1."))]
    for op in [*shown, *layout.tail_ops]:
        yield _operation(op)
    yield f"offsets table: {len(layout.stream_ops)} operations of the blocks, {len(layout.tail_ops)} of the tail"


def _operation(op: Operation) -> str:
    size = f"{op.k_tiles} x {op.n_tiles}"
    kilobytes = op.piece_bytes / 1000
    return f"{op.name:<14}{size:>14}{op.n_cores:>8}{op.k_split:>9}{op.k_blocks:>10}{kilobytes:>11.1f}{op.offset:>16,}"


def _traffic(spec: ProgramSpec) -> Iterator[str]:
    layout, steps = spec.layout, spec.layout.config.n_steps
    traffic = model_traffic(layout)
    most, ratio = busiest_core(layout)
    yield "read in one step from each DRAM bank, MB"
    yield f"{'bank':>6}{'blocks':>10}{'tail':>8}{'keys':>8}{'all':>10}"
    for bank, row in enumerate(zip(traffic.blocks, traffic.tail, traffic.keys, traffic.banks, strict=True)):
        yield f"{bank:>6}" + "".join(f"{value / 1e6:>{n}.2f}" for value, n in zip(row, (10, 8, 8, 10), strict=True))
    parts = (sum(traffic.blocks), sum(traffic.tail), sum(traffic.keys), traffic.step_bytes)
    yield "   all" + "".join(f"{value / 1e6:>{n}.1f}" for value, n in zip(parts, (10, 8, 8, 10), strict=True))
    yield f"busiest bank / mean {traffic.balance:.3f}; busiest core {most / 1e6:.2f} MB, {ratio:.2f} of the mean"
    alone = steps * sum(traffic.blocks) / DRAM_BYTES_PER_SECOND
    yield (
        f"no faster than {traffic.seconds(steps) * 1e3:.2f} ms for {steps} steps at "
        f"{DRAM_BYTES_PER_SECOND / 1e9:.0f} GB/s (block weights alone {alone * 1e3:.2f} ms)"
    )


def _program(spec: ProgramSpec) -> Iterator[str]:
    stats = spec.stats()
    yield (
        f"{stats.buffers} circular buffers, {stats.semaphores} semaphores, {stats.named_args} named arguments, "
        f"{stats.io_slots} tensors ({stats.io_required} required), {stats.kernel_groups} kernel groups, "
        f"{stats.per_core_words} + {stats.common_words} runtime words"
    )
    yield "L1 of buffers: " + ", ".join(f"{role} {used:,} B" for role, used in stats.l1_bytes.items())


def draw(spec: ProgramSpec, target: Path) -> None:
    """The picture of a program as PNG: the cores, what they read, what their buffers take."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 10.5), layout="constrained")
    grid = figure.add_gridspec(2, 2, height_ratios=(3.2, 1))
    _draw_cores(figure.add_subplot(grid[0, :]), spec)
    _draw_traffic(figure.add_subplot(grid[1, 0]), spec)
    _draw_memory(figure.add_subplot(grid[1, 1]), spec)
    figure.suptitle(" | ".join(_title(spec)), fontsize=10)
    figure.savefig(target, dpi=110)


def _draw_cores(axes: Axes, spec: ProgramSpec) -> None:
    from matplotlib.patches import Patch, Rectangle

    core_map = spec.core_map
    words = core_map.per_core_args()
    width, height = core_map.grid
    per_part = spec.layout.n_compute // OUT_SPLIT
    index = {core: i for i, core in enumerate(core_map.compute)}
    for core in core_map.all_cores():
        x, y = core
        lines, colour = _box(core_map, core, index.get(core), per_part)
        axes.add_patch(Rectangle((x - 0.47, y - 0.46), 0.94, 0.92, facecolor=colour, edgecolor="#555555"))
        axes.text(x, y - 0.2, lines[0], ha="center", va="center", fontsize=10, weight="bold")
        axes.text(x, y + 0.06, lines[1], ha="center", va="center", fontsize=6.5)
        if core in index or core in core_map.readers:
            _, bank, channel, *_ = words[core]
            axes.text(
                x, y + 0.29, f"bank {bank}, vc {channel}", ha="center", va="center", fontsize=6.5, color="#333333"
            )
    axes.set(xlim=(-0.6, width - 0.4), ylim=(height - 0.4, -0.6), xticks=range(width), yticks=range(height))
    axes.set(xlabel="logical core x", ylabel="logical core y", aspect="auto")
    entries = [(colour, f"compute, {GROUPS[group]} of a head") for group, colour in enumerate(GROUP_COLOURS)]
    entries += [
        (COLOURS[Role.READER], "reader of a DRAM bank"),
        (COLOURS[Role.HUB], "hub"),
        (COLOURS[Role.SPARE], "spare"),
    ]
    handles = [Patch(facecolor=colour, edgecolor="#555555", label=label) for colour, label in entries]
    axes.legend(handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6, frameon=False)


def _box(core_map: CoreMap, core: Core, index: int | None, per_part: int) -> tuple[tuple[str, str], Any]:
    """Two lines and the colour of a core."""
    role = core_map.role_of[core]
    if index is None:
        name = f"reader {core_map.readers.index(core)}" if role is Role.READER else role.value
        return (name, ""), COLOURS[role]
    group = core_map.group_of(index)
    part, pair = divmod(index, per_part)
    place = f"K part {part}, cols {2 * pair}, {2 * pair + 1}"
    return (f"{index}: {_head(core_map, index)}", place), NO_HEAD_COLOUR if group is None else GROUP_COLOURS[group]


def _draw_traffic(axes: Axes, spec: ProgramSpec) -> None:
    traffic = model_traffic(spec.layout)
    banks = range(len(traffic.banks))
    floor = [0.0] * len(traffic.banks)
    for name, read in (("block weights", traffic.blocks), ("tail weights", traffic.tail), ("cross keys", traffic.keys)):
        height = [value / 1e6 for value in read]
        axes.bar(banks, height, bottom=floor, label=name)
        floor = [low + high for low, high in zip(floor, height, strict=True)]
    steps = spec.layout.config.n_steps
    axes.set(xlabel="DRAM bank", ylabel="MB a step", xticks=banks, ylim=(0, max(floor) * 1.35))
    axes.set_title(
        f"busiest / mean {traffic.balance:.3f}; {steps} steps >= {traffic.seconds(steps) * 1e3:.2f} ms "
        f"at {DRAM_BYTES_PER_SECOND / 1e9:.0f} GB/s",
        fontsize=9,
    )
    axes.legend(ncols=3, fontsize=8, frameon=False, loc="upper center")


def _draw_memory(axes: Axes, spec: ProgramSpec) -> None:
    """Buffers of a core of each role, the largest by name."""
    sets = spec.core_map.core_sets
    for row, role in enumerate(("compute", "readers", "hub", "spare")):
        held = sorted(
            (b for b in spec.buffers if sets[role] and sets[role] <= sets[b.cores]), key=lambda b: -b.total_bytes
        )
        start = 0.0
        for position, buffer in enumerate(held):
            size = buffer.total_bytes / 1024
            shade = "#4c78a8" if position % 2 else "#9ecae9"
            axes.barh(row, size, left=start, color=shade, edgecolor="white", linewidth=0.3)
            if size > 90:
                axes.text(start + size / 2, row, buffer.name, ha="center", va="center", fontsize=7, rotation=20)
            start += size
        axes.text(start + 10, row, f"{start:,.0f} KiB", va="center", fontsize=8)
    axes.axvline(spec.l1_limit("compute") / 1024, color="#c1292e", linewidth=1, label="allowed on a compute core")
    axes.set(yticks=range(4), yticklabels=("compute", "reader", "hub", "spare"), xlabel="KiB of L1 in circular buffers")
    axes.set(xlim=(0, 1500), ylim=(3.6, -0.6))
    axes.legend(fontsize=8, frameon=False, loc="lower right")
