"""superpoint_node: images in, SuperPoint keypoints and descriptors out. Topics and parameters are in the README."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.clock import Clock
from rclpy.clock_type import ClockType

from ttsp_ros.backends import ExtractorOptions, create_extractor
from ttsp_ros.ros.camera import Camera, ViewSettings
from ttsp_ros.ros.diagnostics import Health, status
from ttsp_ros.ros.lifecycle import ManagedNode, spin
from ttsp_ros.ros.parameters import ParameterSet, Values
from ttsp_ros.ros.stop_signal import StopSignal, leave
from ttsp_ros.ros.superpoint_parameters import (
    SUPERPOINT_PARAMETERS,
    camera_names,
    check_values,
    detection_settings,
    extractor_options,
    overlay_settings,
)
from ttsp_ros.ros.worker import Worker
from ttsp_ros.superpoint.features import DetectionSettings
from ttsp_ros.superpoint.image import ImageError

# Without `resize` the sizes of the images aren't known when the network is warmed up; this is a camera's usual one.
WARM_UP_SIZE = (480, 640)

MakeExtractor = Callable[[ExtractorOptions, Callable[[str], None]], Any]


class SuperPointNode(ManagedNode):
    """The lifecycle node. The extractor is made, used and closed on one thread, the worker's.

    Args:
        make_extractor: makes what computes the features; the arguments are those of `create_extractor`.
        kwargs: of rclpy's LifecycleNode.
    """

    def __init__(self, *, make_extractor: MakeExtractor = create_extractor, **kwargs: Any) -> None:
        super().__init__("superpoint", **kwargs)
        self._make_extractor = make_extractor
        self._worker: Worker[Any] | None = None
        self._extractor: Any = None
        self._cameras: dict[str, Camera] = {}
        self._parameter_set = ParameterSet(
            self, SUPERPOINT_PARAMETERS, validate=self._check, apply=self._apply, configured=lambda: self.configured
        )
        values = self._parameter_set.values()
        self._apply(values)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        # By a clock that runs also while simulated time stands still.
        self.create_timer(values["diagnostics_period"], self._tell, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def set_up(self) -> None:
        """Make and warm up the extractor, and offer the topics."""
        values = self._parameter_set.values()
        self._worker = Worker("superpoint", self._process, self._fail, self._close_extractor)
        if self._interrupted:
            self._worker.stop()
        self._worker.call(lambda: self._open_extractor(extractor_options(values))).result()
        for name in camera_names(values):
            self._cameras[name] = Camera(self, name, values["transport"], self._taker(name))

    def start(self) -> None:
        """Begin to take images."""
        for camera in self._cameras.values():
            camera.activate()
        topics = ", ".join(camera.image_topic for camera in self._cameras.values())
        self.get_logger().info(f"active; images from {topics}, as soon as somebody subscribes features")

    def halt(self) -> None:
        """Take no more images, and wait for the one in work."""
        for camera in self._cameras.values():
            camera.deactivate()
        if self._worker is not None:
            for name in self._worker.clear():
                self._cameras[name].counter.drop()

    def tear_down(self) -> None:
        """Close the extractor, on its thread, and give up the topics."""
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.stop()
            worker.join()
        for camera in self._cameras.values():
            camera.close()
        self._cameras = {}

    def interrupt(self) -> None:
        """See ManagedNode."""
        super().interrupt()
        worker = self._worker
        if worker is not None:
            worker.stop()

    def _check(self, values: Values) -> None:
        check_values(values)
        if self._extractor is not None:
            self._extractor.check(detection_settings(values))

    def _apply(self, values: Values) -> None:
        self._detection: DetectionSettings = detection_settings(values)
        self._view = ViewSettings(overlay_settings(values), values["rectified"], values["input_timeout"])

    def _taker(self, name: str) -> Callable[[Any], None]:
        return lambda message: self._take(name, message)

    def _take(self, name: str, message: Any) -> None:
        """An image arrived: leave it in the mailbox of its camera."""
        worker, camera = self._worker, self._cameras.get(name)
        if worker is None or camera is None:
            return
        camera.counter.receive()
        if worker.put(name, message) is not None:
            camera.counter.drop()

    def _open_extractor(self, options: ExtractorOptions) -> None:
        self._extractor = self._make_extractor(options, self.get_logger().info)
        self._extractor.check(self._detection)
        self._extractor.extract(np.zeros(options.resize or WARM_UP_SIZE, np.uint8), self._detection)

    def _close_extractor(self) -> None:
        extractor, self._extractor = self._extractor, None
        if extractor is not None:
            extractor.close()

    def _process(self, name: str, message: Any) -> None:
        """One image, on the worker's thread."""
        camera = self._cameras[name]
        if not camera.wanted():
            camera.counter.drop()
            return
        begin = time.perf_counter()
        try:
            image, mask = camera.decode(message)
            features = self._extractor.extract(image, self._detection, mask)
        except ImageError as error:
            camera.refuse(error)
            return
        camera.publish(message, image, features, self._view, begin)

    def _fail(self, name: str, error: Exception) -> None:
        self._cameras[name].fail(error, "".join(traceback.format_exception(error)))

    def _tell(self) -> None:
        """Publish the diagnostics; look for listeners too, where the middleware doesn't tell of them."""
        hardware = self._extractor.description if self._extractor is not None else ""
        array = DiagnosticArray()
        array.header.stamp = self.get_clock().now().to_msg()
        for camera in self._cameras.values():
            camera.update_subscriptions()
            health, counts = camera.health(self._view.input_timeout)
            array.status.append(status(camera.full_name, health, hardware, counts.values()))
        if not self._cameras:
            name = self.get_fully_qualified_name().lstrip("/")
            array.status.append(status(name, Health(Health.OK, self.state_label), hardware, {}))
        self._diagnostics.publish(array)


def run(args: list[str] | None = None, stop: StopSignal | None = None) -> int:
    """Run the node as this process and return its exit status; the executable enters through `ttsp_ros.ros.main`."""
    return spin(SuperPointNode, args, stop)


if __name__ == "__main__":
    leave(run())
