"""The tool that validates a card: its logic on a simulated one, its report, its exits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ttsp_ros.tools.on_card import Accuracy, Latency, Report, StageOff, main

FAST = Latency.of([0.001, 0.002, 0.003])
GOOD = Report(
    card="a card",
    size=(480, 640),
    accuracy=[Accuracy("coins.png", 0.9999, 0.9995, 0.99)],
    latency=FAST,
    stages=[StageOff("trace", True, 1.0, FAST)],
)


def test_latency_is_percentiles_and_rate():
    assert (FAST.p50, FAST.fps) == (pytest.approx(2.0), pytest.approx(500.0))
    assert FAST.p50 < FAST.p90 < FAST.p99


def test_the_report_says_whether_the_aims_were_reached():
    assert GOOD.passed and "trace: reached" in GOOD.markdown()
    assert "| without trace | True | 1.0000 | 2.00 |" in GOOD.markdown()
    for row in (Accuracy("x", 0.9999, 0.9985, 0.99), Accuracy("x", 0.9999, 0.9995, 0.97)):
        missed = replace(GOOD, accuracy=[row])
        assert not missed.passed and "NOT reached" in missed.markdown()
    assert not replace(GOOD, stages=[replace(GOOD.stages[0], same_bits=False)]).passed
    assert replace(GOOD, stages=[StageOff("rms", False, 0.99, FAST)]).passed, "rms may change bits"


def test_without_a_card_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("ttsp_ros.backends.active_grid", lambda: None)
    monkeypatch.setattr("ttsp_ros.backends.CARD_DEVICES", Path("/nowhere/tenstorrent"))
    assert main(["--size", "64x96"]) == 1
    assert "no card: nothing in /nowhere/tenstorrent" in capsys.readouterr().err


@pytest.mark.timeout(600)
def test_all_of_it_on_four_simulated_cores(tmp_path):
    """With the network on the host, whose outputs are bfloat16 and so close to float32."""
    command = [sys.executable, "-m", "ttsp_ros.simulator", "run", "--grid", "2x2", "--", sys.executable]
    command += ["-m", "ttsp_ros.tools.on_card", "--size", "64x96", "--network", "host", "--frames", "2"]
    command += ["--photographs", "2", "--stages", "nms", "trace", "--output", str(tmp_path)]
    root = str(Path(__file__).parents[2])
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, cwd=root)
    assert done.returncode in (0, 2), done.stderr  # 2: an aim was missed, on so small images
    report = json.loads((tmp_path / "report.json").read_text())
    assert [row["photograph"] for row in report["accuracy"]] == ["astronaut.png", "brick.png"]
    assert all(row["descriptors"] > 0.999 and row["scores"] > 0.99 for row in report["accuracy"])
    assert [(row["stage"], row["same_bits"]) for row in report["stages"]] == [("nms", True), ("trace", True)]
    assert (tmp_path / "report.md").read_text() in done.stdout
