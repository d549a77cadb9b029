"""The whole graph's part of `make bench-device`: what each operation takes at least, where that can be computed.

A convolution cannot take less than its products on the matrix units: that is a bound, no estimate of its time. NMS and
sampler have modelled cycles in their own sections. What all the others take, what launching costs and what the
transfers take is unknown without a card, and said to be. The list of operations is ttnn's own, see `superpoint_graph`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ttsp_ros.superpoint.features import DESCRIPTOR_DIM
from ttsp_ros.superpoint.network import LAYERS, Layer
from ttsp_ros.tenstorrent import layout

if TYPE_CHECKING:
    import ttnn

HEIGHT, WIDTH = 480, 640
CLOCK_HZ = 1.35e9
#: Products of 8x16 by 16x16 that a core's matrix unit starts in a cycle, in one of HiFi4's four phases (MVMUL,
#: Tenstorrent ISA documentation, BlackholeA0).
PRODUCTS_PER_CYCLE = 8 * 16 * 16 / 4
TILE = 32
KEYPOINTS = 1024
MODELLED = {"nms/fold": "section nms", "nms/window": "section nms", "sampler": "section sampler"}


def measure_section(device: ttnn.MeshDevice) -> dict[str, Any]:
    """The graph of a 480x640 image on the device's grid; prints it and returns what it printed."""
    size = device.compute_with_storage_grid_size()
    graph = _captured(f"{size.x}x{size.y}")
    bounds = list(_bounds(graph["rows"]))
    for row, bound in zip(graph["rows"], bounds, strict=True):
        known = f"at least {bound:6.1f} us" if bound is not None else MODELLED.get(row["operation"], "unknown")
        print(f"  {row['operation']:<23} {'x'.join(map(str, row['shape'])):<18} {known}")
    up, down = 2 * HEIGHT * WIDTH, 4 * (layout.header_size(KEYPOINTS) + DESCRIPTOR_DIM * KEYPOINTS)
    total = sum(bound for bound in bounds if bound is not None)
    print(f"  products of all convolutions: at least {total:.0f} us at {CLOCK_HZ / 1e9} GHz, HiFi4")
    print(f"  up {up:,} bytes, down at most {down:,}; time of transfers and launches: unknown without a card")
    return {
        "operations": [
            {"operation": row["operation"], "shape": row["shape"], "bound_us": bound}
            for row, bound in zip(graph["rows"], bounds, strict=True)
        ],
        "convolutions_bound_us": total,
        "upload_bytes": up,
        "download_bytes_at_most": down,
    }


def _captured(grid: str) -> dict[str, Any]:
    """`superpoint_graph --json`, in a process of its own: its kernels are hollow, this one's are real."""
    command = [sys.executable, "-m", "ttsp_ros.tools.superpoint_graph", "--size", f"{HEIGHT}x{WIDTH}", "--grid", grid]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the graph could not be captured: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _bounds(rows: list[dict[str, Any]]) -> Iterator[float | None]:
    """Microseconds at least, for each row; None where nothing is known. Convolutions come in the order of LAYERS."""
    layers = iter(LAYERS)
    for row in rows:
        yield _products_us(row, next(layers)) if row["operation"] == "conv2d" else None


def _products_us(row: dict[str, Any], layer: Layer) -> float:
    """Time of a convolution's products, in whole tiles, on the cores that have a part of its output."""
    cores = re.search(r"L1 (\d+) x (\d+)x", row["memory"])
    if cores is None:
        raise ValueError(f"{row['operation']} {layer.name}: its output is not in L1, but in {row['memory']}")
    pixels = int(cores[2])
    depth = -(-layer.inputs * layer.kernel**2 // TILE) * TILE
    width = -(-layer.outputs // TILE) * TILE
    return pixels * depth * width / PRODUCTS_PER_CYCLE / CLOCK_HZ * 1e6
