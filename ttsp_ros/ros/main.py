"""Entry points of the executables: signals are taken over before ROS, or anything else that takes time, is imported."""

from __future__ import annotations

from typing import NoReturn

from ttsp_ros.openmp import wait_passively
from ttsp_ros.ros.stop_signal import StopSignal, leave


def superpoint_node(args: list[str] | None = None) -> NoReturn:
    """`ros2 run ttsp_ros superpoint_node`."""
    stop = StopSignal().install()
    wait_passively()
    from ttsp_ros.ros.superpoint_node import run

    leave(run(args, stop))


def dit_node(args: list[str] | None = None) -> NoReturn:
    """`ros2 run ttsp_ros dit_node`."""
    stop = StopSignal().install()
    wait_passively()
    from ttsp_ros.ros.dit_node import run

    leave(run(args, stop))
