"""Small layouts for the tests of the megakernel's plan, which keep every structure of the published sizes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ttsp_ros.dit.config import CONFIGS, GrootConfig
from ttsp_ros.dit.megakernel.arena import KEY_LENGTHS, READER_MODES, STREAM_DTYPES, TILE_ORDERS, ArenaLayout

VERSIONS = tuple(CONFIGS)


def miniature(
    version: str, *, n_heads: int = 4, head_dim: int = 48, ff_dim: int = 768, n_blocks: int = 4
) -> GrootConfig:
    """A published head at an eighth of its width: K-blocks of two rows, twelve compute cores."""
    return replace(
        CONFIGS[version],
        n_blocks=n_blocks,
        n_heads=n_heads,
        head_dim=head_dim,
        ff_dim=ff_dim,
        out_dim=100,
        hidden=128,
        vl_dim=64,
        vl_layers=0,
        max_seq_len=64,
        n_embodiments=2,
    )


def full_size(version: str, n_blocks: int = 2) -> GrootConfig:
    """The first cross and the first self block of a published head; one embodiment, no VL layers, to spare memory."""
    return replace(CONFIGS[version], n_blocks=n_blocks, n_embodiments=1, vl_layers=0)


def published(version: str, **options: Any) -> ArenaLayout:
    return ArenaLayout(CONFIGS[version], KEY_LENGTHS[version], **options)


@st.composite
def layouts(draw: st.DrawFn) -> ArenaLayout:
    """Layouts of small heads of every proportion that the plan allows."""
    version = draw(st.sampled_from(VERSIONS))
    block_rows = draw(st.sampled_from([1, 2, 4]))
    head_dim = draw(st.sampled_from([48, 64]))
    n_heads = 2 * block_rows * draw(st.integers(1, 2))
    if head_dim == 48 and n_heads * 48 // 32 % 2:
        n_heads *= 2
    compute = 2 * n_heads * head_dim // 32
    unit = 4 * block_rows
    ff_tiles = unit * draw(st.integers(1, 2 * compute // unit))
    config = miniature(
        version, n_heads=n_heads, head_dim=head_dim, ff_dim=32 * ff_tiles, n_blocks=draw(st.sampled_from([2, 4]))
    )
    config = replace(config, max_action_dim=draw(st.integers(1, 70)), out_dim=draw(st.integers(1, 130)))
    return ArenaLayout(
        config,
        KEY_LENGTHS[version],
        dtype_stream=draw(st.sampled_from(STREAM_DTYPES)),
        reader_mode=draw(st.sampled_from(READER_MODES)),
        tile_order=draw(st.sampled_from(TILE_ORDERS)),
        fold_attn_scale=draw(st.booleans()),
        block_rows=block_rows,
        n_banks=draw(st.integers(1, 8)),
    )
