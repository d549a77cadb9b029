"""One camera of superpoint_node: its topics, its newest calibration and mask, and what happened to its images."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks, UnsupportedEventTypeError
from rclpy.lifecycle import LifecyclePublisher
from rclpy.qos import QoSDurabilityPolicy, QoSHistoryPolicy, QoSProfile, QoSReliabilityPolicy
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.subscription import Subscription
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2

from ttsp_ros.ros.conversions import (
    bearing_cloud,
    descriptor_cloud,
    gray_image,
    keypoint_cloud,
    rclpy_types,
)
from ttsp_ros.ros.diagnostics import Counter, Counts, Health, judge, status
from ttsp_ros.ros.lens import Lens, LensError
from ttsp_ros.ros.overlay import OverlaySettings, draw
from ttsp_ros.superpoint.features import Features
from ttsp_ros.superpoint.image import ImageError

if TYPE_CHECKING:
    from rclpy.lifecycle import LifecycleNode

# Topics that are worth computing features for, and their types.
OUTPUTS = {"keypoints": PointCloud2, "descriptors": PointCloud2, "bearings": PointCloud2, "debug_image": Image}

# The newest image is the only one of interest, and a lost one isn't worth waiting for.
NEWEST = QoSProfile(depth=1, history=QoSHistoryPolicy.KEEP_LAST, reliability=QoSReliabilityPolicy.BEST_EFFORT)
OUTPUT_DEPTH = 10

WARN_EVERY_SECONDS = 5.0


@dataclass(frozen=True)
class ViewSettings:
    """What the node's parameters say about a camera's outputs; may change from frame to frame."""

    overlay: OverlaySettings
    rectified: bool
    input_timeout: float


class Camera:
    """Publishers while the node is configured, subscriptions while it is active and somebody listens.

    Images, calibration and mask arrive on the executor's thread; `decode` and `publish` run on the worker's.

    Args:
        node: owner of the topics.
        name: prefix of the topics; empty for none.
        transport: "raw" or "compressed".
        on_image: called on the executor's thread with each image message.
    """

    def __init__(self, node: LifecycleNode, name: str, transport: str, on_image: Callable[[Any], None]) -> None:
        self.name = name
        self.counter = Counter()
        self._node = node
        self._prefix = f"{name}/" if name else ""
        self._logger = node.get_logger().get_child(name.replace("/", ".")) if name else node.get_logger()
        self._messages = rclpy_types()
        self._compressed = transport == "compressed"
        self.image_topic = self._find_image_topic()
        self._on_image = on_image
        self._active = False
        self._image_subscription: Subscription | None = None
        self._info_subscription: Subscription | None = None
        self._mask_subscriptions: list[Subscription] = []
        self._info: CameraInfo | None = None
        self._mask: np.ndarray | None = None
        self._judged = Counts()
        self._outputs = {topic: self._create_output(kind, topic) for topic, kind in OUTPUTS.items()}
        self._latency = self._create_publisher(DiagnosticArray, "latency")

    def activate(self) -> None:
        """Begin to take images, as soon as somebody listens."""
        self.counter.reset()
        self._judged = Counts()
        self._active = True
        self._subscribe_mask()
        self.update_subscriptions()

    def deactivate(self) -> None:
        """Take no more images."""
        self._active = False
        self.update_subscriptions()
        for subscription in self._mask_subscriptions:
            self._node.destroy_subscription(subscription)
        self._mask_subscriptions = []
        self._mask = self._info = None

    def close(self) -> None:
        """Give up all topics."""
        self.deactivate()
        for publisher in (*self._outputs.values(), self._latency):
            self._node.destroy_lifecycle_publisher(publisher)

    def wanted(self, topic: str | None = None) -> bool:
        """Whether somebody subscribes `topic`; without one, any topic that needs features."""
        topics = OUTPUTS if topic is None else (topic,)
        return any(self._outputs[name].get_subscription_count() > 0 for name in topics)

    def update_subscriptions(self) -> None:
        """Subscribe what the listeners of now need, and nothing else."""
        listening = self._active and self.wanted()
        if listening and self._image_subscription is None:
            self.counter.expect()
            kind = CompressedImage if self._compressed else Image
            self._image_subscription = self._subscribe(kind, self.image_topic, self._on_image)
        elif not listening and self._image_subscription is not None:
            self._node.destroy_subscription(self._image_subscription)
            self._image_subscription = None
        calibrating = self._active and self.wanted("bearings")
        if calibrating and self._info_subscription is None:
            self._info_subscription = self._subscribe(CameraInfo, f"{self._prefix}camera_info", self._on_info)
        elif not calibrating and self._info_subscription is not None:
            self._node.destroy_subscription(self._info_subscription)
            self._info_subscription = None

    def decode(self, message: Image | CompressedImage) -> tuple[np.ndarray, np.ndarray | None]:
        """uint8 [H, W] of an image message, and the mask for it.

        Raises:
            ImageError: see `gray_image`.
        """
        return gray_image(message), self._mask

    def refuse(self, error: ImageError) -> None:
        """Count and tell an image that can't be used."""
        self.counter.refuse(str(error))
        self._logger.warning(f"image refused: {error}", throttle_duration_sec=WARN_EVERY_SECONDS)

    def fail(self, error: Exception, text: str) -> None:
        """Count and tell an error that isn't the image's fault; `text` is the traceback."""
        self.counter.fail(f"{type(error).__name__}: {error}")
        self._logger.error(f"features could not be computed:\n{text}", throttle_duration_sec=WARN_EVERY_SECONDS)

    def publish(
        self, message: Image | CompressedImage, image: np.ndarray, features: Features, view: ViewSettings, begin: float
    ) -> None:
        """Publish what somebody listens to, and the times of this frame, which `begin` (time.perf_counter) opened."""
        header = message.header
        if self.wanted("keypoints"):
            self._outputs["keypoints"].publish(self._messages.cloud(header, keypoint_cloud(features)))
        if self.wanted("descriptors"):
            self._outputs["descriptors"].publish(self._messages.cloud(header, descriptor_cloud(features)))
        if self.wanted("bearings") and (lens := self._lens(image, view.rectified)) is not None:
            cloud = bearing_cloud(lens.rays(features.keypoints), features.scores)
            self._outputs["bearings"].publish(self._messages.cloud(header, cloud))
        if self.wanted("debug_image"):
            picture = draw(image, features, view.overlay)
            self._outputs["debug_image"].publish(self._messages.picture(header, picture))
        self._publish_latency(header, (time.perf_counter() - begin) * 1e3)

    def health(self, input_timeout: float) -> tuple[Health, Counts]:
        """How this camera is doing since the last call, and its counts."""
        counts, before = self.counter.counts(), self._judged
        self._judged = counts
        if not self._active:
            return Health(Health.OK, "inactive"), counts
        if self._image_subscription is None:
            return Health(Health.OK, "nobody subscribes the features"), counts
        health = judge(counts, before, input_timeout)
        if 0 < input_timeout < counts.waited:
            health = Health(Health.WARN, f"no image for {counts.waited:.0f} s: {self._why_no_image()}")
            self._logger.warning(health.message, throttle_duration_sec=10 * WARN_EVERY_SECONDS)
        return health, counts

    def _find_image_topic(self) -> str:
        # A remapping names the raw topic, and its compressed twin is below it, as with image_transport.
        topic = self._node.resolve_topic_name(f"{self._prefix}image")
        return f"{topic}/compressed" if self._compressed and not topic.endswith("/compressed") else topic

    def _why_no_image(self) -> str:
        publishers = self._node.get_publishers_info_by_topic(self.image_topic)
        if not publishers:
            return f"nobody publishes {self.image_topic}; remap 'image' to the camera's topic"
        mine = "sensor_msgs/msg/CompressedImage" if self._compressed else "sensor_msgs/msg/Image"
        others = sorted({publisher.topic_type for publisher in publishers} - {mine})
        if len(others) and all(publisher.topic_type != mine for publisher in publishers):
            return f"{self.image_topic} carries {', '.join(others)}, not {mine}; see the parameter 'transport'"
        return f"{self.image_topic} is published but nothing comes; see 'ros2 topic info -v {self.image_topic}'"

    def _create_output(self, kind: type, topic: str) -> LifecyclePublisher:
        try:
            return self._create_publisher(kind, topic, PublisherEventCallbacks(matched=self._on_matched))
        except UnsupportedEventTypeError:
            # The middleware doesn't tell when a subscriber comes; the timer of the diagnostics looks for them.
            return self._create_publisher(kind, topic)

    def _create_publisher(
        self, kind: type, topic: str, events: PublisherEventCallbacks | None = None
    ) -> LifecyclePublisher:
        return self._node.create_lifecycle_publisher(
            kind,
            f"~/{self._prefix}{topic}",
            QoSProfile(depth=OUTPUT_DEPTH),
            event_callbacks=events,
            qos_overriding_options=QoSOverridingOptions.with_default_policies(),
        )

    def _subscribe(self, kind: type, topic: str, callback: Callable[[Any], None]) -> Subscription:
        qos = QoSProfile(depth=NEWEST.depth, history=NEWEST.history, reliability=NEWEST.reliability)
        return self._node.create_subscription(
            kind, topic, callback, qos, qos_overriding_options=QoSOverridingOptions.with_default_policies()
        )

    def _subscribe_mask(self) -> None:
        # A fixed mask is published once and kept for late comers (transient local), one that moves with the image
        # isn't; each needs a subscription of its own, and the first kind never matches the second kind's publisher.
        for durability in (QoSDurabilityPolicy.VOLATILE, QoSDurabilityPolicy.TRANSIENT_LOCAL):
            qos = QoSProfile(depth=1, durability=durability, reliability=NEWEST.reliability)
            if durability == QoSDurabilityPolicy.TRANSIENT_LOCAL:
                qos.reliability = QoSReliabilityPolicy.RELIABLE
            self._mask_subscriptions.append(
                self._node.create_subscription(
                    Image,
                    f"{self._prefix}mask",
                    self._on_mask,
                    qos,
                    event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False),
                )
            )

    def _on_matched(self, _: Any) -> None:
        self.update_subscriptions()

    def _on_info(self, message: CameraInfo) -> None:
        self._info = message

    def _on_mask(self, message: Image) -> None:
        try:
            self._mask = gray_image(message)
        except ImageError as error:
            self._logger.warning(
                f"mask refused, the one before it stays: {error}", throttle_duration_sec=WARN_EVERY_SECONDS
            )

    def _lens(self, image: np.ndarray, rectified: bool) -> Lens | None:
        info = self._info
        if info is None:
            topic = self._node.resolve_topic_name(f"{self._prefix}camera_info")
            self._logger.warning(
                f"no bearings: no camera_info on {topic} yet", throttle_duration_sec=WARN_EVERY_SECONDS
            )
            return None
        try:
            height, width = image.shape
            return Lens.of(info, height, width, rectified)
        except LensError as error:
            self._logger.warning(f"no bearings: {error}", throttle_duration_sec=WARN_EVERY_SECONDS)
            return None

    def _publish_latency(self, header: Any, processing_ms: float) -> None:
        age_ms = math.nan
        if header.stamp.sec or header.stamp.nanosec:
            stamp = header.stamp.sec * 1_000_000_000 + header.stamp.nanosec
            age_ms = (self._node.get_clock().now().nanoseconds - stamp) / 1e6
        self.counter.process(processing_ms, age_ms)
        if self._latency.get_subscription_count():
            counts = self.counter.counts()
            values = {
                "processing_ms": f"{processing_ms:.3f}",
                "stamp_to_publish_ms": f"{age_ms:.3f}",
                "fps": f"{counts.fps:.2f}",
                "dropped": str(counts.dropped),
                "refused": str(counts.refused),
            }
            health = Health(Health.OK, f"{processing_ms:.1f} ms")
            self._latency.publish(DiagnosticArray(header=header, status=[status(self.full_name, health, "", values)]))

    @property
    def full_name(self) -> str:
        """Of the node and the camera, as diagnostics show it."""
        node = self._node.get_fully_qualified_name().lstrip("/")
        return f"{node}: {self.name}" if self.name else node
