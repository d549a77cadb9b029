"""Modelled cycles: of kernels alone, the same in every run."""

import pytest
import torch

from ttsp_ros.simulator.cycles import measure
from ttsp_ros.simulator.toolchain import SimulatorError
from ttsp_ros.tenstorrent import program

CORES = [(0, 0), (1, 0)]


def negating(device, rows_per_core):
    """A function that launches examples/negate.cpp on two cores."""
    import ttnn

    values = torch.ones(1, 1, 2 * rows_per_core, 64).bfloat16()
    source = ttnn.from_torch(values, layout=ttnn.ROW_MAJOR_LAYOUT, device=device)
    target = ttnn.empty_like(source)
    kernel = program.reader(
        "examples/negate.cpp",
        CORES,
        tensors=[source, target],
        compile_time={"row_bytes": 128},
        unique={core: {"first_row": rows_per_core * i, "rows": rows_per_core} for i, core in enumerate(CORES)},
        common={"input": source.buffer_address(), "output": target.buffer_address()},
    )
    scratch = program.circular_buffer(0, CORES, ttnn.bfloat16, page_size=128, pages=1)
    descriptor = ttnn.ProgramDescriptor(kernels=[kernel], cbs=[scratch], semaphores=[])
    return lambda: program.run([source, target], descriptor)


@pytest.mark.simulator(cycles=True)
def test_launches_are_measured_to_the_cycle(device):
    short, long = negating(device, 2), negating(device, 4)
    first, second, third = measure(device, lambda: (short(), short(), long()))
    assert measure(device, long) == [third]
    assert first == second
    assert [(risc.core, risc.risc, risc.start) for risc in third.riscs] == [(core, "NCRISC", 0) for core in CORES]
    # A row is 32 words, each loaded, flipped and stored: a load is there 8 cycles later at the soonest.
    rows = 2
    assert third.span - second.span > rows * 32 * 8
    assert third.riscs[0].instructions - second.riscs[0].instructions > rows * 32 * 3
    assert third.riscs[0].load_use > second.riscs[0].load_use


def test_measuring_without_a_cost_model_explains_itself(device):
    with pytest.raises(SimulatorError, match="simulator run --cycles"):
        measure(device, lambda: None)
