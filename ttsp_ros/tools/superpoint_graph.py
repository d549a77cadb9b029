"""Prints what SuperPoint's graph does on a card, operation by operation, without a card.

    python -m ttsp_ros.tools.superpoint_graph [--size 480x640] [--grid 11x10] [--radius 4] [--json]

Every line is a call that ttnn itself has checked (graph capture without dispatch, see
`ttsp_ros.tenstorrent.graph_capture`): what it makes, where that lies, and how much L1 the fullest core has in use at
its worst moment. A size that the card can't take is refused with the reason. Nothing here is measured on a card.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from ttsp_ros.simulator.environment import P150, Grid
from ttsp_ros.simulator.session import open_device
from ttsp_ros.superpoint.weights import load_parameters
from ttsp_ros.tenstorrent.backbone import fold_network
from ttsp_ros.tenstorrent.graph_capture import Capture, L1Usage, OperationRecord, TensorRecord, capture
from ttsp_ros.tenstorrent.network_stage import CardNetwork
from ttsp_ros.tenstorrent.stages import Stages
from ttsp_ros.tenstorrent.superpoint import SuperPointConfig, TtSuperPoint

if TYPE_CHECKING:
    import ttnn

RADIUS = 4


@dataclass(frozen=True)
class Row:
    """One operation of the graph.

    Attributes:
        operation: ttnn's name; for a program of our own, its kernels' folder and stem ("nms/fold").
        programs: the device programs that it launches, in order.
        shape, dtype, layout: of what it makes.
        memory: where that lies: "DRAM", or in L1 on how many cores, and the part of each.
        l1: bytes in use on the fullest core, at the worst moment of the operation.
    """

    operation: str
    programs: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    layout: str
    memory: str
    l1: L1Usage


@dataclass(frozen=True)
class Graph:
    """The graph of one image size, radius and grid. peak, l1_size: bytes of a core, see `Capture`."""

    height: int
    width: int
    radius: int
    grid: str
    plan: str
    rows: tuple[Row, ...]
    peak: L1Usage
    l1_size: int
    fits: bool

    @property
    def worst(self) -> int:
        """Index of the row with the most L1 in use."""
        return max(range(len(self.rows)), key=lambda index: self.rows[index].l1.total)


def capture_graph(device: ttnn.MeshDevice, height: int, width: int, radius: int = RADIUS) -> Graph:
    """The graph as `TtSuperPoint` launches it for each frame, with the default weights and all stages on.

    Args:
        device: an open one, simulated with hollow kernels where there is no card. Its L1 must be empty.

    Raises:
        ValueError: a size that the card can't take.
    """
    folded = fold_network(load_parameters())

    def build_and_launch() -> TtSuperPoint:
        network = CardNetwork(device, folded, height, width, Stages())
        graph = TtSuperPoint(device, network, height, width, radius, SuperPointConfig(), fast_dispatch=True)
        graph.run_graph()
        return graph

    captured = capture(build_and_launch, device)
    size = device.compute_with_storage_grid_size()
    rows = tuple(_row(operation) for operation in captured.operations if operation.programs)
    return _graph(captured, (height, width), radius, f"{size.x}x{size.y}", rows)


def _graph(captured: Capture, size: tuple[int, int], radius: int, grid: str, rows: tuple[Row, ...]) -> Graph:
    plan = captured.result.plan
    return Graph(*size, radius, grid, plan, rows, captured.peak, captured.l1_size, captured.fits)


def _row(operation: OperationRecord) -> Row:
    output = operation.outputs[-1]
    programs = tuple(name.removesuffix("DeviceOperation") for name in operation.programs)
    return Row(_name(operation), programs, output.shape, output.dtype, output.layout, _place(output), operation.peak)


def _name(operation: OperationRecord) -> str:
    """For "ttnn.generic_op" what its kernels share: "nms/fold_move.cpp" and "nms/fold_compute.cpp" are nms/fold."""
    if not operation.kernels:
        return operation.name.removeprefix("ttnn.")
    stems = [kernel.removesuffix(".cpp") for kernel in operation.kernels]
    shared = next(length for length in range(len(stems[0]), -1, -1) if len({stem[:length] for stem in stems}) == 1)
    return stems[0][:shared].rstrip("_/")


def _place(tensor: TensorRecord) -> str:
    """A MemoryConfig's text, shortened."""
    where = re.search(r"buffer_type=BufferType::(\w+)", tensor.memory)
    if where is None:
        return tensor.memory
    shard = re.search(r"grid=\[(.*?)\], shape=\[(\d+), (\d+)\]", tensor.memory)
    if shard is None:
        return where[1]
    ranges = re.findall(r'"x":(\d+),"y":(\d+)}', shard[1])
    corners = zip(ranges[0::2], ranges[1::2], strict=True)
    cores = sum((int(x1) - int(x0) + 1) * (int(y1) - int(y0) + 1) for (x0, y0), (x1, y1) in corners)
    return f"{where[1]} {cores} x {shard[2]}x{shard[3]}"


HEAD = ("", "operation", "makes", "type", "layout", "memory (cores x part)", "tensors", "programs", "L1 sum")
FORMAT = "{:>2} {:<23} {:<18} {:<8} {:<9} {:<22} {:>9} {:>9} {:>9}"


def report(graph: Graph) -> str:
    """The graph as text, for a reviewer and for the golden files of the tests."""
    worst = graph.rows[graph.worst]
    share = 100 * graph.peak.total / graph.l1_size
    lines = [
        f"SuperPoint, images of {graph.height}x{graph.width} (height x width), {graph.grid} cores, "
        f"radius {graph.radius}",
        graph.plan,
        f"L1 of a core: {graph.l1_size:,} bytes; at most {graph.peak.total:,} in use ({share:.0f} %), in operation "
        f"{graph.worst + 1} ({worst.operation}): it {'fits' if graph.fits else 'DOES NOT FIT'}",
        "L1 in use at the worst moment of each operation, bytes on the fullest core: tensors, and circular buffers of "
        "programs",
        "",
        FORMAT.format(*HEAD),
    ]
    for number, row in enumerate(graph.rows, 1):
        shape = "x".join(map(str, row.shape))
        sizes = [f"{size:,}" for size in (row.l1.buffers, row.l1.programs, row.l1.total)]
        lines.append(FORMAT.format(number, row.operation, shape, row.dtype, row.layout, row.memory, *sizes))
        if row.programs and row.programs != ("GenericOp",):
            lines.append(f"   launches {', '.join(row.programs)}")
    lines += ["", f"{len(graph.rows)} operations, {sum(len(row.programs) for row in graph.rows)} programs"]
    return "\n".join(lines) + "\n"


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)x(\d+)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"a size is height x width, such as 480x640, not {text!r}")
    return int(match[1]), int(match[2])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", type=_size, default=(480, 640), help="height x width (default 480x640)")
    parser.add_argument("--grid", type=Grid.parse, default=P150, help="columns x rows of cores (default %(default)s)")
    parser.add_argument("--radius", type=int, default=RADIUS, help="of NMS (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    options = parser.parse_args(arguments)
    with open_device(options.grid, cost_model=False, hollow_kernels=True) as device:
        try:
            height, width = options.size
            graph = capture_graph(device, height, width, options.radius)
        except ValueError as error:
            print(f"superpoint_graph: {error}", file=sys.stderr)
            return 1
    print(json.dumps(asdict(graph)) if options.json else report(graph), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
