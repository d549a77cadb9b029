"""Validates and benchmarks the ttnn backend on a card: numbers against torch, stages against each other, latency.

    python -m ttsp_ros.tools.on_card [--size 480x640] [--frames 300] [--network device] [--output build/on_card]

`scripts/on_card.sh` runs the device tests before it. On a simulated Blackhole it takes `--network host` and a small
size: that shows that this tool works, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from ttsp_ros.backends import NETWORKS, missing_for_ttnn
from ttsp_ros.superpoint.extractor import TorchExtractor
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.tenstorrent.extractor import TtExtractor, TtExtractorConfig
from ttsp_ros.tenstorrent.session import DeviceError
from ttsp_ros.tenstorrent.stages import Stages
from ttsp_ros.tenstorrent.superpoint import SuperPointConfig
from ttsp_ros.tools.quality import PHOTOGRAPHS, keypoint_f1, load_photograph

SETTINGS = DetectionSettings()
BEST = replace(SETTINGS, max_keypoints=500)
AIM_CORRELATION = 0.999
AIM_F1 = 0.987
#: Stages whose other form gives the same bits, see `Stages`.
EXACT_STAGES = ("wide", "nms", "sampler", "trace")
WARM_UP_FRAMES = 3


@dataclass(frozen=True)
class Accuracy:
    """Of one photograph, the card against torch in float32.

    Attributes:
        scores, descriptors: Pearson correlation of the network's outputs.
        f1: of the 500 best keypoints, within 2 pixels.
    """

    photograph: str
    scores: float
    descriptors: float
    f1: float


@dataclass(frozen=True)
class Latency:
    """Image to Features in ms, and frames a second one after the other."""

    p50: float
    p90: float
    p99: float
    fps: float

    @staticmethod
    def of(seconds: Sequence[float]) -> Latency:
        p50, p90, p99 = (float(1000 * value) for value in np.percentile(seconds, (50, 90, 99)))
        return Latency(p50, p90, p99, len(seconds) / sum(seconds))


@dataclass(frozen=True)
class StageOff:
    """One stage in its other form: whether it gave the same bits, F1 against all stages on, and its latency."""

    stage: str
    same_bits: bool
    f1: float
    latency: Latency


@dataclass(frozen=True)
class Report:
    """Everything; see the attributes' types."""

    card: str
    size: tuple[int, int]
    accuracy: list[Accuracy]
    latency: Latency
    stages: list[StageOff]

    @property
    def passed(self) -> bool:
        """Whether the aims were reached, and the stages that must not change a bit changed none."""
        f1 = float(np.mean([row.f1 for row in self.accuracy]))
        exact = all(row.same_bits for row in self.stages if row.stage in EXACT_STAGES)
        return exact and min(row.descriptors for row in self.accuracy) >= AIM_CORRELATION and f1 >= AIM_F1

    def markdown(self) -> str:
        """For people."""
        height, width = self.size
        lines = [
            f"# {self.card}",
            "",
            f"Images of {width}x{height}. Aims: descriptors' correlation >= {AIM_CORRELATION} on every photograph, "
            f"F1 >= {AIM_F1} on average, the same bits without {', '.join(EXACT_STAGES)}: "
            f"{'reached' if self.passed else 'NOT reached'}.",
            "",
            "| photograph | scores' correlation | descriptors' correlation | F1 of the best 500 |",
            "|---|---|---|---|",
            *(f"| {r.photograph} | {r.scores:.5f} | {r.descriptors:.5f} | {r.f1:.4f} |" for r in self.accuracy),
            "",
            "| stages | same bits | F1 | p50 ms | p90 ms | p99 ms | frames/s |",
            "|---|---|---|---|---|---|---|",
            f"| all on | - | - | {_cells(self.latency)} |",
            *(f"| without {r.stage} | {r.same_bits} | {r.f1:.4f} | {_cells(r.latency)} |" for r in self.stages),
        ]
        return "\n".join(lines) + "\n"


def _cells(latency: Latency) -> str:
    return " | ".join(f"{value:.2f}" for value in (latency.p50, latency.p90, latency.p99, latency.fps))


@dataclass(frozen=True)
class Bench:
    """What is measured with, the same for all."""

    images: dict[str, np.ndarray]
    frames: int
    network: str
    core_limit: int | None

    @contextmanager
    def extractor(self, stages: Stages) -> Iterator[TtExtractor]:
        """The backend with these stages; one at a time has the card."""
        superpoint = SuperPointConfig(stages=stages, core_limit=self.core_limit)
        config = TtExtractorConfig(self.network, superpoint)
        with closing(TtExtractor(config=config)) as made:
            yield made

    def accuracy(self, card: TtExtractor) -> Iterator[Accuracy]:
        exact = TorchExtractor(precision="float32")
        for name, image in self.images.items():
            expected, found = exact.network_outputs(image), card.network_outputs(image, SETTINGS)
            yield Accuracy(
                name,
                _correlation(expected.cells.float().numpy(), found.cells.float().numpy()),
                _correlation(expected.dense.float().numpy(), found.dense.float().numpy()),
                keypoint_f1(exact.extract(image, BEST), card.extract(image, BEST)),
            )

    def latency(self, card: TtExtractor) -> Latency:
        images = list(self.images.values())
        for image in images[:WARM_UP_FRAMES]:
            card.extract(image, SETTINGS)
        seconds = []
        for number in range(self.frames):
            start = time.perf_counter()
            card.extract(images[number % len(images)], SETTINGS)
            seconds.append(time.perf_counter() - start)
        return Latency.of(seconds)

    def stage_off(self, stage: str, reference: dict[str, Features]) -> StageOff:
        """The graph without one stage; without nms there is no sampler either."""
        stages = replace(Stages(), **{stage: False}, **({"sampler": False} if stage == "nms" else {}))
        with self.extractor(stages) as card:
            found = self.features(card)
            same = all(_same(found[name], expected) for name, expected in reference.items())
            f1 = float(np.mean([keypoint_f1(expected, found[name]) for name, expected in reference.items()]))
            return StageOff(stage, same, f1, self.latency(card))

    def features(self, card: TtExtractor) -> dict[str, Features]:
        return {name: card.extract(image, SETTINGS) for name, image in self.images.items()}


def run(bench: Bench, size: tuple[int, int], stages: Sequence[str] = Stages.names()) -> Report:
    """All measurements.

    Args:
        size: (height, width) of the images.
        stages: those to leave out one at a time.
    """
    with bench.extractor(Stages()) as card:
        description = card.description
        accuracy, latency, reference = list(bench.accuracy(card)), bench.latency(card), bench.features(card)
    off = [bench.stage_off(stage, reference) for stage in stages]
    return Report(description, size, accuracy, latency, off)


def _correlation(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.corrcoef(first.ravel(), second.ravel())[0, 1])


def _same(first: Features, second: Features) -> bool:
    pairs = ((getattr(first, name), getattr(second, name)) for name in ("keypoints", "scores", "descriptors"))
    return all(np.array_equal(a, b) for a, b in pairs)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="on_card", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--size", default="480x640", help="height x width, multiples of 8 (default %(default)s)")
    parser.add_argument("--frames", type=int, default=300, help="timed frames of each form (default %(default)s)")
    parser.add_argument("--photographs", type=int, default=len(PHOTOGRAPHS), help="how many (default: all)")
    parser.add_argument("--network", choices=NETWORKS, default="device")
    parser.add_argument("--stages", nargs="*", choices=Stages.names(), default=Stages.names(), help="to compare")
    parser.add_argument("--cores", type=int, help="that NMS and sampling use at most (default: all)")
    parser.add_argument("--output", type=Path, default=Path("build/on_card"))
    options = parser.parse_args(arguments)
    missing = missing_for_ttnn()
    if missing:
        print(f"on_card: {missing}", file=sys.stderr)
        return 1
    height, width = map(int, options.size.split("x"))
    images = {name: load_photograph(name, (height, width)) for name in PHOTOGRAPHS[: options.photographs]}
    try:
        report = run(Bench(images, options.frames, options.network, options.cores), (height, width), options.stages)
    except DeviceError as error:
        print(f"on_card: {error}", file=sys.stderr)
        return 1
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "report.json").write_text(json.dumps(asdict(report), indent=2) + "\n")
    (options.output / "report.md").write_text(report.markdown())
    print(report.markdown())
    print(f"written: {options.output}/report.json and report.md")
    return 0 if report.passed else 2


if __name__ == "__main__":
    sys.exit(main())
