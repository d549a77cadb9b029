"""How fast the torch backend is, side by side with others: uint8 image to features, same weights, same threads.

* **ours**: `TorchExtractor` in bfloat16 (where the CPU has it) and float32;
* **transformers**: the whole pipeline of Hugging Face transformers, image processor to post-processing;
* **plain**: the textbook way in float32 torch: whole maps, max_pool2d NMS, grid_sample at the keypoints.

All run the default weights with BatchNorm folded into the convolutions, since transformers knows no BatchNorm; what
ours takes with BatchNorm is measured too. Candidates take turns, so that a disturbance hits all of them; medians and
their ratios are reported.

    python -m ttsp_ros.tools.bench_superpoint [--output build/bench]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from tqdm import tqdm

from ttsp_ros.superpoint.descriptors import sample
from ttsp_ros.superpoint.extractor import TorchExtractor, has_bfloat16_hardware
from ttsp_ros.superpoint.features import DetectionSettings
from ttsp_ros.superpoint.keypoints import detect
from ttsp_ros.superpoint.network import LAYERS, LayerParameters
from ttsp_ros.superpoint.plain_layout import hugging_face_state, without_batch_norm
from ttsp_ros.superpoint.weights import load_parameters
from ttsp_ros.tools.quality import HOMOGRAPHY_SIZE, f1_at_500, load_photograph

PHOTOGRAPH = "motorcycle_left.png"
SETTINGS = DetectionSettings(max_keypoints=1024)
Candidate = Callable[[], object]


class PlainSuperPoint:
    """SuperPoint as it is written down in papers: float32, one operation after the other on whole maps."""

    def __init__(self, parameters: Mapping[str, LayerParameters]) -> None:
        self._parameters = parameters

    @torch.inference_mode()
    def __call__(self, image: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(keypoints [N, 2], scores [N], descriptors [N, 256]) of a uint8 image."""
        values = encoded = (torch.from_numpy(image).float() / 255)[None, None]
        outputs = {}
        for layer in LAYERS:
            if layer.name in ("Pa", "Da"):
                values = encoded
            p = self._parameters[layer.name]
            values = F.conv2d(values, p.weight, p.bias, padding=layer.kernel // 2)
            if layer.relu:
                values = F.relu(values)
            if layer.pool:
                values = F.max_pool2d(values, 2)
            if layer.name == "4b":
                encoded = values
            outputs[layer.name] = values
        scores = F.pixel_shuffle(torch.softmax(outputs["Pb"], 1)[:, :64], 8)[0, 0]
        keypoints, best = self._keypoints(scores)
        return keypoints, best, self._descriptors(F.normalize(outputs["Db"], dim=1), keypoints, scores.shape)

    def _keypoints(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        r, b = SETTINGS.nms_radius, SETTINGS.border
        maximum = F.max_pool2d(scores[None], 2 * r + 1, stride=1, padding=r)[0]
        kept = (scores == maximum) & (scores > SETTINGS.threshold)
        y, x = torch.nonzero(kept[b:-b, b:-b], as_tuple=True)
        best, order = scores[y + b, x + b].topk(min(SETTINGS.max_keypoints, len(y)))
        return torch.stack([x + b, y + b], dim=1)[order].float(), best

    def _descriptors(self, dense: torch.Tensor, keypoints: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
        scale = torch.tensor([size[1] - 4.5, size[0] - 4.5])
        grid = (keypoints - 3.5) / scale * 2 - 1
        sampled = F.grid_sample(dense, grid[None, None], mode="bilinear", align_corners=True)[0, :, 0]
        return F.normalize(sampled.T, dim=1)


def transformers_pipeline(parameters: Mapping[str, LayerParameters]) -> Callable[[np.ndarray], object]:
    """Image processor, model and post-processing of transformers with the given weights."""
    from transformers import SuperPointConfig, SuperPointForKeypointDetection
    from transformers.models.superpoint.image_processing_pil_superpoint import SuperPointImageProcessorPil

    config = SuperPointConfig(
        keypoint_threshold=SETTINGS.threshold,
        max_keypoints=SETTINGS.max_keypoints,
        nms_radius=SETTINGS.nms_radius,
        border_removal_distance=SETTINGS.border,
    )
    model = SuperPointForKeypointDetection(config).eval()
    model.load_state_dict(hugging_face_state(parameters))
    processor = SuperPointImageProcessorPil(do_resize=False)

    @torch.inference_mode()
    def pipeline(image: np.ndarray) -> object:
        colour = np.repeat(image[:, :, None], 3, axis=2)
        outputs = model(**processor(colour, return_tensors="pt"))
        return processor.post_process_keypoint_detection(outputs, [image.shape])

    return pipeline


def measure(candidates: Mapping[str, Candidate], seconds: float, progress: bool = False) -> dict[str, list[float]]:
    """Milliseconds of every call; candidates take turns until `seconds` have passed, three times each at least."""
    for call in candidates.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in candidates}
    end = time.perf_counter() + seconds
    with tqdm(total=round(seconds), unit="s", desc="SuperPoint", disable=not progress) as bar:
        while time.perf_counter() < end or len(next(iter(times.values()))) < 3:
            for name, call in candidates.items():
                start = time.perf_counter()
                call()
                times[name].append((time.perf_counter() - start) * 1e3)
            bar.n = min(bar.total, round(seconds - (end - time.perf_counter())))
            bar.refresh()
    return times


def run(
    output_dir: Path | None, threads: int = 2, seconds: float = 30.0, f1: bool = True, progress: bool = False
) -> dict[str, Any]:
    """Measure everything but the node's own overhead.

    Args:
        output_dir: superpoint.json is written there; None writes nothing.
        threads: of torch, for all candidates.
        seconds: how long the candidates take turns.
        f1: measure also how many of float32's keypoints bfloat16 finds.
        progress: show a bar.

    Returns:
        what superpoint.json holds: milliseconds (medians) ``ours_ms`` (the faster precision), ``ours_bf16_ms``,
        ``ours_fp32_ms``, ``ours_batch_norm_ms``, ``transformers_ms``, ``plain_fp32_ms``; ``ratio_transformers`` and
        ``ratio_plain_fp32`` of ours, the same of float32 with ``_fp32`` behind; ``stages_ms`` of ours; ``f1_at_500``.
    """
    torch.set_num_threads(threads)
    image = load_photograph(PHOTOGRAPH, HOMOGRAPHY_SIZE)
    plain = without_batch_norm(load_parameters())
    with tempfile.TemporaryDirectory() as scratch:
        weights = Path(scratch) / "plain.pth"
        torch.save(hugging_face_state(plain), weights)
        fp32 = TorchExtractor(weights, "float32", threads=threads)
        bf16 = TorchExtractor(weights, "bfloat16", threads=threads)
    best = bf16 if has_bfloat16_hardware() else fp32
    batch_norm = TorchExtractor(None, "auto", threads=threads)
    pipeline, textbook = transformers_pipeline(plain), PlainSuperPoint(plain)
    times = measure(
        {
            "ours_bf16": lambda: bf16.extract(image, SETTINGS),
            "ours_fp32": lambda: fp32.extract(image, SETTINGS),
            "ours_batch_norm": lambda: batch_norm.extract(image, SETTINGS),
            "transformers": lambda: pipeline(image),
            "plain_fp32": lambda: textbook(image),
        },
        seconds,
        progress,
    )
    medians = {name: statistics.median(values) for name, values in times.items()}
    ours = medians["ours_bf16" if best is bf16 else "ours_fp32"]
    result: dict[str, Any] = {
        "image": f"{PHOTOGRAPH}, {image.shape[1]}x{image.shape[0]}",
        "keypoints": len(best.extract(image, SETTINGS)),
        "threads": threads,
        "rounds": len(times["transformers"]),
        "cpu": cpu_features(),
        "torch": torch.__version__,
        "ours_precision": str(best.dtype).removeprefix("torch."),
        "ours_ms": ours,
        **{f"{name}_ms": value for name, value in medians.items()},
        **{f"{name}_min_ms": min(values) for name, values in times.items()},
        "ratio_transformers": medians["transformers"] / ours,
        "ratio_plain_fp32": medians["plain_fp32"] / ours,
        "ratio_transformers_fp32": medians["transformers"] / medians["ours_fp32"],
        "ratio_plain_fp32_fp32": medians["plain_fp32"] / medians["ours_fp32"],
        "stages_ms": stages(best, image),
    }
    if f1:
        exact = TorchExtractor(None, "float32", threads=threads)
        rounded = TorchExtractor(None, "bfloat16", threads=threads)
        result["f1_at_500"] = f1_at_500(rounded.extract, exact.extract)
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        (output_dir / "superpoint.json").write_text(json.dumps(result, indent=2) + "\n")
    return result


@torch.inference_mode()
def stages(extractor: TorchExtractor, image: np.ndarray, rounds: int = 10) -> dict[str, float]:
    """Median milliseconds of the network, of finding keypoints and of sampling descriptors."""
    outputs = extractor.network_outputs(image)
    found = detect(outputs.cells, SETTINGS)
    calls: dict[str, Candidate] = {
        "network": lambda: extractor.network_outputs(image),
        "keypoints": lambda: detect(outputs.cells, SETTINGS),
        "descriptors": lambda: sample(outputs.dense, found.y, found.x),
    }
    times = measure(calls, 0.0)
    for _ in range(rounds):
        for name, values in measure(calls, 0.0).items():
            times[name] += values
    return {name: statistics.median(values) for name, values in times.items()}


def cpu_features() -> str:
    """Cores that this process may use, and the vector instructions that matter here."""
    import os

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    path = Path("/proc/cpuinfo")
    words = set(path.read_text().split()) if path.exists() else set()
    names = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")
    return (
        f"{cores} cores, {' '.join(name for name in names if name in words) or torch.backends.cpu.get_cpu_capability()}"
    )


def table(result: Mapping[str, Any]) -> str:
    """Markdown, for people."""
    rows = [
        ("ours, bfloat16", "ours_bf16"),
        ("ours, float32", "ours_fp32"),
        (f"ours with BatchNorm, {result['ours_precision']}", "ours_batch_norm"),
        ("plain torch, float32", "plain_fp32"),
        ("transformers, float32", "transformers"),
    ]
    lines = ["| image to features | ms, median | ms, best | transformers / this |", "|---|---|---|---|"]
    for title, key in rows:
        median = result[f"{key}_ms"]
        ratio = result["transformers_ms"] / median
        lines.append(f"| {title} | {median:.1f} | {result[f'{key}_min_ms']:.1f} | {ratio:.1f} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Speed of SuperPoint on this CPU.")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="directory (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    options = parser.parse_args(arguments)
    result = run(options.output, options.threads, options.seconds, progress=sys.stderr.isatty())
    print(f"{result['image']}, {result['keypoints']} keypoints, {result['threads']} threads, {result['cpu']}")
    print(table(result))
    print(f"stages, ms: {', '.join(f'{name} {value:.1f}' for name, value in result['stages_ms'].items())}")
    print(f"of the best 500 keypoints, bfloat16 against float32 within 2 px: F1 {result['f1_at_500']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
