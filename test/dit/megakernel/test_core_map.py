"""Roles of the cores: each exactly one, whatever the grid."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from megakernel_cases import layouts, published

from ttsp_ros.dit.megakernel.core_map import NEAR_DRAM, NOT_APPLICABLE, Role, core_map


@given(layouts(), st.integers(1, 13), st.integers(1, 10))
@settings(max_examples=150, deadline=None)
def test_every_core_has_one_role_or_the_grid_is_refused(layout, columns, rows):
    needed = layout.n_compute + layout.n_banks + 2
    if columns * rows < needed:
        with pytest.raises(
            ValueError, match=f"{columns}x{rows} = {columns * rows} worker cores; the plan needs {needed}"
        ):
            core_map(layout, (columns, rows))
        return
    made = core_map(layout, (columns, rows))
    assert made.grid[0] <= columns and made.grid[1] == rows
    assert (made.n_compute, made.n_banks) == (layout.n_compute, layout.n_banks)
    sets = made.core_sets
    parts = [sets[name] for name in ("compute", "readers", "hub", "hub2", "spare")]
    assert sum(map(len, parts)) == len(sets["all"]) == made.grid[0] * made.grid[1]
    assert frozenset().union(*parts) == sets["all"] and sets["hubs"] == sets["hub"] | sets["hub2"]

    words = made.per_core_args()
    assert set(words) == sets["all"]
    by_role = {role: [words[core] for core in made.all_cores() if made.role_of[core] is role] for role in Role}
    assert sorted(word[0] for word in by_role[Role.COMPUTE]) == list(range(layout.n_compute))
    assert all(word[1] == layout.bank_of(word[0]) and word[2] < 4 for word in by_role[Role.COMPUTE])
    assert sorted(word[1] for word in by_role[Role.READER]) == list(range(layout.n_banks))
    assert by_role[Role.HUB] == [(NOT_APPLICABLE,) * 4 + (0,)] and by_role[Role.HUB2] == [(NOT_APPLICABLE,) * 4 + (1,)]
    assert all(set(word) == {NOT_APPLICABLE} for word in by_role[Role.SPARE])
    heads = sorted((word[4], word[3]) for word in by_role[Role.COMPUTE] if word[3] != NOT_APPLICABLE)
    assert heads == [(group, head) for group in range(3) for head in range(layout.config.n_heads)]


def test_the_map_of_a_p150(version):
    made = core_map(published(version))
    assert made.grid == (11, 10) and made.multicast_rectangle == ((0, 0), (10, 9))
    assert (made.n_compute, made.n_banks, len(made.spare)) == (96, 8, 4)
    assert made.readers == NEAR_DRAM
    assert {made.hub, made.hub2} == {(5, 4), (5, 5)}, "the two cores in the middle"
    words = made.per_core_args()
    for head in range(32):
        owned = [words[made.compute[group * 32 + head]] for group in range(3)]
        assert [(word[0], word[3], word[4]) for word in owned] == [(g * 32 + head, head, g) for g in range(3)]
    for bank in range(8):
        channels = [words[core][2] for core in made.compute if words[core][1] == bank]
        assert len(channels) == 12 and all(channels.count(channel) in (2, 3, 4) for channel in range(4))


def test_cores_of_a_row_that_share_a_bank_use_different_channels():
    made = core_map(published("n1.6"))
    words = made.per_core_args()
    streams = [(core[1], words[core][1], words[core][2]) for core in (*made.compute, *made.readers)]
    assert len(set(streams)) == len(streams)


def test_a_larger_grid_is_used_as_far_as_needed():
    layout = published("n1.7")
    assert core_map(layout, (13, 10)).grid == (11, 10)
    assert core_map(layout, (12, 9)).grid == (12, 9)


def test_own_readers():
    layout = published("n1.7")
    readers = tuple((10, y) for y in range(8))
    made = core_map(layout, readers=readers)
    assert made.readers == readers and made.role_of[10, 3] is Role.READER
    with pytest.raises(ValueError, match="got 3 cores for 8 DRAM banks"):
        core_map(layout, readers=readers[:3])
    with pytest.raises(ValueError, match=r"outside the 11x10 rectangle: \[\(11, 0\)\]"):
        core_map(layout, readers=(*readers[:7], (11, 0)))
    with pytest.raises(ValueError, match=r"two roles: \[\(10, 0\)\]"):
        core_map(layout, readers=(*readers[:7], (10, 0)))


def test_refuses_a_map_with_a_gap_or_too_many_heads():
    made = core_map(published("n1.7"))
    with pytest.raises(ValueError, match="without a role"):
        replace(made, spare=made.spare[1:])
    with pytest.raises(ValueError, match="33 heads need 99 compute cores, there are 96"):
        replace(made, n_heads=33)
