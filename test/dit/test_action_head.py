"""The action head against lerobot's, an independent implementation, with the same weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from ttsp_ros.dit.config import N15, N16, N17, GrootConfig
from ttsp_ros.dit.linear import Linear
from ttsp_ros.dit.model import ActionHead, Inpainting
from ttsp_ros.dit.weights import RandomWeights
from ttsp_ros.tools.lerobot_head import LerobotHead

VERSIONS = {"n1.5": N15, "n1.6": N16, "n1.7": N17}
EMBODIMENT = 5
TOKENS = 40


def small(version: str) -> GrootConfig:
    """A tiny head that lerobot can hold as well: it ties some widths to others."""
    config = VERSIONS[version].tiny()
    return replace(config, out_dim=config.hidden, ff_dim=4 * config.width, vl_ff_dim=4 * config.vl_dim)


def full_width(version: str) -> GrootConfig:
    """The published widths and heads, cut in depth, and in embodiments to spare memory."""
    config = VERSIONS[version]
    return replace(config, n_blocks=4 if config.text_every else 2, vl_layers=min(1, config.vl_layers), n_embodiments=2)


def observation(config: GrootConfig) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Features, is_image, state and noise."""
    generator = torch.Generator().manual_seed(11)
    features = torch.randn(TOKENS, config.vl_dim, generator=generator)
    is_image = torch.rand(TOKENS, generator=generator) < 0.7
    state = torch.randn(config.max_state_dim, generator=generator)
    return features, is_image, state, torch.randn(config.horizon, config.max_action_dim, generator=generator)


@pytest.fixture(scope="module", params=VERSIONS)
def pair(request: pytest.FixtureRequest) -> tuple[ActionHead, LerobotHead]:
    config = small(request.param)
    weights = RandomWeights(config, seed=3, spread=3.0)
    return ActionHead(config, weights, EMBODIMENT), LerobotHead(config, weights)


def test_actions_are_lerobots(pair: tuple[ActionHead, LerobotHead]) -> None:
    ours, theirs = pair
    features, is_image, state, noise = observation(ours.config)
    actions = ours.sample(ours.encode_tokens(features, is_image), state, noise)
    expected = theirs.sample(features, is_image, state, noise, EMBODIMENT)
    assert (expected - noise).abs().mean() > 0.1, "the head does nothing, so the comparison says nothing"
    torch.testing.assert_close(actions, expected, rtol=0, atol=1e-5)


def test_velocity_at_each_step_is_lerobots(pair: tuple[ActionHead, LerobotHead]) -> None:
    ours, theirs = pair
    features, is_image, state, noise = observation(ours.config)
    mine = ours.trajectory(ours.encode_tokens(features, is_image), state, noise)
    for step in range(ours.config.n_steps):
        expected = their_velocity(theirs, features, is_image, state, mine[step], step)
        velocity = (mine[step + 1] - mine[step]) * ours.config.n_steps
        torch.testing.assert_close(velocity, expected, rtol=0, atol=2e-5)


def their_velocity(
    theirs: LerobotHead,
    features: Tensor,
    is_image: Tensor,
    state: Tensor,
    actions: Tensor,
    step: int,
) -> Tensor:
    """lerobot's velocity [horizon, max_action_dim] for these actions at one Euler time."""
    head, config = theirs.head, theirs.config
    with torch.no_grad():
        embodiment, time = torch.tensor([EMBODIMENT]), torch.tensor([config.timesteps[step]])
        vl = head.vl_self_attention(head.vlln(features[None]))
        parts = [head.state_encoder(state[None, None], embodiment)]
        if config.n_future_tokens:
            parts.append(head.future_tokens.weight[None])
        encoded = head.action_encoder(actions[None], time, embodiment)
        parts.append(encoded + head.position_embedding.weight[: config.horizon])
        masks = (
            {"image_mask": is_image[None], "backbone_attention_mask": torch.ones_like(is_image)[None]}
            if config.text_every
            else {}
        )
        output = head.model(hidden_states=torch.cat(parts, 1), encoder_hidden_states=vl, timestep=time, **masks)
        return head.action_decoder(output, embodiment)[0, -config.horizon :]


@pytest.mark.parametrize("version", ["n1.5", "n1.7"])
def test_published_width(version: str) -> None:
    config = full_width(version)
    weights = RandomWeights(config, seed=1)
    features, is_image, state, noise = observation(config)
    head = ActionHead(config, weights, 1)
    actions = head.sample(head.encode_tokens(features, is_image), state, noise)
    del head
    expected = LerobotHead(config, weights).sample(features, is_image, state, noise, 1)
    torch.testing.assert_close(actions, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("frozen", "overlap"), [(0, 0), (3, 3), (2, 9), (0, 5)])
def test_real_time_chunking_is_lerobots(frozen: int, overlap: int) -> None:
    config = small("n1.7")
    weights = RandomWeights(config, seed=3, spread=3.0)
    ours, theirs = ActionHead(config, weights, EMBODIMENT), LerobotHead(config, weights)
    features, is_image, state, noise = observation(config)
    previous = torch.randn(20, config.max_action_dim, generator=torch.Generator().manual_seed(2))
    # lerobot takes the last rows of the previous chunk, `previous[-overlap:]`; with none of them it is not asked.
    mine = ours.sample(
        ours.encode_tokens(features, is_image),
        state,
        noise,
        Inpainting(previous[20 - overlap :], frozen, ramp_rate=6.0),
    )
    options = {"previous": previous, "overlap": overlap, "frozen": frozen, "ramp_rate": 6.0}
    expected = theirs.sample(features, is_image, state, noise, EMBODIMENT, **options)
    torch.testing.assert_close(mine, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(mine[:frozen], previous[20 - overlap :][:frozen], rtol=0, atol=0)


@pytest.mark.parametrize("version", VERSIONS)
def test_bfloat16_is_as_close_to_float32_as_lerobots(version: str) -> None:
    config = small(version)
    weights = RandomWeights(config, seed=3, spread=2.0)
    features, is_image, state, noise = observation(config)
    exact = LerobotHead(config, weights).sample(features, is_image, state, noise, EMBODIMENT)
    head = ActionHead(config, weights, EMBODIMENT, dtype=torch.bfloat16)
    ours = head.sample(head.encode_tokens(features, is_image), state, noise)
    half = torch.bfloat16
    start = noise if config.euler_dtype == "fp32_actions_bf16_velocity" else noise.to(half)
    theirs = LerobotHead(config, weights, half).sample(features.to(half), is_image, state.to(half), start, EMBODIMENT)
    error, allowed = (ours - exact).abs().mean(), (theirs.float() - exact).abs().mean()
    assert error <= 1.2 * allowed
    assert ours.dtype == torch.float32


def test_padding_of_alternating_blocks_is_not_seen() -> None:
    config = replace(small("n1.6"))
    head = ActionHead(config, RandomWeights(config, seed=3, spread=3.0), EMBODIMENT)
    features, is_image, state, noise = observation(config)
    valid = torch.arange(TOKENS) < 30
    padded = head.sample(head.encode_tokens(features, is_image, valid), state, noise)
    cut = head.sample(head.encode_tokens(features[:30], is_image[:30]), state, noise)
    torch.testing.assert_close(padded, cut, rtol=0, atol=1e-6)


def test_text_and_image_blocks_see_their_own_tokens_only() -> None:
    config = replace(small("n1.6"))
    head = ActionHead(config, RandomWeights(config, seed=3, spread=3.0), EMBODIMENT)
    features, is_image, _, _ = observation(config)
    context = head.encode_tokens(features, is_image)
    counts = {"text": int((~is_image).sum()), "image": int(is_image.sum())}
    assert [keys.shape[2] for keys in context.keys] == [counts[config.keys_of(block)] for block in config.cross_blocks]


def test_same_noise_same_chunk_and_embodiments_differ() -> None:
    config = small("n1.5")
    weights = RandomWeights(config, seed=3, spread=3.0)
    features, _, state, _ = observation(config)
    heads = [ActionHead(config, weights, embodiment) for embodiment in (1, 1, 2)]
    chunks = [head.sample(head.encode_tokens(features), state, head.noise(9)) for head in heads]
    assert torch.equal(chunks[0], chunks[1])
    assert not torch.allclose(chunks[0], chunks[2], atol=1e-2)
    assert not torch.equal(heads[0].noise(9), heads[0].noise(10))
    assert not torch.equal(heads[0].noise(), heads[0].noise())


def test_compiled_step_gives_the_same() -> None:
    config = replace(small("n1.7"), n_blocks=2, vl_layers=0)
    weights = RandomWeights(config, seed=3, spread=3.0)
    features, is_image, state, noise = observation(config)
    plain, compiled = (ActionHead(config, weights, 0, compile_step=compile_step) for compile_step in (False, True))
    # Without a C++ compiler torch.compile can't run; the graph that it would compile is still traced and executed.
    compiled._velocity = torch.compile(compiled._step, backend="eager")
    chunks = [head.sample(head.encode_tokens(features, is_image), state, noise) for head in (plain, compiled)]
    torch.testing.assert_close(chunks[0], chunks[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("activation", ["none", "gelu", "relu", "silu"])
def test_packed_linear_is_torchs(dtype: torch.dtype, activation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    weight, bias, x, other = (
        torch.randn(*shape, generator=generator).to(dtype) for shape in ((70, 33), (70,), (9, 33), (70,))
    )
    packed, plain = (Linear(weight, bias, rows=5, activation=activation, pack=pack) for pack in (True, False))
    tolerance = 1e-5 if dtype == torch.float32 else 0.07
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), plain(x), rtol=1e-2 if dtype == torch.bfloat16 else 0, atol=tolerance)
        torch.testing.assert_close(packed(x, other), plain(x, other), rtol=1e-2, atol=tolerance)
        assert not torch.allclose(packed(x), packed(x, other))


def test_wrong_inputs_are_refused_with_what_is_expected() -> None:
    config = small("n1.7")
    head = ActionHead(config, RandomWeights(config, seed=3), 0)
    features, is_image, state, noise = observation(config)
    context = head.encode_tokens(features, is_image)
    with pytest.raises(ValueError, match=r"features: got shape \(40, 31\), expected \[tokens >= 1, 32\]"):
        head.encode_tokens(features[:, :-1], is_image)
    with pytest.raises(ValueError, match=r"is_image: GR00T n1\.7 needs to know"):
        head.encode_tokens(features)
    with pytest.raises(ValueError, match=r"is_image: got torch.bool \(39,\)"):
        head.encode_tokens(features, is_image[1:])
    with pytest.raises(ValueError, match="no valid image token among 40"):
        head.encode_tokens(features, torch.zeros(TOKENS, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"state: got shape \(131,\)"):
        head.sample(context, state[1:], noise)
    with pytest.raises(ValueError, match=r"noise: got shape \(39, 132\)"):
        head.sample(context, state, noise[1:])
    with pytest.raises(ValueError, match=r"inpainting: got shape \(41, 132\)"):
        head.sample(context, state, noise, Inpainting(torch.zeros(41, 132), 0))
    with pytest.raises(ValueError, match=r"frozen: got 5, allowed is 0\.\.4"):
        Inpainting(torch.zeros(4, 132), 5)
    with pytest.raises(ValueError, match=r"embodiment: got 32, allowed is 0\.\.31"):
        ActionHead(config, RandomWeights(config, seed=3), 32)
