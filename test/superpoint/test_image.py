"""Every encoding to gray, hostile messages refused, sizes and coordinates."""

from __future__ import annotations

import array
import re

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttsp_ros.superpoint import image as image_module
from ttsp_ros.superpoint.image import Geometry, ImageError, decode_compressed, decode_image

HEIGHT, WIDTH = 48, 64


@pytest.fixture(scope="module")
def colour() -> np.ndarray:
    """A smooth RGB image, so that Bayer patterns and chroma can be interpolated back."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    return np.stack([40 + 3 * x, 60 + 2 * y, 200 - x - y], axis=-1).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def gray(colour) -> np.ndarray:
    return np.rint(colour @ np.array([0.299, 0.587, 0.114])).astype(np.uint8)


def decode(encoding: str, samples: np.ndarray, padding: int = 0, big_endian: bool = False) -> np.ndarray:
    samples = samples.astype(samples.dtype.newbyteorder(">" if big_endian else "<"))
    rows = np.ascontiguousarray(samples).view(np.uint8).reshape(samples.shape[0], -1)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=0xA5)
    return decode_image(encoding, samples.shape[0], samples.shape[1], rows.shape[1], big_endian, rows.tobytes())


def mosaic(colour: np.ndarray, pattern: str) -> np.ndarray:
    """What a sensor with the pattern (first row, then second row) sees."""
    result = np.empty(colour.shape[:2], colour.dtype)
    for index, letter in enumerate(pattern):
        row, column = divmod(index, 2)
        result[row::2, column::2] = colour[row::2, column::2, "rgb".index(letter)]
    return result


@pytest.mark.parametrize("padding", [0, 3])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("order", ["rgb", "bgr", "rgba", "bgra"])
def test_colour(colour, gray, order, bits, big_endian, padding):
    channels = {letter: colour[..., "rgb".index(letter)] for letter in "rgb"} | {"a": np.full_like(gray, 7)}
    samples = np.stack([channels[letter] for letter in order], axis=-1)
    if bits == 16:
        samples = samples.astype(np.uint16) * 257
    result = decode(f"{order}{bits}", samples, padding, big_endian)
    assert result.dtype == np.uint8
    assert np.abs(result.astype(int) - gray).max() <= 1


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
def test_bayer(colour, gray, pattern, bits):
    samples = mosaic(colour, pattern)
    if bits == 16:
        samples = samples.astype(np.uint16) * 257
    result = decode(f"bayer_{pattern}{bits}", samples, padding=2)
    error = np.abs(result.astype(int) - gray)[2:-2, 2:-2]
    assert error.max() <= 3
    # The test tells the patterns apart.
    others = [p for p in ("rggb", "bggr", "gbrg", "grbg") if p != pattern]
    assert all(np.abs(decode(f"bayer_{p}{bits}", samples).astype(int) - gray)[2:-2, 2:-2].max() > 8 for p in others)


@pytest.mark.parametrize("padding", [0, 5])
@pytest.mark.parametrize("encoding", ["mono8", "8UC1"])
def test_mono8_is_taken_as_it_is(gray, encoding, padding):
    np.testing.assert_array_equal(decode(encoding, gray, padding), gray)


def test_mono8_is_a_view():
    data = bytes(range(200)) * 20
    result = decode_image("mono8", 40, 90, 100, False, data)
    assert np.shares_memory(result, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("big_endian", [False, True])
def test_mono16_uses_the_range_of_the_type(big_endian):
    samples = np.array([[0, 128, 129, 257, 32896, 65535]], np.uint16)
    assert decode("mono16", samples, 1, big_endian).tolist() == [[0, 0, 1, 1, 128, 255]]


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("encoding", ["16UC1", "16SC1", "32SC1", "32FC1", "64FC1", "8SC1"])
def test_types_without_a_colour_are_stretched(encoding, big_endian):
    dtype = {"8S": "i1", "16U": "u2", "16S": "i2", "32S": "i4", "32F": "f4", "64F": "f8"}[encoding[:-2]]
    samples = np.array([[10, 60, 110]]).astype(dtype)
    assert decode(encoding, samples, 3, big_endian).tolist() == [[0, 128, 255]]
    assert decode(encoding, np.full((2, 2), 9, dtype)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_floats_that_are_not_numbers(dtype):
    encoding = "32FC1" if dtype == np.float32 else "64FC1"
    samples = np.array([[np.nan, 1.0, 2.0, 3.0, np.inf, -np.inf]], dtype)
    assert decode(encoding, samples).tolist() == [[0, 0, 128, 255, 255, 0]]
    assert decode(encoding, np.full((2, 2), np.nan, dtype)).max() == 0
    extremes = np.array([[np.finfo(dtype).min, 0, np.finfo(dtype).max]], dtype)
    assert decode(encoding, extremes).tolist() == [[0, 128, 255]]
    tiny = np.array([[0, 5e-324, 5e-324]], np.float64)
    assert decode("64FC1", tiny).tolist()[0][0] == 0


def test_generic_types_of_several_channels(colour, gray):
    bgr = colour[..., ::-1]
    assert np.abs(decode("8UC3", bgr).astype(int) - gray).max() <= 1
    assert np.abs(decode("8UC4", np.dstack([bgr, gray])).astype(int) - gray).max() <= 1
    np.testing.assert_array_equal(decode("8UC2", np.dstack([gray, gray * 0]), 2), gray)
    for channels in (2, 3, 4):
        assert decode(f"16UC{channels}", np.zeros((4, 4, channels), np.uint16)).shape == (4, 4)
        assert decode(f"32FC{channels}", np.random.rand(4, 4, channels).astype(np.float32)).shape == (4, 4)


def test_yuv_takes_luma(gray):
    chroma = np.full_like(gray, 99)
    for encoding in ("yuv422", "uyvy"):
        np.testing.assert_array_equal(decode(encoding, np.dstack([chroma, gray]), 4), gray)
    for encoding in ("yuv422_yuy2", "yuyv"):
        np.testing.assert_array_equal(decode(encoding, np.dstack([gray, chroma]), 4), gray)
    for encoding in ("nv12", "nv21", "nv24"):
        data = gray.tobytes() + chroma.tobytes()
        np.testing.assert_array_equal(decode_image(encoding, HEIGHT, WIDTH, WIDTH, False, data), gray)


def test_every_standard_encoding_is_known():
    names = ["mono8", "mono16", "yuv422", "yuv422_yuy2", "uyvy", "yuyv", "nv21", "nv24"]
    names += [f"{c}{b}" for c in ("rgb", "rgba", "bgr", "bgra") for b in (8, 16)]
    names += [f"bayer_{p}{b}" for p in ("rggb", "bggr", "gbrg", "grbg") for b in (8, 16)]
    names += [f"{t}C{c}" for t in ("8U", "8S", "16U", "16S", "32S", "32F", "64F") for c in (1, 2, 3, 4)]
    for name in names:
        assert decode_image(name, 4, 4, 128, False, bytes(512)).shape == (4, 4), name


@pytest.mark.parametrize(
    "make", [bytes, bytearray, memoryview, lambda b: array.array("B", b), lambda b: np.frombuffer(b, np.uint8)]
)
def test_data_in_any_buffer(make):
    assert decode_image("mono8", 2, 3, 3, False, make(bytes(range(6)))).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_last_row_may_lack_its_padding():
    assert decode_image("mono8", 2, 3, 5, False, bytes(8)).shape == (2, 3)
    with pytest.raises(ImageError, match="7 bytes of data are less than the 8"):
        decode_image("mono8", 2, 3, 5, False, bytes(7))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("mono8", 0, 4, 4, False, b""), "4x0 pixels"),
        (("mono8", 4, 0, 4, False, bytes(16)), "0x4 pixels"),
        (("mono8", 4, 4, 3, False, bytes(16)), "step of 3 bytes is less than the 4 "),
        (("rgb8", 4, 4, 4, False, bytes(16)), "step of 4 bytes is less than the 12 "),
        (("mono8", 4, 4, 0, False, bytes(16)), "step of 0 bytes"),
        (("mono8", 4, 4, 4, False, bytes(15)), "15 bytes of data are less than the 16"),
        (("mono8", 2**32 - 1, 2**32 - 1, 2**32 - 1, False, bytes(16)), "16 bytes of data"),
        (("64FC4", 2**32 - 1, 2**32 - 1, 2**32 - 1, False, bytes(16)), "step"),
        (("", 4, 4, 4, False, bytes(16)), "encoding '' is not known"),
        (("x" * 9999, 4, 4, 4, False, bytes(16)), "encoding 'xxxx"),
        (("32UC1", 4, 4, 16, False, bytes(64)), "encoding '32UC1' is not known"),
        (("8UC5", 4, 4, 20, False, bytes(80)), "not known"),
    ],
)
def test_contradictions_are_refused(fields, message):
    with pytest.raises(ImageError, match=re.escape(message)) as error:
        decode_image(*fields)
    assert len(str(error.value)) < 600


ENCODINGS = [
    "mono8",
    "mono16",
    "rgb8",
    "bgra16",
    "bayer_rggb8",
    "bayer_gbrg16",
    "yuv422",
    "nv12",
    "8UC2",
    "16UC1",
    "32FC1",
]
ENCODINGS += ["32FC3", "64FC2", "16SC4", "8SC1", "junk", ""]


@given(
    encoding=st.sampled_from(ENCODINGS),
    height=st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
    width=st.one_of(st.integers(0, 9), st.integers(0, 2**32 - 1)),
    step=st.one_of(st.integers(0, 80), st.integers(0, 2**32 - 1)),
    big_endian=st.booleans(),
    data=st.binary(max_size=600),
)
@settings(max_examples=2000, deadline=None)
def test_random_messages_give_an_image_or_a_refusal(encoding, height, width, step, big_endian, data):
    try:
        result = decode_image(encoding, height, width, step, big_endian, data)
    except ImageError:
        return
    assert result.dtype == np.uint8 and result.shape == (height, width)


def encoded(extension: str, image: np.ndarray) -> bytes:
    return cv2.imencode(extension, image)[1].tobytes()


def test_jpeg_and_png(colour, gray):
    bgr = np.ascontiguousarray(colour[..., ::-1])
    for samples in (bgr, gray):
        error = decode_compressed("bgr8; jpeg compressed bgr8", encoded(".jpg", samples)).astype(int) - gray
        assert np.abs(error).max() <= 4
        assert np.abs(decode_compressed("png", encoded(".png", samples)).astype(int) - gray).max() <= 1
    assert np.abs(decode_compressed("png", encoded(".png", np.dstack([bgr, gray]))).astype(int) - gray).max() <= 1
    sixteen = gray.astype(np.uint16) * 257
    np.testing.assert_array_equal(decode_compressed("mono16; png compressed ", encoded(".png", sixteen)), gray)
    assert np.abs(decode_compressed("png", encoded(".png", bgr.astype(np.uint16) * 257)).astype(int) - gray).max() <= 1


def test_compressed_bayer_data(colour, gray):
    samples = mosaic(colour, "grbg")
    result = decode_compressed("bayer_grbg8; png compressed ", encoded(".png", samples))
    np.testing.assert_array_equal(result, decode("bayer_grbg8", samples))
    # Here it was interpolated before.
    np.testing.assert_array_equal(decode_compressed("bayer_grbg8; png compressed mono8", encoded(".png", gray)), gray)


def test_exif_orientation_is_not_applied(gray):
    plain = encoded(".jpg", gray)
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    turned = plain[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + plain[2:]
    assert cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_GRAYSCALE).shape == (WIDTH, HEIGHT)
    np.testing.assert_array_equal(decode_compressed("jpeg", turned), decode_compressed("jpeg", plain))


def png_that_claims(width: int, height: int) -> bytes:
    data = bytearray(encoded(".png", np.zeros((4, 4), np.uint8)))
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "0 bytes starting with nothing"),
        (b"GIF89a..", "neither JPEG nor PNG"),
        (b"\xff\xd8\xff", "without a frame header"),
        (b"\xff\xd8\xff\xe0" + bytes(30), "without a frame header"),
        (b"\x89PNG\r\n\x1a\n", "without a header"),
        (png_that_claims(60_000, 60_000), "60000x60000"),
        (png_that_claims(0, 4), "0x4"),
        (png_that_claims(400, 4), "damaged"),
    ],
)
def test_damaged_files_are_refused(data, message):
    with pytest.raises(ImageError, match=re.escape(message)):
        decode_compressed("jpeg", data)


def test_compressed_depth_is_refused(gray):
    with pytest.raises(ImageError, match="depth map"):
        decode_compressed("16UC1; compressedDepth png", bytes(12) + encoded(".png", gray))


@given(data=st.data(), extension=st.sampled_from([".jpg", ".png"]))
@settings(max_examples=300, deadline=None)
def test_files_with_damage_anywhere_give_an_image_or_a_refusal(data, extension):
    whole = bytearray(encoded(extension, np.random.default_rng(0).integers(0, 255, (16, 24), np.uint8)))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        result = decode_compressed("jpeg", bytes(cut))
    except ImageError:
        return
    assert result.dtype == np.uint8 and result.ndim == 2 and result.size <= image_module.MAX_PIXELS


def test_padding_is_on_the_right_and_at_the_bottom(gray):
    part = gray[:43, :37]
    geometry = Geometry.of(part.shape, None)
    padded = geometry.to_network(part)
    assert padded.shape == geometry.network == (48, 40) and padded.flags.c_contiguous
    np.testing.assert_array_equal(padded[:43, :37], part)
    assert (padded[43:, :37] == part[-1]).all() and (padded[:43, 37:] == part[:, -1:]).all()
    x, y = np.array([0, 36]), np.array([42, 0])
    assert geometry.to_received(x, y).tolist() == [[0, 42], [36, 0]]


@pytest.mark.parametrize("resize", [(96, 32), (33, 61), (48, 64), (240, 200)])
def test_resized_coordinates_keep_the_half_pixel(resize):
    """A blob at a known place is found at the same place, in pixels of the image as received, within a tenth."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    centre_x, centre_y = 40.3, 18.7
    blob = np.rint(255 * np.exp(-((x - centre_x) ** 2 + (y - centre_y) ** 2) / 50)).astype(np.uint8)
    geometry = Geometry.of(blob.shape, resize)
    resized = geometry.to_network(blob)[: resize[0], : resize[1]].astype(float)
    resized_y, resized_x = np.mgrid[0 : resize[0], 0 : resize[1]]
    found = [np.array([(resized * grid).sum() / resized.sum()]) for grid in (resized_x, resized_y)]
    np.testing.assert_allclose(geometry.to_received(*found), [[centre_x, centre_y]], atol=0.1)


def test_unusable_sizes_are_refused():
    with pytest.raises(ImageError, match="31x48 pixels"):
        Geometry.of((48, 31), None)
    with pytest.raises(ImageError, match="set 'resize'"):
        Geometry.of((10_000, 10_000), None)
    assert Geometry.of((10_000, 10_000), (480, 640)).network == (480, 640)
    assert Geometry.of((8, 8), (32, 32)).network == (32, 32)


def test_mask_is_scaled_to_the_nearest_pixel_and_false_in_the_padding():
    mask = np.zeros((40, 50), np.uint8)
    mask[:, 25:] = 1
    plain = Geometry.of((40, 50), None).mask_to_network(mask)
    assert plain.shape == (40, 56) and plain[:, 25:50].all() and not plain[:, :25].any() and not plain[:, 50:].any()
    larger = Geometry.of((40, 50), (80, 100)).mask_to_network(mask)
    assert larger[:80, 50:100].all() and not larger[:, :50].any()
    with pytest.raises(ImageError, match="mask of 50x40 pixels for an image of 64x48"):
        Geometry.of((48, 64), None).mask_to_network(mask)
