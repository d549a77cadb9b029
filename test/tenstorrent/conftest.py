"""For the tests of kernels: score maps, and a DeviceNms held to its golden()."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from ttsp_ros.tenstorrent import layout
from ttsp_ros.tenstorrent.nms import DeviceNms, NmsPlan, golden


def unfold(image: torch.Tensor) -> torch.Tensor:
    """Cells bf16 [h * w, 65] whose fold is `image` bf16 [8 h, 8 w]; the dustbin is all 1, which nothing may notice."""
    height, width = image.shape
    cells = image.reshape(height // 8, 8, width // 8, 8).permute(0, 2, 1, 3).reshape(-1, 64)
    return torch.cat([cells, torch.ones_like(cells[:, :1])], 1)


def from_bits(bits: torch.Tensor) -> torch.Tensor:
    """bf16 from its 16 bits."""
    return bits.to(torch.int16).view(torch.bfloat16)


def random_scores(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """bf16 [H, W] of all magnitudes: few ties, many keypoints."""
    generator = torch.Generator().manual_seed(seed)
    return (0.9 / (1 + 100 * torch.rand(height, width, generator=generator))).bfloat16()


@dataclass(frozen=True)
class Result:
    """What a DeviceNms gave, on the host."""

    map: torch.Tensor
    counts: np.ndarray
    candidates: np.ndarray
    records: np.ndarray

    def check(self, nms: DeviceNms, image: torch.Tensor) -> None:
        """Equal to golden(), bit for bit, in all that has a meaning."""
        assert isinstance(nms.plan, NmsPlan)
        expected = golden(nms.plan, unfold(image), nms.written_params)
        assert torch.equal(self.map.view(torch.int16), expected.map.view(torch.int16))
        assert self.counts.tolist() == expected.counts.tolist()
        assert self.candidates[:, layout.CANDIDATE_COUNT_WORD].tolist() == expected.counts.tolist()
        for slot, (words, records) in enumerate(zip(expected.candidates, expected.records, strict=True)):
            assert self.candidates[slot, layout.CANDIDATE_FIRST_WORD :][: len(words)].tolist() == words
            assert self.records[slot][: len(records)].tolist() == records.tolist()


@dataclass(frozen=True)
class NmsRunner:
    """Runs score maps through operations on the device."""

    device: object

    def upload(self, image: torch.Tensor) -> object:
        import ttnn

        return ttnn.from_torch(
            unfold(image)[None, None],
            dtype=ttnn.bfloat16,
            layout=ttnn.TILE_LAYOUT,
            device=self.device,
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )

    def __call__(self, nms: DeviceNms, image: torch.Tensor) -> Result:
        import ttnn

        scores = self.upload(image)
        output = nms(scores)
        slots = nms.plan.slot_map.slots

        def words(tensor: object) -> np.ndarray:
            return ttnn.to_torch(tensor).numpy().view(np.uint32)

        result = Result(
            map=ttnn.to_torch(output.map).reshape(image.shape),
            counts=layout.decode_counts(words(output.counts), slots),
            candidates=words(output.candidates).reshape(slots, -1),
            records=words(output.records).reshape(slots, -1, layout.RECORD_WORDS),
        )
        ttnn.deallocate(scores)
        return result


@pytest.fixture
def run_nms(device: object) -> NmsRunner:
    return NmsRunner(device)


@pytest.fixture
def build_nms(device: object) -> Iterator[Callable[..., DeviceNms]]:
    """Builds DeviceNms objects, which are released after the test."""
    built: list[DeviceNms] = []

    def build(*args: int, **kwargs: object) -> DeviceNms:
        built.append(DeviceNms(device, *args, **kwargs))
        return built[-1]

    yield build
    for nms in built:
        nms.release()
