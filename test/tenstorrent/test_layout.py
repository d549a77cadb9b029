"""The Python layouts and the kernels' layout.hpp describe the same bytes: a C++ compiler is asked."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ttsp_ros.tenstorrent import layout

HEADER = Path(__file__).parents[2] / "kernels" / "common" / "layout.hpp"
STRUCTS = {
    "Record": (layout.RECORD_FIELDS, layout.RECORD_BYTES),
    "Params": (layout.PARAMS_FIELDS, layout.PARAMS_BYTES),
    "Header": (layout.HEADER_FIELDS, layout.HEADER_BYTES),
}


def _compile(assertions: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    compiler = shutil.which("g++") or shutil.which("riscv64-unknown-elf-g++")
    assert compiler, "no C++ compiler: the simulator's setup installs riscv64-unknown-elf-g++"
    source = folder / "check.cpp"
    source.write_text(f'#include "{HEADER}"\n' + "".join(f"static_assert({a});\n" for a in assertions))
    command = [compiler, "-std=c++17", "-fsyntax-only", str(source)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _struct_assertions() -> list[str]:
    lines = []
    for name, (fields, size) in STRUCTS.items():
        lines.append(f"sizeof(ttsp::{name}) == {size}")
        lines += [f"offsetof(ttsp::{name}, {field}) == {4 * i}" for i, field in enumerate(fields)]
    return lines


def _constants() -> dict[str, str]:
    return dict(re.findall(r"inline constexpr uint32_t (\w+) = ([^;]+);", HEADER.read_text()))


def test_every_constant_of_the_header_has_an_equal_in_python(tmp_path):
    assertions = [f"ttsp::{name} == {getattr(layout, name)}u" for name in _constants()]
    assert len(assertions) > 10
    result = _compile(assertions, tmp_path)
    assert result.returncode == 0, result.stderr


def test_fields_and_sizes_agree(tmp_path):
    result = _compile(_struct_assertions(), tmp_path)
    assert result.returncode == 0, result.stderr


def test_functions_agree(tmp_path):
    rows = [f"ttsp::first_half({n}) == {layout.SlotMap(n, 64, n, 1).split}" for n in range(1, 12)]
    word = int(np.uint32(0x3F80 << 16 | 0x1234))
    result = _compile([*rows, f"ttsp::candidate_word(0x3f80, 0x1234) == {word}u"], tmp_path)
    assert result.returncode == 0, result.stderr


def test_a_disagreement_would_be_seen(tmp_path):
    assert _compile(["ttsp::RECORD_BYTES == 15"], tmp_path).returncode != 0


def test_params_words():
    words = layout.Params(threshold_bits=7, top=1, bottom=2, left=3, right=4, bucket=5, limit=6).words()
    assert words.tolist() == [7, 1, 2, 3, 4, 5, 6] + [0] * 9


@pytest.mark.parametrize(("height", "rows"), [(480, 5), (480, 4), (24, 1), (16, 3), (8, 8), (40, 16)])
def test_slots_cover_every_row_once_in_order(height, rows):
    slot_map = layout.SlotMap(height, 64, rows, 63)
    bounds = [slot_map.bounds(s) for s in range(slot_map.slots)]
    covered = [y for first, end in bounds for y in range(first, end)]
    assert covered == list(range(height))
    assert slot_map.first_rows().tolist() == [b[0] for b in bounds]


def test_candidates_decode_in_raster_order_and_report_overflow():
    slot_map = layout.SlotMap(height=4, width=64, rows=4, capacity=2)
    words = np.zeros((2, 3), np.uint32)
    words[0] = [5, 0x3F00 << 16 | 3, 0x3F10 << 16 | (64 + 9)]
    words[1] = [1, 0x3F20 << 16 | 63, 0xFFFFFFFF]
    found = layout.decode_candidates(words, slot_map)
    assert found.y.tolist() == [0, 1, 2]
    assert found.x.tolist() == [3, 9, 63]
    assert found.score_bits.tolist() == [0x3F00, 0x3F10, 0x3F20]
    assert found.overflowed == 1
