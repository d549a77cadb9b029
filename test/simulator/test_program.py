"""The helpers that describe programs, without a device."""

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttsp_ros.tenstorrent import program

cores = st.sets(st.tuples(st.integers(0, 12), st.integers(0, 9)), min_size=1)


def covered(rectangle):
    (x0, y0), (x1, y1) = rectangle
    return [(x, y) for x in range(x0, x1 + 1) for y in range(y0, y1 + 1)]


@given(cores)
def test_rectangles_cover_the_cores_once(wanted):
    found = [core for rectangle in program.rectangles(wanted) for core in covered(rectangle)]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize(
    ("wanted", "number"),
    [
        (program.grid_cores(11, 10), 1),
        (program.grid_cores(11, 8) + [(x, 8) for x in range(8)], 2),  # 96 cores of an 11x10 grid, row by row
        ([(x, y) for x in range(11) for y in range(10) if x < 9 or y < 6], 2),  # the same, column by column
        ([(0, 0), (2, 0), (0, 2)], 3),
    ],
)
def test_rectangles_are_few(wanted, number):
    assert len(program.rectangles(wanted)) == number


def test_kernels_are_found_in_an_installation(tmp_path, monkeypatch):
    installed = tmp_path / "lib/python3.12/site-packages/ttsp_ros/tenstorrent/program.py"
    monkeypatch.setattr(program, "__file__", str(installed))
    with pytest.raises(FileNotFoundError, match="reinstall"):
        program.kernel_folder()
    share = tmp_path / "share/ttsp_ros/kernels"
    shutil.copytree(Path(__file__).parents[2] / "kernels/common", share / "common")
    assert program.kernel_folder() == share
    assert program.kernel_path("common/arguments.hpp") == share / "common/arguments.hpp"


def test_unknown_kernel_is_named():
    with pytest.raises(FileNotFoundError, match=r"no kernel 'nms/none\.cpp'"):
        program.kernel_path("nms/none.cpp")


ONE = [(0, 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"unique": {(1, 0): {"a": 1}}}, r"differ: \[\(0, 0\), \(1, 0\)\]"),
        ({"compile_time": {"a": 1}, "common": {"a": 2}}, r"\['a'\] are given twice"),
        ({"common": {f"a{i}": i for i in range(4095)}}, "4094 are possible"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        program.reader("examples/negate.cpp", ONE, **arguments)


def test_cores_must_have_the_same_arguments():
    two = [(0, 0), (1, 0)]
    with pytest.raises(ValueError, match=r"core \(1, 0\) has arguments \['b', 'a'\], others have \['a', 'b'\]"):
        program.reader("examples/negate.cpp", two, unique={two[0]: {"a": 1, "b": 2}, two[1]: {"b": 1, "a": 2}})


@pytest.mark.parametrize(
    ("index", "page_size", "aliases", "message"),
    [
        (64, 64, {}, "0 to 63 exist"),
        (0, 40, {}, "multiple of 16"),
        (0, 64, {1: 48}, "circular buffer 1: pages of 48 bytes in a buffer of 128"),
    ],
)
def test_circular_buffers_that_cannot_be_are_refused(index, page_size, aliases, message):
    import ttnn

    with pytest.raises(ValueError, match=message):
        program.circular_buffer(index, ONE, ttnn.bfloat16, page_size, aliases=aliases)


def test_circular_buffer_with_an_alias_is_one_memory():
    import ttnn

    buffer = program.circular_buffer(3, ONE, ttnn.bfloat16, page_size=2048, pages=2, aliases={4: 64})
    assert buffer.total_size == 4096
    assert [(view.buffer_index, view.page_size) for view in buffer.format_descriptors] == [(3, 2048), (4, 64)]


def test_semaphores_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="0 to 15 exist"):
        program.semaphore(16, ONE)


def test_a_program_needs_a_core():
    with pytest.raises(ValueError, match="needs a core"):
        program.rectangles([])
