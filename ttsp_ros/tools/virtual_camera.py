"""A camera that looks at a photograph and moves smoothly, with its motion known exactly.

The photograph lies in the plane z = 0, one unit a pixel, its centre at the origin. A pinhole camera with intrinsic
matrix K looks at it from C with rotation R (world to camera), so photograph pixel (u, v) is seen at
K R ((u - cu, v - cv, 0) - C): a homography. Pixel (0, 0) is the centre of the top-left pixel, here and there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np

# Photographs in the scikit-image wheel: people, things on a table, an animal, machines.
PHOTOGRAPHS = ("astronaut", "camera", "coffee", "chelsea", "rocket", "brick", "motorcycle")


@dataclass(frozen=True)
class Camera:
    """A pinhole camera without distortion; the principal point is the centre of the image."""

    width: int = 640
    height: int = 480
    focal_length: float = 525.0

    @property
    def matrix(self) -> np.ndarray:
        """K, float64 [3, 3], in pixels."""
        return np.array(
            [
                [self.focal_length, 0.0, (self.width - 1) / 2],
                [0.0, self.focal_length, (self.height - 1) / 2],
                [0.0, 0.0, 1.0],
            ]
        )


@dataclass(frozen=True)
class Motion:
    """How far the camera goes around its mean pose on a closed, smooth path.

    Attributes:
        zoom: mean magnification relative to the one at which the photograph just covers the frame.
        zoom_swing: relative change of the magnification, each way.
        shift: sideways movement each way, as a part of the photograph's width and height.
        roll, tilt: rotation about and across the optical axis each way, in degrees.
        turns: how many times the path is walked in a sequence.
    """

    zoom: float = 1.4
    zoom_swing: float = 0.08
    shift: float = 0.05
    roll: float = 7.0
    tilt: float = 6.0
    turns: float = 0.5


@dataclass(frozen=True)
class Frame:
    """One picture of the sequence.

    Attributes:
        image: uint8 [H, W, 3] (RGB).
        homography: float64 [3, 3], from pixels of the photograph to pixels of `image`.
    """

    image: np.ndarray
    homography: np.ndarray


def photograph(name: str) -> np.ndarray:
    """A photograph of the scikit-image wheel, uint8 [H, W, 3] (RGB)."""
    if name not in PHOTOGRAPHS:
        raise ValueError(f"photograph: got {name!r}, there are {', '.join(PHOTOGRAPHS)}")
    from skimage import data

    image = data.stereo_motorcycle()[0] if name == "motorcycle" else getattr(data, name)()
    return image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)


def homographies(photo_size: tuple[int, int], count: int, camera: Camera, motion: Motion) -> np.ndarray:
    """Homographies photograph -> frame of a smooth path, float64 [count, 3, 3]; `photo_size` is (height, width)."""
    height, width = photo_size
    fill = max(camera.width / width, camera.height / height)
    to_plane = np.array([[1.0, 0.0, -(width - 1) / 2], [0.0, 1.0, -(height - 1) / 2], [0.0, 0.0, 1.0]])
    phases = 2 * np.pi * motion.turns * np.arange(count) / max(count, 1)
    result = np.empty((count, 3, 3))
    for index, phase in enumerate(phases):
        magnification = fill * motion.zoom * (1 + motion.zoom_swing * np.sin(phase + 2.0))
        centre = np.array(
            [
                motion.shift * width * np.sin(phase),
                0.5 * motion.shift * height * np.sin(2 * phase + 0.7),
                -camera.focal_length / magnification,
            ]
        )
        rotation = _rotation(
            np.radians(motion.tilt) * np.cos(phase),
            np.radians(motion.tilt) * np.sin(phase + 1.0),
            np.radians(motion.roll) * np.sin(phase - 0.5),
        )
        # Turning would move the photograph out of sight: the camera steps aside to keep looking at the same point.
        centre[:2] += _looked_at(rotation, centre[2])
        plane_to_camera = np.column_stack((rotation[:, 0], rotation[:, 1], -rotation @ centre))
        homography = camera.matrix @ plane_to_camera @ to_plane
        result[index] = homography / homography[2, 2]
    return result


def frames(
    photo: np.ndarray, count: int, camera: Camera, motion: Motion | None = None, noise: float = 2.0, seed: int = 0
) -> Iterator[Frame]:
    """The frames of one sequence.

    Args:
        photo: uint8 [H, W, 3].
        count: number of frames.
        camera: what sees it.
        motion: the path; None for the usual one.
        noise: standard deviation of the sensor's noise, in grey levels.
        seed: of the noise.
    """
    generator = np.random.default_rng(seed)
    size = (camera.width, camera.height)
    height, width = photo.shape[:2]
    for homography in homographies((height, width), count, camera, motion or Motion()):
        clean = cv2.warpPerspective(photo, homography, size, flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT_101)
        noisy = clean + generator.normal(0.0, noise, clean.shape)
        yield Frame(np.clip(np.rint(noisy), 0, 255).astype(np.uint8), homography)


def _rotation(about_x: float, about_y: float, about_z: float) -> np.ndarray:
    matrix = np.eye(3)
    for axis, angle in enumerate((about_x, about_y, about_z)):
        vector = np.zeros(3)
        vector[axis] = angle
        matrix = cv2.Rodrigues(vector)[0] @ matrix
    return matrix


def _looked_at(rotation: np.ndarray, depth: float) -> np.ndarray:
    """Where to stand, relative to a point of the plane, so that the optical axis goes through that point."""
    axis = rotation[2]  # the optical axis in world coordinates
    return axis[:2] / axis[2] * depth
