"""The SuperPoint network in torch: image to scores of 8x8 cells and dense descriptors.

DeTone, Malisiewicz, Rabinovich: SuperPoint (2018). A VGG-like encoder of eight 3x3 convolutions with three 2x2 max
pools, and two heads of a 3x3 and a 1x1 convolution. Every convolution but the last of each head is followed by
ReLU; in the layout with BatchNorm (github.com/rpautrat/SuperPoint) every one of them, the last included, is then
scaled and shifted by channel.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional as F

from ttsp_ros.superpoint.features import DESCRIPTOR_DIM
from ttsp_ros.superpoint.keypoints import CELL_CHANNELS


@dataclass(frozen=True)
class Layer:
    """One convolution; 3x3 ones are padded by one zero pixel.

    Attributes:
        name: as in the paper's own implementation without "conv": 1a .. 4b, Pa, Pb (scores), Da, Db (descriptors).
        relu: ReLU follows.
        pool: a 2x2 max pool of stride 2 follows (after BatchNorm, where there is one).
    """

    name: str
    inputs: int
    outputs: int
    kernel: int = 3
    relu: bool = True
    pool: bool = False

    @property
    def weight_shape(self) -> tuple[int, int, int, int]:
        return (self.outputs, self.inputs, self.kernel, self.kernel)


ENCODER = (
    Layer("1a", 1, 64),
    Layer("1b", 64, 64, pool=True),
    Layer("2a", 64, 64),
    Layer("2b", 64, 64, pool=True),
    Layer("3a", 64, 128),
    Layer("3b", 128, 128, pool=True),
    Layer("4a", 128, 128),
    Layer("4b", 128, 128),
)
SCORE_HEAD = (Layer("Pa", 128, 256), Layer("Pb", 256, CELL_CHANNELS, kernel=1, relu=False))
DESCRIPTOR_HEAD = (Layer("Da", 128, 256), Layer("Db", 256, DESCRIPTOR_DIM, kernel=1, relu=False))
LAYERS = ENCODER + SCORE_HEAD + DESCRIPTOR_HEAD


@dataclass(frozen=True)
class LayerParameters:
    """Parameters of one layer, all float32.

    Attributes:
        weight: [outputs, inputs, kernel, kernel].
        bias: [outputs].
        scale, shift: [outputs], BatchNorm at inference as ``x * scale + shift`` after ReLU; None without BatchNorm.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None


@dataclass(frozen=True)
class NetworkOutputs:
    """What the network gives for one image of 8 h x 8 w pixels, in its own precision.

    Attributes:
        cells: [65, h, w], scores of the pixels of each cell and of "no keypoint" (channel 64), after softmax.
        dense: [h, w, 256], contiguous, descriptors of the cells, of unit length.
    """

    cells: torch.Tensor
    dense: torch.Tensor


class SuperPointNetwork:
    """The network for one precision, without gradients, channels-last.

    Args:
        parameters: by layer name, of all LAYERS; see `ttsp_ros.superpoint.weights.load_parameters`.
        dtype: torch.float32 or torch.bfloat16. In bfloat16 every layer's output is rounded to bfloat16 and sums are
            float32; the scores' last layer and softmax are float32 and rounded once at the end.
    """

    def __init__(self, parameters: Mapping[str, LayerParameters], dtype: torch.dtype) -> None:
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"dtype: got {dtype}, allowed are torch.float32 and torch.bfloat16")
        self.dtype = dtype
        self._parameters = {layer.name: _in_dtype(parameters[layer.name], dtype) for layer in LAYERS}

    @torch.inference_mode()
    def __call__(self, image: torch.Tensor) -> NetworkOutputs:
        """Run on one image.

        Args:
            image: uint8 [H, W], both multiples of 8.
        """
        height, width = image.shape
        if image.dtype != torch.uint8 or height % 8 or width % 8:
            raise ValueError(f"image: got {image.dtype} {height}x{width}, expected uint8 with sides multiples of 8")
        values = (image.to(torch.float32) / 255.0).to(self.dtype)
        encoded = values[None, None].contiguous(memory_format=torch.channels_last)
        for layer in ENCODER:
            encoded = self._run(layer, encoded)
        logits = self._head(SCORE_HEAD, encoded)[0].float()
        cells = torch.softmax(logits, 0).to(self.dtype)
        dense = self._head(DESCRIPTOR_HEAD, encoded)[0].permute(1, 2, 0).float()
        return NetworkOutputs(cells, F.normalize(dense, dim=2).to(self.dtype).contiguous())

    def _head(self, layers: tuple[Layer, ...], values: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            values = self._run(layer, values)
        return values

    def _run(self, layer: Layer, values: torch.Tensor) -> torch.Tensor:
        p = self._parameters[layer.name]
        values = F.conv2d(values, p.weight, p.bias, padding=layer.kernel // 2)
        if layer.relu:
            values = values.relu_()
        if p.scale is not None and p.shift is not None:
            values = values.mul_(p.scale[:, None, None]).add_(p.shift[:, None, None])
        return F.max_pool2d(values, 2) if layer.pool else values


def _in_dtype(parameters: LayerParameters, dtype: torch.dtype) -> LayerParameters:
    def convert(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(dtype)

    weight = parameters.weight.to(dtype).contiguous(memory_format=torch.channels_last)
    return LayerParameters(weight, parameters.bias.to(dtype), convert(parameters.scale), convert(parameters.shift))
