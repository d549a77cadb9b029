"""A bag of photographs through the node over real rclpy, with the real network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
from rclpy.serialization import deserialize_message
from rosbags.rosbag2 import Reader, Writer
from rosbags.rosbag2.enums import StoragePlugin
from rosbags.typesys import Stores, get_typestore
from sensor_msgs.msg import Image
from skimage import data

from ttsp_ros.backends import ExtractorOptions, create_extractor
from ttsp_ros.ros.conversions import features_from_cloud
from ttsp_ros.superpoint.features import DetectionSettings

from .conftest import Rig, stamp_of

STORE = get_typestore(Stores.ROS2_JAZZY)
KIND = "sensor_msgs/msg/Image"
FRAMES = 6
SETTINGS = {"max_keypoints": 200, "threshold": 0.02}
# The best keypoints (x, y) of the first frame, as float32 on the CPU found them when this test was written.
GOLDEN = [
    (174, 152),
    (82, 56),
    (218, 173),
    (181, 62),
    (181, 69),
    (184, 138),
    (202, 165),
    (205, 184),
    (210, 163),
    (119, 124),
    (212, 154),
    (217, 141),
    (162, 111),
    (219, 102),
    (221, 218),
    (229, 102),
]


def photographs() -> Iterator[np.ndarray]:
    """A photograph that moves by three pixels a frame, uint8 [240, 320]."""
    picture = cv2.resize(data.camera(), (400, 400), interpolation=cv2.INTER_AREA)
    for number in range(FRAMES):
        yield np.ascontiguousarray(picture[40:280, 20 + 3 * number : 340 + 3 * number])


@pytest.fixture(scope="module")
def bag(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("bag") / "photographs"
    types = STORE.types
    with Writer(path, version=Writer.VERSION_LATEST, storage_plugin=StoragePlugin.MCAP) as writer:
        connection = writer.add_connection("/camera/image_raw", KIND, typestore=STORE)
        for number, pixels in enumerate(photographs()):
            stamp = types["builtin_interfaces/msg/Time"](sec=100 + number, nanosec=7 * number)
            header = types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera_optical")
            message = types[KIND](
                header=header,
                height=240,
                width=320,
                encoding="mono8",
                is_bigendian=0,
                step=320,
                data=pixels.reshape(-1),
            )
            writer.write(connection, stamp.sec * 10**9, STORE.serialize_cdr(message, KIND))
    return path


def play(bag: Path, rig: Rig) -> list:
    """The descriptor clouds of every image in the bag, each sent when the one before it was answered."""
    inbox = rig.listen("descriptors")
    publisher = rig.publisher()
    with Reader(bag) as reader:
        for count, (_, _, raw) in enumerate(reader.messages(), start=1):
            publisher.publish(deserialize_message(bytes(raw), Image))
            inbox.wait(count)
    return inbox.messages


@pytest.fixture
def clouds(bag, make_rig):
    def run():
        rig = make_rig(
            make_extractor=create_extractor, backend="torch", precision="float32", threads=1, **SETTINGS
        ).start()
        return play(bag, rig)

    return run


def test_a_bag_gives_the_features_of_its_images_with_their_headers_twice_the_same(clouds):
    first, second = clouds(), clouds()
    assert [stamp_of(cloud) for cloud in first] == [(100 + n) * 10**9 + 7 * n for n in range(FRAMES)]
    assert {cloud.header.frame_id for cloud in first} == {"camera_optical"}
    assert [bytes(cloud.data) for cloud in first] == [bytes(cloud.data) for cloud in second]
    extractor = create_extractor(ExtractorOptions("torch", precision="float32", threads=1))
    for cloud, pixels in zip(first, photographs(), strict=True):
        features, expected = features_from_cloud(cloud), extractor.extract(pixels, DetectionSettings(**SETTINGS))
        assert 20 < len(features) <= 200
        for name in ("keypoints", "scores", "descriptors"):
            np.testing.assert_array_equal(getattr(features, name), getattr(expected, name))
    found = features_from_cloud(first[0]).keypoints
    assert all(np.linalg.norm(found - point, axis=1).min() <= 0.5 for point in GOLDEN)
