"""Parameters of the nodes: one list per node; the node declares it, the launch file makes its arguments from it.

Nothing here imports rclpy before a node declares something, so a launch file or a test may read the lists anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rcl_interfaces.msg import ParameterDescriptor, SetParametersResult
    from rclpy.node import Node
    from rclpy.parameter import Parameter

Value = bool | int | float | str | list[int] | list[float] | list[str]
Values = dict[str, Any]


class Takes(Enum):
    """When a new value takes effect."""

    NEXT_FRAME = "takes effect on the next frame"
    CONFIGURE = "can be changed while the node is unconfigured"
    START = "is read once, at start"


@dataclass(frozen=True)
class ParameterSpec:
    """One parameter.

    Attributes:
        name, default, description: as `ros2 param describe` and `ros2 launch --show-args` show them. The type is that
            of the default; ROS knows no empty list of a type, so a list has at least one item.
        takes: when a new value takes effect.
        minimum, maximum: inclusive bounds of an int or a float.
        choices: the allowed strings; empty: any.
    """

    name: str
    default: Value
    description: str
    takes: Takes = Takes.NEXT_FRAME
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.default, list) and not self.default:
            raise ValueError(f"{self.name}: an empty list has no type in ROS; give the default at least one item")
        if (self.minimum is None) != (self.maximum is None):
            raise ValueError(f"{self.name}: a range has both ends in ROS; got {self.minimum}..{self.maximum}")

    def full_description(self) -> str:
        """The description with what is allowed and when it takes effect."""
        allowed = ""
        if self.choices:
            allowed = f" One of: {', '.join(self.choices)}."
        elif self.minimum is not None:
            allowed = f" Range: {self.minimum} to {self.maximum}."
        return f"{self.description}{allowed} This {self.takes.value}."

    def check(self, value: Value) -> None:
        """Raise ValueError when `value` isn't one of the choices. Types and ranges are checked by rclpy itself."""
        if self.choices and value not in self.choices:
            raise ValueError(f"{self.name}: got '{value}', allowed is one of {', '.join(self.choices)}")

    def descriptor(self) -> ParameterDescriptor:
        """The same as a ROS message."""
        from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor

        descriptor = ParameterDescriptor(
            description=self.full_description(),
            additional_constraints=f"one of: {', '.join(self.choices)}" if self.choices else "",
            read_only=self.takes is Takes.START,
        )
        if self.minimum is not None and self.maximum is not None:
            if isinstance(self.default, float):
                descriptor.floating_point_range = [
                    FloatingPointRange(from_value=float(self.minimum), to_value=float(self.maximum), step=0.0)
                ]
            else:
                descriptor.integer_range = [
                    IntegerRange(from_value=int(self.minimum), to_value=int(self.maximum), step=1)
                ]
        return descriptor


AUTOSTART = ParameterSpec(
    "autostart",
    True,
    "Configure and activate the node at start. When off, a lifecycle manager or `ros2 lifecycle set` does it.",
    Takes.START,
)


class ParameterSet:
    """Declares parameters on a node, refuses changes with a reason, and hands accepted ones on.

    Args:
        node: the node that gets the parameters.
        specs: what to declare.
        validate: called with all values as they would be after the change; raises ValueError to refuse it.
        apply: called with all values after an accepted change.
        configured: tells whether the node is past its configure transition; parameters of `Takes.CONFIGURE` are
            refused then.

    Raises:
        rclpy's ParameterException or ValueError: a value given at start is of the wrong type, or not allowed.
    """

    def __init__(
        self,
        node: Node,
        specs: Sequence[ParameterSpec],
        *,
        validate: Callable[[Values], None] = lambda values: None,
        apply: Callable[[Values], None] = lambda values: None,
        configured: Callable[[], bool] = lambda: False,
    ) -> None:
        self._node = node
        self._specs: Mapping[str, ParameterSpec] = {spec.name: spec for spec in specs}
        self._validate = validate
        self._apply = apply
        self._configured = configured
        for spec in specs:
            node.declare_parameter(spec.name, spec.default, spec.descriptor())
        values = self.values()
        for name, value in values.items():
            self._specs[name].check(value)
        validate(values)
        node.add_on_set_parameters_callback(self._on_set)
        node.add_post_set_parameters_callback(self._on_changed)

    def values(self) -> Values:
        """All values of now, lists as Python lists."""
        return {name: _plain(self._node.get_parameter(name).value) for name in self._specs}

    def _on_set(self, parameters: list[Parameter]) -> SetParametersResult:
        from rcl_interfaces.msg import SetParametersResult

        try:
            self._check_change({p.name: _plain(p.value) for p in parameters if p.name in self._specs})
        except ValueError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _check_change(self, changes: Values) -> None:
        if not changes:
            return
        current = self.values()
        for name, value in changes.items():
            spec = self._specs[name]
            spec.check(value)
            if spec.takes is Takes.CONFIGURE and value != current[name] and self._configured():
                raise ValueError(
                    f"{name}: {spec.takes.value} only. Bring the node there first: "
                    f"ros2 lifecycle set {self._node.get_fully_qualified_name()} cleanup (deactivate before, if active)"
                )
        self._validate({**current, **changes})

    def _on_changed(self, parameters: list[Parameter]) -> None:
        if any(p.name in self._specs for p in parameters):
            self._apply(self.values())


def _plain(value: Any) -> Any:
    """Arrays as rclpy hands them out (array.array, tuple) as lists."""
    return value if value is None or isinstance(value, bool | int | float | str) else list(value)
