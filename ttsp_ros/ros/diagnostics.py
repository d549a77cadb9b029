"""Counting what happens to messages, and telling it as diagnostic_msgs.

The counters know no ROS; the messages are made at the end.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from diagnostic_msgs.msg import DiagnosticStatus

# Rates and mean times are over the latest frames of this many seconds.
WINDOW_SECONDS = 5.0

# A stamp so far from the node's clock is of another clock: a bag without simulated time, or the other way round.
STRANGE_AGE_MS = 60_000.0


@dataclass(frozen=True)
class FrameTime:
    """Times of one processed message.

    Attributes:
        done: seconds of the steady clock when its results were published.
        processing_ms: from taking it up to that moment.
        age_ms: from the stamp in its header to that moment, in the node's time; NaN where the stamp is 0.
    """

    done: float
    processing_ms: float
    age_ms: float


@dataclass(frozen=True)
class Counts:
    """What happened to the messages of one source since the node was activated.

    received = processed + dropped + refused + failed + those that wait or are in work.

    Attributes:
        received: messages that arrived.
        processed: results were published.
        dropped: replaced by a newer one before their turn came, or waiting when the node was deactivated.
        refused: not usable; `refusal` says why the latest was.
        failed: processing raised; `failure` says what.
        fps: processed per second, over WINDOW_SECONDS.
        processing_ms, age_ms: means of FrameTime over WINDOW_SECONDS, NaN without frames; and the largest of each.
        waited: seconds since the latest message, or since messages could come at all.
    """

    received: int = 0
    processed: int = 0
    dropped: int = 0
    refused: int = 0
    failed: int = 0
    refusal: str = ""
    failure: str = ""
    fps: float = 0.0
    processing_ms: float = math.nan
    processing_ms_max: float = math.nan
    age_ms: float = math.nan
    age_ms_max: float = math.nan
    waited: float = 0.0

    def values(self) -> dict[str, str]:
        """As key-value pairs of a diagnostic message; times that aren't known are left out."""
        numbers = {
            "processing_ms": self.processing_ms,
            "processing_ms_max": self.processing_ms_max,
            "stamp_to_publish_ms": self.age_ms,
            "stamp_to_publish_ms_max": self.age_ms_max,
        }
        counts = ("received", "processed", "dropped", "refused", "failed")
        return {
            "fps": f"{self.fps:.2f}",
            **{key: f"{number:.3f}" for key, number in numbers.items() if math.isfinite(number)},
            **{key: str(getattr(self, key)) for key in counts},
            **({"last_refusal": self.refusal} if self.refusal else {}),
            **({"last_failure": self.failure} if self.failure else {}),
        }


class Counter:
    """Counts the messages of one source; any thread may call any method.

    Args:
        clock: seconds that never jump back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Begin anew, as when the node is activated."""
        with self._lock:
            self._counts = Counts()
            self._times: deque[FrameTime] = deque()
            self._begin = self._waiting_since = self._clock()

    def expect(self) -> None:
        """Messages may come from now on: somebody subscribed."""
        with self._lock:
            self._waiting_since = self._clock()

    def receive(self) -> None:
        """A message arrived."""
        with self._lock:
            self._add(received=1)
            self._waiting_since = self._clock()

    def drop(self, number: int = 1) -> None:
        """So many were dropped unseen."""
        with self._lock:
            self._add(dropped=number)

    def refuse(self, reason: str) -> None:
        """One can't be used."""
        with self._lock:
            self._add(refused=1)
            self._counts = replace(self._counts, refusal=reason)

    def fail(self, reason: str) -> None:
        """Processing one raised."""
        with self._lock:
            self._add(failed=1)
            self._counts = replace(self._counts, failure=reason)

    def process(self, processing_ms: float, age_ms: float) -> None:
        """One was processed and its results were published just now."""
        with self._lock:
            self._add(processed=1)
            self._times.append(FrameTime(self._clock(), processing_ms, age_ms))
            self._forget_old()

    def counts(self) -> Counts:
        """The counts and the times of the latest seconds."""
        with self._lock:
            self._forget_old()
            now = self._clock()
            processing = [frame.processing_ms for frame in self._times]
            ages = [frame.age_ms for frame in self._times if math.isfinite(frame.age_ms)]
            return replace(
                self._counts,
                fps=self._rate(now),
                processing_ms=_mean(processing),
                processing_ms_max=max(processing, default=math.nan),
                age_ms=_mean(ages),
                age_ms_max=max(ages, default=math.nan),
                waited=now - self._waiting_since,
            )

    def _add(self, **numbers: int) -> None:
        sums: dict[str, Any] = {name: getattr(self._counts, name) + number for name, number in numbers.items()}
        self._counts = replace(self._counts, **sums)

    def _rate(self, now: float) -> float:
        seconds = min(WINDOW_SECONDS, now - self._begin)
        return len(self._times) / seconds if seconds > 0 else 0.0

    def _forget_old(self) -> None:
        oldest = self._clock() - WINDOW_SECONDS
        while self._times and self._times[0].done < oldest:
            self._times.popleft()


@dataclass(frozen=True)
class Health:
    """A level and what to tell: OK, WARN and ERROR are those of diagnostic_msgs/DiagnosticStatus."""

    level: int
    message: str

    OK: ClassVar[int] = 0
    WARN: ClassVar[int] = 1
    ERROR: ClassVar[int] = 2


def judge(now: Counts, before: Counts, input_timeout: float) -> Health:
    """How a source that somebody listens to is doing, from its counts now and at the time of the last judgement.

    Args:
        input_timeout: seconds without a message that are worth a warning; 0: never.
    """
    if now.failed > before.failed:
        return Health(Health.ERROR, f"failed: {now.failure}")
    if now.refused > before.refused:
        return Health(Health.WARN, f"refused: {now.refusal}")
    if 0 < input_timeout < now.waited:
        return Health(Health.WARN, f"no message for {now.waited:.0f} s")
    if abs(now.age_ms) > STRANGE_AGE_MS:
        return Health(
            Health.WARN,
            f"stamps are {now.age_ms / 1e3:.0f} s older than the node's clock: is use_sim_time what it should be?",
        )
    return Health(Health.OK, f"{now.fps:.1f} per second")


def status(name: str, health: Health, hardware_id: str, values: Mapping[str, Any]) -> DiagnosticStatus:
    """A DiagnosticStatus with `values` as key-value pairs."""
    from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

    return DiagnosticStatus(
        level=bytes([health.level]),
        name=name,
        message=health.message,
        hardware_id=hardware_id,
        values=[KeyValue(key=key, value=str(value)) for key, value in values.items()],
    )


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else math.nan
