"""The package as `colcon build` installs it: its files, and its node as a sourced shell finds it."""

import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
EXECUTABLES = ("superpoint_node", "dit_node", "ttsp_replay", "ttsp_bench", "ttsp_weights")


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    """Where colcon installed the package."""
    scratch = tmp_path_factory.mktemp("colcon")
    beside = Path(sys.executable).parent / "colcon"
    colcon = str(beside) if beside.exists() else shutil.which("colcon")
    command = [colcon, "--log-base", str(scratch / "log"), "build", "--base-paths", str(ROOT)]
    command += ["--build-base", str(scratch / "build"), "--install-base", str(scratch / "install")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=scratch)
    assert result.returncode == 0, result.stdout + result.stderr
    return scratch / "install" / "ttsp_ros"


@pytest.fixture(scope="module")
def sourced(prefix):
    """The environment of a shell that has sourced the installation, and knows nothing of the checkout."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if "ROS_DISTRO" in os.environ:  # then rclpy comes from PYTHONPATH
        paths = os.environ.get("PYTHONPATH", "").split(":")
        clean["PYTHONPATH"] = ":".join(path for path in paths if path and Path(path).resolve() != ROOT)
    script = f". {prefix.parent / 'local_setup.sh'} && env -0"
    output = subprocess.run(["sh", "-c", script], capture_output=True, check=True, env=clean).stdout.decode()
    return dict(entry.split("=", 1) for entry in output.split("\0") if "=" in entry)


def run(sourced, *command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=sourced, check=False, **options)


def relative_files(folder):
    return {
        path.relative_to(folder)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts
    }


@pytest.mark.parametrize("folder", ["launch", "config", "kernels"])
def test_every_file_of_the_shared_folders_is_installed(prefix, folder):
    installed = prefix / "share" / "ttsp_ros" / folder
    expected = relative_files(ROOT / folder)
    assert expected, f"nothing in {folder}/"
    assert relative_files(installed) == expected
    assert all((installed / path).read_bytes() == (ROOT / folder / path).read_bytes() for path in expected)


def test_every_file_of_the_python_package_is_installed(prefix):
    installed = next((prefix / "lib").glob("python3*/site-packages/ttsp_ros"))
    assert relative_files(installed) == relative_files(ROOT / "ttsp_ros")


def test_the_package_is_in_the_index_with_its_manifest(prefix):
    assert (prefix / "share/ament_index/resource_index/packages/ttsp_ros").is_file()
    assert (prefix / "share/ttsp_ros/package.xml").read_bytes() == (ROOT / "package.xml").read_bytes()
    assert (prefix / "share/ttsp_ros/LICENSE").is_file()


def test_the_manifest_agrees_with_setup_py_and_is_a_valid_one():
    from catkin_pkg.package import parse_package

    package = parse_package(str(ROOT / "package.xml"))
    warnings = []
    package.validate(warnings)
    assert not warnings
    assert package.package_format == 3
    assert package.get_build_type() == "ament_python"
    assert package.licenses == ["Apache-2.0"]
    version = subprocess.run(
        [sys.executable, "setup.py", "--version"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split()[-1]
    assert package.version == version
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text()


def test_what_the_package_imports_is_declared():
    """Every ROS package and library that a module of ttsp_ros imports has its line in package.xml."""
    declared = {element.text for element in ElementTree.parse(ROOT / "package.xml").getroot().iter("exec_depend")}
    imported = set()
    for path in [*(ROOT / "ttsp_ros").rglob("*.py"), *(ROOT / "launch").glob("*.py")]:
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) > 1 and words[0] in ("import", "from"):
                imported.add(words[1].split(".")[0].rstrip(","))
    keys = {"numpy": "python3-numpy", "cv2": "python3-opencv", "yaml": "python3-yaml", "tqdm": "python3-tqdm"}
    keys |= {"torch": "python3-pytorch-pip", "rosbags": "python3-rosbags-pip"}
    ros = {name for name in imported if name.endswith(("_msgs", "_srvs", "_interfaces"))}
    ros |= imported & {"rclpy", "cv_bridge", "launch", "launch_ros", "ament_index_python"}
    assert {keys.get(name, name) for name in ros | (imported & set(keys))} == declared


@pytest.mark.parametrize("name", EXECUTABLES)
def test_the_executables_are_where_ros2_run_looks_and_lead_somewhere(prefix, name):
    executable = prefix / "lib" / "ttsp_ros" / name
    assert os.access(executable, os.X_OK)
    text = next(prefix.glob("lib/python3*/site-packages/ttsp_ros-*.egg-info/entry_points.txt")).read_text()
    target = next(line.split(" = ")[1] for line in text.splitlines() if line.startswith(f"{name} = "))
    assert callable(EntryPoint(name, target, "console_scripts").load())


def test_a_sourced_shell_finds_the_installed_package_and_its_share(sourced, prefix, tmp_path):
    code = (
        "import ttsp_ros; from ament_index_python.packages import get_package_share_directory as share;"
        "print(ttsp_ros.__file__); print(share('ttsp_ros'))"
    )
    result = run(sourced, sys.executable, "-c", code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    module, share = map(Path, result.stdout.split())
    assert prefix in module.parents
    assert share == prefix / "share" / "ttsp_ros"


def test_the_installed_replay_runs(sourced, prefix, tmp_path):
    from ttsp_ros.tools.bags import BagWriter, image_message, open_bag

    image = np.random.default_rng(0).integers(0, 256, (64, 96), dtype=np.uint8)
    with BagWriter(tmp_path / "in") as bag:
        bag.write("/eye", image_message(bag.types, image, 1, "eye"), 1)
    command = [prefix / "lib/ttsp_ros/ttsp_replay", "in", "out", "--backend", "torch"]
    result = run(sourced, *map(str, command), cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "1 of 1 images" in result.stdout
    with open_bag(tmp_path / "out") as bag:
        assert sorted(bag.topics) == ["/eye/superpoint/descriptors", "/eye/superpoint/keypoints"]


def test_the_installed_node_starts_answers_an_image_and_ends_with_ctrl_c(sourced, prefix, tmp_path):
    import rclpy
    from rclpy.executors import SingleThreadedExecutor
    from sensor_msgs.msg import Image, PointCloud2
    from skimage import data

    domain = os.getpid() % 90 + 5
    local = {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST", "ROS_DOMAIN_ID": str(domain)}
    log = (tmp_path / "node.log").open("w+")
    arguments = ["--ros-args", "-r", "__ns:=/packaging", "-p", "backend:=torch", "-p", "threads:=1"]
    node = subprocess.Popen(
        [prefix / "lib/ttsp_ros/superpoint_node", *arguments],
        env={**sourced, **local},
        cwd=tmp_path,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    os.environ.update({"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"})
    context = rclpy.Context()
    rclpy.init(context=context, domain_id=domain)
    try:
        client = rclpy.create_node("client", context=context)
        executor = SingleThreadedExecutor(context=context)
        executor.add_node(client)
        received = []
        client.create_subscription(PointCloud2, "/packaging/superpoint/descriptors", received.append, 5)
        publisher = client.create_publisher(Image, "/packaging/image", 5)
        pixels = np.ascontiguousarray(data.camera()[80:176, 200:328])
        image = Image(height=96, width=128, encoding="mono8", step=128, data=pixels.tobytes())
        image.header.frame_id = "eye"
        image.header.stamp.sec = 42
        deadline = time.monotonic() + 60
        while not received and node.poll() is None and time.monotonic() < deadline:
            publisher.publish(image)
            executor.spin_once(timeout_sec=0.5)
        node.send_signal(signal.SIGINT)
        status = node.wait(10)
    finally:
        node.kill()
        rclpy.shutdown(context=context)
    log.seek(0)
    text = log.read()
    assert received, text
    assert (received[0].header.stamp.sec, received[0].header.frame_id) == (42, "eye")
    assert received[0].width > 0
    assert [field.name for field in received[0].fields] == ["x", "y", "z", "score", "descriptor"]
    assert status == 0, text
    assert "Traceback" not in text
