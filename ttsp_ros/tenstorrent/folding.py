"""SuperPoint's parameters in the form that the card computes with.

BatchNorm comes after ReLU in its layout, ``z = scale * relu(conv(x)) + shift``, and the next convolution pads ``z``
with zeros. With ``u = shift / scale`` that is ``z = scale * (relu(conv(x)) + u)``, and the scale moves into the next
convolution's weights, where it is exact also at the image border (scaled zero padding is zero padding). What stays is
one addition a layer of a vector by channel; a max pool in between commutes with it, as long as no scale is negative.
The last convolution of each head has no ReLU and takes its whole BatchNorm into its weights. A layout without BatchNorm
is taken as it is.

The card adds ``u`` as bf16. What that rounding leaves out is the same for every pixel, so it moves into the next
convolution's bias (exact but for the outermost pixels, where a part of so small a number is too much). On a photograph
with large black areas this alone takes the descriptors' correlation with float32 from 0.995 to 0.998.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ttsp_ros.superpoint.network import DESCRIPTOR_HEAD, ENCODER, SCORE_HEAD, Layer, LayerParameters

#: Below this a scale is taken for a dead channel: shift / scale would lose the channel's digits.
SMALLEST_SCALE = 1e-4


@dataclass(frozen=True)
class DeviceLayer:
    """One convolution as the card runs it: ``relu(conv(x) + bias)``, max pool, ``+ offset``, those that apply.

    Attributes:
        layer: shape, ReLU and pool.
        weight: float32 [outputs, inputs, k, k].
        bias: float32 [outputs].
        offset: float32 [outputs], exact in bf16, that is added after ReLU and pool, or None.
    """

    layer: Layer
    weight: torch.Tensor
    bias: torch.Tensor
    offset: torch.Tensor | None = None


@dataclass(frozen=True)
class DeviceNetwork:
    """All layers in the order in which they run."""

    encoder: tuple[DeviceLayer, ...]
    score_head: tuple[DeviceLayer, ...]
    descriptor_head: tuple[DeviceLayer, ...]


@dataclass(frozen=True)
class _Outgoing:
    """What the layers that follow take in, by channel: scale first, then the residual of the rounded offset."""

    scale: torch.Tensor | None = None
    residual: torch.Tensor | None = None


def fold_network(parameters: Mapping[str, LayerParameters]) -> DeviceNetwork:
    """The layers of the card from those of `ttsp_ros.superpoint.weights.load_parameters`.

    Raises:
        ValueError: a BatchNorm scale is negative or almost zero, so that shift / scale is not defined.
    """
    encoder, outgoing = _fold_chain(ENCODER, parameters, _Outgoing())
    score_head, _ = _fold_chain(SCORE_HEAD, parameters, outgoing)
    descriptor_head, _ = _fold_chain(DESCRIPTOR_HEAD, parameters, outgoing)
    return DeviceNetwork(encoder, score_head, descriptor_head)


def _fold_chain(
    layers: tuple[Layer, ...], parameters: Mapping[str, LayerParameters], incoming: _Outgoing
) -> tuple[tuple[DeviceLayer, ...], _Outgoing]:
    folded = []
    scale, residual = incoming.scale, incoming.residual
    for layer in layers:
        p = parameters[layer.name]
        weight = p.weight if scale is None else p.weight * scale[None, :, None, None]
        bias = p.bias if residual is None else p.bias + weight.sum((2, 3)) @ residual
        scale = residual = offset = None
        if p.scale is not None and p.shift is not None:
            if layer.relu:
                _check_scale(layer, p.scale)
                exact = p.shift / p.scale
                offset = exact.to(torch.bfloat16).float()
                scale, residual = p.scale, exact - offset
            else:
                weight = weight * p.scale[:, None, None, None]
                bias = bias * p.scale + p.shift
        folded.append(DeviceLayer(layer, weight, bias, offset))
    return tuple(folded), _Outgoing(scale, residual)


def _check_scale(layer: Layer, scale: torch.Tensor) -> None:
    smallest = float(scale.min())
    if smallest < SMALLEST_SCALE:
        raise ValueError(
            f"layer {layer.name}: BatchNorm scale {smallest:.3g} of channel {int(scale.argmin())}; the card needs "
            f"every scale to be at least {SMALLEST_SCALE}. Run these weights with backend torch or 'network: host'"
        )
