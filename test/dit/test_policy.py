"""The policy: from tokens and joint positions to a chunk, and real-time chunking with the running plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from ttsp_ros.dit.chunking import NS, Plan
from ttsp_ros.dit.config import N15, N16, N17
from ttsp_ros.dit.create import PolicyOptions, create_policy
from ttsp_ros.dit.model import ActionHead
from ttsp_ros.dit.policy import Continuation, Policy, Tokens
from ttsp_ros.dit.robot import make_robot
from ttsp_ros.dit.weights import RandomWeights, expected_shapes

JOINTS = ["j1", "j2", "j3"]
ARM = {"joints": JOINTS, "min": [-2.0] * 3, "max": [2.0] * 3}
ROBOT = {"embodiment_index": 3, "state": {"arm": ARM}, "action": {"arm": ARM}}
POSITIONS = {"j1": 0.1, "j2": -0.5, "j3": 1.0}
STAMP = 1_796_000_000 * NS
DT = 0.1


def make_policy(config=N17, robot=ROBOT) -> Policy:
    config = config.tiny()
    return Policy(ActionHead(config, RandomWeights(config, 0, spread=3.0), 3), make_robot(robot, config), DT)


def make_tokens(seed: int = 0, count: int = 24, width: int = 32) -> Tokens:
    features = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    return Tokens(features, np.arange(count) >= 8, np.ones(count, bool))


@pytest.mark.parametrize("config", [N15, N16, N17], ids=lambda config: config.version)
def test_chunk_is_a_function_of_observation_and_seed(config) -> None:
    policy = make_policy(config)
    first, again, other = (policy.predict(make_tokens(), POSITIONS, STAMP, seed) for seed in (1, 1, 2))
    chunk = first.chunk
    assert chunk.positions.shape == (config.horizon, 3) and chunk.positions.dtype == np.float32
    assert (chunk.names, chunk.dt, chunk.stamp) == (tuple(JOINTS), DT, STAMP)
    np.testing.assert_array_equal(chunk.positions, again.chunk.positions)
    assert not np.array_equal(chunk.positions, other.chunk.positions)
    for change in ({"j1": 1.5}, {"j3": -1.0}):
        moved = policy.predict(make_tokens(), {**POSITIONS, **change}, STAMP, 1)
        assert not np.array_equal(chunk.positions, moved.chunk.positions)
    assert not np.array_equal(chunk.positions, policy.predict(make_tokens(5), POSITIONS, STAMP, 1).chunk.positions)


def test_chunk_is_the_heads_rows_in_the_robots_units() -> None:
    policy = make_policy()
    config, tokens = policy.head.config, make_tokens()
    prediction = policy.predict(tokens, POSITIONS, STAMP, 4)
    state = torch.zeros(config.max_state_dim)
    state[:3] = torch.tensor(list(POSITIONS.values())) / 2
    context = policy.head.encode_tokens(torch.from_numpy(tokens.features), torch.from_numpy(tokens.is_image))
    rows = policy.head.sample(context, state, policy.head.noise(4))
    np.testing.assert_allclose(prediction.rows, rows, atol=1e-6)
    np.testing.assert_allclose(prediction.chunk.positions, rows[:, :3].clamp(-1, 1) * 2, atol=1e-5)


def test_padding_is_left_out() -> None:
    policy, tokens = make_policy(N15), make_tokens()
    padding = np.full((6, 32), np.nan, np.float32)
    padded = Tokens(
        np.concatenate([tokens.features[:10], padding, tokens.features[10:]]),
        np.concatenate([tokens.is_image[:10], np.zeros(6, bool), tokens.is_image[10:]]),
        np.concatenate([np.ones(10, bool), np.zeros(6, bool), np.ones(14, bool)]),
    )
    expected = policy.predict(tokens, POSITIONS, STAMP, 0).chunk.positions
    np.testing.assert_array_equal(policy.predict(padded, POSITIONS, STAMP, 0).chunk.positions, expected)


def test_broken_tokens_are_refused() -> None:
    policy, tokens = make_policy(), make_tokens()
    features = tokens.features.copy()
    features[3, 4] = np.inf
    with pytest.raises(ValueError, match="1 of 24 tokens have a feature that is not finite"):
        policy.predict(replace(tokens, features=features), POSITIONS, STAMP)
    with pytest.raises(ValueError, match="none of the 24 tokens is valid"):
        policy.predict(replace(tokens, valid=np.zeros(24, bool)), POSITIONS, STAMP)
    with pytest.raises(ValueError, match="no valid image token"):
        policy.predict(replace(tokens, is_image=np.zeros(24, bool)), POSITIONS, STAMP)
    with pytest.raises(ValueError, match=r"is_image: got bool \(23,\)"):
        replace(tokens, is_image=np.zeros(23, bool))
    with pytest.raises(ValueError, match=r"state\.arm: no position of j2"):
        policy.predict(tokens, {"j1": 0.0, "j3": 0.0}, STAMP)


@pytest.mark.parametrize("relative", [False, True])
def test_frozen_rows_are_those_of_the_running_plan(relative: bool) -> None:
    arm = {**ARM, "relative": relative}
    policy = make_policy(robot={**ROBOT, "action": {"arm": arm}})
    first = policy.predict(make_tokens(), POSITIONS, STAMP, 0)
    plan = Plan(first.chunk.times, first.chunk.positions.astype(np.float64))
    later = STAMP + round(3 * DT * NS)
    moved = {joint: position + 0.2 for joint, position in POSITIONS.items()}
    second = policy.predict(make_tokens(1), moved, later, 1, Continuation(plan, first, frozen=4, overlap=8)).chunk
    free = policy.predict(make_tokens(1), moved, later, 1).chunk
    expected = plan.at(second.times[:4])
    # A relative key can be told no more than its training range away from where the arm is.
    low, high = (np.array(list(moved.values())) + side * 2 if relative else side * 2 for side in (-1, 1))
    np.testing.assert_allclose(second.positions[:4], np.clip(expected, low, high), atol=1e-5)
    joined, apart = (np.abs(chunk.positions[4:8] - plan.at(second.times[4:8])).mean() for chunk in (second, free))
    assert joined < apart


def test_continuation_of_a_plan_that_has_ended_is_none() -> None:
    policy = make_policy()
    first = policy.predict(make_tokens(), POSITIONS, STAMP, 0)
    plan = Plan(first.chunk.times, first.chunk.positions.astype(np.float64))
    late = STAMP + 100 * NS
    alone = policy.predict(make_tokens(), POSITIONS, late, 0)
    continued = policy.predict(make_tokens(), POSITIONS, late, 0, Continuation(plan, first, 2, 4))
    np.testing.assert_array_equal(alone.chunk.positions, continued.chunk.positions)


def test_robot_that_the_head_has_no_room_for() -> None:
    config = N15.tiny()
    head = ActionHead(config, RandomWeights(config, 0), 3)
    with pytest.raises(ValueError, match="steps: got 40, this version of GR00T allows up to 16"):
        Policy(head, make_robot(ROBOT, N17), DT)


@pytest.fixture
def robot_file(tmp_path: Path) -> Path:
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(ROBOT))
    return path


def test_policy_from_options(robot_file: Path) -> None:
    lines: list[str] = []
    options = PolicyOptions(robot_file, version="n1.6", weights="random_tiny", precision="float32", action_dt=0.2)
    policy = create_policy(options, lines.append)
    assert policy.head.config == N16.tiny() and policy.action_dt == 0.2
    assert len(lines) == 1 and "RANDOM weights, seed 0" in lines[0] and "j1, j2, j3" in lines[0]


def write_checkpoint(folder: Path) -> Path:
    """An N1.6 checkpoint as it is downloaded, tiny: tensors, config.json and the processor's files."""
    config = N16.tiny()
    config = replace(config, out_dim=config.hidden, ff_dim=4 * config.width, vl_ff_dim=4 * config.vl_dim)
    weights = RandomWeights(config, 6, torch.bfloat16, spread=3.0)
    tensors = {f"action_head.{name}": weights.tensor(name).contiguous() for name in expected_shapes(config)}
    save_file({**tensors, "backbone.model.mlp1.0.weight": torch.zeros(2)}, folder / "model.safetensors")
    sizes = {"num_layers": 4, "num_attention_heads": 2, "attention_head_dim": 16, "output_dim": config.out_dim}
    settings = {"hidden_size": config.hidden, "backbone_embedding_dim": 32, "max_seq_len": config.max_seq_len}
    numbers = {"min": [-2.0] * 3, "max": [2.0] * 3}
    keys = {"delta_indices": list(range(16)), "modality_keys": ["arm"]}
    modalities = {"my_arm": {"state": {**keys, "delta_indices": [0]}, "action": keys}}
    for name, content in {
        "config": {"model_type": "Gr00tN1d6", "diffusion_model_cfg": sizes, **settings},
        "processor_config": {"processor_kwargs": {"modality_configs": modalities}},
        "statistics": {"my_arm": {"state": {"arm": numbers}, "action": {"arm": numbers}}},
        "embodiment_id": {"my_arm": 9},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_policy_from_a_checkpoint(tmp_path: Path) -> None:
    robot = tmp_path / "robot.yaml"
    joints = {"arm": {"joints": JOINTS}}
    robot.write_text(yaml.safe_dump({"embodiment": "my_arm", "state": joints, "action": joints}))
    checkpoint = write_checkpoint(tmp_path)
    policy = create_policy(PolicyOptions(robot, checkpoint=checkpoint, precision="float32"))
    assert (policy.head.config.version, policy.modality.index, policy.modality.steps) == ("n1.6", 9, 16)
    head = ActionHead(policy.head.config, RandomWeights(policy.head.config, 6, torch.bfloat16, spread=3.0), 9)
    expected = Policy(head, policy.modality, 0.05).predict(make_tokens(), POSITIONS, STAMP, 1)
    chunk = policy.predict(make_tokens(), POSITIONS, STAMP, 1).chunk
    assert chunk.positions.shape == (16, 3)
    np.testing.assert_array_equal(chunk.positions, expected.chunk.positions)
    with pytest.raises(ValueError, match=r"version: got n1\.7, but .* is n1\.6"):
        create_policy(PolicyOptions(robot, version="n1.7", checkpoint=checkpoint))
    with pytest.raises(ValueError, match="does not know 'gr1', only my_arm"):
        create_policy(PolicyOptions(robot, embodiment="gr1", checkpoint=checkpoint))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": "checkpoint"}, "checkpoint: none is given"),
        ({"version": "auto"}, r"version: random weights need one of n1\.5"),
        ({"version": "n2"}, "version: got 'n2'"),
        ({"backend": "ttnn"}, "backend: 'ttnn' can't be used: .* take 'torch'"),
        ({"precision": "int8"}, "precision: got 'int8'"),
        ({"robot": Path()}, "config: none is given"),
        ({"robot": Path("nowhere.yaml")}, r"config: nowhere\.yaml is no file"),
        ({"weights": "checkpoint", "checkpoint": Path("nowhere")}, r"nowhere.*(no such file or folder|is missing)"),
    ],
)
def test_options_that_cannot_be(change, message: str, robot_file: Path) -> None:
    options = replace(PolicyOptions(robot_file, version="n1.6", weights="random_tiny"), **change)
    with pytest.raises(ValueError, match=message):
        create_policy(options)
