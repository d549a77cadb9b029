"""Data movement on a simulated Blackhole."""

import torch

from ttsp_ros.tenstorrent import program


def test_rows_through_dram(device):
    import ttnn

    cores = [(0, 0), (1, 0)]
    values = torch.arange(16 * 64).reshape(1, 1, 16, 64).bfloat16()
    source = ttnn.from_torch(values, layout=ttnn.ROW_MAJOR_LAYOUT, device=device)
    target = ttnn.empty_like(source)
    kernel = program.reader(
        "examples/negate.cpp",
        cores,
        tensors=[source, target],
        compile_time={"row_bytes": 128},
        unique={core: {"first_row": 8 * i, "rows": 8} for i, core in enumerate(cores)},
        common={"input": source.buffer_address(), "output": target.buffer_address()},
    )
    scratch = program.circular_buffer(0, cores, ttnn.bfloat16, page_size=128, pages=1)
    program.run([source, target], ttnn.ProgramDescriptor(kernels=[kernel], semaphores=[], cbs=[scratch]))
    assert torch.equal(ttnn.to_torch(target), -values)
