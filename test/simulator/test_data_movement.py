"""Data movement between DRAM, L1 and cores, bit for bit (kernels/examples)."""

import pytest
import torch

from ttsp_ros.tenstorrent import program


def row_major(values, device, **options):
    import ttnn

    return ttnn.from_torch(values, layout=ttnn.ROW_MAJOR_LAYOUT, device=device, **options)


def run(device, tensors, kernels, cbs, semaphores=()):
    import ttnn

    descriptor = ttnn.ProgramDescriptor(kernels=list(kernels), cbs=list(cbs), semaphores=list(semaphores))
    return ttnn.to_torch(program.run(tensors, descriptor))


@pytest.mark.parametrize("kernel", [program.reader, program.writer])
def test_rows_through_dram(device, kernel):
    import ttnn

    cores = [(0, 0), (1, 0)]
    values = torch.arange(16 * 64).reshape(1, 1, 16, 64).bfloat16()
    source = row_major(values, device)
    target = ttnn.empty_like(source)
    negate = kernel(
        "examples/negate.cpp",
        cores,
        tensors=[source, target],
        compile_time={"row_bytes": 128},
        unique={core: {"first_row": 8 * i, "rows": 8} for i, core in enumerate(cores)},
        common={"input": source.buffer_address(), "output": target.buffer_address()},
    )
    scratch = program.circular_buffer(0, cores, ttnn.bfloat16, page_size=128, pages=1)
    assert torch.equal(run(device, [source, target], [negate], [scratch]), -values)


def test_halo_exchange_between_shards(device):
    import ttnn

    cores, rows = [(0, 0), (1, 0), (0, 1)], 4
    values = torch.arange(len(cores) * rows * 32).reshape(1, 1, -1, 32).bfloat16()

    def sharded(rows_per_core):
        shards = ttnn.ShardSpec(program.core_ranges(cores), [rows_per_core, 32], ttnn.ShardOrientation.ROW_MAJOR)
        return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shards)

    nothing = torch.zeros(1, 1, len(cores) * (rows + 1), 32).bfloat16()
    source = row_major(values, device, memory_config=sharded(rows))
    target = row_major(nothing, device, memory_config=sharded(rows + 1))
    order = [(core.x, core.y) for core in ttnn.corerange_to_cores(program.core_ranges(cores), row_wise=True)]
    following = program.noc_coordinates(device, order[1:] + order[:1])
    exchange = program.reader(
        "examples/halo_exchange.cpp",
        cores,
        compile_time={"row_bytes": 64, "rows": rows},
        unique={core: {"next_x": x, "next_y": y} for core, (x, y) in zip(order, following, strict=True)},
        common={"input": source.buffer_address(), "output": target.buffer_address()},
    )
    got = run(device, [source, target], [exchange], []).reshape(len(cores), rows + 1, 32)
    shards = values.reshape(len(cores), rows, 32)
    assert torch.equal(got[:, :rows], shards)
    assert torch.equal(got[:, rows], shards.roll(-1, 0)[:, 0])


def test_semaphores_pass_a_token_round(device):
    import ttnn

    cores = [(0, 0), (1, 0), (2, 0)]
    target = row_major(torch.zeros(1, 1, 1, 16, dtype=torch.int32), device)
    following = program.noc_coordinates(device, cores[1:] + cores[:1])
    numbers = [3, 50, 700]
    ring = program.writer(
        "examples/token_ring.cpp",
        cores,
        tensors=[target],
        compile_time={"page_bytes": 64, "arrived": 0},
        unique={
            core: {"first": core == cores[0], "next_x": x, "next_y": y, "number": number}
            for core, (x, y), number in zip(cores, following, numbers, strict=True)
        },
        common={"output": target.buffer_address()},
    )
    mailbox = program.circular_buffer(0, cores, ttnn.uint32, page_size=64, pages=1)
    got = run(device, [target, target], [ring], [mailbox], [program.semaphore(0, cores)])
    assert got.flatten()[0] == sum(numbers)


def test_arguments_of_every_kind(device):
    import ttnn

    cores = [(0, 0), (1, 0)]
    target = row_major(torch.zeros(1, 1, 2, 16, dtype=torch.int32), device)
    kernel = program.reader(
        "examples/arguments.cpp",
        cores,
        tensors=[target],
        compile_time={"row_bytes": 64},
        unique={core: {"row": i, "number": 100 + i} for i, core in enumerate(cores)},
        common={"shared": 2**32 - 1, "output": target.buffer_address()},
        defines={"FROM_DEFINE": "77"},
    )
    scratch = program.circular_buffer(0, cores, ttnn.uint32, page_size=64, pages=1)
    got = run(device, [target, target], [kernel], [scratch]).reshape(2, 16)[:, :5]
    assert got.tolist() == [[77, 1234, 64, 100, -1], [77, 1234, 64, 101, -1]]
