"""The demo's picture: a frame of every scene with its keypoints, and below the matches of two frames."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from ttsp_ros.tools.demo import Pair, Shot

WIDTH_INCHES, DPI = 12.0, 110
TITLE_INCHES, MARGIN_INCHES = 0.32, 0.1
BACKGROUND, TEXT = "#14171c", "#e8eaed"
RIGHT, WRONG = "#35d07f", "#ff5252"
GAP = 12  # pixels between the two matched frames
MATCHES_DRAWN = 150


def draw(path: Path, shots: Sequence[Shot], candidates: Sequence[Pair]) -> None:
    """Writes the picture; `candidates` are pairs of frames, of which the one with the most right matches is drawn."""
    scenes = list(dict.fromkeys(shot.scene for shot in shots))
    shown = [_middle([shot for shot in shots if shot.scene == scene]) for scene in scenes]
    pair = max(candidates, key=lambda pair: int(pair.matches.right.sum()))
    height, width = shots[0].image.shape[:2]
    aspect = height / width
    top, bottom = WIDTH_INCHES * aspect / len(shown), WIDTH_INCHES * aspect / 2
    total = top + bottom + 2 * TITLE_INCHES + MARGIN_INCHES
    figure = Figure(figsize=(WIDTH_INCHES, total), dpi=DPI, facecolor=BACKGROUND)
    figure.subplots_adjust(
        left=MARGIN_INCHES / WIDTH_INCHES,
        right=1 - MARGIN_INCHES / WIDTH_INCHES,
        top=1 - TITLE_INCHES / total,
        bottom=MARGIN_INCHES / total,
    )
    space = 2 * TITLE_INCHES / (top + bottom)  # in units of the rows' mean height
    rows = figure.add_gridspec(2, 1, height_ratios=(top, bottom), hspace=space)
    tiles = rows[0].subgridspec(1, len(shown), wspace=0.02)
    for index, shot in enumerate(shown):
        _keypoints(figure.add_subplot(tiles[index]), shot)
    _matches(figure.add_subplot(rows[1]), pair)
    figure.savefig(path, facecolor=BACKGROUND)


def _middle(shots: Sequence[Shot]) -> Shot:
    return shots[len(shots) // 2]


def _keypoints(axes: Axes, shot: Shot) -> None:
    _show(axes, _dimmed(shot.image), f"{shot.scene}: {len(shot.features)} keypoints")
    points, scores = shot.features.keypoints[::-1], shot.features.scores[::-1]  # the best on top
    if len(scores):
        rank = np.argsort(np.argsort(scores, kind="stable")) / len(scores)
        axes.scatter(points[:, 0], points[:, 1], s=7, c=rank, cmap="turbo", linewidths=0.2, edgecolors="black")


def _matches(axes: Axes, pair: Pair) -> None:
    first, second = pair.first.image, pair.second.image
    height, width = first.shape[:2]
    canvas = np.full((height, 2 * width + GAP, 3), 20, np.uint8)
    canvas[:, :width], canvas[:, width + GAP :] = _dimmed(first), _dimmed(second)
    right = pair.matches.right
    drawn = np.unique(np.linspace(0, len(right) - 1, MATCHES_DRAWN).astype(int)) if len(right) else np.zeros(0, int)
    title = f"{len(right)} matches of two frames, {right.sum()} right to 3 px by the known motion"
    _show(axes, canvas, f"{title} (green: right, red: wrong; {len(drawn)} evenly chosen ones are drawn)")
    rows, columns = pair.matches.indices[drawn].T
    starts = pair.first.features.keypoints[rows]
    ends = pair.second.features.keypoints[columns] + np.array([width + GAP, 0], np.float32)
    colours = np.where(right[drawn], RIGHT, WRONG)
    axes.add_collection(LineCollection(np.stack([starts, ends], axis=1), colors=colours, linewidths=0.7, alpha=0.75))
    for points in (starts, ends):
        axes.scatter(points[:, 0], points[:, 1], s=6, c=colours, linewidths=0)


def _show(axes: Axes, image: np.ndarray, title: str) -> None:
    axes.imshow(image, interpolation="lanczos")
    axes.set_title(title, color=TEXT, fontsize=10, loc="left", pad=4)
    axes.set_axis_off()
    axes.set_xlim(-0.5, image.shape[1] - 0.5)
    axes.set_ylim(image.shape[0] - 0.5, -0.5)


def _dimmed(image: np.ndarray) -> np.ndarray:
    """Half way to gray and darker, so that the colours on it tell."""
    gray = image.mean(axis=2, keepdims=True)
    return ((0.5 * image + 0.5 * gray) * 0.7).astype(np.uint8)
