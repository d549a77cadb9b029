import math

import cv2
import numpy as np
import pytest

from ttsp_ros.superpoint.features import Features
from ttsp_ros.tools.repeatability import match, project, repeatability

SIZE = (640, 480)
SHIFT = np.array([[1.0, 0, 100], [0, 1, 0], [0, 0, 1]])


def features(keypoints, seed=0):
    descriptors = np.random.default_rng(seed).normal(size=(len(keypoints), 256)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    return Features(np.asarray(keypoints, np.float32), np.ones(len(keypoints), np.float32), descriptors)


def points(count, seed=1):
    return np.random.default_rng(seed).uniform([5, 5], [634, 474], (count, 2)).astype(np.float32)


def test_the_identity_repeats_everything():
    keypoints = points(300)
    assert repeatability(keypoints, keypoints, np.eye(3), SIZE) == 1.0
    result = match(features(keypoints), features(keypoints), np.eye(3))
    assert result.precision == 1.0
    assert len(result.indices) == 300


def test_only_keypoints_that_both_frames_see_count():
    """A hundred pixels to the right: what leaves the frame and what comes in does not lower the figure."""
    first = points(400)
    moved = project(first, SHIFT)
    second = np.vstack([moved[moved[:, 0] <= 639], [[20, 30], [60, 200]]]).astype(np.float32)
    assert repeatability(first, second, SHIFT, SIZE) == 1.0


def test_the_radius_is_the_limit():
    first = np.array([[100, 100], [300, 300]], np.float32)
    second = first + np.array([[3.0, 0.0], [0.0, 3.01]], np.float32)
    assert repeatability(first, second, np.eye(3), SIZE, radius=3.0) == 0.5
    assert match(features(first), features(second), np.eye(3), radius=3.0).right.tolist() == [True, False]


def test_chance_agreement_is_that_of_the_area():
    """Independent uniform keypoints: each finds one of N within r with 1 - (1 - pi r^2 / area)^N."""
    values = [repeatability(points(300, seed), points(300, seed + 1000), np.eye(3), SIZE) for seed in range(20)]
    area = 629 * 469
    assert np.mean(values) == pytest.approx(1 - (1 - math.pi * 9 / area) ** 300, rel=0.15)


def test_a_homography_between_frames_is_followed():
    homography = np.array([[0.9, 0.1, 20], [-0.08, 1.05, 10], [1e-4, -5e-5, 1]])
    first = points(500)
    inside = cv2.perspectiveTransform(first[None].astype(float), homography)[0].astype(np.float32)
    assert repeatability(first, inside, homography, SIZE) == 1.0
    assert repeatability(first, inside, np.eye(3), SIZE) < 0.2
    result = match(features(first), features(inside), homography)
    assert len(result.indices) == 500
    assert result.precision == 1.0


def test_matches_are_mutual_and_best_first():
    first, second = features(points(200), seed=3), features(points(150), seed=4)
    result = match(first, second, np.eye(3))
    similarity = first.descriptors @ second.descriptors.T
    for row, column in result.indices:
        assert similarity[row].argmax() == column
        assert similarity[:, column].argmax() == row
    values = similarity[result.indices[:, 0], result.indices[:, 1]]
    assert (np.diff(values) <= 0).all()
    assert len(set(result.indices[:, 0])) == len(result.indices)


@pytest.mark.parametrize("counts", [(0, 0), (0, 5), (5, 0), (1, 1)])
def test_few_or_no_keypoints(counts):
    first, second = (features(points(count)) for count in counts)
    value = repeatability(first.keypoints, second.keypoints, np.eye(3), SIZE)
    result = match(first, second, np.eye(3))
    if counts == (0, 0):
        assert math.isnan(value)
    else:
        assert value == float(counts == (1, 1))
    assert len(result.indices) == int(counts == (1, 1))
    assert math.isnan(result.precision) or result.precision == 1.0
