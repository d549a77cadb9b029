"""A node under test in this process, with a camera and listeners at its other end, all over real rclpy."""

from __future__ import annotations

import itertools
import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")

rclpy = pytest.importorskip("rclpy", reason="needs ROS: source an installation, or install the wheels (make setup)")

from rclpy.context import Context  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.qos import QoSProfile, qos_profile_sensor_data  # noqa: E402
from sensor_msgs.msg import CameraInfo, Image, PointCloud2  # noqa: E402

from ttsp_ros.backends import ExtractorOptions  # noqa: E402
from ttsp_ros.ros.superpoint_node import SuperPointNode  # noqa: E402
from ttsp_ros.superpoint.features import DESCRIPTOR_DIM, DetectionSettings, Features  # noqa: E402

from ..node_rig import DOMAIN, WAIT_SECONDS, Inbox, NodeRig, wait_until  # noqa: E402

_numbers = itertools.count()


@dataclass
class FakeExtractor:
    """Tells about its input in its output: one keypoint at (first pixel, width), score 0.5, so that tests can see it.

    Attributes:
        gate: extraction waits for it, from the second call on (the first warms up).
        error: raised instead, from the second call on, while set.
        fixed_radius: the only NMS radius that `check` lets pass.
    """

    gate: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    fixed_radius: int | None = None
    seconds: float = 0.0
    backend: str = "fake"
    description: str = "a fake"
    calls: list[tuple[np.ndarray, DetectionSettings, np.ndarray | None]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    closed: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    def make(self, options: ExtractorOptions, log: Callable[[str], None]) -> FakeExtractor:
        """For SuperPointNode's make_extractor."""
        self.options = options
        self.threads.add(threading.get_ident())
        return self

    def extract(self, image: np.ndarray, settings: DetectionSettings, mask: np.ndarray | None = None) -> Features:
        self.threads.add(threading.get_ident())
        warming = not self.calls
        self.calls.append((image.copy(), settings, mask))
        if warming:
            return Features.empty()
        assert self.gate.wait(WAIT_SECONDS)
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        descriptors = np.zeros((1, DESCRIPTOR_DIM), np.float32)
        descriptors[0, int(image[0, 0])] = 1.0
        keypoints = np.array([[image[0, 0], image.shape[1]]], np.float32)
        return Features(keypoints, np.array([0.5], np.float32), descriptors)

    def check(self, settings: DetectionSettings) -> None:
        if self.fixed_radius is not None and settings.nms_radius != self.fixed_radius:
            raise ValueError(f"nms_radius: this backend is built for {self.fixed_radius}; configure the node anew")

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        self.closed += 1


class Rig(NodeRig):
    """One SuperPointNode in a namespace of its own, spun by a thread, and a node that plays camera and listener."""

    def __init__(self, context: Context, make_extractor: Any, parameters: dict[str, Any], namespace: str) -> None:
        self.namespace = namespace
        overrides = [Parameter(name, value=value) for name, value in parameters.items()]
        remaps = ["--ros-args", "-r", f"/diagnostics:={namespace}/diagnostics"]
        node = SuperPointNode(
            make_extractor=make_extractor,
            context=context,
            namespace=namespace,
            parameter_overrides=overrides,
            cli_args=remaps,
        )
        super().__init__(node, rclpy.create_node("peer", context=context, namespace=namespace))
        self._publishers: dict[str, Any] = {}
        self.begin()

    def start(self) -> Rig:
        """Configure and activate."""
        assert self.on_node(self.node.autostart)
        return self

    def listen(self, topic: str, kind: type = PointCloud2, wait: bool = True) -> Inbox:
        """Subscribe one of the node's topics (without the node's name); `wait` until the two have found one another."""
        inbox = Inbox()
        name = topic if topic.startswith("/") else f"{self.namespace}/superpoint/{topic}"
        subscription = self.peer.create_subscription(kind, name, inbox.messages.append, QoSProfile(depth=100))
        if wait:
            wait_until(lambda: subscription.get_publisher_count(), what=f"publisher of {name}")
        return inbox

    def publisher(self, topic: str = "image", kind: type = Image, wait: bool = True, qos: Any = None) -> Any:
        """A publisher of a relative topic; `wait` until the node subscribes it."""
        if topic not in self._publishers:
            self._publishers[topic] = self.peer.create_publisher(kind, topic, qos or qos_profile_sensor_data)
        if wait:
            wait_until(lambda: self._publishers[topic].get_subscription_count(), what=f"subscriber of {topic}")
        return self._publishers[topic]

    def counts(self, camera: str = "") -> Any:
        """What the node has counted."""
        return self.node._cameras[camera].counter.counts()


@pytest.fixture(scope="session")
def context() -> Iterator[Context]:
    context = Context()
    rclpy.init(context=context, domain_id=DOMAIN)
    yield context
    rclpy.try_shutdown(context=context)


@pytest.fixture
def make_rig(context: Context) -> Iterator[Callable[..., Rig]]:
    """rig = make_rig(extractor, threshold=0.1); closed at the end of the test."""
    rigs: list[Rig] = []

    def make(extractor: FakeExtractor | None = None, make_extractor: Any = None, **parameters: Any) -> Rig:
        make_extractor = make_extractor or (extractor or FakeExtractor()).make
        rigs.append(Rig(context, make_extractor, parameters, f"/test_{os.getpid()}_{next(_numbers)}"))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


def image_message(value: int = 0, stamp: int = 1, frame: str = "camera", shape: tuple[int, int] = (48, 64)) -> Image:
    """A mono8 image of one value; `stamp` in nanoseconds."""
    return array_message(np.full(shape, value, np.uint8), stamp, frame)


def array_message(pixels: np.ndarray, stamp: int = 1, frame: str = "camera", encoding: str = "mono8") -> Image:
    """An image message of an array."""
    message = Image(
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding=encoding,
        step=pixels.strides[0],
        data=array("B", pixels.tobytes()),
    )
    set_header(message, stamp, frame)
    return message


def set_header(message: Any, stamp: int, frame: str) -> None:
    message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp, 1_000_000_000)
    message.header.frame_id = frame


def stamp_of(message: Any) -> int:
    """Nanoseconds."""
    return message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec


def pinhole_info(shape: tuple[int, int] = (48, 64), model: str = "plumb_bob", distortion: Any = ()) -> CameraInfo:
    """Focal length 100 and principal point (31, 23) for images of `shape`."""
    return CameraInfo(
        height=shape[0],
        width=shape[1],
        distortion_model=model,
        d=list(distortion),
        k=[100.0, 0.0, 31.0, 0.0, 100.0, 23.0, 0.0, 0.0, 1.0],
        p=[50.0, 0.0, 30.0, 0.0, 0.0, 50.0, 20.0, 0.0, 0.0, 0.0, 1.0, 0.0],
    )


@pytest.fixture
def start() -> Iterator[Callable[..., Any]]:
    """Starts nodes in processes of their own, which end with the test."""
    from .node_process import Process  # it imports this module

    processes: list[Process] = []

    def make(*arguments: str, **options: Any) -> Process:
        processes.append(Process(*arguments, **options))
        return processes[-1]

    yield make
    for process in processes:
        process.process.kill()
        process.process.wait()
