"""`megakernel_report.py FILE.npz`: saves what the report kernel says on every core of a simulated Blackhole.

In a process of its own: the 110 cores would slow down every later test of a shared device.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import torch

from ttsp_ros.dit.config import N16
from ttsp_ros.dit.megakernel import program
from ttsp_ros.dit.megakernel.arena import KEY_LENGTHS, ArenaLayout
from ttsp_ros.dit.megakernel.core_map import core_map
from ttsp_ros.dit.megakernel.program_spec import ProgramSpec, build_spec
from ttsp_ros.simulator.session import open_device

RISCS = 3
REPORT_WORDS = 40
FACE = 16


def planned() -> ProgramSpec:
    """The first cross and the first self block of N1.6, full size, bf16 so that words of DRAM are plain weights."""
    layout = ArenaLayout(replace(N16, n_blocks=2), KEY_LENGTHS["n1.6"], dtype_stream="bf16")
    return build_spec(layout, core_map(layout), "block", step=3)


def arena(layout: ArenaLayout) -> torch.Tensor:
    """An arena tensor in which every tile begins with two numbers of its own."""
    values = layout.new_tensor("stream")
    tiles = values.unflatten(1, (layout.n_banks, 32)).unflatten(0, (-1, 32))[:, 0, :, :2]
    numbers = torch.arange(tiles.shape[0])[:, None] * layout.n_banks + torch.arange(layout.n_banks)
    tiles.copy_(torch.stack([numbers % 256, numbers // 256], dim=-1))
    return values


def reports(spec: ProgramSpec, activations: torch.Tensor) -> np.ndarray:
    """uint32 [shards, RISCS, REPORT_WORDS] from the first face of each shard."""
    faces = activations.reshape(len(spec.core_map.all_cores()), -1, activations.shape[-1])[:, :FACE, :FACE]
    words = faces.contiguous().view(torch.int32).numpy().view(np.uint32)
    return words.reshape(len(faces), -1)[:, : RISCS * REPORT_WORDS].reshape(-1, RISCS, REPORT_WORDS)


def main(target: str) -> None:
    spec = planned()
    with open_device() as device:
        import ttnn

        io = {}
        for slot in spec.io:
            if slot.name == "arena_stream":
                io[slot.name] = program.upload(spec, slot, arena(spec.layout), device)
            elif slot.required:
                io[slot.name] = program.allocate(spec, slot, device)
        descriptor = program.materialise(spec, io, program.REPORT_KERNEL)
        ttnn.generic_op(program.io_tensors(spec, io), descriptor)
        slot = next(slot for slot in spec.io if slot.name == "activations")
        np.savez(
            target,
            reports=reports(spec, ttnn.to_torch(io["activations"])),
            cores=program.shard_cores(spec, slot),
            address=io["activations"].buffer_address(),
            near_dram=[
                [core.x, core.y] for core in device.get_optimal_dram_bank_to_logical_worker_assignment(ttnn.NOC.NOC_0)
            ],
            noc=[
                [core.x, core.y]
                for core in (
                    device.worker_core_from_logical_core(ttnn.CoreCoord(*place))
                    for place in (spec.core_map.hub, spec.core_map.hub2, spec.core_map.multicast_rectangle[1])
                )
            ],
        )


if __name__ == "__main__":
    main(sys.argv[1])
