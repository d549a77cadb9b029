"""NMS kernels on a simulated Blackhole: everything they give equals torch, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ttsp_ros.superpoint.keypoints import bf16_threshold_bits
from ttsp_ros.tenstorrent import layout

from .conftest import from_bits, random_scores

DENORMAL, SMALLEST_NORMAL = 0x0001, 0x0080


def peaks(height: int, width: int, rows: int) -> torch.Tensor:
    """Isolated peaks in all corners, on all borders and on both sides of every boundary between cores."""
    boundary = [y for first in range(rows, height, rows) for y in (first - 1, first)]
    inner = [(y, 8 * (i + 1)) for i, y in enumerate(boundary)]
    borders = [(height // 2 - 1, 0), (height // 2, width - 1), (0, width - 7), (height - 1, width - 7)]
    image = torch.zeros(height, width, dtype=torch.bfloat16)
    for i, (y, x) in enumerate([(0, 0), (0, width - 1), (height - 1, 0), (height - 1, width - 1), *borders, *inner]):
        image[y, x] = 0.25 + 0.01 * i
    return image


GEOMETRIES = {
    # name: height, width, radius, core limit; what is special
    "whole_cells": (32, 64, 1, 2),  # 16 rows a core, more than a slot's ring of map rows
    "row_a_core": (16, 32, 2, 16),  # halo from two cores on each side, a grid row of 11 cores is passed
    "two_rows": (8, 64, 3, 4),  # radius > rows
    "four_rows": (16, 64, 4, 4),
    "five_rows": (40, 72, 4, 8),  # lanes without pixels
    "uneven": (24, 136, 5, 5),  # 5 rows a core, 4 on the last; strips of 3 columns
    "one_core": (24, 40, 2, 1),
    "strip_of_ten": (8, 640, 4, 2),  # the strips of 480x640
    "two_words": (8, 960, 1, 2),  # 15 positions a lane: two words of flags
    "chunks": (8, 256, 7, 1),  # rows do not fit DST: two chunks of two positions
    "chunks_of_four": (8, 320, 6, 2),  # 5 positions in chunks of 4
}


@pytest.mark.parametrize("name", GEOMETRIES)
def test_every_result_is_that_of_torch(name, build_nms, run_nms):
    height, width, radius, cores = GEOMETRIES[name]
    nms = build_nms(height, width, radius, threshold=0.2, border=2, core_limit=cores)
    image = random_scores(height, width)
    result = run_nms(nms, image)
    result.check(nms, image)
    assert result.counts.sum() > 0


class TestScores:
    """Score maps that are special, on one geometry of five rows a core."""

    HEIGHT, WIDTH, RADIUS, CORES = 16, 64, 4, 4

    @pytest.fixture
    def nms(self, build_nms):
        return build_nms(self.HEIGHT, self.WIDTH, self.RADIUS, threshold=0.0, border=0, core_limit=self.CORES)

    def test_zeros_give_nothing(self, nms, run_nms):
        result = run_nms(nms, torch.zeros(self.HEIGHT, self.WIDTH, dtype=torch.bfloat16))
        assert not result.map.any()
        assert not result.counts.any()

    def test_plateau_overflows_and_says_so(self, nms, run_nms):
        image = torch.full((self.HEIGHT, self.WIDTH), 0.5, dtype=torch.bfloat16)
        result = run_nms(nms, image)
        result.check(nms, image)
        assert torch.equal(result.map, image)
        found = layout.decode_candidates(result.candidates, nms.plan.slot_map)
        assert found.overflowed == nms.plan.slot_map.slots
        assert (result.counts == 2 * self.WIDTH).all()

    def test_peaks_on_borders_and_between_cores(self, nms, run_nms):
        image = peaks(self.HEIGHT, self.WIDTH, nms.plan.rows)
        result = run_nms(nms, image)
        result.check(nms, image)
        assert torch.equal(result.map, image)

    def test_denormals_are_scores(self, nms, run_nms):
        generator = torch.Generator().manual_seed(3)
        bits = torch.randint(0, SMALLEST_NORMAL + 3, (self.HEIGHT, self.WIDTH), generator=generator)
        bits[0, :2] = torch.tensor([DENORMAL, 0])
        bits[-1, -1] = SMALLEST_NORMAL
        image = from_bits(bits)
        result = run_nms(nms, image)
        result.check(nms, image)
        found = result.map.view(torch.int16)
        assert ((found > 0) & (found < SMALLEST_NORMAL)).any()

    def test_largest_scores(self, nms, run_nms):
        generator = torch.Generator().manual_seed(4)
        image = from_bits(torch.randint(0x3F00, 0x3F81, (self.HEIGHT, self.WIDTH), generator=generator))
        run_nms(nms, image).check(nms, image)

    @settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(data=st.data())
    def test_any_scores_and_parameters(self, nms, run_nms, data):
        levels = data.draw(st.lists(st.integers(0, 0x3F80), min_size=2, max_size=5), label="bits")
        seed = data.draw(st.integers(0, 1000), label="seed")
        chosen = np.random.default_rng(seed).choice(levels, (self.HEIGHT, self.WIDTH))
        image = from_bits(torch.from_numpy(chosen.astype(np.int32)))
        level = data.draw(st.sampled_from(levels), label="threshold bits")
        nms.set_params(min(from_bits(torch.tensor([level])).item(), 0.99), data.draw(st.integers(0, 7), label="border"))
        run_nms(nms, image).check(nms, image)


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(
    cell_rows=st.integers(1, 2),
    cell_columns=st.integers(1, 14),
    radius=st.integers(1, 5),
    cores=st.integers(1, 3),
    seed=st.integers(0, 100),
)
def test_any_geometry(device, run_nms, cell_rows, cell_columns, radius, cores, seed):
    from ttsp_ros.tenstorrent.nms import DeviceNms

    height, width = 8 * cell_rows, 8 * cell_columns
    nms = DeviceNms(device, height, width, radius, threshold=0.3, border=1, core_limit=cores)
    image = random_scores(height, width, seed)
    run_nms(nms, image).check(nms, image)
    nms.release()


class TestParameters:
    HEIGHT, WIDTH = 16, 64

    @pytest.fixture
    def nms(self, build_nms):
        return build_nms(self.HEIGHT, self.WIDTH, 4, threshold=0.4, border=4, core_limit=4)

    def test_thresholds_around_and_between_bf16_values(self, nms, run_nms):
        """A score equal to the threshold does not pass; what lies between two bf16 values acts as the lower."""
        image = torch.zeros(self.HEIGHT, self.WIDTH, dtype=torch.bfloat16)
        image[8, 32] = 0.5
        bits = bf16_threshold_bits(0.5)
        below, above = (from_bits(torch.tensor([bits + d])).item() for d in (-1, 1))
        for threshold, passes in (
            (below, True),
            ((below + 0.5) / 2, True),
            (float(np.nextafter(np.float32(0.5), np.float32(0))), True),
            (0.5, False),
            ((above + 0.5) / 2, False),
            (above, False),
        ):
            nms.set_params(threshold, 4)
            result = run_nms(nms, image)
            result.check(nms, image)
            assert result.counts.sum() == passes, threshold

    def test_parameters_need_no_new_program(self, nms, run_nms, device):
        image = random_scores(self.HEIGHT, self.WIDTH)
        run_nms(nms, image).check(nms, image)
        programs = device.num_program_cache_entries()
        assert programs > 0
        seen = set()
        for threshold, border, size in ((0.4, 0, None), (0.05, 6, None), (0.2, 2, (11, 40)), (0.2, 2, None)):
            nms.set_params(threshold, border, image_size=size)
            result = run_nms(nms, image)
            result.check(nms, image)
            seen.add(int(result.counts.sum()))
        assert len(seen) == 4
        assert device.num_program_cache_entries() == programs

    @pytest.mark.parametrize(
        ("threshold", "border", "size", "message"),
        [
            (1.0, 4, None, "0 <= threshold < 1"),
            (-0.1, 4, None, "0 <= threshold < 1"),
            (0.5, 8, None, r"0\.\.7 pixels"),
            (0.5, -1, None, r"0\.\.7 pixels"),
            (0.5, 4, (8, 64), r"0\.\.3 pixels"),
            (0.5, 0, (17, 64), "up to 16x64"),
        ],
    )
    def test_wrong_parameters_are_refused_and_change_nothing(self, nms, threshold, border, size, message):
        before = nms.written_params
        with pytest.raises(ValueError, match=message):
            nms.set_params(threshold, border, image_size=size)
        assert nms.written_params == before

    def test_other_scores_are_refused(self, nms, run_nms):
        with pytest.raises(ValueError, match=r"expected bfloat16 \(1, 1, 16, 65\)"):
            nms(run_nms.upload(random_scores(8, 64)))


def test_another_capacity(build_nms, run_nms):
    """Pages that are no multiple of any alignment; slots above and below their capacity."""
    nms = build_nms(8, 64, 1, threshold=0.05, border=1, capacity=5, core_limit=2)
    image = random_scores(8, 64)
    image[:4] = 0
    image[2, 8:24:4] = 0.5
    result = run_nms(nms, image)
    result.check(nms, image)
    assert result.counts.max() > 5
    assert 0 < result.counts[result.counts > 0].min() <= 5


def test_map_only(build_nms, run_nms):
    import ttnn

    nms = build_nms(8, 64, 3, border=1, emit_keypoints=False, core_limit=2)
    image = random_scores(8, 64)
    output = nms(run_nms.upload(image))
    assert output.candidates is output.records is output.counts is None
    from ttsp_ros.superpoint import keypoints

    found = ttnn.to_torch(output.map).reshape(8, 64)
    assert torch.equal(found.view(torch.int16), keypoints.nms(image, 3).view(torch.int16))


def test_keypoints_only(build_nms, run_nms):
    import ttnn

    nms = build_nms(8, 64, 3, threshold=0.2, border=1, emit_map=False, core_limit=2)
    both = build_nms(8, 64, 3, threshold=0.2, border=1, core_limit=2)
    image = random_scores(8, 64)
    output = nms(run_nms.upload(image))
    assert output.map is None
    counts = ttnn.to_torch(output.counts).numpy().view(np.uint32)
    expected = run_nms(both, image)
    assert layout.decode_counts(counts, nms.plan.slot_map.slots).tolist() == expected.counts.tolist()


def test_release_frees_once(device, run_nms):
    from ttsp_ros.tenstorrent.nms import DeviceNms

    nms = DeviceNms(device, 8, 64, 3, core_limit=2, border=1)
    nms.release()
    nms.release()
    with pytest.raises(RuntimeError, match="released"):
        nms(run_nms.upload(random_scores(8, 64)))
    with pytest.raises(RuntimeError, match="released"):
        nms.set_params(0.1, 1)


@pytest.mark.simulator(grid="13x10")
def test_the_other_grid(build_nms, run_nms, device):
    """13x10, which cards with older firmware show: cores lie elsewhere, the result is the same."""
    height, width, radius, cores = GEOMETRIES["row_a_core"]
    nms = build_nms(height, width, radius, threshold=0.2, border=2, core_limit=cores)
    assert nms.cores[:14] == [(x, 0) for x in range(13)] + [(0, 1)]
    image = random_scores(height, width)
    run_nms(nms, image).check(nms, image)


def test_480x640_fits_the_whole_grid_and_can_be_captured(build_nms, device, capsys):
    """NO_DISPATCH: ttnn checks shapes, shards and L1 of both operations although nothing runs."""
    import ttnn

    nms = build_nms(480, 640, 4)
    plan = nms.plan
    assert (plan.rows, plan.cores, plan.block, plan.chunks) == (5, 96, 5, 1)
    cells = torch.zeros(1, 1, 4800, 65, dtype=torch.bfloat16)
    host = ttnn.from_torch(cells, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT)
    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    nms(ttnn.to_device(host, device, memory_config=ttnn.DRAM_MEMORY_CONFIG))
    peak = ttnn.graph.extract_resource_usage_per_core(ttnn.graph.end_graph_capture())
    assert 0 < peak.peak_total <= plan.l1_bytes
    with capsys.disabled():
        print(f"\n{plan}; peak while it runs: {peak.peak_total} bytes a core")


def photograph_scores(height: int, width: int) -> torch.Tensor:
    """bf16 [H, W]: the network's scores of a photograph."""
    import cv2
    from skimage import data

    from ttsp_ros.superpoint.keypoints import fold
    from ttsp_ros.superpoint.network import SuperPointNetwork
    from ttsp_ros.superpoint.weights import load_parameters

    gray = cv2.cvtColor(data.coffee(), cv2.COLOR_RGB2GRAY)
    image = torch.from_numpy(cv2.resize(gray, (width, height), interpolation=cv2.INTER_AREA))
    return fold(SuperPointNetwork(load_parameters(), torch.bfloat16)(image).cells).contiguous()


def test_a_part_of_a_photograph(build_nms, run_nms):
    image = photograph_scores(240, 320)[64:96, 100:228].contiguous()
    nms = build_nms(32, 128, 4, threshold=0.005, border=4, core_limit=4)
    result = run_nms(nms, image)
    result.check(nms, image)
    assert result.counts.sum() > 5


@pytest.mark.device_full
@pytest.mark.timeout(3600)
def test_a_photograph_of_480x640_on_the_whole_grid(build_nms, run_nms):
    image = photograph_scores(480, 640)
    nms = build_nms(480, 640, 4, threshold=0.005, border=4)
    result = run_nms(nms, image)
    result.check(nms, image)
    assert result.counts.sum() > 100
