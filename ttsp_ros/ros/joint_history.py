"""Where each joint was when. Knows no ROS; times are int nanoseconds."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from ttsp_ros.dit.chunking import NS


class JointHistory:
    """The latest positions of every joint, by name. Any thread may call any method.

    Joints may come in messages of their own (an arm and a gripper from two drivers), in any order.

    Args:
        seconds: how far back positions are kept.
    """

    def __init__(self, seconds: float) -> None:
        self._window = round(seconds * NS)
        self._lock = threading.Lock()
        self._times: dict[str, list[int]] = {}
        self._positions: dict[str, list[float]] = {}

    def add(self, stamp: int, names: Sequence[str], positions: Sequence[float]) -> None:
        """Positions (rad or m) at a time. A joint's clock that jumps back begins its history anew.

        Raises:
            ValueError: not one position for each name, or one that is not finite; nothing is kept then.
        """
        if len(names) != len(positions):
            raise ValueError(f"{len(names)} names and {len(positions)} positions")
        bad = [
            f"{name} = {position}"
            for name, position in zip(names, positions, strict=True)
            if not math.isfinite(position)
        ]
        if bad:
            raise ValueError(f"{', '.join(bad)} is no position")
        with self._lock:
            for name, position in zip(names, positions, strict=True):
                self._add(stamp, name, position)

    def _add(self, stamp: int, name: str, position: float) -> None:
        times, values = self._times.setdefault(name, []), self._positions.setdefault(name, [])
        if times and stamp <= times[-1]:
            if stamp == times[-1]:
                values[-1] = position
                return
            times.clear()
            values.clear()
        times.append(stamp)
        values.append(position)
        old = bisect_left(times, stamp - self._window)
        del times[:old], values[:old]

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._times.clear()
            self._positions.clear()

    def at(self, time: int, joints: Iterable[str], max_skew: float, what: str) -> dict[str, float]:
        """The position of each joint at a time, between two messages along a straight line.

        Args:
            max_skew: before the first and after the last message its position holds for so many seconds.
            what: names the time in the error.

        Raises:
            ValueError: a joint has no position, or none close enough; all such joints are named.
        """
        joints = tuple(joints)
        with self._lock:
            self._require(joints)
            skews = {joint: self._skew(joint, time) / NS for joint in joints}
            far = [f"{joint} ({skew:.2f} s off)" for joint, skew in skews.items() if skew > max_skew]
            if far:
                raise ValueError(f"joint_states: no position within {max_skew} s of {what}: {', '.join(far)}")
            return {joint: self._interpolate(joint, time) for joint in joints}

    def _require(self, joints: tuple[str, ...]) -> None:
        missing = [joint for joint in joints if joint not in self._times]
        if missing:
            raise ValueError(f"joint_states: no position of {', '.join(missing)} has come")

    def _skew(self, joint: str, time: int) -> int:
        times = self._times[joint]
        return max(times[0] - time, time - times[-1], 0)

    def _interpolate(self, joint: str, time: int) -> float:
        times, values = self._times[joint], self._positions[joint]
        after = bisect_left(times, time)
        if after == 0:
            return values[0]
        if after == len(times):
            return values[-1]
        share = (time - times[after - 1]) / (times[after] - times[after - 1])
        return values[after - 1] + share * (values[after] - values[after - 1])
