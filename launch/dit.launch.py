"""One dit_node: `ros2 launch ttsp_ros dit.launch.py config:=my_robot.yaml checkpoint:=GR00T-N1.5-3B`.

Without a checkpoint: `... weights:=random_tiny version:=n1.5 config:=...` shows that everything is connected.
`--show-args` lists all arguments: every parameter of the node is one, described as the node describes it.
"""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription
from ttsp_ros.ros.dit_parameters import DIT_PARAMETERS
from ttsp_ros.ros.launch_arguments import NODE_ARGUMENTS, LaunchArgument, given_parameters, parameter_arguments
from ttsp_ros.ros.launch_node import describe, given_texts, our_node

TOPICS = (
    LaunchArgument("joint_states", "Topic of the joint positions (sensor_msgs/JointState).", "joint_states"),
    LaunchArgument("tokens", "Topic of the vision-language tokens (sensor_msgs/PointCloud2).", "tokens"),
    LaunchArgument(
        "joint_trajectory",
        "Topic of the motions (trajectory_msgs/JointTrajectory), such as /arm_controller/joint_trajectory.",
        "joint_trajectory",
    ),
)

ARGUMENTS = (
    LaunchArgument("name", "Name of the node; its topics and services are below it.", "dit"),
    *NODE_ARGUMENTS,
    *TOPICS,
    *parameter_arguments(DIT_PARAMETERS),
)


def parameter_files(given: dict[str, str]) -> list[str]:
    """The file that is given, or else the one of the version that is given, or none."""
    if given["params_file"]:
        return [given["params_file"]]
    name = f"dit_{given['version'].replace('.', '')}.yaml"
    file = Path(get_package_share_directory("ttsp_ros")) / "config" / name
    return [str(file)] if file.is_file() else []


def make_node(context: LaunchContext) -> list[Node]:
    """The node, once the arguments are known."""
    given = given_texts(context, ARGUMENTS)
    parameters = given_parameters(DIT_PARAMETERS, given)
    remappings = [(topic.name, given[topic.name]) for topic in TOPICS]
    return [our_node("dit_node", given, parameter_files(given), parameters, remappings)]


def generate_launch_description() -> LaunchDescription:
    """Arguments and node."""
    return describe(ARGUMENTS, make_node)
