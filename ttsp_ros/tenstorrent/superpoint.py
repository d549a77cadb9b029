"""SuperPoint on the card, for one image size and NMS radius: network, NMS, descriptor sampling.

    image --load--> [ network -> scores, dense -> NMS -> keypoint list, descriptors ] --read--> keypoints

What is in brackets is one trace where dispatch is fast, so that a frame is one upload, one launch, one download. NMS
and sampling are `ttsp_ros.tenstorrent.nms` and `ttsp_ros.tenstorrent.sampler`. One command queue: a second one would
overlap the upload of the next image with this one's work, but whoever wants low latency has no next image yet.

The host chooses the keypoints where the card can't: more than `kmax` of them, a slot of NMS that overflowed (plateaus),
or a radius that only ttnn's own operations take. It then uploads its list, and a second, short program (trace) samples
there. Both ways give the same keypoints, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from ttsp_ros.superpoint import keypoints
from ttsp_ros.superpoint.descriptors import sample
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.superpoint.keypoints import CELL, Selection
from ttsp_ros.superpoint.network import NetworkOutputs
from ttsp_ros.tenstorrent import layout
from ttsp_ros.tenstorrent.backbone import BackboneOutputs
from ttsp_ros.tenstorrent.network_stage import NetworkStage
from ttsp_ros.tenstorrent.nms import ChainPlan, DeviceNms, choose_plan
from ttsp_ros.tenstorrent.sampler import DeviceSampler, Sampled, SamplerPlan, choose
from ttsp_ros.tenstorrent.stages import Stages

if TYPE_CHECKING:
    import ttnn


@dataclass(frozen=True)
class SuperPointConfig:
    """What is fixed for all image sizes.

    Attributes:
        stages: which forms of the stages run.
        kmax: keypoints of one image at most; a multiple of 32.
        core_limit: NMS and sampling use at most this many cores; None for all.
        head_fraction: see `SamplerPlan`.
    """

    stages: Stages = field(default_factory=Stages)
    kmax: int = 1024
    core_limit: int | None = None
    head_fraction: float = 1.0


@dataclass(frozen=True)
class Found:
    """Keypoints of one image in pixels of the network's image, best first, equal scores in raster order.

    Attributes:
        x, y: int64 [N].
        scores: float32 [N].
        descriptors: float32 [N, 256], unit length.
    """

    x: np.ndarray
    y: np.ndarray
    scores: np.ndarray
    descriptors: np.ndarray

    @staticmethod
    def empty() -> Found:
        none, nothing = np.zeros(0, np.int64), Features.empty()
        return Found(none, none, nothing.scores, nothing.descriptors)

    @staticmethod
    def of(chosen: Selection, descriptors: torch.Tensor) -> Found:
        return Found(chosen.x.numpy(), chosen.y.numpy(), chosen.scores.float().numpy(), descriptors.numpy())


class TtSuperPoint:
    """The graph for one image size and radius on an open device. Everything is planned and allocated at the start.

    Args:
        device: an open device; all calls come from its owner's thread.
        network: the first part of the graph, for the same size; belongs to this object from now on.
        height, width: of the network's image, multiples of 8.
        radius: of NMS.
        config: see there.
        fast_dispatch: whether traces are possible.

    Raises:
        ValueError: a size or radius that the card can't take; it says what is allowed.
    """

    def __init__(
        self,
        device: ttnn.MeshDevice,
        network: NetworkStage,
        height: int,
        width: int,
        radius: int,
        config: SuperPointConfig,
        fast_dispatch: bool,
    ) -> None:
        self._device = device
        self._network = network
        self._height = height
        self._width = width
        self._radius = radius
        self._stages = config.stages
        self._nms: DeviceNms | None = None
        self._sampler: DeviceSampler | None = None
        self._outputs: BackboneOutputs | None = None
        self._traces: _Traces | None = None
        self._traced = config.stages.trace and fast_dispatch
        try:
            self._allocate(config)
        except BaseException:
            self.release()
            raise

    def _allocate(self, config: SuperPointConfig) -> None:
        grid = self._device.compute_with_storage_grid_size()
        cores = min(config.core_limit or grid.x * grid.y, grid.x * grid.y)
        if self._stages.nms:
            chain = isinstance(choose_plan(self._height, self._width, self._radius, cores), ChainPlan)
            self._nms = DeviceNms(
                self._device,
                self._height,
                self._width,
                self._radius,
                border=0,
                emit_map=chain,
                emit_keypoints=not chain,
                core_limit=cores,
            )
        if self._stages.sampler:
            plan = SamplerPlan(
                self._height,
                self._width,
                columns=grid.x,
                cores=min(cores, config.kmax),
                kmax=config.kmax,
                head_fraction=config.head_fraction,
            )
            self._sampler = DeviceSampler(self._device, plan, self._slot_map())

    def _slot_map(self) -> layout.SlotMap:
        if self._nms is None or isinstance(self._nms.plan, ChainPlan):
            # No lists from NMS: the sampler's main program does not run, and its top-k program needs none.
            return layout.SlotMap(self._height, self._width, self._height, 1)
        return self._nms.plan.slot_map

    @property
    def plan(self) -> str:
        """What runs how, one line a stage, for a log."""
        nms = str(self._nms.plan) if self._nms is not None else "NMS on the host"
        sampling = "descriptors sampled on the card" if self._sampler is not None else "descriptors sampled on the host"
        launch = "one trace" if self._traced else "operation by operation"
        return f"{self._width}x{self._height}: {launch}; {nms}; {sampling}"

    def extract(
        self, image: np.ndarray, settings: DetectionSettings, content: tuple[int, int], mask: torch.Tensor | None
    ) -> Found:
        """Keypoints and descriptors of one image.

        Args:
            image: uint8 [height, width].
            settings: its radius is this object's.
            content: (height, width) of the image in its top-left corner, the rest is padding.
            mask: bool [height, width], False where no keypoint is wanted; None for everywhere.
        """
        if 2 * settings.border >= min(content):
            return Found.empty()
        bucket = self._set_params(settings, content)
        self._network.load(image)
        self._launch()
        sampled = self._read(bucket)
        if sampled is not None and sampled.complete:
            best = sampled.best(settings.max_keypoints, mask)
            return Found.of(Selection(best.x, best.y, best.scores), best.descriptors)
        chosen = self._choose(settings, content, mask, sampled)
        return Found.of(chosen, self._sample(chosen))

    def network_outputs(self) -> NetworkOutputs:
        """What the network gave for the last image, on the host: for comparisons."""
        if self._outputs is None:
            raise RuntimeError("no image has been through the network yet")
        rows, columns = self._height // CELL, self._width // CELL
        cells = _to_host(self._outputs.scores).reshape(rows, columns, -1).permute(2, 0, 1)
        return NetworkOutputs(cells, _to_host(self._outputs.dense).reshape(rows, columns, -1))

    def release_trace(self) -> None:
        """Give up the traces. The next image captures them anew, which takes no compilation."""
        if self._traces is not None:
            self._traces.release(self._device)
            self._traces = None
            self._free_outputs()

    def release(self) -> None:
        """Free everything, once."""
        self.release_trace()
        self._free_outputs()
        if self._sampler is not None:
            self._sampler.release()
        if self._nms is not None:
            self._nms.release()
        if self._network is not None:
            self._network.release()
        self._sampler = self._nms = None

    # ---- launching --------------------------------------------------------------------------------------------------

    def _set_params(self, settings: DetectionSettings, content: tuple[int, int]) -> int:
        """Tell the card the settings; the bucket that the sampler's result is expected in."""
        if self._nms is None:
            return 0
        bucket, limit = 0, 0
        if self._sampler is not None:
            bucket, limit = self._sampler.speculation.bucket, self._sampler.plan.kmax
        self._nms.set_params(settings.threshold, settings.border, image_size=content, bucket=bucket, limit=limit)
        return bucket

    def _launch(self) -> None:
        if not self._traced:
            self._free_outputs()
            self._outputs = self.run_graph()
            return
        import ttnn

        if self._traces is None:
            self._capture()
        assert self._traces is not None
        ttnn.execute_trace(self._device, self._traces.main, cq_id=0, blocking=False)

    def _capture(self) -> None:
        """Run once, so that all is compiled and the weights are in place, then record the same launches."""
        import ttnn

        self._network.free(self.run_graph())
        main = ttnn.begin_trace_capture(self._device, cq_id=0)
        self._outputs = self.run_graph()
        ttnn.end_trace_capture(self._device, main, cq_id=0)
        self._traces = _Traces(main)
        if self._sampler is not None:
            self._sampler.run_top_k(self._outputs.dense)
            top_k = ttnn.begin_trace_capture(self._device, cq_id=0)
            self._sampler.run_top_k(self._outputs.dense)
            ttnn.end_trace_capture(self._device, top_k, cq_id=0)
            self._traces = _Traces(main, top_k)

    def run_graph(self) -> BackboneOutputs:
        """Every launch of a frame, on the image that was loaded last: for `extract`, traces and graph capture."""
        outputs = self._network.run()
        if self._nms is None:
            return outputs
        found = self._nms(outputs.scores)
        if self._sampler is not None and found.records is not None and found.counts is not None:
            self._sampler.run(outputs.dense, found.records, found.counts, self._nms.params)
        return outputs

    def _free_outputs(self) -> None:
        if self._outputs is not None:
            self._network.free(self._outputs)
            self._outputs = None

    # ---- reading ----------------------------------------------------------------------------------------------------

    def _read(self, bucket: int) -> Sampled | None:
        """What the sampler made of the card's list; None where there is no such list."""
        if self._sampler is None or self._nms is None or self._nms.output.records is None:
            return None
        return self._sampler.read(bucket)

    def _choose(
        self,
        settings: DetectionSettings,
        content: tuple[int, int],
        mask: torch.Tensor | None,
        sampled: Sampled | None,
    ) -> Selection:
        """The host's choice among the card's candidates, or from its NMS map, or from the scores."""
        if self._nms is not None and self._nms.output.map is not None:
            scores = _to_host(self._nms.output.map).reshape(self._height, self._width)
            raster = keypoints.candidates_of_nms_map(scores, settings, content, mask)
            return keypoints.select(scores, raster, settings.max_keypoints)
        if self._nms is not None and (sampled is None or sampled.overflow_slots == 0):
            listed = self._candidates()
            if listed.overflowed == 0:
                y, x, listed_scores = choose(listed, settings.max_keypoints, mask)
                return Selection(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(listed_scores))
        return keypoints.detect(self.network_outputs().cells, settings, content, mask)

    def _candidates(self) -> layout.CandidateList:
        assert self._nms is not None and self._nms.output.candidates is not None
        words = _to_host(self._nms.output.candidates).numpy().view(np.uint32)
        return layout.decode_candidates(words, self._slot_map())

    def _sample(self, chosen: Selection) -> torch.Tensor:
        """float32 [N, 256] of unit length at the host's choice."""
        assert self._outputs is not None
        if self._sampler is None:
            return sample(self.network_outputs().dense, chosen.y, chosen.x)
        scores = chosen.scores.float().numpy()
        self._sampler.upload(chosen.y.numpy(), chosen.x.numpy(), scores, len(chosen))
        if self._traces is not None and self._traces.top_k is not None:
            import ttnn

            ttnn.execute_trace(self._device, self._traces.top_k, cq_id=0, blocking=False)
        else:
            self._sampler.run_top_k(self._outputs.dense)
        return self._sampler.read_top_k(len(chosen)).descriptors


@dataclass(frozen=True)
class _Traces:
    """Captured traces."""

    main: ttnn.MeshTraceId
    top_k: ttnn.MeshTraceId | None = None

    def release(self, device: ttnn.MeshDevice) -> None:
        import ttnn

        for trace in (self.main, self.top_k):
            if trace is not None:
                ttnn.release_trace(device, trace)


def _to_host(tensor: ttnn.Tensor) -> torch.Tensor:
    import ttnn

    return ttnn.to_torch(tensor)
