"""The ttnn backend over real rclpy, on a simulated Blackhole in the node's own process."""

from __future__ import annotations

import signal
import sys

import numpy as np
import pytest
import rclpy
from sensor_msgs.msg import Image, PointCloud2

from ttsp_ros.ros.conversions import features_from_cloud
from ttsp_ros.superpoint.extractor import TorchExtractor
from ttsp_ros.superpoint.features import DetectionSettings
from ttsp_ros.tools.quality import load_photograph

from .conftest import array_message, stamp_of, wait_until
from .node_process import ENTRY

SIZE = (64, 96)
# Four simulated cores: they come into being within seconds, and compute as all of a card do.
ON_FOUR_CORES = ("-m", "ttsp_ros.simulator", "run", "--grid", "2x2", "--", sys.executable)
FIRST_FRAME_SECONDS = 240.0  # kernels are built, the simulated cores started


@pytest.mark.timeout(600)
def test_the_topic_has_the_bits_of_the_torch_backend(start, context):
    # The network's stock operations can't run here, so it is on the host: everything after it is on the card.
    parameters = {"backend": "ttnn", "network": "host", "resize": str(list(SIZE)), "max_keypoints": "50"}
    process = start(*ON_FOUR_CORES, "-c", ENTRY, parameters=parameters)
    process.wait_for("active;", FIRST_FRAME_SECONDS)
    assert "backend ttnn: Tenstorrent card with 2x2 cores" in process.output
    peer = rclpy.create_node("peer", context=context, namespace=process.namespace)
    received: list[PointCloud2] = []
    peer.create_subscription(PointCloud2, "superpoint/descriptors", received.append, 10)
    publisher = peer.create_publisher(Image, "image", 10)
    executor = rclpy.executors.SingleThreadedExecutor(context=context)
    executor.add_node(peer)

    def spin_until(condition):
        wait_until(lambda: executor.spin_once(timeout_sec=0.05) or condition(), FIRST_FRAME_SECONDS)

    expected = TorchExtractor(precision="bfloat16")
    try:
        spin_until(lambda: publisher.get_subscription_count() and peer.count_publishers("superpoint/descriptors"))
        for number, name in enumerate(("camera.png", "coins.png", "astronaut.png"), 1):
            image = load_photograph(name, SIZE)
            publisher.publish(array_message(image, stamp=number))
            spin_until(lambda number=number: len(received) == number)
            found = features_from_cloud(received[-1])
            wanted = expected.extract(image, DetectionSettings(max_keypoints=50))
            assert stamp_of(received[-1]) == number and len(found) > 10
            assert np.array_equal(found.keypoints, wanted.keypoints)
            assert np.array_equal(found.scores, wanted.scores)
            assert np.array_equal(found.descriptors.view(np.int32), wanted.descriptors.view(np.int32))
    finally:
        executor.shutdown()
        peer.destroy_node()
    process.stop(signal.SIGINT)


def test_a_card_is_not_made_up(start):
    """Asking for ttnn where there is no card, not even a simulated one, ends with what is missing."""
    clean = f"import os; [os.environ.pop(n) for n in list(os.environ) if n.startswith('TT_')]; {ENTRY}"
    process = start("-c", clean, parameters={"backend": "ttnn"})
    assert process.process.wait(60) == 1
    process._reader.join(10)
    assert "no card: nothing in /dev/tenstorrent" in process.output and "Traceback" not in process.output
