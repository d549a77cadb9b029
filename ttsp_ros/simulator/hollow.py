"""A stand-in that builds every compute kernel as an empty one, for graph capture without dispatch.

ttnn builds the kernels of an operation even where it is not to run it, and the stand-in can't build those that use
sfpi.h's vector types (softmax, rms_norm, typecast). What does not run may as well be empty. Everything else is checked
as ever: arguments, programs, shardings, circular buffers. Hollow kernels have a cache of their own, so that no other
run finds them, and the simulator refuses to start a program in such a session (`server`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path

from ttsp_ros.simulator.toolchain import Toolchain

# Takes the place of ttnn's header of this name, which includes the kernel's own source and calls it.
EMPTY_KERNEL = """#pragma once
#include "ckernel.h"
#include "ckernel_gpr_map.h"
#include "internal/debug/fw_debug.h"
#include "llk_param_structs.h"
using namespace ckernel;
uint run_kernel() { return 0; }
"""
HEADER = "runtime/sfpi/overlay/chlkc_list.h"  # the stand-in searches its overlay first


def hollow(toolchain: Toolchain) -> Toolchain:
    """The same toolchain with empty compute kernels; made beside it where it is not there yet.

    A real SFPI builds all kernels, so with one only the cache is another. Several processes may call this at once.
    """
    name = f"hollow-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]}"
    folder = toolchain.simulator.parent / name
    if not folder.exists():
        _install(toolchain, folder)
    root = folder / "root" if toolchain.stand_in else toolchain.runtime_root
    return replace(toolchain, runtime_root=root, kernel_cache=folder / "kernel_cache")


def _install(toolchain: Toolchain, folder: Path) -> None:
    """Builds the folder beside its place and moves it there in one step; whoever comes second drops its own."""
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        (building / "kernel_cache").mkdir()
        if toolchain.stand_in:
            _make_root(toolchain.runtime_root, building / "root")
        building.chmod(0o755)
        building.rename(folder)
    except OSError:
        if not folder.exists():
            raise
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _make_root(original: Path, root: Path) -> None:
    """The stand-in's runtime folder once more: its compiler copied, with HEADER, everything else the same links."""
    shutil.copytree(original / "runtime/sfpi", root / "runtime/sfpi")
    (root / HEADER).write_text(EMPTY_KERNEL)
    for entry in chain(original.iterdir(), (original / "runtime").iterdir()):
        link = root / entry.relative_to(original)
        if not link.exists():
            link.symlink_to(os.path.realpath(entry))
