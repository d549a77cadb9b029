"""Chunks joined in time: continuity, skipped rows, no stepping back, and where motion ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ttsp_ros.dit.chunking import NS, ActionChunk, Plan, Splicing, splice

# A time of the present: float64 can't tell nanoseconds apart there.
T0 = 1_796_000_000_123_456_789
DT = 0.1
FAR = Splicing(overlap=4, max_velocity=0.0, reach=100.0)


def ramp(start: float, speed: float, rows: int = 16, stamp: int = T0) -> ActionChunk:
    """One joint that moves at a constant speed (rad/s)."""
    positions = np.float32(start + speed * DT * np.arange(rows))[:, None]
    return ActionChunk(positions, ("joint",), DT, stamp)


def seconds(time: float) -> int:
    return T0 + round(time * NS)


def test_rows_are_at_stamp_plus_i_dt() -> None:
    chunk = ramp(0.0, 1.0, rows=3)
    assert chunk.times.tolist() == [T0, T0 + 100_000_000, T0 + 200_000_000]


def test_past_rows_are_skipped() -> None:
    plan = splice(Plan.hold(T0, np.zeros(1)), ramp(0.0, 1.0), seconds(0.25), Splicing(0, 0.0, 100.0))
    assert plan is not None
    assert plan.times[:2].tolist() == [seconds(0.25), seconds(0.3)]
    np.testing.assert_allclose(plan.positions[1:, 0], 0.1 * np.arange(3, 16), atol=1e-6)


def test_row_of_this_very_moment_is_past() -> None:
    plan = splice(Plan.hold(T0, np.zeros(1)), ramp(0.0, 1.0), seconds(0.3), FAR)
    assert plan is not None
    assert plan.times[1] == seconds(0.4)


def test_late_chunk_has_nothing_left() -> None:
    assert splice(Plan.hold(T0, np.zeros(1)), ramp(0.0, 1.0, rows=5), seconds(0.4), FAR) is None


def test_no_motion_beyond_reach() -> None:
    plan = splice(Plan.hold(T0, np.zeros(1)), ramp(0.0, 1.0), seconds(0.0), Splicing(4, 0.0, reach=0.55))
    assert plan is not None
    assert plan.end == seconds(0.5)
    assert splice(Plan.hold(T0, np.zeros(1)), ramp(0.0, 1.0), seconds(0.5), Splicing(4, 0.0, reach=0.55)) is None


def test_overlap_fades_from_the_running_plan_to_the_chunk() -> None:
    running = Plan(np.array([T0, seconds(10.0)]), np.array([[1.0], [1.0]]))
    chunk = ActionChunk(np.full((8, 1), 2.0, np.float32), ("joint",), DT, T0)
    plan = splice(running, chunk, seconds(0.05), Splicing(overlap=3, max_velocity=0.0, reach=100.0))
    assert plan is not None
    np.testing.assert_allclose(plan.positions[:, 0], [1.0, 1.25, 1.5, 1.75, 2.0, 2.0, 2.0, 2.0])


def test_first_chunk_begins_where_the_arm_is() -> None:
    plan = splice(Plan.hold(T0, np.array([-0.7])), ramp(0.0, 1.0), seconds(0.02), FAR)
    assert plan is not None
    assert plan.at(np.array([seconds(0.02)]))[0, 0] == pytest.approx(-0.7)


def test_speed_is_limited_and_made_up_for() -> None:
    how = Splicing(overlap=0, max_velocity=2.0, reach=100.0)
    chunk = ActionChunk(np.full((16, 1), 1.0, np.float32), ("joint",), DT, T0)
    plan = splice(Plan.hold(T0, np.zeros(1)), chunk, seconds(0.05), how)
    assert plan is not None
    speeds = np.diff(plan.positions[:, 0]) / (np.diff(plan.times) / NS)
    assert speeds.max() <= 2.0 + 1e-9
    assert plan.positions[-1, 0] == pytest.approx(1.0)


@pytest.mark.parametrize("direction", [1.0, -1.0])
@pytest.mark.parametrize("overlap", [0, 1, 4])
def test_arm_does_not_step_back_to_a_chunk_that_lags(direction: float, overlap: int) -> None:
    """The complaint of Isaac-GR00T #272: each chunk begins where the arm was at its observation, behind the command."""
    speed = 0.8 * direction
    running = splice(Plan.hold(T0, np.zeros(1)), ramp(0.0, speed), T0, Splicing(0, 0.0, 100.0))
    assert running is not None
    path = []
    for replan in range(1, 8):
        observed, now = seconds(0.4 * replan), seconds(0.4 * replan + 0.17)
        lagging = running.at(np.array([observed]))[0, 0] - 0.3 * direction
        plan = splice(running, ramp(lagging, speed, stamp=observed), now, Splicing(overlap, 0.0, 100.0))
        assert plan is not None
        path.append(running.at(np.arange(now - 400_000_000, now, 5_000_000)))
        running = plan
    moves = np.diff(np.concatenate(path)[:, 0]) * direction
    assert moves.min() >= -1e-9
    assert moves.max() > 0


def test_a_chunk_that_turns_is_followed() -> None:
    running = splice(Plan.hold(T0, np.zeros(1)), ramp(0.0, 1.0), T0, Splicing(0, 0.0, 100.0))
    assert running is not None
    plan = splice(running, ramp(0.3, -1.0, stamp=seconds(0.3)), seconds(0.3), FAR)
    assert plan is not None
    assert plan.positions[-1, 0] == pytest.approx(0.3 - 1.5, abs=1e-6)


def test_steps_back_once_the_chunk_stops_below() -> None:
    """Waiting is for as long as the chunk moves on; where it rests is where the arm goes."""
    running = splice(Plan.hold(T0, np.zeros(1)), ramp(0.0, 1.0), T0, Splicing(0, 0.0, 100.0))
    assert running is not None
    rows = np.float32(np.minimum(0.1 * np.arange(16), 0.5))[:, None]
    plan = splice(running, ActionChunk(rows, ("joint",), DT, seconds(0.3)), seconds(0.35), FAR)
    assert plan is not None
    assert plan.positions[-1, 0] == pytest.approx(0.5)


@settings(deadline=None, max_examples=200)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 12),
    st.floats(0.0, 5.0),
    st.floats(0.01, 1.9),
    st.floats(0.05, 3.0),
)
def test_any_two_chunks_are_joined_without_a_jump(
    seed: int, overlap: int, max_velocity: float, delay: float, reach: float
) -> None:
    random = np.random.default_rng(seed)
    old, new = (np.cumsum(random.normal(size=(20, 3)), axis=0).astype(np.float32) for _ in range(2))
    names = ("a", "b", "c")
    running = Plan(ActionChunk(old, names, DT, T0).times, old.astype(np.float64))
    chunk, now = ActionChunk(new, names, DT, seconds(0.2)), seconds(0.2 + delay)
    how = Splicing(overlap, max_velocity, reach)
    plan = splice(running, chunk, now, how)
    if plan is None:
        assert not ((chunk.times > now) & (chunk.times <= chunk.stamp + round(reach * NS))).any()
        return
    np.testing.assert_array_equal(plan.positions[0], running.at(np.array([now]))[0])
    assert (np.diff(plan.times) > 0).all() and plan.times[0] == now
    assert set(plan.times[1:].tolist()) <= set(chunk.times.tolist())
    assert plan.end <= chunk.stamp + round(reach * NS)
    if max_velocity > 0:
        steps, allowed = np.abs(np.diff(plan.positions, axis=0)), max_velocity * np.diff(plan.times) / NS + 1e-9
        assert (steps <= allowed[:, None]).all()


def test_plan_keeps_nanoseconds_apart() -> None:
    plan = Plan(np.array([T0, T0 + 1000]), np.array([[0.0], [1.0]]))
    np.testing.assert_allclose(plan.at(np.array([T0 + 250, T0 + 500]))[:, 0], [0.25, 0.5])


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap: got -1"):
        Splicing(-1, 0.0, 1.0)
    with pytest.raises(ValueError, match=r"positions: got shape \(2, 1\), expected \[rows, 2\]"):
        ActionChunk(np.zeros((2, 1), np.float32), ("a", "b"), DT, T0)
    with pytest.raises(ValueError, match="dt: got 0"):
        ActionChunk(np.zeros((2, 1), np.float32), ("a",), 0.0, T0)
