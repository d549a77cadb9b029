"""The debug image."""

from __future__ import annotations

import numpy as np

from ttsp_ros.ros.overlay import COLORMAPS, OverlaySettings, draw, score_colors
from ttsp_ros.superpoint.features import DESCRIPTOR_DIM, Features


def features(*rows: tuple[float, float, float]) -> Features:
    table = np.array(rows, np.float32).reshape(-1, 3)
    return Features(table[:, :2].copy(), table[:, 2].copy(), np.zeros((len(table), DESCRIPTOR_DIM), np.float32))


def changed(image: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """bool [H, W]."""
    return (drawn != image[..., None]).any(axis=2)


def test_a_circle_is_drawn_around_the_keypoint_and_nowhere_else():
    image = np.full((40, 60), 128, np.uint8)
    where = np.argwhere(changed(image, draw(image, features((30, 20, 0.5)), OverlaySettings(radius=5))))
    distance = np.linalg.norm(where - (20, 30), axis=1)
    assert len(where) > 20 and distance.min() > 3 and distance.max() < 7


def test_only_the_best_are_drawn():
    image = np.zeros((40, 60), np.uint8)
    two = features((15, 20, 0.9), (45, 20, 0.1))
    mask = changed(image, draw(image, two, OverlaySettings(max_keypoints=1)))
    assert mask[:, :30].any() and not mask[:, 30:].any()


def test_no_keypoints_is_the_image_itself():
    image = np.random.default_rng(0).integers(0, 255, (8, 9), np.uint8)
    np.testing.assert_array_equal(draw(image, features(), OverlaySettings()), np.stack([image] * 3, axis=2))


def test_colours_span_the_map_whatever_the_range_of_scores():
    for name in COLORMAPS:
        low, high = score_colors(np.array([0.005, 0.006], np.float32), name)
        wide = score_colors(np.array([1e-4, 0.01, 1.0], np.float32), name)
        np.testing.assert_array_equal([low, high], wide[[0, 2]])
        assert (low != high).any()
    assert len(score_colors(np.array([0.5, 0.5], np.float32), "turbo")) == 2
