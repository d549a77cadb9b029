"""The state of each RISC of a running program, for the report of a hang (simulator process)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from framework.sim.blackhole.coords import TENSIX_COORD_MAP
from framework.trace.auto import _device_probes
from framework.trace.elfdisc import REJECTED, discover

RISCS = ("brisc", "ncrisc", "trisc0", "trisc1", "trisc2")
ROLES = {"brisc": "writer", "ncrisc": "reader", "trisc0": "unpack", "trisc1": "math", "trisc2": "pack"}
FIRMWARE_END = 0x83E0  # MEM_TRISC2_FIRMWARE_BASE + SIZE of ttnn's blackhole/dev_mem_map.h; kernels lie above
COLUMNS = sorted({x for x, _ in TENSIX_COORD_MAP})
ROWS = sorted({y for _, y in TENSIX_COORD_MAP})


def logical(core: tuple[int, int]) -> tuple[int, int]:
    """The (column, row) that ttnn gives the core at these NoC coordinates."""
    return COLUMNS.index(core[0]), ROWS.index(core[1])


def program_counter(tile: Any, risc: str) -> int:
    return getattr(tile, risc).pc_register.read_uint()


def describe(device: Any, cores: Iterable[tuple[int, int]]) -> str:
    """A line for each RISC that is inside a kernel, and for each unit that waits, on the cores of the program."""
    tiles = {tile.get_coord_pair(): tile for tile in device.tensix_tiles}
    lines = []
    for core in sorted(cores, key=logical):
        tile = tiles[core]
        locate = _locator(tile)
        inside = [risc for risc in RISCS if program_counter(tile, risc) >= FIRMWARE_END]
        lines += [f"  core {logical(core)} {risc.upper()} ({ROLES[risc]}) is {locate(risc)}" for risc in inside]
        lines += [f"  core {logical(core)} {text}" for text in _waiting_units(tile)]
        idle = [risc.upper() for risc in RISCS if risc not in inside]
        if idle:
            lines.append(f"  core {logical(core)} {', '.join(idle)}: no kernel, or it has ended")
    return "\n".join(lines) + "\n"


def _waiting_units(tile: Any) -> list[str]:
    lines = []
    for unpacker in tile.tensix_coprocessor.getBackend().unpacker_units:
        waiting = unpacker.blocked_on()
        if waiting is not None:
            thread, opcode, register, bank = waiting
            lines.append(
                f"unpacker {unpacker.unpacker_id} waits with {opcode} of thread {thread} for {register} bank {bank}, "
                f"which the FPU has not given back"
            )
    return lines


def _locator(tile: Any) -> Callable[[str], str]:
    """A function that says where in its kernel a RISC is: by the debug information of the ELF that is in its L1."""
    verifier, searcher = _device_probes(type("OneTile", (), {"tensix_tiles": [tile]})())
    found = discover(verifier=verifier, searcher=searcher).elfs
    kernels = {elf.unit: elf for elf in found if elf.role == "kernel" and elf.how not in (REJECTED, "recent")}

    def locate(risc: str) -> str:
        counter = program_counter(tile, risc)
        elf = kernels.get(risc.upper())
        calls = _calls(elf.path, counter - elf.bias) if elf else ""
        return f"at {calls or hex(counter)}"

    return locate


def _calls(elf: Path, address: int) -> str:
    """The calls, from kernel_main inwards, that an address of an ELF belongs to; empty where it has no such names."""
    names = ("riscv64-unknown-elf-addr2line", "/opt/tenstorrent/sfpi/compiler/bin/riscv-tt-elf-addr2line")
    beside = f"{os.environ.get('TT_METAL_RUNTIME_ROOT')}/runtime/sfpi/compiler/bin/riscv-tt-elf-addr2line"
    tool = next(filter(None, map(shutil.which, (*names, beside))), None)
    if tool is None:
        return ""
    command = [tool, "-e", str(elf), "-f", "-i", "-C", "-s", hex(address)]
    lines = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    calls = [f"{name.partition('(')[0]} {place}" for name, place in zip(lines[::2], lines[1::2], strict=True)]
    inwards = calls[::-1]
    start = next((i for i, call in enumerate(inwards) if call.startswith("kernel_main")), None)
    return " > ".join(inwards[start:]) if start is not None else ""
