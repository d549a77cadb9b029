"""A program that does not end: a report with the place of each RISC, and no process left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ttsp_ros.simulator.control import Control

OPEN = """
import torch
from ttsp_ros.simulator.session import SimulatedFailure, open_device
from ttsp_ros.tenstorrent import program

def launch(device, kernel):
    import ttnn
    tensor = ttnn.from_torch(torch.zeros(1, 1, 1, 16), layout=ttnn.ROW_MAJOR_LAYOUT, device=device)
    cores = [(0, 0)]
    buffer = program.circular_buffer(0, cores, ttnn.float32, page_size=64, pages=1)
    descriptor = ttnn.ProgramDescriptor(kernels=[program.reader(kernel, cores)], cbs=[buffer], semaphores=[])
    program.run([tensor, tensor], descriptor)
    print("launched", flush=True)
    ttnn.synchronize_device(device)
"""
WAITS = '#include "api/dataflow/dataflow_api.h"\nvoid kernel_main() {\n    cb_wait_front(0, 1);\n}\n'
ENDS = '#include "api/dataflow/dataflow_api.h"\nvoid kernel_main() {}\n'
MISALIGNED = (
    '#include "api/dataflow/dataflow_api.h"\nvoid kernel_main() {\n'
    "    noc_async_read(get_noc_addr(get_write_ptr(0) + 4), get_write_ptr(0) + 16, 16);\n"
    "    noc_async_read_barrier();\n}\n"
)
COUNTS = "void kernel_main() {\n    for (volatile unsigned i = 0;; i = i + 1) {\n    }\n}\n"


@pytest.fixture
def start(tmp_path: Path):
    """Starts a script in a process of its own, with kernels as files; ends it at the latest with the test."""
    started = []

    def start_script(script: str, *options: str, **kernels: str) -> subprocess.Popen:
        for name, source in kernels.items():
            (tmp_path / f"{name}.cpp").write_text(source)
        (tmp_path / "script.py").write_text(script.replace("KERNELS", str(tmp_path)))
        command = [sys.executable, "-m", "ttsp_ros.simulator", "run", *options, "--", sys.executable, "script.py"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
        started.append(
            subprocess.Popen(
                command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
        )
        return started[0]

    yield start_script
    for process in started:
        process.kill()
        process.communicate()


def simulator_is_gone(user: int) -> bool:
    """Whether the simulator of the process `user` has ended: the last thing it does is to remove their folder."""
    deadline = time.monotonic() + 10
    while Control(user).folder.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    return not Control(user).folder.exists()


def test_failures_are_located_and_the_device_opens_again(start):
    script = (
        OPEN
        + """
with open_device() as device:
    try:
        launch(device, "KERNELS/waits.cpp")
    except SimulatedFailure as hang:
        print("HANG", hang)
with open_device() as device:
    launch(device, "KERNELS/ends.cpp")
    try:
        launch(device, "KERNELS/misaligned.cpp")
    except SimulatedFailure as failure:
        print("FAILURE", failure)
with open_device() as device:
    launch(device, "KERNELS/ends.cpp")
print("again")
"""
    )
    process = start(script, waits=WAITS, ends=ENDS, misaligned=MISALIGNED)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    report = output.partition("HANG")[2]
    assert "core (0, 0) NCRISC (reader) is at kernel_main waits.cpp:3 > cb_wait_front" in report
    assert "core (0, 0) BRISC, TRISC0, TRISC1, TRISC2: no kernel" in report
    failure = report.partition("FAILURE")[2]
    assert "did what a Blackhole cannot do: NoCAlignmentError" in failure
    assert failure.endswith("again\n")
    assert simulator_is_gone(process.pid)


def test_endless_work_is_cut_off_by_the_timeout(start):
    script = OPEN + "with open_device() as device:\n    launch(device, 'KERNELS/counts.cpp')\n"
    process = start(script, "--timeout", "2", counts=COUNTS)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "did not end within 2 seconds" in output
    assert "SimulatedFailure" in output
    assert simulator_is_gone(process.pid)


def test_interrupt_ends_a_running_program(start):
    script = OPEN + "with open_device() as device:\n    launch(device, 'KERNELS/counts.cpp')\n"
    process = start(script, counts=COUNTS)
    assert "launched\n" in iter(process.stdout.readline, ""), "the script ended before its launch"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=30)
    assert "KeyboardInterrupt" in output
    assert simulator_is_gone(process.pid)


def test_simulator_ends_with_a_killed_process(start):
    script = OPEN + "with open_device() as device:\n    launch(device, 'KERNELS/counts.cpp')\n"
    process = start(script, counts=COUNTS)
    assert "launched\n" in iter(process.stdout.readline, ""), "the script ended before its launch"
    process.kill()
    assert simulator_is_gone(process.pid)
