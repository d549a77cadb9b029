"""Launch arguments against the node's parameters, and the launch files themselves where ROS launch is installed."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
import yaml
from rclpy.parameter import Parameter

from ttsp_ros.ros.launch_arguments import (
    NODE_ARGUMENTS,
    TOPIC_ARGUMENTS,
    camera_remappings,
    given_parameters,
    logger_name,
    parameter_arguments,
    reliability_overrides,
)
from ttsp_ros.ros.superpoint_parameters import SUPERPOINT_PARAMETERS

BY_NAME = {spec.name: spec for spec in SUPERPOINT_PARAMETERS}


def read(**texts: str):
    return given_parameters(SUPERPOINT_PARAMETERS, {**dict.fromkeys(BY_NAME, ""), **texts})


def test_every_parameter_that_the_node_declares_is_an_argument(make_rig):
    node = make_rig().node
    declared = {
        name
        for name in node._parameters
        if not name.startswith("qos_overrides.") and name not in ("use_sim_time", "start_type_description_service")
    }
    arguments = {argument.name: argument for argument in parameter_arguments(SUPERPOINT_PARAMETERS)}
    assert set(arguments) == declared
    for name, argument in arguments.items():
        assert argument.description.startswith(node.describe_parameter(name).description)
        assert not argument.default, "an argument that is not given must leave the parameter file alone"


def test_argument_names_are_unique():
    names = [a.name for a in (*NODE_ARGUMENTS, *TOPIC_ARGUMENTS, *parameter_arguments(SUPERPOINT_PARAMETERS))]
    assert len(set(names)) == len(names)


def test_arguments_become_values_of_the_parameters_type():
    given = read(
        threshold="1", max_keypoints="300", rectified="true", resize="[240, 320]", cameras="[left, right]", weights="12"
    )
    assert given == {
        "threshold": 1.0,
        "max_keypoints": 300,
        "rectified": True,
        "resize": [240, 320],
        "cameras": ["left", "right"],
        "weights": "12",
    }
    assert type(given["threshold"]) is float
    for name, value in given.items():
        assert Parameter(name, value=value).type_ == Parameter(name, value=BY_NAME[name].default).type_
    assert read(cameras="left") == {"cameras": ["left"]}
    assert read() == {}


@pytest.mark.parametrize(
    "texts",
    [
        {"threshold": "abc"},
        {"threshold": "true"},
        {"max_keypoints": "1.5"},
        {"rectified": "1"},
        {"resize": "[a, b]"},
        {"resize": "[[1], 2]"},
        {"cameras": "[]"},
        {"threads": "[1"},
    ],
)
def test_arguments_of_another_type_are_refused(texts):
    (name, text) = next(iter(texts.items()))
    with pytest.raises(ValueError, match=name) as error:
        read(**texts)
    assert text in str(error.value)


@pytest.mark.parametrize(
    ("image", "info"),
    [
        ("/camera/image_raw", "/camera/camera_info"),
        ("image", "camera_info"),
        ("/image", "/camera_info"),
        ("/camera/image_raw/compressed", "/camera/camera_info"),
    ],
)
def test_calibration_is_beside_the_image(image, info):
    assert dict(camera_remappings([""], image)) == {"image": image, "camera_info": info, "mask": "mask"}
    assert dict(camera_remappings([""], image, "/calibration"))["camera_info"] == "/calibration"


def test_several_cameras_have_their_own_topics():
    assert camera_remappings(["left", "right"], "image_raw")[:4] == [
        ("left/image", "left/image_raw"),
        ("left/camera_info", "left/camera_info"),
        ("left/mask", "left/mask"),
        ("right/image", "right/image_raw"),
    ]
    with pytest.raises(ValueError, match="image:=/camera/image_raw"):
        camera_remappings(["left", "right"], "/camera/image_raw")


@pytest.mark.parametrize(
    ("image", "namespace", "transport", "topic"),
    [
        ("/camera/image_raw", "robot", "raw", "/camera/image_raw"),
        ("image", "robot", "raw", "/robot/image"),
        ("image", "", "raw", "/image"),
        ("image", "/a/b/", "compressed", "/a/b/image/compressed"),
        ("/x/compressed", "", "compressed", "/x/compressed"),
    ],
)
def test_reliability_goes_to_the_topic_that_is_subscribed(image, namespace, transport, topic):
    remappings = camera_remappings([""], image)
    expected = {f"qos_overrides.{topic}.subscription.reliability": "reliable"}
    assert reliability_overrides(remappings, namespace, transport, "reliable") == expected
    assert reliability_overrides(remappings, namespace, transport, "") == {}
    with pytest.raises(ValueError, match="'sure'"):
        reliability_overrides(remappings, namespace, transport, "sure")


def test_the_override_that_launch_makes_is_the_one_that_the_node_reads(make_rig):
    rig = make_rig()
    rig.start()
    rig.listen("keypoints")
    rig.publisher()
    (name,) = reliability_overrides(camera_remappings([""], "image"), rig.namespace, "raw", "reliable")
    assert rig.node.get_parameter(name).value == "best_effort"


def test_logger_names(make_rig):
    rig = make_rig()
    assert logger_name(rig.namespace, "superpoint") == rig.node.get_logger().name
    assert logger_name("", "superpoint") == logger_name("/", "superpoint") == "superpoint"
    assert logger_name("/a/b", "c") == "a.b.c"


@pytest.mark.parametrize("name", ["superpoint", "demo"])
def test_launch_files_are_python_that_compiles(request, name):
    path = request.config.rootpath / "launch" / f"{name}.launch.py"
    functions = {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}
    assert "generate_launch_description" in functions


def load(request, name):
    path = request.config.rootpath / "launch" / f"{name}.launch.py"
    spec = importlib.util.spec_from_file_location(f"{name}_launch", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


NEEDS_LAUNCH = "launch_ros isn't on PyPI; it is part of a ROS installation"


def test_superpoint_launch_declares_every_parameter(request):
    pytest.importorskip("launch_ros", reason=NEEDS_LAUNCH)
    description = load(request, "superpoint").generate_launch_description()
    declared = {argument.name: argument for argument in description.get_launch_arguments()}
    assert set(BY_NAME) < set(declared)
    for spec in SUPERPOINT_PARAMETERS:
        assert spec.full_description() in declared[spec.name].description


def test_superpoint_launch_passes_what_is_given(request, monkeypatch):
    pytest.importorskip("launch_ros", reason=NEEDS_LAUNCH)
    from launch import LaunchContext

    module = load(request, "superpoint")
    monkeypatch.setattr(module, "get_package_share_directory", lambda package: str(request.config.rootpath))
    context = LaunchContext()
    texts = {argument.name: argument.default for argument in module.ARGUMENTS}
    texts |= {"image": "/camera/image_raw", "threshold": "0.1", "namespace": "robot", "use_sim_time": "true"}
    context.launch_configurations.update(texts)
    (node,) = module.make_node(context)
    node._perform_substitutions(context)
    assert node.expanded_node_namespace == "/robot"
    assert ("image", "/camera/image_raw") in node.expanded_remapping_rules
    (file, _), (written, _) = node._Node__expanded_parameter_arguments
    assert file == str(request.config.rootpath / "config" / "superpoint.yaml")
    (values,) = (entry["ros__parameters"] for entry in yaml.safe_load(Path(written).read_text()).values())
    assert values == {"use_sim_time": True, "threshold": 0.1}


def test_demo_launch_turns_simulated_time_on_for_a_bag(request, monkeypatch):
    pytest.importorskip("launch_ros", reason=NEEDS_LAUNCH)
    from launch import LaunchContext

    module = load(request, "demo")
    monkeypatch.setattr(module, "require", lambda package: None)
    context = LaunchContext()
    context.launch_configurations.update({"bag": "my_bag", "video_device": "", "use_sim_time": "false"})
    time, play = module.make_source(context)
    time.visit(context)
    assert context.launch_configurations["use_sim_time"] == "true"
    words = ["".join(part.perform(context) for part in word) for word in play.cmd]
    assert words == ["ros2", "bag", "play", "my_bag", "--clock", "--loop"]
    context.launch_configurations["video_device"] = "/dev/video0"
    with pytest.raises(ValueError, match="one of them"):
        module.make_source(context)
