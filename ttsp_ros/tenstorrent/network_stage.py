"""Where the network runs: on the card, or on the host with only what follows on the card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from ttsp_ros.superpoint.keypoints import CELL, CELL_CHANNELS
from ttsp_ros.superpoint.network import FoldedLayer, SuperPointNetwork
from ttsp_ros.tenstorrent.backbone import Backbone, BackboneOutputs, image_shape, image_values
from ttsp_ros.tenstorrent.stages import Stages

if TYPE_CHECKING:
    import ttnn


class NetworkStage(Protocol):
    """The first part of the graph, for one image size."""

    def load(self, image: np.ndarray) -> None:
        """Bring the uint8 image [height, width] to the card. Not part of a trace."""
        ...

    def run(self) -> BackboneOutputs:
        """Launch the operations on what was loaded. Nothing comes from the host, so a trace can hold it."""
        ...

    def free(self, outputs: BackboneOutputs) -> None:
        """Give back what `run` gave."""
        ...

    def release(self) -> None:
        """Free everything."""
        ...


class CardNetwork:
    """The network as ttnn operations.

    Images are resized on the host, before: a 1280x720 image has three times the bytes of a 640x480 one to upload, and
    OpenCV's area averaging, which the torch backend uses too, takes 0.8 ms on one core.
    """

    def __init__(
        self, device: ttnn.MeshDevice, layers: Mapping[str, FoldedLayer], height: int, width: int, stages: Stages
    ) -> None:
        import ttnn

        self._stages = stages
        self._backbone = Backbone(device, layers, height, width, stages)
        self._image = _allocate(device, image_shape(height, width, stages), ttnn.ROW_MAJOR_LAYOUT)

    def load(self, image: np.ndarray) -> None:
        import ttnn

        host = ttnn.from_torch(image_values(image, self._stages), layout=ttnn.ROW_MAJOR_LAYOUT)
        ttnn.copy_host_to_device_tensor(host, self._image)

    def run(self) -> BackboneOutputs:
        return self._backbone(self._image)

    def free(self, outputs: BackboneOutputs) -> None:
        import ttnn

        ttnn.deallocate(outputs.scores)
        ttnn.deallocate(outputs.dense)

    def release(self) -> None:
        import ttnn

        self._backbone.release()
        ttnn.deallocate(self._image)


class HostNetwork:
    """The torch network in bf16 on the host; its scores and descriptors are uploaded.

    For finding out which half of the graph is at fault, on a card, and for running all but the network on a simulated
    one. Results equal those of the torch backend in bf16.
    """

    def __init__(self, device: ttnn.MeshDevice, network: SuperPointNetwork, height: int, width: int) -> None:
        import ttnn

        self._network = network
        cells = (height // CELL) * (width // CELL)
        self._outputs = BackboneOutputs(
            scores=_allocate(device, (1, 1, cells, CELL_CHANNELS), ttnn.TILE_LAYOUT),
            dense=_allocate(device, (1, 1, cells, 256), ttnn.ROW_MAJOR_LAYOUT),
        )

    def load(self, image: np.ndarray) -> None:
        import ttnn

        outputs = self._network(torch.from_numpy(np.require(image, requirements=["C", "W"])))
        scores = outputs.cells.reshape(CELL_CHANNELS, -1).T[None, None].contiguous()
        dense = outputs.dense.reshape(1, 1, -1, outputs.dense.shape[2])
        for values, target, order in (
            (scores, self._outputs.scores, ttnn.TILE_LAYOUT),
            (dense, self._outputs.dense, ttnn.ROW_MAJOR_LAYOUT),
        ):
            ttnn.copy_host_to_device_tensor(ttnn.from_torch(values, dtype=ttnn.bfloat16, layout=order), target)

    def run(self) -> BackboneOutputs:
        return self._outputs

    def free(self, outputs: BackboneOutputs) -> None:
        """They stay: the next image is written into them."""

    def release(self) -> None:
        import ttnn

        ttnn.deallocate(self._outputs.scores)
        ttnn.deallocate(self._outputs.dense)


def _allocate(device: ttnn.MeshDevice, shape: tuple[int, ...], order: ttnn.Layout) -> ttnn.Tensor:
    import ttnn

    return ttnn.allocate_tensor_on_device(ttnn.Shape(shape), ttnn.bfloat16, order, device, ttnn.DRAM_MEMORY_CONFIG)
