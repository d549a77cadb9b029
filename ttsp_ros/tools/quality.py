"""How good features are on photographs, with the measures of the SuperPoint paper (DeTone et al. 2018, section 7).

Every photograph is warped by random homographies and features of both images are compared:

* repeatability at 240x320: of the best 300 keypoints of each image that both can see, the part found again within
  3 pixels;
* homography at 480x640: best 1000 keypoints, mutual nearest neighbours, RANSAC; the part of the pairs whose image
  corners are mapped within 1, 3 and 5 pixels of the truth on average;
* matching precision: the part of those matches that are within 3 pixels of the truth.

    python -m ttsp_ros.tools.quality [--precision bfloat16] [--weights FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from ttsp_ros.superpoint.features import DESCRIPTOR_DIM, DetectionSettings, Features
from ttsp_ros.tools.repeatability import match, project, repeatability

Extract = Callable[[np.ndarray, DetectionSettings], Features]
Size = tuple[int, int]

#: Files of the scikit-image wheel, of people, things, animals, textures, the sky, a microscope, print.
PHOTOGRAPHS = (
    "astronaut.png",
    "brick.png",
    "camera.png",
    "chelsea.png",
    "clock_motion.png",
    "coffee.png",
    "coins.png",
    "grass.png",
    "gravel.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "moon.png",
    "motorcycle_left.png",
    "page.png",
    "retina.jpg",
    "rocket.jpg",
)
REPEATABILITY_SIZE: Size = (240, 320)
HOMOGRAPHY_SIZE: Size = (480, 640)
CORNER_THRESHOLDS = (1.0, 3.0, 5.0)


def load_photograph(name: str, size: Size) -> np.ndarray:
    """uint8 [size], gray: the middle of the photograph in the aspect ratio of (height, width) `size`."""
    from skimage import data, io

    # Not by OpenCV, whose PNG reader complains on stderr about colour profiles of some of them.
    image = io.imread(Path(data.__file__).parent / name)
    if image.ndim == 3:
        image = cv2.cvtColor(np.ascontiguousarray(image[..., :3]), cv2.COLOR_RGB2GRAY)
    height, width = image.shape
    scale = min(height / size[0], width / size[1])
    crop_height, crop_width = round(size[0] * scale), round(size[1] * scale)
    top, left = (height - crop_height) // 2, (width - crop_width) // 2
    cropped = image[top : top + crop_height, left : left + crop_width]
    return cv2.resize(cropped, size[::-1], interpolation=cv2.INTER_AREA if scale > 1 else cv2.INTER_LINEAR)


@dataclass(frozen=True)
class Warp:
    """How far the random homographies go.

    Attributes:
        corner_jitter: each corner moves up to this part of the image's width, each way.
        rotation: degrees, each way.
        scale: factor, from 1 - scale to 1 + scale.
    """

    corner_jitter: float = 1 / 8
    rotation: float = 20.0
    scale: float = 0.15


IDENTITY = Warp(0.0, 0.0, 0.0)


def random_homography(warp: Warp, size: Size, random: np.random.Generator) -> np.ndarray:
    """float64 [3, 3], from pixels of an image of (height, width) `size` to those of the warped image."""
    height, width = size
    corners = image_corners(size)
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    angle = np.deg2rad(random.uniform(-warp.rotation, warp.rotation))
    zoom = random.uniform(1 - warp.scale, 1 + warp.scale)
    turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    jitter = random.uniform(-1, 1, (4, 2)) * warp.corner_jitter * width
    target = (corners - centre) @ turn.T + centre + jitter
    return cv2.getPerspectiveTransform(corners.astype(np.float32), target.astype(np.float32))


def image_corners(size: Size) -> np.ndarray:
    """float64 [4, 2], centres of the corner pixels."""
    bottom, right = size[0] - 1.0, size[1] - 1.0
    return np.array([[0.0, 0.0], [right, 0.0], [right, bottom], [0.0, bottom]])


@dataclass(frozen=True)
class Quality:
    """Means over all pairs, each in 0..1, and the number of pairs."""

    repeatability: float
    homography: tuple[float, ...]
    match_precision: float
    pairs: int

    def row(self, name: str) -> str:
        """A row of a Markdown table."""
        within = " / ".join(f"{part:.2f}" for part in self.homography)
        return f"| {name} | {self.repeatability:.3f} | {within} | {self.match_precision:.3f} |"


TABLE_HEAD = "| | repeatability | homography within 1 / 3 / 5 px | match precision |\n|---|---|---|---|"


def evaluate(
    extract: Extract,
    photographs: Sequence[str] = PHOTOGRAPHS,
    warps_each: int = 4,
    warp: Warp = Warp(),
    seed: int = 0,
) -> Quality:
    """Quality of features over photographs; the same pairs for the same seed.

    Args:
        extract: features of a gray image.
    """
    repeated, matched, errors = [], [], []
    for first, second, homography in _pairs(photographs, REPEATABILITY_SIZE, warps_each, warp, seed):
        settings = DetectionSettings(max_keypoints=100_000)
        points = _best_shared(extract(first, settings), extract(second, settings), homography, REPEATABILITY_SIZE)
        repeated.append(repeatability(*points, homography, REPEATABILITY_SIZE[::-1]))
    for first, second, homography in _pairs(photographs, HOMOGRAPHY_SIZE, warps_each, warp, seed):
        settings = DetectionSettings(max_keypoints=1000)
        one, other = extract(first, settings), extract(second, settings)
        matches = match(one, other, homography)
        matched.append(matches.precision)
        rows, other_rows = matches.indices.T
        errors.append(_corner_error(one.keypoints[rows], other.keypoints[other_rows], homography))
    found = np.array(errors)[:, None] <= np.array(CORNER_THRESHOLDS)
    return Quality(
        float(np.nanmean(repeated)), tuple(found.mean(axis=0).tolist()), float(np.nanmean(matched)), len(errors)
    )


def _pairs(
    photographs: Sequence[str], size: Size, count: int, warp: Warp, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    for index, name in enumerate(photographs):
        image = load_photograph(name, size)
        random = np.random.default_rng([seed, index])
        for _ in range(count):
            homography = random_homography(warp, size, random)
            yield image, cv2.warpPerspective(image, homography, size[::-1], flags=cv2.INTER_LINEAR), homography


def _best_shared(
    first: Features, second: Features, homography: np.ndarray, size: Size, count: int = 300
) -> tuple[np.ndarray, np.ndarray]:
    limit = np.array(size[::-1]) - 1
    points = []
    for features, to_other in ((first, homography), (second, np.linalg.inv(homography))):
        projected = project(features.keypoints, to_other)
        shared = ((projected >= 0) & (projected <= limit)).all(axis=1)
        points.append(features.keypoints[shared][:count])
    return points[0], points[1]


def _corner_error(first: np.ndarray, second: np.ndarray, homography: np.ndarray) -> float:
    """Mean distance of the image corners under the homography of matched points and the true one; infinite for none."""
    if len(first) < 4:
        return float("inf")
    cv2.setRNGSeed(0)
    estimated, _ = cv2.findHomography(first, second, cv2.RANSAC, 3.0, maxIters=5000, confidence=0.9999)
    if estimated is None:
        return float("inf")
    corners = image_corners(HOMOGRAPHY_SIZE)
    return float(np.linalg.norm(project(corners, estimated) - project(corners, homography), axis=1).mean())


def keypoint_f1(first: Features, second: Features, radius: float = 2.0) -> float:
    """F1 of two sets of keypoints of one image: the harmonic mean of the parts with another within `radius` pixels."""
    if len(first) == 0 or len(second) == 0:
        return float(len(first) == len(second))
    distance = np.linalg.norm(first.keypoints[:, None] - second.keypoints[None], axis=2) <= radius
    precision, recall = distance.any(axis=1).mean(), distance.any(axis=0).mean()
    return float(2 * precision * recall / (precision + recall)) if precision + recall else 0.0


def f1_at_500(extract: Extract, reference: Extract, photographs: Sequence[str] = PHOTOGRAPHS) -> float:
    """Mean of `keypoint_f1` of the best 500 keypoints, at 480x640."""
    settings = DetectionSettings(max_keypoints=500)
    images = [load_photograph(name, HOMOGRAPHY_SIZE) for name in photographs]
    return float(np.mean([keypoint_f1(extract(image, settings), reference(image, settings)) for image in images]))


def sift(image: np.ndarray, settings: DetectionSettings) -> Features:
    """OpenCV's SIFT as a yardstick: 128 values a descriptor, filled up with zeros; threshold and radius are its own."""
    points, descriptors = cv2.SIFT.create(settings.max_keypoints).detectAndCompute(image, np.full_like(image, 255))
    if not points:
        return Features.empty()
    order = np.argsort([-point.response for point in points], kind="stable")[: settings.max_keypoints]
    values = np.zeros((len(order), DESCRIPTOR_DIM), np.float32)
    values[:, :128] = descriptors[order]
    values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    keypoints = np.array([points[index].pt for index in order], np.float32)
    return Features(keypoints, np.array([points[index].response for index in order], np.float32), values)


def main(arguments: Sequence[str] | None = None) -> int:
    from ttsp_ros.superpoint.extractor import PRECISIONS, TorchExtractor

    parser = argparse.ArgumentParser(description="Quality of SuperPoint and of SIFT on warped photographs.")
    parser.add_argument("--precision", choices=PRECISIONS, default="auto")
    parser.add_argument("--weights", type=Path, help="weight file (default: the fetched one)")
    options = parser.parse_args(arguments)
    extractor = TorchExtractor(options.weights, options.precision)
    print(TABLE_HEAD)
    print(evaluate(extractor.extract).row(f"SuperPoint ({extractor.description})"))
    print(evaluate(sift).row("SIFT (OpenCV)"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
