"""dit_node: joint states and vision-language tokens in, a joint trajectory out. Topics and parameters: docs/dit.md."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration, Time
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock
from rclpy.clock_type import ClockType
from rclpy.qos import QoSHistoryPolicy, QoSProfile, QoSReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.task import Future
from sensor_msgs.msg import JointState, PointCloud2
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from ttsp_ros.dit.chunking import NS, Plan
from ttsp_ros.dit.create import PolicyOptions, create_policy
from ttsp_ros.dit.policy import Policy
from ttsp_ros.ros.action_stream import ActionStream
from ttsp_ros.ros.diagnostics import Counter, Counts, Health, status
from ttsp_ros.ros.dit_parameters import DIT_PARAMETERS, RANDOM_SEED, policy_options, splicing
from ttsp_ros.ros.joint_history import JointHistory
from ttsp_ros.ros.lifecycle import ManagedNode, spin
from ttsp_ros.ros.parameters import ParameterSet, Values
from ttsp_ros.ros.stop_signal import StopSignal, leave
from ttsp_ros.ros.token_table import read_tokens
from ttsp_ros.ros.worker import Worker

TOKENS = "tokens"
# Older joint positions than any tokens that are still used.
HISTORY_SECONDS = 5.0
# A stamp this far ahead of the node's clock is of another clock.
FUTURE_SECONDS = 0.1
WARNING_PERIOD = 2.0

MakePolicy = Callable[[PolicyOptions, Callable[[str], None]], Policy]


class DitNode(ManagedNode):
    """The lifecycle node. The policy is made and used on one thread, the worker's.

    Motion needs three things: the node is active, `dry_run` is off, and `~/enable` was called with true. Without them
    chunks are computed and published on ~/preview.

    Args:
        make_policy: makes what computes the chunks; the arguments are those of `create_policy`.
        kwargs: of rclpy's LifecycleNode.
    """

    def __init__(self, *, make_policy: MakePolicy = create_policy, **kwargs: Any) -> None:
        super().__init__("dit", **kwargs)
        self._make_policy = make_policy
        self._worker: Worker[PointCloud2] | None = None
        self._policy: Policy | None = None
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._services: list[Any] = []
        self._history = JointHistory(HISTORY_SECONDS)
        self._stream = ActionStream(self._send)
        self._counter = Counter()
        self._before = Counts()
        self._enabled = False
        self._newest: PointCloud2 | None = None
        self._predicted_stamp: int | None = None
        self._latency = 0.0
        self._parameter_set = ParameterSet(
            self, DIT_PARAMETERS, validate=self._check, apply=self._apply, configured=lambda: self.configured
        )
        self._values = self._parameter_set.values()
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # By a clock that runs also while simulated time stands still.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(self._values["diagnostics_period"], self._tell, clock=steady)

    def set_up(self) -> None:
        """Make and warm up the policy, and offer topics and services."""
        values = self._parameter_set.values()
        self._worker = Worker("dit", self._process, self._fail)
        if self._interrupted:
            self._worker.stop()
        options = policy_options(values)
        self._policy = self._worker.call(lambda: self._make_policy(options, self.get_logger().info)).result()
        overriding = QoSOverridingOptions.with_default_policies()
        self._trajectory, self._preview = (
            self.create_lifecycle_publisher(
                JointTrajectory, topic, QoSProfile(depth=1), qos_overriding_options=overriding
            )
            for topic in ("joint_trajectory", "~/preview")
        )
        self._outputs = [self._trajectory, self._preview]
        self._services = [
            self.create_service(Trigger, "~/predict", self._on_predict),
            self.create_service(SetBool, "~/enable", self._on_enable),
        ]

    def start(self) -> None:
        """Begin to take joint states and tokens."""
        assert self._policy is not None
        self._counter.reset()
        self._before = Counts()
        self._history.clear()
        self._stream.forget()
        self._newest = self._predicted_stamp = None
        overriding = QoSOverridingOptions.with_default_policies()
        self._inputs = [
            self.create_subscription(kind, topic, callback, _sensor_qos(depth), qos_overriding_options=overriding)
            for kind, topic, callback, depth in (
                (JointState, "joint_states", self._on_joints, 50),
                (PointCloud2, TOKENS, self._on_tokens, 1),
            )
        ]
        topics = " and ".join(subscription.topic_name for subscription in self._inputs)
        self.get_logger().info(f"active; {topics} in, {self._trajectory.topic_name} out: {self._mode()}")

    def halt(self) -> None:
        """Stop the arm, take no more messages, and wait for the prediction in work."""
        self._set_enabled(False)
        for subscription in self._inputs:
            self.destroy_subscription(subscription)
        self._inputs = []
        if self._worker is not None:
            self._counter.drop(len(self._worker.clear()))

    def tear_down(self) -> None:
        """Give up policy, topics and services."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()
            worker.join()
        for service in self._services:
            self.destroy_service(service)
        for publisher in self._outputs:
            self.destroy_publisher(publisher)
        self._services, self._outputs, self._policy = [], [], None

    def interrupt(self) -> None:
        """See ManagedNode."""
        super().interrupt()
        worker = self._worker
        if worker is not None:
            worker.stop()

    def _check(self, values: Values) -> None:
        splicing(values)

    def _apply(self, values: Values) -> None:
        self._values = values
        self._update_motion()

    # Inputs, on the executor's thread

    def _on_joints(self, message: JointState) -> None:
        stamp = _nanoseconds(message.header.stamp) or self._now()
        try:
            self._history.add(stamp, message.name, message.position)
        except ValueError as error:
            self._warn(f"joint_states: refused: {error}")

    def _on_tokens(self, message: PointCloud2) -> None:
        self._newest = message
        self._counter.receive()
        if self._worker is not None and self._worker.put(TOKENS, message) is not None:
            self._counter.drop()

    async def _on_predict(self, request: Trigger.Request, response: Trigger.Response) -> Trigger.Response:
        """One chunk from the newest tokens, due or not."""
        message, worker = self._newest, self._worker
        if self.state_label != "active" or worker is None or message is None:
            response.message = (
                "no tokens have come" if self.state_label == "active" else f"the node is {self.state_label}"
            )
            return response
        executor = self.executor
        assert executor is not None
        answered: Future = Future(executor=executor)

        def answer(done: Any) -> None:
            answered.set_result(done.exception())
            # A coroutine that waits is looked at only when the executor has something to do.
            executor.wake()

        worker.call(lambda: self._predict(message)).add_done_callback(answer)
        error = await answered
        response.success = error is None
        response.message = str(error) if error is not None else f"a chunk was published: {self._mode()}"
        return response

    def _on_enable(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if request.data and self.state_label != "active":
            response.message = f"the node is {self.state_label}; activate it first"
            return response
        self._set_enabled(request.data)
        response.success = True
        response.message = self._mode()
        self.get_logger().info(f"{'enabled' if request.data else 'disabled'}: {response.message}")
        return response

    # Motion

    def _set_enabled(self, enabled: bool) -> None:
        self._enabled = enabled
        self._update_motion()

    def _update_motion(self) -> None:
        if self._enabled and not self._values["dry_run"]:
            self._stream.allow_motion()
        else:
            self._stream.stop_motion(self._now(), brake=self._values["action_dt"])

    def _mode(self) -> str:
        if self._stream.moving:
            return "the arm moves"
        missing = [*(["dry_run is on"] if self._values["dry_run"] else []), *([] if self._enabled else ["not enabled"])]
        return f"preview only ({' and '.join(missing)})"

    def _send(self, plan: Plan, stamp: int, motion: bool) -> None:
        """Publish a plan without its first knot, which is now."""
        assert self._policy is not None
        message = JointTrajectory(joint_names=list(self._policy.modality.joints))
        message.header.stamp = Time(sec=stamp // NS, nanosec=stamp % NS)
        message.points = [
            JointTrajectoryPoint(positions=row.tolist(), time_from_start=_duration(int(moment) - stamp))
            for moment, row in zip(plan.times[1:], plan.positions[1:], strict=True)
        ]
        self._preview.publish(message)
        if motion:
            self._trajectory.publish(message)

    # Prediction, on the worker's thread

    def _process(self, source: str, message: PointCloud2) -> None:
        try:
            if not self._due(_nanoseconds(message.header.stamp)):
                self._counter.drop()
                return
            self._predict(message)
        except ValueError as error:
            self._counter.refuse(str(error))
            self._warn(f"no motion: {error}")

    def _due(self, stamp: int) -> bool:
        """Whether enough rows of the latest chunk are executed; half a row of jitter is none of the sender's fault."""
        previous = self._predicted_stamp
        if previous is None:
            return True
        if stamp < previous:
            self.get_logger().info("time jumped back; starting anew")
            self._stream.forget()
            self._predicted_stamp = None
            return True
        assert self._policy is not None
        return stamp - previous >= (self._values["execution_horizon"] - 0.5) * self._policy.action_dt * NS

    def _predict(self, message: PointCloud2) -> None:
        """One chunk; raises ValueError with the reason when there is to be no motion."""
        policy, values = self._policy, self._values
        assert policy is not None
        begin = time.perf_counter()
        stamp = self._observation_stamp(message)
        config = policy.head.config
        tokens = read_tokens(message, config.vl_dim, needs_is_image=bool(config.text_every))
        joints, skew = policy.modality.observed_joints, values["max_state_skew"]
        positions = self._history.at(stamp, joints, skew, "the tokens' stamp")
        continuation = None
        if values["chunking"] == "rtc" or (values["chunking"] == "auto" and config.version == "n1.7"):
            ready = self._now() + round(self._latency * NS)
            continuation = self._stream.continuation(stamp, ready, policy.action_dt, values["overlap"])
        seed = None if values["seed"] == RANDOM_SEED else values["seed"]
        prediction = policy.predict(tokens, positions, stamp, seed, continuation)
        now = self._now()
        here = self._history.at(now, policy.modality.joints, skew, "now")
        measured = np.array([here[joint] for joint in policy.modality.joints])
        error = values["max_tracking_error"]
        if self._stream.follow(prediction, now, measured, splicing(values), error) is None:
            raise ValueError(
                f"the chunk was ready {(now - stamp) / NS:.2f} s after its observation, when none of its "
                f"{len(prediction.chunk.positions)} rows of {policy.action_dt} s within max_observation_age "
                f"({values['max_observation_age']} s) was left"
            )
        self._predicted_stamp = stamp
        self._latency = time.perf_counter() - begin
        self._counter.process(self._latency * 1e3, (self._now() - stamp) / 1e6)

    def _observation_stamp(self, message: PointCloud2) -> int:
        stamp = _nanoseconds(message.header.stamp)
        if stamp == 0:
            raise ValueError("tokens: the header has no stamp; it must be the time of the images")
        age, allowed = (self._now() - stamp) / NS, self._values["max_observation_age"]
        if age > allowed:
            raise ValueError(f"tokens: {age:.2f} s old, allowed is max_observation_age = {allowed} s")
        if age < -FUTURE_SECONDS:
            raise ValueError(f"tokens: stamped {-age:.2f} s in the future: is use_sim_time what it should be?")
        return stamp

    def _fail(self, source: str, error: Exception) -> None:
        self._counter.fail(f"{type(error).__name__}: {error}")
        details = "".join(traceback.format_exception(error))
        self.get_logger().error(
            f"prediction failed, and this is a defect:\n{details}", throttle_duration_sec=WARNING_PERIOD
        )

    def _warn(self, text: str) -> None:
        self.get_logger().warning(text, throttle_duration_sec=WARNING_PERIOD)

    def _now(self) -> int:
        return self.get_clock().now().nanoseconds

    # Diagnostics

    def _tell(self) -> None:
        counts = self._counter.counts()
        array = DiagnosticArray()
        array.header.stamp = self.get_clock().now().to_msg()
        name = self.get_fully_qualified_name().lstrip("/")
        array.status.append(status(name, self._health(counts), "torch", self._report(counts)))
        self._before = counts
        self._diagnostics.publish(array)

    def _health(self, counts: Counts) -> Health:
        if self.state_label != "active":
            return Health(Health.OK, self.state_label)
        if counts.failed > self._before.failed:
            return Health(Health.ERROR, f"failed: {counts.failure}")
        if counts.refused > self._before.refused:
            return Health(Health.WARN, f"no motion: {counts.refusal}")
        if counts.waited > self._values["max_observation_age"]:
            return Health(Health.WARN, f"no motion: no tokens for {counts.waited:.1f} s")
        return Health(Health.OK, self._mode())

    def _report(self, counts: Counts) -> dict[str, str]:
        """Key-value pairs. inference_ms is from tokens to trajectory; warming up isn't part of it."""
        renamed = {"processing_ms": "inference_ms", "processing_ms_max": "inference_ms_max", "fps": "chunks_per_second"}
        values = {renamed.get(key, key): value for key, value in counts.values().items()}
        end = self._stream.end()
        left = 0.0 if end is None else max(0.0, (end - self._now()) / NS)
        return {
            "state": self.state_label,
            "motion": str(self._stream.moving),
            "enabled": str(self._enabled),
            "dry_run": str(self._values["dry_run"]),
            "seconds_of_motion_left": f"{left:.3f}",
            "weights": self._values["checkpoint"]
            if self._values["weights"] == "checkpoint"
            else self._values["weights"],
            **values,
        }


def _sensor_qos(depth: int) -> QoSProfile:
    return QoSProfile(depth=depth, history=QoSHistoryPolicy.KEEP_LAST, reliability=QoSReliabilityPolicy.BEST_EFFORT)


def _nanoseconds(stamp: Any) -> int:
    return stamp.sec * NS + stamp.nanosec


def _duration(nanoseconds: int) -> Duration:
    return Duration(sec=nanoseconds // NS, nanosec=nanoseconds % NS)


def run(args: list[str] | None = None, stop: StopSignal | None = None) -> int:
    """Run the node as this process and return its exit status; the executable enters through `ttsp_ros.ros.main`."""
    return spin(DitNode, args, stop)


if __name__ == "__main__":
    leave(run())
