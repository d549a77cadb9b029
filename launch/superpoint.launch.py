"""One superpoint_node: `ros2 launch ttsp_ros superpoint.launch.py image:=/camera/image_raw`.

`--show-args` lists all arguments: every parameter of the node is one, described as the node describes it.
"""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription
from ttsp_ros.ros.launch_arguments import (
    NODE_ARGUMENTS,
    TOPIC_ARGUMENTS,
    LaunchArgument,
    camera_remappings,
    given_parameters,
    parameter_arguments,
    reliability_overrides,
)
from ttsp_ros.ros.launch_node import describe, given_texts, our_node
from ttsp_ros.ros.superpoint_parameters import ONE_CAMERA, SUPERPOINT_PARAMETERS

ARGUMENTS = (
    LaunchArgument("name", "Name of the node; its topics are below it.", "superpoint"),
    *NODE_ARGUMENTS,
    *TOPIC_ARGUMENTS,
    *parameter_arguments(SUPERPOINT_PARAMETERS),
)


def make_node(context: LaunchContext) -> list[Node]:
    """The node, once the arguments are known."""
    given = given_texts(context, ARGUMENTS)
    parameters = given_parameters(SUPERPOINT_PARAMETERS, given)
    remappings = camera_remappings(
        parameters.get("cameras", ONE_CAMERA), given["image"], given["camera_info"], given["mask"]
    )
    qos = reliability_overrides(
        remappings, given["namespace"], parameters.get("transport", "raw"), given["image_reliability"]
    )
    default_file = Path(get_package_share_directory("ttsp_ros")) / "config" / "superpoint.yaml"
    parameter_file = given["params_file"] or str(default_file)
    return [our_node("superpoint_node", given, [parameter_file], {**parameters, **qos}, remappings)]


def generate_launch_description() -> LaunchDescription:
    """Arguments and node."""
    return describe(ARGUMENTS, make_node)
