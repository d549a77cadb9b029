"""The parameters of dit_node, and what they mean to the code below it."""

from __future__ import annotations

from pathlib import Path

from ttsp_ros.dit.chunking import Splicing
from ttsp_ros.dit.create import BACKENDS, VERSIONS, WEIGHTS, PolicyOptions
from ttsp_ros.ros.parameters import AUTOSTART, ParameterSpec, Takes, Values
from ttsp_ros.superpoint.extractor import PRECISIONS

CHUNKING = ("auto", "rtc", "crossfade")
RANDOM_SEED = -1

DIT_PARAMETERS = (
    AUTOSTART,
    ParameterSpec(
        "config",
        "",
        "Path of the robot file (YAML): which joints the checkpoint's state and action keys are. "
        "config/robot_7dof.yaml of this package is an example.",
        Takes.CONFIGURE,
    ),
    ParameterSpec(
        "checkpoint",
        "",
        "Path of a GR00T checkpoint: a folder with model.safetensors or its shards, or one .safetensors file.",
        Takes.CONFIGURE,
    ),
    ParameterSpec(
        "version",
        "auto",
        "GR00T version of the action head; 'auto' reads it from the checkpoint's config.json.",
        Takes.CONFIGURE,
        choices=VERSIONS,
    ),
    ParameterSpec(
        "embodiment",
        "",
        "Name of the embodiment in the checkpoint; empty: the robot file's.",
        Takes.CONFIGURE,
    ),
    ParameterSpec(
        "weights",
        "checkpoint",
        "Where the weights come from. 'random' (full size) and 'random_tiny' are for trying things out: their actions "
        "mean nothing.",
        Takes.CONFIGURE,
        choices=WEIGHTS,
    ),
    ParameterSpec("weights_seed", 0, "Seed of random weights.", Takes.CONFIGURE, minimum=0, maximum=2**31 - 1),
    ParameterSpec(
        "backend", "auto", "What computes the actions: 'torch' is the CPU.", Takes.CONFIGURE, choices=BACKENDS
    ),
    ParameterSpec(
        "precision",
        "auto",
        "Number format of the action head; 'auto' is bfloat16, as published, where the CPU has it in hardware.",
        Takes.CONFIGURE,
        choices=PRECISIONS,
    ),
    ParameterSpec("threads", 0, "CPU threads of torch; 0: one per core.", Takes.CONFIGURE, minimum=0, maximum=256),
    ParameterSpec(
        "compile", False, "Run the head through torch.compile (a minute or more at configure).", Takes.CONFIGURE
    ),
    ParameterSpec(
        "action_dt",
        0.05,
        "Seconds from one row of a chunk to the next: that of the training data, whose speed it sets.",
        Takes.CONFIGURE,
        minimum=0.001,
        maximum=10.0,
    ),
    ParameterSpec(
        "execution_horizon",
        8,
        "Rows of a chunk to execute before the next one is predicted, if tokens have come.",
        minimum=1,
        maximum=1024,
    ),
    ParameterSpec(
        "overlap",
        4,
        "Rows over which a new chunk is faded in from the running one; 0: none.",
        minimum=0,
        maximum=1024,
    ),
    ParameterSpec(
        "chunking",
        "auto",
        "How chunks are joined: 'crossfade', or 'rtc' (real-time chunking: the head also continues the running chunk). "
        "'auto' is rtc for n1.7.",
        choices=CHUNKING,
    ),
    ParameterSpec(
        "max_observation_age",
        1.0,
        "No motion is commanded for times later than this after the observation, and older tokens are refused: when "
        "tokens stop, so does the arm (seconds).",
        minimum=0.01,
        maximum=60.0,
    ),
    ParameterSpec(
        "max_state_skew",
        0.2,
        "Joint positions must be known within this of the tokens' stamp, and of now when motion begins (seconds).",
        minimum=0.0,
        maximum=10.0,
    ),
    ParameterSpec(
        "max_joint_velocity",
        2.0,
        "No joint is told to move faster (rad/s or m/s); 0: no limit.",
        minimum=0.0,
        maximum=1000.0,
    ),
    ParameterSpec(
        "max_tracking_error",
        0.5,
        "A joint further than this from where it was told to be (rad or m): go on from where it is; 0: never.",
        minimum=0.0,
        maximum=1000.0,
    ),
    ParameterSpec(
        "seed",
        RANDOM_SEED,
        "Seed of the noise that each chunk is made from: the same observation gives the same chunk; -1: random.",
        minimum=RANDOM_SEED,
        maximum=2**31 - 1,
    ),
    ParameterSpec(
        "dry_run",
        True,
        "Compute and publish on ~/preview only. Motion needs this off, and ~/enable called with true.",
    ),
    ParameterSpec(
        "diagnostics_period",
        0.5,
        "Seconds between two messages on /diagnostics.",
        Takes.START,
        minimum=0.05,
        maximum=60.0,
    ),
)


def policy_options(values: Values) -> PolicyOptions:
    """What the policy is made with."""
    return PolicyOptions(
        robot=Path(values["config"]).expanduser(),
        version=values["version"],
        weights=values["weights"],
        checkpoint=Path(values["checkpoint"]).expanduser() if values["checkpoint"] else None,
        weights_seed=values["weights_seed"],
        embodiment=values["embodiment"],
        backend=values["backend"],
        precision=values["precision"],
        threads=values["threads"] or None,
        compile_step=values["compile"],
        action_dt=values["action_dt"],
    )


def splicing(values: Values) -> Splicing:
    """How chunks are joined."""
    return Splicing(
        overlap=values["overlap"],
        max_velocity=values["max_joint_velocity"],
        reach=values["max_observation_age"],
    )
