"""What the ttnn backend does when the card fails: on a scripted ttnn, since no simulated card can be made to."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

from ttsp_ros.superpoint.features import DetectionSettings
from ttsp_ros.superpoint.image import ImageError
from ttsp_ros.tenstorrent.extractor import TtExtractor, TtExtractorConfig
from ttsp_ros.tenstorrent.session import DeviceError, DeviceSession

from .scripted_ttnn import ScriptedTtnn

IMAGE = np.zeros((64, 96), np.uint8)
SETTINGS = DetectionSettings()


@pytest.fixture
def ttnn(monkeypatch: pytest.MonkeyPatch) -> ScriptedTtnn:
    """The scripted module, with fast dispatch, in place of the real one; the network's outputs have their shapes."""
    scripted = ScriptedTtnn()
    monkeypatch.setitem(sys.modules, "ttnn", scripted)
    monkeypatch.delenv("TT_METAL_SLOW_DISPATCH_MODE", raising=False)

    def outputs(self: object, image: object) -> object:
        scripted.conv2d(weight_tensor=None, bias_tensor=None)
        cells = self._height * self._width // 64
        return SimpleNamespace(
            scores=scripted._tensor((1, 1, cells, 65), scripted.bfloat16, scripted.TILE_LAYOUT),
            dense=scripted._tensor((1, 1, cells, 256), scripted.bfloat16, scripted.ROW_MAJOR_LAYOUT),
        )

    monkeypatch.setattr("ttsp_ros.tenstorrent.backbone.Backbone.__call__", outputs)
    return scripted


@pytest.fixture
def extractor(ttnn: ScriptedTtnn) -> Iterator[TtExtractor]:
    made = TtExtractor()
    yield made
    made.close()
    assert ttnn.open_devices == 0


def count(ttnn: ScriptedTtnn, name: str) -> int:
    return ttnn.calls.count(name)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("TT_FATAL: No chips detected in the cluster", "driver tt-kmd"),
        ("could not lock CHIP_IN_USE_0_PCIe", "another process has it"),
        ("Permission denied: /dev/tenstorrent/0", "add your user"),
        ("the firmware bundle 18.1 is older than", "release notes"),
        ("something new", "something new"),
    ],
)
def test_a_card_that_does_not_open_says_why(ttnn: ScriptedTtnn, message: str, advice: str) -> None:
    ttnn.failures["open_device"] = [RuntimeError(message)]
    with pytest.raises(DeviceError, match=r"card 0 can't be opened") as caught:
        TtExtractor()
    assert advice in str(caught.value) and message in str(caught.value)
    assert not any(thread.name.startswith("tenstorrent") for thread in threading.enumerate())


def test_no_ttnn_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ttnn", None)
    with pytest.raises(DeviceError, match="pip install ttnn"):
        TtExtractor()


def test_a_frame_is_one_upload_and_one_replay(ttnn: ScriptedTtnn, extractor: TtExtractor) -> None:
    extractor.extract(IMAGE, SETTINGS)
    before = list(ttnn.calls)
    extractor.extract(IMAGE, SETTINGS)
    steady = ttnn.calls[len(before) :]
    assert steady.count("execute_trace") == 1 and steady.count("copy_host_to_device_tensor") == 1
    assert "conv2d" not in steady and "generic_op" not in steady and "allocate_tensor_on_device" not in steady


@pytest.mark.parametrize("failing", ["copy_host_to_device_tensor", "execute_trace", "to_torch", "conv2d", "generic_op"])
def test_a_failing_frame_is_lost_and_the_next_is_new(ttnn: ScriptedTtnn, extractor: TtExtractor, failing: str) -> None:
    if failing in ("copy_host_to_device_tensor", "execute_trace", "to_torch"):
        extractor.extract(IMAGE, SETTINGS)  # in the middle of a run; the others only happen at the first image
    ttnn.failures[failing] = [RuntimeError("the card said no")]
    with pytest.raises(DeviceError, match="the card said no"):
        extractor.extract(IMAGE, SETTINGS)
    assert ttnn.open_devices == 0, "a card that failed is closed"
    captured = count(ttnn, "begin_trace_capture")
    assert len(extractor.extract(IMAGE, SETTINGS)) == 0
    assert ttnn.open_devices == 1
    assert count(ttnn, "begin_trace_capture") == captured + 2, "nothing of the failed card is used again"


def test_a_card_that_stays_away_fails_every_frame_until_it_is_back(ttnn: ScriptedTtnn, extractor: TtExtractor) -> None:
    gone = RuntimeError("No chips detected")
    ttnn.failures = {"execute_trace": [RuntimeError("hang")], "open_device": [gone, gone]}
    with pytest.raises(DeviceError, match="hang"):
        extractor.extract(IMAGE, SETTINGS)
    for _ in range(2):
        with pytest.raises(DeviceError, match="can't be opened"):
            extractor.extract(IMAGE, SETTINGS)
    assert len(extractor.extract(IMAGE, SETTINGS)) == 0


def test_a_card_that_fails_to_close_counts_as_closed(ttnn: ScriptedTtnn) -> None:
    extractor = TtExtractor()
    ttnn.failures = {"execute_trace": [RuntimeError("hang")], "close_device": [RuntimeError("hang again")]}
    with pytest.raises(DeviceError, match="hang"):
        extractor.extract(IMAGE, SETTINGS)
    assert len(extractor.extract(IMAGE, SETTINGS)) == 0
    extractor.close()
    extractor.close()
    assert count(ttnn, "close_device") == 2


def test_one_thread_has_the_card(ttnn: ScriptedTtnn, extractor: TtExtractor) -> None:
    with ThreadPoolExecutor(4) as cameras:
        list(cameras.map(lambda _: extractor.extract(IMAGE, SETTINGS), range(12)))
    assert len(ttnn.threads) == 1 and threading.get_ident() not in ttnn.threads
    assert count(ttnn, "execute_trace") == 12


def test_sizes_take_turns_with_one_live_trace(ttnn: ScriptedTtnn) -> None:
    lines: list[str] = []
    extractor = TtExtractor(config=TtExtractorConfig(plans=2), log=lines.append)
    sizes = [(64, 96), (64, 96), (96, 64), (64, 96), (128, 64), (64, 96)]
    for size in sizes:
        extractor.extract(np.zeros(size, np.uint8), SETTINGS)  # the scripted ttnn refuses what a live trace forbids
    plans = [line for line in lines if line.startswith("plan for")]
    assert [line.split()[2] for line in plans] == ["96x64:", "64x96:", "64x128:"]
    assert len(ttnn.live_traces) == 2
    extractor.close()


def test_settings_change_without_a_new_plan(ttnn: ScriptedTtnn, extractor: TtExtractor) -> None:
    extractor.extract(IMAGE, SETTINGS)
    allocated = count(ttnn, "allocate_tensor_on_device")
    extractor.extract(IMAGE, DetectionSettings(threshold=0.02, border=8, max_keypoints=100))
    assert count(ttnn, "allocate_tensor_on_device") == allocated


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.extract(IMAGE, DetectionSettings(max_keypoints=5000)), r"allowed on the card are 1\.\.1024"),
        (lambda e: e.extract(np.zeros((720, 1280), np.uint8), SETTINGS), "Set 'resize'"),
        (lambda e: e.extract(IMAGE.astype(np.float32), SETTINGS), "expected uint8"),
    ],
)
def test_what_the_card_cannot_take_is_refused_without_closing_it(
    ttnn: ScriptedTtnn, extractor: TtExtractor, call: Callable[[TtExtractor], object], message: str
) -> None:
    with pytest.raises((ImageError, ValueError), match=message):
        call(extractor)
    assert ttnn.open_devices == 1
    assert len(extractor.extract(IMAGE, SETTINGS)) == 0


def test_the_session_is_its_threads(ttnn: ScriptedTtnn) -> None:
    session = DeviceSession()
    with pytest.raises(DeviceError, match="not open"):
        _ = session.device
    session.open()
    with pytest.raises(DeviceError, match="open already"):
        session.open()
    with ThreadPoolExecutor(1) as other, pytest.raises(DeviceError, match="belongs to the thread"):
        other.submit(lambda: session.device).result()
    session.close()
    session.close()
    assert count(ttnn, "close_device") == 1
