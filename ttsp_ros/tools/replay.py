"""Bag in, features out, without a middleware: ``ttsp_replay IN_BAG OUT_BAG [--topic /camera/image_raw ...]``.

Every image goes through the code that the node runs, in the order of the bag, none dropped; header and bag time stamp
are those of the image, so two runs on one machine give the same messages byte by byte. For an image topic T the bag
gets T/superpoint/keypoints and T/superpoint/descriptors: the same messages that the node publishes.

Exit status: 0 done (refused images are counted and listed), 1 nothing could be done, 130 interrupted by Ctrl-C or
SIGTERM: the output bag is complete up to the last image.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rosbags.highlevel import AnyReader
from rosbags.interfaces import Connection
from tqdm import tqdm

from ttsp_ros.backends import BACKENDS, NETWORKS, ExtractorOptions, create_extractor
from ttsp_ros.openmp import wait_passively
from ttsp_ros.ros.conversions import MessageTypes, descriptor_cloud, gray_image, keypoint_cloud, rosbags_types
from ttsp_ros.ros.stop_signal import StopSignal
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.superpoint.image import ImageError
from ttsp_ros.tenstorrent.session import DeviceError
from ttsp_ros.tools.bags import COMPRESSED_IMAGE, IMAGE, BagError, BagWriter, open_bag

if TYPE_CHECKING:
    from ttsp_ros.superpoint.extractor import Extractor

IMAGE_TYPES = (IMAGE, COMPRESSED_IMAGE)
INTERRUPTED = 130
REASONS_SHOWN = 8


@dataclass
class Report:
    """What happened.

    Attributes:
        images: images whose features were written.
        keypoints: keypoints in all of them.
        refused: how often an image was refused, by (topic, reason).
        total: images in the input.
        seconds: of the whole replay.
        interrupted: whether it was stopped before the end.
    """

    images: int = 0
    keypoints: int = 0
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    total: int = 0
    seconds: float = 0.0
    interrupted: bool = False

    def text(self, target: Path) -> str:
        """For a human."""
        per_image = self.keypoints / self.images if self.images else 0.0
        rate = self.images / self.seconds if self.seconds else 0.0
        lines = [
            f"{self.images} of {self.total} images, {per_image:.0f} keypoints each, {rate:.1f} images/s -> {target}"
        ]
        if self.interrupted:
            lines.append("Interrupted: the bag is complete up to there.")
        if self.refused:
            lines.append(f"{self.refused.total()} images were refused:")
            lines += [f"  {count} x {topic}: {reason}" for (topic, reason), count in self._most_common()]
        return "\n".join(lines)

    def _most_common(self) -> list[tuple[tuple[str, str], int]]:
        shown = self.refused.most_common(REASONS_SHOWN)
        rest = self.refused.total() - sum(count for _, count in shown)
        return [*shown, (("other topics or reasons", "..."), rest)] if rest else shown


def image_connections(bag: AnyReader, topics: Sequence[str]) -> list[Connection]:
    """The connections to read: those of `topics`; without any, all images, but not the compressed twin of a raw topic.

    Raises:
        BagError: a topic is not in the bag or carries no images, or there are no images at all.
    """
    images = [connection for connection in bag.connections if connection.msgtype in IMAGE_TYPES]
    available = sorted({connection.topic for connection in images})
    if not available:
        raise BagError(f"no {' or '.join(IMAGE_TYPES)} in this bag; its topics: {', '.join(sorted(bag.topics)) or '-'}")
    missing = sorted(set(topics) - set(available))
    if missing:
        raise BagError(f"no images on {', '.join(missing)}; topics with images: {', '.join(available)}")
    wanted = topics or [
        topic for topic in available if topic.rpartition("/")[0] not in available or not topic.endswith("/compressed")
    ]
    return [connection for connection in images if connection.topic in wanted]


def replay(
    bag: AnyReader,
    connections: Sequence[Connection],
    out: BagWriter,
    extractor: Extractor,
    settings: DetectionSettings,
    *,
    copy_images: bool = False,
    progress: Callable[[], Any] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
) -> Report:
    """Writes the features of every image of `connections` to `out`.

    Args:
        copy_images: write each image too, before its features.
        progress: called after each image.
        stop: asked before each image; True ends the replay.
    """
    report = Report(total=sum(connection.msgcount for connection in connections))
    messages = rosbags_types(out.types)
    begin = time.monotonic()
    for connection, stamp, data in bag.messages(connections=connections):
        if stop():
            report.interrupted = True
            break
        try:
            message, image = _decode(bag, connection, data)
            features = extractor.extract(image, settings)
        except ImageError as error:
            report.refused[connection.topic, str(error)] += 1
        else:
            if copy_images:
                out.write(connection.topic, message, stamp)
            _write(out, messages, connection.topic, message.header, stamp, features)
            report.images += 1
            report.keypoints += len(features)
        progress()
    report.seconds = time.monotonic() - begin
    return report


def _decode(bag: AnyReader, connection: Connection, data: bytes) -> tuple[Any, np.ndarray]:
    try:
        message = bag.deserialize(data, connection.msgtype)
    except (
        Exception
    ) as error:  # rosbags raises whatever its generated code meets: struct, index, Unicode and own errors
        raise ImageError(
            f"the message is damaged ({type(error).__name__} while reading its {len(data)} bytes)"
        ) from error
    return message, gray_image(message)


def _write(out: BagWriter, messages: MessageTypes, topic: str, header: Any, stamp: int, features: Features) -> None:
    out.write(f"{topic}/superpoint/keypoints", messages.cloud(header, keypoint_cloud(features)), stamp)
    out.write(f"{topic}/superpoint/descriptors", messages.cloud(header, descriptor_cloud(features)), stamp)


def run(
    source: Path,
    target: Path,
    extractor: Extractor,
    settings: DetectionSettings,
    *,
    topics: Sequence[str] = (),
    storage: str = "mcap",
    copy_images: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Report:
    """Replays the bag at `source` into a new one at `target`, with a progress bar on a terminal.

    Raises:
        BagError: the input is not readable or has no such images, or the output exists.
    """
    with open_bag(source) as bag:
        connections = image_connections(bag, topics)
        with BagWriter(target, storage) as out, tqdm(total=_count(connections), unit="image", disable=None) as bar:
            return replay(
                bag, connections, out, extractor, settings, copy_images=copy_images, progress=bar.update, stop=stop
            )


def _count(connections: Sequence[Connection]) -> int:
    return sum(connection.msgcount for connection in connections)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    defaults = DetectionSettings()
    parser = argparse.ArgumentParser(prog="ttsp_replay", description="SuperPoint features of every image of a bag.")
    parser.add_argument("source", metavar="IN_BAG", type=Path, help="rosbag2 folder, .mcap, .db3, or ROS 1 .bag")
    parser.add_argument("target", metavar="OUT_BAG", type=Path, help="folder to make, or a name that ends in .mcap")
    parser.add_argument("--topic", dest="topics", action="append", default=[], help="image topic; may be repeated")
    parser.add_argument("--storage", choices=("mcap", "sqlite3"), default="mcap", help="of OUT_BAG (default: mcap)")
    parser.add_argument("--copy-images", action="store_true", help="write the images to OUT_BAG too")
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    parser.add_argument("--network", choices=NETWORKS, default="device", help="where the network of backend ttnn runs")
    parser.add_argument("--weights", type=Path, help="SuperPoint weights (default: those fetched at set-up)")
    parser.add_argument("--precision", choices=("auto", "float32", "bfloat16"), default="auto")
    parser.add_argument("--resize", nargs=2, type=int, metavar=("HEIGHT", "WIDTH"), help="size of the network's input")
    parser.add_argument("--threads", type=int, help="CPU threads (default: torch's own choice)")
    parser.add_argument("--threshold", type=float, default=defaults.threshold)
    parser.add_argument("--nms-radius", type=int, default=defaults.nms_radius)
    parser.add_argument("--border", type=int, default=defaults.border)
    parser.add_argument("--max-keypoints", type=int, default=defaults.max_keypoints)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """`ttsp_replay`."""
    stop = StopSignal().install()
    stop.hold()
    wait_passively()
    options = parse(arguments)
    try:
        settings = DetectionSettings(options.threshold, options.nms_radius, options.border, options.max_keypoints)
        resize = tuple(options.resize) if options.resize else None
        extractor = create_extractor(
            ExtractorOptions(
                options.backend, options.weights, options.precision, resize, options.threads, options.network
            ),
            log=print,
        )
        with closing(extractor):
            report = run(
                options.source,
                options.target,
                extractor,
                settings,
                topics=options.topics,
                storage=options.storage,
                copy_images=options.copy_images,
                stop=stop.is_set,
            )
    except (BagError, DeviceError, ValueError, OSError) as error:
        print(f"ttsp_replay: {error}", file=sys.stderr)
        return 1
    print(report.text(options.target))
    if report.interrupted:
        return INTERRUPTED
    return 0 if report.images or not report.total else 1


if __name__ == "__main__":
    sys.exit(main())
