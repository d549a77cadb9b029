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
        dtype: the structured type of a point; its fields are float32, or sub-arrays of float32.
        data: all points, as the bytes that the message will hold.
        is_dense: whether no coordinate is NaN.
    """

    dtype: np.dtype
    data: array
    is_dense: bool = True

    @property
    def width(self) -> int:
        """Number of points."""
        return len(self.data) // self.dtype.itemsize

    @property
    def points(self) -> np.ndarray:
        """Structured array [width]: a view of the data, to be written through."""
        # Written in place, since a second buffer costs 0.8 ms a frame in fresh pages for 1024 descriptors.
        return np.frombuffer(self.data, self.dtype) if self.data else np.empty(0, self.dtype)

    @property
    def fields(self) -> list[tuple[str, int, int]]:
        """(name, offset in bytes, count) of each FLOAT32 field."""
        members = ((name, self.dtype.fields[name]) for name in self.dtype.names or () if self.dtype.fields)
        return [(name, offset, kind.itemsize // 4) for name, (kind, offset, *_) in members]


def keypoint_cloud(features: Features) -> Cloud:
    """Fields x, y (pixels of the image as received), z = 0 and score; 16 bytes a point."""
    return _keypoints(features, KEYPOINT_DTYPE)


def descriptor_cloud(features: Features) -> Cloud:
    """The fields of `keypoint_cloud` and `descriptor` (FLOAT32, count 256): all of Features, 1040 bytes a point."""
    cloud = _keypoints(features, DESCRIPTOR_DTYPE)
    cloud.points["descriptor"] = features.descriptors
    return cloud


def bearing_cloud(rays: np.ndarray, scores: np.ndarray) -> Cloud:
    """Fields x, y, z (metres in the camera's optical frame, z = 1) and score, for rays float32 [N, 2] at unit depth.

    A ray is NaN where the lens model can't be inverted; it stays, so that points agree with those of `~/keypoints`.
    """
    return _cloud(KEYPOINT_DTYPE, rays, 1.0, scores, is_dense=bool(np.isfinite(rays).all()))


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
    make: Callable[[type, array, dict[str, Any]], Any]

    def cloud(self, header: Any, cloud: Cloud) -> Any:
        """A PointCloud2 with `header` as it is."""
        point_step = cloud.dtype.itemsize
        fields = {
            "header": header,
            "height": 1,
            "width": cloud.width,
            "fields": [self.point_field(name=n, offset=o, datatype=FLOAT32, count=c) for n, o, c in cloud.fields],
            "is_bigendian": False,
            "point_step": point_step,
            "row_step": point_step * cloud.width,
            "is_dense": cloud.is_dense,
        }
        return self.make(self.point_cloud2, cloud.data, fields)

    def picture(self, header: Any, pixels: np.ndarray) -> Any:
        """An Image of uint8 [H, W, 3] (bgr8) or [H, W] (mono8), with `header` as it is."""
        height, width = pixels.shape[:2]
        fields = {
            "header": header,
            "height": height,
            "width": width,
            "encoding": "mono8" if pixels.ndim == 2 else "bgr8",
            "is_bigendian": 0,
            "step": pixels.size // height,
        }
        data = array("B")
        data.frombytes(np.ascontiguousarray(pixels).data)
        return self.make(self.image, data, fields)


def rclpy_types() -> MessageTypes:
    """The messages of a ROS installation."""
    from sensor_msgs.msg import Image, PointCloud2, PointField

    return MessageTypes(PointCloud2, PointField, Image, _make_rclpy)


def rosbags_types(typestore: Any) -> MessageTypes:
    """The messages of a rosbags Typestore."""
    types = typestore.types
    return MessageTypes(
        types["sensor_msgs/msg/PointCloud2"],
        types["sensor_msgs/msg/PointField"],
        types["sensor_msgs/msg/Image"],
        lambda kind, data, fields: kind(**fields, data=np.array(data, np.uint8)),
    )


def _make_rclpy(kind: type, data: array, fields: dict[str, Any]) -> Any:
    # An array.array of bytes is taken over as it is, but only by the setter: the constructor copies it. Any other
    # sequence is checked item by item, 400 s for a large cloud (common_interfaces #177).
    message = kind(**fields)
    message.data = data
    return message


def _keypoints(features: Features, dtype: np.dtype) -> Cloud:
    return _cloud(dtype, features.keypoints, 0.0, features.scores)


def _cloud(dtype: np.dtype, xy: np.ndarray, z: float, scores: np.ndarray, is_dense: bool = True) -> Cloud:
    cloud = Cloud(dtype, array("B", bytes(1)) * (len(xy) * dtype.itemsize), is_dense)
    points = cloud.points
    points["x"], points["y"] = xy[:, 0], xy[:, 1]
    points["z"] = z
    points["score"] = scores
    return cloud
