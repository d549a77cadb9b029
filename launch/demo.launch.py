"""A bag or a camera, superpoint_node, and rviz where it is installed.

`ros2 launch ttsp_ros demo.launch.py bag:=my_bag image:=/camera/image_raw`, or `... video_device:=/dev/video0`, or
neither when a camera runs already. Every argument of superpoint.launch.py is one here too.
"""

from __future__ import annotations

import os
from pathlib import Path

from ament_index_python.packages import PackageNotFoundError, get_package_prefix, get_package_share_directory
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    IncludeLaunchDescription,
    LogInfo,
    OpaqueFunction,
    SetLaunchConfiguration,
)
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node

from launch import LaunchContext, LaunchDescription, LaunchDescriptionEntity
from ttsp_ros.ros.launch_arguments import LaunchArgument

ARGUMENTS = (
    LaunchArgument("bag", "Bag to play, over and over, with its clock as simulated time."),
    LaunchArgument("video_device", "Camera to open with v4l2_camera, like /dev/video0; it sends on the 'image' topic."),
    LaunchArgument("rviz", "Show the keypoints in rviz.", "true"),
    LaunchArgument("frame", "Frame of the camera, for the rays in rviz.", "camera"),
)

OUTPUTS = ("keypoints", "descriptors", "bearings", "debug_image")


def make_source(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """What sends the images; nothing when neither a bag nor a camera is asked for."""
    bag = LaunchConfiguration("bag").perform(context)
    device = LaunchConfiguration("video_device").perform(context)
    if bag and device:
        raise ValueError("bag and video_device: give one of them")
    if bag:
        require("ros2bag")
        play = ExecuteProcess(cmd=["ros2", "bag", "play", bag, "--clock", "--loop"], output="screen")
        return [SetLaunchConfiguration("use_sim_time", "true"), play]
    if device:
        require("v4l2_camera")
        return [
            Node(
                package="v4l2_camera",
                executable="v4l2_camera_node",
                namespace=LaunchConfiguration("namespace"),
                parameters=[{"video_device": device, "camera_frame_id": LaunchConfiguration("frame")}],
                remappings=[("image_raw", LaunchConfiguration("image"))],
                output="screen",
            )
        ]
    return []


def make_rviz(context: LaunchContext) -> list[LaunchDescriptionEntity]:
    """rviz on the node's topics, or a line that says how to get it."""
    if LaunchConfiguration("rviz").perform(context).lower() != "true":
        return []
    if not installed("rviz2"):
        return [LogInfo(msg=f"rviz2 isn't installed, so there is nothing to see ({how_to_install('rviz2')})")]
    names = (LaunchConfiguration(name).perform(context).strip("/") for name in ("namespace", "name"))
    node = "/".join(["", *filter(None, names)])
    return [
        Node(
            package="rviz2",
            executable="rviz2",
            name="rviz2",
            arguments=["-d", str(share() / "config" / "superpoint.rviz"), "-f", LaunchConfiguration("frame")],
            remappings=[(f"/superpoint/{output}", f"{node}/{output}") for output in OUTPUTS],
            parameters=[{"use_sim_time": LaunchConfiguration("use_sim_time").perform(context).lower() == "true"}],
        )
    ]


def share() -> Path:
    """Where this package's data is installed."""
    return Path(get_package_share_directory("ttsp_ros"))


def installed(package: str) -> bool:
    """Whether this ROS installation has `package`."""
    try:
        get_package_prefix(package)
    except PackageNotFoundError:
        return False
    return True


def require(package: str) -> None:
    """Raise RuntimeError when `package` isn't installed."""
    if not installed(package):
        raise RuntimeError(f"the package {package} isn't installed ({how_to_install(package)})")


def how_to_install(package: str) -> str:
    """The command on Ubuntu and Debian."""
    distribution = os.environ.get("ROS_DISTRO", "jazzy")
    return f"sudo apt install ros-{distribution}-{package.replace('_', '-')}"


def generate_launch_description() -> LaunchDescription:
    """Source first, since a bag turns simulated time on for the others."""
    declared = [
        DeclareLaunchArgument(argument.name, default_value=argument.default, description=argument.description)
        for argument in ARGUMENTS
    ]
    node = IncludeLaunchDescription(PythonLaunchDescriptionSource(str(share() / "launch" / "superpoint.launch.py")))
    return LaunchDescription(
        [*declared, OpaqueFunction(function=make_source), node, OpaqueFunction(function=make_rviz)]
    )
