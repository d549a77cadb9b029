"""Images as cameras send them to the uint8 gray image that the network reads, and back to their own pixels.

Gray is luma, ``0.299 R + 0.587 G + 0.114 B`` rounded to 8 bits; of YUV it is Y as sent. Bit depths other than 8:

* 16-bit mono, colour and Bayer: the whole range of the type, 65535 becomes 255.
* types that name no colour (16UC1, 32FC1, 8SC1, ...: thermal images, say): the frame's own lowest to highest
  finite value become 0 to 255; NaN becomes 0, infinite values the nearer end. A frame of one value becomes all 0.
* 8UC1 to 8UC4 are 8-bit images and not stretched. Types that name no colour with 3 or 4 channels are read in OpenCV's
  order B, G, R, A; of 2 channels the first is taken.

Encodings and the layout of data are those of ``sensor_msgs/image_encodings`` and ``sensor_msgs/Image``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Buffer

MIN_SIDE = 32
#: 8K UHD is 33.2 million pixels. What claims to be more is refused before anything is allocated for it.
MAX_PIXELS = 1 << 25


class ImageError(ValueError):
    """An image that can't be used. The text says what was wrong with it."""


@dataclass(frozen=True)
class _Encoding:
    """How one encoding's samples lie in memory.

    Attributes:
        dtype: numpy name of a sample's type, without byte order.
        channels: samples a pixel.
        conversion: cv2 colour conversion to gray; None where a single channel is taken as it is.
        channel: the channel taken where there is no conversion.
        stretch: the frame's own range is stretched to 0..255.
    """

    dtype: str
    channels: int
    conversion: int | None = None
    channel: int = 0
    stretch: bool = False


def _named_encodings() -> dict[str, _Encoding]:
    encodings = {"mono8": _Encoding("u1", 1), "mono16": _Encoding("u2", 1)}
    colours = {
        "rgb": (3, cv2.COLOR_RGB2GRAY),
        "bgr": (3, cv2.COLOR_BGR2GRAY),
        "rgba": (4, cv2.COLOR_RGBA2GRAY),
        "bgra": (4, cv2.COLOR_BGRA2GRAY),
    }
    # OpenCV names a pattern by the second row's second and third pixel, ROS by the first two rows.
    patterns = {
        "bayer_rggb": cv2.COLOR_BayerBG2GRAY,
        "bayer_bggr": cv2.COLOR_BayerRG2GRAY,
        "bayer_gbrg": cv2.COLOR_BayerGR2GRAY,
        "bayer_grbg": cv2.COLOR_BayerGB2GRAY,
    }
    for bits, dtype in (("8", "u1"), ("16", "u2")):
        for name, (channels, conversion) in colours.items():
            encodings[name + bits] = _Encoding(dtype, channels, conversion)
        for name, conversion in patterns.items():
            encodings[name + bits] = _Encoding(dtype, 1, conversion)
    # Packed 4:2:2, two bytes a pixel: U Y V Y and Y U Y V.
    for name in ("yuv422", "uyvy"):
        encodings[name] = _Encoding("u1", 2, channel=1)
    for name in ("yuv422_yuy2", "yuyv"):
        encodings[name] = _Encoding("u1", 2, channel=0)
    # A plane of Y first; the chroma after it is not looked at.
    for name in ("nv12", "nv21", "nv24"):
        encodings[name] = _Encoding("u1", 1)
    return encodings


_NAMED = _named_encodings()
_GENERIC = re.compile(r"(8|16|32|64)([USF])C([1-4])")
_GENERIC_TYPES = {"8U": "u1", "8S": "i1", "16U": "u2", "16S": "i2", "32S": "i4", "32F": "f4", "64F": "f8"}
_GENERIC_CONVERSIONS = {3: cv2.COLOR_BGR2GRAY, 4: cv2.COLOR_BGRA2GRAY}


def _find_encoding(encoding: str) -> _Encoding:
    named = _NAMED.get(encoding)
    if named is not None:
        return named
    generic = _GENERIC.fullmatch(encoding)
    dtype = _GENERIC_TYPES.get(f"{generic[1]}{generic[2]}") if generic else None
    if generic is None or dtype is None:
        raise ImageError(
            f"encoding {encoding[:40]!r} is not known; known are {', '.join(sorted(_NAMED))}, "
            "and types like 8UC1, 16UC1, 32FC1"
        )
    channels = int(generic[3])
    return _Encoding(dtype, channels, _GENERIC_CONVERSIONS.get(channels), stretch=dtype != "u1")


def decode_image(
    encoding: str, height: int, width: int, step: int, is_bigendian: bool | int, data: Buffer
) -> np.ndarray:
    """Gray image of the fields of a sensor_msgs/Image.

    Args:
        encoding: one of sensor_msgs/image_encodings, and nv12.
        height, width: pixels.
        step: bytes from the start of one row to the start of the next; more than the pixels need is padding.
        is_bigendian: byte order of samples of several bytes.
        data: at least ``(height - 1) step`` bytes and the last row's pixels.

    Returns:
        uint8 [height, width]; for 8-bit mono and YUV a view of `data`.

    Raises:
        ImageError: the fields contradict each other or the encoding is not known.
    """
    kind = _find_encoding(encoding)
    samples = _samples(kind, encoding, height, width, step, bool(is_bigendian), data)
    return _to_gray(samples, kind)


def _samples(
    kind: _Encoding, encoding: str, height: int, width: int, step: int, big_endian: bool, data: Buffer
) -> np.ndarray:
    """[height, width] or [height, width, channels] in native byte order, a view of data where that is native."""
    dtype = np.dtype(kind.dtype)
    pixel_bytes = kind.channels * dtype.itemsize
    row_bytes = width * pixel_bytes
    if height < 1 or width < 1:
        raise ImageError(f"image of {width}x{height} pixels: width and height must be at least 1")
    if step < row_bytes:
        raise ImageError(f"step of {step} bytes is less than the {row_bytes} that {width} pixels of {encoding} take")
    raw = np.frombuffer(data, np.uint8)
    needed = (height - 1) * step + row_bytes
    if raw.size < needed:
        raise ImageError(
            f"{raw.size} bytes of data are less than the {needed} of {width}x{height} {encoding} with a step of {step}"
        )
    shape, strides = (height, width, kind.channels), (step, pixel_bytes, dtype.itemsize)
    samples: np.ndarray = np.ndarray(shape, dtype.newbyteorder(">" if big_endian else "<"), raw, strides=strides)
    if dtype.itemsize > 1:
        samples = np.require(samples, dtype, ["ALIGNED"])
    return samples[..., 0] if kind.channels == 1 else samples


def _to_gray(samples: np.ndarray, kind: _Encoding) -> np.ndarray:
    if kind.stretch:
        samples = _stretched(samples)
    elif samples.dtype == np.uint16 and kind.conversion is None:
        return _high_byte(samples)
    if kind.conversion is not None:
        return _high_byte(_convert(samples, kind.conversion))
    return samples if samples.ndim == 2 else samples[..., kind.channel]


def _convert(samples: np.ndarray, conversion: int) -> np.ndarray:
    try:
        return cv2.cvtColor(np.ascontiguousarray(samples), conversion)
    except cv2.error as error:
        height, width = samples.shape[:2]
        raise ImageError(f"image of {width}x{height} pixels can't be converted to gray ({error.err})") from error


def _high_byte(samples: np.ndarray) -> np.ndarray:
    """uint16 of the whole range to uint8, rounded (65535 = 255 * 257); uint8 as it is."""
    if samples.dtype == np.uint8:
        return samples
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _stretched(samples: np.ndarray) -> np.ndarray:
    """Lowest to highest finite value to 0..255, rounded; NaN to 0."""
    values = samples.astype(np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return np.zeros(values.shape, np.uint8)
    low, high = float(values.min(where=finite, initial=np.inf)), float(values.max(where=finite, initial=-np.inf))
    # Halves, because the whole range can be more than the largest float64.
    half_range = high / 2 - low / 2
    if half_range == 0:
        return np.zeros(values.shape, np.uint8)
    values = np.nan_to_num(values, copy=False, nan=low, posinf=high, neginf=low)
    return np.rint((values / 2 - low / 2) / half_range * 255).astype(np.uint8)


_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_JPEG_SIGNATURE = b"\xff\xd8\xff"


def decode_compressed(format: str, data: Buffer) -> np.ndarray:
    """Gray image of the fields of a sensor_msgs/CompressedImage: JPEG or PNG, found from the data itself.

    Args:
        format: as sent, for example "jpeg" or "rgb8; png compressed bgr8". It decides nothing but that
            "compressedDepth" is refused, and what a single channel is: raw Bayer data where it starts with a pattern.
        data: the file. The orientation that a JPEG's EXIF asks for is not applied: calibration knows the sensor only.

    Returns:
        uint8 [height, width].

    Raises:
        ImageError: another format, damaged, or more than MAX_PIXELS.
    """
    if "compressedDepth" in format:
        raise ImageError(f"format {format[:60]!r} is a compressed depth map; send the image of a camera")
    raw = np.frombuffer(data, np.uint8)
    start = raw[:8].tobytes()
    if start.startswith(_JPEG_SIGNATURE):
        size, flags = _jpeg_size(raw), cv2.IMREAD_GRAYSCALE
    elif start == _PNG_SIGNATURE:
        size, flags = _png_size(raw), cv2.IMREAD_UNCHANGED
    else:
        raise ImageError(
            f"format {format[:60]!r}: {raw.size} bytes starting with {start.hex(' ') or 'nothing'} "
            "are neither JPEG nor PNG"
        )
    height, width = size
    if height < 1 or width < 1 or height * width > MAX_PIXELS:
        raise ImageError(f"compressed image of {width}x{height} pixels: allowed are 1 to {MAX_PIXELS} pixels")
    try:
        decoded = cv2.imdecode(raw, flags | cv2.IMREAD_IGNORE_ORIENTATION)
    except cv2.error as error:
        raise ImageError(f"compressed image of {width}x{height} pixels can't be decoded ({error.err})") from error
    if decoded is None:
        raise ImageError(f"compressed image of {width}x{height} pixels is damaged ({raw.size} bytes)")
    return _decoded_to_gray(decoded, format)


def _decoded_to_gray(decoded: np.ndarray, format: str) -> np.ndarray:
    bits = "8" if decoded.dtype == np.uint8 else "16"
    if decoded.ndim == 3:
        return _to_gray(decoded, _NAMED[("bgr" if decoded.shape[2] == 3 else "bgra") + bits])
    sent, _, compression = format.partition(";")
    kind = _NAMED["mono" + bits]
    if sent.startswith("bayer_") and "bgr" not in compression and "mono" not in compression:
        kind = _NAMED.get(sent.strip(), kind)
    return _to_gray(decoded, kind)


def _png_size(raw: np.ndarray) -> tuple[int, int]:
    """(height, width) of a PNG's header."""
    header = raw[8:24].tobytes()
    if len(header) < 16 or header[4:8] != b"IHDR":
        raise ImageError(f"PNG of {raw.size} bytes without a header")
    return int.from_bytes(header[12:16], "big"), int.from_bytes(header[8:12], "big")


def _jpeg_size(raw: np.ndarray) -> tuple[int, int]:
    """(height, width) of a JPEG's first frame header (SOF0 to SOF15 but for DHT, JPG and DAC)."""
    position = 2
    while position + 9 <= raw.size:
        if raw[position] != 0xFF:
            break
        marker = int(raw[position + 1])
        if marker == 0xFF:  # fill byte
            position += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            fields = raw[position + 5 : position + 9].tobytes()
            return int.from_bytes(fields[:2], "big"), int.from_bytes(fields[2:], "big")
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            position += 2
        else:
            position += 2 + int.from_bytes(raw[position + 2 : position + 4].tobytes(), "big")
    raise ImageError(f"JPEG of {raw.size} bytes without a frame header")


@dataclass(frozen=True)
class Geometry:
    """Where the image as received lies in the image the network reads. Sizes are (height, width).

    Attributes:
        received: of the image as received.
        content: of the same after resizing: the top-left part of what the network reads.
        network: content, padded on the right and at the bottom to multiples of 8.
    """

    received: tuple[int, int]
    content: tuple[int, int]
    network: tuple[int, int]

    @staticmethod
    def of(received: tuple[int, int], resize: tuple[int, int] | None) -> Geometry:
        """Geometry for an image of (height, width) `received`, resized to (height, width) `resize` where given.

        Raises:
            ImageError: smaller than MIN_SIDE, or more than MAX_PIXELS.
        """
        content = resize if resize is not None else received
        if min(received) < 1 or min(content) < MIN_SIDE or content[0] * content[1] > MAX_PIXELS:
            raise ImageError(
                f"image of {received[1]}x{received[0]} pixels, {content[1]}x{content[0]} for the network: allowed are "
                f"sides of at least {MIN_SIDE} and at most {MAX_PIXELS} pixels; set 'resize' to have it resized"
            )
        return Geometry(received, content, (-(-content[0] // 8) * 8, -(-content[1] // 8) * 8))

    def to_network(self, image: np.ndarray) -> np.ndarray:
        """The image the network reads: uint8 [network], contiguous; padding repeats the last row and column."""
        (height, width), (padded_height, padded_width) = self.content, self.network
        if self.content != self.received:
            # Area averaging where both sides shrink: bilinear interpolation would skip pixels.
            shrinks = height <= self.received[0] and width <= self.received[1]
            image = cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        if self.network == self.content:
            return np.ascontiguousarray(image)
        bottom, right = padded_height - height, padded_width - width
        return cv2.copyMakeBorder(image, 0, bottom, 0, right, cv2.BORDER_REPLICATE)

    def mask_to_network(self, mask: np.ndarray) -> np.ndarray:
        """bool [network]: where a uint8 mask of the image as received is not 0, by the nearest pixel; padding False."""
        if mask.shape != self.received:
            raise ImageError(
                f"mask of {mask.shape[1]}x{mask.shape[0]} pixels for an image of {self.received[1]}x{self.received[0]}"
            )
        rows = self._nearest(0)
        columns = self._nearest(1)
        result = np.zeros(self.network, bool)
        result[: self.content[0], : self.content[1]] = mask[np.ix_(rows, columns)] != 0
        return result

    def _nearest(self, axis: int) -> np.ndarray:
        received, content = self.received[axis], self.content[axis]
        return ((np.arange(content) + 0.5) * (received / content)).astype(np.int64).clip(0, received - 1)

    def to_received(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Keypoints float32 [N, 2] (x, y) in pixels of the image as received, from integer network pixels [N].

        Pixel centres are whole numbers, so ``(x + 0.5) scale - 0.5``.
        """
        result = np.empty((len(x), 2), np.float32)
        for column, (values, axis) in enumerate(((x, 1), (y, 0))):
            received, content = self.received[axis], self.content[axis]
            result[:, column] = values if received == content else (values + 0.5) * (received / content) - 0.5
        return result
