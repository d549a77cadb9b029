"""Dimensions of the published heads."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ttsp_ros.dit.config import CONFIGS, N15, N16, N17, config_of
from ttsp_ros.dit.weights import RandomWeights, expected_shapes, parameter_count


def test_parameters_of_the_dit() -> None:
    # The number in NVIDIA/Isaac-GR00T #358.
    assert N15.dit_parameters == 550_386_688
    for config in CONFIGS.values():
        assert parameter_count(config, "model.") == config.dit_parameters


def test_parameters_are_those_of_lerobots_modules() -> None:
    from ttsp_ros.tools.lerobot_head import _settings, load_lerobot

    lerobot = load_lerobot()
    for config in (N16, N17):
        with torch.device("meta"):
            head = lerobot.GR00TN17ActionHead(_settings(lerobot, config))
        assert {name: tuple(p.shape) for name, p in head.named_parameters()} == expected_shapes(config)


@pytest.mark.parametrize(
    ("config", "tokens", "rows", "padded"), [(N15, 49, (33, 49), 32), (N16, 51, (1, 51), 128), (N17, 41, (1, 41), 160)]
)
def test_token_rows(config, tokens, rows, padded) -> None:
    assert (config.n_tokens, config.action_rows, config.action_dim_padded) == (tokens, rows, padded)
    assert config.width == 1536
    assert config.timesteps == (0, 250, 500, 750)


def test_which_tokens_a_block_sees() -> None:
    assert {N15.keys_of(block) for block in N15.cross_blocks} == {"all"}
    assert [N17.keys_of(block) for block in (0, 2, 4, 6)] == ["text", "image", "text", "image"]
    with pytest.raises(ValueError, match="block 3 attends to the DiT's own tokens"):
        N17.keys_of(3)


def test_versions_are_found_by_any_spelling() -> None:
    assert config_of("N15") is config_of("n1.5") is N15
    with pytest.raises(ValueError, match=r"version: got 'n2', allowed are n1\.5, n1\.6, n1\.7"):
        config_of("n2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_blocks": 15}, "n_blocks: got 15, must be even"),
        ({"horizon": 0}, "horizon: got 0, allowed is 1 and more"),
        ({"horizon": 2000}, "position embedding has 1024 rows"),
        ({"vl_heads": 31}, "must be vl_dim = 2048"),
        ({"text_every": -1}, "text_every: got -1, allowed is 0 and more"),
    ],
)
def test_inconsistent_dimensions_are_refused(change, message) -> None:
    with pytest.raises(ValueError, match=message):
        replace(N15, **change)


def test_random_weights_depend_on_seed_and_name_alone() -> None:
    config = N15.tiny()
    name = "model.transformer_blocks.1.attn1.to_q.weight"
    first, again, other = (RandomWeights(config, seed).tensor(name) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, RandomWeights(config, 1).tensor(name.replace("to_q", "to_k")))
    row = RandomWeights(config, 1).row("action_encoder.W1.W", 3)
    assert torch.equal(row, RandomWeights(config, 1).tensor("action_encoder.W1.W")[3])
