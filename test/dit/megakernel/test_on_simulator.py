"""The plan as ttnn objects, on a simulated Blackhole."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from megakernel_cases import full_size
from megakernel_report import REPORT_WORDS, RISCS, arena, planned

from ttsp_ros.dit.megakernel import block_float, program
from ttsp_ros.dit.megakernel.arena import KEY_LENGTHS, ArenaLayout, as_bfp8
from ttsp_ros.dit.megakernel.buffers import SpecError
from ttsp_ros.dit.megakernel.core_map import NEAR_DRAM, Role, core_map
from ttsp_ros.dit.megakernel.program_spec import build_spec
from ttsp_ros.dit.megakernel.tensors import IoSlot

#: Seconds; the 110 cores take about one of these minutes on an idle machine, several on a busy one.
RUN_LIMIT = 600
pytestmark = pytest.mark.timeout(RUN_LIMIT + 60)


@pytest.fixture(scope="module")
def reported(tmp_path_factory):
    """What every core said; a run of its own process, since 110 cores would slow down the session's device."""
    target = tmp_path_factory.mktemp("report") / "report.npz"
    script = Path(__file__).with_name("megakernel_report.py")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    command = [sys.executable, str(script), str(target)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=RUN_LIMIT, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return np.load(target)


def by_core(reported) -> dict[tuple[int, int], np.ndarray]:
    """uint32 [RISCS, REPORT_WORDS] of each core."""
    return {(int(x), int(y)): words for (x, y), words in zip(reported["cores"], reported["reports"], strict=True)}


def test_every_core_was_told_what_the_plan_says(reported):
    spec = planned()
    reports = by_core(reported)
    assert reported["reports"].shape == (110, RISCS, REPORT_WORDS) and set(reports) == set(spec.core_map.all_cores())
    roles = {Role.READER: 1, Role.HUB: 2, Role.HUB2: 2, Role.COMPUTE: 4, Role.SPARE: 0}
    offsets = spec.layout.offsets_table()
    per_core = spec.per_core_args
    hub, hub2, last = (int(x) + (int(y) << 16) for x, y in reported["noc"])
    assert hub != hub2 != last
    for core, riscs in reports.items():
        for risc, words in enumerate(riscs, start=1):
            expected = [
                risc,
                roles[spec.core_map.role_of[core]],
                *per_core[core],
                spec.layout.config.n_blocks,
                spec.named_args["bytes_weights"],
                int(reported["address"]),
                len(offsets),
                offsets[-1],
                spec.step,
                hub,
                hub2,
                last,
            ]
            assert words[:16].tolist() == expected, (core, risc)


def test_every_core_finds_its_weights_where_the_plan_says(reported):
    """First words of the first and last K-block of each piece, read out of DRAM by the core that owns it."""
    spec = planned()
    layout = spec.layout
    packed = arena(layout)
    read = 0
    for core, riscs in by_core(reported).items():
        found = riscs[0, 16:].tolist()
        expected = [0] * len(found)
        index = spec.per_core_args[core][0]
        for i, op in enumerate(layout.stream_ops):
            if spec.core_map.role_of[core] is Role.COMPUTE and index < op.n_cores:
                for end, k_block in enumerate((0, op.k_blocks - 1)):
                    tile = layout.read_block(packed, op, index, k_block)[0, 0].contiguous()
                    expected[2 * i + end] = int(tile.view(torch.int32)[0, 0]) & 0xFFFFFFFF
                    read += 1
        assert found == expected, core
    assert read == 2 * (32 + 7 * 96)


def test_readers_sit_where_ttnn_would_put_them(reported):
    assert tuple((int(x), int(y)) for x, y in reported["near_dram"]) == NEAR_DRAM


def awkward_tiles() -> np.ndarray:
    """float32 [128, 32, 32]: many magnitudes, ties, saturation, zeros of both signs, denormals."""
    generator = np.random.default_rng(0)
    spread = generator.standard_normal(64 * 1024) * 10.0 ** generator.integers(-6, 6, 64 * 1024)
    ties = generator.integers(-(2**10), 2**10, 64 * 1024)
    values = np.concatenate([spread, ties]).astype(np.float32)
    values[:100] = 0
    values[100:132] = -0.0
    values[300:316] = 1e-40
    values[600:616] = np.float32(1.9999999)
    return values.reshape(-1, 32, 32)


def test_block_float_is_ttnns_to_the_bit(device):
    """Against the packer inside ttnn, bytes and values, and against the public conversion of a tensor."""
    import ttnn

    tiles = awkward_tiles()
    words = ttnn._ttnn.bfp_utils.pack_bfp8(tiles.reshape(-1), row_major_input=True)
    encoded = words.view(np.uint8).reshape(-1, block_float.TILE_BYTES)
    assert np.array_equal(block_float.encode(tiles), encoded)
    assert np.array_equal(
        block_float.decode(encoded), ttnn._ttnn.bfp_utils.unpack_bfp8(words, row_major_output=True).reshape(-1, 32, 32)
    )
    tensor = torch.from_numpy(tiles.reshape(-1, 64))
    converted = ttnn.to_torch(ttnn.from_torch(tensor, dtype=ttnn.bfloat8_b, layout=ttnn.TILE_LAYOUT))
    assert torch.equal(converted.float(), as_bfp8(tensor))


def test_a_tensor_that_is_not_as_planned_is_refused(device):
    import ttnn

    def slot(**changes):
        return IoSlot(
            **{"name": "chunk", "required": True, "shape": (64, 32), "dtype": "fp32", "purpose": "", **changes}
        )

    tensor = ttnn.from_torch(torch.zeros(64, 32), dtype=ttnn.float32, layout=ttnn.TILE_LAYOUT, device=device)
    program.check_tensor(slot(layout="tile"), tensor)
    for changes, message in (
        ({"layout": "row_major"}, "layout is Layout.TILE, must be Layout.ROW_MAJOR"),
        ({"layout": "tile", "shape": (64, 64)}, r"tensor chunk: shape is \(64, 32\), must be \(64, 64\)"),
        ({"layout": "tile", "dtype": "bf16"}, "dtype is DataType.FLOAT32, must be DataType.BFLOAT16"),
        ({"layout": "tile", "placement": "l1_all", "shard_rows": 64}, r"shard is None, must be \(64, 32\)"),
    ):
        with pytest.raises(SpecError, match=message):
            program.check_tensor(slot(**changes), tensor)


def test_missing_tensors_fail_before_ttnn_is_asked_for_anything():
    spec = planned()
    with pytest.raises(SpecError, match=r"lacks: \['residual', 'activations'"):
        program.materialise(spec, {}, program.REPORT_KERNEL)


@pytest.mark.parametrize(("version", "shape", "dtype"), [("n1.5", "full", "bfp8_b"), ("n1.6", "basic", "bf16")])
def test_ttnn_accepts_the_program_of_a_whole_call(device, version, shape, dtype):
    """All tensors of two blocks of full size, allocated by ttnn where the plan puts them; nothing runs."""
    layout = ArenaLayout(full_size(version), KEY_LENGTHS[version], dtype_stream=dtype)
    spec = build_spec(layout, core_map(layout), "steps4", shape=shape)
    io = {slot.name: program.allocate(spec, slot, device) for slot in spec.io if slot.required}
    made = program.materialise(spec, io, program.REPORT_KERNEL)
    assert (len(made.kernels), len(made.cbs), len(made.semaphores)) == (3 * 4, len(spec.buffers), len(spec.semaphores))
    ordered = program.io_tensors(spec, io)
    assert len(ordered) == len(io) and ordered[-1].buffer_address() == io["chunk"].buffer_address()
    common = spec.common_args({name: tensor.buffer_address() for name, tensor in io.items()})
    for kernel in made.kernels:
        assert list(kernel.common_runtime_args) == common
        names = dict(kernel.named_compile_time_args)
        assert {flag for flag in spec.flags if names[flag]} in ({"is_reader"}, {"is_hub"}, {"is_compute"}, set())
        assert len(names) == len(spec.named_args) + 3 + 8
    groups = {tuple(dict(kernel.named_compile_time_args)[flag] for flag in spec.flags) for kernel in made.kernels}
    assert len(groups) == 4
    assert program.shard_cores(spec, spec.io[1]) == list(spec.core_map.all_cores())
