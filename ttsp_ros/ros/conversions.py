"""Between messages and arrays: what the node and the replay tool share. No ROS is needed to import it.

Messages are used by their field names only, so those of rclpy and those of rosbags both do. What differs, their
classes and the type of their byte arrays, is in `MessageTypes`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ttsp_ros.superpoint.features import DESCRIPTOR_DIM, Features

# sensor_msgs/PointField: the number that stands for float32.
FLOAT32 = 7

KEYPOINT_DTYPE = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("score", "<f4")])
DESCRIPTOR_DTYPE = np.dtype([*KEYPOINT_DTYPE.descr, ("descriptor", "<f4", (DESCRIPTOR_DIM,))])


@dataclass(frozen=True)
class Cloud:
    """A sensor_msgs/PointCloud2 without its header: one row of points, little-endian.

    Attributes:
        fields: (name, offset in bytes, count) of each field, all FLOAT32.
        point_step: bytes of a point.
        data: uint8 [width * point_step].
        width: number of points.
        is_dense: whether no coordinate is NaN.
    """

    fields: tuple[tuple[str, int, int], ...]
    point_step: int
    data: np.ndarray
    width: int
    is_dense: bool = True

    @staticmethod
    def of(points: np.ndarray, is_dense: bool = True) -> Cloud:
        """From a structured array [N] whose fields are float32, or sub-arrays of float32."""
        fields = []
        for name in points.dtype.names or ():
            dtype, offset = points.dtype.fields[name][:2]
            fields.append((name, offset, dtype.itemsize // 4))
        data = np.ascontiguousarray(points).view(np.uint8).reshape(-1)
        return Cloud(tuple(fields), points.dtype.itemsize, data, len(points), is_dense)


def keypoint_cloud(features: Features) -> Cloud:
    """Fields x, y (pixels of the image as received), z = 0 and score; 16 bytes a point."""
    return Cloud.of(_keypoint_points(features, KEYPOINT_DTYPE))


def descriptor_cloud(features: Features) -> Cloud:
    """The fields of `keypoint_cloud` and `descriptor` (FLOAT32, count 256): all of Features, 1040 bytes a point."""
    points = _keypoint_points(features, DESCRIPTOR_DTYPE)
    points["descriptor"] = features.descriptors
    return Cloud.of(points)


def bearing_cloud(rays: np.ndarray, scores: np.ndarray) -> Cloud:
    """Fields x, y, z (metres in the camera's optical frame, z = 1) and score, for rays float32 [N, 2] at unit depth.

    A ray is NaN where the lens model can't be inverted; it stays, so that points agree with those of `~/keypoints`.
    """
    points = np.empty(len(rays), KEYPOINT_DTYPE)
    points["x"], points["y"] = rays[:, 0], rays[:, 1]
    points["z"] = 1.0
    points["score"] = scores
    return Cloud.of(points, is_dense=bool(np.isfinite(rays).all()))


def features_from_cloud(message: Any) -> Features:
    """The inverse of `descriptor_cloud`: Features of a received PointCloud2, found by field names.

    Raises:
        ValueError: a field of `~/descriptors` is missing or of another type.
    """
    by_name = {field.name: field for field in message.fields}
    names, formats, offsets = [], [], []
    for name, count in (("x", 1), ("y", 1), ("score", 1), ("descriptor", DESCRIPTOR_DIM)):
        field = by_name.get(name)
        if field is None or field.datatype != FLOAT32 or field.count != count:
            raise ValueError(f"no field '{name}' of {count} FLOAT32 in the cloud; it has: {', '.join(by_name)}")
        names.append(name)
        formats.append((">f4" if message.is_bigendian else "<f4", (count,) if count > 1 else ()))
        offsets.append(field.offset)
    dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": message.point_step})
    points = np.frombuffer(message.data, dtype, count=message.width * message.height)
    return Features(
        np.stack([points["x"], points["y"]], axis=1).astype(np.float32),
        points["score"].astype(np.float32),
        points["descriptor"].astype(np.float32),
    )


def gray_image(message: Any) -> np.ndarray:
    """uint8 [H, W] of a sensor_msgs/Image or CompressedImage.

    Raises:
        ttsp_ros.superpoint.image.ImageError: the message is broken, or of an encoding that isn't known; it says which.
    """
    from ttsp_ros.superpoint.image import decode_compressed, decode_image

    if hasattr(message, "format"):
        return decode_compressed(message.format, message.data)
    return decode_image(
        message.encoding, message.height, message.width, message.step, message.is_bigendian, message.data
    )


@dataclass(frozen=True)
class MessageTypes:
    """Message classes of one ROS library, and how it wants bytes.

    Use `rclpy_types()` or `rosbags_types(typestore)`.
    """

    point_cloud2: type
    point_field: type
    image: type
    byte_array: Callable[[np.ndarray], Any]

    def cloud(self, header: Any, cloud: Cloud) -> Any:
        """A PointCloud2 with `header` as it is."""
        return self.point_cloud2(
            header=header,
            height=1,
            width=cloud.width,
            fields=[self.point_field(name=n, offset=o, datatype=FLOAT32, count=c) for n, o, c in cloud.fields],
            is_bigendian=False,
            point_step=cloud.point_step,
            row_step=cloud.point_step * cloud.width,
            data=self.byte_array(cloud.data),
            is_dense=cloud.is_dense,
        )

    def picture(self, header: Any, pixels: np.ndarray) -> Any:
        """An Image of uint8 [H, W, 3] (bgr8) or [H, W] (mono8), with `header` as it is."""
        height, width = pixels.shape[:2]
        return self.image(
            header=header,
            height=height,
            width=width,
            encoding="mono8" if pixels.ndim == 2 else "bgr8",
            is_bigendian=0,
            step=pixels.size // height,
            data=self.byte_array(np.ascontiguousarray(pixels).reshape(-1)),
        )


def rclpy_types() -> MessageTypes:
    """The messages of a ROS installation."""
    from sensor_msgs.msg import Image, PointCloud2, PointField

    return MessageTypes(PointCloud2, PointField, Image, _byte_array)


def rosbags_types(typestore: Any) -> MessageTypes:
    """The messages of a rosbags Typestore."""
    types = typestore.types
    return MessageTypes(
        types["sensor_msgs/msg/PointCloud2"],
        types["sensor_msgs/msg/PointField"],
        types["sensor_msgs/msg/Image"],
        byte_array=lambda data: data,
    )


def _keypoint_points(features: Features, dtype: np.dtype) -> np.ndarray:
    points = np.empty(len(features), dtype)
    points["x"], points["y"] = features.keypoints[:, 0], features.keypoints[:, 1]
    points["z"] = 0.0
    points["score"] = features.scores
    return points


def _byte_array(data: np.ndarray) -> array:
    # rclpy takes over an array.array of bytes as it is; it checks anything else item by item, 400 s for a large cloud
    # (common_interfaces #177).
    taken = array("B")
    taken.frombytes(data.data)
    return taken
