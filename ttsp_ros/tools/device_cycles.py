"""Modelled cycles of a program on a simulated Blackhole, RISC by RISC.

Each kernel is wrapped in one that reads the wall clock of its core before and after. With Wolfpine's cost model on, the
clock follows the cycle costs of the ISA documentation: a floor, good for comparing designs, not a time on a card.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ttsp_ros.tenstorrent import program

if TYPE_CHECKING:
    import ttnn

RISCS = ("BRISC", "NCRISC", "unpack", "math", "pack")  # PROCESSOR_INDEX 0..4
CLOCK_HZ = 1.35e9
LOG_WORDS = 16

WRAPPER = """
#define kernel_main measured_kernel_main
#include "{path}"
#undef kernel_main
void kernel_main() {{
    auto clock = [] {{ return *reinterpret_cast<volatile uint32_t*>(RISCV_DEBUG_REG_WALL_CLOCK_L); }};
    const uint32_t begin = clock();
    measured_kernel_main();
    auto* log = reinterpret_cast<volatile uint32_t*>(get_common_arg_val<uint32_t>({position})) + 2 * PROCESSOR_INDEX;
    log[1] = clock();
    log[0] = begin;
}}
"""


def use_cost_model() -> None:
    """Switches the cost model on for the simulated Blackhole that this process opens next."""
    os.environ["TT_SIM_COST_MODEL"] = "1"


@dataclass(frozen=True)
class Cycles:
    """Cycles of one run of a program.

    Attributes:
        begin, end: int64 [cores, 5], wall clock of each core around each of RISCS; 0 where a RISC had no kernel.
    """

    begin: np.ndarray
    end: np.ndarray

    def per_core(self) -> np.ndarray:
        """int64 [cores]: from the start of a core's first RISC to the end of its last."""
        begin = np.where(self.end > 0, self.begin, np.iinfo(np.int64).max).min(axis=1)
        return self.end.max(axis=1) - begin

    @property
    def slowest(self) -> int:
        """Cycles of the slowest core."""
        return int(self.per_core().max())

    def per_risc(self) -> dict[str, int]:
        """Most cycles over the cores, for each RISC."""
        return dict(zip(RISCS, (self.end - self.begin).max(axis=0).tolist(), strict=True))


def measure(
    device: ttnn.MeshDevice,
    cores: list[program.Core],
    tensors: list[ttnn.Tensor],
    descriptor: ttnn.ProgramDescriptor,
    runs: int = 2,
) -> Cycles:
    """Runs the program `runs` times on `cores`, all that it uses, and gives the cycles of the last.

    Its kernels must be files, as `program.kernel` describes them.
    """
    import ttnn

    log = _log_tensor(device, cores)
    kernels = [_wrapped(kernel, log.buffer_address()) for kernel in descriptor.kernels]
    wrapped = ttnn.ProgramDescriptor(kernels=kernels, semaphores=descriptor.semaphores, cbs=descriptor.cbs)
    for _ in range(runs):
        program.run([log, *tensors], wrapped)
    ttnn.synchronize_device(device)
    words = ttnn.to_torch(log).reshape(len(cores), LOG_WORDS).numpy().view(np.uint32).astype(np.int64)
    ttnn.deallocate(log)
    pairs = words[:, : 2 * len(RISCS)].reshape(len(cores), len(RISCS), 2)
    return Cycles(pairs[..., 0], pairs[..., 1])


def _log_tensor(device: ttnn.MeshDevice, cores: list[program.Core]) -> ttnn.Tensor:
    import torch
    import ttnn

    shard = ttnn.ShardSpec(program.core_ranges(cores), [1, LOG_WORDS], ttnn.ShardOrientation.ROW_MAJOR)
    memory = ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shard)
    zeros = torch.zeros(1, 1, len(cores), LOG_WORDS, dtype=torch.int32)
    return ttnn.from_torch(zeros, dtype=ttnn.uint32, layout=ttnn.ROW_MAJOR_LAYOUT, device=device, memory_config=memory)


def _wrapped(kernel: ttnn.KernelDescriptor, log: int) -> ttnn.KernelDescriptor:
    import ttnn

    common = list(kernel.common_runtime_args)
    return ttnn.KernelDescriptor(
        kernel_source=WRAPPER.format(path=kernel.kernel_source, position=len(common)),
        source_type=ttnn.KernelDescriptor.SourceType.SOURCE_CODE,
        core_ranges=kernel.core_ranges,
        compile_time_args=kernel.compile_time_args,
        named_compile_time_args=kernel.named_compile_time_args,
        defines=kernel.defines,
        runtime_args=kernel.runtime_args,
        common_runtime_args=[*common, log],
        config=kernel.config,
        compiler_include_paths=[str(program.kernel_folder())],
    )
