"""The arguments of the launch files, made from the nodes' parameters. Plain Python: no ROS, no launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from ttsp_ros.ros.parameters import ParameterSpec, Values


@dataclass(frozen=True)
class LaunchArgument:
    """Name, description and default as `ros2 launch --show-args` shows them; empty text means: not given."""

    name: str
    description: str
    default: str = ""


NODE_ARGUMENTS = (
    LaunchArgument("namespace", "Namespace of the node and its relative topics."),
    LaunchArgument("params_file", "YAML file of parameters. Arguments that are given here win over it."),
    LaunchArgument("use_sim_time", "Take the time from /clock: for bags played with --clock, and simulators.", "false"),
    LaunchArgument("log_level", "Least severity that is logged: debug, info, warn, error.", "info"),
)

TOPIC_ARGUMENTS = (
    LaunchArgument(
        "image",
        "Topic of the images. With 'cameras' its name below each camera's: image:=image_raw for /left/image_raw.",
        "image",
    ),
    LaunchArgument("camera_info", "Topic of the calibration; empty: 'camera_info' beside the image topic."),
    LaunchArgument("mask", "Topic of a mask (mono8, 0 = no keypoints here).", "mask"),
    LaunchArgument(
        "image_reliability",
        "'reliable' or 'best_effort' for the image subscription; empty: best_effort, or what the params_file says.",
    ),
)


def parameter_arguments(specs: Iterable[ParameterSpec]) -> list[LaunchArgument]:
    """One argument per parameter. Not given means that the parameter file, or else the node's default, holds."""
    return [
        LaunchArgument(spec.name, f"{spec.full_description()} Node's default: {_as_yaml(spec.default)}.")
        for spec in specs
    ]


def given_parameters(specs: Iterable[ParameterSpec], texts: Mapping[str, str]) -> Values:
    """Values of the parameters whose argument is given, in the parameter's own type.

    Raises:
        ValueError: an argument can't be read as that type.
    """
    return {spec.name: _read(spec, texts[spec.name]) for spec in specs if texts[spec.name] != ""}


def camera_remappings(
    cameras: Sequence[str], image: str, camera_info: str = "", mask: str = "mask"
) -> list[tuple[str, str]]:
    """(from, to) for the topics of every camera; `cameras` is [""] for a single one.

    Raises:
        ValueError: several cameras and an absolute topic, which could only be one camera's.
    """
    info = camera_info or _beside(image, "camera_info")
    names = {"image": image, "camera_info": info, "mask": mask}
    if list(cameras) == [""]:
        return list(names.items())
    absolute = [f"{name}:={topic}" for name, topic in names.items() if topic.startswith(("/", "~"))]
    if absolute:
        raise ValueError(
            f"{', '.join(absolute)}: with several cameras this is the topic's name below each camera's, "
            "for example image:=image_raw"
        )
    return [(f"{camera}/{name}", f"{camera}/{topic}") for camera in cameras for name, topic in names.items()]


def reliability_overrides(
    remappings: Iterable[tuple[str, str]], namespace: str, transport: str, reliability: str
) -> dict[str, str]:
    """QoS override parameters for the image subscriptions of `camera_remappings`; none when `reliability` is empty.

    Raises:
        ValueError: not one of reliable, best_effort.
    """
    if reliability == "":
        return {}
    if reliability not in ("reliable", "best_effort"):
        raise ValueError(f"image_reliability: got '{reliability}', allowed is reliable or best_effort")
    topics = [to for source, to in remappings if source.rpartition("/")[2] == "image"]
    return {
        f"qos_overrides.{_image_topic(topic, namespace, transport)}.subscription.reliability": reliability
        for topic in topics
    }


def logger_name(namespace: str, name: str) -> str:
    """What a node's log lines are filtered by: namespace and name, joined by dots."""
    return ".".join(filter(None, [*namespace.split("/"), name]))


def _image_topic(topic: str, namespace: str, transport: str) -> str:
    full = topic if topic.startswith("/") else f"/{namespace.strip('/')}/{topic}".replace("//", "/")
    return f"{full}/compressed" if transport == "compressed" and not full.endswith("/compressed") else full


def _beside(topic: str, name: str) -> str:
    parent = topic.removesuffix("/compressed").rpartition("/")
    return f"{parent[0]}{parent[1]}{name}"


def _read(spec: ParameterSpec, text: str) -> Any:
    expected = type(spec.default)
    if expected is str:
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        value = None
    if expected is list:
        return _read_list(spec, value if isinstance(value, list) else [value], text)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not expected:
        raise ValueError(f"{spec.name}: got '{text}', expected a {expected.__name__} like {_as_yaml(spec.default)}")
    return value


def _read_list(spec: ParameterSpec, values: list[Any], text: str) -> list[Any]:
    assert isinstance(spec.default, list)
    expected = type(spec.default[0])
    if not values or any(type(value) is not expected for value in values):
        raise ValueError(f"{spec.name}: got '{text}', expected a list of {expected.__name__}, like [a, b]")
    return values


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("...\n").strip()
