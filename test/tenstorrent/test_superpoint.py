"""The ttnn backend without its network, on a simulated Blackhole: equal to the torch backend, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ttsp_ros.superpoint.extractor import TorchExtractor
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.tenstorrent.extractor import TtExtractor, TtExtractorConfig
from ttsp_ros.tenstorrent.session import DeviceSession
from ttsp_ros.tenstorrent.stages import Stages
from ttsp_ros.tenstorrent.superpoint import SuperPointConfig
from ttsp_ros.tools.quality import load_photograph

SIZE = (64, 96)


class BorrowedSession(DeviceSession):
    """The session's device, which stays open."""

    def __init__(self, device: Any) -> None:
        super().__init__()
        self._lent = device

    def open(self) -> None:
        self._device = self._lent

    @property
    def device(self) -> Any:
        return self._lent

    def close(self) -> None:
        self._device = None


@pytest.fixture
def build(device: Any) -> Iterator[Callable[..., TtExtractor]]:
    """Makes extractors on four cores of the simulated card, with the network on the host."""
    made: list[TtExtractor] = []

    def make(resize: tuple[int, int] | None = None, plans: int = 3, **config: Any) -> TtExtractor:
        superpoint = SuperPointConfig(core_limit=4, **config)
        made.append(
            TtExtractor(
                resize=resize,
                session=BorrowedSession(device),
                config=TtExtractorConfig("host", superpoint, plans),
            )
        )
        return made[-1]

    yield make
    for extractor in made:
        extractor.close()
        extractor.close()


@pytest.fixture(scope="module")
def torch_extractor() -> TorchExtractor:
    return TorchExtractor(precision="bfloat16")


@pytest.fixture(scope="module")
def photograph() -> np.ndarray:
    return load_photograph("camera.png", SIZE)


def assert_equal(found: Features, expected: Features) -> None:
    assert np.array_equal(found.keypoints, expected.keypoints)
    assert np.array_equal(found.scores, expected.scores)
    assert np.array_equal(found.descriptors.view(np.int32), expected.descriptors.view(np.int32))


def test_settings_from_frame_to_frame(build, torch_extractor, photograph):
    extractor = build()
    for settings, least in (
        (DetectionSettings(), 20),
        (DetectionSettings(threshold=0.0005, border=0), 50),
        (DetectionSettings(threshold=0.0005, max_keypoints=7), 7),
        (DetectionSettings(threshold=0.9), 0),
        (DetectionSettings(border=40), 0),
        (DetectionSettings(), 20),
    ):
        expected = torch_extractor.extract(photograph, settings)
        assert len(expected) >= least
        assert_equal(extractor.extract(photograph, settings), expected)


def test_more_keypoints_than_the_card_lists(build, torch_extractor, photograph):
    settings = DetectionSettings(threshold=0.0, max_keypoints=32)
    assert len(torch_extractor.extract(photograph, DetectionSettings(threshold=0.0))) > 32
    assert_equal(build(kmax=32).extract(photograph, settings), torch_extractor.extract(photograph, settings))


def test_a_plateau_overflows_the_slots(build, torch_extractor):
    # A uniform image scores alike in every cell, so NMS keeps far more than the 63 of a slot.
    gray, settings = np.full((64, 256), 128, np.uint8), DetectionSettings(threshold=0.0, nms_radius=1)
    expected = torch_extractor.extract(gray, settings)
    assert len(expected) > 8 * 63
    assert_equal(build().extract(gray, settings), expected)


def test_a_mask_chooses_from_the_cards_list(build, torch_extractor, photograph):
    mask = np.zeros(SIZE, np.uint8)
    mask[:, 50:] = 255
    settings = DetectionSettings(max_keypoints=5)
    expected = torch_extractor.extract(photograph, settings, mask)
    assert len(expected) == 5 and expected.keypoints[:, 0].min() >= 50
    assert_equal(build().extract(photograph, settings, mask), expected)


@pytest.mark.parametrize("size", [(61, 90), (64, 96)])
def test_padded_and_resized_images(build, torch_extractor, size):
    image = load_photograph("coins.png", size)
    assert_equal(build().extract(image, DetectionSettings()), torch_extractor.extract(image, DetectionSettings()))
    larger = load_photograph("coins.png", (120, 200))
    resized = TorchExtractor(precision="bfloat16", resize=size)
    assert_equal(build(resize=size).extract(larger, DetectionSettings()), resized.extract(larger, DetectionSettings()))


@pytest.mark.parametrize("off", [("sampler",), ("sampler", "nms")])
def test_stages_on_the_host_give_the_same_bits(build, torch_extractor, photograph, off):
    stages = Stages.of(name for name in Stages.names() if name not in off)
    found = build(stages=stages).extract(photograph, DetectionSettings())
    assert_equal(found, torch_extractor.extract(photograph, DetectionSettings()))


def test_a_split_read_back_gives_the_same_bits(build, torch_extractor, photograph):
    settings = DetectionSettings(threshold=0.0)
    found = build(head_fraction=0.5).extract(photograph, settings)
    assert_equal(found, torch_extractor.extract(photograph, settings))
