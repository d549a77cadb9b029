"""The GR00T action head in torch: vision-language tokens, robot state and noise in, a chunk of actions out.

Source: NVIDIA/Isaac-GR00T (N1.5 `flow_matching_action_head.py`, N1.6/N1.7 `gr00t_n1d6.py`, `gr00t_n1d7.py`, `dit.py`).
The published head recomputes much that stays the same between its four Euler steps. Here

- keys and values of the cross blocks are computed once a call, for the tokens that a block can see only: where text and
  image alternate, no block projects, masks or attends to the other kind;
- AdaLN vectors and the time's share of the action encoder are tables (`tables.py`), and AdaLN is the affine part of a
  fused LayerNorm;
- one embodiment's weights are picked at construction; Q, K and V are one product; bias and GELU run inside products;
- the last block and the output head run on action rows only.

One robot, one call: there is no batch axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ttsp_ros.dit import tables
from ttsp_ros.dit.config import GrootConfig, KeySet
from ttsp_ros.dit.linear import Activation, Linear
from ttsp_ros.dit.weights import Weights

LN_EPS = 1e-5
OUTPUT_LN_EPS = 1e-6
# Layout hint for layers that run over VL tokens: their count differs from robot to robot.
VL_ROWS = 256
AMX_ROWS = 16


@dataclass(frozen=True)
class Context:
    """What the DiT needs of one observation's vision-language tokens: keys and values of its cross blocks.

    Attributes:
        keys, values: one tensor a cross block, [1, heads, tokens, head_dim].
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]


@dataclass(frozen=True)
class Inpainting:
    """Real-time chunking: the first rows of a chunk start from the running one instead of from noise.

    Source: `rtc_overlap_steps`, `rtc_frozen_steps` and `rtc_ramp_rate` of NVIDIA/Isaac-GR00T N1.7.

    Attributes:
        actions: float32 [overlap, max_action_dim], the running chunk's normalised actions at the same times.
        frozen: how many of them must come out unchanged, since they run while this chunk is computed.
        ramp_rate: how fast the rows after them are given free.
    """

    actions: Tensor
    frozen: int
    ramp_rate: float = 6.0

    def __post_init__(self) -> None:
        if not 0 <= self.frozen <= len(self.actions):
            raise ValueError(f"frozen: got {self.frozen}, allowed is 0..{len(self.actions)} (the overlap)")

    def strength(self, horizon: int) -> Tensor:
        """float32 [horizon, 1], how much of its velocity a row takes: 0 frozen, rising to 1 after the overlap."""
        overlap = len(self.actions)
        free = overlap - self.frozen
        ramp = 1 - torch.exp(-self.ramp_rate * torch.linspace(0.0, 1.0, free + 2))
        strength = torch.ones(horizon)
        strength[: self.frozen] = 0.0
        strength[self.frozen : overlap] = (ramp / ramp[-1].clamp_min(1e-8))[1:-1]
        return strength[:, None]


class ActionHead:
    """One embodiment's action head, ready to run.

    Args:
        config: dimensions.
        weights: where the tensors come from; each is read once and not kept.
        embodiment: which robot's encoder and decoder to use, 0..config.n_embodiments - 1.
        dtype: of weights and activations: float32, or bfloat16 as the published policy runs. Actions between steps are
            float32 with float32; with bfloat16 they are held as `config.euler_dtype` says.
        device: a torch device.
        compile_step: run each Euler step through torch.compile, which costs a minute or more at the first call.
    """

    def __init__(
        self,
        config: GrootConfig,
        weights: Weights,
        embodiment: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device = "cpu",
        compile_step: bool = False,
    ) -> None:
        if not 0 <= embodiment < config.n_embodiments:
            raise ValueError(f"embodiment: got {embodiment}, allowed is 0..{config.n_embodiments - 1}")
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"dtype: got {dtype}, allowed are torch.float32 and torch.bfloat16")
        self.config = config
        self.embodiment = embodiment
        self.dtype = dtype
        self.device = torch.device(device)
        self.action_dtype = torch.float32 if config.euler_dtype == "fp32_actions_bf16_velocity" else dtype
        with torch.inference_mode():
            self._layers = _Builder(config, weights, embodiment, dtype, self.device, pack=not compile_step).layers()
        self._velocity = torch.compile(self._step) if compile_step else self._step

    @torch.inference_mode()
    def encode_tokens(self, features: Tensor, is_image: Tensor | None = None, valid: Tensor | None = None) -> Context:
        """Keys and values of every cross block for one observation's vision-language tokens.

        Args:
            features: [tokens, vl_dim], the backbone's output.
            is_image: bool [tokens]; needed by versions whose blocks alternate between text and image.
            valid: bool [tokens], False for padding; by default all are valid. As in the published head, the VL
                self-attention and blocks that see all tokens have no mask, so give tokens without padding there.

        Raises:
            ValueError: wrong shape, missing mask, or no token of a kind that some block attends to.
        """
        config = self.config
        if features.ndim != 2 or features.shape[1] != config.vl_dim or not len(features):
            raise ValueError(f"features: got shape {tuple(features.shape)}, expected [tokens >= 1, {config.vl_dim}]")
        rows = self._key_rows(len(features), is_image, valid)
        layers = self._layers
        x = layers.vlln(features.to(self.device, self.dtype))
        for layer in layers.vl_layers:
            x = layer(x, config.vl_heads)
        seen = {key_set: x if selected is None else x[selected] for key_set, selected in rows.items()}
        keys, values = [], []
        for block in config.cross_blocks:
            project = layers.blocks[block].keys_values
            assert project is not None
            key, value = _heads(project(seen[config.keys_of(block)]), 2, config.n_heads)
            # Read again at each Euler step: attention is a third faster on contiguous keys and values.
            keys.append(key.contiguous())
            values.append(value.contiguous())
        return Context(tuple(keys), tuple(values))

    def _key_rows(self, count: int, is_image: Tensor | None, valid: Tensor | None) -> dict[KeySet, Tensor | None]:
        """Which tokens belong to each key set that the blocks use; None: all of them."""
        if self.config.key_sets == ("all",):
            return {"all": None}
        if is_image is None:
            raise ValueError(f"is_image: GR00T {self.config.version} needs to know which tokens are image tokens")
        for name, mask in (("is_image", is_image), ("valid", valid)):
            if mask is not None and (mask.dtype != torch.bool or mask.shape != (count,)):
                raise ValueError(f"{name}: got {mask.dtype} {tuple(mask.shape)}, expected torch.bool ({count},)")
        valid = torch.ones(count, dtype=torch.bool) if valid is None else valid.cpu()
        image = is_image.cpu()
        rows: dict[KeySet, Tensor | None] = {
            "text": torch.where(valid & ~image)[0],
            "image": torch.where(valid & image)[0],
        }
        for key_set in self.config.key_sets:
            selected = rows[key_set]
            if selected is not None and not len(selected):
                raise ValueError(f"is_image: no valid {key_set} token among {count}; some blocks attend to these alone")
        return {key_set: None if selected is None else selected.to(self.device) for key_set, selected in rows.items()}

    def noise(self, seed: int | None = None) -> Tensor:
        """Standard normal float32 [horizon, max_action_dim], unused columns included: they take part as in training."""
        generator = torch.Generator()
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        return torch.randn(self.config.horizon, self.config.max_action_dim, generator=generator)

    @torch.inference_mode()
    def sample(self, context: Context, state: Tensor, noise: Tensor, inpainting: Inpainting | None = None) -> Tensor:
        """A chunk of normalised actions, float32 [horizon, max_action_dim].

        Args:
            context: what `encode_tokens` gave.
            state: float [max_state_dim], normalised and zero-padded.
            noise: float [horizon, max_action_dim], standard normal; the chunk is a function of it.
            inpainting: the running chunk's actions that this one has to continue.

        Raises:
            ValueError: wrong shapes.
        """
        *_, actions = self.trajectory(context, state, noise, inpainting)
        return actions.float().cpu()

    @torch.inference_mode()
    def trajectory(
        self, context: Context, state: Tensor, noise: Tensor, inpainting: Inpainting | None = None
    ) -> list[Tensor]:
        """As `sample`, but the actions before the first and after each Euler step, in the head's own dtype."""
        config = self.config
        self._check(state, noise, inpainting)
        actions = noise.to(self.device, self.action_dtype).clone()
        strength = None
        if inpainting is not None:
            actions[: len(inpainting.actions)] = inpainting.actions.to(self.device, self.action_dtype)
            strength = inpainting.strength(config.horizon).to(self.device, self.action_dtype)
        layers = self._layers
        state_token = layers.state_out(layers.state_in(state.to(self.device, self.dtype)[None]))
        prefix = state_token if layers.future is None else torch.cat([state_token, layers.future])
        history = [actions]
        for step in range(config.n_steps):
            velocity = self._velocity(step, actions.to(self.dtype), prefix, context).to(self.action_dtype)
            update = velocity / config.n_steps
            actions = actions + (update if strength is None else update * strength)
            history.append(actions)
        return history

    def _check(self, state: Tensor, noise: Tensor, inpainting: Inpainting | None) -> None:
        config = self.config
        chunk = (config.horizon, config.max_action_dim)
        for name, tensor, shape in (("state", state, (config.max_state_dim,)), ("noise", noise, chunk)):
            if tuple(tensor.shape) != shape:
                raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, GR00T {config.version} expects {shape}")
        if inpainting is not None and (
            inpainting.actions.ndim != 2
            or inpainting.actions.shape[1] != chunk[1]
            or len(inpainting.actions) > config.horizon
        ):
            got = tuple(inpainting.actions.shape)
            raise ValueError(f"inpainting: got shape {got}, expected [up to {chunk[0]}, {chunk[1]}]")

    def _step(self, step: int, actions: Tensor, prefix: Tensor, context: Context) -> Tensor:
        """The velocity at one Euler time: [horizon, max_action_dim] -> [horizon, max_action_dim]."""
        layers, config = self._layers, self.config
        encoded = layers.action_time(layers.action_in(actions), layers.time_bias[step])
        tokens = config.n_tokens
        x = torch.cat([prefix, layers.action_out(encoded) + layers.position_bias, layers.row_padding])
        for index, block in enumerate(layers.blocks):
            if config.is_cross(index):
                x = block.cross(x, tokens, step, context.keys[index // 2], context.values[index // 2])
            else:
                # Only action rows are read after the last block.
                first = config.action_rows[0] if index == config.n_blocks - 1 else 0
                x = block.self_attention(x, tokens, step, config.n_heads, first)
        y = layers.output(layers.output_norms[step](x))
        return layers.decode_out(layers.decode_in(y))


def _heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """[rows, parts x heads x dim] -> `parts` tensors [1, heads, rows, dim], views."""
    rows, columns = x.shape
    split = x.view(rows, parts, heads, columns // (parts * heads)).permute(1, 2, 0, 3)
    return tuple(part[None] for part in split)


def _attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention, scaled by 1/sqrt(dim): [1, heads, rows, dim] -> [rows, heads x dim]."""
    attended = F.scaled_dot_product_attention(query, key, value)
    return attended[0].transpose(0, 1).flatten(1)


@dataclass(frozen=True)
class _Norm:
    """LayerNorm with its affine part; AdaLN has one of these for each Euler step."""

    weight: Tensor | None
    bias: Tensor | None
    width: int
    eps: float = LN_EPS

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self.width,), self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class _Block:
    """A DiT block. `queries` gives Q alone in a cross block; [Q, K, V] in a self block, which has no `keys_values`."""

    norms: tuple[_Norm, ...]
    queries: Linear
    keys_values: Linear | None
    out: Linear
    ff_norm: _Norm
    expand: Linear
    contract: Linear

    def cross(self, x: Tensor, tokens: int, step: int, key: Tensor, value: Tensor) -> Tensor:
        """[rows, width] -> [rows, width]: the first `tokens` rows attend to given keys and values."""
        (query,) = _heads(self.queries(self.norms[step](x))[:tokens], 1, key.shape[1])
        return self._after_attention(x, _attend(query, key, value))

    def self_attention(self, x: Tensor, tokens: int, step: int, heads: int, first: int) -> Tensor:
        """[rows, width] -> [rows, width]: the first `tokens` rows attend to each other.

        If `first` is not 0, only rows first..tokens are wanted: [rows, width] -> [tokens - first, width].
        """
        query, key, value = _heads(self.queries(self.norms[step](x))[:tokens], 3, heads)
        if first:
            x, query = x[first:tokens], query[:, :, first:]
        return self._after_attention(x, _attend(query, key, value))

    def _after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        padding = len(x) - len(attended)
        x = x + self.out(F.pad(attended, (0, 0, 0, padding)) if padding else attended)
        return self._feed_forward(x)

    def _feed_forward(self, x: Tensor) -> Tensor:
        return x + self.contract(self.expand(self.ff_norm(x)))


@dataclass(frozen=True)
class _VlLayer:
    """A self-attention layer over VL tokens, which all see each other."""

    attention_norm: _Norm
    queries_keys_values: Linear
    out: Linear
    ff_norm: _Norm
    expand: Linear
    contract: Linear

    def __call__(self, x: Tensor, heads: int) -> Tensor:
        query, key, value = _heads(self.queries_keys_values(self.attention_norm(x)), 3, heads)
        x = x + self.out(_attend(query, key, value))
        return x + self.contract(self.expand(self.ff_norm(x)))


@dataclass(frozen=True)
class _Layers:
    """Every layer of one embodiment's head, in the order of use."""

    vlln: _Norm
    vl_layers: tuple[_VlLayer, ...]
    state_in: Linear
    state_out: Linear
    future: Tensor | None
    action_in: Linear
    action_time: Linear
    time_bias: Tensor
    action_out: Linear
    position_bias: Tensor
    row_padding: Tensor
    blocks: tuple[_Block, ...]
    output_norms: tuple[_Norm, ...]
    output: Linear
    decode_in: Linear
    decode_out: Linear


@dataclass(frozen=True)
class _Builder:
    """Turns checkpoint tensors into layers."""

    config: GrootConfig
    weights: Weights
    embodiment: int
    dtype: torch.dtype
    device: torch.device
    pack: bool

    def layers(self) -> _Layers:
        config, weights, rows = self.config, self.weights, self.config.horizon
        embedding = tables.timestep_embedding(config, weights)
        time_weight = weights.row("action_encoder.W2.W", self.embodiment)[: config.width]
        return _Layers(
            vlln=self._affine_norm("vlln"),
            vl_layers=tuple(self._vl_layer(index) for index in range(config.vl_layers)),
            state_in=self._embodiment_linear("state_encoder.layer1", 1, "relu"),
            state_out=self._embodiment_linear("state_encoder.layer2", 1),
            future=self._cast(weights.tensor("future_tokens.weight")) if config.n_future_tokens else None,
            action_in=self._embodiment_linear("action_encoder.W1", rows),
            action_time=self._linear(time_weight.T, None, rows, "silu"),
            time_bias=self._cast(tables.action_time_bias(config, weights, self.embodiment)),
            action_out=self._linear(weights.row("action_encoder.W3.W", self.embodiment).T, None, rows),
            position_bias=self._cast(tables.action_position_bias(config, weights, self.embodiment)),
            row_padding=torch.zeros(self._rows() - config.n_tokens, config.width, dtype=self.dtype, device=self.device),
            blocks=tuple(self._block(index, embedding) for index in range(config.n_blocks)),
            output_norms=self._modulated_norms(*tables.output_modulation(weights, embedding), OUTPUT_LN_EPS),
            output=self._named_linear(["model.proj_out_2"], rows),
            decode_in=self._embodiment_linear("action_decoder.layer1", rows, "relu"),
            decode_out=self._embodiment_linear("action_decoder.layer2", rows),
        )

    def _rows(self) -> int:
        """Rows of the DiT: its tokens, and zeros up to whole tiles of the CPU's bfloat16 matrix unit.

        A product of 49 rows takes a fifth longer than one of 64: its last row is a tile of its own.
        """
        tokens = self.config.n_tokens
        tiled = self.pack and self.dtype == torch.bfloat16 and self.device.type == "cpu"
        return -(-tokens // AMX_ROWS) * AMX_ROWS if tiled else tokens

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device, self.dtype).contiguous()

    def _linear(self, weight: Tensor, bias: Tensor | None, rows: int, activation: Activation = "none") -> Linear:
        bias = None if bias is None else self._cast(bias)
        return Linear(self._cast(weight), bias, rows=rows, activation=activation, pack=self.pack)

    def _named_linear(self, names: list[str], rows: int, activation: Activation = "none") -> Linear:
        """Layers with the same input side by side as one."""
        weight = torch.cat([self._cast(self.weights.tensor(f"{name}.weight")) for name in names])
        bias = torch.cat([self._cast(self.weights.tensor(f"{name}.bias")) for name in names])
        return self._linear(weight, bias, rows, activation)

    def _embodiment_linear(self, name: str, rows: int, activation: Activation = "none") -> Linear:
        weight = self.weights.row(f"{name}.W", self.embodiment).T
        return self._linear(weight, self.weights.row(f"{name}.b", self.embodiment), rows, activation)

    def _affine_norm(self, name: str) -> _Norm:
        weight, bias = (self._cast(self.weights.tensor(f"{name}.{part}")) for part in ("weight", "bias"))
        return _Norm(weight, bias, len(weight))

    def _modulated_norms(self, scale: Tensor, shift: Tensor, eps: float = LN_EPS) -> tuple[_Norm, ...]:
        """LN(x) (1 + scale) + shift for each Euler step."""
        pairs = zip(self._cast(1 + scale), self._cast(shift), strict=True)
        return tuple(_Norm(weight, bias, self.config.width, eps) for weight, bias in pairs)

    def _block(self, index: int, embedding: Tensor) -> _Block:
        config, name = self.config, f"model.transformer_blocks.{index}"
        rows, last = self._rows(), index == config.n_blocks - 1
        query, key, value = (f"{name}.attn1.to_{part}" for part in "qkv")
        cross = config.is_cross(index)
        later_rows = config.horizon if last else rows
        return _Block(
            norms=self._modulated_norms(*tables.block_modulation(self.weights, index, embedding)),
            queries=self._named_linear([query] if cross else [query, key, value], rows),
            keys_values=self._named_linear([key, value], VL_ROWS) if cross else None,
            out=self._named_linear([f"{name}.attn1.to_out.0"], later_rows),
            ff_norm=_Norm(None, None, config.width),
            expand=self._named_linear([f"{name}.ff.net.0.proj"], later_rows, "gelu"),
            contract=self._named_linear([f"{name}.ff.net.2"], later_rows),
        )

    def _vl_layer(self, index: int) -> _VlLayer:
        name = f"vl_self_attention.transformer_blocks.{index}"
        return _VlLayer(
            attention_norm=self._affine_norm(f"{name}.norm1"),
            queries_keys_values=self._named_linear([f"{name}.attn1.to_{part}" for part in "qkv"], VL_ROWS),
            out=self._named_linear([f"{name}.attn1.to_out.0"], VL_ROWS),
            ff_norm=self._affine_norm(f"{name}.norm3"),
            expand=self._named_linear([f"{name}.ff.net.0.proj"], VL_ROWS, "gelu"),
            contract=self._named_linear([f"{name}.ff.net.2"], VL_ROWS),
        )
