"""What the plugin does with tests that fail, die or hang: each is reported as what it is."""

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
TESTS = """
import os, pytest, torch
from ttsp_ros.tenstorrent import program

@pytest.fixture(scope="module", autouse=True)
def shared():
    yield

@pytest.mark.simulator(grid="4x2")
def test_passes_elsewhere(device):
    assert device.compute_with_storage_grid_size().x == 4

@pytest.mark.simulator(grid="4x2")
@pytest.mark.parametrize("columns", [5])
def test_fails_elsewhere(device, columns):
    assert device.compute_with_storage_grid_size().x == columns

@pytest.mark.simulator(grid="4x2")
def test_dies_elsewhere(device):
    os._exit(3)

def test_hangs(device):
    import ttnn
    tensor = ttnn.from_torch(torch.zeros(1, 1, 1, 16), layout=ttnn.ROW_MAJOR_LAYOUT, device=device)
    kernel = program.reader(os.path.abspath("waits.cpp"), [(0, 0)])
    buffer = program.circular_buffer(0, [(0, 0)], ttnn.float32, page_size=64, pages=1)
    program.run([tensor, tensor], ttnn.ProgramDescriptor(kernels=[kernel], cbs=[buffer], semaphores=[]))
    ttnn.synchronize_device(device)

def test_comes_after(device):
    pass

@pytest.mark.device_full
def test_takes_minutes():
    assert False
"""


def test_reports(tmp_path):
    (tmp_path / "test_file.py").write_text(TESTS)
    (tmp_path / "test_other.py").write_text("def test_in_the_next_module():\n    pass\n")
    (tmp_path / "waits.cpp").write_text(
        '#include "api/dataflow/dataflow_api.h"\nvoid kernel_main() { cb_wait_front(0, 1); }'
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p ttsp_ros.simulator.pytest_plugin\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "--tb=short", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
    )
    outcomes = dict(re.findall(r"^test_\w+\.py::(\S+) (PASSED|FAILED|ERROR)", done.stdout, re.MULTILINE))
    assert outcomes == {
        "test_passes_elsewhere": "PASSED",
        "test_fails_elsewhere[5]": "FAILED",
        "test_dies_elsewhere": "FAILED",
        "test_hangs": "FAILED",
        "test_comes_after": "ERROR",
        "test_in_the_next_module": "PASSED",
    }, done.stdout + done.stderr
    assert "assert 4 == 5" in done.stdout
    assert "the child session ended with 3" in done.stdout
    assert "kernel_main waits.cpp:2 > cb_wait_front" in done.stdout
    assert "hangs since test_file.py::test_hangs" in done.stdout
    assert "1 tests left out: device_full takes minutes" in done.stdout
