"""SuperPoint's network as ttnn operations: image to scores and dense descriptors, for one image size.

Activations are bf16 in the L1 of all cores, height-sharded: each core holds a run of pixels with all their channels.
Sums are float32. Pixels go in as 0 to 255, exact in bf16, and the first layer's weights are divided by 255. BatchNorm
is part of the convolutions and of the lower bound that replaces ReLU, see `ttsp_ros.superpoint.network.FoldedLayer`.
The score head's last convolution and softmax stay float32 and are rounded once: a bf16 logit near 10 is off by up to
0.03, which reorders keypoints. `ttsp_ros.tenstorrent.emulation` has the same steps in torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from ttsp_ros.superpoint.features import DESCRIPTOR_DIM
from ttsp_ros.superpoint.keypoints import CELL, CELL_CHANNELS
from ttsp_ros.superpoint.network import (
    DESCRIPTOR_HEAD,
    ENCODER,
    LAYERS,
    SCORE_HEAD,
    FoldedLayer,
    Layer,
    LayerParameters,
    fold_layer,
)
from ttsp_ros.tenstorrent.stages import Stages

if TYPE_CHECKING:
    import ttnn

#: Pixels of one page of the uploaded image: 64 bytes of bf16, what DRAM reads at once.
WIDE_PAGE_PIXELS = 32
#: Height of a block of activations in the convolutions of the first two resolutions, in pixels. Whole shards (ttnn's
#: default) would need 1.1 MB of circular buffers beside 0.9 MB of tensors; 64 leaves L1 for the halo.
ACT_BLOCK_PIXELS = 64
#: The first two layers' channels: the ones whose tensors decide whether an image fits.
WIDE_LAYER_CHANNELS = 64
#: L1 of a core that tensors and circular buffers share, with an L1_SMALL of 32 KiB, as ttnn's get_memory_view shows it.
L1_USABLE_BYTES = 1_428_352
#: Circular buffers of convolution 1b at ACT_BLOCK_PIXELS, whatever the image, as graph capture shows them.
CONVOLUTION_BUFFER_BYTES = 143_424
#: The same of the pool after it.
POOL_BUFFER_BYTES = 16_640
#: What NMS keeps in L1 all the time: its lists, 2,272 bytes where there are two slots of 63 records a core.
KEPT_BYTES = 4096
#: x / |x| = rms_norm(x) / sqrt(256), and 1 / 16 is exact in bf16.
RMS_GAMMA = DESCRIPTOR_DIM**-0.5


@dataclass(frozen=True)
class BackboneOutputs:
    """On the device, both for `cells = (height / 8) (width / 8)` in raster order.

    Attributes:
        scores: [1, 1, cells, 65] bf16, TILE, DRAM interleaved, after softmax.
        dense: [1, 1, cells, 256] bf16, ROW_MAJOR, DRAM interleaved, unit length.
    """

    scores: ttnn.Tensor
    dense: ttnn.Tensor


def image_shape(height: int, width: int, stages: Stages) -> tuple[int, int, int, int]:
    """Shape of the uploaded image: pages of 64 bytes, or one pixel a page."""
    pixels = height * width
    if not stages.wide:
        return (1, 1, pixels, 1)
    if pixels % WIDE_PAGE_PIXELS:
        raise ValueError(f"image of {height}x{width}: the number of pixels is no multiple of {WIDE_PAGE_PIXELS}")
    return (1, 1, pixels // WIDE_PAGE_PIXELS, WIDE_PAGE_PIXELS)


def image_values(image: np.ndarray, stages: Stages) -> torch.Tensor:
    """A uint8 image [H, W] as it is uploaded: bf16 of `image_shape`, 0 to 255."""
    height, width = image.shape
    return torch.from_numpy(image).to(torch.bfloat16).reshape(image_shape(height, width, stages))


def convolution_bytes(height: int, width: int, cores: int) -> int:
    """L1 of a core for convolution 1b, the network's largest demand, with its tensors in L1.

    Its input with the rows that its window reaches into, its output, and its circular buffers. Graph capture shows the
    same, see test/tenstorrent/test_superpoint_graph.py.
    """
    pixels = _shard_pixels(height * width, cores)
    halo = _halo_pixels(pixels, height, width, kernel=3, stride=1, padding=1)
    return 2 * WIDE_LAYER_CHANNELS * (pixels + halo) + CONVOLUTION_BUFFER_BYTES + KEPT_BYTES


def pool_bytes(height: int, width: int, cores: int) -> int:
    """L1 of a core for the max pool after 1b, at its worst moment: its input with and without what its window needs."""
    outputs = height * width // 4
    pixels = _shard_pixels(outputs, cores)
    halo = _halo_pixels(pixels, height // 2, width // 2, kernel=2, stride=2, padding=0)
    received = _shard_pixels(height * width, -(-outputs // pixels))
    return 2 * WIDE_LAYER_CHANNELS * (received + halo) + POOL_BUFFER_BYTES + KEPT_BYTES


def _shard_pixels(pixels: int, cores: int) -> int:
    """Pixels of one core: whole tiles."""
    return -(-pixels // (32 * cores)) * 32


def _halo_pixels(pixels: int, height: int, width: int, kernel: int, stride: int, padding: int) -> int:
    """Pixels of the padded input that a core's windows reach, from the first to the last, on the core with the most.

    Args:
        pixels: of a core's output.
        height, width: of the whole output.
    """
    row = width * stride + 2 * padding

    def span(first: int) -> int:
        last = min(first + pixels, height * width) - 1
        (top, left), (bottom, right) = divmod(first, width), divmod(last, width)
        return ((bottom - top) * stride + kernel - 1) * row + (right - left) * stride + kernel

    return max(span(first) for first in range(0, height * width, pixels))


def first_stage_fits(height: int, width: int, cores: int) -> bool:
    """Whether the first two layers keep their tensors in L1, or go through DRAM slice by slice.

    Raises:
        ValueError: not even that; it says how much is missing, and what to do.
    """
    if convolution_bytes(height, width, cores) <= L1_USABLE_BYTES:
        return True
    needed = pool_bytes(height, width, cores)
    if needed > L1_USABLE_BYTES:
        raise ValueError(
            f"image of {width}x{height}: its first pool needs {needed:,} bytes of L1 in each of {cores} cores, and "
            f"{L1_USABLE_BYTES:,} are there. Set 'resize' to a smaller size, such as [480, 640]"
        )
    return False


def fold_network(parameters: Mapping[str, LayerParameters]) -> dict[str, FoldedLayer]:
    """The layers as the card runs them, on pixels of 0 to 255."""
    layers = {layer.name: fold_layer(layer, parameters[layer.name]) for layer in LAYERS}
    layers["1a"] = replace(layers["1a"], weight=layers["1a"].weight / 255)
    return layers


class Backbone:
    """The network for images of one size on an open device.

    The first call prepares the weights on the device and compiles; later calls only launch operations, so they can be
    captured in a trace. `release` frees the weights.

    Args:
        device: an open ttnn device.
        layers: by name, of all LAYERS; see `fold_network`.
        height, width: of the image, multiples of 8.
        stages: which forms of upload and normalisation to use.
    """

    def __init__(
        self, device: ttnn.MeshDevice, layers: Mapping[str, FoldedLayer], height: int, width: int, stages: Stages
    ) -> None:
        import ttnn

        if height < CELL or width < CELL or height % CELL or width % CELL:
            raise ValueError(f"image of {width}x{height}: both sides must be multiples of {CELL}")
        grid = device.compute_with_storage_grid_size()
        self._first_stage_in_l1 = first_stage_fits(height, width, grid.x * grid.y)
        self._device = device
        self._height = height
        self._width = width
        self._stages = stages
        self._compute = ttnn.init_device_compute_kernel_config(
            device.arch(),
            math_fidelity=ttnn.MathFidelity.HiFi4 if stages.hifi4 else ttnn.MathFidelity.HiFi2,
            math_approx_mode=False,
            fp32_dest_acc_en=True,
            packer_l1_acc=True,
        )
        self._precise = ttnn.init_device_compute_kernel_config(
            device.arch(), math_fidelity=ttnn.MathFidelity.HiFi4, math_approx_mode=False, fp32_dest_acc_en=True
        )
        self._encoder = [_Convolution(device, layer, layers[layer.name]) for layer in ENCODER]
        self._score_head = [_Convolution(device, layer, layers[layer.name]) for layer in SCORE_HEAD]
        self._descriptor_head = [_Convolution(device, layer, layers[layer.name]) for layer in DESCRIPTOR_HEAD]
        self._gamma = _upload_row(device, torch.full((DESCRIPTOR_DIM,), RMS_GAMMA))

    def __call__(self, image: ttnn.Tensor) -> BackboneOutputs:
        """Run on an image of `image_shape`, bf16, ROW_MAJOR, on the device; it is kept."""
        encoded = self._encode(image)
        logits = self._run_head(self._score_head, encoded)
        scores = self._softmax(logits)
        dense = self._run_head(self._descriptor_head, encoded)
        _free(encoded)
        return BackboneOutputs(scores, self._normalise(dense))

    def release(self) -> None:
        """Free the weights; the object is of no use afterwards."""
        for convolution in (*self._encoder, *self._score_head, *self._descriptor_head):
            convolution.release()
        _free(self._gamma)

    def _encode(self, image: ttnn.Tensor) -> ttnn.Tensor:
        import ttnn

        height, width = self._height, self._width
        values = ttnn.reshape(image, (1, 1, height * width, 1)) if self._stages.wide else image
        for convolution in self._encoder:
            keep = values is image
            in_l1 = self._first_stage_in_l1 or (height, width) != (self._height, self._width)
            values = convolution(values, height, width, self._compute, free_input=not keep, in_l1=in_l1)
            values = convolution.scale_and_shift(values)
            if convolution.layer.pool:
                values = _max_pool(values, height, width, convolution.layer.outputs)
                height, width = height // 2, width // 2
            # A maximum commutes with another one, and after the pool there is a quarter to compare.
            values = convolution.bound(values)
        return values

    def _run_head(self, head: Sequence[_Convolution], encoded: ttnn.Tensor) -> ttnn.Tensor:
        height, width = self._height // CELL, self._width // CELL
        values = encoded
        for convolution in head:
            keep = values is encoded
            values = convolution(values, height, width, self._compute, free_input=not keep)
            values = convolution.bound(convolution.scale_and_shift(values))
        return values

    def _softmax(self, logits: ttnn.Tensor) -> ttnn.Tensor:
        """float32 logits [1, 1, cells, 65] to bf16 scores in DRAM."""
        import ttnn

        interleaved = ttnn.sharded_to_interleaved(logits, ttnn.DRAM_MEMORY_CONFIG)
        _free(logits)
        scores = ttnn.softmax(interleaved, dim=-1, compute_kernel_config=self._precise, numeric_stable=True)
        _free(interleaved)
        rounded = ttnn.typecast(scores, ttnn.bfloat16)
        _free(scores)
        return rounded

    def _normalise(self, dense: ttnn.Tensor) -> ttnn.Tensor:
        """Rows of unit length, row-major in DRAM, so that a row is one read for the sampler.

        All rows, not only the sampled ones: descriptors are interpolated between unit rows, by definition.
        """
        import ttnn

        interleaved = ttnn.sharded_to_interleaved(dense, ttnn.DRAM_MEMORY_CONFIG)
        _free(dense)
        unit = self._rms_unit(interleaved) if self._stages.rms else self._chain_unit(interleaved)
        _free(interleaved)
        rows = ttnn.to_layout(unit, ttnn.ROW_MAJOR_LAYOUT)
        _free(unit)
        return rows

    def _rms_unit(self, dense: ttnn.Tensor) -> ttnn.Tensor:
        import ttnn

        return ttnn.rms_norm(dense, epsilon=0.0, weight=self._gamma, compute_kernel_config=self._precise)

    def _chain_unit(self, dense: ttnn.Tensor) -> ttnn.Tensor:
        """The same in four operations, each rounded to bf16: for comparisons on a card."""
        import ttnn

        squares = ttnn.multiply(dense, dense)
        total = ttnn.sum(squares, dim=-1, keepdim=True, compute_kernel_config=self._precise)
        inverse = ttnn.rsqrt(total)
        unit = ttnn.multiply(dense, inverse)
        for temporary in (squares, total, inverse):
            _free(temporary)
        return unit


class _Convolution:
    """One layer's weights and how it is launched."""

    def __init__(self, device: ttnn.MeshDevice, layer: Layer, folded: FoldedLayer) -> None:
        import ttnn

        self.layer = layer
        self._device = device
        # On the host until the first call, which puts them into the form that the convolution wants.
        self._weight = ttnn.from_torch(folded.weight.contiguous(), dtype=ttnn.bfloat16)
        self._bias = ttnn.from_torch(folded.bias.reshape(1, 1, 1, -1).contiguous(), dtype=ttnn.bfloat16)
        # A bound of 0 is ReLU, which the convolution does itself.
        self._relu = folded.floor is not None and not bool(folded.floor.any())
        self._floor = None if folded.floor is None or self._relu else _upload_row(device, folded.floor)
        self._scale = None if folded.scale is None else _upload_row(device, folded.scale)
        self._shift = None if folded.shift is None else _upload_row(device, folded.shift)

    def __call__(
        self,
        values: ttnn.Tensor,
        height: int,
        width: int,
        compute: ttnn.DeviceComputeKernelConfig,
        free_input: bool,
        in_l1: bool = True,
    ) -> ttnn.Tensor:
        import ttnn

        layer = self.layer
        padding = layer.kernel // 2
        result, (self._weight, self._bias) = ttnn.conv2d(
            input_tensor=values,
            weight_tensor=self._weight,
            bias_tensor=self._bias,
            device=self._device,
            in_channels=layer.inputs,
            out_channels=layer.outputs,
            batch_size=1,
            input_height=height,
            input_width=width,
            kernel_size=(layer.kernel, layer.kernel),
            stride=(1, 1),
            padding=(padding, padding),
            dilation=(1, 1),
            # Logits stay float32, see the module's text; they are the only layer with this many outputs.
            dtype=ttnn.float32 if layer.outputs == CELL_CHANNELS else ttnn.bfloat16,
            conv_config=self._config(free_input),
            compute_config=compute,
            slice_config=ttnn.Conv2dL1FullSliceConfig if in_l1 else None,
            return_weights_and_bias=True,
        )
        return result

    def bound(self, values: ttnn.Tensor) -> ttnn.Tensor:
        """The lower bound by channel, in place of `values`."""
        import ttnn

        return values if self._floor is None else ttnn.maximum(values, self._floor, output_tensor=values)

    def scale_and_shift(self, values: ttnn.Tensor) -> ttnn.Tensor:
        """BatchNorm with a negative scale, in place of `values`."""
        import ttnn

        if self._scale is None or self._shift is None:
            return values
        return ttnn.add_(ttnn.multiply_(values, self._scale), self._shift)

    def release(self) -> None:
        import ttnn

        for tensor in (self._weight, self._bias, self._floor, self._scale, self._shift):
            if tensor is not None and tensor.storage_type() == ttnn.StorageType.DEVICE:
                _free(tensor)

    def _config(self, free_input: bool) -> ttnn.Conv2dConfig:
        import ttnn

        layer = self.layer
        return ttnn.Conv2dConfig(
            weights_dtype=ttnn.bfloat16,
            activation=ttnn.UnaryWithParam(ttnn.UnaryOpType.RELU) if self._relu else None,
            shard_layout=ttnn.TensorMemoryLayout.HEIGHT_SHARDED,
            act_block_h_override=ACT_BLOCK_PIXELS if layer.outputs == WIDE_LAYER_CHANNELS else 0,
            deallocate_activation=free_input,
        )


def _max_pool(values: ttnn.Tensor, height: int, width: int, channels: int) -> ttnn.Tensor:
    import ttnn

    return ttnn.max_pool2d(
        input_tensor=values,
        batch_size=1,
        input_h=height,
        input_w=width,
        channels=channels,
        kernel_size=[2, 2],
        stride=[2, 2],
        padding=[0, 0],
        dilation=[1, 1],
        deallocate_input=True,
        output_layout=ttnn.TILE_LAYOUT,
    )


def _upload_row(device: ttnn.MeshDevice, vector: torch.Tensor) -> ttnn.Tensor:
    """A vector by channel, as operations broadcast it over pixels."""
    import ttnn

    row = vector.reshape(1, 1, 1, -1).contiguous()
    return ttnn.from_torch(
        row, dtype=ttnn.bfloat16, layout=ttnn.TILE_LAYOUT, device=device, memory_config=ttnn.DRAM_MEMORY_CONFIG
    )


def _free(tensor: ttnn.Tensor) -> None:
    import ttnn

    ttnn.deallocate(tensor)
