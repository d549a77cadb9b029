"""Messages that are broken, by accident or not: refused, told and counted, and the next good one works."""

from __future__ import annotations

from array import array

import cv2
import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sensor_msgs.msg import CompressedImage, Image

from ttsp_ros.ros.conversions import gray_image
from ttsp_ros.superpoint.image import ImageError

from .conftest import FakeExtractor, array_message, image_message, set_header, stamp_of, wait_until

# fmt: off
ENCODINGS = [
    "mono8", "mono16", "rgb8", "bgr8", "rgba8", "bgra8", "rgb16", "bgra16", "8UC1", "8UC2", "8UC3", "8UC4",
    "8SC1", "16UC1", "16SC3", "32SC1", "32FC1", "32FC4", "64FC2", "bayer_rggb8", "bayer_bggr8",
    "bayer_gbrg16", "bayer_grbg16", "yuv422", "yuv422_yuy2", "uyvy", "yuyv", "nv12", "nv21", "nv24", "32UC1",
    "64UC1", "8UC0", "8UC5", "RGB8", "jpeg",
]
# fmt: on

# Mostly small, since that is where data and size can agree; sometimes what overflows a careless product.
SIZES = st.one_of(st.integers(0, 12), st.integers(0, 2**32 - 1))
IMAGES = st.builds(
    lambda encoding, height, width, step, big, data: Image(
        encoding=encoding, height=height, width=width, step=step, is_bigendian=big, data=array("B", data)
    ),
    st.one_of(st.sampled_from(ENCODINGS), st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=20)),
    SIZES,
    SIZES,
    st.one_of(st.integers(0, 200), SIZES),
    st.integers(0, 255),
    st.binary(max_size=600),
)


def picture(kind: str) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 50, 3), np.uint8)
    return cv2.imencode(f".{kind}", pixels)[1].tobytes()


@st.composite
def damaged_files(draw: st.DrawFn) -> bytes:
    """A JPEG or PNG with bytes changed, cut off, or appended; or bytes that are neither."""
    data = bytearray(draw(st.sampled_from((picture("jpg"), picture("png"), b"", b"\xff\xd8\xff", b"GIF89a"))))
    for _ in range(draw(st.integers(0, 5))):
        if data:
            data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.integers(0, len(data)))]) + draw(st.binary(max_size=30))


COMPRESSED = st.builds(
    lambda format, data: CompressedImage(format=format, data=array("B", data)),
    st.sampled_from(
        ("jpeg", "png", "rgb8; jpeg compressed bgr8", "16UC1; compressedDepth png", "", "bayer_rggb8; png")
    ),
    damaged_files(),
)

MANY = settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def assert_gray_or_refused(message: Image | CompressedImage) -> bool:
    """Whether it was taken; a test fails by any other exception than ImageError, or by one that says nothing."""
    try:
        image = gray_image(message)
    except ImageError as error:
        assert 10 < len(str(error)) < 500
        return False
    assert image.dtype == np.uint8 and image.ndim == 2 and image.size > 0
    if isinstance(message, Image):
        assert image.shape == (message.height, message.width)
    return True


@MANY
@given(IMAGES)
@example(Image(encoding="mono8", height=2**32 - 1, width=2**32 - 1, step=2**32 - 1))
@example(Image(encoding="64FC4", height=2**31, width=2**31, step=2**32 - 1, data=array("B", bytes(64))))
def test_any_image_is_gray_or_refused(message):
    assert_gray_or_refused(message)


@settings(MANY, max_examples=600)
@given(COMPRESSED)
def test_any_compressed_image_is_gray_or_refused(message):
    assert_gray_or_refused(message)


@settings(MANY, max_examples=300)
@given(st.sampled_from(ENCODINGS[:-6]), st.integers(2, 6), st.integers(0, 9), st.integers(0, 1), st.integers(0, 99))
def test_images_that_are_right_are_taken(encoding, side, padding, big, seed):
    """So that the tests above don't pass by refusing everything."""
    side *= 2
    step = side * 32 + padding
    data = np.random.default_rng(seed).integers(0, 255, side * step, np.uint8)
    message = Image(encoding=encoding, height=side, width=side, step=step, is_bigendian=big)
    message.data = array("B", data.tobytes())
    assert assert_gray_or_refused(message)


def broken(**fields) -> Image:
    message = image_message(1)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


BROKEN = {
    "width 0": (broken(width=0), "width and height must be at least 1"),
    "height 0": (broken(height=0), "width and height must be at least 1"),
    "no data": (broken(data=array("B")), "0 bytes of data are less than the 3072"),
    "short data": (broken(data=array("B", bytes(3071))), "3071 bytes of data are less"),
    "step of less than a row": (broken(step=63), "step of 63 bytes is less than the 64"),
    "step of more than the data": (broken(step=65), "bytes of data are less"),
    "huge height": (broken(height=2**32 - 1), "bytes of data are less"),
    "huge width": (broken(width=2**32 - 1, step=2**32 - 1), "bytes of data are less"),
    "unknown encoding": (broken(encoding="h264"), "encoding 'h264' is not known"),
    "empty encoding": (broken(encoding=""), "encoding '' is not known"),
    "wrong encoding": (broken(encoding="rgb8"), "step of 64 bytes is less than the 192"),
}


@pytest.fixture
def hostile_rig(make_rig):
    rig = make_rig(FakeExtractor(), diagnostics_period=0.05).start()
    rig.inbox = rig.listen("keypoints")
    rig.diagnostics = rig.listen(f"{rig.namespace}/diagnostics", DiagnosticArray)
    return rig


def assert_the_next_good_image_works(rig, refused: int) -> None:
    wait_until(lambda: rig.counts().refused == refused)
    before = len(rig.inbox)
    rig.publisher().publish(image_message(9, stamp=99))
    assert stamp_of(rig.inbox.wait(before + 1)[-1]) == 99
    counts = rig.counts()
    assert (counts.refused, counts.failed) == (refused, 0)


@pytest.mark.parametrize("name", list(BROKEN))
def test_over_ros_a_broken_image_is_refused_with_its_reason(hostile_rig, name, capfd):
    message, reason = BROKEN[name]
    hostile_rig.publisher().publish(message)
    assert_the_next_good_image_works(hostile_rig, refused=1)
    assert reason in hostile_rig.counts().refusal

    def warned() -> bool:
        return any(
            m.status[0].level == DiagnosticStatus.WARN and reason in m.status[0].message
            for m in hostile_rig.diagnostics.messages
        )

    wait_until(warned)
    counts = {pair.key: pair.value for pair in hostile_rig.diagnostics.messages[-1].status[0].values}
    assert counts["refused"] == "1" and reason in counts["last_refusal"]
    assert f"image refused: {hostile_rig.counts().refusal}" in capfd.readouterr().err


def test_a_flood_of_broken_images_is_one_line_in_the_log(hostile_rig, capfd):
    for number in range(1, 51):
        hostile_rig.publisher().publish(broken(width=0))
        wait_until(lambda number=number: hostile_rig.counts().refused == number)
    assert_the_next_good_image_works(hostile_rig, refused=50)
    assert capfd.readouterr().err.count("image refused") == 1


def test_big_endian_samples_and_nan_are_read(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor).start()
    inbox = rig.listen("keypoints")
    wide = array_message(np.full((40, 50), 0xAB12, ">u2"), encoding="mono16")
    wide.is_bigendian = 1
    rig.publisher().publish(wide)
    inbox.wait(1)
    assert (extractor.calls[-1][0] == round(0xAB12 / 257)).all()
    floats = np.linspace(0, 1, 2000, dtype="<f4").reshape(40, 50)
    floats[3, 4] = np.nan
    rig.publisher().publish(array_message(floats, encoding="32FC1"))
    inbox.wait(2)
    image = extractor.calls[-1][0]
    assert (image[3, 4], image[0, 0], image[-1, -1]) == (0, 0, 255)


def test_over_ros_a_broken_file_is_refused_and_the_next_good_one_works(make_rig):
    rig = make_rig(FakeExtractor(), transport="compressed").start()
    inbox = rig.listen("keypoints")
    publisher = rig.publisher("image/compressed", CompressedImage)
    jpeg = picture("jpg")
    files = [b"", b"neither", jpeg[:30], picture("png")[:200], b"\xff\xd8\xff" + bytes(100)]
    for count, data in enumerate(files, start=1):
        publisher.publish(CompressedImage(format="jpeg", data=data))
        wait_until(lambda count=count: rig.counts().refused == count)
    message = CompressedImage(format="jpeg", data=jpeg)
    set_header(message, 7, "camera")
    publisher.publish(message)
    assert stamp_of(inbox.wait()[0]) == 7


def test_a_mask_of_another_size_refuses_the_image_rather_than_ignoring_the_mask(make_rig):
    from ttsp_ros.backends import create_extractor

    rig = make_rig(make_extractor=create_extractor, backend="torch", precision="float32", threads=1).start()
    inbox = rig.listen("keypoints")
    rig.publisher("mask").publish(image_message(255, shape=(40, 40)))
    wait_until(lambda: rig.node._cameras[""]._mask is not None)
    rig.publisher().publish(image_message(1))
    wait_until(lambda: rig.counts().refused == 1)
    assert "mask of 40x40 pixels for an image of 64x48" in rig.counts().refusal
    rig.publisher("mask").publish(broken(width=0))
    rig.publisher("mask").publish(image_message(255))
    wait_until(lambda: rig.node._cameras[""]._mask.shape == (48, 64))
    rig.publisher().publish(image_message(1))
    inbox.wait()
