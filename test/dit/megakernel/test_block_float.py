"""bfp8_b in numpy; `test_on_simulator.py` holds it against ttnn's own conversion."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ttsp_ros.dit.megakernel import block_float
from ttsp_ros.dit.megakernel.arena import as_bfp8

tiles = hnp.arrays(
    np.float32,
    (2, 32, 32),
    elements=st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=True),
    fill=st.sampled_from([0.0, 1.0, -3.5, 1.984375]),
)


def test_a_tile_worked_out_by_hand():
    tile = np.zeros((1, 32, 32), np.float32)
    tile[0, 0, :3] = [1.0, -0.5, 1 + 1 / 64]  # face 0, row 0: exponent 127, magnitudes in units of 1/64
    tile[0, 0, 16] = 6.0  # face 1, row 0: exponent 129, units of 4/64
    tile[0, 17, 0] = -(2.0**-3)  # face 2, row 1
    encoded = block_float.encode(tile)[0]
    assert encoded.shape == (1088,)
    assert encoded[0] == 127 and encoded[16] == 129 and encoded[33] == 124
    assert encoded[64:67].tolist() == [64, 0x80 | 32, 65]
    assert encoded[64 + 256] == 96 and encoded[64 + 512 + 16] == 0x80 | 64
    assert np.count_nonzero(encoded) == 8
    assert np.array_equal(block_float.decode(encoded[None]), tile)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1 + 1 / 128, 1.0),  # tie: to even
        (1 + 3 / 128, 1 + 2 / 64),
        (127.9 / 64, 127 / 64),  # would round up to the next exponent: saturates
        (1e-40, 0.0),
    ],
)
def test_rounding(value, rounded):
    tile = np.zeros((1, 32, 32), np.float32)
    tile[0, 0, 0], tile[0, 0, 1] = value, 1.0
    assert block_float.decode(block_float.encode(tile))[0, 0, 0] == np.float32(rounded)


@given(tiles)
@settings(max_examples=60, deadline=None)
def test_error_is_at_most_one_unit_and_a_second_round_changes_nothing(values):
    rounded = block_float.decode(block_float.encode(values))
    groups, result = block_float.tiles_to_groups(values), block_float.tiles_to_groups(rounded)
    largest = np.abs(groups).max(axis=-1, keepdims=True)
    exponent = np.floor(np.log2(np.maximum(largest, 2.0**-126)))
    unit = 2.0 ** (exponent - 6)
    error = np.abs(result.astype(np.float64) - groups)
    error[np.abs(groups) < np.finfo(np.float32).tiny] = 0  # denormals become zero
    assert (error <= unit).all(), "saturation costs less than a unit"
    unsaturated = np.abs(groups) < 127.5 * unit
    assert (error <= unit / 2)[unsaturated & (largest >= 2.0**-119)].all()
    again = block_float.encode(rounded)
    assert np.array_equal(block_float.decode(again), rounded)


def test_arena_shaped_tensors_keep_their_shape():
    values = torch.randn(96, 64, generator=torch.Generator().manual_seed(0))
    rounded = as_bfp8(values)
    by_tile = block_float.decode(block_float.encode(values[32:64, 32:].numpy()[None]))[0]
    assert rounded.shape == values.shape and torch.equal(rounded[32:64, 32:], torch.from_numpy(by_tile))


def test_refuses_what_it_cannot_hold():
    with pytest.raises(ValueError, match=r"\[N, 32, 32\]"):
        block_float.encode(np.zeros((32, 32), np.float32))
    with pytest.raises(ValueError, match="NaN"):
        block_float.encode(np.full((1, 32, 32), np.nan, np.float32))
    with pytest.raises(ValueError, match="uint8"):
        block_float.decode(np.zeros((1, 1024), np.uint8))
