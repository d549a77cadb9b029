"""Latency of the GR00T action head beside lerobot's: same weights, same inputs, same threads, one process.

Full depth and width of N1.5 and N1.7, 300 vision-language tokens, in float32 and in bfloat16; two embodiments instead
of 32, since one at a time is used. Where both fit into half of the free memory their calls take turns; else lerobot's
head is measured, freed, and then ours.

    build/bench/dit.json    all figures; `python -m ttsp_ros.tools.bench_dit --help`
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ttsp_ros.openmp import wait_passively

if TYPE_CHECKING:
    from ttsp_ros.dit.config import GrootConfig

THREADS = 2
TOKENS = 300
IMAGE_TOKENS = 256
ROUNDS = 7
WARM_UP = 2
VERSIONS = ("n1.5", "n1.7")
PRECISIONS = ("float32", "bfloat16")
# A head on the CPU needs a little more than its weights.
OVERHEAD = 1.15

Call = Callable[[], Any]


def run(
    output_dir: Path,
    versions: tuple[str, ...] = VERSIONS,
    rounds: int = ROUNDS,
    precisions: tuple[str, ...] = PRECISIONS,
) -> dict[str, Any]:
    """Measure, write `output_dir`/dit.json and return its content.

    For each version and precision: `ours_ms`, `lerobot_ms` (medians), `ratio_lerobot` (theirs / ours), `context_ms`
    (the part of ours that depends on the tokens alone), `ours_min_ms`, `lerobot_min_ms`, `ratio_cpu` (theirs / ours of
    the CPU time that all threads took, which other processes disturb less), and `difference`, the largest between the
    two heads' actions. A version that doesn't fit into memory is `skipped`, with the reason.
    """
    import torch

    from ttsp_ros.dit.config import config_of

    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        report: dict[str, Any] = {"threads": THREADS, "tokens": TOKENS, "rounds": rounds}
        for version in versions:
            config = replace(config_of(version), n_embodiments=2)
            report[version] = {precision: measure(config, precision, rounds) for precision in precisions}
            print(_lines(version, report[version]), flush=True)
    finally:
        torch.set_num_threads(before)
    output_dir.mkdir(parents=True, exist_ok=True)
    (output_dir / "dit.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return report


def measure(config: GrootConfig, precision: str, rounds: int) -> dict[str, Any]:
    """One version in one precision; see `run`."""
    from ttsp_ros.dit.weights import parameter_count

    needed = parameter_count(config) * (4 if precision == "float32" else 2) * OVERHEAD
    available = _available_bytes()
    if needed * 1.2 > available:
        return {"skipped": f"needs {needed / 1e9:.1f} GB of memory, {available / 1e9:.1f} GB are available"}
    together = 4 * needed < available
    names = [("lerobot", "ours")] if together else [("lerobot",), ("ours",)]
    results: dict[str, Any] = {}
    for group in names:
        results |= _measure_group(config, precision, group, rounds)
        gc.collect()
    ours, theirs = results["ours"], results["lerobot"]
    return {
        "ratio_lerobot": round(statistics.median(theirs["times"]) / statistics.median(ours["times"]), 3),
        "ratio_cpu": round(statistics.median(theirs["cpu"]) / statistics.median(ours["cpu"]), 3),
        "ours_ms": round(statistics.median(ours["times"]), 1),
        "lerobot_ms": round(statistics.median(theirs["times"]), 1),
        "ours_min_ms": round(min(ours["times"]), 1),
        "lerobot_min_ms": round(min(theirs["times"]), 1),
        "context_ms": round(statistics.median(ours["context"]), 1),
        "difference": float((ours["actions"] - theirs["actions"]).abs().max()),
        "order": "in turns" if together else "one after the other",
    }


def _measure_group(config: GrootConfig, precision: str, names: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Times of the named heads, which are in memory at the same time, call by call in turns."""
    import torch

    from ttsp_ros.dit.weights import RandomWeights

    dtype = torch.float32 if precision == "float32" else torch.bfloat16
    make = {"ours": _ours, "lerobot": _lerobot}
    context_times: list[float] = []
    weights = RandomWeights(config, seed=1, dtype=dtype)
    calls: dict[str, Call] = {name: make[name](config, weights, dtype, context_times) for name in names}
    results: dict[str, Any] = {name: {"times": [], "cpu": []} for name in names}
    for turn in range(WARM_UP + rounds):
        for name, call in calls.items():
            begin, cpu = time.perf_counter(), time.process_time()
            actions = call()
            if turn >= WARM_UP:
                results[name]["times"].append((time.perf_counter() - begin) * 1e3)
                results[name]["cpu"].append(time.process_time() - cpu)
            results[name]["actions"] = actions.float()
    if "ours" in results:
        results["ours"]["context"] = context_times[WARM_UP:]
    return results


def _observation(config: GrootConfig) -> tuple[Any, Any, Any, Any]:
    """Features, is_image, state and noise: those of a camera of 256 image tokens and an instruction."""
    import torch

    generator = torch.Generator().manual_seed(0)
    features = torch.randn(TOKENS, config.vl_dim, generator=generator)
    state = torch.randn(config.max_state_dim, generator=generator)
    noise = torch.randn(config.horizon, config.max_action_dim, generator=generator)
    return features, torch.arange(TOKENS) >= TOKENS - IMAGE_TOKENS, state, noise


def _ours(config: GrootConfig, weights: Any, dtype: Any, context_times: list[float]) -> Call:
    from ttsp_ros.dit.model import ActionHead

    head = ActionHead(config, weights, 1, dtype=dtype)
    features, is_image, state, noise = _observation(config)

    def call() -> Any:
        begin = time.perf_counter()
        context = head.encode_tokens(features, is_image)
        context_times.append((time.perf_counter() - begin) * 1e3)
        return head.sample(context, state, noise)

    return call


def _lerobot(config: GrootConfig, weights: Any, dtype: Any, context_times: list[float]) -> Call:
    import torch

    from ttsp_ros.tools.lerobot_head import LerobotHead

    head = LerobotHead(config, weights, dtype)
    features, is_image, state, noise = _observation(config)
    features, state = features.to(dtype), state.to(dtype)
    start = noise if config.euler_dtype == "fp32_actions_bf16_velocity" else noise.to(dtype)

    def call() -> Any:
        with torch.inference_mode():
            return head.sample(features, is_image, state, start, 1)

    return call


def _available_bytes() -> float:
    """Memory that can be had without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return float("inf")
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def _lines(version: str, results: dict[str, Any]) -> str:
    lines = []
    for precision, result in results.items():
        if "skipped" in result:
            lines.append(f"GR00T {version} {precision}: skipped: {result['skipped']}")
            continue
        lines.append(
            f"GR00T {version} {precision}: {result['ours_ms']:.0f} ms (of which tokens {result['context_ms']:.0f}), "
            f"lerobot {result['lerobot_ms']:.0f} ms: {result['ratio_lerobot']:.2f} x "
            f"({result['ratio_cpu']:.2f} x in CPU time); largest difference {result['difference']:.2g}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    """Run the bench; see --help."""
    parser = argparse.ArgumentParser(
        prog="bench_dit", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench"))
    parser.add_argument("--versions", nargs="+", default=list(VERSIONS), choices=("n1.5", "n1.6", "n1.7"))
    parser.add_argument("--precisions", nargs="+", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args(arguments)
    wait_passively()
    run(options.output, tuple(options.versions), options.rounds, tuple(options.precisions))


if __name__ == "__main__":
    main()
