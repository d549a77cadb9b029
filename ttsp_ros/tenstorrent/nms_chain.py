"""Non-maximum suppression by ttnn's own operations, for geometries that the kernels of nms.py cannot take.

Two 1-D maximum pools, with transposes between them: 32 neighbouring pixels of the other axis are the channels of a
pool, so that it works on whole sticks of 64 bytes. It gives the NMS map only; keypoints are then chosen on the host.
Denormal scores may come out as 0, which a softmax in bf16 does not give in the first place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ttsp_ros.superpoint.keypoints import CELL, CELL_PIXELS

if TYPE_CHECKING:
    import ttnn

CHANNELS = 32


@dataclass(frozen=True)
class ChainPlan:
    """NMS of one geometry by ttnn's operations.

    Attributes:
        height, width: score map, pixels, multiples of 32.
        radius: of the (2 radius + 1)^2 window.
        reason: why the kernels do not take it.
    """

    height: int
    width: int
    radius: int
    reason: str

    def __post_init__(self) -> None:
        if self.height % CHANNELS or self.width % CHANNELS or self.height < CHANNELS or self.width < CHANNELS:
            raise ValueError(
                f"{self.reason}; and ttnn's operations take only score maps of multiples of {CHANNELS} pixels, "
                f"got {self.height}x{self.width}"
            )
        if not 1 <= self.radius <= min(self.height, self.width) // 2:
            limit = min(self.height, self.width) // 2
            raise ValueError(f"{self.reason}; and ttnn's operations take a radius of 1..{limit}, got {self.radius}")

    def __str__(self) -> str:
        geometry = f"NMS {self.height}x{self.width}, radius {self.radius}"
        return f"{geometry}: ttnn's operations, which give the map only, since {self.reason}"


def run_chain(plan: ChainPlan, scores: ttnn.Tensor) -> ttnn.Tensor:
    """NMS map bf16 [1, 1, H, W], row-major in DRAM, from scores bf16 [1, 1, h * w, 65], TILE, DRAM."""
    import ttnn

    height, width = plan.height, plan.width
    rows, columns = height // CELL, width // CELL
    cells = ttnn.to_layout(ttnn.slice(scores, [0, 0, 0, 0], [1, 1, rows * columns, CELL_PIXELS]), ttnn.ROW_MAJOR_LAYOUT)
    image = ttnn.permute(ttnn.reshape(cells, [rows, columns, CELL, CELL]), (0, 2, 1, 3))
    vertical = _pool(ttnn.reshape(image, [1, 1, height * width // CHANNELS, CHANNELS]), height, width, plan.radius)
    transposed = ttnn.to_layout(_transposed(vertical, height, width), ttnn.ROW_MAJOR_LAYOUT)
    sticks = ttnn.reshape(transposed, [1, 1, height * width // CHANNELS, CHANNELS])
    pooled = _pool(sticks, width, height, plan.radius)
    maxima = ttnn.to_layout(ttnn.reshape(pooled, [1, 1, width, height]), ttnn.TILE_LAYOUT)
    centres = _transposed(image, height, width)
    suppressed = ttnn.multiply(centres, ttnn.eq(centres, maxima))
    result = ttnn.to_layout(ttnn.transpose(suppressed, -2, -1), ttnn.ROW_MAJOR_LAYOUT)
    return ttnn.to_memory_config(result, ttnn.DRAM_MEMORY_CONFIG)


def _pool(sticks: ttnn.Tensor, height: int, width: int, radius: int) -> ttnn.Tensor:
    """Maximum of 2 radius + 1 neighbours along the height of [height, width / 32] sticks of 32 pixels."""
    import ttnn

    pooled = ttnn.max_pool2d(
        input_tensor=sticks,
        batch_size=1,
        input_h=height,
        input_w=width // CHANNELS,
        channels=CHANNELS,
        kernel_size=[2 * radius + 1, 1],
        stride=[1, 1],
        padding=[radius, 0],
        dilation=[1, 1],
    )
    return ttnn.to_memory_config(pooled, ttnn.DRAM_MEMORY_CONFIG)


def _transposed(sticks: ttnn.Tensor, height: int, width: int) -> ttnn.Tensor:
    """TILE [1, 1, width, height] from row-major pixels of a [height, width] image."""
    import ttnn

    return ttnn.transpose(ttnn.to_layout(ttnn.reshape(sticks, [1, 1, height, width]), ttnn.TILE_LAYOUT), -2, -1)


def emulate_chain(plan: ChainPlan, cells: torch.Tensor) -> torch.Tensor:
    """`run_chain` in torch, step for step: bf16 [H, W] from cells bf16 [h * w, 64 or 65].

    The steps are those of the operations above, so that their order and shapes can be held against the definition of
    NMS without a card.
    """
    height, width = plan.height, plan.width
    rows, columns = height // CELL, width // CELL
    image = cells[:, :CELL_PIXELS].reshape(rows, columns, CELL, CELL).permute(0, 2, 1, 3)
    vertical = _emulated_pool(image.reshape(-1, CHANNELS), height, width, plan.radius)
    transposed = vertical.reshape(height, width).T.reshape(-1, CHANNELS)
    maxima = _emulated_pool(transposed, width, height, plan.radius).reshape(width, height)
    centres = image.reshape(height, width).T
    return (centres * (centres == maxima).to(centres.dtype)).T.contiguous()


def _emulated_pool(sticks: torch.Tensor, height: int, width: int, radius: int) -> torch.Tensor:
    nchw = sticks.reshape(1, height, width // CHANNELS, CHANNELS).permute(0, 3, 1, 2).float()
    pooled = F.max_pool2d(nchw, kernel_size=(2 * radius + 1, 1), stride=1, padding=(radius, 0))
    return pooled.permute(0, 2, 3, 1).reshape(-1, CHANNELS).to(sticks.dtype)
