"""The program as data: sizes worked out elsewhere, limits, and what every version needs."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megakernel_cases import layouts, published

from ttsp_ros.dit.config import CONFIGS
from ttsp_ros.dit.megakernel.buffers import SHAPES, BasicBudget, FullBudget, SpecError, activation_tiles
from ttsp_ros.dit.megakernel.core_map import core_map
from ttsp_ros.dit.megakernel.program_spec import L1_USABLE_BYTES, ProgramSpec, build_spec
from ttsp_ros.dit.megakernel.tensors import VARIANTS
from ttsp_ros.dit.megakernel.unified_kernel import group_cores


def spec_of(version: str, variant: str = "steps4", shape: str = "full", **options) -> ProgramSpec:
    options.setdefault("reader_mode", "relay" if shape == "basic" else "direct")
    layout = published(version, **options)
    return build_spec(layout, core_map(layout), variant, shape=shape)


@pytest.mark.parametrize(
    ("shape", "dtype", "compute", "readers", "buffers"),
    [
        ("basic", "bfp8_b", 875_520, 366_592, 17),
        ("basic", "bf16", 909_312, 458_752, 17),
        ("full", "bfp8_b", 1_049_600, 262_144, 39),
        ("full", "bf16", 1_214_464, 262_144, 39),
    ],
)
def test_memory_equals_the_reference_figures(version, shape, dtype, compute, readers, buffers):
    """Bytes of L1 that a dry run of an independent plan of the same program gave."""
    hub = {
        "basic": {"n1.5": 466_944, "n1.6": 491_520, "n1.7": 499_712},
        "full": {"n1.5": 839_680, "n1.6": 956_416, "n1.7": 995_328},
    }
    stats = spec_of(version, shape=shape, dtype_stream=dtype).stats()
    assert stats.buffers == buffers and stats.kernel_groups == 4
    assert stats.l1_bytes["compute"] == compute and stats.l1_bytes["readers"] == readers
    assert stats.l1_bytes["hub"] == hub[shape][version] and stats.l1_bytes["spare"] == 262_144


@pytest.mark.parametrize(("shape", "slots"), [("basic", 48), ("full", 49)])
def test_tensors_and_arguments_of_n16(shape, slots):
    spec = spec_of("n1.6", shape=shape)
    stats = spec.stats()
    assert stats.io_slots == slots and stats.per_core_words == 5
    assert stats.common_words == slots + 2 + 4 * 32 + 6
    assert len(spec.common_args({slot.name: 64 for slot in spec.io})) == stats.common_words


def test_named_arguments_by_kind():
    """The reference plan has 140 in the full program: 42 of structure and places, a number and a size of 39 buffers,
    13 semaphores, 5 for tail and hub, 2 for the offsets table. The 147 here differ in

    * structure and places, 36: six coordinates of hub and multicasts less (they come in as NoC coordinates), three
      counts less that follow from others, columns of a K-block, parts of K and the rhythm of text blocks more;
    * semaphores, 11: the two that only relayed weights need are there in relay mode only;
    * tail and hub, 1: their sizes follow from those of the buffers;
    * positions, 21: of every tensor, the step and the offsets table, so that kernels ask for them by name.
    """
    spec = spec_of("n1.6")
    kinds = {"cb_": 39, "bytes_": 39, "sem_": 11, "io_": 18, "arg_": 3}
    for prefix, count in kinds.items():
        assert sum(name.startswith(prefix) for name in spec.named_args) == count, prefix
    assert len(spec.named_args) - sum(kinds.values()) == 37
    assert len(spec_of("n1.6", reader_mode="relay").named_args) == len(spec.named_args) + 2 + 2
    io = [slot.name for slot in spec.io]
    assert io[spec.named_args["io_modulation"]] == "modulation" and io[spec.named_args["io_cross_keys"]] == "key_0"
    addresses = {slot.name: 4096 + i for i, slot in enumerate(spec.io)}
    args = spec.common_args(addresses)
    assert args[spec.named_args["io_chunk"]] == addresses["chunk"]
    first = spec.named_args["arg_offsets"]
    assert args[first - 1] == len(args) - first == 134 and args[first:] == spec.layout.offsets_table()


def test_cross_keys_follow_one_another():
    """A kernel knows the first position only."""
    for version in CONFIGS:
        spec = spec_of(version)
        names = [slot.name for slot in spec.io]
        first = spec.named_args["io_cross_keys"]
        for i, block in enumerate(spec.layout.config.cross_blocks):
            assert names[first + 2 * i : first + 2 * i + 2] == [f"key_{block}", f"value_{block}"]


@pytest.mark.parametrize(
    ("version", "required"),
    [("n1.5", {"all_mask"}), ("n1.6", {"text_mask", "image_mask"}), ("n1.7", {"text_mask"})],
)
def test_masks_are_required_as_the_version_reads_them(version, required):
    spec = spec_of(version)
    masks = {slot.name for slot in spec.io if slot.name in ("text_mask", "image_mask", "all_mask") and slot.required}
    assert masks == required
    present = {name for name in ("text", "image", "all") if spec.named_args[f"{name}_mask_present"]}
    assert present == {name.removesuffix("_mask") for name in required}
    addresses = {slot.name: 64 for slot in spec.io if slot.required}
    for mask in required:
        with pytest.raises(SpecError, match=rf"lacks: \['{mask}'\]"):
            spec.common_args({name: address for name, address in addresses.items() if name != mask})
        with pytest.raises(SpecError, match="lacks"):
            spec.common_args(addresses | {mask: 0})


def test_variants_need_what_they_use():
    needs = {variant: {slot.name for slot in spec_of("n1.5", variant).io if slot.required} for variant in VARIANTS}
    assert needs["step"] - needs["block"] == {"arena_tail", "head_out"}
    extra = {"arena_tail", "step_bias", "row_bias", "future_tokens", "noise", "state", "chunk"}
    assert needs["steps4"] - needs["block"] == extra
    assert "future_tokens" not in {slot.name for slot in spec_of("n1.6").io if slot.required}
    spec = spec_of("n1.5", "block")
    with pytest.raises(SpecError, match=r"does not have: \['chunk'\]"):
        spec.common_args({slot.name: 64 for slot in spec.io} | {"chunk": 64})


def test_transactions_and_sizes_follow_the_layout():
    layout = published("n1.7")
    assert activation_tiles(layout) == 128, "32 padded heads of two tiles, two rows"
    spec = build_spec(layout, core_map(layout), "steps4")
    sizes = {buffer.name: buffer.total_bytes for buffer in spec.buffers}
    assert sizes["weights"] == 15 * 17408 and sizes["residual"] == 48 * 2048 and sizes["tail_weights"] == 48 * 2048
    assert sizes["attention_parts"] == 16 * 4096 and sizes["actions"] == 2 * 5 * 4096
    exact = {buffer.name for buffer in spec.buffers if buffer.exact_fp32}
    assert exact == {"norm_mean", "actions"}


@given(
    layouts(),
    st.sampled_from(SHAPES),
    st.sampled_from(VARIANTS),
    st.integers(1, 20),
    st.integers(1, 3),
    st.integers(1, 5),
)
@settings(max_examples=60, deadline=None)
def test_any_program_is_consistent_or_refused(layout, shape, variant, blocks, slots, rounds):
    depths = {"bf16": blocks, "bfp8_b": blocks}
    landing = rounds * activation_tiles(layout)
    budget = (
        FullBudget(weight_blocks=depths, slots=slots, landing_pages=landing)
        if shape == "full"
        else BasicBudget(weight_blocks=depths, relay_blocks=slots)
    )
    made = core_map(layout, (13, 10))
    try:
        spec = build_spec(layout, made, variant, shape=shape, budget=budget)
    except SpecError as error:
        assert " B of L1" in str(error) or "page transaction" in str(error)
        return
    sets = made.core_sets
    for core in made.all_cores():
        indices = [buffer.index for buffer in spec.buffers if core in sets[buffer.cores]]
        assert len(indices) == len(set(indices)) and max(indices) < 64
    for buffer in spec.buffers:
        assert buffer.total_bytes == buffer.pages * buffer.page_bytes > 0
        assert spec.named_args[f"cb_{buffer.name}"] == buffer.index
        assert spec.named_args[f"bytes_{buffer.name}"] == buffer.total_bytes
    for role, used in spec.l1_bytes().items():
        core = min(sets[role]) if sets[role] else None
        held = sum(buffer.total_bytes for buffer in spec.buffers if core in sets[buffer.cores])
        assert used == held <= spec.l1_limit(role)
    assert [semaphore.index for semaphore in spec.semaphores] == list(range(len(spec.semaphores)))
    assert len(spec.semaphores) <= 16
    grouped = [core for group in spec.kernel_groups for core in group.cores]
    assert sorted(grouped) == sorted(made.all_cores()) and len(spec.kernel_groups) <= 4


def test_too_much_memory_names_buffers_and_bytes():
    layout = published("n1.6", dtype_stream="bf16")
    budget = FullBudget(weight_blocks={"bf16": 20})
    with pytest.raises(SpecError) as caught:
        build_spec(layout, core_map(layout), "steps4", budget=budget)
    message = str(caught.value)
    assert "a compute core takes 1,443,840 B of L1, 1,338,816 B are allowed, 105,024 B too much" in message
    assert "weights 655,360 B (320 x 2048), activations 262,144 B (128 x 2048)" in message
    hub = FullBudget(landing_pages=640)
    with pytest.raises(SpecError, match=r"a hub core takes 1,742,848 B .* landing 1,310,720 B"):
        build_spec(layout, core_map(layout), "steps4", budget=hub)


def test_compute_limit_is_what_the_chip_has_at_most():
    spec = spec_of("n1.6")
    assert L1_USABLE_BYTES == 1_461_120
    assert spec.l1_limit("compute") == spec.l1_limit("hub") == L1_USABLE_BYTES - 96 * 1024 - 24_000
    assert spec_of("n1.6", shape="basic").l1_limit("compute") == 1_000_000


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (FullBudget(landing_pages=200), "buffer landing: 200 pages are no multiple of its 128-page transaction"),
        (FullBudget(weight_blocks={"bf16": 4}), "no depth for bfp8_b"),
        (FullBudget(weight_blocks={"bfp8_b": 0}), "no depth for bfp8_b"),
        (FullBudget(slots=0), "buffer product: got 0 pages"),
        (BasicBudget(), "got BasicBudget for the full program"),
    ],
)
def test_refuses_depths_that_do_not_work(budget, message):
    layout = published("n1.6")
    with pytest.raises(SpecError, match=message):
        build_spec(layout, core_map(layout), "steps4", budget=budget)


def test_refuses_arguments_out_of_range():
    layout, other = published("n1.6"), published("n1.6", n_banks=4)
    made = core_map(layout)
    for wrong, message in (
        ({"variant": "steps5"}, "variant: got 'steps5', allowed are block, step, steps4"),
        ({"variant": "step", "shape": "huge"}, "shape: got 'huge'"),
        ({"variant": "step", "step": 4}, "step: got 4, allowed are 0 to 3"),
    ):
        with pytest.raises(SpecError, match=message):
            build_spec(layout, made, **wrong)
    with pytest.raises(SpecError, match="8 banks, the layout 96 and 4"):
        build_spec(other, made, "step")


def test_check_catches_a_damaged_spec():
    """`check` is what stands between a wrong plan and a hanging card: each rule is seen to fire."""
    spec = spec_of("n1.6")
    buffers = spec.buffers
    for change, message in (
        ({"buffers": (*buffers[:-1], replace(buffers[-1], index=0))}, "landing and .*|share index 0 and cores"),
        ({"buffers": (*buffers[:-1], replace(buffers[-1], index=64))}, "index 64, Blackhole has 64"),
        ({"buffers": (*buffers[:-1], replace(buffers[-1], page_bytes=2047))}, "2047 B are not aligned"),
        ({"semaphores": spec.semaphores * 2}, "22 semaphores, 16 are possible"),
        ({"flags": {**spec.flags, "a": "hub", "b": "hub2"}}, "5 kernel groups, 4 are possible"),
        ({"named_args": {**spec.named_args, "big": 2**32}}, "named argument big"),
        ({"io": spec.io * 90}, "runtime argument words, 4094 are possible"),
    ):
        with pytest.raises(SpecError, match=message):
            replace(spec, **change).check()


def test_manifest_is_json_and_complete():
    spec = spec_of("n1.7")
    manifest = json.loads(json.dumps(spec.manifest()))
    assert manifest["stats"]["l1_bytes"]["compute"] == 1_049_600
    assert {buffer["name"] for buffer in manifest["buffers"]} == {buffer.name for buffer in spec.buffers}
    assert manifest["operations"]["block31.ff2"] == spec.layout.stream_ops[-1].offset
    assert manifest["named_args"] == dict(spec.named_args) and len(manifest["io"]) == 49


def test_kernel_groups_follow_the_flags():
    cores = [(x, y) for y in range(2) for x in range(3)]
    groups = group_cores(cores, {"a": {(0, 0), (1, 0)}, "b": {(1, 0), (2, 1)}})
    assert [(dict(group.flags), group.cores) for group in groups] == [
        ({"a": 1, "b": 0}, ((0, 0),)),
        ({"a": 1, "b": 1}, ((1, 0),)),
        ({"a": 0, "b": 0}, ((2, 0), (0, 1), (1, 1))),
        ({"a": 0, "b": 1}, ((2, 1),)),
    ]
    with pytest.raises(ValueError, match=r"flag a: cores \[\(9, 9\)\]"):
        group_cores(cores, {"a": {(9, 9)}})
