"""One kernel source for all five RISCs of all cores, told apart by flags.

Cores with the same flags form a group. Each group is compiled once for NCRISC, BRISC and the TRISCs with its flags as
compile-time constants, so that `if constexpr` drops the code of other roles. Everything else that differs between cores
is a runtime argument and needs no binary of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ttsp_ros.tenstorrent.program import CIRCULAR_BUFFERS, Core, core_ranges, kernel_folder, kernel_path

if TYPE_CHECKING:
    import ttnn


@dataclass(frozen=True)
class KernelGroup:
    """Cores with the same flags, row by row."""

    flags: Mapping[str, int]
    cores: tuple[Core, ...]


def group_cores(cores: Iterable[Core], flags: Mapping[str, Collection[Core]]) -> tuple[KernelGroup, ...]:
    """The groups of `cores`, in the order in which their first core comes. A flag is 1 on the cores it maps to."""
    wanted = list(cores)
    known = set(wanted)
    for flag, members in flags.items():
        outside = sorted(set(members) - known)
        if outside:
            raise ValueError(f"flag {flag}: cores {outside} do not run the kernel")
    groups: dict[tuple[int, ...], list[Core]] = {}
    for core in wanted:
        groups.setdefault(tuple(int(core in members) for members in flags.values()), []).append(core)
    return tuple(KernelGroup(dict(zip(flags, key, strict=True)), tuple(group)) for key, group in groups.items())


@dataclass(frozen=True)
class UnifiedKernel:
    """A kernel source on groups of cores.

    Attributes:
        source: path below `kernels/`, or absolute.
        groups: of all cores that run it.
        named_args: compile-time constants that all cores share.
        per_core_args: unique runtime arguments of each core, the same for all its RISCs.
        common_args: runtime arguments that all cores share.
        exact_fp32: circular buffers, by index, that reach DST as fp32 on the cores of a group with given flags.
    """

    source: str
    groups: tuple[KernelGroup, ...]
    named_args: Mapping[str, int]
    per_core_args: Mapping[Core, tuple[int, ...]]
    common_args: tuple[int, ...]
    exact_fp32: Mapping[tuple[int, ...], frozenset[int]]

    def descriptors(self) -> list[ttnn.KernelDescriptor]:
        """NCRISC, BRISC and TRISC of each group in turn."""
        import ttnn

        made = []
        for group in self.groups:
            configs = (ttnn.ReaderConfigDescriptor(), ttnn.WriterConfigDescriptor(), self._compute_config(group))
            made += [self._descriptor(group, config) for config in configs]
        return made

    def _compute_config(self, group: KernelGroup) -> ttnn.ComputeConfigDescriptor:
        """fp32 sums in DST; HiFi2 takes bf16 x bfp8_b products whole."""
        import ttnn

        config = ttnn.ComputeConfigDescriptor(math_fidelity=ttnn.MathFidelity.HiFi2, fp32_dest_acc_en=True)
        exact = self.exact_fp32.get(tuple(group.flags.values()), frozenset())
        mode = ttnn.UnpackToDestMode
        config.unpack_to_dest_mode = [
            mode.UnpackToDestFp32 if index in exact else mode.Default for index in range(CIRCULAR_BUFFERS)
        ]
        return config

    def _descriptor(self, group: KernelGroup, config: Any) -> ttnn.KernelDescriptor:
        import ttnn

        unique = ttnn.RuntimeArgs()
        for x, y in group.cores:
            unique[x][y] = list(self.per_core_args[x, y])
        return ttnn.KernelDescriptor(
            kernel_source=str(kernel_path(self.source)),
            source_type=ttnn.KernelDescriptor.SourceType.FILE_PATH,
            core_ranges=core_ranges(group.cores),
            named_compile_time_args=[*self.named_args.items(), *group.flags.items()],
            runtime_args=unique,
            common_runtime_args=list(self.common_args),
            config=config,
            compiler_include_paths=[str(kernel_folder())],
        )
