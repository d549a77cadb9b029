"""Joins action chunks in time, so that the arm moves on smoothly from one to the next. Times are int nanoseconds.

A chunk starts at its observation, which is past when the chunk is ready. Executed from its first row it would pull the
arm back to where it was (Isaac-GR00T #272). Here a row belongs to an absolute time; rows whose time has passed are
skipped, the next few are cross-faded from what the arm is doing, and no joint turns against a motion that both the
running and the new chunk continue.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NS = 1_000_000_000


@dataclass(frozen=True)
class ActionChunk:
    """Where the joints shall be, row by row.

    Attributes:
        positions: float32 [rows, joints], rad or m.
        names: of the joints, in the order of the columns.
        dt: seconds from row to row.
        stamp: time of row 0, the time of the observation.
    """

    positions: np.ndarray
    names: tuple[str, ...]
    dt: float
    stamp: int

    def __post_init__(self) -> None:
        if self.positions.ndim != 2 or self.positions.shape[1] != len(self.names) or not len(self.positions):
            raise ValueError(f"positions: got shape {self.positions.shape}, expected [rows, {len(self.names)}]")
        if self.dt <= 0:
            raise ValueError(f"dt: got {self.dt}, allowed is more than 0 seconds")

    @property
    def times(self) -> np.ndarray:
        """int64 [rows]: stamp + i dt."""
        return self.stamp + np.round(np.arange(len(self.positions)) * (self.dt * NS)).astype(np.int64)


@dataclass(frozen=True)
class Plan:
    """What the arm is told to do: straight lines between knots, at rest before the first and after the last.

    Attributes:
        times: int64 [knots], rising.
        positions: float64 [knots, joints].
    """

    times: np.ndarray
    positions: np.ndarray

    @staticmethod
    def hold(time: int, positions: np.ndarray) -> Plan:
        """At rest at float64 [joints]."""
        return Plan(np.array([time], np.int64), np.asarray(positions, np.float64)[None])

    def at(self, times: np.ndarray) -> np.ndarray:
        """float64 [n, joints] at int64 [n]."""
        # Relative to the first knot: float64 holds only half a microsecond of the time since 1970.
        start = self.times[0]
        query, knots = np.asarray(times - start, np.float64), (self.times - start).astype(np.float64)
        return np.stack([np.interp(query, knots, column) for column in self.positions.T], axis=1)

    @property
    def end(self) -> int:
        """When the arm comes to rest."""
        return int(self.times[-1])


@dataclass(frozen=True)
class Splicing:
    """How chunks are joined.

    Attributes:
        overlap: rows that are cross-faded from the running plan to the new chunk; 0: none.
        max_velocity: no joint is told to move faster (rad/s or m/s); 0: no limit.
        reach: seconds after the observation up to which a chunk may command motion.
    """

    overlap: int
    max_velocity: float
    reach: float

    def __post_init__(self) -> None:
        for name in ("overlap", "max_velocity", "reach"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, allowed is 0 and more")


def splice(running: Plan, chunk: ActionChunk, now: int, how: Splicing) -> Plan | None:
    """The plan that goes on from what `running` does at `now` into `chunk`.

    Its first knot is where the arm is told to be now, the others are rows of the chunk later than now and no later than
    `reach` after the observation. None when no row is left.

    Row j of those left is (1 - w) running + w chunk with w = (j + 1) / (overlap + 1), at most 1. Then, for each joint:
    while the chunk keeps the direction in which the arm is moving now, the joint waits rather than turn back; and its
    speed is limited. What either holds back is made up for by later rows.
    """
    left = (chunk.times > now) & (chunk.times <= chunk.stamp + round(how.reach * NS))
    if not left.any():
        return None
    times = chunk.times[left]
    new = np.asarray(chunk.positions, np.float64)
    before = Plan(chunk.times, new).at(np.array([now]))
    new = new[left]
    old = running.at(times)
    here = running.at(np.array([now]))[0]
    weight = np.minimum((np.arange(len(times)) + 1) / (how.overlap + 1), 1.0)[:, None]
    wanted = (1 - weight) * old + weight * new
    heading = _direction(old[0] - here)
    keeps = np.logical_and.accumulate(_direction(np.diff(new, axis=0, prepend=before)) == heading, axis=0)
    durations = np.diff(times, prepend=now) / NS

    positions, at = [here], here
    for row, duration, kept in zip(wanted, durations, keeps & (heading != 0), strict=True):
        step = row - at
        step = np.where(kept & (step * heading < 0), 0.0, step)
        if how.max_velocity > 0:
            step = np.clip(step, -how.max_velocity * duration, how.max_velocity * duration)
        at = at + step
        positions.append(at)
    return Plan(np.concatenate([[now], times]), np.stack(positions))


def _direction(steps: np.ndarray) -> np.ndarray:
    """-1, 0 or 1; differences that are rounding of float32 positions are none."""
    return np.where(np.abs(steps) < 1e-6, 0.0, np.sign(steps))
