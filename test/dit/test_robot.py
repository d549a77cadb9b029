"""Robot files, a checkpoint's JSON files, and the numbers they lead to."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ttsp_ros.dit.config import N15, N17
from ttsp_ros.dit.normalisation import Scaling, make_scaling
from ttsp_ros.dit.robot import make_robot, read_robot

ARM = ["a1", "a2", "a3"]
ROBOT: dict[str, Any] = {
    "embodiment": "new_embodiment",
    "state": {
        "arm": {"joints": ARM, "min": [-1, -2, 0], "max": [1, 2, 0]},
        "hand": {"joints": ["g"], "mode": "mean_std", "mean": [0.5], "std": [0.25]},
    },
    "action": {
        "arm": {"joints": ARM, "min": [-1, -2, 0], "max": [1, 2, 4]},
        "hand": {"joints": ["g"], "mode": "mean_std", "mean": [0.5], "std": [0.25]},
    },
}
POSITIONS = {"g": 1.0, "a3": 0.7, "a1": 0.5, "a2": -1.0, "elbow_camera": 3.0}

PROCESSOR: dict[str, Any] = {
    "processor_class": "Gr00tN1d7Processor",
    "processor_kwargs": {
        "modality_configs": {
            "my_arm": {
                "state": {
                    "delta_indices": [0],
                    "modality_keys": ["hand", "arm"],
                    "sin_cos_embedding_keys": ["arm"],
                    "mean_std_embedding_keys": None,
                },
                "action": {
                    "delta_indices": list(range(12)),
                    "modality_keys": ["hand", "arm"],
                    "mean_std_embedding_keys": None,
                    "action_configs": [
                        {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
                        {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
                    ],
                },
            }
        },
        "use_percentiles": True,
        "clip_outliers": True,
        "apply_sincos_state_encoding": True,
        "use_relative_action": True,
    },
}
STATISTICS = {
    "my_arm": {
        "state": {"hand": {"min": [0], "max": [9], "q01": [0], "q99": [2], "mean": [1], "std": [1]}},
        "action": {"hand": {"min": [0], "max": [9], "q01": [0], "q99": [2], "mean": [1], "std": [1]}},
        "relative_action": {
            "arm": {"min": (-np.ones((12, 3))).tolist(), "max": (np.arange(1, 13)[:, None] * np.ones((1, 3))).tolist()}
        },
    }
}
JOINTS_ONLY: dict[str, Any] = {
    "embodiment": "my_arm",
    "state": {"arm": {"joints": ARM}, "hand": {"joints": ["g"]}},
    "action": {"arm": {"joints": ARM}, "hand": {"joints": ["g"]}},
}


def changed(path: str, value: Any, robot: dict[str, Any] = ROBOT) -> dict[str, Any]:
    """The robot with one entry replaced, or taken out by ..."""
    robot = copy.deepcopy(robot)
    *parents, last = path.split(".")
    entry = robot
    for parent in parents:
        entry = entry[parent]
    if value is ...:
        del entry[last]
    else:
        entry[last] = value
    return robot


def write_checkpoint(folder: Path, processor: Any = PROCESSOR, indices: Any = None) -> Path:
    (folder / "processor_config.json").write_text(json.dumps(processor))
    (folder / "statistics.json").write_text(json.dumps(STATISTICS))
    (folder / "embodiment_id.json").write_text(json.dumps({"my_arm": 13} if indices is None else indices))
    return folder


def test_state_vector_by_names() -> None:
    vector = make_robot(ROBOT, N15).encode_state(POSITIONS, 64)
    # a3 never moved in training: 0. g: (1 - 0.5) / 0.25.
    np.testing.assert_allclose(vector[:4], [0.5, -0.5, 0.0, 2.0])
    assert vector.shape == (64,) and vector.dtype == np.float32 and not vector[4:].any()


def test_actions_in_joint_units_and_back() -> None:
    robot = make_robot(ROBOT, N15)
    rows = np.zeros((16, 32), np.float32)
    rows[:, :4] = [0.5, -0.5, 1.5, 2.0]
    moves = robot.decode_actions(rows, POSITIONS)
    # 1.5 is clipped to 1, the maximum.
    np.testing.assert_allclose(moves, np.tile([0.5, -1.0, 4.0, 1.0], (16, 1)))
    assert robot.joints == (*ARM, "g")
    back = robot.encode_actions(moves, POSITIONS, np.full((16, 32), 7.0))
    np.testing.assert_allclose(back[:, :4], np.tile([0.5, -0.5, 1.0, 2.0], (16, 1)))
    assert (back[:, 4:] == 7.0).all()


def test_clip_can_be_switched_off() -> None:
    rows = np.full((16, 32), 1.5, np.float32)
    assert make_robot({**ROBOT, "clip": False}, N15).decode_actions(rows, POSITIONS)[0, 0] == pytest.approx(1.5)
    assert make_robot(ROBOT, N15).decode_actions(rows, POSITIONS)[0, 0] == pytest.approx(1.0)


def test_relative_keys_start_at_the_observation() -> None:
    robot = make_robot(changed("action.arm.relative", True), N15)
    rows = np.zeros((16, 32), np.float32)
    rows[:, 0] = 0.25
    moves = robot.decode_actions(rows, POSITIONS)
    np.testing.assert_allclose(moves[:, 0], 0.25 + POSITIONS["a1"])
    np.testing.assert_allclose(moves[:, 1], POSITIONS["a2"])
    elsewhere = {**POSITIONS, "a1": -0.5}
    np.testing.assert_allclose(robot.encode_actions(moves, elsewhere, rows)[:, 0], 1.0)


@pytest.mark.parametrize("unit", [{"unit": "deg"}, {"scale": 180 / math.pi}, {"scale": [180 / math.pi] * 3}])
def test_checkpoints_in_degrees(unit: dict[str, Any]) -> None:
    arm = {"joints": ARM, "min": [-90] * 3, "max": [90] * 3, **unit}
    robot = make_robot({"state": {"arm": arm}, "action": {"arm": arm}}, N15)
    positions = {"a1": math.pi / 2, "a2": -math.pi / 4, "a3": 0.0}
    np.testing.assert_allclose(robot.encode_state(positions, 64)[:3], [1.0, -0.5, 0.0], atol=1e-6)
    rows = np.zeros((16, 32))
    rows[:, :3] = [1.0, -0.5, 0.0]
    np.testing.assert_allclose(robot.decode_actions(rows, positions)[0], list(positions.values()), atol=1e-6)


def test_keys_without_joints() -> None:
    robot = changed("state.base", {"constant": [0.5, -1.0], "mode": "none"})
    robot["action"] = {"navigate": {"unused": 3}, **robot["action"]}
    modality = make_robot(robot, N15)
    np.testing.assert_allclose(modality.encode_state(POSITIONS, 64)[4:6], [0.5, -1.0])
    rows = np.zeros((16, 32))
    rows[:, 3] = 0.5
    assert modality.decode_actions(rows, POSITIONS)[0, 0] == pytest.approx(0.5)
    assert modality.decode_actions(rows, POSITIONS).shape == (16, 4)


def test_everything_but_joints_from_an_n17_checkpoint(tmp_path: Path) -> None:
    robot = make_robot(JOINTS_ONLY, N17, write_checkpoint(tmp_path))
    assert (robot.index, robot.steps, robot.joints) == (13, 12, ("g", *ARM))
    vector = robot.encode_state(POSITIONS, 132)
    angles = [POSITIONS[joint] for joint in ARM]
    # hand: percentiles, 1 of 0..2. arm: sines, then cosines.
    np.testing.assert_allclose(vector[:7], [0.0, *np.sin(angles), *np.cos(angles)], rtol=1e-6)
    rows = np.zeros((40, 132))
    moves = robot.decode_actions(rows, POSITIONS)
    assert moves.shape == (12, 4)
    # Row i of the arm is scaled by -1..i + 1, and added to where it was.
    np.testing.assert_allclose(moves[:, 1], (np.arange(1, 13) - 1) / 2 + POSITIONS["a1"])
    np.testing.assert_allclose(moves[:, 0], 1.0)
    np.testing.assert_allclose(robot.encode_actions(moves, POSITIONS, rows[:12])[:, :4], 0.0, atol=1e-6)


def test_statistics_from_an_n15_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "experiment_cfg").mkdir()
    numbers = {"min": [-1, -2, 0], "max": [1, 2, 4]}
    content = {
        "new_embodiment": {"statistics": {"state": {"arm": numbers}, "action": {"arm": numbers}}, "modalities": {}}
    }
    (tmp_path / "experiment_cfg" / "metadata.json").write_text(json.dumps(content))
    robot = {"state": {"arm": {"joints": ARM}}, "action": {"arm": {"joints": ARM}}}
    modality = make_robot(robot, N15, tmp_path)
    assert modality.index == 31
    np.testing.assert_allclose(modality.encode_state(POSITIONS, 64)[:2], [0.5, -0.5])
    with pytest.raises(ValueError, match=r"metadata\.json does not know 'gr1', only new_embodiment"):
        make_robot({**robot, "embodiment": "gr1"}, N15, tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("state.arm.joints", ["a1", "a2"], r"state\.arm\.min: got 3 numbers, the key is 2 wide"),
        ("state.arm.joints", [], r"state\.arm\.joints: got \[\]"),
        ("state.arm.joints", ["a1", "a1", "a2"], "a name can be there only once"),
        ("state.arm.min", ..., r"state\.arm: mode min_max needs min"),
        ("state.arm.min", [-1, -2, math.nan], "not finite"),
        ("state.arm.min", [5, -2, 0], r"state\.arm: min is greater than max"),
        ("state.arm.mode", "zscore", r"state\.arm: mode: got 'zscore', allowed are min_max"),
        ("state.arm.jonits", ["a1"], r"state\.arm: unknown jonits; allowed are constant"),
        ("state.arm.unit", "turns", r"state\.arm\.unit: got 'turns', allowed are rad, deg"),
        ("state.arm.scale", [1, 0, 1], r"state\.arm\.scale: 0 cannot be undone"),
        ("state.arm.constant", [1.0], r"state\.arm: has both joints and a constant"),
        ("action.arm.mode", "sin_cos", r"action\.arm: mode sin_cos has no inverse"),
        ("action.arm.relative", "yes", r"action\.arm\.relative: got 'yes'"),
        ("action.arm.state_key", "leg", None),
        ("action.hand.joints", ["a1"], "action: a1 belongs to two keys"),
        ("action", {"navigate": {"unused": 3}}, "no key has joints"),
        ("action.hand.unused", 2, r"action\.hand: has both joints and unused"),
        ("steps", 17, "steps: got 17, this version of GR00T allows up to 16"),
        ("steps", 0, "steps: got 0"),
        ("embodiment", "octopus", "give embodiment_index"),
        ("embodiment_index", 32, "embodiment_index: got 32, this version of GR00T allows up to 31"),
        ("state", ..., "state: got None"),
        ("robot", 1, "robot file: unknown robot"),
    ],
)
def test_mistakes_are_named(path: str, value: Any, message: str | None) -> None:
    robot = changed(path, value)
    if message is None:
        make_robot(robot, N15)
        return
    with pytest.raises(ValueError, match=message):
        make_robot(robot, N15)


def test_too_many_dimensions() -> None:
    joints = [f"j{number}" for number in range(33)]
    wide = {"joints": joints, "mode": "none"}
    small = {"joints": ["j0"], "mode": "none"}
    with pytest.raises(ValueError, match="action: got 33, this version of GR00T allows up to 32"):
        make_robot({"state": {"arm": small}, "action": {"arm": wide}}, N15)
    with pytest.raises(ValueError, match="state: got 66, this version of GR00T allows up to 64"):
        make_robot({"state": {"arm": {**wide, "mode": "sin_cos"}}, "action": {"arm": small}}, N15)


def test_relative_to_something_else() -> None:
    robot = changed("action.arm.relative", True)
    with pytest.raises(ValueError, match=r"relative to state\.leg, which is not a state key"):
        make_robot(changed("action.arm.state_key", "leg", robot), N15)
    with pytest.raises(ValueError, match=r"action\.arm: 3 wide, but its reference state\.hand is 1 wide"):
        make_robot(changed("action.arm.state_key", "hand", robot), N15)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a2", None, r"state\.arm: no position of a2"),
        ("a2", math.nan, r"state\.arm: a2 = nan is no position"),
        ("g", math.inf, r"state\.hand: g = inf is no position"),
    ],
)
def test_missing_and_broken_positions(name: str, value: float | None, message: str) -> None:
    positions = {joint: position for joint, position in POSITIONS.items() if joint != name}
    if value is not None:
        positions[name] = value
    with pytest.raises(ValueError, match=message):
        make_robot(ROBOT, N15).encode_state(positions, 64)


def test_actions_that_are_not_finite() -> None:
    rows = np.zeros((16, 32))
    rows[3, 3] = np.nan
    with pytest.raises(ValueError, match=r"action\.hand: the head gave a value that is not finite"):
        make_robot(ROBOT, N15).decode_actions(rows, POSITIONS)


@pytest.mark.parametrize(
    ("setting", "message"), [("use_mean_std", "use_mean_std is on"), ("exclude_state", "exclude_state is on")]
)
def test_settings_of_a_checkpoint_that_are_not_followed(setting: str, message: str, tmp_path: Path) -> None:
    processor = changed(f"processor_kwargs.{setting}", True, PROCESSOR)
    with pytest.raises(ValueError, match=message):
        make_robot(JOINTS_ONLY, N17, write_checkpoint(tmp_path, processor))


def test_poses_of_the_end_effector_are_no_joints(tmp_path: Path) -> None:
    processor = copy.deepcopy(PROCESSOR)
    processor["processor_kwargs"]["modality_configs"]["my_arm"]["action"]["action_configs"][1]["type"] = "EEF"
    with pytest.raises(ValueError, match=r"action\.arm: a relative pose of the end effector"):
        make_robot(JOINTS_ONLY, N17, write_checkpoint(tmp_path, processor))


def test_keys_of_the_checkpoint_and_of_the_file_differ(tmp_path: Path) -> None:
    robot = changed("state.hand", ..., JOINTS_ONLY)
    robot["state"]["foot"] = {"joints": ["f"]}
    with pytest.raises(ValueError, match=r"keys hand, arm; say which joints hand are; foot is not among them"):
        make_robot(robot, N17, write_checkpoint(tmp_path))


def test_unknown_embodiment_of_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"processor_config\.json does not know 'gr1', only my_arm"):
        make_robot({**JOINTS_ONLY, "embodiment": "gr1"}, N17, write_checkpoint(tmp_path))
    with pytest.raises(ValueError, match="'my_arm' is in no table"):
        make_robot(JOINTS_ONLY, N17, write_checkpoint(tmp_path, indices={}))


def test_the_example_and_broken_files(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "config" / "robot_7dof.yaml"
    assert len(read_robot(example, N17).joints) == 8
    broken = tmp_path / "robot.yaml"
    broken.write_text("state: [")
    with pytest.raises(ValueError, match=r"robot\.yaml cannot be read as YAML"):
        read_robot(broken, N17)
    with pytest.raises(ValueError, match="cannot be read as YAML"):
        read_robot(tmp_path / "none.yaml", N17)
    broken.write_text(yaml.safe_dump(changed("steps", -1)))
    with pytest.raises(ValueError, match=r"robot\.yaml: steps: got -1"):
        read_robot(broken, N17)


def test_scalings_have_inverses() -> None:
    values = np.array([[0.3, -1.2, 5.0], [0.1, 0.4, 5.0]])
    numbers = {
        "min": [-1, -2, 5],
        "max": [1, 2, 5],
        "q01": [-1, -2, 5],
        "q99": [1, 2, 5],
        "mean": [0, 1, 2],
        "std": [1, 2, 0],
    }
    for mode in ("min_max", "percentiles", "mean_std", "none"):
        scaling = make_scaling("key", mode, numbers, 3, clip=True)
        np.testing.assert_allclose(scaling.restore(scaling.normalise(values)), values)
    assert Scaling("binary").restore(np.array([[0.2, 0.8]])).tolist() == [[0.0, 1.0]]
