"""The kernel compiler of the simulated Blackhole.

ttnn builds kernels with SFPI, Tenstorrent's GCC, which no package registry carries. Where it is installed it is used.
Elsewhere Debian's RISC-V GCC stands in. The stand-in lives in a folder of its own that looks like ttnn's (links to its
files, plus `runtime/sfpi`) and that only simulated runs are pointed at: nothing beside ttnn changes and a card never
sees it. The folder's name carries a hash of everything it is made from: checkouts with other sources get other ones.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GCC = "riscv64-unknown-elf-g++"
COMPILER = "compiler/bin/riscv-tt-elf-g++"
SYSTEM_SFPI = Path("/opt/tenstorrent/sfpi")
PICOLIBC = Path("/usr/lib/picolibc/riscv64-unknown-elf")
SOURCES = Path(__file__).with_name("standin")
RUN_SCRIPT = Path(__file__).with_name("run.sh")
KEPT_UNUSED_SECONDS = 30 * 24 * 3600
# GCC 12 rejects static_assert(false) in a template that is never instantiated; SFPI's GCC 15 does not.
OVERLAID_HEADERS = ("api/core_local_mem.h", "api/scratchpad.h", "api/tensor/local_tensor_accessor.h")


class SimulatorError(RuntimeError):
    """The simulated Blackhole cannot be used; the message says what is wrong and what to do."""


class MissingPackages(SimulatorError):  # noqa: N818 (an error by its base)
    """Debian packages that the stand-in compiler needs are not installed."""

    def __init__(self, *packages: str) -> None:
        self.packages = packages
        names = " ".join(packages)
        super().__init__(f"missing Debian packages: {names}. Install them with `sudo apt-get install {names}`")


@dataclass(frozen=True)
class HostCompiler:
    """Debian's RISC-V GCC with the headers and the C library that it is used with."""

    gcc: Path
    version: str
    cxx_headers: Path
    cxx_target_headers: Path
    c_headers: Path
    c_library: Path


@dataclass(frozen=True)
class Toolchain:
    """What a simulated run sets in ttnn's environment: the simulator to start, its runtime folder, its kernel cache.

    `stand_in` tells whether kernels are built by Debian's GCC (no sfpi.h vector types) or by a real SFPI.
    """

    simulator: Path
    runtime_root: Path
    kernel_cache: Path
    stand_in: bool


def ttnn_folder() -> Path:
    """The folder of the installed ttnn, found without importing it."""
    spec = importlib.util.find_spec("ttnn")
    if spec is None or spec.origin is None:
        raise SimulatorError("ttnn is not installed in this Python environment; run `make setup`")
    return Path(spec.origin).parent


def wolfpine_version() -> str:
    """The version of the installed simulator."""
    try:
        return importlib.metadata.version("wolfpine")
    except importlib.metadata.PackageNotFoundError:
        raise SimulatorError("wolfpine is not installed in this Python environment; run `make setup`") from None


def wolfpine_folder() -> Path:
    """Wolfpine's own Blackhole: the description of the chip."""
    wolfpine_version()
    return Path(str(importlib.metadata.distribution("wolfpine").locate_file("framework/sim/blackhole")))


def real_sfpi() -> Path | None:
    """The folder of a real SFPI, looked for where ttnn does, or None."""
    for folder in (ttnn_folder() / "runtime/sfpi", SYSTEM_SFPI):
        if (folder / COMPILER).exists():
            return folder
    return None


def cache_folder() -> Path:
    """Where this project keeps what can be made again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ttsp_ros"


def find_host_compiler() -> HostCompiler:
    """Debian's RISC-V GCC, or MissingPackages.

    Debian ships no libstdc++ headers for bare RISC-V: the host's of the same major version are used.
    """
    gcc = shutil.which(GCC)
    if gcc is None:
        raise MissingPackages("gcc-riscv64-unknown-elf", "picolibc-riscv64-unknown-elf")
    version = subprocess.run([gcc, "-dumpfullversion"], check=True, capture_output=True, text=True).stdout.strip()
    major = version.partition(".")[0]
    libraries = [PICOLIBC / parts for parts in ("lib/release/rv32im/ilp32", "lib/rv32im/ilp32")]
    c_library = next((folder for folder in libraries if (folder / "libc.a").exists()), None)
    if c_library is None:
        raise MissingPackages("picolibc-riscv64-unknown-elf")
    cxx_headers = Path("/usr/include/c++") / major
    target_headers = next(Path("/usr/include").glob(f"*-linux-gnu/c++/{major}/bits"), None)
    if target_headers is None or not (cxx_headers / "type_traits").exists():
        raise MissingPackages(f"libstdc++-{major}-dev")
    return HostCompiler(Path(gcc), version, cxx_headers, target_headers, PICOLIBC / "include", c_library)


def prepare(install_packages: bool = False) -> Toolchain:
    """The toolchain, made ready where it is not yet: 0.2 s, then nothing. Several processes may call it at once.

    install_packages: install missing Debian packages where this runs as root. Else they raise MissingPackages.
    """
    sfpi = real_sfpi()
    compiler = None if sfpi else _host_compiler_installing() if install_packages else find_host_compiler()
    folder = cache_folder() / f"simulator-{_fingerprint(compiler)}"
    if not folder.exists():
        with _locked(cache_folder() / "simulator.lock"):
            if not folder.exists():
                _install(compiler, folder)
                _remove_unused(keep=folder)
    os.utime(folder)
    return Toolchain(
        simulator=folder / "blackhole",
        runtime_root=ttnn_folder() if sfpi else folder / "root",
        kernel_cache=folder / "kernel_cache",
        stand_in=sfpi is None,
    )


def _host_compiler_installing() -> HostCompiler:
    for _ in range(2):  # which libstdc++ is needed shows only when GCC is there
        try:
            return find_host_compiler()
        except MissingPackages as missing:
            if os.geteuid() != 0 or shutil.which("apt-get") is None:
                raise
            with _locked(cache_folder() / "simulator.lock"):
                _apt_install(missing.packages)
    return find_host_compiler()


def _apt_install(packages: tuple[str, ...]) -> None:
    print(f"simulator: installing Debian packages {' '.join(packages)}", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(["apt-get", "-qq", *command], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SimulatorError(f"`apt-get install {' '.join(packages)}` failed:\n{done.stdout}{done.stderr}")


def _fingerprint(compiler: HostCompiler | None) -> str:
    """Of all that the folder is made from: these sources, ttnn, Wolfpine and the compiler (None: a real SFPI)."""
    versions = [(ttnn_folder(), importlib.metadata.version("ttnn")), (wolfpine_folder(), wolfpine_version())]
    digest = hashlib.sha256(f"{compiler} {versions}".encode())
    for source in sorted([Path(__file__), RUN_SCRIPT, *(path for path in SOURCES.rglob("*") if path.is_file())]):
        digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:12]


def _install(compiler: HostCompiler | None, folder: Path) -> None:
    """Builds the folder beside its place and moves it there in one step."""
    building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        _make_simulator(building / "blackhole")
        (building / "kernel_cache").mkdir()
        if compiler is not None:
            print(f"simulator: no SFPI found, {GCC} {compiler.version} stands in ({folder})", flush=True)
            _link_ttnn(building / "root")
            _make_stand_in(compiler, building / "root/runtime/sfpi")
        building.chmod(0o755)
        building.rename(folder)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise


def _make_simulator(folder: Path) -> None:
    """What TT_METAL_SIMULATOR points at: the description of the chip and a script that starts it."""
    folder.mkdir()
    (folder / "soc_descriptor.yaml").symlink_to(wolfpine_folder() / "soc_descriptor.yaml")
    shutil.copy(RUN_SCRIPT, folder / RUN_SCRIPT.name)
    (folder / RUN_SCRIPT.name).chmod(0o755)


def _make_stand_in(compiler: HostCompiler, sfpi: Path) -> None:
    shutil.copytree(SOURCES / "include", sfpi / "include")
    (sfpi / COMPILER).parent.mkdir(parents=True)
    shutil.copy(SOURCES / "riscv-tt-elf-g++", sfpi / COMPILER)
    (sfpi / COMPILER).chmod(0o755)
    (sfpi / "paths.sh").write_text(
        f"gcc='{compiler.gcc}'\ncxx_headers='{compiler.cxx_headers}'\n"
        f"c_headers='{compiler.c_headers}'\nc_library='{compiler.c_library}'\n"
    )
    _make_freestanding(compiler.cxx_target_headers, sfpi / "cxx/bits")
    _overlay_headers(sfpi / "overlay")
    _compile_substitutes(sfpi)


def _link_ttnn(root: Path) -> None:
    """Makes `root` a folder of links to what is in ttnn's, `runtime` excepted, which is to take our sfpi."""
    ttnn = ttnn_folder()
    (root / "runtime").mkdir(parents=True)
    for entry in ttnn.iterdir():
        if entry.name not in ("runtime", "__pycache__"):
            (root / entry.name).symlink_to(entry)
    for entry in (ttnn / "runtime").iterdir():
        if entry.name != "sfpi":
            (root / "runtime" / entry.name).symlink_to(entry)


def _make_freestanding(host_configuration: Path, folder: Path) -> None:
    """libstdc++'s target configuration without an operating system: no threads, futexes and thread-local storage."""
    folder.mkdir(parents=True)
    for header in host_configuration.glob("*.h"):
        shutil.copy(header, folder)
    (folder / "os_defines.h").write_text("#pragma once\n")
    shutil.copy(folder / "gthr-single.h", folder / "gthr-default.h")
    configuration = folder / "c++config.h"
    text = configuration.read_text()
    for feature in ("_GLIBCXX_HAS_GTHREADS", "_GLIBCXX_HAVE_LINUX_FUTEX", "_GLIBCXX_HAVE_TLS"):
        text = text.replace(f"#define {feature} 1", f"#undef {feature}")
    configuration.write_text(text)


def _overlay_headers(folder: Path) -> None:
    for name in OVERLAID_HEADERS:
        header = folder / name
        header.parent.mkdir(parents=True, exist_ok=True)
        text = (ttnn_folder() / "tt_metal/hw/inc" / name).read_text()
        header.write_text(text.replace("static_assert(false", "static_assert(true"))


def _compile_substitutes(sfpi: Path) -> None:
    options = ["-Os", "-fno-exceptions", "-fno-rtti", "-fno-tree-loop-distribute-patterns"]
    command: list[str | Path] = [sfpi / COMPILER, *options, "-c", SOURCES / "substitutes.cpp", "-o", sfpi / "standin.o"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SimulatorError(f"the stand-in compiler does not work here:\n{done.stderr}")


def _remove_unused(keep: Path) -> None:
    """Removes stand-ins, with the kernels they built, that no `setup` has touched for a month."""
    for folder in keep.parent.glob("simulator-*"):
        if folder != keep and folder.is_dir() and time.time() - folder.stat().st_mtime > KEPT_UNUSED_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
