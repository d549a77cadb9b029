"""Ctrl-C and SIGTERM at any moment: exit status 0, no traceback, soon. And what ends the process by itself."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import rclpy
from sensor_msgs.msg import PointCloud2

from .conftest import WAIT_SECONDS, image_message, wait_until
from .node_process import ENTRY, STOP_SECONDS, Process

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SLOW_NODE = Path(__file__).with_name("slow_node.py")


@pytest.mark.parametrize("number", SIGNALS)
def test_stopped_while_idle(start, number):
    process = start("-c", ENTRY, parameters={"backend": "torch", "threads": "1"})
    process.wait_for("active;")
    process.stop(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_stopped_while_unconfigured(start, number):
    process = start(str(SLOW_NODE), "idle", "0", parameters={"autostart": "false", "diagnostics_period": "0.05"})
    wait_until(lambda: process.process.poll() is not None or "rclpy" in maps(process), 4 * WAIT_SECONDS)
    time.sleep(0.5)
    process.stop(number)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("seconds", ["0.3", "60"])
def test_stopped_while_configuring(start, number, seconds):
    process = start(str(SLOW_NODE), "configuring", seconds)
    process.wait_for("configuring")
    process.stop(number)
    assert ("closed" in process.output) == (seconds == "0.3"), "what was opened in time is closed"


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("seconds", ["0.3", "60"])
def test_stopped_while_inferring(start, context, number, seconds):
    process = start(str(SLOW_NODE), "inferring", seconds)
    peer = rclpy.create_node("peer", context=context, namespace=process.namespace)
    peer.create_subscription(PointCloud2, "superpoint/keypoints", lambda message: None, 1)
    publisher = peer.create_publisher(type(image_message()), "image", 1)
    process.wait_for("active;")
    wait_until(publisher.get_subscription_count)

    def inferring() -> bool:
        # Again and again: that this end has found the other one doesn't mean that the other has found this one.
        publisher.publish(image_message())
        time.sleep(0.05)
        return "inferring" in process.output

    wait_until(inferring)
    process.stop(number)
    peer.destroy_node()
    assert ("closed" in process.output) == (seconds == "0.3")


@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.4, 0.8, 1.6])
def test_stopped_while_starting(start, delay):
    """Whatever is being imported: ROS, torch, or nothing yet."""
    process = start("-c", f"print('up', flush=True); {ENTRY.replace('; ', '; print(2, flush=True); ')}")
    process.wait_for("2")  # the handlers are the first thing that superpoint_node() sets
    time.sleep(0.05 + delay)
    process.stop(SIGNALS[int(delay * 10) % 2])


def test_a_second_ctrl_c_changes_nothing(start):
    process = start(str(SLOW_NODE), "configuring", "60")
    process.wait_for("configuring")
    process.process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.stop(signal.SIGINT)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"weights": "/no/such/file.pth"}, "could not configure: weights /no/such/file.pth: no such file"),
        ({"backend": "gpu"}, "could not start: backend: got 'gpu', allowed is one of auto, ttnn, torch"),
        ({"threshold": "2.0"}, "out of range"),
        ({"threshold": "high"}, "threshold"),
    ],
)
def test_a_wrong_parameter_ends_the_process_with_one_line_and_status_1(start, parameters, text):
    process = start("-c", ENTRY, parameters=parameters)
    status = process.process.wait(4 * WAIT_SECONDS)
    process._reader.join(STOP_SECONDS)
    assert status == 1
    assert text in process.output and "Traceback" not in process.output
    assert len(process.output.strip().splitlines()) == 1


def maps(process: Process) -> str:
    """Files that the process has mapped."""
    try:
        return Path(f"/proc/{process.process.pid}/maps").read_text()
    except OSError:
        return ""
