"""Makes a policy from what a user asks for: checkpoint, robot file, version, backend, precision."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ttsp_ros.dit.checkpoint import Checkpoint, read_config
from ttsp_ros.dit.config import GrootConfig, config_of
from ttsp_ros.dit.model import ActionHead
from ttsp_ros.dit.policy import Policy, Tokens
from ttsp_ros.dit.robot import read_robot
from ttsp_ros.dit.weights import RandomWeights
from ttsp_ros.superpoint.extractor import choose_dtype

BACKENDS = ("auto", "torch", "ttnn")
VERSIONS = ("auto", "n1.5", "n1.6", "n1.7")
WEIGHTS = ("checkpoint", "random", "random_tiny")

# A tiny head with weights as small as a full one's would hardly look at its inputs.
TINY_SPREAD = 3.0
WARM_UP_TOKENS = 64


@dataclass(frozen=True)
class PolicyOptions:
    """What is fixed when a policy is made.

    Attributes:
        robot: the robot file.
        version: one of VERSIONS; "auto" reads it from the checkpoint's config.json.
        weights: one of WEIGHTS; the random ones are for demos and tests.
        checkpoint: folder or .safetensors file.
        weights_seed: of random weights.
        embodiment: taken instead of the robot file's; empty: the file's.
        backend: one of BACKENDS.
        precision: "auto", "float32" or "bfloat16".
        threads: CPU threads of torch; None leaves them as they are.
        compile_step: run the head through torch.compile.
        action_dt: seconds from row to row of a chunk.
    """

    robot: Path
    version: str = "auto"
    weights: str = "checkpoint"
    checkpoint: Path | None = None
    weights_seed: int = 0
    embodiment: str = ""
    backend: str = "auto"
    precision: str = "auto"
    threads: int | None = None
    compile_step: bool = False
    action_dt: float = 0.05


def create_policy(options: PolicyOptions, log: Callable[[str], None] = lambda line: None) -> Policy:
    """The policy that `options` ask for, warmed up.

    Args:
        log: gets a line that says what was made.

    Raises:
        ValueError: an option is not allowed; a file is missing, wrong or doesn't go with the others.
    """
    _check(options)
    config = _config(options)
    checkpoint = options.checkpoint if options.weights == "checkpoint" else None
    modality = read_robot(options.robot, config, checkpoint, options.embodiment or None)
    dtype = choose_dtype(options.precision)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    begin = time.perf_counter()
    spread = TINY_SPREAD if options.weights == "random_tiny" else 1.0
    source = (
        nullcontext(RandomWeights(config, options.weights_seed, spread=spread))
        if checkpoint is None
        else Checkpoint(checkpoint, config)
    )
    with source as weights:
        head = ActionHead(config, weights, modality.index, dtype=dtype, compile_step=options.compile_step)
    policy = Policy(head, modality, options.action_dt)
    _warm_up(policy)
    described = (
        str(options.checkpoint) if checkpoint else f"RANDOM weights, seed {options.weights_seed}: for demos only"
    )
    log(
        f"GR00T {config.version} on torch, {str(dtype).removeprefix('torch.')}, {torch.get_num_threads()} threads "
        f"({described}), ready after {time.perf_counter() - begin:.1f} s; embodiment {modality.embodiment} "
        f"({modality.index}) moves {', '.join(modality.joints)}"
    )
    return policy


def _check(options: PolicyOptions) -> None:
    for name, value, allowed in (
        ("version", options.version, VERSIONS),
        ("weights", options.weights, WEIGHTS),
        ("backend", options.backend, BACKENDS),
    ):
        if value not in allowed:
            raise ValueError(f"{name}: got {value!r}, allowed are {', '.join(allowed)}")
    if options.backend == "ttnn":
        raise ValueError(
            "backend: 'ttnn' can't be used: this version of ttsp_ros runs the action head on the CPU only; take 'torch'"
        )
    if options.robot == Path():
        raise ValueError("config: none is given; give a robot file (config/robot_7dof.yaml is an example)")
    if not options.robot.is_file():
        raise ValueError(
            f"config: {options.robot} is no file; give a robot file (config/robot_7dof.yaml is an example)"
        )
    if options.weights == "checkpoint" and options.checkpoint is None:
        raise ValueError(
            "checkpoint: none is given; give the folder of a GR00T checkpoint, or weights:=random for a demo"
        )


def _config(options: PolicyOptions) -> GrootConfig:
    if options.weights != "checkpoint":
        if options.version == "auto":
            raise ValueError(f"version: random weights need one of {', '.join(VERSIONS[1:])}")
        config = config_of(options.version)
        return config.tiny() if options.weights == "random_tiny" else config
    assert options.checkpoint is not None
    if options.version == "auto":
        return read_config(options.checkpoint)
    folder = options.checkpoint if options.checkpoint.is_dir() else options.checkpoint.parent
    if not (folder / "config.json").is_file():
        return config_of(options.version)
    config = read_config(options.checkpoint)
    if config.version != options.version:
        raise ValueError(f"version: got {options.version}, but {options.checkpoint} is {config.version}")
    return config


def _warm_up(policy: Policy) -> None:
    """Two calls: the first one allocates and plans, and would be an outlier in every latency."""
    features = np.zeros((WARM_UP_TOKENS, policy.head.config.vl_dim), np.float32)
    is_image = np.arange(WARM_UP_TOKENS) >= WARM_UP_TOKENS // 2
    positions = dict.fromkeys(policy.modality.observed_joints, 0.0)
    for _ in range(2):
        policy.predict(Tokens(features, is_image, np.ones(WARM_UP_TOKENS, bool)), positions, stamp=0, seed=0)
