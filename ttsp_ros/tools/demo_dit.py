"""`make demo-dit`: dit_node with random weights moves a simulated arm; a picture shows where its joints went.

The weights are random, so the motion means nothing. What it shows is the way from tokens and joint states to an arm
that moves on smoothly from chunk to chunk, and that comes to rest when the tokens stop.
"""

from __future__ import annotations

import argparse
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
import yaml
from rclpy.executors import ExternalShutdownException, MultiThreadedExecutor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import QoSProfile
from sensor_msgs.msg import PointCloud2
from std_msgs.msg import Header
from std_srvs.srv import SetBool

from ttsp_ros.dit.chunking import NS
from ttsp_ros.dit.config import config_of
from ttsp_ros.dit.policy import Tokens
from ttsp_ros.ros.dit_node import DitNode
from ttsp_ros.ros.token_table import token_message
from ttsp_ros.tools.simulated_arm import Log, SimulatedArm

JOINTS = tuple(f"joint_{number}" for number in range(1, 8))
START = (0.0, -0.4, 0.2, -0.8, 0.1, 0.6, 0.0)
TOKENS = 300
IMAGE_TOKENS = 256
ROBOT = {
    "embodiment": "new_embodiment",
    "embodiment_index": 10,
    "state": {"arm": {"joints": list(JOINTS), "min": [-1.5] * 7, "max": [1.5] * 7}},
    "action": {"arm": {"joints": list(JOINTS), "min": [-1.5] * 7, "max": [1.5] * 7}},
}


class TokenSource(Node):
    """Plays the vision-language model: tokens that change slowly, `rate` times a second, until it is told to stop."""

    def __init__(self, width: int, rate: float, seed: int, **kwargs: Any) -> None:
        super().__init__("token_source", **kwargs)
        self._random = np.random.default_rng(seed)
        self._features = self._random.standard_normal((TOKENS, width)).astype(np.float32)
        self._publisher = self.create_publisher(PointCloud2, "tokens", QoSProfile(depth=1))
        self.create_timer(1.0 / rate, self._tell)
        self.stopped: int | None = None

    def stop(self) -> None:
        """Send no more tokens."""
        self.stopped = self.get_clock().now().nanoseconds

    def _tell(self) -> None:
        if self.stopped is not None:
            return
        fresh = self._random.standard_normal(self._features.shape).astype(np.float32)
        self._features = np.float32(0.98) * self._features + np.float32(0.2) * fresh
        tokens = Tokens(self._features, np.arange(TOKENS) >= TOKENS - IMAGE_TOKENS, np.ones(TOKENS, bool))
        self._publisher.publish(token_message(Header(stamp=self.get_clock().now().to_msg()), tokens))


def main(arguments: list[str] | None = None) -> None:
    """Run the demo; see --help."""
    parser = argparse.ArgumentParser(prog="demo-dit", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/demo-dit"), help="folder for the picture")
    parser.add_argument("--version", default="n1.7", choices=("n1.5", "n1.6", "n1.7"))
    parser.add_argument("--full", action="store_true", help="random weights of the full size (needs 6 GB)")
    parser.add_argument("--seconds", type=float, default=6.0, help="of motion, before the tokens stop")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    robot = options.output / "robot.yaml"
    robot.write_text(yaml.safe_dump(ROBOT, sort_keys=False), encoding="utf-8")
    log, stopped = run(robot, options.version, options.full, options.seconds)
    picture = options.output / "arm.png"
    draw(log, stopped, picture, f"GR00T {options.version}, random weights")
    print(f"{len(log.trajectories)} chunks; {picture}")


def run(robot: Path, version: str, full: bool, seconds: float) -> tuple[Log, int]:
    """What the arm did, and when the tokens stopped (ns)."""
    config = config_of(version) if full else config_of(version).tiny()
    rclpy.init()
    values = {
        "config": str(robot),
        "version": version,
        "weights": "random" if full else "random_tiny",
        "seed": 0,
        "dry_run": False,
        "action_dt": 0.08,
        "execution_horizon": 8,
        "overlap": 6,
        "max_joint_velocity": 1.0,
    }
    node = DitNode(parameter_overrides=[Parameter(name, value=value) for name, value in values.items()])
    arm = SimulatedArm(JOINTS, START)
    source = TokenSource(config.vl_dim, rate=10.0, seed=0)
    executors = [SingleThreadedExecutor(), MultiThreadedExecutor(2)]
    executors[0].add_node(node)
    executors[1].add_node(arm)
    executors[1].add_node(source)
    threads = [threading.Thread(target=_spin, args=(executor,), daemon=True) for executor in executors]
    try:
        if not node.autostart():
            raise SystemExit("dit_node did not start; its log says why")
        for thread in threads:
            thread.start()
        _enable(arm)
        clock = arm.get_clock()
        clock.sleep_for(rclpy.duration.Duration(seconds=seconds))
        source.stop()
        clock.sleep_for(rclpy.duration.Duration(seconds=2.0))
        assert source.stopped is not None
        return arm.log, source.stopped
    finally:
        rclpy.try_shutdown()
        for thread in threads:
            if thread.is_alive():
                thread.join()
        node.tear_down()


def _spin(executor: Any) -> None:
    with suppress(ExternalShutdownException):
        executor.spin()


def _enable(node: Node) -> None:
    client = node.create_client(SetBool, "dit/enable")
    if not client.wait_for_service(timeout_sec=10.0):
        raise SystemExit("dit_node offers no ~/enable")
    answered = threading.Event()
    client.call_async(SetBool.Request(data=True)).add_done_callback(lambda _: answered.set())
    if not answered.wait(10.0):
        raise SystemExit("dit_node did not answer ~/enable")


def draw(log: Log, stopped: int, path: Path, title: str) -> None:
    """Joint positions over time, the rows of each chunk, when chunks began and when the tokens stopped."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    begin = log.times[0]
    times = (np.array(log.times) - begin) / NS
    positions = np.stack(log.positions)
    figure, axes = pyplot.subplots(figsize=(12, 6), layout="constrained")
    for joint in range(positions.shape[1]):
        (line,) = axes.plot(times, positions[:, joint], linewidth=1.6, label=JOINTS[joint])
        for _, plan in log.trajectories:
            rows = (plan.times[1:] - begin) / NS
            axes.plot(rows, plan.positions[1:, joint], ".", color=line.get_color(), markersize=2.5, alpha=0.35)
    for number, (heard, _) in enumerate(log.trajectories):
        axes.axvline((heard - begin) / NS, color="0.75", linewidth=0.8, label="" if number else "new chunk")
    axes.axvline((stopped - begin) / NS, color="red", linestyle="--", label="tokens stop")
    axes.set(xlabel="seconds", ylabel="position (rad)", title=f"{title}: simulated arm (dots: rows of each chunk)")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main()
