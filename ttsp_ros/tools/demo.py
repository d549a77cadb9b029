"""The demo: ``make demo``, or ``python -m ttsp_ros.tools.demo [--backend ttnn] [--weights FILE]``.

A virtual camera moves over photographs; its images go into a bag; the bag is played through ROS to superpoint_node in
a process of its own, and what the node answers is recorded and compared with the known motion.

The next image is sent when the answer to the one before has come, so none is dropped (the node keeps the newest image
only) and the figures are those of the node at its own pace.

    build/demo/overlay.png     frames with keypoints, and the matches of two frames
    build/demo/features.mcap   images, keypoints, descriptors, bearings, debug image: for Foxglove and ros2 bag
    build/demo/summary.json    figures
    build/demo/camera.mcap     what was played: for ros2 bag play, ttsp_replay and demo.launch.py
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import Image, PointCloud2
from tqdm import tqdm

from ttsp_ros.backends import BACKENDS
from ttsp_ros.ros.conversions import features_from_cloud
from ttsp_ros.superpoint.features import Features
from ttsp_ros.superpoint.weights import WeightsError, find_weights
from ttsp_ros.tools.bags import (
    IMAGE,
    NANOSECONDS,
    POINT_CLOUD,
    BagWriter,
    camera_info_message,
    image_message,
    open_bag,
    typestore,
)
from ttsp_ros.tools.node_client import Client, NodeError, NodeProcess, Reply, percentiles, unique_namespace
from ttsp_ros.tools.repeatability import Matches, match, repeatability
from ttsp_ros.tools.virtual_camera import Camera, frames, photograph

SCENES = ("motorcycle", "astronaut", "chelsea")
FRAMES_PER_SCENE = 25
FRAME_RATE = 10
FRAME_ID = "camera"
IMAGE_TOPIC, INFO_TOPIC = "/camera/image_raw", "/camera/camera_info"
DIAGNOSTICS = "diagnostic_msgs/msg/DiagnosticArray"
# Frames that lie so far apart are matched, for the picture and the figures: half a second.
APART = FRAME_RATE // 2

ANSWERS = {
    "keypoints": PointCloud2,
    "descriptors": PointCloud2,
    "bearings": PointCloud2,
    "debug_image": Image,
    "latency": DiagnosticArray,
}
TYPES = {"debug_image": IMAGE, "latency": DIAGNOSTICS}


@dataclass(frozen=True)
class Shot:
    """One frame, what is known about it, and what the node found.

    Attributes:
        scene: name of the photograph.
        image: uint8 [H, W, 3] (RGB).
        homography: float64 [3, 3], photograph to image.
        features: of the node.
        latency_ms: from sending the image to receiving its descriptors.
        answer_ms: from sending the image to receiving the last of all messages about it.
        processing_ms: the node's own figure, from taking the image to having published the results.
        sends: how often the image was sent.
    """

    scene: str
    image: np.ndarray
    homography: np.ndarray
    features: Features
    latency_ms: float
    answer_ms: float
    processing_ms: float
    sends: int


@dataclass(frozen=True)
class Pair:
    """Two shots of one scene, compared by their homography."""

    first: Shot
    second: Shot
    repeatability: float
    matches: Matches


@dataclass(frozen=True)
class SceneFigures:
    """Means over one scene, each between frames next to each other and APART frames from each other."""

    keypoints: float
    repeatability: float
    match_precision: float
    repeatability_apart: float
    match_precision_apart: float


def write_camera_bag(path: Path, scenes: Sequence[str], count: int, camera: Camera, begin: int) -> list[np.ndarray]:
    """Writes `count` frames of every scene and their camera_info; returns all homographies.

    Args:
        begin: stamp of the first frame, in nanoseconds.
    """
    homographies: list[np.ndarray] = []
    with BagWriter(path) as bag, tqdm(total=len(scenes) * count, desc="camera", unit="frame", disable=None) as bar:
        for scene in scenes:
            for frame in frames(photograph(scene), count, camera, noise=1.0):
                stamp = begin + len(homographies) * NANOSECONDS // FRAME_RATE
                size = camera.width, camera.height
                bag.write(INFO_TOPIC, camera_info_message(bag.types, camera.matrix, size, stamp, FRAME_ID), stamp)
                bag.write(IMAGE_TOPIC, image_message(bag.types, frame.image, stamp, FRAME_ID), stamp)
                homographies.append(frame.homography)
                bar.update()
    return homographies


def play(bag_path: Path, client: Client, record: BagWriter) -> Iterator[tuple[Any, Reply]]:
    """Sends every image of a bag when the one before is answered; yields it with its answer, recorded in `record`."""
    with open_bag(bag_path) as bag:
        info = b""
        for connection, stamp, data in bag.messages():
            record.write_raw(connection.topic, connection.msgtype, bytes(data), stamp)
            if connection.topic == INFO_TOPIC:
                info = bytes(data)
                continue
            reply = client.exchange(bytes(data), stamp, info)
            for topic, answer in reply.messages.items():
                arrival = stamp + int(reply.seconds[topic] * NANOSECONDS)
                record.write_raw(f"/superpoint/{topic}", TYPES.get(topic, POINT_CLOUD), answer, arrival)
            _record_diagnostics(client, record, stamp)
            yield bag.deserialize(data, connection.msgtype), reply


def _record_diagnostics(client: Client, record: BagWriter, stamp: int) -> None:
    for _, data in client.heard:
        message: Any = record.types.deserialize_cdr(data, DIAGNOSTICS)
        for status in message.status:
            status.name = status.name.rpartition("/")[2]  # without the namespace, which is of this run only
        record.write("/diagnostics", message, stamp)
    client.heard.clear()


def make_shot(scene: str, homography: np.ndarray, message: Any, reply: Reply) -> Shot:
    """What is known of a frame, from the image message and the answer to it."""
    types = typestore()
    latency: Any = types.deserialize_cdr(reply.messages["latency"], DIAGNOSTICS)
    values = {pair.key: pair.value for pair in latency.status[0].values}
    return Shot(
        scene,
        message.data.reshape(message.height, message.width, 3),
        homography,
        features_from_cloud(types.deserialize_cdr(reply.messages["descriptors"], POINT_CLOUD)),
        reply.seconds["descriptors"] * 1e3,
        max(reply.seconds.values()) * 1e3,
        float(values["processing_ms"]),
        reply.sends,
    )


def compare(first: Shot, second: Shot) -> Pair:
    """Repeatability and matches of two shots of one scene."""
    homography = second.homography @ np.linalg.inv(first.homography)
    height, width = first.image.shape[:2]
    repeated = repeatability(first.features.keypoints, second.features.keypoints, homography, (width, height))
    return Pair(first, second, repeated, match(first.features, second.features, homography))


def pairs(shots: Sequence[Shot], step: int) -> list[Pair]:
    """All pairs of shots of one scene that lie `step` frames apart."""
    return [compare(a, b) for a, b in zip(shots, shots[step:], strict=False) if a.scene == b.scene]


def scene_figures(shots: Sequence[Shot]) -> SceneFigures:
    """The figures of the shots of one scene; NaN where there are too few."""
    near, far = pairs(shots, 1), pairs(shots, APART)
    return SceneFigures(
        float(np.mean([len(shot.features) for shot in shots])),
        _mean(pair.repeatability for pair in near),
        _mean(pair.matches.precision for pair in near),
        _mean(pair.repeatability for pair in far),
        _mean(pair.matches.precision for pair in far),
    )


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def summarize(shots: Sequence[Shot], backend: str, extractor: str, weights: Path) -> dict[str, Any]:
    """What summary.json holds; `fps` is that of the time in which an image was under way, None is not known."""
    scenes = {scene: scene_figures([shot for shot in shots if shot.scene == scene]) for scene in _scenes(shots)}
    counts = [len(shot.features) for shot in shots]
    means = {
        name: _mean(getattr(figures, name) for figures in scenes.values())
        for name in asdict(next(iter(scenes.values())))
    }
    summary = {
        "frames": len(shots),
        "image_size": list(shots[0].image.shape[:2]),
        "keypoints_per_frame": {"mean": means["keypoints"], "min": min(counts), "max": max(counts)},
        "repeatability": means["repeatability"],
        "match_precision": means["match_precision"],
        f"repeatability_{APART}_frames_apart": means["repeatability_apart"],
        f"match_precision_{APART}_frames_apart": means["match_precision_apart"],
        "scenes": {scene: asdict(figures) for scene, figures in scenes.items()},
        "latency_ms": percentiles([shot.latency_ms for shot in shots]),
        "processing_ms": percentiles([shot.processing_ms for shot in shots]),
        "fps": len(shots) / sum(shot.answer_ms / 1e3 for shot in shots),
        "frames_sent_again": sum(shot.sends - 1 for shot in shots),
        "backend": backend,
        "extractor": extractor,
        "weights": weights.name,
    }
    return _without_nan(summary)


def _without_nan(value: Any) -> Any:
    """JSON knows no NaN."""
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and np.isnan(value) else value


def _scenes(shots: Sequence[Shot]) -> list[str]:
    return list(dict.fromkeys(shot.scene for shot in shots))


def describe(summary: dict[str, Any], output: Path) -> str:
    """The closing words, for a human."""
    counts, latency = summary["keypoints_per_frame"], summary["latency_ms"]
    height, width = summary["image_size"]
    lines = [
        f"SuperPoint on {summary['backend']}: {summary['frames']} images of {width}x{height}, "
        f"{counts['mean']:.0f} keypoints each ({counts['min']} to {counts['max']})",
        "",
        f"  {'scene':<12} {'keypoints':>9} {'found again':>12} {'right matches':>14}   next frame / half a second on",
    ]
    for scene, figures in summary["scenes"].items():
        again = f"{_percent(figures['repeatability'])} / {_percent(figures['repeatability_apart'])}"
        right = f"{_percent(figures['match_precision'])} / {_percent(figures['match_precision_apart'])}"
        lines.append(f"  {scene:<12} {figures['keypoints']:>9.0f} {again:>12} {right:>14}")
    lines += [
        "  (within 3 pixels of where the known motion of the camera puts them)",
        "",
        f"  image sent to features received: {latency['p50']:.0f} ms median, {latency['p90']:.0f} ms p90; "
        f"{summary['fps']:.1f} images/s",
        f"  computed by {summary['extractor']}",
        "",
        f"  {output / 'overlay.png'}      look at this first",
        f"  {output / 'features.mcap'}    open in Foxglove with config/foxglove_layout.json, or ros2 bag play",
        f"  {output / 'summary.json'}     these figures, and more",
    ]
    return "\n".join(lines)


def _percent(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def read_backend(log: str) -> tuple[str, str]:
    """(name, description) of the backend, from the line that the node logs about it."""
    found = re.search(r"backend (\w+)(?: \('auto': .*?\))?: (.*)", log)
    if found is None:
        raise NodeError(f"the node's log does not tell its backend:\n{log}")
    return found[1], found[2].strip()


def run(
    output: Path, scenes: Sequence[str], count: int, backend: str, weights: Path | None, camera: Camera | None = None
) -> dict[str, Any]:
    """The whole demo; returns the summary.

    Raises:
        WeightsError: the weight file is missing.
        NodeError: the node did not come up, ended or does not answer.
    """
    from ttsp_ros.tools.demo_picture import draw

    camera = camera or Camera()
    weight_file = find_weights(weights)
    output.mkdir(parents=True, exist_ok=True)
    camera_bag, features_bag, log = (output / name for name in ("camera.mcap", "features.mcap", "node.log"))
    for stale in (camera_bag, features_bag, output / "overlay.png", output / "summary.json"):
        stale.unlink(missing_ok=True)

    print(f"1/3  a virtual camera films {', '.join(scenes)} into {camera_bag}")
    homographies = write_camera_bag(camera_bag, scenes, count, camera, time.time_ns())
    print("2/3  superpoint_node starts, in its own process")
    parameters = {"backend": backend, "weights": f"'{weight_file.resolve()}'", "autostart": "true"}
    shots: list[Shot] = []
    with (
        NodeProcess(unique_namespace("demo"), parameters, log) as node,
        Client(node, ANSWERS, {"diagnostics": DiagnosticArray}) as client,
        BagWriter(features_bag) as record,
    ):
        client.wait_until_ready()
        print(f"3/3  {camera_bag} is played to it; every image waits for the answer to the one before")
        with tqdm(total=len(homographies), desc="SuperPoint", unit="image", disable=None) as bar:
            for message, reply in play(camera_bag, client, record):
                index = len(shots)
                shots.append(make_shot(scenes[index // count], homographies[index], message, reply))
                bar.set_postfix(keypoints=len(shots[-1].features), ms=round(shots[-1].latency_ms))
                bar.update()
    if node.status != 0:
        raise node.failure(f"the node's exit status after Ctrl-C was {node.status}, not 0")
    summary = summarize(shots, *read_backend(log.read_text()), weight_file)
    draw(output / "overlay.png", shots, pairs(shots, min(FRAME_RATE, count - 1)))
    (output / "summary.json").write_text(json.dumps(summary, indent=2, allow_nan=False) + "\n")
    return summary


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m ttsp_ros.tools.demo`."""
    parser = argparse.ArgumentParser(description="Photographs in motion through superpoint_node.")
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    parser.add_argument("--weights", type=Path, help="SuperPoint weights (default: those fetched at set-up)")
    parser.add_argument("--output", type=Path, default=Path("build/demo"), help="folder (default: %(default)s)")
    parser.add_argument("--frames", type=int, default=FRAMES_PER_SCENE, help="of each scene (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.frames < 2:
        parser.error(f"--frames: got {options.frames}, at least 2 are needed to compare")
    try:
        summary = run(options.output, SCENES, options.frames, options.backend, options.weights)
    except (WeightsError, NodeError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    print(f"\n{describe(summary, options.output)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
