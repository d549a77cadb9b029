"""Fold, NMS, threshold, border, mask and top-k against definitions written out pixel by pixel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttsp_ros.superpoint.features import DetectionSettings
from ttsp_ros.superpoint.keypoints import (
    above_threshold,
    bf16_threshold_bits,
    candidates,
    candidates_of_nms_map,
    detect,
    fold,
    nms,
    select,
    top_k,
)

DTYPES = [torch.float32, torch.bfloat16]


def brute_force_nms(scores: np.ndarray, radius: int) -> np.ndarray:
    height, width = scores.shape
    result = np.zeros_like(scores)
    for y in range(height):
        for x in range(width):
            window = scores[max(0, y - radius) : y + radius + 1, max(0, x - radius) : x + radius + 1]
            if scores[y, x] == window.max():
                result[y, x] = scores[y, x]
    return result


def brute_force_keypoints(
    scores: np.ndarray, options: DetectionSettings, size: tuple[int, int], mask: np.ndarray | None
) -> list[tuple[float, int, int]]:
    suppressed = brute_force_nms(scores, options.nms_radius)
    found = []
    for y in range(options.border, size[0] - options.border):
        for x in range(options.border, size[1] - options.border):
            score = suppressed[y, x]
            if score > np.float32(options.threshold) and (mask is None or mask[y, x]):
                found.append((-float(score), y, x))
    return [(-score, y, x) for score, y, x in sorted(found)[: options.max_keypoints]]


@st.composite
def score_maps(draw) -> torch.Tensor:
    """Maps with the hard cases often: few levels (ties, plateaus), single peaks, all equal, zeros."""
    height, width = draw(st.integers(1, 30)), draw(st.integers(1, 30))
    levels = draw(st.sampled_from([1, 2, 4, 200]))
    seed = draw(st.integers(0, 2**32 - 1))
    values = np.random.default_rng(seed).integers(0, levels, (height, width)) / levels
    if draw(st.booleans()):
        values[draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))] = 1.0
    return torch.from_numpy(values).to(draw(st.sampled_from(DTYPES)))


@given(scores=score_maps(), radius=st.integers(1, 8))
@settings(max_examples=300, deadline=None)
def test_nms_is_the_definition_bit_by_bit(scores, radius):
    expected = brute_force_nms(scores.float().numpy(), radius)
    result = nms(scores, radius)
    assert result.dtype == scores.dtype
    np.testing.assert_array_equal(result.float().numpy(), expected)


@given(scores=score_maps(), data=st.data())
@settings(max_examples=300, deadline=None)
def test_keypoints_are_the_definition(scores, data):
    height, width = scores.shape
    options = DetectionSettings(
        threshold=data.draw(st.sampled_from([0.0, 0.005, 0.25, 0.5, 0.999])),
        nms_radius=data.draw(st.integers(1, 8)),
        border=data.draw(st.integers(0, 16)),
        max_keypoints=data.draw(st.sampled_from([1, 3, 10, 1024])),
    )
    size = data.draw(st.integers(1, height)), data.draw(st.integers(1, width))
    mask = None
    if data.draw(st.booleans()):
        mask = np.random.default_rng(data.draw(st.integers(0, 99))).random((height, width)) < 0.7
    torch_mask = None if mask is None else torch.from_numpy(mask)

    raster = candidates(scores, options, size, torch_mask)
    found = select(scores, raster, options.max_keypoints)
    result = list(zip(found.scores.tolist(), found.y.tolist(), found.x.tolist(), strict=True))
    assert result == brute_force_keypoints(scores.float().numpy(), options, size, mask)

    nms_map = nms(scores, options.nms_radius)
    assert torch.equal(candidates_of_nms_map(nms_map, options, size, torch_mask), raster)


@pytest.mark.parametrize("channels", [64, 65])
def test_fold_puts_channels_where_the_paper_does(channels):
    rows, columns = 3, 5
    cells = torch.rand(channels, rows, columns)
    scores = fold(cells)
    assert scores.shape == (24, 40)
    for y in range(24):
        for x in range(40):
            assert scores[y, x] == cells[8 * (y % 8) + x % 8, y // 8, x // 8]


def test_fold_takes_any_memory_order_and_refuses_other_channels():
    cells = torch.rand(3, 5, 65)
    assert torch.equal(fold(cells.permute(2, 0, 1)), fold(cells.permute(2, 0, 1).contiguous()))
    with pytest.raises(ValueError, match=r"got \(63, 3, 5\)"):
        fold(torch.rand(63, 3, 5))


@given(threshold=st.floats(0, 1, exclude_max=True, width=64))
@settings(max_examples=100, deadline=None)
def test_threshold_of_bf16_bits_is_the_comparison_of_values(threshold):
    every_score = torch.arange(0x3F81, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)  # 0 to 1
    expected = every_score.float().numpy() > np.float32(threshold)
    np.testing.assert_array_equal(above_threshold(every_score, threshold).numpy(), expected)
    assert 0 <= bf16_threshold_bits(threshold) <= 0x3F80


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_keeps_raster_order_among_equal_scores(dtype):
    scores = torch.tensor([0.5, 0.25, 0.5, 0.75, 0.25, 0.5], dtype=dtype)
    assert top_k(scores, 10).tolist() == [3, 0, 2, 5, 1, 4]
    assert top_k(scores, 3).tolist() == [3, 0, 2]
    assert top_k(scores[:0], 3).tolist() == []


def test_border_pixel_suppresses_its_neighbour():
    cells = torch.zeros(65, 4, 4)
    scores = fold(cells)
    scores[3, 10], scores[5, 10], scores[20, 20] = 0.9, 0.8, 0.7
    cells = scores.reshape(4, 8, 4, 8).permute(1, 3, 0, 2).reshape(64, 4, 4)
    found = detect(cells, DetectionSettings())
    assert (found.x.tolist(), found.y.tolist()) == ([20], [20])


def test_nothing_found_has_length_zero():
    found = detect(torch.zeros(65, 4, 4), DetectionSettings(threshold=0.0))
    assert len(found) == 0 and found.x.dtype == torch.int64


def test_border_wider_than_the_image_leaves_nothing():
    found = detect(torch.rand(65, 4, 4), DetectionSettings(border=100))
    assert len(found) == 0
