"""The plan, walked in torch, against the action head itself."""

from dataclasses import dataclass, replace

import pytest
import torch
from megakernel_cases import full_size, miniature

from ttsp_ros.dit.config import GrootConfig
from ttsp_ros.dit.megakernel import host_tensors
from ttsp_ros.dit.megakernel.arena import KEY_LENGTHS, ArenaLayout, KeyLengths, as_bfp8
from ttsp_ros.dit.megakernel.executor import CrossKeys, Executor, Tables, key_shares
from ttsp_ros.dit.model import ActionHead, Context
from ttsp_ros.dit.weights import RandomWeights

EMBODIMENT = 0
SPREAD = 2.5  # of random weights, so that a miniature moves its actions
TOLERANCE = 3e-6  # of the largest value: float32 sums in another order
#: Tokens of each key set: fewer than planned where a mask hides the rest, 81 and 448 as the cameras give them.
REAL_KEYS = {"n1.5": {"all": 300}, "n1.6": {"text": 23, "image": 81}, "n1.7": {"text": 41, "image": 448}}


def observed(head: ActionHead, seed: int = 7) -> Context:
    """Keys and values of random tokens, text and image mixed."""
    config, generator = head.config, torch.Generator().manual_seed(seed)
    real = REAL_KEYS[config.version]
    count = sum(real.values())
    features = torch.randn(count, config.vl_dim, generator=generator)
    if "all" in real:
        return head.encode_tokens(features)
    is_image = torch.zeros(count, dtype=torch.bool)
    is_image[torch.randperm(count, generator=generator)[: real["image"]]] = True
    return head.encode_tokens(features, is_image=is_image)


def cross_keys(layout: ArenaLayout, context: Context) -> dict[int, CrossKeys]:
    """The context as the kernel would find it: padded, with the masks that the version reads."""
    config = layout.config
    masks = layout.keys.masks(config.key_sets)
    made = {}
    for block, keys, values in zip(config.cross_blocks, context.keys, context.values, strict=True):
        real, padded = keys.shape[2], layout.keys_padded(block)
        mask = host_tensors.key_mask(real, padded) if masks[config.keys_of(block)] else None
        made[block] = CrossKeys(
            host_tensors.padded_keys(layout, block, keys), host_tensors.padded_keys(layout, block, values), mask
        )
    return made


@dataclass(frozen=True)
class Case:
    """An action head, and its plan ready to walk."""

    head: ActionHead
    weights: RandomWeights
    context: Context
    layout: ArenaLayout
    executor: Executor
    cross: dict[int, CrossKeys]


def everything(config: GrootConfig, **options) -> Case:
    weights = RandomWeights(config, seed=5, spread=SPREAD)
    head = ActionHead(config, weights, EMBODIMENT)
    layout = ArenaLayout(config, KEY_LENGTHS[config.version], **options)
    context = observed(head)
    executor = Executor(layout, Tables.of(layout, weights, EMBODIMENT))
    return Case(head, weights, context, layout, executor, cross_keys(layout, context))


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize(("fold", "reader_mode", "tile_order"), [(True, "direct", "kn"), (False, "relay", "nk")])
def test_whole_denoising_equals_the_model(version, fold, reader_mode, tile_order):
    config = miniature(version)
    options = {"fold_attn_scale": fold, "reader_mode": reader_mode, "tile_order": tile_order, "block_rows": 2}
    case = everything(config, **options)
    state = torch.randn(config.max_state_dim, generator=torch.Generator().manual_seed(2))
    noise = case.head.noise(seed=1)
    expected = case.head.sample(case.context, state, noise)
    got = case.executor.run(host_tensors.state_token(case.weights, EMBODIMENT, state), noise, case.cross)
    assert relative(expected, noise) > 0.05, "the steps must have moved the actions"
    assert relative(got, expected) < TOLERANCE


@pytest.mark.parametrize(("name", "keys"), [("n1.6", None), ("n1.7", KeyLengths("image only", all=448))])
def test_full_size_blocks_equal_the_model(name, keys):
    """A cross and a self block of the published width; 20 text keys and a mask, or 448 split over three cores."""
    config = full_size(name)
    if keys is not None:
        config = replace(config, text_every=0)
    weights = RandomWeights(config, seed=5, spread=SPREAD)
    head = ActionHead(config, weights, EMBODIMENT)
    layout = ArenaLayout(config, keys or KEY_LENGTHS[name])
    tokens = torch.randn(448 if keys else 20, config.vl_dim, generator=torch.Generator().manual_seed(3))
    context = head.encode_tokens(tokens, is_image=torch.zeros(len(tokens), dtype=torch.bool))
    executor = Executor(layout, Tables.of(layout, weights, EMBODIMENT))
    state, noise = torch.zeros(config.max_state_dim), head.noise(seed=1)
    before, expected, *_ = head.trajectory(context, state, noise)
    first, end = config.action_rows
    actions = torch.zeros(64, config.action_dim_padded)
    actions[first:end, : config.max_action_dim] = noise
    token = host_tensors.state_token(weights, EMBODIMENT, state)
    got = executor.step(0, token, actions, cross_keys(layout, context))[first:end, : config.max_action_dim]
    assert relative(expected, before) > 0.05, "the step must have moved the actions"
    assert relative(got, expected) < TOLERANCE


def test_what_would_go_wrong_shows():
    """Each detail of the plan matters to the result: leaving it out is far beyond the tolerance."""
    config = miniature("n1.6")
    case = everything(config, block_rows=2)
    layout, tables = case.layout, case.executor.tables
    x = torch.randn(64, config.width, generator=torch.Generator().manual_seed(4))

    def block(executor, index, cross):
        return executor.block(1, index, x, cross)[: config.n_tokens]

    right = [block(case.executor, 0, case.cross[0]), block(case.executor, 1, None)]
    wrong = {
        "tile order": (1, Executor(replace(layout, tile_order="nk"), tables), None),
        "place of K-blocks": (1, Executor(replace(layout, reader_mode="relay"), tables), None),
        "attention scale": (1, Executor(replace(layout, fold_attn_scale=False), tables), None),
        "cross mask": (0, case.executor, replace(case.cross[0], mask=None)),
        "modulation of another step": (
            1,
            Executor(layout, replace(tables, modulation=tables.modulation.roll(2, 0))),
            None,
        ),
        "biases": (1, Executor(layout, replace(tables, biases=tables.biases.roll(1, 0))), None),
    }
    for name, (index, executor, cross) in wrong.items():
        assert relative(block(executor, index, cross), right[index]) > 100 * TOLERANCE, name
    unmasked = Executor(layout, tables)
    unmasked._self_mask = torch.zeros(64, 64)[None, None]
    assert relative(block(unmasked, 1, None), right[1]) > 100 * TOLERANCE, "self mask"


def test_bfp8_weights_change_little():
    """What streaming bfp8_b costs in numbers, on random weights of the published kind."""
    config = miniature("n1.7")
    case = everything(config, block_rows=2)
    rounded = Executor(case.layout, replace(case.executor.tables, stream=as_bfp8(case.executor.tables.stream)))
    x = torch.randn(64, config.width, generator=torch.Generator().manual_seed(4))
    exact, got = (e.block(0, 1, x, None)[: config.n_tokens] for e in (case.executor, rounded))
    correlation = torch.corrcoef(
        torch.stack([(exact - x[: config.n_tokens]).flatten(), (got - x[: config.n_tokens]).flatten()])
    )
    assert 1e-4 < relative(got, exact) < 0.05 and correlation[0, 1] > 0.9995


def test_keys_are_shared_as_planned():
    assert key_shares(64) == [[(0, 64)]]
    assert key_shares(96) == [[(0, 64), (64, 96)]]
    assert key_shares(384) == [[(0, 64), (192, 256)], [(64, 128), (256, 320)], [(128, 192), (320, 384)]]
    shared = [chunk for share in key_shares(448) for chunk in share]
    assert sorted(shared) == [(first, first + 64) for first in range(0, 448, 64)]


def test_refuses_wrong_keys():
    case = everything(miniature("n1.7"), block_rows=2)
    x = torch.zeros(64, case.layout.config.width)
    with pytest.raises(ValueError, match="block 0 needs cross keys"):
        case.executor.block(0, 0, x, None)
    with pytest.raises(ValueError, match="block 1 has no cross keys"):
        case.executor.block(0, 1, x, case.cross[0])
    with pytest.raises(ValueError, match="65 text keys, the plan holds 64"):
        host_tensors.padded_keys(case.layout, 0, torch.zeros(1, 4, 65, 48))
    with pytest.raises(ValueError, match="got 0 keys, allowed are 1 to 64"):
        host_tensors.key_mask(0, 64)
