"""The debug image: keypoints drawn into the picture, coloured by their score."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np

from ttsp_ros.superpoint.features import Features

COLORMAPS = {
    "turbo": cv2.COLORMAP_TURBO,
    "viridis": cv2.COLORMAP_VIRIDIS,
    "plasma": cv2.COLORMAP_PLASMA,
    "cividis": cv2.COLORMAP_CIVIDIS,
    "jet": cv2.COLORMAP_JET,
}

# Fractional bits of the coordinates that OpenCV draws at.
_SHIFT = 4


@dataclass(frozen=True)
class OverlaySettings:
    """How the debug image looks.

    Attributes:
        radius: of the circles, in pixels.
        colormap: a key of COLORMAPS.
        max_keypoints: at most this many are drawn, best first.
    """

    radius: int = 3
    colormap: str = "turbo"
    max_keypoints: int = 1024


def draw(image: np.ndarray, features: Features, settings: OverlaySettings) -> np.ndarray:
    """The image with a circle around each keypoint.

    Args:
        image: uint8 [H, W], gray.
        features: of this image.

    Returns:
        uint8 [H, W, 3], bgr.
    """
    canvas = cv2.cvtColor(np.ascontiguousarray(image), cv2.COLOR_GRAY2BGR)
    centers = np.rint(features.keypoints[: settings.max_keypoints] * (1 << _SHIFT)).astype(np.int32)
    colors = score_colors(features.scores[: settings.max_keypoints], settings.colormap)
    # Best last, so that it lies on top.
    for center, color in zip(centers[::-1].tolist(), colors[::-1].tolist(), strict=True):
        cv2.circle(canvas, center, settings.radius << _SHIFT, color, 1, cv2.LINE_AA, _SHIFT)
    return canvas


def score_colors(scores: np.ndarray, colormap: str) -> np.ndarray:
    """uint8 [N, 3] (bgr): the lowest score gets the colormap's first colour, the highest its last, by their logarithm.

    The scores of one image span several powers of ten, so that a linear scale would show one colour.
    """
    if not len(scores):
        return np.zeros((0, 3), np.uint8)
    logs = np.log(np.maximum(scores, np.finfo(np.float32).tiny))
    low, high = float(logs.min()), float(logs.max())
    levels = np.full(len(scores), 255.0) if high == low else (logs - low) * (255.0 / (high - low))
    return cv2.applyColorMap(levels.astype(np.uint8).reshape(-1, 1), COLORMAPS[colormap]).reshape(-1, 3)
