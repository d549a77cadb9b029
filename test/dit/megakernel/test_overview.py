"""`python -m ttsp_ros.dit.megakernel show`: what a person sees."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from megakernel_cases import published

from ttsp_ros.dit.megakernel.__main__ import main
from ttsp_ros.dit.megakernel.traffic import busiest_core, model_traffic

#: Megabytes of block weights that a step streams, and milliseconds that four steps take at least.
WEIGHTS = {
    ("n1.5", "bfp8_b"): (481.3, 3.76),
    ("n1.5", "bf16"): (906.0, 7.08),
    ("n1.6", "bfp8_b"): (962.6, 7.52),
    ("n1.6", "bf16"): (1811.9, 14.16),
    ("n1.7", "bfp8_b"): (962.6, 7.52),
    ("n1.7", "bf16"): (1811.9, 14.16),
}


@pytest.mark.parametrize("dtype", ["bfp8_b", "bf16"])
def test_traffic(version, dtype):
    layout = published(version, dtype_stream=dtype)
    traffic = model_traffic(layout)
    megabytes, milliseconds = WEIGHTS[version, dtype]
    assert round(sum(traffic.blocks) / 1e6, 1) == megabytes
    assert round(4 * sum(traffic.blocks) / 512e9 * 1e3, 2) == milliseconds
    assert traffic.balance <= 1.05 and len(traffic.banks) == 8
    keys = {"n1.5": 8 * 384, "n1.6": 8 * (64 + 96), "n1.7": 8 * (64 + 448)}[version]
    assert sum(traffic.keys) == keys * 2 * 32 * 64 * 2, "keys and values of 32 padded heads"
    assert traffic.step_bytes == sum(traffic.blocks) + sum(traffic.tail) + sum(traffic.keys)
    assert milliseconds / 1e3 < traffic.seconds(4) < 1.09 * milliseconds / 1e3
    most, ratio = busiest_core(layout)
    assert ratio < 1.15 and most * layout.n_compute == pytest.approx(ratio * sum(traffic.blocks + traffic.tail))


def test_an_uneven_number_of_banks_shows():
    assert model_traffic(published("n1.6", n_banks=7)).balance > 1.01


def test_show_prints_map_traffic_and_program(version, capsys):
    assert main(["show", version.replace("1.", "1")]) == 0
    printed = capsys.readouterr().out
    assert "11 x 10 cores: 96 compute, 8 readers, 2 hubs, 4 spare" in printed
    rows = [line.split() for line in printed.splitlines()]
    assert [row[0] for row in rows if row and row[0] in map(str, range(8)) and len(row) == 5] == list("01234567")
    assert "95 V31" in printed and "1,049,600 B" in printed and "at 512 GB/s" in printed
    assert "busiest bank / mean 1.000" in printed


def test_picture_and_manifest(tmp_path, capsys):
    import cv2

    png, manifest = tmp_path / "map.png", tmp_path / "plan.json"
    assert (
        main(["show", "n17", "--png", str(png), "--manifest", str(manifest), "--blocks", "2", "--dtype", "bf16"]) == 0
    )
    picture = cv2.imread(str(png))
    assert picture.shape[0] > 900 and picture.shape[1] > 1200
    colours = {tuple(colour) for colour in np.unique(picture.reshape(-1, 3)[::7], axis=0)}
    for name, rgb in {
        "query": (127, 183, 230),
        "key": (143, 209, 158),
        "value": (200, 182, 226),
        "hub": (193, 41, 46),
    }.items():
        assert rgb[::-1] in colours, name
    plan = json.loads(manifest.read_text())
    assert plan["blocks"] == 2 and plan["stats"]["common_words"] == 13 + 2 + 4 + 2 + 8 + 6
    assert str(png) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["n18"], "allowed are n1.5, n1.6, n1.7"),
        (["n17", "--grid", "8x8"], "the card offers 8x8 = 64 worker cores; the plan needs 106"),
        (["n17", "--grid", "large"], "must be like 11x10"),
        (["n17", "--blocks", "3"], "must be even"),
    ],
)
def test_show_says_what_is_wrong(arguments, message, capsys):
    assert main(["show", *arguments]) == 1
    assert message in capsys.readouterr().err


def test_show_needs_neither_ttnn_nor_matplotlib():
    program = (
        "import sys; sys.modules.update({'ttnn': None, 'matplotlib': None});"
        "import ttsp_ros.dit.megakernel.program, ttsp_ros.dit.megakernel.executor;"
        "from ttsp_ros.dit.megakernel.__main__ import main; sys.exit(main(['show', 'n15']))"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0 and "11 x 10 cores" in run.stdout, run.stderr
