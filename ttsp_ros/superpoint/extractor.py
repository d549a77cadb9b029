"""One image in, its features out: what the ROS node and the replay tool use, whatever computes it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from ttsp_ros.superpoint.descriptors import sample
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.superpoint.image import Geometry, ImageError
from ttsp_ros.superpoint.keypoints import detect
from ttsp_ros.superpoint.network import NetworkOutputs, SuperPointNetwork
from ttsp_ros.superpoint.weights import find_weights, load_parameters

PRECISIONS = ("auto", "float32", "bfloat16")


class Extractor(Protocol):
    """Something that computes features.

    Attributes:
        backend: "torch" or "ttnn".
        description: one line for a log: what computes, in which precision, with which weights.
    """

    backend: str
    description: str

    def extract(self, image: np.ndarray, settings: DetectionSettings, mask: np.ndarray | None = None) -> Features:
        """Features of one image.

        Args:
            image: uint8 [H, W], gray, as received.
            settings: may differ from call to call.
            mask: uint8 [H, W], 0 where no keypoint is wanted.

        Raises:
            ImageError: the image, or the mask for it, can't be used.
        """
        ...

    def check(self, settings: DetectionSettings) -> None:
        """Refuse settings that would need an extractor made anew; computes nothing, and any thread may ask.

        Raises:
            ValueError: which setting is fixed, at what, and how to change it.
        """
        ...

    def close(self) -> None:
        """Give back what is held (a device, memory). The extractor is of no use afterwards."""
        ...


def has_bfloat16_hardware() -> bool:
    """Whether this CPU multiplies bfloat16 itself (AVX512-BF16 or AMX); elsewhere float32 is faster."""
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, probe, bool)() for probe in probes)


def choose_dtype(precision: str) -> torch.dtype:
    """The dtype for a precision of PRECISIONS.

    Raises:
        ValueError: another one.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision: got {precision!r}, allowed are {', '.join(PRECISIONS)}")
    if precision == "auto":
        return torch.bfloat16 if has_bfloat16_hardware() else torch.float32
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


class TorchExtractor:
    """SuperPoint on the CPU: the definition of the results, and the backend that runs everywhere.

    Args:
        weights: a weight file; None for the default one.
        precision: "float32", "bfloat16", or "auto": bfloat16 where the CPU has it in hardware.
        resize: (height, width) that every image is resized to; None keeps its size. Sides that aren't multiples of 8
            are padded either way.
        threads: of torch, for the whole process; None leaves torch's setting.

    Raises:
        WeightsError: the weight file is missing or of another network.
    """

    backend = "torch"

    def __init__(
        self,
        weights: Path | None = None,
        precision: str = "auto",
        resize: tuple[int, int] | None = None,
        threads: int | None = None,
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads: got {threads}, allowed is 1 and more")
        if resize is not None:
            Geometry.of(resize, resize)
        path = find_weights(weights)
        self._resize = resize
        self._threads = threads
        self._lock = threading.Lock()
        self._network = SuperPointNetwork(load_parameters(path), choose_dtype(precision))
        self.description = f"torch {torch.__version__}, {str(self._network.dtype)[6:]}, weights {path}"

    @property
    def dtype(self) -> torch.dtype:
        """torch.float32 or torch.bfloat16."""
        return self._network.dtype

    def network_outputs(self, image: np.ndarray) -> NetworkOutputs:
        """What the network alone gives for uint8 [H, W] with sides that are multiples of 8, in its own precision."""
        with self._lock:
            return self._run_network(image)

    def extract(self, image: np.ndarray, settings: DetectionSettings, mask: np.ndarray | None = None) -> Features:
        """See `Extractor.extract`. Safe to call from several threads; they wait for one another."""
        if image.ndim != 2 or image.dtype != np.uint8:
            raise ImageError(f"image: got {image.dtype} {image.shape}, expected uint8 [height, width]")
        height, width = image.shape
        geometry = Geometry.of((height, width), self._resize)
        network_mask = None if mask is None else torch.from_numpy(geometry.mask_to_network(mask))
        with self._lock, torch.inference_mode():
            outputs = self._run_network(geometry.to_network(image))
            found = detect(outputs.cells, settings, geometry.content, network_mask)
            descriptors = sample(outputs.dense, found.y, found.x)
        return Features(
            geometry.to_received(found.x.numpy(), found.y.numpy()), found.scores.float().numpy(), descriptors.numpy()
        )

    def check(self, settings: DetectionSettings) -> None:
        """Any settings will do, from one image to the next."""

    def close(self) -> None:
        """Nothing is held but memory."""

    def _run_network(self, image: np.ndarray) -> NetworkOutputs:
        # torch keeps the number for each thread, so it can't be set once for all callers.
        if self._threads is not None and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        return self._network(torch.from_numpy(np.require(image, requirements=["C", "W"])))
