"""Everything in the head that depends on the flow time alone, computed once for the fixed Euler times.

The times of a call are always the same (0, 250, 500, 750 of 1000 for four steps), so the timestep embedding, all AdaLN
vectors and the time's share of the action encoder are constants of the weights. Recomputing them would stream another
4.7 million weights a block and step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from ttsp_ros.dit.config import GrootConfig
from ttsp_ros.dit.weights import Weights

TIMESTEP_CHANNELS = 256


def _float(weights: Weights, name: str) -> Tensor:
    return weights.tensor(name).float()


def _linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, _float(weights, f"{name}.weight"), _float(weights, f"{name}.bias"))


def _angles(config: GrootConfig, exponents: Tensor) -> Tensor:
    """float32 [steps, n]: t exp(exponent).

    The callers build the exponents in the published code's order of operations: at t = 750 one ulp of a frequency moves
    the angle by 4e-5, which is most of the difference that two float32 implementations of this head would show.
    """
    return torch.tensor(config.timesteps, dtype=torch.float32)[:, None] * exponents.exp()


def timestep_embedding(config: GrootConfig, weights: Weights) -> Tensor:
    """float32 [steps, width]: L2(silu(L1([cos(t f), sin(t f)]))), f_i = 10000^(-i / 127), i < 128."""
    half = TIMESTEP_CHANNELS // 2
    angles = _angles(config, -math.log(10000.0) * torch.arange(half, dtype=torch.float32) / (half - 1))
    sinusoids = torch.cat([angles.cos(), angles.sin()], dim=1)
    embedder = "model.timestep_encoder.timestep_embedder"
    return _linear(weights, f"{embedder}.linear_2", F.silu(_linear(weights, f"{embedder}.linear_1", sinusoids)))


def block_modulation(weights: Weights, block: int, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, shift) of a block's AdaLN, float32 [steps, width] each: h = LN(x) (1 + scale) + shift."""
    both = _linear(weights, f"model.transformer_blocks.{block}.norm1.linear", F.silu(embedding))
    scale, shift = both.chunk(2, dim=1)
    return scale, shift


def output_modulation(weights: Weights, embedding: Tensor) -> tuple[Tensor, Tensor]:
    """(scale, shift) of the output head, float32 [steps, width] each. The layer gives them out shift first."""
    shift, scale = _linear(weights, "model.proj_out_1", F.silu(embedding)).chunk(2, dim=1)
    return scale, shift


def action_time_bias(config: GrootConfig, weights: Weights, embodiment: int) -> Tensor:
    """float32 [steps, width]: tau W2[width:] + b2, the time's share of the action encoder's second layer.

    tau = [sin(t g), cos(t g)], g_j = 10000^(-j / (width / 2)), j < width / 2.
    """
    half = config.width // 2
    angles = _angles(config, -torch.arange(half, dtype=torch.float32) * (torch.tensor(10000.0).log() / half))
    tau = torch.cat([angles.sin(), angles.cos()], dim=1)
    second = weights.row("action_encoder.W2.W", embodiment).float()
    return tau @ second[config.width :] + weights.row("action_encoder.W2.b", embodiment).float()


def action_position_bias(config: GrootConfig, weights: Weights, embodiment: int) -> Tensor:
    """float32 [horizon, width]: b3 + position embedding, what the action encoder's last layer adds to each row."""
    positions = _float(weights, "position_embedding.weight")[: config.horizon]
    return weights.row("action_encoder.W3.b", embodiment).float() + positions
