"""How well keypoints of two frames agree when the homography between them is known.

Repeatability as in SuperPoint (DeTone et al. 2018, section 7.2 and appendix A): of the keypoints that both frames can
see, the part with a keypoint of the other frame within a few pixels, over both directions. Matches are mutual nearest
neighbours of descriptors; one is right when the homography brings its ends within the same distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from ttsp_ros.superpoint.features import Features

RADIUS = 3.0


@dataclass(frozen=True)
class Matches:
    """Mutual nearest neighbours.

    Attributes:
        indices: int64 [M, 2], rows of the first and the second Features.
        right: bool [M], whether the homography agrees.
    """

    indices: np.ndarray
    right: np.ndarray

    @property
    def precision(self) -> float:
        """The part that is right; NaN without any match."""
        return float(self.right.mean()) if len(self.right) else float("nan")


def project(points: np.ndarray, homography: np.ndarray) -> np.ndarray:
    """float64 [N, 2] of points [N, 2] through a homography [3, 3]."""
    if len(points) == 0:
        return np.zeros((0, 2))
    return cv2.perspectiveTransform(points[None].astype(np.float64), homography)[0]


def repeatability(
    first: np.ndarray, second: np.ndarray, homography: np.ndarray, size: tuple[int, int], radius: float = RADIUS
) -> float:
    """Repeatability of keypoints [N, 2] and [M, 2] in 0..1; NaN when neither frame sees a keypoint of the other.

    Args:
        homography: from the first frame to the second.
        size: (width, height) of both frames.
        radius: greatest distance, in pixels.
    """
    seen_by_second = _inside(project(first, homography), size)
    seen_by_first = _inside(project(second, np.linalg.inv(homography)), size)
    shared = first[seen_by_second], second[seen_by_first]
    count = len(shared[0]) + len(shared[1])
    if count == 0:
        return float("nan")
    found = _near(project(shared[0], homography), second, radius)
    found += _near(project(shared[1], np.linalg.inv(homography)), first, radius)
    return found / count


def match(first: Features, second: Features, homography: np.ndarray, radius: float = RADIUS) -> Matches:
    """Mutual nearest neighbours of the descriptors, best similarity first, each judged by the homography."""
    if len(first) == 0 or len(second) == 0:
        return Matches(np.zeros((0, 2), np.int64), np.zeros(0, bool))
    similarity = first.descriptors @ second.descriptors.T
    forward, backward = similarity.argmax(axis=1), similarity.argmax(axis=0)
    rows = np.arange(len(first))
    rows = rows[backward[forward] == rows]
    rows = rows[np.argsort(-similarity[rows, forward[rows]], kind="stable")]
    indices = np.column_stack((rows, forward[rows]))
    error = project(first.keypoints[indices[:, 0]], homography) - second.keypoints[indices[:, 1]]
    return Matches(indices, np.linalg.norm(error, axis=1) <= radius)


def _inside(points: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    return ((points >= 0) & (points <= np.array(size) - 1)).all(axis=1)


def _near(points: np.ndarray, others: np.ndarray, radius: float) -> int:
    if len(points) == 0 or len(others) == 0:
        return 0
    squared = ((points[:, None] - others[None]) ** 2).sum(axis=2)
    return int((squared.min(axis=1) <= radius**2).sum())
