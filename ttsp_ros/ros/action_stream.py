"""What the arm is told to do over time: joins chunks and decides whether they are motion or preview. Knows no ROS."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from ttsp_ros.dit.chunking import NS, Plan, Splicing, splice
from ttsp_ros.dit.policy import Continuation, Prediction


class ActionStream:
    """The plan that the arm follows. Any thread may call any method; `send` is called one at a time.

    Args:
        send: publishes a plan: (plan, time of its observation, whether it is motion and not only preview).
    """

    def __init__(self, send: Callable[[Plan, int, bool], None]) -> None:
        self._send = send
        self._lock = threading.Lock()
        self._moving = False
        self._plan: Plan | None = None
        self._last: Prediction | None = None

    @property
    def moving(self) -> bool:
        """Whether chunks are motion."""
        return self._moving

    def end(self) -> int | None:
        """When the commanded motion ends, ns; None when none was commanded."""
        with self._lock:
            return None if self._plan is None else self._plan.end

    def allow_motion(self) -> None:
        """Chunks are motion from now on, the first of them from where the arm is."""
        with self._lock:
            if not self._moving:
                self._forget()
            self._moving = True

    def stop_motion(self, now: int, brake: float) -> None:
        """Chunks are preview from now on; an arm in motion is told to come to rest within `brake` seconds."""
        with self._lock:
            if self._moving and self._plan is not None and self._plan.end > now:
                end = np.array([now, now + round(brake * NS)], np.int64)
                self._send(Plan(end, self._plan.at(end)), now, True)
            self._moving = False
            self._forget()

    def forget(self) -> None:
        """Start anew from where the arm is: time jumped, or the arm did."""
        with self._lock:
            self._forget()

    def continuation(self, stamp: int, ready: int, dt: float, overlap: int) -> Continuation | None:
        """What a chunk that starts at `stamp` and will be ready at `ready` has to continue; None: nothing."""
        with self._lock:
            if self._plan is None or self._last is None or self._plan.end <= ready:
                return None
            frozen = max(0, -int(-(ready - stamp) // (dt * NS)))
            return Continuation(self._plan, self._last, frozen, overlap)

    def follow(
        self, prediction: Prediction, now: int, measured: np.ndarray, how: Splicing, max_tracking_error: float
    ) -> tuple[Plan, bool] | None:
        """Join a chunk to what the arm does, and send it.

        Args:
            prediction: the chunk.
            measured: float64 [joints], where the arm is now.
            how: see `splice`.
            max_tracking_error: further from the plan than this, the arm goes on from where it is; 0: never.

        Returns:
            The plan and whether it was sent as motion; None when no row of the chunk is left, and nothing was sent.
        """
        with self._lock:
            running = self._running(now, measured, max_tracking_error)
            plan = splice(running, prediction.chunk, now, how)
            if plan is None:
                return None
            moving = self._moving
            if moving:
                self._plan, self._last = plan, prediction
            self._send(plan, prediction.chunk.stamp, moving)
            return plan, moving

    def _running(self, now: int, measured: np.ndarray, max_tracking_error: float) -> Plan:
        if not self._moving or self._plan is None or self._plan.end <= now:
            return Plan.hold(now, measured)
        error = np.abs(self._plan.at(np.array([now]))[0] - measured).max()
        return Plan.hold(now, measured) if 0 < max_tracking_error < error else self._plan

    def _forget(self) -> None:
        self._plan = self._last = None
