"""From SuperPoint's 65 scores of every 8x8 cell to a list of keypoints: the definition every backend is held to.

The steps, in this order:

1. fold: ``S[8 cy + i, 8 cx + j] = cells[8 i + j, cy, cx]``; channel 64 (the dustbin) is dropped.
2. NMS, one pass: a pixel stays where ``S`` equals the maximum of the ``(2 r + 1) x (2 r + 1)`` pixels around it. Of
   equal maxima all stay. Pixels outside the map count as 0, which is no more than any score.
3. threshold: ``S > t``, with ``t`` rounded to float32.
4. border: ``border <= x < width - border`` and the same for y, with width and height those of the image without its
   padding. Pixels of the border and of the padding have already suppressed their neighbours in step 2.
5. mask: where it is False nothing is kept; a masked pixel has suppressed its neighbours as well.
6. top-k: the ``max_keypoints`` highest scores, of equal scores the first in raster order; given in descending order,
   equal scores in raster order.

Nothing here computes: values are copied and compared, so that the result is exact in any dtype and the same on any
device that got the same scores. DeTone et al., SuperPoint (2018), section 3.4 has the cells; the paper's public
implementations repeat step 2 up to three times and re-admit maxima outside suppressed zones, a superset of this one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ttsp_ros.superpoint.features import DetectionSettings

CELL = 8
CELL_PIXELS = CELL * CELL
CELL_CHANNELS = CELL_PIXELS + 1


@dataclass(frozen=True)
class Selection:
    """Keypoints on the score map, best first, equal scores in raster order.

    Attributes:
        x: int64 [N], column.
        y: int64 [N], row.
        scores: [N], in the dtype of the score map.
    """

    x: torch.Tensor
    y: torch.Tensor
    scores: torch.Tensor

    def __len__(self) -> int:
        return len(self.scores)


def fold(cells: torch.Tensor) -> torch.Tensor:
    """Score map of the image from the scores of its cells.

    Args:
        cells: [64 or 65, h, w], any dtype and memory order; channel 64, where there is one, is the dustbin.

    Returns:
        [8 h, 8 w], contiguous, same dtype.
    """
    channels, rows, columns = cells.shape
    if channels not in (CELL_PIXELS, CELL_CHANNELS):
        raise ValueError(f"cells: got {tuple(cells.shape)}, expected [65, h, w] or [64, h, w]")
    pixels = cells[:CELL_PIXELS].reshape(CELL, CELL, rows, columns)
    return pixels.permute(2, 0, 3, 1).reshape(CELL * rows, CELL * columns)


def window_maximum(scores: torch.Tensor, radius: int) -> torch.Tensor:
    """Maximum of the (2 r + 1) x (2 r + 1) pixels around every pixel; outside of the map is 0.

    Args:
        scores: [height, width], not negative, any dtype.
        radius: r, at least 1.
    """
    height, width = scores.shape
    padded = scores.new_zeros(height + 2 * radius, width + 2 * radius)
    padded[radius : radius + height, radius : radius + width] = scores
    return _sliding_maximum(_sliding_maximum(padded, 2 * radius + 1, 1), 2 * radius + 1, 0)


def _sliding_maximum(values: torch.Tensor, window: int, dim: int) -> torch.Tensor:
    """Maximum of every run of `window` values along `dim`; the result is shorter by window - 1.

    The run is doubled by one elementwise maximum a step, so 9 takes four of them: at 480x640 twenty times faster
    than torch.max_pool2d of the same window.
    """
    length = values.shape[dim] - window + 1
    covered = 1
    while covered < window:
        step = min(covered, window - covered)
        count = values.shape[dim] - step
        values = torch.maximum(values.narrow(dim, 0, count), values.narrow(dim, step, count))
        covered += step
    return values.narrow(dim, 0, length)


def nms(scores: torch.Tensor, radius: int) -> torch.Tensor:
    """The score map with everything but the maxima of their windows set to 0.

    Args:
        scores: [height, width], not negative, any dtype.
        radius: r of the (2 r + 1) x (2 r + 1) window.

    Returns:
        [height, width], same dtype.
    """
    return torch.where(is_window_maximum(scores, radius), scores, scores.new_zeros(()))


def is_window_maximum(scores: torch.Tensor, radius: int) -> torch.Tensor:
    """bool [height, width]: where a pixel equals the maximum of its window."""
    ordered = _as_ordered(scores)
    return ordered == window_maximum(ordered, radius)


def _as_ordered(scores: torch.Tensor) -> torch.Tensor:
    """The bits of bf16 scores as int16: same order and equality as long as none is negative, and faster to compare."""
    return scores.view(torch.int16) if scores.dtype == torch.bfloat16 else scores


def bf16_threshold_bits(threshold: float) -> int:
    """The 16 bits p with: a bfloat16 x >= 0 is greater than the float32 threshold iff bits(x) > p as integers.

    These are the upper half of the threshold's float32 bits. Cutting the lower half off rounds down to the greatest
    bfloat16 t' <= t, and no bfloat16 lies between t' and t, so x > t and x > t' are the same.
    """
    return int(np.float32(threshold).view(np.uint32)) >> 16


def above_threshold(scores: torch.Tensor, threshold: float) -> torch.Tensor:
    """bool, where scores (float32 or bfloat16, not negative) are greater than the threshold rounded to float32."""
    if scores.dtype == torch.bfloat16:
        return scores.view(torch.int16) > bf16_threshold_bits(threshold)
    return scores > float(np.float32(threshold))


def candidates(
    scores: torch.Tensor,
    settings: DetectionSettings,
    image_size: tuple[int, int] | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Raster indices y * width + x of all keypoints before top-k (steps 2 to 5), ascending.

    Args:
        scores: [height, width], float32 or bfloat16, not negative.
        settings: threshold, nms_radius and border are used.
        image_size: (height, width) of the image in the top-left corner of the map, where the map is padded.
        mask: bool [height, width], False where no keypoint is wanted.

    Returns:
        int64 [N].
    """
    keep = above_threshold(scores, settings.threshold)
    keep &= is_window_maximum(scores, settings.nms_radius)
    return _inside(keep, settings.border, image_size, mask)


def candidates_of_nms_map(
    nms_map: torch.Tensor,
    settings: DetectionSettings,
    image_size: tuple[int, int] | None = None,
    mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `candidates`, from a map that NMS has already been done on (as the card gives it)."""
    return _inside(above_threshold(nms_map, settings.threshold), settings.border, image_size, mask)


def _inside(
    keep: torch.Tensor, border: int, image_size: tuple[int, int] | None, mask: torch.Tensor | None
) -> torch.Tensor:
    map_height, map_width = keep.shape
    height, width = image_size if image_size is not None else (map_height, map_width)
    top, bottom = border, max(border, height - border)
    left, right = border, max(border, width - border)
    keep[:top] = False
    keep[bottom:] = False
    keep[:, :left] = False
    keep[:, right:] = False
    if mask is not None:
        keep &= mask
    # numpy finds the few set pixels several times faster than torch.nonzero does.
    return torch.from_numpy(np.flatnonzero(keep.numpy()))


def top_k(scores: torch.Tensor, count: int) -> torch.Tensor:
    """Order of the `count` best: descending, equal scores as they stand (raster order, given raster candidates).

    Args:
        scores: [N], float32 or bfloat16, not negative.
        count: how many at most.

    Returns:
        int64 [min(N, count)], indices into scores.
    """
    return torch.sort(_as_ordered(scores), descending=True, stable=True).indices[:count]


def select(scores: torch.Tensor, raster: torch.Tensor, max_keypoints: int) -> Selection:
    """Step 6: the best `max_keypoints` of the candidates.

    Args:
        scores: [height, width], the score map or its NMS map.
        raster: int64 [N], ascending raster indices of the candidates.
        max_keypoints: how many at most.
    """
    values = scores.reshape(-1)[raster]
    order = top_k(values, max_keypoints)
    raster = raster[order]
    width = scores.shape[1]
    return Selection(x=raster % width, y=raster // width, scores=values[order])


def detect(
    cells: torch.Tensor,
    settings: DetectionSettings,
    image_size: tuple[int, int] | None = None,
    mask: torch.Tensor | None = None,
) -> Selection:
    """All steps: cells [65, h, w] (after softmax) to keypoints; see the module's text and `candidates`."""
    scores = fold(cells)
    return select(scores, candidates(scores, settings, image_size, mask), settings.max_keypoints)
