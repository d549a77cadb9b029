"""Reader, compute and writer: the FPU to bf16 rounding, the raw SFPU bit for bit (kernels/examples)."""

import pytest
import torch

from ttsp_ros.tenstorrent import program

CORE = [(0, 0)]


def numbers(*shape, seed, dtype=torch.bfloat16):
    return torch.randn(1, 1, *shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def compute(device, kernel, left, right, shape, tiles, **options):
    """What `kernel` makes of the tiles of left and right, as torch [1, 1, *shape]."""
    import ttnn

    dtype = ttnn.float32 if left.dtype == torch.float32 else ttnn.bfloat16
    page = 32 * 32 * left.element_size()
    a, b = (ttnn.from_torch(values, dtype=dtype, layout=ttnn.TILE_LAYOUT, device=device) for values in (left, right))
    out = ttnn.allocate_tensor_on_device(
        ttnn.Shape([1, 1, *shape]), dtype, ttnn.TILE_LAYOUT, device, ttnn.DRAM_MEMORY_CONFIG
    )
    results = shape[0] * shape[1] // 32**2
    kernels = [
        program.reader(
            "examples/read_two.cpp",
            CORE,
            tensors=[a, b],
            common={"left": a.buffer_address(), "right": b.buffer_address(), "tiles": tiles},
        ),
        program.compute(f"examples/{kernel}.cpp", CORE, common={"tiles": tiles}, **options),
        program.writer(
            "examples/write.cpp", CORE, tensors=[out], common={"output": out.buffer_address(), "tiles": results}
        ),
    ]
    buffers = [program.circular_buffer(index, CORE, dtype, page, pages=2) for index in (0, 1, 16)]
    descriptor = ttnn.ProgramDescriptor(kernels=kernels, cbs=buffers, semaphores=[])
    return ttnn.to_torch(program.run([a, b, out], descriptor))


def test_fpu_adds_a_stream_of_tiles(device):
    left, right = numbers(32, 160, seed=0), numbers(32, 160, seed=1)
    got = compute(device, "add", left, right, (32, 160), tiles=5)
    torch.testing.assert_close(got, left + right, rtol=2**-7, atol=2**-7)


def test_fpu_multiplies_and_accumulates(device):
    left, right = numbers(32, 96, seed=2), numbers(96, 32, seed=3)
    got = compute(device, "matmul", left, right, (32, 32), tiles=3, fp32=True)
    torch.testing.assert_close(got.float(), left.float() @ right.float(), rtol=2**-7, atol=2**-4)


def test_sfpu_swap_is_minimum_and_maximum(device):
    left, right = numbers(32, 32, seed=4), numbers(32, 32, seed=5)
    got = compute(device, "min_max", left, right, (32, 64), tiles=1)
    assert torch.equal(got, torch.cat([torch.minimum(left, right), torch.maximum(left, right)], dim=-1))


def test_sfpu_rounds_fp32_as_torch_does(device):
    left, right = (numbers(32, 32, seed=seed, dtype=torch.float32) for seed in (6, 7))
    got = compute(device, "multiply_add", left, right, (32, 32), tiles=1, fp32=True, unpack_to_dst_fp32=[0, 1])
    assert torch.equal(got, left * right + left)


def test_fp32_needs_fp32_in_dst():
    with pytest.raises(ValueError, match="pass fp32=True"):
        program.compute("examples/multiply_add.cpp", CORE, unpack_to_dst_fp32=[0])
