"""What SuperPoint gives for one image, and what a user may ask of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DESCRIPTOR_DIM = 256


@dataclass(frozen=True)
class Features:
    """Keypoints of one image, best first; equal scores in raster order (row by row, left to right).

    Attributes:
        keypoints: float32 [N, 2], (x, y) in pixels of the image as received. (0, 0) is the centre of its
            top-left pixel.
        scores: float32 [N], in (0, 1].
        descriptors: float32 [N, 256], each row of unit length.
    """

    keypoints: np.ndarray
    scores: np.ndarray
    descriptors: np.ndarray

    def __post_init__(self) -> None:
        count = len(self.scores)
        expected = {
            "keypoints": (self.keypoints, (count, 2)),
            "scores": (self.scores, (count,)),
            "descriptors": (self.descriptors, (count, DESCRIPTOR_DIM)),
        }
        for name, (array, shape) in expected.items():
            if array.shape != shape or array.dtype != np.float32:
                raise ValueError(f"{name}: got {array.dtype} {array.shape}, expected float32 {shape}")

    def __len__(self) -> int:
        return len(self.scores)

    @staticmethod
    def empty() -> Features:
        """No keypoint at all: shapes (0, 2), (0,) and (0, 256)."""
        return Features(
            np.zeros((0, 2), np.float32), np.zeros(0, np.float32), np.zeros((0, DESCRIPTOR_DIM), np.float32)
        )


@dataclass(frozen=True)
class DetectionSettings:
    """What may change from one frame to the next, without building anything anew on the torch backend.

    Attributes:
        threshold: a keypoint's score is greater than this; in [0, 1).
        nms_radius: a keypoint is the maximum of the (2 r + 1) x (2 r + 1) pixels around it; in 1..8.
        border: keypoints closer than this many pixels to any edge are left out; NMS comes first, so they still
            suppress. At least 0.
        max_keypoints: at most this many are kept, best first; at least 1.
    """

    threshold: float = 0.005
    nms_radius: int = 4
    border: int = 4
    max_keypoints: int = 1024

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold < 1.0:
            raise ValueError(f"threshold: got {self.threshold}, allowed is 0 <= threshold < 1")
        if not 1 <= self.nms_radius <= 8:
            raise ValueError(f"nms_radius: got {self.nms_radius}, allowed is 1..8 pixels")
        if self.border < 0:
            raise ValueError(f"border: got {self.border}, allowed is 0 pixels and more")
        if self.max_keypoints < 1:
            raise ValueError(f"max_keypoints: got {self.max_keypoints}, allowed is 1 and more")
