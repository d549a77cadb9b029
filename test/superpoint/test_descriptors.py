"""Tap cells, weights and sampling against exact arithmetic, a scalar loop and transformers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from transformers.models.superpoint.modeling_superpoint import SuperPointDescriptorDecoder

from ttsp_ros.superpoint.descriptors import AxisTable, SampleTables, normalise, sample, sample_unnormalised

#: 120, 400, 512 and 960 pixels are of the sizes where float32 falls one step below a whole cell.
SIZES = [8, 32, 40, 120, 240, 400, 480, 512, 640, 960, 1080, 1920, 3840, 4096]


@pytest.mark.parametrize("pixels", SIZES)
def test_taps_and_weights_are_the_exact_formula(pixels):
    cells = pixels // 8
    table = AxisTable.of(pixels)
    for v in range(pixels):
        position = Fraction((2 * v - 7) * (cells - 1), 16 * cells - 9)
        floor = position.numerator // position.denominator
        assert table.low[v] == min(max(floor, 0), cells - 1)
        assert table.high[v] == min(max(floor + 1, 0), cells - 1)
        # The positions' own float32 rounding: a few units in the last place of up to `cells`.
        tolerance = 4 * cells * 2.0**-23
        assert float(table.high_weight[v]) == pytest.approx(float(position - floor), abs=tolerance)
        expected_low = 0.0 if floor < 0 else 1 - float(position - floor)
        assert float(table.low_weight[v]) == pytest.approx(expected_low, abs=tolerance)
    assert float(table.high_weight.min()) >= 0 and float(table.high_weight.max()) <= 1


def test_weight_table_is_the_weights_of_every_pixel():
    tables = SampleTables.of(40, 32)
    table = tables.weight_table()
    assert table.shape == (40 * 32, 4) and table.dtype == torch.float32 and table.is_contiguous()
    y, x = torch.tensor([0, 13, 39]), torch.tensor([31, 7, 0])
    assert torch.equal(table[y * 32 + x].T, tables.weights(y, x))
    assert int(tables.cells(y, x).max()) < 5 * 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sampling_rounds_every_product_and_sum_in_order(dtype):
    torch.manual_seed(0)
    dense = torch.randn(5, 6, 256).to(dtype)
    y, x = torch.randint(0, 40, (50,)), torch.randint(0, 48, (50,))
    tables = SampleTables.of(40, 48)
    result = sample_unnormalised(dense, y, x)
    values = dense.float().reshape(30, 256).numpy()
    for n in range(50):
        total = None
        for tap in range(4):
            weight = np.float32(tables.weights(y, x)[tap, n])
            product = (values[tables.cells(y, x)[tap, n]] * weight).astype(np.float32)
            total = product if total is None else (total + product).astype(np.float32)
        assert total is not None
        np.testing.assert_array_equal(result[n].numpy(), total)


@pytest.mark.parametrize("size", [(480, 640), (400, 960), (120, 512), (32, 40)])
def test_sampling_is_that_of_transformers(size):
    torch.manual_seed(0)
    height, width = size
    dense = torch.nn.functional.normalize(torch.randn(height // 8, width // 8, 256), dim=2)
    every = torch.randperm(height * width)[:5000]
    corners = torch.tensor([0, width - 1, (height - 1) * width, height * width - 1])
    raster = torch.cat([every, corners])
    y, x = raster // width, raster % width
    keypoints = torch.stack([x, y], dim=1).float()[None]
    expected = SuperPointDescriptorDecoder._sample_descriptors(keypoints, dense.permute(2, 0, 1)[None])[0].T
    torch.testing.assert_close(sample(dense, y, x), expected, atol=1e-6, rtol=0)


def test_sampled_descriptors_have_unit_length_and_any_count():
    dense = torch.randn(4, 4, 256)
    for count in (0, 1, 2):
        y = torch.arange(count)
        assert sample(dense, y, y).shape == (count, 256)
    torch.testing.assert_close(sample(dense, y, y).norm(dim=1), torch.ones(2))
    assert torch.equal(normalise(torch.zeros(1, 256)), torch.zeros(1, 256))


def test_memory_order_does_not_matter():
    dense = torch.randn(256, 4, 4).permute(1, 2, 0)
    y = torch.tensor([5, 20])
    assert torch.equal(sample(dense, y, y), sample(dense.contiguous(), y, y))


def test_size_must_be_of_whole_cells():
    with pytest.raises(ValueError, match="got 33x40"):
        SampleTables.of(33, 40)
