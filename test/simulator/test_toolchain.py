"""The kernel compiler is found, made and explained."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ttsp_ros.simulator import toolchain
from ttsp_ros.simulator.environment import Grid
from ttsp_ros.simulator.toolchain import MissingPackages, SimulatorError, prepare

REPOSITORY = Path(__file__).parents[2]


def setup_command(cache: Path) -> subprocess.Popen:
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "ttsp_ros.simulator", "setup"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_concurrent_setups_make_one_complete_folder(tmp_path):
    started = [setup_command(tmp_path) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0], outputs
    assert sum("stands in" in output for output in outputs) == 1
    (folder,) = (tmp_path / "ttsp_ros").glob("simulator-*")
    assert (folder / "root/runtime/sfpi/standin.o").exists()
    assert not list((tmp_path / "ttsp_ros").glob(".building-*"))
    again = setup_command(tmp_path)
    assert again.communicate(timeout=60)[0] == ""


def test_setup_imports_neither_ttnn_nor_torch():
    script = "import sys\nfrom ttsp_ros.simulator.__main__ import main\nmain(['setup'])\n"
    script += "print({'ttnn', 'torch'} & {*sys.modules})\n"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_real_sfpi_is_used_and_left_alone(tmp_path, monkeypatch):
    sfpi = tmp_path / "sfpi"
    compiler = sfpi / toolchain.COMPILER
    compiler.parent.mkdir(parents=True)
    compiler.write_text("real")
    monkeypatch.setattr(toolchain, "SYSTEM_SFPI", sfpi)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(toolchain, "find_host_compiler", lambda: pytest.fail("the stand-in's compiler was looked for"))
    found = prepare()
    assert not found.stand_in
    assert found.runtime_root == toolchain.ttnn_folder()
    assert [path for path in sfpi.rglob("*") if path.is_file()] == [compiler]
    assert not (found.simulator.parent / "root").exists()


def test_stand_in_leaves_ttnn_alone():
    assert prepare().stand_in == (toolchain.real_sfpi() is None)
    assert not (toolchain.ttnn_folder() / "runtime/sfpi").is_symlink()
    assert prepare().runtime_root != toolchain.ttnn_folder() or toolchain.real_sfpi()


def test_missing_packages_name_the_command(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        MissingPackages, match="sudo apt-get install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf"
    ):
        toolchain.find_host_compiler()


def test_unused_folders_go_after_a_month(tmp_path):
    used, unused, keep = (tmp_path / f"simulator-{name}" for name in ("used", "unused", "keep"))
    for folder in (used, unused, keep):
        folder.mkdir()
    os.utime(unused, (0, 0))
    os.utime(keep, (0, 0))
    toolchain._remove_unused(keep)
    assert sorted(tmp_path.iterdir()) == [keep, used]


@pytest.mark.parametrize("text", ["11", "11x", "0x3", "14x10", "3x1", "11x9"])
def test_impossible_grids_are_refused(text):
    with pytest.raises(SimulatorError, match="grid"):
        Grid.parse(text)


def test_late_activation_explains_itself():
    script = "import ttnn\nfrom ttsp_ros.simulator.session import open_device\nwith open_device():\n    pass\n"
    ours = ("TT_METAL_", "TT_SIM_", "TTSP_", "WOLFPINE_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    environment |= {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "python -m ttsp_ros.simulator run -- COMMAND" in done.stderr


def test_changed_header_is_built_again(tmp_path):
    """A kernel's cached binary follows the headers that it includes, not only its own source."""
    script = """
import sys
import torch
from pathlib import Path
from ttsp_ros.simulator.session import open_device
from ttsp_ros.tenstorrent import program
with open_device() as device:
    import ttnn
    target = ttnn.from_torch(torch.zeros(1, 1, 1, 16, dtype=torch.int32), layout=ttnn.ROW_MAJOR_LAYOUT, device=device)
    core = [(0, 0)]
    kernel = program.reader(
        str(Path("arguments.cpp").absolute()), core, tensors=[target], compile_time={"row_bytes": 64},
        unique={core[0]: {"row": 0, "number": 0}}, common={"shared": 0, "output": target.buffer_address()},
        defines={"FROM_DEFINE": "0"})
    scratch = program.circular_buffer(0, core, ttnn.uint32, page_size=64, pages=1)
    program.run([target, target], ttnn.ProgramDescriptor(kernels=[kernel], cbs=[scratch], semaphores=[]))
    print("sibling says", ttnn.to_torch(target).flatten()[1].item())
"""
    source = (REPOSITORY / "kernels/examples/arguments.cpp").read_text()
    (tmp_path / "arguments.cpp").write_text(source)
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    for number in (7, 8):
        (tmp_path / "arguments_sibling.hpp").write_text(f"constexpr unsigned from_sibling = {number};\n")
        done = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        assert f"sibling says {number}" in done.stdout
