"""A node in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from .conftest import DOMAIN, WAIT_SECONDS, wait_until

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

    def wait_for(self, text: str, seconds: float = 4 * WAIT_SECONDS) -> None:
        wait_until(lambda: text in self.output or self.process.poll() is not None, seconds, text)
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
