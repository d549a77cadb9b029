"""Rays against the models' own formulas, written out here, and calibrations that can't be used."""

from __future__ import annotations

import numpy as np
import pytest

from ttsp_ros.ros.lens import Lens, LensError

from .conftest import pinhole_info

PLUMB_BOB = (-0.28, 0.07, 0.001, -0.0005, 0.01)
RATIONAL = (0.6, -0.05, 0.0004, 0.0002, 0.002, 0.9, 0.02, 0.001)
EQUIDISTANT = (0.02, -0.005, 0.003, -0.001)


def brown_conrady(x: np.ndarray, y: np.ndarray, d: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    k1, k2, p1, p2, k3, k4, k5, k6 = (*d, 0, 0, 0, 0)[:8]
    r2 = x * x + y * y
    radial = (1 + r2 * (k1 + r2 * (k2 + r2 * k3))) / (1 + r2 * (k4 + r2 * (k5 + r2 * k6)))
    return (
        x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x),
        y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y,
    )


def kannala_brandt(x: np.ndarray, y: np.ndarray, d: tuple[float, ...]) -> tuple[np.ndarray, np.ndarray]:
    r = np.hypot(x, y)
    theta = np.arctan(r)
    bent = theta * (1 + d[0] * theta**2 + d[1] * theta**4 + d[2] * theta**6 + d[3] * theta**8)
    scale = np.where(r > 0, bent / np.where(r > 0, r, 1), 1)
    return x * scale, y * scale


@pytest.mark.parametrize(
    ("model", "coefficients", "project"),
    [
        ("plumb_bob", PLUMB_BOB, brown_conrady),
        ("plumb_bob", PLUMB_BOB[:4], brown_conrady),
        ("rational_polynomial", RATIONAL, brown_conrady),
        ("equidistant", EQUIDISTANT, kannala_brandt),
        ("equidistant", (0.0,) * 4, kannala_brandt),
        ("plumb_bob", (), lambda x, y, d: (x, y)),
        ("", (), lambda x, y, d: (x, y)),
    ],
)
def test_rays_project_back_to_their_pixels(model, coefficients, project):
    info = pinhole_info(model=model, distortion=coefficients)
    pixels = np.stack(np.meshgrid(np.arange(64.0), np.arange(48.0)), -1).reshape(-1, 2).astype(np.float32)
    rays = Lens.of(info, 48, 64).rays(pixels)
    assert rays.dtype == np.float32 and np.isfinite(rays).all()
    x, y = project(*rays.astype(np.float64).T, coefficients)
    np.testing.assert_allclose(np.stack([100 * x + 31, 100 * y + 23], 1), pixels, atol=1e-3)


def test_rectified_images_use_the_projection_matrix():
    info = pinhole_info(distortion=PLUMB_BOB)
    rays = Lens.of(info, 48, 64, rectified=True).rays(np.array([[30.0, 20.0], [80.0, 45.0]], np.float32))
    np.testing.assert_allclose(rays, [[0, 0], [1, 0.5]], atol=1e-6)


def test_binning_and_region_of_interest_move_the_principal_point():
    info = pinhole_info(shape=(480, 640))
    info.roi.x_offset, info.roi.y_offset, info.roi.width, info.roi.height = 11, 3, 200, 100
    info.binning_x = info.binning_y = 2
    rays = Lens.of(info, 50, 100).rays(np.array([[10.0, 10.0]], np.float32))
    np.testing.assert_allclose(rays, [[0, 0]], atol=1e-6)


def test_where_the_model_cannot_be_inverted_the_ray_is_nan():
    # With this k1 the distorted radius grows up to 0.53 only: pixels further out are of no ray.
    rays = Lens.of(pinhole_info(distortion=(-0.53, 0, 0, 0, 0)), 48, 64).rays(
        np.array([[31.0, 23.0], [131.0, 123.0]], np.float32)
    )
    assert np.isfinite(rays[0]).all() and np.isnan(rays[1]).all()


def test_no_keypoints_no_rays():
    assert Lens.of(pinhole_info(), 48, 64).rays(np.zeros((0, 2), np.float32)).shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda info: setattr(info, "k", [0.0] * 9), "isn't calibrated"),
        (lambda info: setattr(info, "k", [float("nan")] * 9), "isn't calibrated"),
        (lambda info: setattr(info, "width", 65), "65x48 pixels.*the image has 64x48"),
        (lambda info: setattr(info, "binning_x", 2), "32x48"),
        (lambda info: (setattr(info, "distortion_model", "fov"), setattr(info, "d", [0.9])), "'fov' isn't known"),
        (lambda info: setattr(info, "d", [0.1, 0.2]), "2 coefficients"),
    ],
)
def test_a_calibration_that_cannot_be_used_says_why(change, text):
    info = pinhole_info()
    change(info)
    with pytest.raises(LensError, match=text):
        Lens.of(info, 48, 64)
