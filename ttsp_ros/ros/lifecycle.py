"""What every node of this package has in common: a lifecycle that reports its errors, and a main that ends cleanly.

A node derives from `ManagedNode` and fills in `set_up`, `start`, `halt` and `tear_down`; `spin` runs it as a process.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import rclpy
from rclpy.exceptions import NameValidationException, ParameterException
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.logging import get_logger
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future

from ttsp_ros.ros.parameters import AUTOSTART
from ttsp_ros.ros.stop_signal import StopSignal, leave
from ttsp_ros.ros.worker import WorkerStoppedError

# A process that was asked to stop ends after this long whatever its threads do; users begin to doubt after 2 seconds.
GRACE_SECONDS = 1.5


class ManagedNode(LifecycleNode):
    """A lifecycle node whose transitions log what went wrong, in a line for a user's mistake and in full otherwise.

    States and hooks: configure -> `set_up`, activate -> `start`, deactivate -> `halt`, cleanup, shutdown and any error
    -> `tear_down`, which must cope with a node that is only half set up.

    Attributes:
        USER_ERRORS: what a hook raises for something a user can put right: a wrong file, value or device.
    """

    USER_ERRORS: tuple[type[Exception], ...] = (ValueError, OSError, ImportError)

    def __init__(self, name: str, **kwargs: Any) -> None:
        super().__init__(name, **kwargs)
        self._label = "unconfigured"
        self._interrupted = False

    @property
    def state_label(self) -> str:
        """unconfigured, inactive, active or finalized."""
        return self._label

    @property
    def configured(self) -> bool:
        """Whether the node is inactive or active, or on its way there."""
        return self._label not in ("unconfigured", "finalized")

    def set_up(self) -> None:
        """Open what is expensive. What it raises leaves the node unconfigured, after `tear_down`."""

    def start(self) -> None:
        """Begin to take messages."""

    def halt(self) -> None:
        """Take no more messages, and wait for the one in work."""

    def tear_down(self) -> None:
        """Close everything that `set_up` opened, or got to."""

    def interrupt(self) -> None:
        """Make every wait of this node's callbacks end soon: the process was asked to stop. Called from any thread."""
        self._interrupted = True

    def autostart(self) -> bool:
        """Configure and activate; False when that failed (the reason was logged)."""
        return (
            self.trigger_configure() == TransitionCallbackReturn.SUCCESS
            and self.trigger_activate() == TransitionCallbackReturn.SUCCESS
        )

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._label = "configuring"
        if self._attempt("configure", self.set_up):
            return self._reached(super().on_configure(state), "inactive")
        self._attempt("clean up after a failed configure", self.tear_down)
        self._label = "unconfigured"
        return TransitionCallbackReturn.FAILURE

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        # Publishers first: the first message may arrive while `start` still subscribes.
        enabled = super().on_activate(state)
        if enabled == TransitionCallbackReturn.SUCCESS and self._attempt("activate", self.start):
            return self._reached(enabled, "active")
        self._attempt("halt after a failed activate", self.halt)
        super().on_deactivate(state)
        return TransitionCallbackReturn.FAILURE

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        if not self._attempt("deactivate", self.halt):
            return TransitionCallbackReturn.ERROR
        return self._reached(super().on_deactivate(state), "inactive")

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        if not self._attempt("clean up", self.tear_down):
            return TransitionCallbackReturn.ERROR
        return self._reached(super().on_cleanup(state), "unconfigured")

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        if state.label == "active":
            self._attempt("halt", self.halt)
        self._attempt("shut down", self.tear_down)
        return self._reached(super().on_shutdown(state), "finalized")

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        self._attempt("clean up after an error", self.tear_down)
        return self._reached(TransitionCallbackReturn.SUCCESS, "unconfigured")

    def _reached(self, result: TransitionCallbackReturn, label: str) -> TransitionCallbackReturn:
        if result == TransitionCallbackReturn.SUCCESS:
            self._label = label
        return result

    def _attempt(self, what: str, hook: Callable[[], None]) -> bool:
        """Run a hook; rclpy would swallow what it raises."""
        try:
            hook()
        except WorkerStoppedError:
            if not self._interrupted:
                self.get_logger().error(f"could not {what}: the worker was stopped meanwhile")
            return False
        except self.USER_ERRORS as error:
            self.get_logger().error(f"could not {what}: {error}")
            return False
        except Exception:
            self.get_logger().error(f"could not {what}, and this is a defect:\n{traceback.format_exc()}")
            return False
        return True


def spin(
    make_node: Callable[[], ManagedNode], args: Sequence[str] | None = None, stop: StopSignal | None = None
) -> int:
    """Run one node as this process until SIGINT, SIGTERM or the end of ROS; returns the exit status.

    0 after a requested stop, in whatever state, within GRACE_SECONDS; 1 when the node can't be made, can't be
    configured at start, or a callback raised.

    Args:
        make_node: makes the node; its autostart parameter is obeyed.
        args: command line; None: that of the process.
        stop: handlers that are in force already; None: installed here.
    """
    stop = stop or StopSignal().install()
    stop.hold()
    rclpy.init(args=list(args) if args is not None else None, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make_node()
    except (ParameterException, NameValidationException, ValueError) as error:
        get_logger("ttsp_ros").fatal(f"could not start: {error}")
        rclpy.try_shutdown()
        return 1
    return _Process(node, stop).run()


class _Process:
    """One node, spun on a thread of its own while the main thread waits for the request to stop."""

    def __init__(self, node: ManagedNode, stop: StopSignal) -> None:
        self._node = node
        self._stop = stop
        self._status = 0
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(node)
        self._end: Future = Future()
        self._thread = threading.Thread(target=self._spin, name="executor", daemon=True)

    def run(self) -> int:
        self._thread.start()
        self._stop.wait()
        self._node.interrupt()
        self._end.set_result(None)
        self._thread.join(self._stop.seconds_left(GRACE_SECONDS))
        if self._thread.is_alive() or not self._close():
            self._abandon()
        return self._status

    def _spin(self) -> None:
        try:
            if self._node.get_parameter(AUTOSTART.name).value and not self._node.autostart():
                self._status = 0 if self._stop.is_set() else 1
                return
            self._executor.spin_until_future_complete(self._end)
        except ExternalShutdownException:
            pass
        except Exception:
            self._node.get_logger().fatal(f"a callback raised, and this is a defect:\n{traceback.format_exc()}")
            self._status = 1
        finally:
            self._stop.set()

    def _close(self) -> bool:
        """Shut the node down; False when something of it is still busy at the end of the grace."""
        closer = threading.Thread(target=self._shut_down, name="shutdown", daemon=True)
        closer.start()
        closer.join(self._stop.seconds_left(GRACE_SECONDS))
        return not closer.is_alive()

    def _shut_down(self) -> None:
        try:
            if self._node.state_label != "finalized":
                self._node.trigger_shutdown()
        except Exception:
            # ROS was shut down by somebody else, so that the transition can't be told any more; close all the same.
            self._node.tear_down()
        self._executor.shutdown()
        self._node.destroy_node()
        rclpy.try_shutdown()

    def _abandon(self) -> None:
        """End now: a thread that doesn't return (import, kernel build, device) would keep us, or crash us at exit."""
        self._node.get_logger().info("still busy; ending without waiting for it")
        leave(self._status)
