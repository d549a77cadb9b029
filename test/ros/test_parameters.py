"""Parameters: declared as described, refused with a reason, applied as a whole."""

from __future__ import annotations

import math

import pytest
import rclpy
import yaml
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.parameter import Parameter

from ttsp_ros.ros.parameters import ParameterSet, ParameterSpec, Takes
from ttsp_ros.ros.superpoint_parameters import (
    SUPERPOINT_PARAMETERS,
    camera_names,
    check_values,
    detection_settings,
    extractor_options,
    overlay_settings,
)
from ttsp_ros.superpoint.features import DetectionSettings

SPECS = (
    ParameterSpec("rate", 0.5, "A rate.", minimum=0.0, maximum=1.0),
    ParameterSpec("count", 3, "A count.", minimum=1, maximum=9),
    ParameterSpec("kind", "a", "A kind.", Takes.CONFIGURE, choices=("a", "b")),
    ParameterSpec("fixed", True, "Fixed.", Takes.START),
    ParameterSpec("size", [1, 2], "A size.", Takes.CONFIGURE),
)
DEFAULTS = {spec.name: spec.default for spec in SUPERPOINT_PARAMETERS}


class Host:
    """A node with SPECS; rate * count of more than 4 is refused."""

    def __init__(self, context, **overrides):
        self.configured = False
        self.applied = []
        self.node = rclpy.create_node(
            "host", context=context, parameter_overrides=[Parameter(name, value=v) for name, v in overrides.items()]
        )
        try:
            self.set = ParameterSet(
                self.node, SPECS, validate=self.check, apply=self.applied.append, configured=lambda: self.configured
            )
        except Exception:
            self.node.destroy_node()
            raise

    def check(self, values):
        if values["rate"] * values["count"] > 4:
            raise ValueError("rate * count: too much")

    def change(self, **values):
        return self.node.set_parameters_atomically([Parameter(name, value=value) for name, value in values.items()])


@pytest.fixture
def host(context):
    host = Host(context)
    yield host
    host.node.destroy_node()


def test_values_are_the_defaults_or_what_the_start_says(host, context):
    assert host.set.values() == {"rate": 0.5, "count": 3, "kind": "a", "fixed": True, "size": [1, 2]}
    other = Host(context, rate=0.25, size=[3, 4])
    assert other.set.values() == {"rate": 0.25, "count": 3, "kind": "a", "fixed": True, "size": [3, 4]}
    other.node.destroy_node()


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        ({"rate": 2.0}, InvalidParameterValueException),
        ({"rate": "fast"}, InvalidParameterTypeException),
        ({"kind": "c"}, ValueError),
        ({"rate": 1.0, "count": 9}, ValueError),
    ],
)
def test_a_wrong_value_at_start_is_an_error(context, overrides, error):
    with pytest.raises(error, match=next(iter(overrides))):
        Host(context, **overrides)


def test_an_accepted_change_is_applied_once_and_as_a_whole(host):
    assert host.change(rate=1.0, count=4).successful
    assert [(values["rate"], values["count"]) for values in host.applied] == [(1.0, 4)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rate": 1.5}, "out of range"),
        ({"rate": math.nan}, "out of range"),
        ({"count": 0}, "out of range"),
        ({"kind": "c"}, "kind: got 'c', allowed is one of a, b"),
        ({"fixed": False}, "read-only"),
        ({"count": "many"}, "type"),
        ({"count": None}, "undeclared"),
        ({"rate": 0.9, "count": 9}, "too much"),
    ],
)
def test_a_refused_change_says_why_and_changes_nothing(host, change, reason):
    before = host.set.values()
    result = host.change(**change)
    assert not result.successful and reason in result.reason
    assert host.set.values() == before and not host.applied


def test_what_takes_a_new_configuration_waits_for_it(host):
    host.configured = True
    result = host.change(kind="b")
    assert not result.successful and "ros2 lifecycle set /host cleanup" in result.reason
    assert host.change(kind="a").successful, "the same value is no change"
    assert host.change(count=2).successful
    host.configured = False
    assert host.change(kind="b").successful


def test_everything_is_described_and_bounded(host):
    for spec in SPECS:
        descriptor = host.node.describe_parameter(spec.name)
        assert descriptor.description.startswith(spec.description)
        assert descriptor.read_only == (spec.takes is Takes.START)
    assert host.node.describe_parameter("rate").floating_point_range[0].to_value == 1.0
    assert host.node.describe_parameter("count").integer_range[0].from_value == 1
    assert host.node.describe_parameter("kind").additional_constraints == "one of: a, b"


def test_what_ros_cannot_declare_is_refused_early():
    with pytest.raises(ValueError, match="empty list"):
        ParameterSpec("list", [], "A list.")
    with pytest.raises(ValueError, match="both ends"):
        ParameterSpec("half", 1, "Half a range.", minimum=0)


def test_superpoints_defaults_are_those_of_the_code_below():
    check_values(DEFAULTS)
    assert detection_settings(DEFAULTS) == DetectionSettings()
    options = extractor_options(DEFAULTS)
    assert (options.backend, options.weights, options.resize, options.threads) == ("auto", None, None, None)
    assert camera_names(DEFAULTS) == [""]
    assert overlay_settings(DEFAULTS).radius == 3


def test_superpoints_values_reach_the_code_below():
    values = {**DEFAULTS, "resize": [240, 320], "weights": "~/w.pth", "threads": 2, "cameras": ["left", "front/right"]}
    options = extractor_options(values)
    assert options.resize == (240, 320) and options.threads == 2
    assert options.weights.is_absolute() and options.weights.name == "w.pth"
    assert camera_names(values) == ["left", "front/right"]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"threshold": 1.0}, "threshold"),
        ({"resize": [480]}, "resize: got .480."),
        ({"resize": [-1, 5]}, "resize"),
        ({"cameras": ["a", "a"]}, "only once"),
        ({"cameras": ["/a"]}, "'/a'"),
        ({"cameras": ["a", ""]}, "''"),
        ({"cameras": ["9a"]}, "'9a'"),
    ],
)
def test_superpoints_values_are_checked(change, text):
    with pytest.raises(ValueError, match=text):
        check_values({**DEFAULTS, **change})


def test_the_parameter_file_names_every_parameter_with_its_default(request):
    path = request.config.rootpath / "config" / "superpoint.yaml"
    assert yaml.safe_load(path.read_text())["/**"]["ros__parameters"] == DEFAULTS


def test_rcl_reads_the_parameter_file(request, context):
    path = request.config.rootpath / "config" / "superpoint.yaml"
    node = rclpy.create_node("reader", context=context, cli_args=["--ros-args", "--params-file", str(path)])
    overrides = {name: parameter.value for name, parameter in node._parameter_overrides.items()}
    node.destroy_node()
    assert {
        name: value if isinstance(value, bool | int | float | str) else list(value) for name, value in overrides.items()
    } == DEFAULTS
