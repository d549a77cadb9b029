"""Bags of a virtual camera for the tests of the tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from ttsp_ros.tools.bags import COMPRESSED_IMAGE, BagWriter, header, image_message
from ttsp_ros.tools.virtual_camera import Camera, frames, photograph

RAW = "/camera/image_raw"
COMPRESSED = "/camera/image_raw/compressed"
SIZE = (160, 120)
FIRST_STAMP = 1_700_000_000_000_000_000
PERIOD = 100_000_000


def pictures(count: int) -> list[np.ndarray]:
    """Frames uint8 [120, 160, 3]."""
    camera = Camera(*SIZE, focal_length=130.0)
    return [frame.image for frame in frames(photograph("motorcycle"), count, camera)]


def compressed_message(types, image: np.ndarray, stamp: int, form: str = "png"):
    """sensor_msgs/CompressedImage of uint8 [H, W, 3] (RGB)."""
    data = cv2.imencode(f".{form}", cv2.cvtColor(image, cv2.COLOR_RGB2BGR))[1]
    return types.types[COMPRESSED_IMAGE](header=header(types, stamp, "eye"), format=form, data=data.reshape(-1))


@pytest.fixture
def make_bag(tmp_path: Path) -> Callable[..., Path]:
    """Writes a bag of `count` frames as raw and compressed images; `extra(bag, stamp)` may add messages before each."""

    def make(count=5, storage="mcap", name="in", topics=(RAW, COMPRESSED), extra=lambda bag, stamp: None) -> Path:
        path = tmp_path / name
        with BagWriter(path, storage) as bag:
            for index, image in enumerate(pictures(count)):
                stamp = FIRST_STAMP + index * PERIOD
                extra(bag, stamp)
                if RAW in topics:
                    bag.write(RAW, image_message(bag.types, image, stamp, "eye"), stamp + 7)
                if COMPRESSED in topics:
                    bag.write(COMPRESSED, compressed_message(bag.types, image, stamp), stamp + 9)
        return path

    return make
