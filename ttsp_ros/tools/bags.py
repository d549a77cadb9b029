"""Bags without a ROS installation: reading any, writing ones that are readable however the writing ended."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from rosbags.highlevel import AnyReader, AnyReaderError
from rosbags.interfaces import Connection
from rosbags.rosbag2 import CompressionFormat, CompressionMode, ReaderError, StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

IMAGE = "sensor_msgs/msg/Image"
COMPRESSED_IMAGE = "sensor_msgs/msg/CompressedImage"
CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
POINT_CLOUD = "sensor_msgs/msg/PointCloud2"

NANOSECONDS = 1_000_000_000
STORAGE = {"mcap": StoragePlugin.MCAP, "sqlite3": StoragePlugin.SQLITE3}


class BagError(Exception):
    """A bag cannot be read or written; the text says what to do about it."""


def typestore() -> Typestore:
    """The message definitions of Jazzy, which those of later releases contain."""
    return get_typestore(Stores.ROS2_JAZZY)


@contextmanager
def open_bag(path: Path) -> Iterator[AnyReader]:
    """Opens a rosbag2 folder, one .mcap or .db3 file of it, or a ROS 1 .bag.

    Raises:
        BagError: it is not there or not readable; or, from inside the `with` block, damaged further on.
    """
    try:
        reader = AnyReader([path], default_typestore=typestore())
        reader.open()
    except FileNotFoundError as error:
        raise BagError(
            f"{path}: no such bag; give a folder with a metadata.yaml, or a .mcap, .db3 or .bag file"
        ) from error
    except AnyReaderError as error:
        raise BagError(f"{path}: not a readable bag: {error}") from error
    try:
        yield reader
    except (AnyReaderError, ReaderError) as error:
        raise BagError(f"{path}: damaged: {error}") from error
    finally:
        reader.close()


@dataclass
class BagWriter:
    """Writes a bag; leaving the `with` block for whatever reason (an error, Ctrl-C) completes index and metadata.

    Attributes:
        path: a folder to make, as `ros2 bag record -o` does; or a name that ends in .mcap, for that one file, which
            Foxglove and `ros2 bag` open as it is.
        storage: "mcap" (compressed by zstd, chunk by chunk) or "sqlite3".
    """

    path: Path
    storage: str = "mcap"
    types: Typestore = field(default_factory=typestore)

    def __post_init__(self) -> None:
        if self.storage not in STORAGE:
            raise BagError(f"storage: got {self.storage!r}, allowed are {', '.join(STORAGE)}")
        if self.path.exists():
            raise BagError(f"{self.path} exists; remove it or give another name")
        if self._single_file and self.storage != "mcap":
            raise BagError(f"{self.path}: a name that ends in .mcap needs storage mcap, got {self.storage}")
        self._connections: dict[tuple[str, str], Connection] = {}

    @property
    def _single_file(self) -> bool:
        return self.path.suffix == ".mcap"

    def __enter__(self) -> BagWriter:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        folder = self.path
        if self._single_file:
            self._scratch = Path(tempfile.mkdtemp(prefix=f".{self.path.stem}-", dir=self.path.parent))
            folder = self._scratch / self.path.stem
        self._writer = Writer(folder, version=Writer.VERSION_LATEST, storage_plugin=STORAGE[self.storage])
        if self.storage == "mcap":
            self._writer.set_compression(CompressionMode.STORAGE, CompressionFormat.ZSTD)
        self._writer.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()
        if self._single_file:
            (self._writer.path / f"{self.path.stem}.mcap").replace(self.path)
            shutil.rmtree(self._scratch)

    def write(self, topic: str, message: Any, timestamp: int) -> None:
        """Serializes a message of `types` and writes it; `timestamp` in nanoseconds."""
        kind = message.__msgtype__
        self.write_raw(topic, kind, bytes(self.types.serialize_cdr(message, kind)), timestamp)

    def write_raw(self, topic: str, kind: str, data: bytes, timestamp: int) -> None:
        """Writes a message that is already in CDR."""
        key = (topic, kind)
        if key not in self._connections:
            self._connections[key] = self._writer.add_connection(topic, kind, typestore=self.types)
        self._writer.write(self._connections[key], timestamp, data)


def header(types: Typestore, stamp: int, frame_id: str) -> Any:
    """std_msgs/Header at `stamp` nanoseconds."""
    time = types.types["builtin_interfaces/msg/Time"](sec=stamp // NANOSECONDS, nanosec=stamp % NANOSECONDS)
    return types.types["std_msgs/msg/Header"](stamp=time, frame_id=frame_id)


def image_message(types: Typestore, image: np.ndarray, stamp: int, frame_id: str) -> Any:
    """sensor_msgs/Image of a uint8 [H, W] (mono8) or [H, W, 3] (rgb8) array."""
    height, width = image.shape[:2]
    channels = 1 if image.ndim == 2 else image.shape[2]
    return types.types[IMAGE](
        header=header(types, stamp, frame_id),
        height=height,
        width=width,
        encoding={1: "mono8", 3: "rgb8"}[channels],
        is_bigendian=0,
        step=width * channels,
        data=np.ascontiguousarray(image).reshape(-1),
    )


def camera_info_message(types: Typestore, matrix: np.ndarray, size: Sequence[int], stamp: int, frame_id: str) -> Any:
    """sensor_msgs/CameraInfo of a pinhole camera without distortion; `matrix` is K, `size` is (width, height)."""
    projection = np.hstack((matrix, np.zeros((3, 1))))
    region = types.types["sensor_msgs/msg/RegionOfInterest"](
        x_offset=0, y_offset=0, height=0, width=0, do_rectify=False
    )
    return types.types[CAMERA_INFO](
        header=header(types, stamp, frame_id),
        height=size[1],
        width=size[0],
        distortion_model="plumb_bob",
        d=np.zeros(5),
        k=matrix.reshape(-1).astype(np.float64),
        r=np.eye(3).reshape(-1),
        p=projection.reshape(-1).astype(np.float64),
        binning_x=0,
        binning_y=0,
        roi=region,
    )
