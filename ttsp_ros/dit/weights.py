"""The tensors of an action head: their names and shapes, and where they come from.

Names are those of NVIDIA/Isaac-GR00T's modules below `action_head.`, so a published checkpoint needs no renaming.
"""

from __future__ import annotations

import logging
import math
import zlib
from typing import Protocol

import torch
from torch import Tensor

from ttsp_ros.dit.config import GrootConfig

Shape = tuple[int, ...]


class Weights(Protocol):
    """A source of tensors, read one at a time so that a whole model need not be in memory twice."""

    def tensor(self, name: str) -> Tensor:
        """The whole tensor of this name."""
        ...

    def row(self, name: str, index: int) -> Tensor:
        """`tensor(name)[index]`, without reading the rest: the weights of one embodiment."""
        ...


def _linear(name: str, out_features: int, in_features: int) -> dict[str, Shape]:
    return {f"{name}.weight": (out_features, in_features), f"{name}.bias": (out_features,)}


def _per_embodiment(name: str, config: GrootConfig, in_features: int, out_features: int) -> dict[str, Shape]:
    count = config.n_embodiments
    return {f"{name}.W": (count, in_features, out_features), f"{name}.b": (count, out_features)}


def _attention(name: str, width: int, keys_from: int) -> dict[str, Shape]:
    return {
        **_linear(f"{name}.to_q", width, width),
        **_linear(f"{name}.to_k", width, keys_from),
        **_linear(f"{name}.to_v", width, keys_from),
        **_linear(f"{name}.to_out.0", width, width),
    }


def _feed_forward(name: str, width: int, inner: int) -> dict[str, Shape]:
    return {**_linear(f"{name}.net.0.proj", inner, width), **_linear(f"{name}.net.2", width, inner)}


def _dit_shapes(config: GrootConfig) -> dict[str, Shape]:
    width = config.width
    shapes = {
        **_linear("model.timestep_encoder.timestep_embedder.linear_1", width, 256),
        **_linear("model.timestep_encoder.timestep_embedder.linear_2", width, width),
    }
    for index in range(config.n_blocks):
        block = f"model.transformer_blocks.{index}"
        shapes |= _linear(f"{block}.norm1.linear", 2 * width, width)
        shapes |= _attention(f"{block}.attn1", width, config.vl_dim if config.is_cross(index) else width)
        shapes |= _feed_forward(f"{block}.ff", width, config.ff_dim)
    shapes |= _linear("model.proj_out_1", 2 * width, width)
    shapes |= _linear("model.proj_out_2", config.out_dim, width)
    return shapes


def _vl_shapes(config: GrootConfig) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {"vlln.weight": (config.vl_dim,), "vlln.bias": (config.vl_dim,)}
    for index in range(config.vl_layers):
        layer = f"vl_self_attention.transformer_blocks.{index}"
        for norm in ("norm1", "norm3"):
            shapes |= {f"{layer}.{norm}.weight": (config.vl_dim,), f"{layer}.{norm}.bias": (config.vl_dim,)}
        shapes |= _attention(f"{layer}.attn1", config.vl_dim, config.vl_dim)
        shapes |= _feed_forward(f"{layer}.ff", config.vl_dim, config.vl_ff_dim)
    return shapes


def expected_shapes(config: GrootConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of the head. Per-embodiment tensors have the embodiment as first axis."""
    width = config.width
    shapes = {
        **_dit_shapes(config),
        **_vl_shapes(config),
        **_per_embodiment("state_encoder.layer1", config, config.max_state_dim, config.hidden),
        **_per_embodiment("state_encoder.layer2", config, config.hidden, width),
        **_per_embodiment("action_encoder.W1", config, config.max_action_dim, width),
        **_per_embodiment("action_encoder.W2", config, 2 * width, width),
        **_per_embodiment("action_encoder.W3", config, width, width),
        **_per_embodiment("action_decoder.layer1", config, config.out_dim, config.hidden),
        **_per_embodiment("action_decoder.layer2", config, config.hidden, config.max_action_dim),
        "position_embedding.weight": (config.max_seq_len, width),
    }
    if config.n_future_tokens:
        shapes["future_tokens.weight"] = (config.n_future_tokens, width)
    return shapes


def parameter_count(config: GrootConfig, prefix: str = "") -> int:
    """Number of parameters whose name starts with `prefix`; "model." is the DiT alone."""
    return sum(math.prod(shape) for name, shape in expected_shapes(config).items() if name.startswith(prefix))


class RandomWeights:
    """Random tensors for demos and tests: the same for the same seed, whichever are asked for and in which order.

    Spread as in the published training code: linear layers uniform within 1/sqrt(inputs), embeddings and per-embodiment
    matrices normal with 0.02, norms 1, their and the per-embodiment biases 0.

    Args:
        config: the head to fill.
        seed: chooses the numbers.
        dtype: what the tensors are given out in.
        spread: factor on every random number; a tiny model needs more than 1 to let its inputs matter.
    """

    def __init__(
        self, config: GrootConfig, seed: int, dtype: torch.dtype = torch.float32, *, spread: float = 1.0
    ) -> None:
        self._shapes = expected_shapes(config)
        self._seed = seed
        self._dtype = dtype
        self._spread = spread
        logging.getLogger(__name__).warning(
            "GR00T %s with RANDOM weights (seed %d): its actions mean nothing. Give a checkpoint to control a robot.",
            config.version,
            seed,
        )

    def tensor(self, name: str) -> Tensor:
        shape = self._shapes[name]
        # One 32-bit number of both: torch looks at no more bits of a seed.
        generator = torch.Generator().manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        if name.startswith("vl") and ("norm" in name or name.startswith("vlln")):
            return (torch.ones if name.endswith("weight") else torch.zeros)(shape, dtype=self._dtype)
        if name.endswith((".W", "embedding.weight", "tokens.weight")):
            values = torch.randn(shape, generator=generator) * (0.02 * self._spread)
        elif name.endswith(".b"):
            values = torch.zeros(shape)
        else:
            inputs = self._shapes[name.removesuffix("bias") + "weight" if name.endswith("bias") else name][-1]
            values = (2 * torch.rand(shape, generator=generator) - 1) * (self._spread / math.sqrt(inputs))
        return values.to(self._dtype)

    def row(self, name: str, index: int) -> Tensor:
        return self.tensor(name)[index]
