"""dit_node over real rclpy: what it sends, what it refuses, and that nothing moves that should not."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ttsp_ros.dit.chunking import NS
from ttsp_ros.dit.config import N15, N17

JOINTS = ["shoulder", "elbow", "wrist"]
DT = 0.1
ROBOT = {
    "embodiment_index": 1,
    "state": {"arm": {"joints": JOINTS, "min": [-2.0] * 3, "max": [2.0] * 3}},
    "action": {"arm": {"joints": JOINTS, "min": [-2.0] * 3, "max": [2.0] * 3}},
}


def times(message: Any) -> np.ndarray:
    """int64 [points], absolute."""
    start = message.header.stamp.sec * NS + message.header.stamp.nanosec
    return np.array([start + p.time_from_start.sec * NS + p.time_from_start.nanosec for p in message.points])


def positions(message: Any) -> np.ndarray:
    """float64 [points, joints]."""
    return np.array([point.positions for point in message.points])


@pytest.fixture
def robot_file(tmp_path: Path) -> str:
    path = tmp_path / "robot.yaml"
    path.write_text(yaml.safe_dump(ROBOT))
    return str(path)


def test_rows_are_at_observation_plus_i_dt_and_past_ones_are_skipped(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    stamp = rig.observe(age=0.35)
    message = rig.preview.wait()[0]
    assert message.joint_names == JOINTS
    assert message.header.stamp.sec * NS + message.header.stamp.nanosec == stamp
    rows = (times(message) - stamp) / (DT * NS)
    np.testing.assert_allclose(rows, np.round(rows), atol=1e-6)
    first = round(rows[0])
    assert first >= 4, "a row of the past was sent"
    np.testing.assert_array_equal(np.round(rows), np.arange(first, 16))
    np.testing.assert_allclose(positions(message)[:, 0], 0.05 * np.arange(first, 16), atol=1e-6)


def test_same_observation_and_seed_give_the_same_chunk(make_rig, robot_file: str) -> None:
    rig = make_rig(config=robot_file, version="n1.7", weights="random_tiny", seed=5, chunking="crossfade").start()
    ends = []
    for number, seed in enumerate((1, 1, 2)):
        rig.observe(positions=(0.1, 0.2, 0.3), seed=seed)
        rig.preview.wait(number + 1)
        ends.append(positions(rig.preview.messages[-1])[-15:])
        time.sleep(0.45)
    np.testing.assert_array_equal(ends[0], ends[1])
    assert not np.array_equal(ends[0], ends[2])


def test_joints_are_found_by_name_in_any_order_and_message(make_rig, rising_head) -> None:
    head = rising_head()
    rig = make_rig(head).start()
    stamp = rig.now()
    rig.send_joints(("gripper", "wrist", "elbow"), (9.0, 0.3, 0.2), stamp)
    rig.send_joints(("shoulder",), (0.1,), stamp)
    time.sleep(0.1)
    rig.send_tokens(stamp)
    rig.preview.wait()
    np.testing.assert_allclose(head.states[-1], [0.1, 0.2, 0.3], rtol=1e-6)


def test_joint_positions_are_those_of_the_time_of_the_images(make_rig, rising_head) -> None:
    head = rising_head()
    rig = make_rig(head).start()
    now = rig.now()
    rig.send_joints(positions=(0.0, 0.0, 0.0), stamp=now - NS)
    rig.send_joints(positions=(1.0, 2.0, 4.0), stamp=now)
    time.sleep(0.1)
    rig.send_tokens(now - NS // 4)
    rig.preview.wait()
    np.testing.assert_allclose(head.states[-1], [0.75, 1.5, 3.0], rtol=1e-6)


def test_nothing_moves_in_dry_run_or_before_enable(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    assert "preview only (dry_run is on)" in rig.enable().message
    rig.observe()
    rig.preview.wait(1)
    rig.enable(False)
    assert rig.set(dry_run=False).successful
    assert rig.predict().message == "a chunk was published: preview only (not enabled)"
    rig.preview.wait(2)
    assert rig.enable().message == "the arm moves"
    assert not rig.trajectory.messages
    rig.observe()
    assert rig.predict().success
    sent = rig.trajectory.wait()[0]
    assert sent == rig.preview.wait(3)[-1]


def test_disabling_brings_the_arm_to_rest(make_rig, rising_head) -> None:
    rig = make_rig(rising_head(), dry_run=False).start()
    rig.enable()
    rig.observe()
    chunk = rig.trajectory.wait()[0]
    # Until it executes rows of the chunk; before the first one it only approaches it.
    time.sleep(1.5 * DT)
    before = rig.now()
    rig.enable(False)
    hold = rig.trajectory.wait(2)[1]
    assert len(hold.points) == 1
    end = times(hold)[0]
    assert before < end <= rig.now() + 2 * DT * NS
    # Where the chunk would have it then: the arm is neither thrown back nor sent on.
    np.testing.assert_allclose(positions(hold)[0, 0], np.interp(end, times(chunk), positions(chunk)[:, 0]), atol=1e-3)
    rig.observe()
    rig.predict()
    time.sleep(0.2)
    assert len(rig.trajectory.messages) == 2


def test_dry_run_at_run_time_brings_the_arm_to_rest(make_rig, rising_head) -> None:
    rig = make_rig(rising_head(), dry_run=False).start()
    rig.enable()
    rig.observe()
    rig.trajectory.wait(1)
    rig.set(dry_run=True)
    assert len(rig.trajectory.wait(2)[1].points) == 1


def test_deactivating_brings_the_arm_to_rest_and_takes_enable_back(make_rig, rising_head) -> None:
    rig = make_rig(rising_head(), dry_run=False).start()
    rig.enable()
    rig.observe()
    rig.trajectory.wait(1)
    rig.on_node(rig.node.trigger_deactivate)
    assert len(rig.trajectory.wait(2)[1].points) == 1
    answer = rig.enable()
    assert not answer.success and answer.message == "the node is inactive; activate it first"
    assert rig.predict().message == "the node is inactive"
    rig.on_node(rig.node.trigger_activate)
    rig.observe()
    rig.preview.wait(3)
    assert len(rig.trajectory.messages) == 2


def test_chunk_in_work_when_disabled_is_no_motion(make_rig, rising_head) -> None:
    head = rising_head()
    rig = make_rig(head, dry_run=False).start()
    rig.enable()
    head.gate.clear()
    rig.observe()
    deadline = time.monotonic() + 10
    while not head.states:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    rig.enable(False)
    head.gate.set()
    rig.preview.wait(1)
    time.sleep(0.1)
    assert not rig.trajectory.messages


def test_arm_goes_on_smoothly_from_chunk_to_chunk(make_rig, rising_head) -> None:
    head = rising_head(speed=0.5)
    rig = make_rig(head, dry_run=False, overlap=3, execution_horizon=3).start()
    rig.enable()
    for number in range(3):
        # The robot lags: each chunk starts where the arm was, as Isaac-GR00T #272 has it.
        rig.observe(positions=(0.0, 0.0, 0.0))
        rig.trajectory.wait(number + 1)
        time.sleep(0.32)
    knots = [(times(message), positions(message)[:, 0]) for message in rig.trajectory.messages]
    for (before, old), (after, new) in itertools.pairwise(knots):
        told = np.interp(after[0], before, old)
        # From what it was told for that time on, not from where the chunk begins.
        assert abs(new[0] - told) <= 0.05 * 3
        assert new[0] >= np.interp(after[0] - DT * NS, before, old) - 1e-6
        assert (np.diff(new) >= -1e-6).all()


def test_tokens_that_stop_end_the_motion(make_rig, rising_head) -> None:
    rig = make_rig(rising_head(), dry_run=False, max_observation_age=0.9).start()
    rig.enable()
    stamp = rig.observe()
    message = rig.trajectory.wait()[0]
    assert times(message)[-1] <= stamp + 0.9 * NS
    assert len(message.points) >= 3
    told = rig.told("no motion: no tokens for")
    assert told["seconds_of_motion_left"] == "0.000"
    assert len(rig.trajectory.messages) == 1


@pytest.mark.parametrize("age", [0.8, 3.0])
def test_stale_tokens_are_refused(age: float, make_rig, rising_head) -> None:
    rig = make_rig(rising_head(), dry_run=False, max_observation_age=0.5).start()
    rig.enable()
    rig.observe(age=age)
    assert "allowed is max_observation_age = 0.5 s" in rig.refusal()
    rig.told("no motion: tokens:")
    assert not rig.preview.messages and not rig.trajectory.messages


def test_tokens_of_another_clock_are_refused(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    rig.send_joints()
    rig.send_tokens(rig.now() + 5 * NS)
    assert "in the future: is use_sim_time what it should be?" in rig.refusal(1)
    rig.send_tokens(0)
    assert "the header has no stamp" in rig.refusal(2)
    assert not rig.preview.messages


def test_chunk_that_comes_too_late_is_not_sent(make_rig, rising_head) -> None:
    head = rising_head()
    rig = make_rig(head, max_observation_age=0.6).start()
    head.gate.clear()
    rig.observe()
    time.sleep(0.8)
    head.gate.set()
    assert "none of its 16 rows of 0.1 s within max_observation_age (0.6 s) was left" in rig.refusal()
    assert not rig.preview.messages


def test_incomplete_and_old_joint_states(make_rig, rising_head) -> None:
    rig = make_rig(rising_head(), max_state_skew=0.3).start()
    rig.send_tokens()
    assert rig.refusal(1) == "joint_states: no position of shoulder, elbow, wrist has come"
    rig.send_joints(("elbow", "wrist"), (0.0, 0.0))
    time.sleep(0.1)
    rig.send_tokens()
    assert rig.refusal(2) == "joint_states: no position of shoulder has come"
    rig.send_joints(("shoulder",), (0.0,), rig.now() - NS)
    time.sleep(0.1)
    rig.send_tokens()
    assert "no position within 0.3 s of the tokens' stamp: shoulder" in rig.refusal(3)
    rig.told("no motion: joint_states: no position")
    assert not rig.preview.messages


def test_broken_joint_states_are_not_used(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    rig.send_joints(JOINTS, (0.0, float("nan"), 0.0))
    rig.send_joints(JOINTS, (0.0, 0.0))
    time.sleep(0.1)
    rig.send_tokens()
    assert "no position of shoulder, elbow, wrist has come" in rig.refusal()


def test_wrong_token_tables_are_refused(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    rig.send_joints()
    rig.send_tokens(width=31)
    assert "field 'feature': got datatype 7 x 31, expected FLOAT32 (7) x 32" in rig.refusal(1)
    rig.send_tokens(count=0)
    assert "the message is empty" in rig.refusal(2)
    assert not rig.preview.messages
    rig.observe()
    rig.preview.wait(1)


def test_dropped_and_doubled_messages(make_rig, rising_head) -> None:
    """Tokens between two chunks are not predicted from; a chunk follows once enough rows are executed."""
    rig = make_rig(rising_head(), execution_horizon=4).start()
    stamp = rig.observe()
    rig.preview.wait(1)
    for offset in (0.0, 0.1, 0.2):
        rig.send_tokens(stamp + round(offset * NS))
        time.sleep(0.1)
    assert len(rig.preview.messages) == 1
    time.sleep(0.1)
    rig.send_joints()
    rig.send_tokens(stamp + round(0.4 * NS))
    rig.preview.wait(2)
    counts = rig.counts()
    assert (counts.received, counts.processed, counts.dropped, counts.refused) == (5, 2, 3, 0)


def test_newest_tokens_win_while_the_head_is_busy(make_rig, rising_head) -> None:
    head = rising_head()
    rig = make_rig(head, execution_horizon=1).start()
    head.gate.clear()
    rig.observe(age=0.6)
    deadline = time.monotonic() + 10
    while not head.states:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for age in (0.4, 0.2, 0.0):
        last = rig.send_tokens(rig.now() - round(age * NS))
        time.sleep(0.05)
    head.gate.set()
    second = rig.preview.wait(2)[1]
    assert second.header.stamp.sec * NS + second.header.stamp.nanosec == last
    assert rig.counts().dropped == 2


def test_time_that_jumps_back_starts_anew(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    now = rig.now()
    rig.send_joints(stamp=now - 4 * NS)
    rig.send_joints(stamp=now)
    time.sleep(0.1)
    rig.send_tokens(now)
    rig.preview.wait(1)
    rig.send_tokens(now - round(0.3 * NS))
    rig.preview.wait(2)


@pytest.mark.parametrize(
    ("chunking", "config", "expected"), [("auto", N17, True), ("auto", N15, False), ("rtc", N15, True)]
)
def test_real_time_chunking_continues_the_running_plan(chunking, config, expected, make_rig, rising_head) -> None:
    head = rising_head(config=config.tiny())
    rig = make_rig(head, dry_run=False, chunking=chunking, overlap=4, execution_horizon=2).start()
    rig.enable()
    first = rig.observe()
    rig.trajectory.wait(1)
    time.sleep(0.25)
    second = rig.observe()
    rig.trajectory.wait(2)
    assert head.inpaintings[0] is None
    inpainting = head.inpaintings[-1]
    assert (inpainting is not None) is expected
    if inpainting is not None:
        sent = rig.trajectory.messages[0]
        start = np.concatenate([[first], times(sent)]), np.concatenate([[0.0], positions(sent)[:, 0]])
        expected_rows = np.interp(second + np.arange(len(inpainting.actions)) * DT * NS, *start)
        np.testing.assert_allclose(inpainting.actions[:, 0], expected_rows, atol=0.02)
        assert 0 < inpainting.frozen < len(inpainting.actions)


def test_arm_that_is_not_where_it_was_told_to_be(make_rig, rising_head) -> None:
    rig = make_rig(rising_head(), dry_run=False, overlap=3, execution_horizon=1, max_tracking_error=0.3).start()
    rig.enable()
    rig.observe()
    rig.trajectory.wait(1)
    time.sleep(0.2)
    rig.observe(positions=(-1.0, -1.0, -1.0))
    first = positions(rig.trajectory.wait(2)[1])[0, 0]
    assert first < -0.5, "it goes on from the plan, not from where the arm is"


def test_defects_of_the_head_are_errors_and_the_node_lives_on(make_rig, rising_head) -> None:
    head = rising_head()
    rig = make_rig(head, execution_horizon=1).start()
    head.error = RuntimeError("the card is gone")
    rig.observe()
    rig.told("failed: RuntimeError: the card is gone")
    assert not rig.preview.messages
    head.error = None
    time.sleep(0.15)
    rig.observe()
    rig.preview.wait(1)


def test_actions_that_are_not_finite_are_not_sent(make_rig, rising_head) -> None:
    head = rising_head()
    head.rows[5, 1] = np.nan
    rig = make_rig(head).start()
    rig.observe()
    assert "action.arm: the head gave a value that is not finite" in rig.refusal()
    assert not rig.preview.messages


def test_predict_says_why_not(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    assert rig.predict().message == "no tokens have come"
    rig.send_tokens()
    rig.refusal(1)
    answer = rig.predict()
    assert not answer.success and "no position of shoulder" in answer.message


def test_diagnostics_tell_latency_without_warm_up(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    rig.observe()
    rig.preview.wait(1)
    values = rig.told("preview only")
    deadline = time.monotonic() + 10
    while "inference_ms" not in values:
        assert time.monotonic() < deadline
        values = rig.told("preview only")
    assert 0 < float(values["inference_ms"]) < 1000
    assert (values["processed"], values["dry_run"], values["enabled"], values["motion"]) == (
        "1",
        "True",
        "False",
        "False",
    )


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "config: none is given"),
        ({"config": "nowhere.yaml"}, "nowhere.yaml is no file"),
        ({"version": "auto"}, "checkpoint: none is given"),
        ({"weights": "random_tiny", "embodiment": "octopus"}, None),
    ],
)
def test_what_is_missing_is_said_at_configure(parameters, message, make_rig, robot_file, capfd) -> None:
    config = {} if (message and "config" in message) or "config" in parameters else {"config": robot_file}
    rig = make_rig(**{"version": "n1.5", **config, **parameters})
    started = rig.on_node(rig.node.autostart)
    if message is None:
        # The index in the robot file is enough.
        assert started
        return
    assert not started
    assert rig.node.state_label == "unconfigured"
    assert message in capfd.readouterr().err


def test_parameters_that_need_a_new_policy_are_refused_while_it_runs(make_rig, rising_head) -> None:
    rig = make_rig(rising_head()).start()
    result = rig.set(action_dt=0.2)
    assert not result.successful and "can be changed while the node is unconfigured" in result.reason
    assert rig.set(overlap=6, seed=3).successful


def test_ctrl_c_stops_the_arm_and_ends_at_once(robot_file: str, make_rig, rising_head) -> None:
    """A process of its own in motion; the rig's second node plays the robot."""
    rig = make_rig(rising_head())
    values = {
        "config": robot_file,
        "version": "n1.5",
        "weights": "random_tiny",
        "dry_run": "false",
        "action_dt": "0.5",
        "max_observation_age": "8.0",
        "max_state_skew": "5.0",
    }
    arguments = [argument for name, value in values.items() for argument in ("-p", f"{name}:={value}")]
    remaps = ["-r", f"__ns:={rig.namespace}", "-r", "__node:=process"]
    environment = {
        **os.environ,
        "ROS_DOMAIN_ID": str(rig.peer.context.get_domain_id()),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]),
    }
    command = [
        sys.executable,
        "-c",
        "from ttsp_ros.ros.main import dit_node; dit_node()",
        "--ros-args",
        *arguments,
        *remaps,
    ]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        from std_srvs.srv import SetBool

        client = rig.peer.create_client(SetBool, "process/enable")
        assert client.wait_for_service(timeout_sec=60.0)
        deadline = time.monotonic() + 30.0
        while not rig.trajectory.messages:
            assert time.monotonic() < deadline and process.poll() is None
            client.call_async(SetBool.Request(data=True))
            rig.send_joints()
            rig.send_tokens()
            time.sleep(0.1)
        number = len(rig.trajectory.messages)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=20.0)
        assert time.monotonic() - begin < 10.0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    assert process.returncode == 0, output
    assert "Traceback" not in output
    assert len(rig.trajectory.wait(number + 1)[-1].points) == 1, "the arm was not told to stop"
