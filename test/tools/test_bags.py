import os
import subprocess
import sys

import numpy as np
import pytest

from ttsp_ros.tools.bags import BagError, BagWriter, camera_info_message, image_message, open_bag, typestore

STAMPS = [1_700_000_000_000_000_000 + 100_000_000 * index for index in range(4)]


def write(path, storage="mcap", stamps=STAMPS, fail=None):
    rng = np.random.default_rng(0)
    with BagWriter(path, storage) as bag:
        for stamp in stamps:
            image = rng.integers(0, 256, (40, 64, 3), dtype=np.uint8)
            bag.write("/camera/image_raw", image_message(bag.types, image, stamp, "eye"), stamp)
            bag.write(
                "/camera/camera_info", camera_info_message(bag.types, np.eye(3) * 5, (64, 40), stamp, "eye"), stamp
            )
        if fail:
            raise fail


@pytest.mark.parametrize(("name", "storage"), [("bag", "mcap"), ("bag", "sqlite3"), ("one.mcap", "mcap")])
def test_what_is_written_is_read(tmp_path, name, storage):
    write(tmp_path / name, storage)
    expected = np.random.default_rng(0).integers(0, 256, (40, 64, 3), dtype=np.uint8)
    with open_bag(tmp_path / name) as bag:
        assert sorted(bag.topics) == ["/camera/camera_info", "/camera/image_raw"]
        messages = [(c.topic, stamp, bag.deserialize(data, c.msgtype)) for c, stamp, data in bag.messages()]
    assert len(messages) == 2 * len(STAMPS)
    stamp, image = next(message[1:] for message in messages if message[0] == "/camera/image_raw")
    assert (stamp, image.header.stamp.sec, image.header.stamp.nanosec) == (STAMPS[0], 1_700_000_000, 0)
    assert (image.header.frame_id, image.encoding, image.step) == ("eye", "rgb8", 192)
    np.testing.assert_array_equal(image.data.reshape(40, 64, 3), expected)
    assert (tmp_path / name).is_file() == name.endswith(".mcap")
    assert sorted(path.name for path in tmp_path.iterdir()) == [name], "no scratch files stay behind"


@pytest.mark.parametrize("name", ["bag", "one.mcap"])
@pytest.mark.parametrize("fail", [KeyboardInterrupt(), RuntimeError("disk on fire")], ids=["ctrl-c", "error"])
def test_a_writing_that_breaks_off_leaves_a_readable_bag(tmp_path, name, fail):
    with pytest.raises(type(fail)):
        write(tmp_path / name, fail=fail)
    with open_bag(tmp_path / name) as bag:
        assert bag.message_count == 2 * len(STAMPS)
        assert len(list(bag.messages())) == bag.message_count


def test_an_empty_bag_is_readable(tmp_path):
    write(tmp_path / "bag", stamps=[])
    with open_bag(tmp_path / "bag") as bag:
        assert bag.message_count == 0


def test_the_types_in_the_bag_are_those_of_ros(monkeypatch):
    """The hash that goes into the bag with a message's definition is the one that the middleware announces."""
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
    import rclpy
    from sensor_msgs import msg

    types = typestore()
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=os.getpid() % 100 + 1)
    try:
        node = rclpy.create_node("type_hashes", context=context)
        for name in ("Image", "CompressedImage", "CameraInfo", "PointCloud2"):
            publisher = node.create_publisher(getattr(msg, name), f"/hash/{name}", 1)
            announced = node.get_publishers_info_by_topic(f"/hash/{name}")[0].topic_type_hash
            assert str(announced) == types.hash_rihs01(f"sensor_msgs/msg/{name}")
            node.destroy_publisher(publisher)
        node.destroy_node()
    finally:
        rclpy.shutdown(context=context)


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (lambda path: None, "no such bag"),
        (lambda path: path.mkdir(), "no such bag.*metadata.yaml"),
        (lambda path: path.write_bytes(b"not a bag"), "not a readable bag"),
    ],
)
def test_what_is_no_bag_is_refused_in_words(tmp_path, prepare, words):
    path = tmp_path / "x.mcap"
    prepare(path)
    with pytest.raises(BagError, match=words), open_bag(path):
        pass


def test_an_existing_file_is_never_written_over(tmp_path):
    (tmp_path / "bag").mkdir()
    with pytest.raises(BagError, match="exists"):
        BagWriter(tmp_path / "bag")


def test_unknown_storage_is_refused(tmp_path):
    with pytest.raises(BagError, match="got 'csv', allowed are mcap, sqlite3"):
        BagWriter(tmp_path / "bag", "csv")
    with pytest.raises(BagError, match="needs storage mcap"):
        BagWriter(tmp_path / "bag.mcap", "sqlite3")


def test_the_module_needs_no_ros():
    code = "import sys; import ttsp_ros.tools.bags; sys.exit('rclpy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
