"""A walk of the plan in torch: what each core would compute from its own bytes, tile for tile.

Every weight is taken out of the arena tensor K-block by K-block from the place where the owning core finds it; heads
are padded, the attention scale is folded (or not), keys come in chunks of 64 with a running maximum, long key sets are
split over the three cores of a head, output projections are partial sums of four cores, vectors come out of the tables.
When the result equals `dit/model.py`, the plan is right before a kernel exists. Slow, for tests and to look at numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ttsp_ros.dit.megakernel import host_tensors
from ttsp_ros.dit.megakernel.arena import HEAD_DIM_PADDED, TILE, TOKENS_PADDED, ArenaLayout, Operation
from ttsp_ros.dit.weights import Weights

KEY_CHUNK = 64
#: Cross blocks of at least so many chunks share a head's keys over its three cores; with fewer, one core would have
#: nothing to do.
SPLIT_FROM_CHUNKS = 3
SPLIT_WAYS = 3
LN_EPS = 1e-5
OUTPUT_LN_EPS = 1e-6


@dataclass(frozen=True)
class Tables:
    """The uploaded tensors, as `host_tensors` makes them."""

    stream: Tensor
    tail: Tensor
    modulation: Tensor
    biases: Tensor
    step_bias: Tensor
    row_bias: Tensor
    future_tokens: Tensor | None

    @classmethod
    def of(cls, layout: ArenaLayout, weights: Weights, embodiment: int, dtype: torch.dtype = torch.float32) -> Tables:
        """All tables of a checkpoint; `dtype` is that of the arenas."""
        config = layout.config
        weight_of = host_tensors.padded_weights(layout, weights, embodiment)
        return cls(
            stream=layout.pack("stream", weight_of, dtype),
            tail=layout.pack("tail", weight_of, dtype),
            modulation=host_tensors.modulation(config, weights),
            biases=host_tensors.biases(layout, weights, embodiment),
            step_bias=host_tensors.step_bias(config, weights, embodiment),
            row_bias=host_tensors.row_bias(config, weights, embodiment),
            future_tokens=weights.tensor("future_tokens.weight").float() if config.n_future_tokens else None,
        )


@dataclass(frozen=True)
class CrossKeys:
    """Keys, values [1, heads, padded, 64] and mask [1, 1, 64, padded] or None of one cross block."""

    keys: Tensor
    values: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Part:
    """A core's part of one head's attention: row maxima, row sums and unnormalised output over some of the keys."""

    maximum: Tensor
    total: Tensor
    output: Tensor


def key_chunks(padded: int) -> list[tuple[int, int]]:
    """(first, end) of the chunks of 64 keys, the last one possibly half."""
    return [(first, min(first + KEY_CHUNK, padded)) for first in range(0, padded, KEY_CHUNK)]


def key_shares(padded: int) -> list[list[tuple[int, int]]]:
    """The chunks of each core of a head: all for the first, or dealt to three when there are many."""
    chunks = key_chunks(padded)
    if len(chunks) < SPLIT_FROM_CHUNKS:
        return [chunks]
    return [chunks[core::SPLIT_WAYS] for core in range(SPLIT_WAYS)]


class Executor:
    """Runs the plan of `layout` on `tables`."""

    def __init__(self, layout: ArenaLayout, tables: Tables) -> None:
        self.layout = layout
        self.tables = tables
        self._ops = {op.name: op for op in layout.stream_ops + layout.tail_ops}
        self._self_mask = host_tensors.key_mask(layout.config.n_tokens, TOKENS_PADDED)

    # ---- products

    def pieces(self, op: Operation, x: Tensor) -> list[Tensor]:
        """What each core makes of x [64, K]: [64, columns of its piece], accumulated K-block by K-block in float32."""
        arena = self.tables.stream if op.table == "stream" else self.tables.tail
        results = []
        for piece in op.pieces():
            total = x.new_zeros(len(x), op.block_columns * TILE)
            for k_block in range(op.k_blocks):
                first = (piece.k0 + k_block * op.block_rows) * TILE
                tiles = self.layout.read_block(arena, op, piece.core, k_block).float()
                block = tiles.permute(0, 2, 1, 3).reshape(op.block_rows * TILE, op.block_columns * TILE)
                total += x[:, first : first + len(block)] @ block
            results.append(total)
        return results

    def product(self, op: Operation, x: Tensor) -> Tensor:
        """x @ W [64, N]: the pieces side by side, those that share columns added up."""
        pieces = self.pieces(op, x)
        parts = [
            torch.cat(pieces[first : first + op.column_blocks], dim=1)
            for first in range(0, len(pieces), op.column_blocks)
        ]
        return torch.stack(parts).sum(0)

    def linear(self, block: int, kind: str, bias: str, x: Tensor) -> Tensor:
        """A product with its bias, of a block or (block n_blocks) of the tail."""
        config = self.layout.config
        op = self._ops[f"tail.{kind}" if block == config.n_blocks else f"block{block}.{kind}"]
        row = self.tables.biases[host_tensors.bias_row(config, block, bias)]
        return self.product(op, x) + row[: op.n_tiles * TILE]

    # ---- a block

    def modulated(self, x: Tensor, step: int, block: int, eps: float = LN_EPS) -> Tensor:
        """LayerNorm without affine part, then the step's gain and shift."""
        row = host_tensors.modulation_row(self.layout.config, step, block)
        gain, shift = self.tables.modulation[row], self.tables.modulation[row + 1]
        return F.layer_norm(x, x.shape[-1:], eps=eps) * gain + shift

    def attention_part(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, chunks: list[tuple[int, int]]
    ) -> Part:
        """One core's pass over its chunks of one head; all [64 or keys, 64]."""
        part = Part(
            query.new_full((len(query), 1), -torch.inf), query.new_zeros(len(query), 1), torch.zeros_like(query)
        )
        for first, end in chunks:
            scores = query @ keys[first:end].T + mask[:, first:end]
            maximum = torch.maximum(part.maximum, scores.amax(dim=1, keepdim=True))
            weights = torch.exp(scores - maximum)
            rescale = torch.exp(part.maximum - maximum)
            part = Part(
                maximum,
                part.total * rescale + weights.sum(dim=1, keepdim=True),
                part.output * rescale + weights @ values[first:end],
            )
        return part

    def head(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """One head, its keys shared as `key_shares` says, the parts merged on the head's first core."""
        shares = key_shares(len(keys))
        parts = [self.attention_part(query, keys, values, mask, share) for share in shares]
        maximum = torch.stack([part.maximum for part in parts]).amax(0)
        scales = [torch.exp(part.maximum - maximum) for part in parts]
        total = sum(part.total * scale for part, scale in zip(parts, scales, strict=True))
        output = sum(part.output * scale for part, scale in zip(parts, scales, strict=True))
        assert isinstance(total, Tensor) and isinstance(output, Tensor)
        return output / total

    def attention(self, block: int, h: Tensor, cross: CrossKeys | None) -> Tensor:
        """All heads side by side, [64, heads x 64]. Query, key and value of head h are pieces h, H + h, 2 H + h."""
        config = self.layout.config
        heads = config.n_heads
        made = self.linear(block, "q" if config.is_cross(block) else "qkv", "queries", h).split(HEAD_DIM_PADDED, dim=1)
        scale = 1.0 if self.layout.fold_attn_scale else self.layout.attention_scale
        outputs = []
        for head in range(heads):
            if cross is None:
                keys, values, mask = made[heads + head], made[2 * heads + head], self._self_mask[0, 0]
            else:
                keys, values = cross.keys[0, head], cross.values[0, head]
                mask = h.new_zeros(len(h), len(keys)) if cross.mask is None else cross.mask[0, 0]
            outputs.append(self.head(made[head] * scale, keys, values, mask))
        return torch.cat(outputs, dim=1)

    def block(self, step: int, block: int, x: Tensor, cross: CrossKeys | None) -> Tensor:
        """The residual stream [64, width] after a block. `cross` is None for a self block."""
        if (cross is not None) != self.layout.config.is_cross(block):
            raise ValueError(f"block {block} {'needs' if cross is None else 'has no'} cross keys")
        x = x + self.linear(block, "out", "out", self.attention(block, self.modulated(x, step, block), cross))
        inner = F.gelu(self.linear(block, "ff1", "ff1", F.layer_norm(x, x.shape[-1:], eps=LN_EPS)), approximate="tanh")
        return x + self.linear(block, "ff2", "ff2", inner)

    # ---- a step

    def tokens(self, step: int, state: Tensor, actions: Tensor) -> Tensor:
        """The residual stream [64, width] at the start of a step.

        Args:
            state: [1, width], the encoded state.
            actions: [64, padded action columns], the noisy actions on the action rows.
        """
        config, tables = self.layout.config, self.tables
        first, end = config.action_rows
        a = self.linear(config.n_blocks, "encode1", "encode1", actions)
        e = F.silu(self.product(self._ops["tail.encode2"], a) + tables.step_bias[step])
        e = self.product(self._ops["tail.encode3"], e) + tables.row_bias
        x = torch.zeros_like(e)
        x[:1] = state
        if tables.future_tokens is not None:
            x[1:first] = tables.future_tokens
        x[first:end] = e[first:end]
        return x

    def velocity(self, step: int, x: Tensor) -> Tensor:
        """The decoder's output [64, padded action columns] from the residual stream after the last block."""
        last = self.layout.config.n_blocks
        y = self.linear(last, "project", "project", self.modulated(x, step, last, OUTPUT_LN_EPS))
        return self.linear(last, "decode2", "decode2", F.relu(self.linear(last, "decode1", "decode1", y)))

    def step(self, step: int, state: Tensor, actions: Tensor, cross: Mapping[int, CrossKeys]) -> Tensor:
        """Actions [64, padded action columns] after one Euler step; `cross` by block."""
        config = self.layout.config
        x = self.tokens(step, state, actions)
        for block in range(config.n_blocks):
            x = self.block(step, block, x, cross.get(block))
        first, end = config.action_rows
        moved = actions.clone()
        moved[first:end] += self.velocity(step, x)[first:end] / config.n_steps
        return moved

    def run(self, state: Tensor, noise: Tensor, cross: Mapping[int, CrossKeys]) -> Tensor:
        """All Euler steps. noise float32 [horizon, max_action_dim] -> actions of the same shape."""
        config = self.layout.config
        first, end = config.action_rows
        actions = torch.zeros(TOKENS_PADDED, config.action_dim_padded)
        actions[first:end, : config.max_action_dim] = noise
        for step in range(config.n_steps):
            actions = self.step(step, state, actions, cross)
        return actions[first:end, : config.max_action_dim]
