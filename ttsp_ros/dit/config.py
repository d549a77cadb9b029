"""Every dimension of the GR00T action heads N1.5, N1.6 and N1.7.

Sources: NVIDIA/Isaac-GR00T `gr00t/model/action_head/` (N1.5), `gr00t/model/gr00t_n1d6/`, `gr00t/model/gr00t_n1d7/`
and `gr00t/model/modules/dit.py`; where a class default differs from the published checkpoint, the checkpoint's value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

TILE = 32

KeySet = Literal["all", "text", "image"]
EulerDtype = Literal["fp32_actions_bf16_velocity", "bf16"]


@dataclass(frozen=True)
class GrootConfig:
    """One action head: a diffusion transformer (DiT) between per-embodiment encoders and a decoder.

    Attributes:
        version: "n1.5", "n1.6" or "n1.7"; tiny variants keep it.
        n_blocks: DiT blocks; even ones attend to the vision-language (VL) tokens, odd ones to themselves.
        n_heads, head_dim: attention heads of the DiT; the width is their product.
        ff_dim: inner width of the DiT's feed-forward.
        out_dim: what the DiT gives out for each token, and the decoder's input.
        hidden: inner width of the state encoder and of the action decoder.
        vl_dim: width of a VL token, as the backbone gives it.
        vl_layers, vl_heads, vl_head_dim, vl_ff_dim: the self-attention over VL tokens; 0 layers: there is none.
        max_state_dim, max_action_dim: columns of the state and action vectors, unused ones included.
        horizon: rows of an action chunk.
        n_future_tokens: learned tokens between the state and the action tokens.
        text_every: 0 when every cross block attends to all VL tokens, without a mask. Otherwise cross block number c
            (block 2 c) attends to text tokens when c is a multiple of text_every, else to image tokens.
        n_embodiments: robots with weights of their own.
        max_seq_len: rows of the learned position embedding.
        n_steps: Euler steps of one call.
        n_timestep_buckets: the flow time 0..1 is scaled by this and cut to an integer.
        euler_dtype: how the published policy holds actions and velocity between steps.
    """

    version: Literal["n1.5", "n1.6", "n1.7"]
    n_blocks: int
    max_state_dim: int
    max_action_dim: int
    horizon: int
    n_future_tokens: int
    vl_layers: int
    text_every: int
    euler_dtype: EulerDtype
    n_heads: int = 32
    head_dim: int = 48
    ff_dim: int = 6144
    out_dim: int = 1024
    hidden: int = 1024
    vl_dim: int = 2048
    vl_heads: int = 32
    vl_head_dim: int = 64
    vl_ff_dim: int = 8192
    n_embodiments: int = 32
    max_seq_len: int = 1024
    n_steps: int = 4
    n_timestep_buckets: int = 1000

    def __post_init__(self) -> None:
        not_negative = ("n_future_tokens", "vl_layers", "text_every")
        for name, value in vars(self).items():
            if isinstance(value, int) and value < (0 if name in not_negative else 1):
                raise ValueError(f"{name}: got {value}, allowed is {0 if name in not_negative else 1} and more")
        if self.n_blocks % 2:
            raise ValueError(f"n_blocks: got {self.n_blocks}, must be even: cross and self blocks alternate")
        if self.vl_layers and self.vl_heads * self.vl_head_dim != self.vl_dim:
            raise ValueError(
                f"vl_heads x vl_head_dim: got {self.vl_heads} x {self.vl_head_dim}, must be vl_dim = {self.vl_dim}"
            )
        if self.width % 2:
            raise ValueError(f"n_heads x head_dim: got {self.width}, must be even (half sines, half cosines)")
        if self.horizon > self.max_seq_len:
            raise ValueError(f"horizon: got {self.horizon}, position embedding has {self.max_seq_len} rows")
        if self.n_steps > self.n_timestep_buckets:
            raise ValueError(f"n_steps: got {self.n_steps}, allowed is up to {self.n_timestep_buckets}")

    @property
    def width(self) -> int:
        """Width of a DiT token."""
        return self.n_heads * self.head_dim

    @property
    def n_tokens(self) -> int:
        """Tokens of the DiT: state, future tokens, actions (M in the derivations)."""
        return 1 + self.n_future_tokens + self.horizon

    @property
    def action_rows(self) -> tuple[int, int]:
        """First DiT row of the actions, and one past the last."""
        return self.n_tokens - self.horizon, self.n_tokens

    @property
    def action_dim_padded(self) -> int:
        """`max_action_dim` rounded up to a whole tile."""
        return -(-self.max_action_dim // TILE) * TILE

    @property
    def timesteps(self) -> tuple[int, ...]:
        """The discrete time of each Euler step: (0, 250, 500, 750) for four steps and 1000 buckets."""
        return tuple(int(step / self.n_steps * self.n_timestep_buckets) for step in range(self.n_steps))

    @property
    def cross_blocks(self) -> range:
        """The blocks that attend to VL tokens."""
        return range(0, self.n_blocks, 2)

    def is_cross(self, block: int) -> bool:
        """Whether this block attends to VL tokens (else to the DiT's own)."""
        return block % 2 == 0

    def keys_of(self, block: int) -> KeySet:
        """Which VL tokens a cross block attends to."""
        if not self.is_cross(block):
            raise ValueError(f"block {block} attends to the DiT's own tokens; cross blocks are even")
        if self.text_every == 0:
            return "all"
        return "text" if (block // 2) % self.text_every == 0 else "image"

    @property
    def key_sets(self) -> tuple[KeySet, ...]:
        """The distinct key sets that the blocks use, in order of first use."""
        return tuple(dict.fromkeys(self.keys_of(block) for block in self.cross_blocks))

    @property
    def dit_parameters(self) -> int:
        """Parameters of the DiT alone (timestep embedding, blocks, output head), without encoders and decoder."""
        width, vl, ff = self.width, self.vl_dim, self.ff_dim
        timestep = (256 * width + width) + (width * width + width)
        adaln = width * 2 * width + 2 * width
        query_and_out = 2 * (width * width + width)
        feed_forward = (width * ff + ff) + (ff * width + width)
        block = adaln + query_and_out + feed_forward
        keys_cross, keys_self = 2 * (vl * width + width), 2 * (width * width + width)
        output = adaln + width * self.out_dim + self.out_dim
        return timestep + self.n_blocks * block + self.n_blocks // 2 * (keys_cross + keys_self) + output

    def tiny(self) -> GrootConfig:
        """The same structure in miniature, for tests and demos: under a million parameters, same dtypes and masks.

        State, action and horizon sizes, and so the sizes a user sees, are kept.
        """
        return replace(
            self,
            n_blocks=4,
            n_heads=2,
            head_dim=16,
            ff_dim=64,
            out_dim=48,
            hidden=40,
            vl_dim=32,
            vl_layers=min(self.vl_layers, 2),
            vl_heads=4,
            vl_head_dim=8,
            vl_ff_dim=64,
            n_embodiments=32,
            max_seq_len=max(64, self.horizon),
        )


N15 = GrootConfig(
    version="n1.5",
    n_blocks=16,
    max_state_dim=64,
    max_action_dim=32,
    horizon=16,
    n_future_tokens=32,
    vl_layers=4,
    text_every=0,
    euler_dtype="fp32_actions_bf16_velocity",
)
N16 = GrootConfig(
    version="n1.6",
    n_blocks=32,
    max_state_dim=128,
    max_action_dim=128,
    horizon=50,
    n_future_tokens=0,
    vl_layers=0,
    text_every=2,
    euler_dtype="bf16",
)
N17 = GrootConfig(
    version="n1.7",
    n_blocks=32,
    max_state_dim=132,
    max_action_dim=132,
    horizon=40,
    n_future_tokens=0,
    vl_layers=4,
    text_every=2,
    euler_dtype="bf16",
)
CONFIGS: dict[str, GrootConfig] = {config.version: config for config in (N15, N16, N17)}


def config_of(version: str) -> GrootConfig:
    """The published configuration of a version: "n1.5", "n1.6" or "n1.7" ("N15" and the like are understood)."""
    digits = "".join(character for character in version if character.isdigit())
    by_digits = {"".join(c for c in name if c.isdigit()): config for name, config in CONFIGS.items()}
    if digits not in by_digits:
        raise ValueError(f"version: got {version!r}, allowed are {', '.join(CONFIGS)}")
    return by_digits[digits]
