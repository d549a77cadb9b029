"""The few helpers with which our operations describe a ttnn program.

An operation is a pure function from shapes and addresses to a `ttnn.ProgramDescriptor`, made of these helpers, and one
public function that allocates the output and calls `run`. Kernels are files below `kernels/`, named by their path
there. A core is its logical (column, row).

Names in a kernel (header `common/arguments.hpp`)::

    constexpr uint32_t rows = get_named_compile_time_arg_val("rows");  // compile_time={"rows": 5}
    const uint32_t address = COMMON_ARGUMENT(address);                 // common={"address": tensor.buffer_address()}
    const uint32_t first_row = UNIQUE_ARGUMENT(first_row);             // unique={(0, 0): {"first_row": 0}, ...}
    constexpr auto source = TensorAccessorArgs<0>();                   // tensors=[source, ...]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ttnn

Core = tuple[int, int]
Rectangle = tuple[Core, Core]  # first and last core, both within

CIRCULAR_BUFFERS = 64  # NUM_CIRCULAR_BUFFERS of Blackhole, ttnn 0.81
SEMAPHORES = 16
RUNTIME_ARGUMENT_WORDS = 4094  # unique and common together, a kernel


def kernel_folder() -> Path:
    """The folder `kernels/`: of this checkout, or share/ttsp_ros/kernels of the installation that this module is in."""
    for parent in Path(__file__).resolve().parents:
        for folder in (parent / "kernels", parent / "share/ttsp_ros/kernels"):
            if (folder / "common").is_dir():
                return folder
    raise FileNotFoundError(f"no kernels/ and no share/ttsp_ros/kernels above {__file__}; reinstall ttsp_ros")


def kernel_path(name: str) -> Path:
    """The file of the kernel `name`, a path below `kernels/` such as "nms/fold.cpp"; absolute paths are kept."""
    path = kernel_folder() / name
    if not path.is_file():
        raise FileNotFoundError(f"no kernel {name!r} in {kernel_folder()}")
    return path


def rectangles(cores: Iterable[Core]) -> list[Rectangle]:
    """`cores` as few disjoint rectangles: runs of whole rows or columns, whichever gives fewer, merged where equal.

    ttnn sends binaries and arguments a rectangle at a time, so that their number is what a launch costs.
    """
    wanted = set(cores)
    if not wanted:
        raise ValueError("a program needs a core, got none")
    by_rows = _merged_runs(wanted)
    by_columns = [((a[1], a[0]), (b[1], b[0])) for a, b in _merged_runs({(y, x) for x, y in wanted})]
    return min(by_rows, by_columns, key=len)


def _merged_runs(cores: set[Core]) -> list[Rectangle]:
    """Rectangles of runs along x that are the same in following rows y."""
    open_runs: dict[tuple[int, int], Rectangle] = {}
    done: list[Rectangle] = []
    for y in sorted({y for _, y in cores}):
        runs = _runs(sorted(x for x, row in cores if row == y))
        continued = {run: open_runs.pop(run) for run in runs if run in open_runs and open_runs[run][1][1] == y - 1}
        done += open_runs.values()
        open_runs = {run: (continued[run][0] if run in continued else (run[0], y), (run[1], y)) for run in runs}
    return sorted([*done, *open_runs.values()])


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The (first, last) of each run of consecutive ascending numbers."""
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs


def core_ranges(cores: Iterable[Core]) -> ttnn.CoreRangeSet:
    """`cores` as ttnn takes them, merged into rectangles."""
    import ttnn

    return ttnn.CoreRangeSet(
        [ttnn.CoreRange(ttnn.CoreCoord(*first), ttnn.CoreCoord(*last)) for first, last in rectangles(cores)]
    )


def grid_cores(columns: int, rows: int) -> list[Core]:
    """All cores of a grid, row by row."""
    return [(x, y) for y in range(rows) for x in range(columns)]


def reader(name: str, cores: Iterable[Core], **arguments: Any) -> ttnn.KernelDescriptor:
    """A data movement kernel on NCRISC, NoC 0; arguments as for `kernel`."""
    import ttnn

    return kernel(name, cores, ttnn.ReaderConfigDescriptor(), **arguments)


def writer(name: str, cores: Iterable[Core], **arguments: Any) -> ttnn.KernelDescriptor:
    """A data movement kernel on BRISC, NoC 1; arguments as for `kernel`."""
    import ttnn

    return kernel(name, cores, ttnn.WriterConfigDescriptor(), **arguments)


def compute(
    name: str,
    cores: Iterable[Core],
    *,
    fp32: bool = False,
    full_dst: bool = False,
    unpack_to_dst_fp32: Iterable[int] = (),
    **arguments: Any,
) -> ttnn.KernelDescriptor:
    """A compute kernel: the same source on the three TRISCs (unpack, math, pack).

    fp32: DST holds fp32 (fp32_dest_acc_en); DST then has 8 tiles (full_dst) or 4, else 16 or 8.
    full_dst: one half of DST instead of two in turn (dst_full_sync_en).
    unpack_to_dst_fp32: circular buffers of fp32 that reach DST without a loss (else they become TF32).
    """
    import ttnn

    config = ttnn.ComputeConfigDescriptor(fp32_dest_acc_en=fp32, dst_full_sync_en=full_dst)
    modes = [ttnn.UnpackToDestMode.Default] * CIRCULAR_BUFFERS
    for index in unpack_to_dst_fp32:
        if not fp32:
            raise ValueError(f"circular buffer {index} is to reach DST in fp32, but DST holds bf16: pass fp32=True")
        modes[_buffer_index(index)] = ttnn.UnpackToDestMode.UnpackToDestFp32
    config.unpack_to_dest_mode = modes
    return kernel(name, cores, config, **arguments)


def kernel(
    name: str,
    cores: Iterable[Core],
    config: Any,
    *,
    tensors: Sequence[ttnn.Tensor] = (),
    compile_time: Mapping[str, int] | None = None,
    unique: Mapping[Core, Mapping[str, int]] | None = None,
    common: Mapping[str, int] | None = None,
    defines: Mapping[str, str] | None = None,
) -> ttnn.KernelDescriptor:
    """The kernel in the file `name` below `kernels/`, on `cores`.

    tensors: those that the kernel finds through TensorAccessorArgs, in that order from <0>.
    compile_time: constants by name; other values give another binary.
    unique: runtime arguments of each core by name, the same names and order on every core.
    common: runtime arguments that all cores share, by name.
    Raises ValueError for arguments that do not fit together, FileNotFoundError for an unknown kernel.
    """
    import ttnn

    wanted = sorted(set(cores))
    unique, common = dict(unique or {}), dict(common or {})
    names = _unique_names(name, wanted, unique)
    positions = {**_positions(names), **_positions(common)}
    constants = dict(compile_time or {})
    _refuse_repeated(name, [*constants, *names, *common])
    if len(names) + len(common) > RUNTIME_ARGUMENT_WORDS:
        raise ValueError(f"{name}: {len(names) + len(common)} runtime arguments, {RUNTIME_ARGUMENT_WORDS} are possible")
    runtime = ttnn.RuntimeArgs()
    for (x, y), values in sorted(unique.items()):
        runtime[x][y] = list(values.values())
    return ttnn.KernelDescriptor(
        kernel_source=str(kernel_path(name)),
        source_type=ttnn.KernelDescriptor.SourceType.FILE_PATH,
        core_ranges=core_ranges(wanted),
        compile_time_args=[
            word for tensor in tensors for word in ttnn.TensorAccessorArgs(tensor).get_compile_time_args()
        ],
        named_compile_time_args=list({**constants, **positions}.items()),
        defines=list((defines or {}).items()),
        runtime_args=runtime,
        common_runtime_args=list(common.values()),
        config=config,
        compiler_include_paths=[str(kernel_folder())],
    )


def _unique_names(kernel_name: str, cores: Sequence[Core], unique: Mapping[Core, Mapping[str, int]]) -> list[str]:
    if not unique:
        return []
    if sorted(unique) != list(cores):
        wrong = sorted(set(unique) ^ set(cores))
        raise ValueError(f"{kernel_name}: unique arguments are needed for its cores exactly; these differ: {wrong}")
    names = list(next(iter(unique.values())))
    for core, values in unique.items():
        if list(values) != names:
            raise ValueError(f"{kernel_name}: core {core} has arguments {list(values)}, others have {names}")
    return names


def _positions(names: Iterable[str]) -> dict[str, int]:
    return {name: position for position, name in enumerate(names)}


def _refuse_repeated(kernel_name: str, names: Sequence[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{kernel_name}: the arguments {repeated} are given twice (compile_time, unique and common)")


def circular_buffer(
    index: int,
    cores: Iterable[Core],
    data_format: ttnn.DataType,
    page_size: int,
    pages: int = 2,
    aliases: Mapping[int, int] | None = None,
) -> ttnn.CBDescriptor:
    """Circular buffer `index` of `pages` pages of `page_size` bytes in the L1 of each of `cores`.

    aliases: further indices on the same memory, each with its own page size.
    """
    import ttnn

    total = page_size * pages
    views = {index: page_size, **(aliases or {})}
    for view, size in views.items():
        if size <= 0 or total % size or size % 16:
            raise ValueError(
                f"circular buffer {view}: pages of {size} bytes in a buffer of {total}; a page is a positive "
                f"multiple of 16 bytes and divides the buffer"
            )
    return ttnn.CBDescriptor(
        total_size=total,
        core_ranges=core_ranges(cores),
        format_descriptors=[
            ttnn.CBFormatDescriptor(buffer_index=_buffer_index(view), data_format=data_format, page_size=size)
            for view, size in views.items()
        ],
    )


def _buffer_index(index: int) -> int:
    if not 0 <= index < CIRCULAR_BUFFERS:
        raise ValueError(f"circular buffer {index}; 0 to {CIRCULAR_BUFFERS - 1} exist")
    return index


def semaphore(index: int, cores: Iterable[Core], value: int = 0) -> ttnn.SemaphoreDescriptor:
    """Semaphore `index` in the L1 of each of `cores`, `value` at the start of each run."""
    import ttnn

    if not 0 <= index < SEMAPHORES:
        raise ValueError(f"semaphore {index}; 0 to {SEMAPHORES - 1} exist")
    return ttnn.SemaphoreDescriptor(id=index, core_ranges=core_ranges(cores), initial_value=value)


def run(tensors: Sequence[ttnn.Tensor], descriptor: ttnn.ProgramDescriptor) -> ttnn.Tensor:
    """Launches the program; `tensors` are all it uses, at least two, the output last, which is returned."""
    import ttnn

    if len(tensors) < 2:
        raise ValueError(f"a program needs an input and an output tensor, got {len(tensors)}")
    return ttnn.generic_op(list(tensors), descriptor)


def noc_coordinates(device: ttnn.MeshDevice, cores: Iterable[Core]) -> list[Core]:
    """Where the NoC finds each logical core, (x, y) as get_noc_addr takes them."""
    import ttnn

    found = [device.worker_core_from_logical_core(ttnn.CoreCoord(*core)) for core in cores]
    return [(core.x, core.y) for core in found]
