"""What is chosen for a geometry, without a device; and the chain of ttnn's operations, which no simulator runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttsp_ros.superpoint import keypoints
from ttsp_ros.tenstorrent import layout
from ttsp_ros.tenstorrent.nms import DST_TILES, DeviceNms, HaloRun, NmsPlan, choose_plan, halo_runs, kernel_plan
from ttsp_ros.tenstorrent.nms_chain import ChainPlan, emulate_chain

from .conftest import random_scores, unfold

P150, UNHARVESTED = 11 * 10, 13 * 10


@pytest.mark.parametrize(("cores", "rows", "used"), [(P150, 5, 96), (UNHARVESTED, 4, 120), (1000, 1, 480), (96, 5, 96)])
def test_480x640_takes_the_kernels_on_all_grids(cores, rows, used):
    found = kernel_plan(480, 640, 4, cores)
    assert (found.rows, found.cores, found.chunks, found.block) == (rows, used, 1, min(rows, 6))
    assert f"{used} cores, {rows} rows a core" in str(found)


@pytest.mark.parametrize("radius", range(1, 8))
@pytest.mark.parametrize("size", [(8, 8), (240, 320), (480, 640), (720, 1280), (1080, 1920)])
def test_all_radii_to_seven_take_the_kernels(size, radius):
    found = choose_plan(*size, radius, P150)
    assert isinstance(found, NmsPlan)
    out = found.loaded - 2 * found.radius
    assert 1 <= found.block <= min(2 * radius, 7)
    assert (found.block + 2 * radius) * found.loaded * 4 <= DST_TILES * 64
    assert out * found.chunks >= found.strip


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 7), st.integers(1, 130))
def test_halo_is_complete(cell_rows, cell_columns, radius, limit):
    """Own rows and halo runs together give every core its rows and `radius` more on both sides, zeros outside."""
    found = kernel_plan(8 * cell_rows, 8 * cell_columns, radius, limit)
    assert found.cores <= limit
    rows = torch.arange(found.height)
    shards = torch.full((found.cores, found.rows + 2 * radius), -2)
    for core in range(found.cores):
        count = found.row_count(core)
        assert 1 <= count <= found.rows
        shards[core, radius : radius + count] = rows[core * found.rows :][:count]
    own = shards.clone()
    for core in range(found.cores):
        for run in [run for side in halo_runs(found, core) for run in side]:
            source = torch.full((run.count,), -1) if run.core is None else own[run.core, run.from_row :][: run.count]
            shards[core, run.to_row : run.to_row + run.count] = source
        wanted = torch.arange(core * found.rows - radius, (core + 1) * found.rows + radius)
        wanted[(wanted < 0) | (wanted >= found.height)] = -1
        assert torch.equal(shards[core], wanted)


def test_neighbouring_halo_rows_are_one_run():
    found = kernel_plan(480, 640, 4, P150)
    above, below = halo_runs(found, 1)
    assert above == [HaloRun(core=0, from_row=5, to_row=0, count=4)]
    assert below == [HaloRun(core=2, from_row=4, to_row=9, count=4)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((481, 640, 4, P150), "481x640.*multiples of 8"),
        ((480, 0, 4, P150), "multiples of 8"),
        ((480, 640, 4, 0), "at least 1"),
        ((480, 640, 0, P150), r"1\.\.7 pixels; and ttnn"),
        ((488, 640, 8, P150), "multiples of 32 pixels"),
        ((32, 32, 17, P150), r"radius of 1\.\.16"),
    ],
)
def test_what_nothing_takes_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        choose_plan(*arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((480, 640, 8, P150), "radius: got 8"),
        ((2048, 64, 7, 2), "bytes of L1"),
        ((480, 640, 4, 1), f"at most {layout.CANDIDATE_PIXELS} pixels"),
        ((2176, 4096, 4, P150), "65536 cells"),
    ],
)
def test_ttnn_operations_take_what_the_kernels_do_not(arguments, reason):
    found = choose_plan(*arguments)
    assert isinstance(found, ChainPlan)
    assert reason in str(found)


@pytest.mark.parametrize(("height", "width", "radius"), [(32, 64, 1), (64, 96, 4), (96, 32, 8), (64, 64, 15)])
def test_the_chain_is_nms(height, width, radius):
    plan = ChainPlan(height, width, radius, "a test")
    image = random_scores(height, width)
    image[::7, ::5] = 0.5  # ties
    found = emulate_chain(plan, unfold(image))
    assert torch.equal(found.view(torch.int16), keypoints.nms(image, radius).view(torch.int16))


def test_the_chain_is_accepted_by_ttnn(device):
    """NO_DISPATCH: shapes, layouts and memory of every operation are checked by ttnn, and which they are."""
    import ttnn

    nms = DeviceNms(device, 480, 640, 8)
    assert isinstance(nms.plan, ChainPlan)
    host = ttnn.from_torch(unfold(random_scores(480, 640))[None, None], dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    output = nms(ttnn.to_device(host, device, memory_config=ttnn.DRAM_MEMORY_CONFIG))
    names = [(node["params"] or {}).get("name", "") for node in ttnn.graph.end_graph_capture()]
    assert output.candidates is output.records is output.counts is None
    assert (tuple(output.map.shape), output.map.dtype) == ((1, 1, 480, 640), ttnn.bfloat16)
    steps = [n for n in names if n in ("ttnn.max_pool2d", "ttnn.eq", "ttnn.multiply", "ttnn.copy")]
    assert list(dict.fromkeys(steps)) == ["ttnn.max_pool2d", "ttnn.eq", "ttnn.multiply", "ttnn.copy"]
    nms.release()


def test_the_chain_needs_the_map(device):
    with pytest.raises(ValueError, match="emit_map has to be True"):
        DeviceNms(device, 480, 640, 8, emit_map=False)
