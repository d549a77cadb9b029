"""An arm that does what it is told: follows a JointTrajectory as a joint trajectory controller does, tells where it is.

No dynamics: a joint is on the straight line between the points of the trajectory, at their times. A new trajectory
takes over at once, from where the arm is then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rclpy.node import Node
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from ttsp_ros.dit.chunking import NS, Plan


@dataclass
class Log:
    """What happened to the arm; times in ns.

    Attributes:
        times, positions: where it was: float64 [joints] each.
        trajectories: what it was told, and when it heard of it.
    """

    times: list[int] = field(default_factory=list)
    positions: list[np.ndarray] = field(default_factory=list)
    trajectories: list[tuple[int, Plan]] = field(default_factory=list)


class SimulatedArm(Node):
    """Topics: `joint_trajectory` in, `joint_states` out.

    Args:
        joints: names.
        start: where it begins (rad or m).
        rate: joint states a second.
        kwargs: of rclpy's Node.
    """

    def __init__(self, joints: Sequence[str], start: Sequence[float], rate: float = 100.0, **kwargs: Any) -> None:
        super().__init__("simulated_arm", **kwargs)
        self.joints = tuple(joints)
        self.log = Log()
        self._plan = Plan.hold(self._now(), np.asarray(start, np.float64))
        self._publisher = self.create_publisher(JointState, "joint_states", QoSProfile(depth=10))
        self.create_subscription(JointTrajectory, "joint_trajectory", self._on_trajectory, QoSProfile(depth=10))
        self.create_timer(1.0 / rate, self._tell)

    def position(self) -> np.ndarray:
        """float64 [joints], where it is now."""
        return self._plan.at(np.array([self._now()]))[0]

    def _now(self) -> int:
        return self.get_clock().now().nanoseconds

    def _on_trajectory(self, message: JointTrajectory) -> None:
        unknown = set(message.joint_names) - set(self.joints)
        if unknown:
            self.get_logger().error(f"trajectory of unknown joints: {', '.join(sorted(unknown))}")
            return
        now, start = self._now(), _time(message.header.stamp)
        columns = [self.joints.index(name) for name in message.joint_names]
        times, positions = [now], [self.position()]
        for point in message.points:
            moment = start + _time(point.time_from_start)
            if moment > now:
                target = positions[0].copy()
                target[columns] = point.positions
                times.append(moment)
                positions.append(target)
        self._plan = Plan(np.array(times, np.int64), np.stack(positions))
        self.log.trajectories.append((now, self._plan))

    def _tell(self) -> None:
        now, position = self._now(), self.position()
        message = JointState(name=list(self.joints), position=position.tolist())
        message.header.stamp = self.get_clock().now().to_msg()
        self._publisher.publish(message)
        self.log.times.append(now)
        self.log.positions.append(position)


def _time(stamp: Any) -> int:
    return stamp.sec * NS + stamp.nanosec
