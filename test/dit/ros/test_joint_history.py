"""Where each joint was when."""

from __future__ import annotations

import pytest

from ttsp_ros.dit.chunking import NS
from ttsp_ros.ros.joint_history import JointHistory

T0 = 1_796_000_000 * NS


def at(seconds: float) -> int:
    return T0 + round(seconds * NS)


def test_between_messages_along_a_line() -> None:
    history = JointHistory(2.0)
    history.add(at(0.0), ["a", "b"], [0.0, 4.0])
    history.add(at(1.0), ["b", "a"], [0.0, 1.0])
    assert history.at(at(0.25), ["b", "a"], 0.0, "then") == {"b": pytest.approx(3.0), "a": pytest.approx(0.25)}
    assert history.at(at(1.0), ["a"], 0.0, "then") == {"a": 1.0}


def test_before_and_after_for_as_long_as_allowed() -> None:
    history = JointHistory(2.0)
    history.add(at(0.0), ["a"], [1.0])
    history.add(at(1.0), ["a"], [2.0])
    assert history.at(at(-0.1), ["a"], 0.1, "then") == {"a": 1.0}
    assert history.at(at(1.1), ["a"], 0.1, "then") == {"a": 2.0}
    for time in (-0.2, 1.2):
        with pytest.raises(ValueError, match=r"no position within 0\.1 s of then: a \(0\.20 s off\)"):
            history.at(at(time), ["a"], 0.1, "then")


def test_missing_joints_are_all_named() -> None:
    history = JointHistory(2.0)
    history.add(at(0.0), ["b"], [1.0])
    with pytest.raises(ValueError, match="no position of a, c has come"):
        history.at(at(0.0), ["a", "b", "c"], 1.0, "then")


def test_old_positions_are_forgotten() -> None:
    history = JointHistory(1.0)
    for step in range(40):
        history.add(at(0.1 * step), ["a"], [float(step)])
    assert len(history._times["a"]) == 11
    with pytest.raises(ValueError, match="no position within"):
        history.at(at(1.0), ["a"], 0.5, "then")


def test_same_stamp_replaces_and_earlier_begins_anew() -> None:
    history = JointHistory(2.0)
    history.add(at(1.0), ["a"], [1.0])
    history.add(at(1.0), ["a"], [2.0])
    assert history.at(at(1.0), ["a"], 0.0, "then") == {"a": 2.0}
    history.add(at(0.5), ["a"], [3.0])
    with pytest.raises(ValueError, match="no position within"):
        history.at(at(1.0), ["a"], 0.1, "then")
    history.clear()
    with pytest.raises(ValueError, match="no position of a"):
        history.at(at(0.5), ["a"], 0.1, "then")


@pytest.mark.parametrize(
    ("names", "positions", "message"), [(["a", "b"], [1.0], "2 names and 1"), (["a"], [float("nan")], "a = nan")]
)
def test_broken_messages_leave_nothing(names, positions, message) -> None:
    history = JointHistory(2.0)
    with pytest.raises(ValueError, match=message):
        history.add(at(0.0), names, positions)
    assert not history._times
