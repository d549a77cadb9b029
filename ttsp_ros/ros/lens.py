"""From pixels to rays: the lens model of a sensor_msgs/CameraInfo. Needs no ROS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np

# A ray that projects further than this from its pixel is no inverse of the model.
TOLERANCE_PIXELS = 0.1
_ITERATIONS = (cv2.TERM_CRITERIA_COUNT | cv2.TERM_CRITERIA_EPS, 100, 1e-9)

# Numbers of coefficients that OpenCV's models take.
_COEFFICIENTS = {"plumb_bob": (4, 5), "rational_polynomial": (8, 12, 14), "equidistant": (4,)}


class LensError(ValueError):
    """No rays can be had from this calibration; the text says why."""


@dataclass(frozen=True)
class Lens:
    """A calibrated camera.

    Attributes:
        model: plumb_bob, rational_polynomial (Brown-Conrady, OpenCV's `calib3d`) or equidistant (Kannala-Brandt,
            OpenCV's `fisheye`); empty: no distortion.
        matrix: float64 [3, 3]: focal lengths and principal point, in pixels of the image as received.
        distortion: float64 [n]: coefficients of the model.
    """

    model: str
    matrix: np.ndarray
    distortion: np.ndarray

    @staticmethod
    def of(info: Any, height: int, width: int, rectified: bool = False) -> Lens:
        """From a CameraInfo for images of height x width pixels.

        Binning and region of interest are taken as image_geometry does: the matrix of the whole sensor is moved by
        the region's offset, then divided by the binning.

        Args:
            info: sensor_msgs/CameraInfo, of rclpy or of rosbags.
            rectified: the images are rectified, so that P holds and there is no distortion.

        Raises:
            LensError: not calibrated, of another size of image, or of a model that isn't known.
        """
        matrix = np.array(info.p, np.float64).reshape(3, 4)[:, :3] if rectified else _square(info.k)
        if matrix[0, 0] == 0 or matrix[1, 1] == 0 or not np.isfinite(matrix).all():
            raise LensError(f"{'P' if rectified else 'K'} of camera_info is empty: the camera isn't calibrated")
        bins = max(info.binning_x, 1), max(info.binning_y, 1)
        region = info.roi
        offset = (region.x_offset, region.y_offset)
        full = (region.width or info.width, region.height or info.height)
        expected = full[0] // bins[0], full[1] // bins[1]
        if expected != (width, height):
            raise LensError(
                f"camera_info is for images of {expected[0]}x{expected[1]} pixels (binning and region of interest "
                f"included), and the image has {width}x{height}"
            )
        matrix = matrix.copy()
        for axis in range(2):
            matrix[axis, 2] -= offset[axis]
            matrix[axis] /= bins[axis]
        model, distortion = ("", np.zeros(0)) if rectified else _distortion(info.distortion_model, info.d)
        return Lens(model, matrix, distortion)

    def rays(self, keypoints: np.ndarray) -> np.ndarray:
        """float32 [N, 2]: (x, y) at depth 1 in the optical frame (x right, y down) for pixels float32 [N, 2].

        NaN where the model can't be inverted: far outside the calibrated part, or 90 degrees off the axis.
        """
        pixels = np.ascontiguousarray(keypoints, np.float64).reshape(-1, 1, 2)
        if not len(pixels):
            return np.zeros((0, 2), np.float32)
        rays = self._undistort(pixels).reshape(-1, 2)
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.linalg.norm(self._project(rays) - pixels[:, 0], axis=1)
            rays[~(error <= TOLERANCE_PIXELS)] = np.nan
        return rays.astype(np.float32)

    def _undistort(self, pixels: np.ndarray) -> np.ndarray:
        if self.model == "equidistant":
            return cv2.fisheye.undistortPoints(pixels, self.matrix, self.distortion, criteria=_ITERATIONS)
        return cv2.undistortPointsIter(pixels, self.matrix, self.distortion, np.eye(3), np.eye(3), _ITERATIONS)

    def _project(self, rays: np.ndarray) -> np.ndarray:
        """float64 [N, 2]: pixels of rays [N, 2]."""
        if self.model == "equidistant":
            points = np.ascontiguousarray(rays).reshape(-1, 1, 2)
            return cv2.fisheye.distortPoints(points, self.matrix, self.distortion).reshape(-1, 2)
        points = np.concatenate([rays, np.ones((len(rays), 1))], axis=1)
        return cv2.projectPoints(points, np.zeros(3), np.zeros(3), self.matrix, self.distortion)[0].reshape(-1, 2)


def _square(numbers: Any) -> np.ndarray:
    return np.array(numbers, np.float64).reshape(3, 3)


def _distortion(model: str, coefficients: Any) -> tuple[str, np.ndarray]:
    distortion = np.array(coefficients, np.float64)
    if not distortion.any():
        # A simulated or rectified camera: nothing to undo, whatever the model is called. For 'equidistant' zero
        # coefficients are a lens all the same.
        return (model, np.zeros(4)) if model == "equidistant" else ("", np.zeros(0))
    allowed = _COEFFICIENTS.get(model)
    if allowed is None:
        raise LensError(f"distortion model '{model[:40]}' isn't known; known are {', '.join(_COEFFICIENTS)}")
    if len(distortion) not in allowed:
        raise LensError(
            f"distortion model {model} with {len(distortion)} coefficients; it has {' or '.join(map(str, allowed))}"
        )
    return model, distortion
