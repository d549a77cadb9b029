"""A SuperPoint node in its own process, and the camera and listener at its other end: what demo and bench share."""

from __future__ import annotations

import itertools
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from rclpy.signals import SignalHandlerOptions
from sensor_msgs.msg import CameraInfo, Image

# What the installed executable does.
START = "from ttsp_ros.ros.main import superpoint_node; superpoint_node()"
NODE_NAME = "superpoint"
READY_SECONDS = 90.0
STOP_SECONDS = 10.0
# A frame without an answer is sent again after this long; loaded machines need seconds for one.
RESEND_SECONDS = 30.0
SENDS = 2
LOG_LINES_SHOWN = 25

_numbers = itertools.count()


class NodeError(Exception):
    """The node ended, or does not answer; the text has the end of its log."""


@dataclass(frozen=True)
class Reply:
    """What came back for one frame.

    Attributes:
        messages: serialized message (CDR) by topic name, without namespace and node.
        seconds: from publishing the frame to receiving the message, by the same names.
        sends: how often the frame was published; more than 1 when it got lost.
    """

    messages: Mapping[str, bytes]
    seconds: Mapping[str, float]
    sends: int


def shared_file(relative: str) -> Path:
    """A file of launch/ or config/, in the source tree or where the package is installed.

    Raises:
        FileNotFoundError: it is in neither.
    """
    source = Path(__file__).parents[2] / relative
    if source.is_file():
        return source
    from ament_index_python.packages import get_package_share_directory

    installed = Path(get_package_share_directory("ttsp_ros")) / relative
    if not installed.is_file():
        raise FileNotFoundError(f"{relative} is neither in {source.parents[1]} nor in {installed.parents[1]}")
    return installed


def middleware_settings() -> dict[str, str]:
    """Environment of both processes: this machine only, and room in shared memory (see config/fastdds.xml)."""
    profile = str(shared_file("config/fastdds.xml"))
    return {
        "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
        "FASTDDS_DEFAULT_PROFILES_FILE": profile,
        "FASTRTPS_DEFAULT_PROFILES_FILE": profile,
    }


def unique_namespace(purpose: str) -> str:
    """A namespace that no other run on this machine uses."""
    return f"/{purpose}_{os.getpid()}_{next(_numbers)}"


@dataclass
class NodeProcess:
    """`superpoint_node` as a process; stopped by Ctrl-C at the end of the `with` block.

    Attributes:
        namespace: of the node; its name is NODE_NAME.
        parameters: name to value, as on a command line.
        log: where its output goes.
        start: Python that runs the node.
    """

    namespace: str
    parameters: Mapping[str, Any]
    log: Path
    start: str = START
    status: int | None = field(default=None, init=False)

    def command(self) -> list[str]:
        """What is run."""
        # A megabyte in many fragments is soon lost by best effort on a busy machine; here no frame may be.
        reliable = {f"qos_overrides.{self.namespace}/image.subscription.reliability": "reliable"}
        parameters = {**reliable, **self.parameters}
        settings = [word for name, value in parameters.items() for word in ("-p", f"{name}:={value}")]
        names = ["-r", f"__ns:={self.namespace}", "-r", f"__node:={NODE_NAME}"]
        names += ["-r", f"/diagnostics:={self.namespace}/{NODE_NAME}/diagnostics"]
        return [sys.executable, "-c", self.start, "--ros-args", *names, *settings]

    def __enter__(self) -> NodeProcess:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("wb") as output:
            # A session of its own: Ctrl-C at the terminal goes to this process, which then stops the node in order.
            self._process = subprocess.Popen(
                self.command(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **middleware_settings()},
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        try:
            self.status = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self.status = self._process.wait()

    def check(self) -> None:
        """Raises NodeError when the process has ended."""
        if self._process.poll() is not None:
            raise self.failure(f"the node ended with exit status {self._process.returncode}")

    def failure(self, what: str) -> NodeError:
        """An error with the end of the node's log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        return NodeError("\n".join([f"{what}; the end of its log ({self.log}):", *lines]))


class Client:
    """Sends frames to a node and waits for what it makes of each.

    Args:
        node: a running node.
        topics: message class by topic of the node, without namespace and node name: {"descriptors": PointCloud2}.
        besides: the same for topics that do not answer a frame; their messages gather in `heard`.

    Attributes:
        heard: (topic, serialized message) of the topics in `besides`, in the order of arrival.
    """

    def __init__(
        self, node: NodeProcess, topics: Mapping[str, type], besides: Mapping[str, type] | None = None
    ) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self._node = node
        self._wanted: int | None = None
        self._messages: dict[str, bytes] = {}
        self._arrivals: dict[str, float] = {}
        self._topics = tuple(topics)
        self._context = Context()
        os.environ.update(middleware_settings())  # read by the middleware, which knows no other way
        rclpy.init(context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._ros = rclpy.create_node("camera", namespace=node.namespace, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._ros)
        self._images = self._ros.create_publisher(Image, f"{node.namespace}/image", 5)
        self._infos = self._ros.create_publisher(CameraInfo, f"{node.namespace}/camera_info", 5)
        profile = QoSProfile(depth=10, reliability=ReliabilityPolicy.BEST_AVAILABLE)
        receivers = [(topic, kind, self._receiver(topic)) for topic, kind in topics.items()]
        receivers += [(topic, kind, self._hearer(topic)) for topic, kind in (besides or {}).items()]
        for topic, kind, receive in receivers:
            name = f"{node.namespace}/{NODE_NAME}/{topic}"
            self._ros.create_subscription(kind, name, receive, profile, raw=True)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._executor.shutdown()
        self._ros.destroy_node()
        rclpy.shutdown(context=self._context)

    def wait_until_ready(self, seconds: float = READY_SECONDS) -> None:
        """Until the node listens to this camera, and this end listens to the node.

        Raises:
            NodeError: it ended, or takes longer than `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not self._connected():
            self._node.check()
            if time.monotonic() > deadline:
                raise self._node.failure(f"the node is not ready after {seconds:.0f} s")
            self._executor.spin_once(timeout_sec=0.05)

    def exchange(self, image: bytes, stamp: int, info: bytes | None = None) -> Reply:
        """Publishes one serialized sensor_msgs/Image and waits for a message with its stamp on every topic.

        Args:
            image: CDR.
            stamp: of its header, in nanoseconds.
            info: CDR of its sensor_msgs/CameraInfo.

        Raises:
            NodeError: the node ended, or did not answer although the frame was sent SENDS times.
        """
        self._wanted = stamp
        self._messages, self._arrivals = {}, {}
        for send in range(1, SENDS + 1):
            begin = time.perf_counter()
            if info is not None:
                self._infos.publish(info)
            self._images.publish(image)
            if self._complete_within(begin + RESEND_SECONDS):
                return Reply(self._messages, {name: at - begin for name, at in self._arrivals.items()}, send)
        missing = ", ".join(sorted(set(self._topics) - set(self._messages)))
        raise self._node.failure(f"no {missing} for a frame that was sent {SENDS} times")

    def _complete_within(self, deadline: float) -> bool:
        while len(self._messages) < len(self._topics):
            if time.perf_counter() > deadline:
                return False
            self._node.check()
            self._executor.spin_once(timeout_sec=0.2)
        return True

    def _receiver(self, topic: str) -> Any:
        def receive(data: bytes) -> None:
            if topic not in self._messages and stamp_of(data) == self._wanted:
                self._arrivals[topic] = time.perf_counter()
                self._messages[topic] = data

        return receive

    def _hearer(self, topic: str) -> Any:
        return lambda data: self.heard.append((topic, data))

    def _connected(self) -> bool:
        return self._images.get_subscription_count() > 0 and all(
            subscription.get_publisher_count() > 0 for subscription in self._ros.subscriptions
        )


def stamp_of(data: bytes) -> int:
    """The stamp in nanoseconds of a serialized message that begins with a std_msgs/Header."""
    order = "<" if data[1] & 1 else ">"  # the second byte of CDR's encapsulation header
    seconds, nanoseconds = struct.unpack_from(f"{order}iI", data, 4)
    return seconds * 1_000_000_000 + nanoseconds


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and max, as linear interpolation between the sorted values."""
    import numpy as np

    points = np.percentile(values, [50, 90, 99, 100])
    return {name: float(value) for name, value in zip(("p50", "p90", "p99", "max"), points, strict=True)}
