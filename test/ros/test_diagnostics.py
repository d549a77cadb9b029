"""Counting, rates, and what is worth a warning."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ttsp_ros.ros.diagnostics import WINDOW_SECONDS, Counter, Counts, Health, judge, status


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_rates_and_times_are_of_the_latest_seconds(clock):
    counter = Counter(clock)
    for number in range(100):
        clock.now += 0.1
        counter.receive()
        counter.process(processing_ms=float(number), age_ms=50.0 + number)
    counts = counter.counts()
    assert counts.fps == pytest.approx(10, rel=0.05)
    assert counts.processing_ms_max == 99 and 70 < counts.processing_ms < 80
    assert (counts.received, counts.processed) == (100, 100)
    clock.now += 2 * WINDOW_SECONDS
    idle = counter.counts()
    assert idle.fps == 0 and math.isnan(idle.processing_ms) and idle.waited == pytest.approx(10)


def test_the_rate_is_right_before_the_window_is_full(clock):
    counter = Counter(clock)
    for _ in range(10):
        clock.now += 0.1
        counter.process(1.0, 1.0)
    assert counter.counts().fps == pytest.approx(10)


def test_a_stamp_of_zero_has_no_age(clock):
    counter = Counter(clock)
    counter.process(1.0, math.nan)
    assert "stamp_to_publish_ms" not in counter.counts().values()
    assert counter.counts().values()["processing_ms"] == "1.000"


def test_reset_begins_anew(clock):
    counter = Counter(clock)
    counter.refuse("why")
    counter.fail("how")
    counter.drop(3)
    counter.reset()
    assert counter.counts() == Counts(fps=0.0)


OLD = Counts(received=10, processed=10, refused=2, failed=1, refusal="old", failure="old", fps=9.5)


@pytest.mark.parametrize(
    ("change", "level", "text"),
    [
        ({}, Health.OK, "9.5 per second"),
        ({"refused": 3, "refusal": "width 0"}, Health.WARN, "refused: width 0"),
        ({"failed": 2, "refused": 3, "failure": "gone"}, Health.ERROR, "failed: gone"),
        ({"waited": 6.0}, Health.WARN, "no message for 6 s"),
        ({"age_ms": 3.6e6}, Health.WARN, "use_sim_time"),
        ({"age_ms": -3.6e6}, Health.WARN, "use_sim_time"),
    ],
)
def test_what_happened_since_the_last_time_decides(change, level, text):
    health = judge(replace(OLD, **change), OLD, input_timeout=5.0)
    assert health.level == level and text in health.message


def test_no_timeout_no_warning():
    assert judge(replace(OLD, waited=1e6), OLD, input_timeout=0.0).level == Health.OK


def test_the_message_has_the_level_as_ros_wants_it():
    message = status("node", Health(Health.ERROR, "bad"), "card", {"a": 1})
    assert (message.level, message.name, message.message, message.hardware_id) == (b"\x02", "node", "bad", "card")
    assert [(pair.key, pair.value) for pair in message.values] == [("a", "1")]
