import cv2
import numpy as np
import pytest

from ttsp_ros.tools.virtual_camera import PHOTOGRAPHS, Camera, Motion, frames, homographies, photograph

CAMERA = Camera()


def seen_corners(homography):
    """Where the frame's corners lie on the photograph."""
    right, bottom = CAMERA.width - 1, CAMERA.height - 1
    corners = np.array([[[0, 0], [right, 0], [right, bottom], [0, bottom]]], float)
    return cv2.perspectiveTransform(corners, np.linalg.inv(homography))[0]


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_the_frame_never_leaves_the_photograph(name):
    height, width = photograph(name).shape[:2]
    for homography in homographies((height, width), 60, CAMERA, Motion(turns=1.0)):
        corners = seen_corners(homography)
        assert corners.min() >= 0
        assert corners[:, 0].max() <= width - 1
        assert corners[:, 1].max() <= height - 1


def test_the_motion_is_smooth_and_closed():
    path = homographies((500, 741), 60, CAMERA, Motion(turns=1.0))
    corners = np.array([seen_corners(homography) for homography in path])
    steps = np.linalg.norm(np.diff(corners, axis=0, append=corners[:1]), axis=-1)
    assert 1.0 < steps.max() < 12.0, "pixels of the photograph from one frame to the next, the last to the first too"
    assert np.ptp(corners, axis=0).max() > 60, "and yet it goes somewhere"


def test_a_still_camera_that_faces_the_photograph_only_scales_it():
    still = Motion(zoom=1.0, zoom_swing=0.0, shift=0.0, roll=0.0, tilt=0.0)
    homography = homographies((480, 640), 1, CAMERA, still)[0]
    np.testing.assert_allclose(homography, np.eye(3), atol=1e-9)


def test_the_homography_is_the_one_of_the_picture():
    """Squares of a drawn board are found in the frame where the homography says, to a tenth of a pixel."""
    board = np.full((480, 640, 3), 235, np.uint8)
    for row in range(1, 8):
        for column in range(2 - row % 2, 11, 2):
            board[row * 48 : row * 48 + 48, column * 52 : column * 52 + 52] = 20
    inner = np.array([[52 * x - 0.5, 48 * y - 0.5] for y in range(3, 7) for x in range(3, 9)])
    for frame in frames(board, 5, CAMERA, Motion(zoom=1.1), noise=1.0):
        predicted = cv2.perspectiveTransform(inner[None], frame.homography)[0].astype(np.float32)
        grey = cv2.cvtColor(frame.image, cv2.COLOR_RGB2GRAY)
        criteria = (cv2.TERM_CRITERIA_EPS | cv2.TERM_CRITERIA_MAX_ITER, 50, 1e-3)
        found = cv2.cornerSubPix(grey, predicted[:, None] + 1.0, (5, 5), (-1, -1), criteria)[:, 0]
        assert np.abs(found - predicted).max() < 0.1


def test_the_same_seed_gives_the_same_frames_and_the_noise_is_as_asked():
    photo = np.full((300, 400, 3), 128, np.uint8)
    first, second = (list(frames(photo, 2, CAMERA, noise=3.0, seed=7)) for _ in range(2))
    assert all(np.array_equal(a.image, b.image) for a, b in zip(first, second, strict=True))
    assert first[0].image.std() == pytest.approx(3.0, rel=0.02)
    assert not np.array_equal(first[0].image, first[1].image)


def test_an_unknown_photograph_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"got 'kitten'.*astronaut"):
        photograph("kitten")
