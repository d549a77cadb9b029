"""superpoint_node over real rclpy, with an extractor that shows what it was given."""

from __future__ import annotations

import threading
import time

import cv2
import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.context import Context
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn
from rclpy.parameter import Parameter
from rclpy.qos import QoSDurabilityPolicy, QoSProfile
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, PointCloud2

from ttsp_ros.ros.conversions import features_from_cloud
from ttsp_ros.ros.lifecycle import ManagedNode
from ttsp_ros.ros.superpoint_node import SuperPointNode

from .conftest import (
    DOMAIN,
    FakeExtractor,
    array_message,
    image_message,
    pinhole_info,
    set_header,
    stamp_of,
    wait_until,
)


def values_of(message) -> list[int]:
    """The first pixel of the image that each cloud is of."""
    return [int(features_from_cloud(cloud).keypoints[0, 0]) for cloud in message]


def settled(rig, camera: str = "") -> bool:
    counts = rig.counts(camera)
    return counts.received > 0 and counts.received == (
        counts.processed + counts.dropped + counts.refused + counts.failed
    )


def send_and_wait(rig, inbox, message) -> PointCloud2:
    """Publish one image and return what comes of it."""
    before = len(inbox)
    rig.publisher().publish(message)
    return inbox.wait(before + 1)[-1]


def test_every_image_becomes_clouds_with_its_header(make_rig):
    rig = make_rig().start()
    inboxes = [rig.listen("keypoints"), rig.listen("descriptors")]
    for number in range(1, 6):
        rig.publisher().publish(image_message(number, stamp=number * 1_000_000_007, frame=f"frame{number}"))
        for inbox in inboxes:
            cloud = inbox.wait(number)[-1]
            assert (stamp_of(cloud), cloud.header.frame_id) == (number * 1_000_000_007, f"frame{number}")
            points = np.frombuffer(cloud.data, np.float32).reshape(1, -1)
            np.testing.assert_array_equal(points[0, :4], np.array([number, 64, 0, 0.5], np.float32))
    assert values_of(inboxes[1].messages) == [1, 2, 3, 4, 5]


def test_without_listeners_nothing_is_subscribed_and_nothing_computed(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor).start()
    publisher = rig.publisher(wait=False)
    for _ in range(20):
        publisher.publish(image_message())
        time.sleep(0.01)
    assert publisher.get_subscription_count() == 0
    assert len(extractor.calls) == 1, "the warm-up alone"


def test_a_late_listener_is_served_and_its_leaving_ends_the_work(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor).start()
    inbox = rig.listen("keypoints")
    send_and_wait(rig, inbox, image_message(7))
    (subscription,) = rig.peer.subscriptions
    rig.peer.destroy_subscription(subscription)
    publisher = rig.publisher()
    wait_until(lambda: publisher.get_subscription_count() == 0, what="the node's unsubscribing")
    calls = len(extractor.calls)
    publisher.publish(image_message(8))
    time.sleep(0.2)
    assert len(extractor.calls) == calls
    inbox = rig.listen("descriptors")
    rig.publisher().publish(image_message(9))
    assert values_of(inbox.wait()) == [9]


def test_outputs_that_nobody_wants_are_not_made(make_rig, monkeypatch):
    def fail(*args):
        raise AssertionError("drawn though nobody looks")

    monkeypatch.setattr("ttsp_ros.ros.camera.draw", fail)
    monkeypatch.setattr("ttsp_ros.ros.camera.descriptor_cloud", fail)
    rig = make_rig().start()
    send_and_wait(rig, rig.listen("keypoints"), image_message())
    assert rig.counts().failed == 0


def test_under_overload_the_newest_image_is_next_and_the_dropped_are_counted(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor).start()
    inbox = rig.listen("keypoints")
    publisher = rig.publisher()
    extractor.gate.clear()
    publisher.publish(image_message(1, stamp=1))
    wait_until(lambda: len(extractor.calls) == 2)
    for number in range(2, 52):
        publisher.publish(image_message(number, stamp=number))
        wait_until(lambda number=number: rig.counts().received == number)
    extractor.gate.set()
    assert [stamp_of(cloud) for cloud in inbox.wait(2)] == [1, 51]
    wait_until(lambda: settled(rig))
    counts = rig.counts()
    assert (counts.received, counts.processed, counts.dropped) == (51, 2, 49)


def test_latency_stays_bounded_when_images_come_too_fast(make_rig):
    extractor = FakeExtractor(seconds=0.05)
    rig = make_rig(extractor).start()
    inbox = rig.listen("keypoints")
    publisher = rig.publisher()
    sent = 0
    while len(inbox) < 12:
        sent += 1
        publisher.publish(image_message(sent % 250, stamp=sent))
        time.sleep(0.005)
    stamps = [stamp_of(cloud) for cloud in inbox.messages]
    # Each was the newest when the one before it was done: a queue would fall behind by 9 in 10 frames, more and more.
    assert stamps == sorted(set(stamps))
    assert stamps[-1] > sent - 40 and rig.counts().dropped > 0


@pytest.mark.parametrize("shape", [(48, 64), (200, 320)])
def test_size_and_encoding_may_change_between_images(make_rig, shape):
    extractor = FakeExtractor()
    rig = make_rig(extractor).start()
    inbox = rig.listen("keypoints")
    send_and_wait(rig, inbox, image_message(3, shape=(40, 40)))
    colour = np.zeros((*shape, 3), np.uint8)
    colour[..., 0] = 200  # red: gray is 0.299 of it
    cloud = send_and_wait(rig, inbox, array_message(colour, encoding="rgb8"))
    assert extractor.calls[-1][0].shape == shape
    points = np.frombuffer(cloud.data, np.float32)
    assert list(points[:2]) == [60, shape[1]]


def test_parameters_change_between_two_images(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor).start()
    inbox = rig.listen("keypoints")
    send_and_wait(rig, inbox, image_message())
    assert rig.set(threshold=0.25, max_keypoints=7, border=0, nms_radius=2).successful
    send_and_wait(rig, inbox, image_message())
    settings = [call[1] for call in extractor.calls[-2:]]
    assert (settings[0].threshold, settings[0].max_keypoints, settings[0].nms_radius) == (0.005, 1024, 4)
    assert (settings[1].threshold, settings[1].max_keypoints, settings[1].border) == (0.25, 7, 0)
    result = rig.set(threshold=0.5, max_keypoints=0)
    assert not result.successful and "max_keypoints" in result.reason
    send_and_wait(rig, inbox, image_message())
    assert extractor.calls[-1][1] == settings[1], "of a refused change nothing is taken"


def test_what_the_backend_cannot_change_is_refused_in_its_words(make_rig):
    rig = make_rig(FakeExtractor(fixed_radius=4)).start()
    result = rig.set(nms_radius=3)
    assert not result.successful and "built for 4" in result.reason
    assert rig.set(threshold=0.1).successful


def test_the_extractor_lives_on_one_thread_that_is_not_the_executors(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor).start()
    send_and_wait(rig, rig.listen("keypoints"), image_message())
    executor = rig.on_node(threading.get_ident)
    assert rig.on_node(rig.node.trigger_deactivate) == TransitionCallbackReturn.SUCCESS
    assert rig.on_node(rig.node.trigger_cleanup) == TransitionCallbackReturn.SUCCESS
    assert extractor.closed == 1
    assert len(extractor.threads) == 1 and executor not in extractor.threads


def test_the_lifecycle_services_restart_the_node_with_new_options(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor)
    name = f"{rig.namespace}/superpoint"
    change = rig.peer.create_client(ChangeState, f"{name}/change_state")
    get = rig.peer.create_client(GetState, f"{name}/get_state")
    assert change.wait_for_service(10) and get.wait_for_service(10)

    def go(transition: int) -> str:
        future = change.call_async(ChangeState.Request(transition=Transition(id=transition)))
        wait_until(future.done)
        assert future.result().success
        state = get.call_async(GetState.Request())
        wait_until(state.done)
        return state.result().current_state.label

    for round_number in (1, 2):
        assert rig.set(weights=f"/weights{round_number}", precision="float32").successful
        assert go(Transition.TRANSITION_CONFIGURE) == "inactive"
        assert str(extractor.options.weights) == f"/weights{round_number}"
        result = rig.set(weights="/others")
        assert not result.successful and f"{name} cleanup" in result.reason
        extractor.calls[1:] = []
        inbox = rig.listen("keypoints")
        assert rig.publisher(wait=False).get_subscription_count() == 0, "inactive: nothing is taken"
        assert go(Transition.TRANSITION_ACTIVATE) == "active"
        rig.publisher().publish(image_message(round_number))
        inbox.wait()
        assert go(Transition.TRANSITION_DEACTIVATE) == "inactive"
        wait_until(lambda: rig.publisher(wait=False).get_subscription_count() == 0)
        assert go(Transition.TRANSITION_CLEANUP) == "unconfigured"
        assert extractor.closed == round_number
        extractor.calls.clear()


@pytest.mark.parametrize("error", [ValueError("no such weights"), RuntimeError("surprise")])
def test_a_failed_configure_leaves_a_node_that_can_be_configured(make_rig, error):
    attempts = []

    def make(options, log):
        attempts.append(options)
        if len(attempts) == 1:
            raise error
        return FakeExtractor()

    rig = make_rig(make_extractor=make)
    assert not rig.on_node(rig.node.autostart)
    assert rig.node.state_label == "unconfigured"
    assert rig.set(precision="float32").successful
    rig.start()
    assert rig.node.state_label == "active" and attempts[1].precision == "float32"


def test_an_extractor_that_raises_is_counted_and_the_next_image_works(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor, diagnostics_period=0.05).start()
    inbox = rig.listen("keypoints")
    diagnostics = rig.listen(f"{rig.namespace}/diagnostics", DiagnosticArray)
    extractor.error = RuntimeError("the device is gone")
    rig.publisher().publish(image_message())
    wait_until(lambda: rig.counts().failed == 1)
    wait_until(lambda: any(m.status[0].level == DiagnosticStatus.ERROR for m in diagnostics.messages))
    (bad,) = {m.status[0].message for m in diagnostics.messages if m.status[0].level == DiagnosticStatus.ERROR}
    assert bad == "failed: RuntimeError: the device is gone"
    extractor.error = None
    send_and_wait(rig, inbox, image_message(5))


def test_two_cameras_share_one_extractor_and_take_turns(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor, cameras=["left", "right"]).start()
    left, right = rig.listen("left/keypoints"), rig.listen("right/keypoints")
    publishers = [rig.publisher(f"{name}/image") for name in ("left", "right")]
    extractor.gate.clear()
    for publisher, value in zip(publishers, (1, 2), strict=True):
        publisher.publish(image_message(value, frame=f"frame{value}"))
    wait_until(lambda: rig.counts("left").received == rig.counts("right").received == 1)
    for number in range(3, 13):  # the left one floods
        publishers[0].publish(image_message(number, frame="frame1"))
        wait_until(lambda number=number: rig.counts("left").received == number - 1)
    extractor.gate.set()
    assert {cloud.header.frame_id for cloud in right.wait()} == {"frame2"}
    assert {cloud.header.frame_id for cloud in left.wait(1)} == {"frame1"}
    wait_until(lambda: settled(rig, "left") and settled(rig, "right"))
    assert rig.counts("right").dropped == 0
    order = [int(call[0][0, 0]) for call in extractor.calls[1:]]
    assert order.index(2) <= 1 and order[-1] == 12 and len(order) == 3


def test_two_nodes_in_two_namespaces_do_not_meet(make_rig):
    rigs = [make_rig().start(), make_rig().start()]
    inboxes = [rig.listen("descriptors") for rig in rigs]
    for value, rig in enumerate(rigs, start=1):
        rig.publisher().publish(image_message(value))
    for value, inbox in enumerate(inboxes, start=1):
        assert values_of(inbox.wait()) == [value]
    time.sleep(0.1)
    assert [len(inbox) for inbox in inboxes] == [1, 1]


def test_compressed_images_come_from_the_topic_below(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor, transport="compressed").start()
    inbox = rig.listen("keypoints")
    message = CompressedImage(format="png", data=cv2.imencode(".png", np.full((48, 64), 77, np.uint8))[1].tobytes())
    set_header(message, 5, "camera")
    rig.publisher("image/compressed", CompressedImage).publish(message)
    assert stamp_of(inbox.wait()[0]) == 5
    assert (extractor.calls[-1][0] == 77).all()


@pytest.mark.parametrize("durability", list(QoSDurabilityPolicy)[1:3])
def test_a_mask_reaches_the_extractor_whether_it_was_sent_before_or_after(make_rig, durability):
    extractor = FakeExtractor()
    rig = make_rig(extractor)
    qos = QoSProfile(depth=1, durability=durability)
    latched = durability == QoSDurabilityPolicy.TRANSIENT_LOCAL
    mask = np.zeros((48, 64), np.uint8)
    mask[:, :10] = 255
    if latched:
        rig.publisher("mask", wait=False, qos=qos).publish(array_message(mask))
    rig.start()
    if not latched:
        rig.publisher("mask", qos=qos).publish(array_message(mask))
    wait_until(lambda: rig.node._cameras[""]._mask is not None)
    send_and_wait(rig, rig.listen("keypoints"), image_message())
    np.testing.assert_array_equal(extractor.calls[-1][2], mask)


def test_bearings_follow_the_calibration(make_rig):
    rig = make_rig().start()
    rays = rig.listen("bearings")
    keypoints = rig.listen("keypoints")
    send_and_wait(rig, keypoints, image_message(31))
    assert not len(rays), "no calibration, no rays"
    rig.publisher("camera_info", CameraInfo).publish(pinhole_info())
    wait_until(lambda: rig.node._cameras[""]._info is not None)
    send_and_wait(rig, keypoints, image_message(31, stamp=9))
    cloud = rays.wait()[0]
    assert stamp_of(cloud) == 9
    points = np.frombuffer(cloud.data, np.float32)  # the keypoint is at (31, 64): see FakeExtractor
    np.testing.assert_allclose(points, [0, 0.41, 1, 0.5], atol=1e-6)
    assert rig.set(rectified=True).successful
    send_and_wait(rig, rays, image_message(30))
    np.testing.assert_allclose(np.frombuffer(rays.messages[-1].data, np.float32), [0, 0.88, 1, 0.5], atol=1e-6)
    rig.publisher("camera_info", CameraInfo).publish(pinhole_info(model="fov", distortion=[0.9]))
    wait_until(lambda: rig.node._cameras[""]._info.distortion_model == "fov")
    assert rig.set(rectified=False).successful
    send_and_wait(rig, keypoints, image_message(30))
    assert len(rays) == 2, "an unknown lens gives no rays, and keypoints all the same"


def test_the_debug_image_is_the_image_with_circles(make_rig):
    rig = make_rig(overlay_radius=2).start()
    inbox = rig.listen("debug_image", Image)
    message = send_and_wait(rig, inbox, image_message(20, stamp=3, shape=(100, 40)))
    assert (message.encoding, message.height, message.width, stamp_of(message)) == ("bgr8", 100, 40, 3)
    pixels = np.frombuffer(message.data, np.uint8).reshape(100, 40, 3)
    where = np.argwhere((pixels != 20).any(axis=2))
    assert len(where) > 5 and np.abs(where - (40, 20)).max() <= 4  # the keypoint is at (20, 40)


def test_latency_is_told_for_every_image(make_rig):
    rig = make_rig().start()
    latency = rig.listen("latency", DiagnosticArray)
    inbox = rig.listen("keypoints")
    now = rig.node.get_clock().now().nanoseconds
    send_and_wait(rig, inbox, image_message(stamp=now))
    (message,) = latency.wait()
    assert stamp_of(message) == now
    values = {pair.key: float(pair.value) for pair in message.status[0].values}
    assert set(values) == {"processing_ms", "stamp_to_publish_ms", "fps", "dropped", "refused"}
    assert 0 < values["processing_ms"] < values["stamp_to_publish_ms"] < 20_000
    assert message.status[0].name == f"{rig.namespace.lstrip('/')}/superpoint"


def test_a_camera_that_sends_nothing_is_told_with_the_reason(make_rig):
    rig = make_rig(diagnostics_period=0.05, input_timeout=0.2).start()
    diagnostics = rig.listen(f"{rig.namespace}/diagnostics", DiagnosticArray)

    def told(text: str) -> bool:
        return any(
            text in m.status[0].message and m.status[0].level == DiagnosticStatus.WARN for m in diagnostics.messages
        )

    wait_until(lambda: any(m.status[0].message.startswith("nobody subscribes") for m in diagnostics.messages))
    rig.listen("keypoints")
    wait_until(lambda: told(f"nobody publishes {rig.namespace}/image"))
    other_context = Context()  # one participant can't have one topic with two types
    rclpy.init(context=other_context, domain_id=DOMAIN)
    other = rclpy.create_node("other", context=other_context, namespace=rig.namespace)
    other.create_publisher(CompressedImage, "image", 1)
    wait_until(lambda: told("carries sensor_msgs/msg/CompressedImage"))
    other.destroy_node()
    rclpy.shutdown(context=other_context)
    rig.publisher()
    wait_until(lambda: told("is published but nothing comes"))


def test_simulated_time_is_the_clock_of_ages(make_rig):
    rig = make_rig(use_sim_time=True, diagnostics_period=0.05).start()
    clock = rig.peer.create_publisher(Clock, "/clock", 10)
    wait_until(clock.get_subscription_count)
    latency = rig.listen("latency", DiagnosticArray)
    inbox = rig.listen("keypoints")

    def age_of(stamp: int, now: int) -> float:
        message = Clock()
        message.clock.sec = now
        clock.publish(message)
        wait_until(lambda: rig.node.get_clock().now().nanoseconds == now * 1_000_000_000)
        count = len(latency)
        send_and_wait(rig, inbox, image_message(stamp=stamp * 1_000_000_000))
        return {p.key: float(p.value) for p in latency.wait(count + 1)[-1].status[0].values}["stamp_to_publish_ms"]

    assert age_of(99, now=100) == 1000.0
    assert age_of(200, now=200) == 0.0
    assert age_of(9, now=10) == 1000.0, "a bag that begins again takes time back"
    # The clock stands still, and diagnostics still come: they are by the machine's own clock.
    diagnostics = rig.listen(f"{rig.namespace}/diagnostics", DiagnosticArray)
    assert diagnostics.wait(3)[-1].header.stamp.sec == 10


def test_remapped_topics_and_qos_overrides_are_obeyed(make_rig):
    rig = make_rig()
    topic = f"{rig.namespace}/image"
    name = f"qos_overrides.{topic}.subscription.reliability"
    rig.node._parameter_overrides[name] = Parameter(name, value="reliable")
    rig.start()
    rig.listen("keypoints")
    rig.publisher(wait=False, qos=QoSProfile(depth=1))
    wait_until(lambda: rig.peer.get_subscriptions_info_by_topic(topic))
    (info,) = rig.peer.get_subscriptions_info_by_topic(topic)
    assert info.qos_profile.reliability.name == "RELIABLE"


def test_deactivating_waits_for_the_image_in_work_and_drops_what_waits(make_rig):
    extractor = FakeExtractor()
    rig = make_rig(extractor).start()
    inbox = rig.listen("keypoints")
    extractor.gate.clear()
    publisher = rig.publisher()
    publisher.publish(image_message(1, stamp=1))
    wait_until(lambda: len(extractor.calls) == 2)
    publisher.publish(image_message(2, stamp=2))
    wait_until(lambda: rig.counts().received == 2)
    threading.Timer(0.1, extractor.gate.set).start()
    assert rig.on_node(rig.node.trigger_deactivate) == TransitionCallbackReturn.SUCCESS
    counts = rig.counts()
    assert (counts.processed, counts.dropped) == (1, 1)
    assert [stamp_of(cloud) for cloud in inbox.wait()] == [1]


def test_no_name_of_this_package_hides_one_of_rclpy(make_rig):
    """rclpy's Node keeps its own state in underscored attributes; a clash shows as something else failing."""
    rig = make_rig()
    plain = LifecycleNode("plain", context=rig.node.context)
    overridden = {name for kind in (SuperPointNode, ManagedNode) for name in vars(kind)} - {"__module__", "__doc__"}
    ours = {*vars(rig.node), *overridden} - set(dir(plain))
    theirs = {name for name in overridden & set(dir(plain)) if not name.startswith(("on_", "__"))}
    changed = {n for n in vars(plain) if type(getattr(rig.node, n)) is not type(getattr(plain, n))}
    plain.destroy_node()
    assert ours and not theirs and changed <= {"_parameter_overrides", "_Node__executor_weakref"}
