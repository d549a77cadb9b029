"""The whole graph as ttnn itself checks it, held to files that a reviewer can read.

After an intended change, renew a file: python -m ttsp_ros.tools.superpoint_graph --size 480x640 --grid 11x10 >
test/tenstorrent/golden/superpoint_480x640_11x10.txt, and read the difference.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ttsp_ros.tenstorrent.backbone import convolution_bytes, pool_bytes
from ttsp_ros.tools.superpoint_graph import capture_graph, report

GOLDEN = Path(__file__).with_name("golden")


def check(device, height: int, width: int, grid: str):
    graph = capture_graph(device, height, width)
    assert graph.grid == grid and graph.fits
    assert report(graph) == (GOLDEN / f"superpoint_{height}x{width}_{grid}.txt").read_text()
    return graph


@pytest.mark.simulator(hollow=True)
@pytest.mark.parametrize(("height", "width"), [(480, 640), (240, 320)])
def test_every_operation_in_l1(device, height, width):
    graph = check(device, height, width, "11x10")
    second = [row for row in graph.rows if row.operation == "conv2d"][1]
    assert second.l1.total == pytest.approx(convolution_bytes(height, width, 110), rel=0.01)


@pytest.mark.simulator(hollow=True)
def test_a_wide_image_goes_through_dram(device):
    graph = check(device, 376, 1240, "11x10")
    assert next(row for row in graph.rows if row.operation == "conv2d").memory == "DRAM"
    assert graph.rows[graph.worst].operation == "max_pool2d"
    assert graph.peak.total == pytest.approx(pool_bytes(376, 1240, 110), rel=0.01)


@pytest.mark.simulator(hollow=True)
def test_an_image_that_does_not_fit_is_refused(device):
    with pytest.raises(ValueError, match=r"1280x720: its first pool needs 2,[0-9]{3},[0-9]{3} bytes .*Set 'resize'"):
        capture_graph(device, 720, 1280)


@pytest.mark.simulator(grid="13x10", hollow=True)
def test_older_firmware_has_more_cores(device):
    graph = check(device, 480, 640, "13x10")
    assert graph.peak.total < 1_000_000
