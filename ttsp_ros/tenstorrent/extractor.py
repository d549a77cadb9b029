"""The ttnn backend: `ttsp_ros.superpoint.extractor.Extractor` on a card."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from ttsp_ros.backends import NETWORKS
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.superpoint.image import Geometry, ImageError
from ttsp_ros.superpoint.network import NetworkOutputs, SuperPointNetwork
from ttsp_ros.superpoint.weights import find_weights, load_parameters
from ttsp_ros.tenstorrent.backbone import fold_network
from ttsp_ros.tenstorrent.network_stage import CardNetwork, HostNetwork, NetworkStage
from ttsp_ros.tenstorrent.session import DeviceError, DeviceSession
from ttsp_ros.tenstorrent.superpoint import SuperPointConfig, TtSuperPoint

Result = TypeVar("Result")
_Key = tuple[int, int, int]  # height, width, radius


@dataclass(frozen=True)
class TtExtractorConfig:
    """What is fixed when the extractor is made.

    Attributes:
        network: where the network runs, one of NETWORKS; "host" computes it with torch in bfloat16 and only what
            follows on the card.
        superpoint: see `SuperPointConfig`.
        plans: image sizes and radii that stay ready; the one that was not used for longest goes first.
    """

    network: str = "device"
    superpoint: SuperPointConfig = field(default_factory=SuperPointConfig)
    plans: int = 3

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise ValueError(f"network: got {self.network!r}, allowed are {', '.join(NETWORKS)}")
        if self.plans < 1:
            raise ValueError(f"plans: got {self.plans}, allowed is 1 and more")


class TtExtractor:
    """SuperPoint on a card. Callable from any thread: one thread of its own has the card, callers wait in turn.

    A card that fails in a frame costs that frame: the caller gets a DeviceError, the card is closed, and the next frame
    opens it anew. Nothing of a failed frame is ever given out later.

    Args:
        weights: a weight file; None for the default one.
        resize: (height, width) that every image is resized to; None keeps its size.
        session: how to open the card.
        config: see there.
        log: gets a line for every plan that is made.

    Raises:
        DeviceError: the card can't be opened.
        WeightsError: the weight file is missing or of another network.
    """

    backend = "ttnn"

    def __init__(
        self,
        weights: Path | None = None,
        resize: tuple[int, int] | None = None,
        session: DeviceSession | None = None,
        config: TtExtractorConfig | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        if resize is not None:
            Geometry.of(resize, resize)
        self._resize = resize
        self._session = session or DeviceSession()
        self._config = config or TtExtractorConfig()
        self._log = log
        self._closed = False
        self._plans: OrderedDict[_Key, TtSuperPoint] = OrderedDict()
        path = find_weights(weights)
        self._make_network = self._network_factory(path)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tenstorrent")
        try:
            grid = self._on_thread(self._open)
        except BaseException:
            self._thread.shutdown()
            raise
        network = "" if self._config.network == "device" else ", network on the host"
        self.description = f"Tenstorrent card with {grid} cores, bfloat16{network}, weights {path}"

    def extract(self, image: np.ndarray, settings: DetectionSettings, mask: np.ndarray | None = None) -> Features:
        """See `ttsp_ros.superpoint.extractor.Extractor.extract`.

        Raises:
            ImageError: the image, or the mask for it, can't be used, or is too large for the card.
            ValueError: settings that `check` refuses.
            DeviceError: the card failed; the next call tries again.
        """
        if image.ndim != 2 or image.dtype != np.uint8:
            raise ImageError(f"image: got {image.dtype} {image.shape}, expected uint8 [height, width]")
        self.check(settings)
        geometry = Geometry.of((image.shape[0], image.shape[1]), self._resize)
        network_mask = None if mask is None else torch.from_numpy(geometry.mask_to_network(mask))
        return self._on_thread(lambda: self._extract(geometry, geometry.to_network(image), settings, network_mask))

    def network_outputs(self, image: np.ndarray, settings: DetectionSettings) -> NetworkOutputs:
        """What the network alone gives for uint8 [H, W] with sides that are multiples of 8, in bfloat16."""
        geometry = Geometry.of((image.shape[0], image.shape[1]), None)

        def run() -> NetworkOutputs:
            self._extract(geometry, image, settings, None)
            return self._plan(geometry.network, settings.nms_radius).network_outputs()

        return self._on_thread(run)

    def check(self, settings: DetectionSettings) -> None:
        """Refuse more keypoints than the card's buffers hold; everything else may change from image to image."""
        kmax = self._config.superpoint.kmax
        if settings.max_keypoints > kmax:
            raise ValueError(f"max_keypoints: got {settings.max_keypoints}, allowed on the card are 1..{kmax}")

    def close(self) -> None:
        """Free everything and close the card. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        try:
            self._on_thread(self._close)
        except RuntimeError as error:
            self._log(f"the card failed while it was closed: {error}")
        finally:
            self._thread.shutdown()

    # ---- on the card's thread ---------------------------------------------------------------------------------------

    def _on_thread(self, work: Callable[[], Result]) -> Result:
        return self._thread.submit(work).result()

    def _open(self) -> str:
        self._session.open()
        grid = self._session.device.compute_with_storage_grid_size()
        return f"{grid.x}x{grid.y}"

    def _extract(
        self, geometry: Geometry, image: np.ndarray, settings: DetectionSettings, mask: torch.Tensor | None
    ) -> Features:
        try:
            if not self._session.is_open:
                self._log("opening the card again")
                self._open()
            with torch.inference_mode():
                found = self._plan(geometry.network, settings.nms_radius).extract(
                    image, settings, geometry.content, mask
                )
        except (ImageError, DeviceError):
            raise
        except Exception as error:
            self._abandon()
            raise DeviceError(f"the card failed in this frame, and is opened anew for the next: {error}") from error
        return Features(geometry.to_received(found.x, found.y), found.scores, found.descriptors)

    def _plan(self, size: tuple[int, int], radius: int) -> TtSuperPoint:
        """The graph for a size and radius, ready or made now."""
        key = (*size, radius)
        for other, plan in self._plans.items():
            if other != key:
                # Whatever is allocated from now on may lie where a trace writes, so only one may be replayable.
                plan.release_trace()
        if key not in self._plans:
            while len(self._plans) >= self._config.plans:
                self._plans.popitem(last=False)[1].release()
            self._plans[key] = self._make_plan(*key)
            self._log(f"plan for {self._plans[key].plan}")
        self._plans.move_to_end(key)
        return self._plans[key]

    def _make_plan(self, height: int, width: int, radius: int) -> TtSuperPoint:
        try:
            network = self._make_network(height, width)
            return TtSuperPoint(
                self._session.device,
                network,
                height,
                width,
                radius,
                self._config.superpoint,
                self._session.fast_dispatch,
            )
        except ValueError as error:
            raise ImageError(str(error)) from error

    def _network_factory(self, weights: Path) -> Callable[[int, int], NetworkStage]:
        parameters = load_parameters(weights)
        if self._config.network == "host":
            on_host = SuperPointNetwork(parameters, torch.bfloat16)
            return lambda height, width: HostNetwork(self._session.device, on_host, height, width)
        folded = fold_network(parameters)
        stages = self._config.superpoint.stages
        return lambda height, width: CardNetwork(self._session.device, folded, height, width, stages)

    def _abandon(self) -> None:
        """After a failure nothing on the card is trusted: forget the plans and close it."""
        self._plans.clear()
        try:
            self._session.close()
        except Exception as error:
            self._log(f"the card failed again while it was closed: {error}")

    def _close(self) -> None:
        try:
            while self._plans:
                self._plans.popitem()[1].release()
        finally:
            self._session.close()
