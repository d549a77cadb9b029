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
STAGES = tuple(zip(ENCODER[0::2], ENCODER[1::2], strict=True))


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
class FoldedLayer:
    """One layer with BatchNorm's scale taken into the convolution: what the backends run, all float32.

    With a scale that is nowhere negative, ``relu(c) scale + shift = max(c scale + shift, shift)``: the same function,
    and what a next layer's zero padding meets is the same, so nothing is approximated; only roundings differ. Without
    ReLU scale and shift go into the convolution altogether.

    Attributes:
        weight: [outputs, inputs, kernel, kernel].
        bias: [outputs].
        floor: [outputs], the lower bound that replaces ReLU (0 without BatchNorm); None where there is no ReLU.
        scale, shift: [outputs], still to be applied after ReLU (floor is 0 then), before pooling, where a scale is
            negative; None otherwise.
    """

    weight: torch.Tensor
    bias: torch.Tensor
    floor: torch.Tensor | None
    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None


def fold_layer(layer: Layer, parameters: LayerParameters) -> FoldedLayer:
    """See `FoldedLayer`."""
    weight, bias, scale, shift = parameters.weight, parameters.bias, parameters.scale, parameters.shift
    no_floor = torch.zeros(layer.outputs) if layer.relu else None
    if scale is None or shift is None:
        return FoldedLayer(weight, bias, no_floor)
    if layer.relu and bool((scale < 0).any()):
        return FoldedLayer(weight, bias, no_floor, scale, shift)
    scaled = (weight.double() * scale.double()[:, None, None, None]).float()
    shifted = (bias.double() * scale.double() + shift.double()).float()
    return FoldedLayer(scaled, shifted, shift if layer.relu else None)


@dataclass(frozen=True)
class NetworkOutputs:
    """What the network gives for one image of 8 h x 8 w pixels, in its own precision.

    Attributes:
        cells: [65, h, w], scores of the pixels of each cell and of "no keypoint" (channel 64), after softmax; a view
            of a contiguous [h, w, 65].
        dense: [h, w, 256], contiguous, descriptors of the cells, of unit length.
    """

    cells: torch.Tensor
    dense: torch.Tensor


class SuperPointNetwork:
    """The network on the CPU for one precision, without gradients.

    Feature maps are [height, width, channels]. The two convolutions of a stage and its pool are run on strips of rows
    whose intermediate results stay in a core's cache: at 480x640 in bfloat16 twice as fast as whole maps, most of
    which was waiting for memory, and 4K images need no gigabytes. A row's values do not depend on its strip.

    Args:
        parameters: by layer name, of all LAYERS; see `ttsp_ros.superpoint.weights.load_parameters`.
        dtype: torch.float32 or torch.bfloat16. In bfloat16 sums are float32 and every layer's output is rounded to
            bfloat16; the scores' last layer and softmax are float32 and rounded once, at the end.
        strip_bytes: size of a strip's intermediate results, about.
    """

    def __init__(
        self, parameters: Mapping[str, LayerParameters], dtype: torch.dtype, strip_bytes: int = 2_600_000
    ) -> None:
        if dtype not in (torch.float32, torch.bfloat16):
            raise ValueError(f"dtype: got {dtype}, allowed are torch.float32 and torch.bfloat16")
        self.dtype = dtype
        self._strip_bytes = strip_bytes
        folded = {layer.name: fold_layer(layer, parameters[layer.name]) for layer in LAYERS}
        self._layers = {name: _prepared(layer, dtype) for name, layer in folded.items()}
        # One channel is too few for a convolution kernel to be fast: the first layer is a matrix product of the nine
        # pixels around each, and a one for the bias. Pixels stay 0 to 255, exact in bfloat16, and the weights are
        # divided by 255: pixels / 255 would be rounded, which alone changes 1.3 % of the best 500 keypoints.
        first = folded["1a"]
        self._first_weight = torch.cat([first.weight.reshape(-1, 9) / 255, first.bias[:, None]], dim=1).T.to(dtype)
        self._score_weight, self._score_bias = folded["Pb"].weight[:, :, 0, 0], folded["Pb"].bias
        self._descriptor_weight = folded["Db"].weight[:, :, 0, 0].to(dtype)

    @torch.inference_mode()
    def __call__(self, image: torch.Tensor) -> NetworkOutputs:
        """Run on one image.

        Args:
            image: uint8 [H, W], both multiples of 8.
        """
        height, width = image.shape
        if image.dtype != torch.uint8 or height < 8 or width < 8 or height % 8 or width % 8:
            raise ValueError(f"image: got {image.dtype} {height}x{width}, expected uint8 with sides multiples of 8")
        values = F.pad(image.to(self.dtype), (1, 1, 1, 1))
        for first, second in STAGES:
            values = self._stage(first, second, values)
        return NetworkOutputs(self._scores(values), self._descriptors(values))

    def _stage(self, first: Layer, second: Layer, values: torch.Tensor) -> torch.Tensor:
        """Two layers and the pool, in strips. `values` is [H, W, C], or the padded image [H + 2, W + 2]."""
        is_image = values.dim() == 2
        height, width = (values.shape[0] - 2, values.shape[1] - 2) if is_image else values.shape[:2]
        shrink = 2 if second.pool else 1
        result = values.new_empty(height // shrink, width // shrink, second.outputs)
        rows = self._strip_rows(width * first.outputs)
        for top in range(0, height, rows):
            bottom = min(top + rows, height)
            # One more row on either side for the second layer's kernel, but for the map's own edges.
            begin, end = max(top - 1, 0), min(bottom + 1, height)
            if is_image:
                strip = self._first_layer(values, begin, end)
            else:
                strip = self._convolution(first, values, 0, begin, end, height)
            strip = _activated(strip, self._layers[first.name])
            strip = self._convolution(second, strip, begin, top, bottom, height)
            _finish(strip, second, self._layers[second.name], result[top // shrink : bottom // shrink])
        return result

    def _strip_rows(self, row_values: int) -> int:
        """An even number: a pool must not reach into the next strip."""
        return max(8, self._strip_bytes // (row_values * self.dtype.itemsize) // 2 * 2)

    def _first_layer(self, padded: torch.Tensor, begin: int, end: int) -> torch.Tensor:
        """Rows [begin, end) of layer 1a, before activation, from the image with a frame of one zero pixel."""
        width = padded.shape[1] - 2
        taps = padded.new_ones(10, end - begin, width)
        for tap in range(9):
            row, column = divmod(tap, 3)
            taps[tap] = padded[begin + row : end + row, column : column + width]
        return (taps.view(10, -1).T @ self._first_weight).view(end - begin, width, -1)

    def _convolution(
        self, layer: Layer, values: torch.Tensor, offset: int, begin: int, end: int, height: int
    ) -> torch.Tensor:
        """Rows [begin, end) of a 3x3 layer's map of `height` rows, before activation.

        Args:
            values: [R, W, C], the rows from `offset` on of the map it reads, at least those that are needed.
        """
        first, last = max(begin - 1, 0), min(end + 1, height)
        inside = first == begin - 1 and last == end + 1
        needed = values[first - offset : last - offset].permute(2, 0, 1)[None]
        p = self._layers[layer.name]
        # At an edge of the map there is a row of padding on both sides; what the other side gave is cut off.
        result = F.conv2d(needed, p.weight, p.bias, padding=(0 if inside else 1, 1))[0].permute(1, 2, 0)
        return result if inside else result[begin - first : end - first]

    def _head(self, layer: Layer, encoded: torch.Tensor) -> torch.Tensor:
        """[h * w, 256], the output of a head's first layer."""
        height = encoded.shape[0]
        values = self._convolution(layer, encoded, 0, 0, height, height)
        return _activated(values, self._layers[layer.name]).reshape(-1, layer.outputs)

    def _scores(self, encoded: torch.Tensor) -> torch.Tensor:
        hidden = self._head(SCORE_HEAD[0], encoded).float()
        scores = torch.softmax(F.linear(hidden, self._score_weight, self._score_bias), dim=1).to(self.dtype)
        return scores.view(*encoded.shape[:2], -1).permute(2, 0, 1)

    def _descriptors(self, encoded: torch.Tensor) -> torch.Tensor:
        hidden = self._head(DESCRIPTOR_HEAD[0], encoded)
        dense = F.linear(hidden, self._descriptor_weight, self._layers["Db"].bias).float()
        return F.normalize(dense, dim=1).to(self.dtype).view(*encoded.shape[:2], -1)


def _prepared(layer: FoldedLayer, dtype: torch.dtype) -> FoldedLayer:
    def convert(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(dtype)

    weight = layer.weight.to(dtype).contiguous(memory_format=torch.channels_last)
    return FoldedLayer(weight, layer.bias.to(dtype), convert(layer.floor), convert(layer.scale), convert(layer.shift))


def _activated(values: torch.Tensor, layer: FoldedLayer) -> torch.Tensor:
    """In place; values are [..., C]."""
    if layer.floor is not None:
        values = torch.maximum(values, layer.floor, out=values)
    if layer.scale is not None and layer.shift is not None:
        values = values.mul_(layer.scale).add_(layer.shift)
    return values


def _finish(values: torch.Tensor, layer: Layer, parameters: FoldedLayer, result: torch.Tensor) -> None:
    """Activation and pool of the second layer of a stage, into result."""
    if parameters.scale is not None or parameters.floor is None:
        values = _activated(values, parameters)
        result.copy_(_pooled(values) if layer.pool else values)
    else:
        # A maximum commutes with another one, and after the pool there is a quarter to compare.
        torch.maximum(_pooled(values) if layer.pool else values, parameters.floor, out=result)


def _pooled(values: torch.Tensor) -> torch.Tensor:
    """2x2 maximum of [H, W, C]. torch.max_pool2d takes 25 times as long on this memory order."""
    rows = torch.maximum(values[0::2], values[1::2])
    return torch.maximum(rows[:, 0::2], rows[:, 1::2])
