"""A dit_node in this process, with a robot and a vision-language model at its other end, all over real rclpy."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")

rclpy = pytest.importorskip("rclpy", reason="needs ROS: source an installation, or install the wheels (make setup)")

from diagnostic_msgs.msg import DiagnosticArray  # noqa: E402
from rclpy.context import Context  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from rclpy.qos import QoSProfile  # noqa: E402
from sensor_msgs.msg import JointState, PointCloud2  # noqa: E402
from std_msgs.msg import Header  # noqa: E402
from std_srvs.srv import SetBool, Trigger  # noqa: E402
from trajectory_msgs.msg import JointTrajectory  # noqa: E402

from ttsp_ros.dit.chunking import NS  # noqa: E402
from ttsp_ros.dit.config import N15, GrootConfig  # noqa: E402
from ttsp_ros.dit.create import PolicyOptions  # noqa: E402
from ttsp_ros.dit.policy import Policy, Tokens  # noqa: E402
from ttsp_ros.dit.robot import make_robot  # noqa: E402
from ttsp_ros.ros.dit_node import DitNode  # noqa: E402
from ttsp_ros.ros.token_table import token_message  # noqa: E402

from ...node_rig import DOMAIN, WAIT_SECONDS, Inbox, NodeRig, wait_until  # noqa: E402

JOINTS = ("shoulder", "elbow", "wrist")
DT = 0.1

_numbers = itertools.count()


@dataclass
class FakeHead:
    """A head whose chunks the test chooses.

    Attributes:
        rows: [horizon, 3], what it gives for the three joints.
        gate: `sample` waits for it.
        error: raised instead, while set.
        inpaintings, states: what `sample` was given.
    """

    rows: np.ndarray
    config: GrootConfig = field(default_factory=N15.tiny)
    gate: threading.Event = field(default_factory=threading.Event)
    error: Exception | None = None
    inpaintings: list[Any] = field(default_factory=list)
    states: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()

    def encode_tokens(self, features: Any, is_image: Any = None, valid: Any = None) -> Any:
        assert features.shape[1] == self.config.vl_dim

    def noise(self, seed: int | None = None) -> torch.Tensor:
        return torch.zeros(self.config.horizon, self.config.max_action_dim)

    def sample(self, context: Any, state: torch.Tensor, noise: torch.Tensor, inpainting: Any = None) -> torch.Tensor:
        self.states.append(state[:3].numpy())
        self.inpaintings.append(inpainting)
        assert self.gate.wait(WAIT_SECONDS)
        if self.error is not None:
            raise self.error
        chunk = noise.clone()
        chunk[:, :3] = torch.from_numpy(self.rows)
        return chunk

    def make(self, options: PolicyOptions, log: Callable[[str], None]) -> Policy:
        """For DitNode's make_policy."""
        arm = {"joints": list(JOINTS), "mode": "none"}
        robot = make_robot({"embodiment_index": 0, "state": {"arm": arm}, "action": {"arm": arm}}, self.config)
        return Policy(self, robot, DT)


def rising_head(speed: float = 0.5, config: GrootConfig | None = None) -> FakeHead:
    """All joints rise at `speed` rad/s from 0."""
    config = config or N15.tiny()
    rows = np.float32(speed * DT * np.arange(config.horizon))[:, None] * np.ones((1, 3), np.float32)
    return FakeHead(rows, config)


class Rig(NodeRig):
    """One DitNode in a namespace of its own, spun by a thread, and a second node that plays the rest of the robot."""

    def __init__(self, context: Context, make_policy: Any, parameters: dict[str, Any]) -> None:
        self.namespace = f"/test_{os.getpid()}_{next(_numbers)}"
        node = DitNode(
            **({"make_policy": make_policy} if make_policy else {}),
            context=context,
            namespace=self.namespace,
            parameter_overrides=[Parameter(name, value=value) for name, value in parameters.items()],
            cli_args=["--ros-args", "-r", f"/diagnostics:={self.namespace}/diagnostics"],
        )
        super().__init__(node, rclpy.create_node("peer", context=context, namespace=self.namespace))
        self._joints = self.peer.create_publisher(JointState, "joint_states", QoSProfile(depth=50))
        self._tokens = self.peer.create_publisher(PointCloud2, "tokens", QoSProfile(depth=10))
        self.preview = self._listen("dit/preview", JointTrajectory)
        self.trajectory = self._listen("joint_trajectory", JointTrajectory)
        self.diagnostics = self._listen("diagnostics", DiagnosticArray)
        self.begin()

    def _listen(self, topic: str, kind: type) -> Inbox:
        inbox = Inbox()
        self.peer.create_subscription(kind, topic, inbox.messages.append, QoSProfile(depth=100))
        return inbox

    def start(self) -> Rig:
        """Configure and activate, and wait until everybody has found everybody."""
        assert self.on_node(self.node.autostart)
        wait_until(
            lambda: self._joints.get_subscription_count() and self._tokens.get_subscription_count(), what="inputs"
        )
        for topic in ("dit/preview", "joint_trajectory"):
            wait_until(lambda topic=topic: self.peer.count_publishers(f"{self.namespace}/{topic}"), what=topic)
        return self

    def now(self) -> int:
        return self.peer.get_clock().now().nanoseconds

    def send_joints(self, names: Any = JOINTS, positions: Any = (0.0, 0.0, 0.0), stamp: int | None = None) -> None:
        message = JointState(name=list(names), position=list(positions))
        _set_stamp(message.header, self.now() if stamp is None else stamp)
        self._joints.publish(message)

    def send_tokens(self, stamp: int | None = None, width: int = 32, count: int = 12, seed: int = 0) -> int:
        """Returns the stamp."""
        stamp = self.now() if stamp is None else stamp
        features = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
        self.send(token_message(Header(), Tokens(features, np.arange(count) >= 4, np.ones(count, bool))), stamp)
        return stamp

    def send(self, message: PointCloud2, stamp: int) -> None:
        _set_stamp(message.header, stamp)
        self._tokens.publish(message)

    def observe(self, age: float = 0.0, positions: Any = (0.0, 0.0, 0.0), seed: int = 0) -> int:
        """Joint states from `age` seconds ago until now, and tokens of then; returns their stamp."""
        now = self.now()
        stamp = now - round(age * NS)
        for moment in sorted({stamp, now}):
            self.send_joints(JOINTS, positions, moment)
        known = lambda: not self._known(stamp)  # noqa: E731
        wait_until(known, what=lambda: self._known(stamp))
        return self.send_tokens(stamp, seed=seed)

    def _known(self, stamp: int) -> str:
        try:
            self.node._history.at(stamp, JOINTS, 0.0, "the stamp")
        except ValueError as error:
            return str(error)
        return ""

    def call(self, kind: type, name: str, **request: Any) -> Any:
        client = self.peer.create_client(kind, name)
        wait_until(client.service_is_ready, what=name)
        future = client.call_async(kind.Request(**request))
        wait_until(future.done, what=f"answer of {name}")
        return future.result()

    def enable(self, enabled: bool = True) -> Any:
        return self.call(SetBool, "dit/enable", data=enabled)

    def predict(self) -> Any:
        return self.call(Trigger, "dit/predict")

    def counts(self) -> Any:
        return self.node._counter.counts()

    def refusal(self, count: int = 1) -> str:
        """Why the latest tokens were refused, once `count` were."""
        wait_until(lambda: self.counts().refused >= count, what=lambda: f"a refusal; {self.counts()}")
        return self.counts().refusal

    def told(self, contains: str) -> dict[str, str]:
        """The values of a diagnostic message whose text contains this."""

        def found() -> list[Any]:
            return [
                status for array in self.diagnostics.messages for status in array.status if contains in status.message
            ]

        wait_until(
            found, what=lambda: f"{contains!r} in {[a.status[0].message for a in self.diagnostics.messages[-3:]]}"
        )
        return {value.key: value.value for value in found()[-1].values}


def _set_stamp(header: Header, stamp: int) -> None:
    header.stamp.sec, header.stamp.nanosec = divmod(stamp, NS)


@pytest.fixture(scope="session")
def dit_context() -> Iterator[Context]:
    context = Context()
    rclpy.init(context=context, domain_id=DOMAIN)
    yield context
    rclpy.try_shutdown(context=context)


@pytest.fixture
def make_rig(dit_context: Context) -> Iterator[Callable[..., Rig]]:
    """rig = make_rig(head, overlap=0); with a head the node's policy is a fake. Closed at the end of the test.

    Unlike the node's defaults, chunks come through as the head gives them, and messages may take their time.
    """
    rigs: list[Rig] = []

    def make(head: FakeHead | None = None, **parameters: Any) -> Rig:
        plain = {
            "overlap": 0,
            "max_joint_velocity": 0.0,
            "max_observation_age": 5.0,
            "max_state_skew": 5.0,
            "diagnostics_period": 0.1,
        }
        rigs.append(Rig(dit_context, head.make if head else None, {**plain, **parameters}))
        return rigs[-1]

    yield make
    for rig in rigs:
        rig.close()


@pytest.fixture(name="rising_head")
def rising_head_fixture() -> Callable[..., FakeHead]:
    return rising_head
