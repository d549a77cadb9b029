"""What tests of nodes over real rclpy share: a domain of their own, waiting, and executors that threads spin."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import rclpy
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.parameter import Parameter

# Of this test process alone; above 101 the ports of Linux run out.
DOMAIN = 1 + os.getpid() % 100
WAIT_SECONDS = 20.0


def wait_until(condition: Callable[[], Any], seconds: float = WAIT_SECONDS, what: Any = "") -> None:
    """Poll until `condition` holds; fail the test, saying `what` (a text, or what makes it), when it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            missing = what() if callable(what) else what
            raise AssertionError(f"not within {seconds} s: {missing or condition}")
        time.sleep(0.005)


class Inbox:
    """Messages of one topic, in the order in which they came."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def __len__(self) -> int:
        return len(self.messages)

    def wait(self, count: int = 1, seconds: float = WAIT_SECONDS) -> list[Any]:
        """All messages, once there are at least `count`."""
        wait_until(lambda: len(self.messages) >= count, seconds, lambda: f"{count} messages, got {len(self.messages)}")
        return self.messages


class NodeRig:
    """A node under test and its peer, each spun by a thread of its own."""

    def __init__(self, node: Any, peer: Any) -> None:
        self.node = node
        self.peer = peer
        self._executors = [SingleThreadedExecutor(context=node.context) for _ in range(2)]
        for executor, spun in zip(self._executors, (node, peer), strict=True):
            executor.add_node(spun)
        self._stop = rclpy.task.Future()
        self._threads = [threading.Thread(target=self._spin, args=(executor,)) for executor in self._executors]

    def begin(self) -> None:
        """Start to spin, once everything that the peer has is made."""
        for thread in self._threads:
            thread.start()

    def _spin(self, executor: SingleThreadedExecutor) -> None:
        with contextlib.suppress(ExternalShutdownException):
            executor.spin_until_future_complete(self._stop)

    def on_node(self, function: Callable[[], Any]) -> Any:
        """Run on the node's executor, as a service call would."""
        task = self._executors[0].create_task(function)
        wait_until(task.done, what="a task of the node's executor")
        return task.result()

    def set(self, **values: Any) -> Any:
        """Set parameters at once, as the parameter service does; the result has `successful` and `reason`."""
        parameters = [Parameter(name, value=value) for name, value in values.items()]
        return self.on_node(lambda: self.node.set_parameters_atomically(parameters))

    def close(self) -> None:
        self.on_node(self.node.trigger_shutdown)
        self._stop.set_result(None)
        for thread in self._threads:
            thread.join()
        for executor in self._executors:
            executor.shutdown()
        self.node.destroy_node()
        self.peer.destroy_node()
