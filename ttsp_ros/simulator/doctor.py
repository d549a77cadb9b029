"""What a simulated run would use, whether it was tested together, and whether it works."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ttsp_ros.simulator.environment import variables
from ttsp_ros.simulator.toolchain import SimulatorError, find_host_compiler, prepare, real_sfpi

TESTED = {"ttnn": "0.81.1", "wolfpine": "2.2", "gcc-riscv64-unknown-elf": "12.2"}
PROOF = """
import torch
from ttsp_ros.simulator.session import open_device
from ttsp_ros.tenstorrent import program
with open_device() as device:
    import ttnn
    values, core = torch.arange(32.0).reshape(1, 1, 1, 32).bfloat16(), [(0, 0)]
    source = ttnn.from_torch(values, layout=ttnn.ROW_MAJOR_LAYOUT, device=device)
    target = ttnn.empty_like(source)
    kernel = program.reader(
        "examples/negate.cpp", core, tensors=[source, target], compile_time={"row_bytes": 64},
        unique={core[0]: {"first_row": 0, "rows": 1}},
        common={"input": source.buffer_address(), "output": target.buffer_address()})
    scratch = program.circular_buffer(0, core, ttnn.bfloat16, page_size=64, pages=1)
    program.run([source, target], ttnn.ProgramDescriptor(kernels=[kernel], cbs=[scratch], semaphores=[]))
    assert torch.equal(ttnn.to_torch(target), -values)
"""


@dataclass(frozen=True)
class Finding:
    """One line of the report; `good` is False where it keeps a simulated run from working."""

    what: str
    found: str
    good: bool = True


def findings() -> Iterator[Finding]:
    """All findings, the slow proof last and only where the others are good."""
    checks = (_package("ttnn"), _package("wolfpine"), _compiler, _folder, _shell)
    good = True
    yield Finding("python", f"{sys.version.split()[0]} ({sys.executable})")
    for check in checks:
        finding = check()
        good &= finding.good
        yield finding
    cards = sorted(str(path) for path in Path("/dev/tenstorrent").glob("*"))
    yield Finding("cards", ", ".join(cards) or "none")
    if good:
        yield _proof()


def _tested(package: str, version: str) -> str:
    tested = TESTED[package]
    known = version == tested or version.startswith(f"{tested}.")
    return f"{version} (tested together)" if known else f"{version} (not tested together: that was {tested})"


def _package(name: str) -> Callable[[], Finding]:
    def check() -> Finding:
        try:
            return Finding(name, _tested(name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            return Finding(name, "not installed in this Python environment; run `make setup`", good=False)

    return check


def _compiler() -> Finding:
    try:
        sfpi = real_sfpi()
        if sfpi is not None:
            return Finding("kernel compiler", f"SFPI in {sfpi}")
        version = _tested("gcc-riscv64-unknown-elf", find_host_compiler().version)
        return Finding("kernel compiler", f"no SFPI; Debian's GCC {version} stands in, without sfpi.h vector types")
    except SimulatorError as error:
        return Finding("kernel compiler", str(error), good=False)


def _folder() -> Finding:
    try:
        return Finding("folder", str(prepare().simulator.parent))
    except (SimulatorError, OSError) as error:
        return Finding("folder", str(error), good=False)


def _shell() -> Finding:
    """Variables of ttnn and Wolfpine that a simulated run does not set itself, and that may change what it does."""
    try:
        ours = variables()
    except (SimulatorError, OSError):
        ours = {}
    foreign = [name for name in os.environ if name.startswith(("TT_METAL_", "TT_SIM_", "TTNN_")) and name not in ours]
    return Finding("shell", f"also sets {', '.join(sorted(foreign))}" if foreign else "sets nothing that interferes")


def _proof() -> Finding:
    began = time.monotonic()
    command = [sys.executable, "-m", "ttsp_ros.simulator", "run", "--timeout", "60", "--", sys.executable, "-c", PROOF]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return Finding("proof", f"a kernel does not run:\n{done.stdout}{done.stderr}", good=False)
    return Finding("proof", f"a kernel was built, ran and was right ({time.monotonic() - began:.0f} s)")
