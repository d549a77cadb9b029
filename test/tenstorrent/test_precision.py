"""The card's graph in torch, with its roundings, held to float32; and the forms of its stages to one another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ttsp_ros.superpoint.descriptors import sample
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.superpoint.keypoints import detect
from ttsp_ros.superpoint.network import NetworkOutputs, SuperPointNetwork
from ttsp_ros.superpoint.weights import load_parameters
from ttsp_ros.tenstorrent import emulation
from ttsp_ros.tenstorrent.backbone import fold_network, image_shape, image_values
from ttsp_ros.tenstorrent.stages import Stages
from ttsp_ros.tools.quality import keypoint_f1, load_photograph

#: The darkest photograph, the one with the fewest keypoints, and two ordinary ones.
PHOTOGRAPHS = ("rocket.jpg", "chelsea.png", "coins.png", "astronaut.png")
BEST = DetectionSettings(max_keypoints=500)


@pytest.fixture(scope="module")
def parameters():
    return load_parameters()


@pytest.fixture(scope="module")
def pairs(parameters) -> dict[str, tuple[NetworkOutputs, NetworkOutputs]]:
    """By photograph: float32, and what the card should give."""
    exact, layers = SuperPointNetwork(parameters, torch.float32), fold_network(parameters)
    images = {name: torch.from_numpy(load_photograph(name, (480, 640))) for name in PHOTOGRAPHS}
    return {name: (exact(image), emulation.run_network(layers, image)) for name, image in images.items()}


def correlation(first: torch.Tensor, second: torch.Tensor) -> float:
    return float(np.corrcoef(first.float().flatten().numpy(), second.float().flatten().numpy())[0, 1])


def features(outputs: NetworkOutputs) -> Features:
    found = detect(outputs.cells, BEST)
    keypoints = torch.stack([found.x, found.y], 1).float().numpy()
    descriptors = sample(outputs.dense, found.y, found.x).numpy()
    return Features(keypoints, found.scores.float().numpy(), descriptors)


@pytest.mark.parametrize("name", PHOTOGRAPHS)
def test_descriptors_and_scores_correlate_with_float32(pairs, name):
    exact, card = pairs[name]
    assert correlation(exact.dense, card.dense) >= 0.999
    assert correlation(exact.cells, card.cells) >= 0.999


def test_keypoints_are_those_of_float32(pairs):
    # 0.987 is the aim, reached with other weights; with the default ones bf16 activations alone cost 2 %.
    scores = [keypoint_f1(features(exact), features(card)) for exact, card in pairs.values()]
    assert np.mean(scores) >= 0.97 and min(scores) >= 0.95


def test_hifi2_would_cost_more(parameters):
    layers, image = fold_network(parameters), torch.from_numpy(load_photograph("rocket.jpg", (480, 640)))
    exact = SuperPointNetwork(parameters, torch.float32)(image).dense
    four, two = (emulation.run_network(layers, image, hifi4=hifi4).dense for hifi4 in (True, False))
    assert correlation(exact, four) > correlation(exact, two)


def test_a_negative_scale_takes_the_longer_way(parameters):
    flipped = dict(parameters)
    p = flipped["2a"]
    flipped["2a"] = type(p)(p.weight, p.bias, -p.scale, p.shift)
    image = torch.from_numpy(load_photograph("coins.png", (120, 160)))
    exact = SuperPointNetwork(flipped, torch.float32)(image)
    card = emulation.run_network(fold_network(flipped), image)
    assert correlation(exact.cells, card.cells) >= 0.99


def ulps(values: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Distance in units of bf16's last place at `exact`."""
    _, exponent = torch.frexp(exact)
    return (values.double() - exact).abs() / torch.exp2(exponent.double() - 8)


def test_forms_of_the_unit_length_in_ulps():
    rows = torch.randn(2000, 256, generator=torch.Generator().manual_seed(0)).bfloat16()
    exact = torch.nn.functional.normalize(rows.double(), dim=1)
    by_rms, by_chain = ulps(emulation.unit_by_rms_norm(rows), exact), ulps(emulation.unit_by_chain(rows), exact)
    assert float(by_rms.max()) <= 0.51, "rms_norm rounds once"
    assert 1.0 < float(by_chain.max()) <= 3.0, "the chain rounds four times"


def test_the_wide_upload_has_the_same_bytes():
    image = load_photograph("coins.png", (64, 96))
    wide, narrow = (image_values(image, Stages(wide=on)) for on in (True, False))
    assert wide.shape == (1, 1, 192, 32) == image_shape(64, 96, Stages())
    assert narrow.shape == (1, 1, 6144, 1)
    assert wide.contiguous().view(torch.uint8).flatten().equal(narrow.contiguous().view(torch.uint8).flatten())
    assert np.array_equal(wide.float().numpy().reshape(64, 96), image), "0 to 255 are exact in bf16"


def test_stages_by_name():
    assert Stages.of(Stages.names()) == Stages()
    assert Stages.of(["nms"]) == Stages(wide=False, hifi4=False, rms=False, sampler=False, trace=False)
    with pytest.raises(ValueError, match=r"unknown rsm; allowed are wide, .*trace"):
        Stages.of(["rsm"])
    with pytest.raises(ValueError, match="sampler works on the lists that nms makes"):
        Stages.of(["sampler"])
