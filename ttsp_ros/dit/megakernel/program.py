"""The megakernel's program as ttnn objects, and its tensors on a device.

The only module of the plan that needs ttnn, and only inside its functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ttsp_ros.dit.megakernel.arena import TILE
from ttsp_ros.dit.megakernel.buffers import Buffer, SpecError
from ttsp_ros.dit.megakernel.program_spec import ProgramSpec
from ttsp_ros.dit.megakernel.tensors import IoSlot
from ttsp_ros.dit.megakernel.unified_kernel import UnifiedKernel
from ttsp_ros.tenstorrent import program as ttnn_program

if TYPE_CHECKING:
    import torch
    import ttnn

REPORT_KERNEL = "dit/report.cpp"


def materialise(spec: ProgramSpec, io: Mapping[str, ttnn.Tensor], kernel: str) -> ttnn.ProgramDescriptor:
    """The program for these tensors; `ttnn.generic_op(io_tensors(spec, io), ...)` runs it.

    Args:
        io: tensors by the names of `spec.io`; those that are not required may be left out.
        kernel: source below `kernels/`.

    Raises:
        SpecError: a tensor is missing, unknown, or of another shape, format or placement than planned.
    """
    import ttnn

    common = spec.common_args({name: tensor.buffer_address() for name, tensor in io.items()})
    for slot in spec.io:
        if slot.name in io:
            check_tensor(slot, io[slot.name])
    cores = spec.core_map.all_cores()
    unified = UnifiedKernel(
        source=kernel,
        groups=spec.kernel_groups,
        named_args={**spec.named_args, **_noc_args(spec, io["activations"].device())},
        per_core_args=spec.per_core_args,
        common_args=tuple(common),
        exact_fp32=_exact_fp32(spec),
    )
    return ttnn.ProgramDescriptor(
        kernels=unified.descriptors(),
        semaphores=[ttnn_program.semaphore(semaphore.index, cores) for semaphore in spec.semaphores],
        cbs=[_circular_buffer(spec, buffer, io) for buffer in spec.buffers],
    )


def io_tensors(spec: ProgramSpec, io: Mapping[str, ttnn.Tensor]) -> list[ttnn.Tensor]:
    """The tensors as `ttnn.generic_op` takes them: in order, what the program writes last at the end."""
    output = {"block": "residual", "step": "head_out", "steps4": "chunk"}[spec.variant]
    names = [slot.name for slot in spec.io if slot.name in io and slot.name != output]
    return [io[name] for name in [*names, output]]


def allocate(spec: ProgramSpec, slot: IoSlot, device: ttnn.MeshDevice) -> ttnn.Tensor:
    """A tensor for a slot, with whatever its memory holds."""
    import ttnn

    return ttnn.allocate_tensor_on_device(
        ttnn.Shape(list(slot.shape)), _dtype(slot.dtype), _layout(slot), device, memory_config(spec, slot)
    )


def upload(spec: ProgramSpec, slot: IoSlot, values: torch.Tensor, device: ttnn.MeshDevice) -> ttnn.Tensor:
    """A tensor for a slot with these values; ttnn converts them to the slot's format."""
    import ttnn

    if tuple(values.shape) != slot.shape:
        raise SpecError(f"{slot.name}: got values of shape {tuple(values.shape)}, must be {slot.shape}")
    return ttnn.from_torch(
        values,
        dtype=_dtype(slot.dtype),
        layout=_layout(slot),
        device=device,
        memory_config=memory_config(spec, slot),
    )


def memory_config(spec: ProgramSpec, slot: IoSlot) -> ttnn.MemoryConfig:
    """Where a slot's tensor lies: interleaved DRAM, a shard a DRAM bank, or a shard in the L1 of each core."""
    import ttnn

    if slot.placement == "dram":
        return ttnn.DRAM_MEMORY_CONFIG
    if slot.placement == "dram_banks":
        banks = [(bank, 0) for bank in range(spec.layout.n_banks)]
        shard = ttnn.ShardSpec(ttnn_program.core_ranges(banks), [slot.shape[0], TILE], ttnn.ShardOrientation.ROW_MAJOR)
        return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.WIDTH_SHARDED, ttnn.BufferType.DRAM, shard)
    cores = spec.core_map.core_sets["compute" if slot.placement == "l1_compute" else "all"]
    ranges = ttnn_program.core_ranges(cores)
    shard = ttnn.ShardSpec(ranges, [slot.shard_rows, slot.shape[1]], ttnn.ShardOrientation.ROW_MAJOR)
    return ttnn.MemoryConfig(ttnn.TensorMemoryLayout.HEIGHT_SHARDED, ttnn.BufferType.L1, shard)


def shard_cores(spec: ProgramSpec, slot: IoSlot) -> list[tuple[int, int]]:
    """The core of each shard of an L1 tensor, in the order of its rows."""
    import ttnn

    grid = memory_config(spec, slot).shard_spec.grid
    return [(core.x, core.y) for core in ttnn.corerange_to_cores(grid, row_wise=True)]


def _dtype(name: str) -> ttnn.DataType:
    import ttnn

    return {"bf16": ttnn.bfloat16, "fp32": ttnn.float32, "bfp8_b": ttnn.bfloat8_b}[name]


def _layout(slot: IoSlot) -> ttnn.Layout:
    import ttnn

    return ttnn.TILE_LAYOUT if slot.layout == "tile" else ttnn.ROW_MAJOR_LAYOUT


def check_tensor(slot: IoSlot, tensor: ttnn.Tensor) -> None:
    """SpecError, naming each difference, unless the tensor is as planned: shape, format, layout and shard."""
    shard = tensor.memory_config().shard_spec
    got: dict[str, Any] = {"shape": tuple(tensor.shape), "dtype": tensor.dtype, "layout": tensor.layout}
    planned: dict[str, Any] = {"shape": slot.shape, "dtype": _dtype(slot.dtype), "layout": _layout(slot)}
    if slot.placement != "dram":
        got["shard"] = tuple(shard.shape) if shard is not None else None
        planned["shard"] = (slot.shape[0], TILE) if slot.placement == "dram_banks" else (slot.shard_rows, slot.shape[1])
    wrong = [f"{name} is {got[name]}, must be {planned[name]}" for name in planned if got[name] != planned[name]]
    if wrong:
        raise SpecError(f"tensor {slot.name}: {'; '.join(wrong)}")


def _circular_buffer(spec: ProgramSpec, buffer: Buffer, io: Mapping[str, ttnn.Tensor]) -> ttnn.CBDescriptor:
    import ttnn

    if buffer.backing is not None:
        return ttnn.cb_descriptor_from_sharded_tensor(buffer.index, io[buffer.backing])
    cores = spec.core_map.core_sets[buffer.cores]
    return ttnn_program.circular_buffer(
        buffer.index, cores, _dtype(buffer.data_format), buffer.page_bytes, buffer.pages
    )


def _exact_fp32(spec: ProgramSpec) -> dict[tuple[int, ...], frozenset[int]]:
    """Buffers read as fp32, for each group: the compute kernel of a group is compiled for its own buffers."""
    sets = spec.core_map.core_sets
    return {
        tuple(group.flags.values()): frozenset(
            buffer.index for buffer in spec.buffers if buffer.exact_fp32 and group.cores[0] in sets[buffer.cores]
        )
        for group in spec.kernel_groups
    }


def _noc_args(spec: ProgramSpec, device: ttnn.MeshDevice) -> dict[str, int]:
    """NoC coordinates, which a kernel takes as constants: both hubs, and the corners of the multicasts."""
    first, last = spec.core_map.multicast_rectangle
    named = {"hub": spec.core_map.hub, "hub2": spec.core_map.hub2, "first": first, "last": last}
    places = ttnn_program.noc_coordinates(device, named.values())
    return {
        f"{name}_noc_{axis}": place[i] for name, place in zip(named, places, strict=True) for i, axis in enumerate("xy")
    }
