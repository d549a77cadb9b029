"""Descriptors at keypoints, interpolated between cells: the definition every backend is held to.

Where a pixel lies between the cells is the formula of the SuperPoint of Hugging Face transformers and of LightGlue,
which trained matchers rely on: with c cells of 8 pixels and pixel v, ``g = 2 (v - 3.5) / (8 c - 4.5) - 1`` on
[-1, 1] from the first cell to the last, so in cells ``(v - 3.5) (c - 1) / (8 c - 4.5) = n / d`` with
``n = (2 v - 7) (c - 1)`` and ``d = 16 c - 9``. (Geometrically it should be (v - 3.5) / 8; the formula is up to 0.43
cells away from that at the far edge.) Outside of the cells counts as zero.

Two things are fixed so that another device can give the same bits:

* **tap cells** are integers: ``q = floor(n / d)`` and ``q + 1``, both clamped into the cells.
* **tap weights** are float32, one table of 4 a pixel, computed as transformers does, each step rounded:
  ``a = (v - 3.5) / (8 c - 4.5)``, ``g = 2 a - 1``, ``p = (g + 1) ((c - 1) / 2)``, ``f = p - q``, and then products
  of ``f`` and ``1 - f`` of the two axes. Where float32 puts p one step below the integer that n / d is (c = 1 mod 7
  only), f is set to 0. For v < 4 tap 0 is outside and its weight is 0.

Sampled descriptors are ``((G0 W0 + G1 W1) + G2 W2) + G3 W3`` in float32, every product and every sum rounded (no
fused multiply-add: torch.nn.functional.grid_sample uses them and is off by up to 3e-8 for that).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from ttsp_ros.superpoint.keypoints import CELL

NORM_EPSILON = 1e-12


@dataclass(frozen=True)
class AxisTable:
    """Taps of every pixel along one axis.

    Attributes:
        low: int64 [pixels], cell of the first tap.
        high: int64 [pixels], cell of the second tap.
        low_weight: float32 [pixels].
        high_weight: float32 [pixels].
    """

    low: torch.Tensor
    high: torch.Tensor
    low_weight: torch.Tensor
    high_weight: torch.Tensor

    @staticmethod
    def of(pixels: int) -> AxisTable:
        cells = pixels // CELL
        v = torch.arange(pixels)
        cell = torch.div((2 * v - 7) * (cells - 1), 16 * cells - 9, rounding_mode="floor")
        scaled = (v.to(torch.float32) - 4.0 + 0.5) / (CELL * cells - 4.0 - 0.5)
        position = (scaled * 2.0 - 1.0 + 1.0) * ((cells - 1) / 2)
        fraction = (position - cell.to(torch.float32)).clamp_min(0.0)
        low_weight = torch.where(cell < 0, torch.zeros(()), 1.0 - fraction)
        return AxisTable(cell.clamp(0, cells - 1), (cell + 1).clamp(0, cells - 1), low_weight, fraction)


@dataclass(frozen=True)
class SampleTables:
    """Tap cells and weights of every pixel of an image of `height` x `width` pixels, both multiples of 8.

    Taps are numbered 0 (y.low, x.low), 1 (y.low, x.high), 2 (y.high, x.low), 3 (y.high, x.high).
    """

    height: int
    width: int
    y: AxisTable
    x: AxisTable

    @staticmethod
    @lru_cache(maxsize=8)
    def of(height: int, width: int) -> SampleTables:
        if height < CELL or width < CELL or height % CELL or width % CELL:
            raise ValueError(f"size: got {height}x{width}, allowed are multiples of {CELL} pixels")
        return SampleTables(height, width, AxisTable.of(height), AxisTable.of(width))

    @property
    def cell_rows(self) -> int:
        return self.height // CELL

    @property
    def cell_columns(self) -> int:
        return self.width // CELL

    def cells(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """int64 [4, N]: raster index row * cell_columns + column of the cell of each tap, at pixels y, x int64 [N]."""
        top, bottom = self.y.low[y] * self.cell_columns, self.y.high[y] * self.cell_columns
        left, right = self.x.low[x], self.x.high[x]
        return torch.stack([top + left, top + right, bottom + left, bottom + right])

    def weights(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """float32 [4, N]: weight of each tap, at pixels y, x int64 [N]."""
        top, bottom = self.y.low_weight[y], self.y.high_weight[y]
        left, right = self.x.low_weight[x], self.x.high_weight[x]
        return torch.stack([top * left, top * right, bottom * left, bottom * right])

    def weight_table(self) -> torch.Tensor:
        """float32 [height * width, 4]: the weights of all pixels in raster order, as a device looks them up."""
        y = torch.arange(self.height).repeat_interleave(self.width)
        x = torch.arange(self.width).repeat(self.height)
        return self.weights(y, x).T.contiguous()


def sample_unnormalised(dense: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Interpolated descriptors before the last normalisation, in the rounding order above.

    Args:
        dense: [h, w, C], float32 or bfloat16, any memory order (contiguous is fastest).
        y: int64 [N], pixel rows in [0, 8 h).
        x: int64 [N], pixel columns in [0, 8 w).

    Returns:
        float32 [N, C].
    """
    rows, columns, channels = dense.shape
    tables = SampleTables.of(CELL * rows, CELL * columns)
    flat = dense.reshape(rows * columns, channels)
    cells, weights = tables.cells(y, x), tables.weights(y, x)
    result = flat[cells[0]].float() * weights[0, :, None]
    for tap in range(1, 4):
        result += flat[cells[tap]].float() * weights[tap, :, None]
    return result


def normalise(descriptors: torch.Tensor) -> torch.Tensor:
    """Rows divided by max(their L2 norm, 1e-12); [N, C], same dtype."""
    return torch.nn.functional.normalize(descriptors, p=2.0, dim=1, eps=NORM_EPSILON)


def sample(dense: torch.Tensor, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Descriptors of unit length at pixels (y, x), float32 [N, C]; see `sample_unnormalised`."""
    return normalise(sample_unnormalised(dense, y, x))
