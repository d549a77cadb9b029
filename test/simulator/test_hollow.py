"""Hollow kernels are for graph capture only: a program that is really started is refused."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch
from ttsp_ros.simulator.session import SimulatedFailure, open_device
with open_device(hollow_kernels=True) as device:
    import ttnn
    tensor = ttnn.from_torch(torch.zeros(1, 1, 32, 32).bfloat16(), layout=ttnn.TILE_LAYOUT, device=device)
    try:
        ttnn.add(tensor, tensor)
        ttnn.synchronize_device(device)
        print("RAN")
    except SimulatedFailure as refusal:
        print("REFUSED", refusal)
"""


def test_a_started_program_is_refused():
    root = str(Path(__file__).parents[2])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TT_", "TTSP_"))}
    environment = kept | {"PYTHONPATH": root}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240, env=environment, cwd=root
    )
    assert "REFUSED" in done.stdout and "hollow" in done.stdout, done.stdout + done.stderr
    assert "RAN" not in done.stdout
