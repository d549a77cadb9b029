"""Clouds and pictures keep every bit, for rclpy's messages and for rosbags'."""

from __future__ import annotations

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from rosbags.typesys import Stores, get_typestore
from sensor_msgs.msg import Image, PointCloud2
from std_msgs.msg import Header

from ttsp_ros.ros.conversions import (
    bearing_cloud,
    descriptor_cloud,
    features_from_cloud,
    gray_image,
    keypoint_cloud,
    rclpy_types,
    rosbags_types,
)
from ttsp_ros.superpoint.features import DESCRIPTOR_DIM, Features

from .conftest import array_message, set_header

STORE = get_typestore(Stores.ROS2_JAZZY)


def random_features(count: int) -> Features:
    random = np.random.default_rng(count)
    descriptors = random.standard_normal((count, DESCRIPTOR_DIM)).astype(np.float32)
    return Features(
        random.uniform(0, 640, (count, 2)).astype(np.float32), random.random(count).astype(np.float32), descriptors
    )


def header() -> Header:
    message = PointCloud2()
    set_header(message, 1_000_000_002, "camera")
    return message.header


def rosbags_header():
    stamp = STORE.types["builtin_interfaces/msg/Time"](sec=1, nanosec=2)
    return STORE.types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera")


def assert_same(a: Features, b: Features) -> None:
    for name in ("keypoints", "scores", "descriptors"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


@pytest.mark.parametrize("count", [0, 1, 1024])
def test_descriptor_clouds_come_back_bit_by_bit_over_the_wire(count):
    features = random_features(count)
    sent = rclpy_types().cloud(header(), descriptor_cloud(features))
    wire = serialize_message(sent)
    assert_same(features_from_cloud(deserialize_message(wire, PointCloud2)), features)
    assert_same(features_from_cloud(STORE.deserialize_cdr(wire, "sensor_msgs/msg/PointCloud2")), features)


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("make", [keypoint_cloud, descriptor_cloud])
def test_rclpy_and_rosbags_write_the_same_message(count, make):
    cloud = make(random_features(count))
    kind = "sensor_msgs/msg/PointCloud2"
    ours = STORE.deserialize_cdr(serialize_message(rclpy_types().cloud(header(), cloud)), kind)
    theirs = STORE.deserialize_cdr(STORE.serialize_cdr(rosbags_types(STORE).cloud(rosbags_header(), cloud), kind), kind)
    # Not the wire itself: the bytes that align its fields are free.
    assert bytes(STORE.serialize_cdr(ours, kind)) == bytes(STORE.serialize_cdr(theirs, kind))


def test_the_fields_are_what_viewers_expect():
    message = rclpy_types().cloud(header(), descriptor_cloud(random_features(2)))
    assert [(f.name, f.offset, f.datatype, f.count) for f in message.fields] == [
        ("x", 0, 7, 1),
        ("y", 4, 7, 1),
        ("z", 8, 7, 1),
        ("score", 12, 7, 1),
        ("descriptor", 16, 7, 256),
    ]
    assert (message.height, message.width, message.point_step, message.row_step) == (1, 2, 1040, 2080)
    assert message.is_dense and not message.is_bigendian


def test_rays_that_do_not_exist_stay_in_their_place():
    rays = np.array([[0.1, 0.2], [np.nan, np.nan]], np.float32)
    cloud = bearing_cloud(rays, np.array([0.9, 0.1], np.float32))
    points = np.frombuffer(cloud.data, np.float32).reshape(-1, 4)
    assert not cloud.is_dense
    np.testing.assert_array_equal(points, np.array([[0.1, 0.2, 1, 0.9], [np.nan, np.nan, 1, 0.1]], np.float32))


def test_a_cloud_of_big_endian_and_another_layout_is_read_by_its_fields():
    features = random_features(2)
    cloud = descriptor_cloud(features)
    message = rclpy_types().cloud(header(), cloud)
    swapped = np.frombuffer(cloud.data, "<f4").astype(">f4")
    message.is_bigendian = True
    message.data = swapped.tobytes()
    assert_same(features_from_cloud(message), features)


def test_a_cloud_without_descriptors_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no field 'descriptor' of 256 FLOAT32.*x, y, z, score"):
        features_from_cloud(rclpy_types().cloud(header(), keypoint_cloud(random_features(2))))


@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3)])
def test_pictures_have_the_layout_they_claim(shape):
    pixels = np.random.default_rng(0).integers(0, 255, shape, np.uint8)
    message = rclpy_types().picture(header(), pixels)
    assert (message.encoding, message.step) == (("mono8", 6) if len(shape) == 2 else ("bgr8", 18))
    np.testing.assert_array_equal(np.frombuffer(message.data, np.uint8).reshape(shape), pixels)


def test_gray_images_are_the_same_from_rclpy_and_rosbags():
    pixels = np.random.default_rng(1).integers(0, 255, (5, 7, 3), np.uint8)
    message = array_message(pixels, encoding="rgb8")
    twin = STORE.deserialize_cdr(serialize_message(message), "sensor_msgs/msg/Image")
    np.testing.assert_array_equal(gray_image(message), gray_image(twin))
    assert isinstance(message, Image) and gray_image(message).shape == (5, 7)
