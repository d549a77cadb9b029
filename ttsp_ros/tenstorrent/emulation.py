"""The card's SuperPoint graph in torch: the operations of `ttsp_ros.tenstorrent.backbone` with their roundings.

For judging precision where no card is. Emulated: weights, biases and activations are bf16, every operation rounds its
result once; a convolution's products see what the matrix unit's fidelity lets through, and its sums are float32. Not
emulated: the order of the sums, and the matrix unit's alignment of products in groups of eight (both below a bf16
rounding).

The matrix unit multiplies five bits of a weight by seven of an activation in one phase. HiFi2 has two phases, which
cover all eight bits of a bf16 weight and leave out the activation's last bit; HiFi4 has four and leaves out nothing
(Tenstorrent ISA documentation, BlackholeA0 TensixCoprocessor, MVMUL).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.nn import functional as F

from ttsp_ros.superpoint.keypoints import CELL_CHANNELS
from ttsp_ros.superpoint.network import DESCRIPTOR_HEAD, ENCODER, SCORE_HEAD, FoldedLayer, Layer, NetworkOutputs

#: bits(x) & this: a bf16 value without the last of its eight significant bits, still as float32.
_SEVEN_BITS = -(1 << 17)


@torch.inference_mode()
def run_network(
    layers: Mapping[str, FoldedLayer], image: torch.Tensor, rms: bool = True, hifi4: bool = True
) -> NetworkOutputs:
    """The outputs of the card's graph for a uint8 image [H, W], both multiples of 8.

    Args:
        layers: see `ttsp_ros.tenstorrent.backbone.fold_network`.
        image: uint8 [H, W].
        rms, hifi4: stages, see `ttsp_ros.tenstorrent.stages.Stages`.
    """
    values = image.float()[None, None]
    for layer in ENCODER:
        values = _run_layer(layer, layers[layer.name], values, hifi4)
    logits, dense = values, values
    for layer in SCORE_HEAD:
        logits = _run_layer(layer, layers[layer.name], logits, hifi4)
    for layer in DESCRIPTOR_HEAD:
        dense = _run_layer(layer, layers[layer.name], dense, hifi4)
    cells = torch.softmax(logits[0], 0).to(torch.bfloat16)
    rows = dense[0].permute(1, 2, 0).to(torch.bfloat16)
    unit = unit_by_rms_norm(rows) if rms else unit_by_chain(rows)
    return NetworkOutputs(cells, unit.contiguous())


def unit_by_rms_norm(rows: torch.Tensor) -> torch.Tensor:
    """Rows of unit length as rms_norm gives them: float32 inside, one rounding. [..., 256] bf16, same out."""
    values = rows.float()
    inverse = torch.rsqrt(values.square().mean(-1, keepdim=True))
    return (values * inverse * values.shape[-1] ** -0.5).to(rows.dtype)


def unit_by_chain(rows: torch.Tensor) -> torch.Tensor:
    """The same by multiply, sum, rsqrt, multiply, each rounded to bf16. [..., 256] bf16, same out."""
    total = (rows * rows).float().sum(-1, keepdim=True).to(rows.dtype)
    return rows * torch.rsqrt(total.float()).to(rows.dtype)


def _run_layer(layer: Layer, folded: FoldedLayer, values: torch.Tensor, hifi4: bool) -> torch.Tensor:
    """One convolution with all that follows it; float32 holding bf16 values, but for the float32 logits."""
    seen = values if hifi4 else (values.view(torch.int32) & _SEVEN_BITS).view(torch.float32)
    result = F.conv2d(seen, _rounded(folded.weight), _rounded(folded.bias), padding=layer.kernel // 2)
    if layer.outputs != CELL_CHANNELS:
        result = _rounded(result)
    if folded.scale is not None and folded.shift is not None:
        scaled = _rounded(result.relu() * _rounded(folded.scale)[:, None, None])
        result = _rounded(scaled + _rounded(folded.shift)[:, None, None])
    elif folded.floor is not None:
        result = torch.maximum(result, _rounded(folded.floor)[:, None, None])
    return F.max_pool2d(result, 2) if layer.pool else result


def _rounded(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).float()
