"""Ctrl-C and SIGTERM at any moment: exit status 0, no traceback, soon. And what ends the process by itself."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import rclpy
from sensor_msgs.msg import PointCloud2

from .conftest import DOMAIN, WAIT_SECONDS, image_message, wait_until

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SLOW_NODE = Path(__file__).with_name("slow_node.py")
ENTRY = "from ttsp_ros.ros.main import superpoint_node; superpoint_node()"
# Well above the 2 seconds that users get, on machines that run other things too.
STOP_SECONDS = 10


class Process:
    """A node as a process, and what it prints."""

    def __init__(self, *arguments: str, parameters: dict[str, str] | None = None) -> None:
        self.namespace = f"/process_{os.getpid()}_{time.monotonic_ns()}"
        words = [word for name, value in (parameters or {}).items() for word in ("-p", f"{name}:={value}")]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        self.process = subprocess.Popen(
            [sys.executable, *arguments, "--ros-args", "-r", f"__ns:={self.namespace}", *words],
            env={**os.environ, "ROS_DOMAIN_ID": str(DOMAIN), "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.output = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.output or self.process.poll() is not None, 4 * WAIT_SECONDS, text)
        assert text in self.output, self.output

    def end(self) -> int:
        """Wait for the end; the exit status."""
        status = self.process.wait(STOP_SECONDS)
        self._reader.join(STOP_SECONDS)
        return status

    def stop(self, number: int) -> None:
        """A signal, and the clean end that has to follow."""
        self.process.send_signal(number)
        status = self.end()
        assert status == 0, self.output
        assert "Traceback" not in self.output and "terminate" not in self.output, self.output


@pytest.fixture
def start():
    processes = []

    def make(*arguments, **parameters):
        processes.append(Process(*arguments, **parameters))
        return processes[-1]

    yield make
    for process in processes:
        process.process.kill()
        process.process.wait()


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
