"""Speed of SuperPoint and of its node on this machine: ``make bench``, or ``ttsp_bench``.

`bench_superpoint` compares the extractor with others, side by side. To that comes what the node adds: one image at a
time goes through ROS to superpoint_node in its own process; of the time from publishing the image to receiving its
descriptors the time that the extractor took for that image is taken away.

    build/bench/superpoint.json    all figures
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttsp_ros.openmp import wait_passively

if TYPE_CHECKING:
    import numpy as np

    from ttsp_ros.backends import ExtractorOptions
    from ttsp_ros.superpoint.extractor import Extractor
    from ttsp_ros.superpoint.features import DetectionSettings, Features

THREADS = 2
IMAGES = 60
WARM_UP = 5


class TimedExtractor:
    """An extractor that writes how long each call took, in ms, to a JSON file when it is closed."""

    def __init__(self, inner: Extractor, path: Path) -> None:
        self._inner = inner
        self._path = path
        self._times: list[float] = []
        self.backend = inner.backend
        self.description = inner.description

    def extract(self, image: np.ndarray, settings: DetectionSettings, mask: np.ndarray | None = None) -> Features:
        """See `Extractor.extract`."""
        begin = time.perf_counter()
        features = self._inner.extract(image, settings, mask)
        self._times.append((time.perf_counter() - begin) * 1e3)
        return features

    def check(self, settings: DetectionSettings) -> None:
        """See `Extractor.check`."""
        self._inner.check(settings)

    def close(self) -> None:
        """See `Extractor.close`."""
        self._path.write_text(json.dumps(self._times))
        self._inner.close()


def timed_node(path: str) -> None:
    """superpoint_node as a process, with a TimedExtractor."""
    wait_passively()
    from ttsp_ros.backends import create_extractor
    from ttsp_ros.ros.lifecycle import spin
    from ttsp_ros.ros.superpoint_node import SuperPointNode

    def make(options: ExtractorOptions, log: Callable[[str], None]) -> TimedExtractor:
        return TimedExtractor(create_extractor(options, log), Path(path))

    sys.exit(spin(lambda: SuperPointNode(make_extractor=make)))


def node_overhead(threads: int = THREADS, images: int = IMAGES, progress: bool = False) -> dict[str, float]:
    """Milliseconds from publishing a 640x480 mono8 image to receiving its descriptors, less the extractor's own.

    Returns:
        p50, p90, p99 and max.

    Raises:
        NodeError: see `ttsp_ros.tools.node_client`.
    """
    import cv2
    from sensor_msgs.msg import PointCloud2
    from tqdm import tqdm

    from ttsp_ros.tools.bags import IMAGE, image_message, typestore
    from ttsp_ros.tools.node_client import Client, NodeProcess, percentiles, unique_namespace
    from ttsp_ros.tools.virtual_camera import Camera, frames, photograph

    types = typestore()
    total = WARM_UP + images
    latencies = []
    with tempfile.TemporaryDirectory() as scratch:
        times = Path(scratch) / "times.json"
        start = f"from ttsp_ros.tools.bench import timed_node; timed_node({str(times)!r})"
        parameters = {"backend": "torch", "threads": threads, "autostart": "true"}
        node = NodeProcess(unique_namespace("bench"), parameters, Path(scratch) / "node.log", start)
        with node, Client(node, {"descriptors": PointCloud2}) as client:
            client.wait_until_ready()
            pictures = frames(photograph("motorcycle"), total, Camera(), noise=1.0)
            for index, frame in enumerate(tqdm(pictures, "node", total, unit="image", disable=not progress)):
                gray = cv2.cvtColor(frame.image, cv2.COLOR_RGB2GRAY)
                message = image_message(types, gray, index + 1, "camera")
                data = bytes(types.serialize_cdr(message, IMAGE))
                latencies.append(client.exchange(data, index + 1).seconds["descriptors"] * 1e3)
        if node.status != 0:
            raise node.failure(f"the node's exit status after Ctrl-C was {node.status}, not 0")
        extractor = json.loads(times.read_text())[-total:]  # the node's own warm-up came before
    overheads = [latency - taken for latency, taken in zip(latencies, extractor, strict=True)]
    return percentiles(overheads[WARM_UP:])


def run(
    output: Path, threads: int = THREADS, seconds: float = 30.0, images: int = IMAGES, progress: bool = False
) -> dict[str, Any]:
    """All figures; they are written to `output`/superpoint.json too."""
    from ttsp_ros.tools import bench_superpoint

    result = bench_superpoint.run(None, threads, seconds, progress=progress)
    overhead = node_overhead(threads, images, progress)
    result |= {f"node_overhead_ms_{name}": value for name, value in overhead.items()}
    output.mkdir(parents=True, exist_ok=True)
    (output / "superpoint.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


def describe(result: dict[str, Any]) -> str:
    """For a human; the table is Markdown."""
    from ttsp_ros.tools.bench_superpoint import table

    stages = ", ".join(f"{name} {value:.1f}" for name, value in result["stages_ms"].items())
    return "\n".join(
        [
            f"{result['image']}, {result['keypoints']} keypoints, {result['threads']} threads; "
            f"{result['cpu']}; torch {result['torch']}",
            "",
            table(result),
            "",
            f"ours, by stage (ms): {stages}",
            "the node adds (ms, image published to descriptors received): "
            f"{result['node_overhead_ms_p50']:.2f} median, {result['node_overhead_ms_p90']:.2f} p90",
            f"bfloat16 against float32, best 500 keypoints within 2 px: F1 {result['f1_at_500']:.4f}",
        ]
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """`ttsp_bench`."""
    parser = argparse.ArgumentParser(prog="ttsp_bench", description="Speed of SuperPoint and its node on this machine.")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="folder (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=THREADS, help="CPU threads, of all (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long they take turns (default: %(default)s)")
    parser.add_argument("--images", type=int, default=IMAGES, help="sent to the node (default: %(default)s)")
    options = parser.parse_args(arguments)
    wait_passively()
    from ttsp_ros.superpoint.weights import WeightsError
    from ttsp_ros.tools.node_client import NodeError

    try:
        result = run(options.output, options.threads, options.seconds, options.images, sys.stderr.isatty())
    except (WeightsError, NodeError) as error:
        print(f"ttsp_bench: {error}", file=sys.stderr)
        return 1
    print(describe(result))
    print(f"\n{options.output / 'superpoint.json'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
