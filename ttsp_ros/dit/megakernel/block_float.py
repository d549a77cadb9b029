"""bfp8_b, the block floating point format of Tensix: sixteen numbers share one exponent.

A tile of 32 x 32 numbers is four faces of 16 x 16. Every row of a face (16 numbers) has one 8-bit exponent, that of its
largest number, and every number has one byte: sign and seven bits of magnitude with the leading one written out. Stored
are the 64 exponents, then the 1024 bytes, both in order of faces and rows: 1088 bytes.

Held, bit for bit, against ttnn's own host conversion (`test/dit/megakernel/test_on_simulator.py`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

TILE = 32
FACE = 16
EXPONENT_BYTES = TILE * TILE // FACE
TILE_BYTES = EXPONENT_BYTES + TILE * TILE
MANTISSA_BITS = 7
#: A float32 mantissa has 24 bits with its leading one; so many of them are rounded away at the shared exponent.
DROPPED_BITS = 24 - MANTISSA_BITS

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


def tiles_to_groups(tiles: Floats) -> Floats:
    """[N, 32, 32] -> [N, 64, 16]: the rows of the four faces, each of which shares one exponent."""
    faces = tiles.reshape(-1, 2, FACE, 2, FACE).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(faces).reshape(-1, EXPONENT_BYTES, FACE)


def groups_to_tiles(groups: Floats) -> Floats:
    """The inverse of `tiles_to_groups`."""
    faces = groups.reshape(-1, 2, 2, FACE, FACE).transpose(0, 1, 3, 2, 4)
    return np.ascontiguousarray(faces).reshape(-1, TILE, TILE)


def encode(tiles: npt.ArrayLike) -> Bytes:
    """float32 tiles [N, 32, 32] -> bytes uint8 [N, 1088]: nearest, ties to even, saturating; denormals become zero."""
    values = np.asarray(tiles, dtype=np.float32)
    if values.ndim != 3 or values.shape[1:] != (TILE, TILE):
        raise ValueError(f"tiles: got shape {values.shape}, must be [N, {TILE}, {TILE}]")
    if not np.isfinite(values).all():
        raise ValueError("tiles: infinite or NaN values have no bfp8_b form; clean the weights first")
    bits = tiles_to_groups(values).view(np.uint32)
    exponents = (bits >> 23) & 0xFF
    shared = exponents.max(axis=-1, keepdims=True)
    mantissas = np.where(exponents == 0, 0, (bits & 0x7FFFFF) | 0x800000).astype(np.uint32)
    aligned = mantissas >> np.minimum(shared - exponents, 31)
    odd = (aligned >> DROPPED_BITS) & 1
    rounded = (aligned + ((1 << (DROPPED_BITS - 1)) - 1) + odd) >> DROPPED_BITS
    magnitude = np.minimum(rounded, (1 << MANTISSA_BITS) - 1)
    sign = np.where(magnitude == 0, 0, bits >> 31)
    numbers = ((sign << MANTISSA_BITS) | magnitude).astype(np.uint8)
    return np.concatenate([shared.astype(np.uint8)[..., 0], numbers.reshape(-1, TILE * TILE)], axis=1)


def decode(encoded: Bytes) -> Floats:
    """bytes uint8 [N, 1088] -> float32 tiles [N, 32, 32], exactly."""
    if encoded.ndim != 2 or encoded.shape[1] != TILE_BYTES or encoded.dtype != np.uint8:
        raise ValueError(f"encoded: got {encoded.dtype} {encoded.shape}, must be uint8 [N, {TILE_BYTES}]")
    shared = encoded[:, :EXPONENT_BYTES].astype(np.int32)[..., None]
    numbers = encoded[:, EXPONENT_BYTES:].reshape(-1, EXPONENT_BYTES, FACE)
    magnitude = (numbers & 0x7F).astype(np.float32)
    values = np.ldexp(np.where(numbers & 0x80, -magnitude, magnitude), shared - 127 - (MANTISSA_BITS - 1))
    return groups_to_tiles(values.astype(np.float32))
