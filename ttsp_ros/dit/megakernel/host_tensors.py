"""What is uploaded once for a megakernel: padded weights, and the tables that hold everything else.

Rows of the tables, for n blocks and s Euler steps (any step's rows lie together):

    modulation  [s (2 n + 2), width]    of step k: 1 + scale and shift of block 0, of block 1, ..., of the output head
    biases      [4 n + 4, widest]       of block i: queries (and keys, values), out, ff1, ff2, padded like its product;
                                        then project, decode1, decode2, encode1 of the tail
    step_bias   [s, width]              the time's share of the action encoder's second layer, with its bias
    row_bias    [64, width]             position embedding and third bias of the action encoder, on the action rows

`1 + scale` is stored, not `scale`: the published bfloat16 head rounds the sum as well, and the kernel is spared it.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from ttsp_ros.dit import tables
from ttsp_ros.dit.config import GrootConfig
from ttsp_ros.dit.megakernel.arena import (
    HEAD_DIM_PADDED,
    TOKENS_PADDED,
    ArenaLayout,
    WeightOf,
    pad_heads,
    pad_weight,
)
from ttsp_ros.dit.weights import Weights

BIASES_OF_BLOCK = ("queries", "out", "ff1", "ff2")
BIASES_OF_TAIL = ("project", "decode1", "decode2", "encode1")
#: Added to the scores of keys that do not exist. Finite, so that a chunk of such keys alone gives no NaN, and exact in
#: bfloat16; exp of it less any real score is 0.
MASKED = -(2.0**100)


def _block(index: int) -> str:
    return f"model.transformer_blocks.{index}"


def padded_weights(layout: ArenaLayout, weights: Weights, embodiment: int) -> WeightOf:
    """The padded weight [K, N] (`y = x @ W`, float32) of an operation's name, read from a checkpoint when asked for."""

    def linear(name: str) -> Tensor:
        return weights.tensor(f"{name}.weight").float().T

    def own(name: str) -> Tensor:
        return weights.row(f"{name}.W", embodiment).float()

    heads = layout.config.n_heads
    scale = layout.attention_scale if layout.fold_attn_scale else 1.0

    def of_block(index: int, kind: str) -> Tensor:
        attention, feed_forward = f"{_block(index)}.attn1", f"{_block(index)}.ff"
        if kind in ("q", "qkv"):
            parts = [pad_weight(linear(f"{attention}.to_q"), heads_out=heads, scale=scale)]
            if kind == "qkv":
                parts += [pad_weight(linear(f"{attention}.to_{part}"), heads_out=heads) for part in "kv"]
            return torch.cat(parts, dim=1)
        if kind == "out":
            return pad_weight(linear(f"{attention}.to_out.0"), heads_in=heads)
        return pad_weight(linear(f"{feed_forward}.net.{'0.proj' if kind == 'ff1' else '2'}"))

    def of_tail(kind: str) -> Tensor:
        if kind == "project":
            return pad_weight(linear("model.proj_out_2"))
        if kind == "encode2":
            return pad_weight(own("action_encoder.W2")[: layout.config.width])
        names = {"decode1": "action_decoder.layer1", "decode2": "action_decoder.layer2"}
        return pad_weight(own(names.get(kind, f"action_encoder.W{kind[-1]}")))

    def weight_of(name: str) -> Tensor:
        part, kind = name.split(".")
        return of_tail(kind) if part == "tail" else of_block(int(part.removeprefix("block")), kind)

    return weight_of


def modulation_row(config: GrootConfig, step: int, block: int) -> int:
    """Row of `1 + scale` of a block in a step; the next one is its shift. Block n_blocks is the output head."""
    return step * (2 * config.n_blocks + 2) + 2 * block


def bias_row(config: GrootConfig, block: int, name: str) -> int:
    """Row of a bias of a block, or of the tail for block n_blocks."""
    return 4 * block + (BIASES_OF_TAIL if block == config.n_blocks else BIASES_OF_BLOCK).index(name)


def bias_columns(layout: ArenaLayout) -> int:
    """Width of the bias table: that of its widest row."""
    return max(3 * layout.config.n_heads * HEAD_DIM_PADDED, layout.config.ff_dim)


def modulation(config: GrootConfig, weights: Weights) -> Tensor:
    """float32 [steps (2 n_blocks + 2), width]."""
    embedding = tables.timestep_embedding(config, weights)
    pairs = [tables.block_modulation(weights, block, embedding) for block in range(config.n_blocks)]
    pairs.append(tables.output_modulation(weights, embedding))
    rows = torch.stack([torch.stack([1 + scale, shift], dim=1) for scale, shift in pairs], dim=1)
    return rows.flatten(0, 2)


def biases(layout: ArenaLayout, weights: Weights, embodiment: int) -> Tensor:
    """float32 [4 n_blocks + 4, bias_columns]: each bias from column 0, padded like its product."""
    config = layout.config
    scale = layout.attention_scale if layout.fold_attn_scale else 1.0
    rows: list[Tensor] = []
    for block in range(config.n_blocks):
        attention, feed_forward = f"{_block(block)}.attn1", f"{_block(block)}.ff"
        parts = [weights.tensor(f"{attention}.to_q.bias").float() * scale]
        if not config.is_cross(block):
            parts += [weights.tensor(f"{attention}.to_{part}.bias").float() for part in "kv"]
        rows.append(torch.cat([pad_heads(part, config.n_heads, dim=0) for part in parts]))
        names = (f"{attention}.to_out.0", f"{feed_forward}.net.0.proj", f"{feed_forward}.net.2")
        rows += [weights.tensor(f"{name}.bias").float() for name in names]
    rows.append(weights.tensor("model.proj_out_2.bias").float())
    for name in ("action_decoder.layer1", "action_decoder.layer2", "action_encoder.W1"):
        rows.append(weights.row(f"{name}.b", embodiment).float())
    columns = bias_columns(layout)
    return torch.stack([F.pad(row, (0, columns - len(row))) for row in rows])


def step_bias(config: GrootConfig, weights: Weights, embodiment: int) -> Tensor:
    """float32 [steps, width]."""
    return tables.action_time_bias(config, weights, embodiment)


def row_bias(config: GrootConfig, weights: Weights, embodiment: int) -> Tensor:
    """float32 [64, width], zero but for the action rows."""
    first, end = config.action_rows
    rows = torch.zeros(TOKENS_PADDED, config.width)
    rows[first:end] = tables.action_position_bias(config, weights, embodiment)
    return rows


def state_token(weights: Weights, embodiment: int, state: Tensor) -> Tensor:
    """The first token, float32 [1, width], of a normalised state [max_state_dim]."""

    def layer(name: str, x: Tensor) -> Tensor:
        weight, bias = (weights.row(f"state_encoder.{name}.{part}", embodiment).float() for part in "Wb")
        return x @ weight + bias

    return layer("layer2", F.relu(layer("layer1", state.float()[None])))


def padded_keys(layout: ArenaLayout, block: int, keys: Tensor) -> Tensor:
    """Keys or values of a cross block as the kernel reads them: heads padded to 64, zero rows up to the plan's length.

    Args:
        keys: [1, heads, tokens, head_dim], as `ActionHead.encode_tokens` gives them in its `Context`.
    """
    tokens, padded = keys.shape[2], layout.keys_padded(block)
    if tokens > padded:
        raise ValueError(f"block {block}: {tokens} {layout.config.keys_of(block)} keys, the plan holds {padded}")
    return F.pad(keys, (0, HEAD_DIM_PADDED - keys.shape[3], 0, padded - tokens))


def key_mask(real: int, padded: int) -> Tensor:
    """float32 [1, 1, 64, padded], added to scores: 0 for the first `real` keys, `MASKED` for the rest."""
    if not 0 < real <= padded:
        raise ValueError(f"mask: got {real} keys, allowed are 1 to {padded}")
    mask = torch.zeros(1, 1, TOKENS_PADDED, padded)
    mask[..., real:] = MASKED
    return mask
