"""Between a robot's joint positions and the numbers that the action head sees.

Source: NVIDIA/Isaac-GR00T `gr00t/data/state_action/state_action_processor.py` and `gr00t/data/utils.py` (N1.6, N1.7),
`gr00t/data/transform/state_action.py` (N1.5). A state or an action is a list of keys (`arm`, `gripper`, ...), each a
few numbers wide; keys are joined in order and filled up with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

Mode = Literal["min_max", "percentiles", "mean_std", "sin_cos", "binary", "none"]
MODES: tuple[str, ...] = get_args(Mode)
# What each mode needs of the training data's statistics.
STATISTICS: dict[str, tuple[str, str] | None] = {
    "min_max": ("min", "max"),
    "percentiles": ("q01", "q99"),
    "mean_std": ("mean", "std"),
    "sin_cos": None,
    "binary": None,
    "none": None,
}


@dataclass(frozen=True)
class Scaling:
    """How one key is scaled.

    - min_max, percentiles: 2 (x - low) / (high - low) - 1; 0 where low = high.
    - mean_std: (x - mean) / std; x itself where std = 0.
    - sin_cos: [sin x, cos x], twice as wide; for states only.
    - binary: 1 where x > 0.5, else 0.
    - none: x.

    Attributes:
        mode: one of the above.
        first, second: low and high, or mean and std: float64 [width], or [steps, width] when each step of a chunk has
            its own. Empty for the other modes.
        clip: keep normalised values of min_max and percentiles within -1..1, both ways.
    """

    mode: Mode
    first: np.ndarray = field(default_factory=lambda: np.zeros(0))
    second: np.ndarray = field(default_factory=lambda: np.zeros(0))
    clip: bool = True

    def normalise(self, values: np.ndarray) -> np.ndarray:
        """float64 [rows, width] -> [rows, width], or [rows, 2 width] for sin_cos."""
        first, second = self._rows(len(values))
        if self.mode in ("min_max", "percentiles"):
            constant = np.isclose(first, second)
            scaled = 2 * (values - first) / np.where(constant, 1.0, second - first) - 1
            scaled = np.where(constant, 0.0, scaled)
            return np.clip(scaled, -1.0, 1.0) if self.clip else scaled
        if self.mode == "mean_std":
            constant = second == 0
            return np.where(constant, values, (values - first) / np.where(constant, 1.0, second))
        if self.mode == "sin_cos":
            return np.concatenate([np.sin(values), np.cos(values)], axis=1)
        return (values > 0.5).astype(np.float64) if self.mode == "binary" else values

    def restore(self, values: np.ndarray) -> np.ndarray:
        """The inverse of `normalise`: [rows, width] -> [rows, width]."""
        first, second = self._rows(len(values))
        if self.mode in ("min_max", "percentiles"):
            clipped = np.clip(values, -1.0, 1.0) if self.clip else values
            return (clipped + 1) / 2 * (second - first) + first
        if self.mode == "mean_std":
            return np.where(second == 0, values, values * second + first)
        if self.mode == "sin_cos":
            raise ValueError("sin_cos has no inverse and is for states only")
        return (values > 0.5).astype(np.float64) if self.mode == "binary" else values

    def _rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        if self.first.ndim < 2:
            return self.first, self.second
        return self.first[:count], self.second[:count]

    @property
    def width_factor(self) -> int:
        """Numbers a value becomes."""
        return 2 if self.mode == "sin_cos" else 1


@dataclass(frozen=True)
class StateKey:
    """One key of the state.

    Attributes:
        name: as in the checkpoint.
        joints: the robot's joints, in the key's order; empty for a constant.
        scaling: how they are normalised.
        factor, offset: [width]; the checkpoint's value is factor x position + offset (180/pi for a checkpoint in
            degrees).
        constant: [width], the checkpoint's value of something the robot has no joint for; else None.
    """

    name: str
    joints: tuple[str, ...]
    scaling: Scaling
    factor: np.ndarray
    offset: np.ndarray
    constant: np.ndarray | None = None

    @property
    def width(self) -> int:
        """Numbers in the checkpoint's units."""
        return len(self.factor)

    def values(self, positions: Mapping[str, float]) -> np.ndarray:
        """float64 [width] in the checkpoint's units."""
        if self.constant is not None:
            return self.constant
        missing = [joint for joint in self.joints if joint not in positions]
        if missing:
            raise ValueError(f"state.{self.name}: no position of {', '.join(missing)}")
        values = np.array([positions[joint] for joint in self.joints], dtype=np.float64)
        if not np.isfinite(values).all():
            bad = [
                f"{joint} = {value}" for joint, value in zip(self.joints, values, strict=True) if not np.isfinite(value)
            ]
            raise ValueError(f"state.{self.name}: {', '.join(bad)} is no position")
        return values * self.factor + self.offset


@dataclass(frozen=True)
class ActionKey:
    """One key of the action.

    Attributes:
        name: as in the checkpoint.
        joints: the robot's joints, in the key's order; empty: the key's values are not used.
        scaling: how they are normalised.
        factor, offset: [width], as in StateKey.
        relative_to: the state key whose values, at the time of the observation, are added; None: absolute.
    """

    name: str
    joints: tuple[str, ...]
    scaling: Scaling
    factor: np.ndarray
    offset: np.ndarray
    relative_to: str | None = None

    @property
    def width(self) -> int:
        """Columns of the chunk that belong to this key."""
        return len(self.factor)


@dataclass(frozen=True)
class Modality:
    """One robot as a checkpoint sees it.

    Attributes:
        embodiment: its name.
        index: which of the checkpoint's per-embodiment weights are its own.
        state, action: keys in the checkpoint's order.
        steps: rows of a chunk that it was trained on; later rows mean nothing.
    """

    embodiment: str
    index: int
    state: tuple[StateKey, ...]
    action: tuple[ActionKey, ...]
    steps: int

    def __post_init__(self) -> None:
        joints = [joint for key in self.action for joint in key.joints]
        twice = sorted({joint for joint in joints if joints.count(joint) > 1})
        if twice:
            raise ValueError(f"action: {', '.join(twice)} belongs to two keys")
        if not joints:
            raise ValueError("action: no key has joints, so there is nothing to move")
        states = {key.name: key for key in self.state}
        for action in self.action:
            reference = action.relative_to
            if reference is None:
                continue
            if reference not in states:
                raise ValueError(f"action.{action.name}: relative to state.{reference}, which is not a state key")
            if states[reference].width != action.width:
                raise ValueError(
                    f"action.{action.name}: {action.width} wide, but its reference state.{reference} is "
                    f"{states[reference].width} wide"
                )

    @property
    def joints(self) -> tuple[str, ...]:
        """The joints that an action moves, in the order of its columns."""
        return tuple(joint for key in self.action for joint in key.joints)

    @property
    def observed_joints(self) -> tuple[str, ...]:
        """The joints whose positions an observation needs; those it moves among them, to start from."""
        return tuple(dict.fromkeys([*(joint for key in self.state for joint in key.joints), *self.joints]))

    @property
    def state_width(self) -> int:
        """Columns of the state vector in use."""
        return sum(key.width * key.scaling.width_factor for key in self.state)

    @property
    def action_width(self) -> int:
        """Columns of a chunk in use."""
        return sum(key.width for key in self.action)

    def check(self, max_state_dim: int, max_action_dim: int, horizon: int, n_embodiments: int) -> None:
        """Raises ValueError when a head of these dimensions can't drive this robot."""
        for name, got, allowed in (
            ("state", self.state_width, max_state_dim),
            ("action", self.action_width, max_action_dim),
            ("steps", self.steps, horizon),
            ("embodiment_index", self.index, n_embodiments - 1),
        ):
            if got > allowed:
                raise ValueError(f"{name}: got {got}, this version of GR00T allows up to {allowed}")

    def encode_state(self, positions: Mapping[str, float], max_state_dim: int) -> np.ndarray:
        """The state vector: float32 [max_state_dim], normalised, zeros after `state_width`.

        Raises:
            ValueError: a joint is missing or its position is not finite; the key is named.
        """
        vector = np.zeros(max_state_dim, np.float32)
        column = 0
        for key in self.state:
            values = key.scaling.normalise(key.values(positions)[None])[0]
            vector[column : column + len(values)] = values
            column += len(values)
        return vector

    def decode_actions(self, rows: np.ndarray, positions: Mapping[str, float]) -> np.ndarray:
        """Joint positions of a chunk: [rows, >= action_width] normalised -> float64 [min(rows, steps), joints].

        Args:
            positions: of the observation that the rows were computed from; relative keys start there.

        Raises:
            ValueError: a row is not finite, or a joint of a relative key's reference is missing.
        """
        chunk = np.asarray(rows, np.float64)[: self.steps]
        decoded = []
        for key, columns in self._columns():
            values = chunk[:, columns]
            if not np.isfinite(values).all():
                raise ValueError(f"action.{key.name}: the head gave a value that is not finite")
            if key.joints:
                values = key.scaling.restore(values) + self._reference(key, positions)
                decoded.append((values - key.offset) / key.factor)
        return np.concatenate(decoded, axis=1)

    def encode_actions(self, moves: np.ndarray, positions: Mapping[str, float], rows: np.ndarray) -> np.ndarray:
        """The inverse: `rows` with the columns of moved joints replaced by `moves`, normalised.

        Args:
            moves: float64 [n, joints], positions in the order of `joints`.
            positions: of the observation that the new chunk starts from.
            rows: float [n, max_action_dim], where all other columns come from.

        Returns:
            float32 [n, max_action_dim].
        """
        encoded = np.array(rows, np.float32)
        joint = 0
        for key, columns in self._columns():
            if key.joints:
                values = moves[:, joint : joint + key.width] * key.factor + key.offset
                encoded[:, columns] = key.scaling.normalise(values - self._reference(key, positions))
                joint += key.width
        return encoded

    def _columns(self) -> list[tuple[ActionKey, slice]]:
        column, columns = 0, []
        for key in self.action:
            columns.append((key, slice(column, column + key.width)))
            column += key.width
        return columns

    def _reference(self, key: ActionKey, positions: Mapping[str, float]) -> np.ndarray | float:
        if key.relative_to is None:
            return 0.0
        return next(state for state in self.state if state.name == key.relative_to).values(positions)


def make_scaling(where: str, mode: str, statistics: Mapping[str, Sequence] | None, width: int, clip: bool) -> Scaling:
    """A Scaling from a checkpoint's or a user's statistics.

    Args:
        where: names the key in errors.
        mode: see Scaling.
        statistics: "min", "max", "q01", "q99", "mean", "std", as far as the mode needs them.
        width: numbers in the key.
        clip: see Scaling.

    Raises:
        ValueError: unknown mode, missing statistics, wrong width, values that are not finite or in the wrong order.
    """
    if mode not in MODES:
        raise ValueError(f"{where}: mode: got {mode!r}, allowed are {', '.join(MODES)}")
    needed = STATISTICS[mode]
    if needed is None:
        return Scaling(mode, clip=clip)  # type: ignore[arg-type]
    missing = [name for name in needed if name not in (statistics or {})]
    if missing:
        raise ValueError(f"{where}: mode {mode} needs {' and '.join(missing)}, which neither checkpoint nor file gives")
    assert statistics is not None
    first, second = (_numbers(f"{where}.{name}", statistics[name], width) for name in needed)
    if first.shape != second.shape:
        raise ValueError(f"{where}: {needed[0]} has shape {first.shape}, {needed[1]} has {second.shape}")
    if mode == "mean_std" and (second < 0).any():
        raise ValueError(f"{where}.std: negative")
    if mode != "mean_std" and (first > second).any():
        raise ValueError(f"{where}: {needed[0]} is greater than {needed[1]}")
    return Scaling(mode, first, second, clip)  # type: ignore[arg-type]


def _numbers(where: str, values: Sequence, width: int) -> np.ndarray:
    """float64 [width] or [steps, width]."""
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: got {values!r}, expected {width} numbers") from error
    if numbers.ndim not in (1, 2) or numbers.shape[-1] != width:
        raise ValueError(f"{where}: got {numbers.shape[-1] if numbers.ndim else 1} numbers, the key is {width} wide")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{where}: {values!r} has a number that is not finite")
    return numbers
