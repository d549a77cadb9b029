"""What the launch files of our nodes share. Needs launch_ros, so only launch files import it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from launch.actions import DeclareLaunchArgument, OpaqueFunction
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription
from ttsp_ros.ros.launch_arguments import LaunchArgument, logger_name


def describe(
    arguments: Sequence[LaunchArgument], make_nodes: Callable[[LaunchContext], list[Node]]
) -> LaunchDescription:
    """The arguments, and the nodes that `make_nodes` gives once they are known."""
    declared = [
        DeclareLaunchArgument(argument.name, default_value=argument.default, description=argument.description)
        for argument in arguments
    ]
    return LaunchDescription([*declared, OpaqueFunction(function=make_nodes)])


def given_texts(context: LaunchContext, arguments: Sequence[LaunchArgument]) -> dict[str, str]:
    """The text of every argument, by name."""
    return {argument.name: LaunchConfiguration(argument.name).perform(context) for argument in arguments}


def our_node(
    executable: str,
    given: dict[str, str],
    parameter_files: Sequence[str],
    parameters: dict[str, Any],
    remappings: Sequence[tuple[str, str]],
) -> Node:
    """A node of this package.

    Args:
        executable: which.
        given: `given_texts` with the argument `name` and NODE_ARGUMENTS.
        parameter_files: YAML files, later ones win.
        parameters: win over the files.
        remappings: (from, to) of topics.
    """
    return Node(
        package="ttsp_ros",
        executable=executable,
        name=given["name"],
        namespace=given["namespace"],
        parameters=[*parameter_files, {"use_sim_time": given["use_sim_time"].lower() == "true", **parameters}],
        remappings=list(remappings),
        ros_arguments=["--log-level", f"{logger_name(given['namespace'], given['name'])}:={given['log_level']}"],
        output="screen",
        emulate_tty=True,
    )
