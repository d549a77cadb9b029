"""Weights as other SuperPoint programs take them, which know no BatchNorm."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ttsp_ros.superpoint.network import LAYERS, LayerParameters

_READS = {"Pa": "4b", "Da": "4b"}


def without_batch_norm(parameters: Mapping[str, LayerParameters]) -> dict[str, LayerParameters]:
    """The network with BatchNorm folded into the convolutions: an approximation along the border.

    A layer's shift becomes part of the next layer's bias as if it reached there from all sides, but what pads the
    image is zero. Away from the border only roundings differ (in scores of the default weights 3e-6 from 40 pixels
    on); along it scores differ by up to 0.6. `ttsp_ros.superpoint.network` does not do this.

    Raises:
        ValueError: a scale is negative, which a convolution and ReLU can't express.
    """
    plain: dict[str, LayerParameters] = {}
    shifts: dict[str, torch.Tensor] = {}
    previous = ""
    for layer in LAYERS:
        p = parameters[layer.name]
        incoming = shifts.get(_READS.get(layer.name, previous))
        weight, bias = p.weight.double(), p.bias.double()
        if incoming is not None:
            bias = bias + weight.sum(dim=(2, 3)) @ incoming
        if p.scale is not None and p.shift is not None:
            if layer.relu and bool((p.scale < 0).any()):
                raise ValueError(f"layer {layer.name}: BatchNorm has negative scales, allowed are scales of at least 0")
            weight, bias = weight * p.scale.double()[:, None, None, None], bias * p.scale.double()
            if layer.relu:
                shifts[layer.name] = p.shift.double()
            else:
                bias = bias + p.shift.double()
        plain[layer.name] = LayerParameters(weight.float(), bias.float())
        previous = layer.name
    return plain


def hugging_face_state(parameters: Mapping[str, LayerParameters]) -> dict[str, torch.Tensor]:
    """State dictionary of Hugging Face transformers' SuperPointForKeypointDetection.

    Raises:
        ValueError: there is BatchNorm; see `without_batch_norm`.
    """
    state = {}
    for name, p in parameters.items():
        if p.scale is not None:
            raise ValueError(f"layer {name} has BatchNorm, which that network has not")
        if name[0] == "P":
            prefix = f"keypoint_decoder.conv_score_{name[1]}"
        elif name[0] == "D":
            prefix = f"descriptor_decoder.conv_descriptor_{name[1]}"
        else:
            prefix = f"encoder.conv_blocks.{int(name[0]) - 1}.conv_{name[1]}"
        state[f"{prefix}.weight"], state[f"{prefix}.bias"] = p.weight, p.bias
    return state
