"""The sampler's work on the host: sizes, buckets, speculation, choice of keypoints."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ttsp_ros.superpoint.keypoints import top_k
from ttsp_ros.tenstorrent import layout
from ttsp_ros.tenstorrent.sampler import Sampled, SamplerPlan, Speculation, choose, features, records_of
from ttsp_ros.tools.bench_device_sampler import Floor, slot_words

PLAN = SamplerPlan(480, 640, columns=11, cores=110, head_fraction=0.65)


def test_every_count_has_the_smallest_bucket_that_holds_it():
    for count in range(PLAN.kmax + 1):
        bucket = PLAN.bucket(count)
        assert count <= PLAN.rows(bucket)
        assert bucket == 0 or count > PLAN.rows(bucket - 1)


@pytest.mark.parametrize("channels", [64, 192, 256])
@pytest.mark.parametrize("head_fraction", [0.01, 0.5, 0.65, 1.0])
def test_head_and_tail_are_the_bucket_and_the_header_fits(channels, head_fraction):
    plan = SamplerPlan(480, 640, 11, 110, channels, head_fraction=head_fraction)
    for bucket in range(plan.buckets):
        assert plan.head_rows(bucket) + plan.tail_rows(bucket) == plan.rows(bucket)
        assert 0 < plan.head_rows(bucket) <= plan.rows(bucket)
        assert plan.header_rows(bucket) * plan.row_bytes >= 64 + 16 * plan.rows(bucket)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"height": 484}, "multiples of 8"),
        ({"height": 8 * 257, "width": 8 * 256}, "65536 cells"),
        ({"channels": 96}, "64, 128, 192 and 256"),
        ({"kmax": 1000}, "multiple of chunk"),
        ({"head_fraction": 0.0}, "head_fraction"),
        ({"cores": 0}, "cores"),
        ({"kmax": 32, "cores": 33}, "cores"),
    ],
)
def test_plans_that_cannot_be_are_refused(wrong, message):
    arguments = {"height": 480, "width": 640, "columns": 11, "cores": 110} | wrong
    with pytest.raises(ValueError, match=message):
        SamplerPlan(**arguments)


def test_speculation_is_the_largest_of_the_last_images():
    speculation = Speculation(PLAN, memory=3)
    assert speculation.bucket == 0
    seen = []
    for count in (100, 40, 33, 32, 5000, 0, 0, 0):
        speculation.observe(count)
        seen.append(speculation.bucket)
    assert seen == [3, 3, 3, 1, 31, 31, 31, 0]


def test_records_are_the_layout():
    records = records_of(np.array([0, 479]), np.array([639, 8]), np.array([0.5, 1.0], np.float32), 480, 640)
    assert records[:, 0].tolist() == [639, 479 << 16 | 8]
    assert records[:, 1].tolist() == [0x3F000000, 0x3F800000]
    assert records[0, 2:].tolist() == [79 | 79 << 16, 79 | 79 << 16]  # above the first cell: both rows are its own
    assert records[1, 2:].tolist() == [59 * 80 | (59 * 80 + 1) << 16] * 2  # on the last cell: likewise


def test_choice_is_by_score_and_then_by_raster():
    generator = np.random.default_rng(0)
    bits = generator.integers(0x3C00, 0x3C08, 300).astype(np.uint16)  # eight different scores: many ties
    candidates = layout.CandidateList(np.arange(300) // 20, np.arange(300) % 20, bits, 0)
    y, x, scores = choose(candidates, 100)
    expected = top_k(torch.from_numpy(bits.astype(np.int16)).view(torch.bfloat16), 100).numpy()
    assert np.array_equal(y * 20 + x, expected)
    assert np.array_equal(scores.view(np.uint32) >> 16, bits[expected])


@pytest.mark.parametrize("count", [0, 1, 5, 100])
def test_features_are_sorted_and_limited(count):
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(1, 20, (count,), generator=generator) / 32
    descriptors = torch.arange(float(count))[:, None].expand(count, 256)
    sampled = Sampled(torch.arange(count), 2 * torch.arange(count), scores, descriptors, count, 0)
    found = features(sampled, 50)
    order = sorted(range(count), key=lambda i: (-scores[i].item(), i))[:50]
    assert found.keypoints.tolist() == [[2.0 * i, float(i)] for i in order]
    assert found.descriptors[:, 7].tolist() == order
    assert found.scores.tolist() == scores[order].tolist()
    assert found.keypoints.shape == (min(count, 50), 2) and found.descriptors.dtype == np.float32


def test_slots_hold_the_records_of_their_rows():
    slot_map = layout.SlotMap(24, 64, rows=5, capacity=2)
    y = np.array([0, 1, 2, 7, 23])
    words, counts = slot_words(slot_map, records_of(y, y, np.ones(5, np.float32), 24, 64))
    assert layout.decode_counts(counts, slot_map.slots).tolist() == [3, 0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert words[0].tolist()[::4] == [0, 1 << 16 | 1]  # the third does not fit
    assert words[2, 0] == 7 << 16 | 7


def test_floor_grows_with_the_work():
    few, many = Floor.of(PLAN, 256), Floor.of(PLAN, 1024)
    assert few.cycles < many.cycles
    # 1,024 keypoints: 4 taps of 512 bytes, 16 of weights, 1,024 of a row and 16 of a record each, at 512 GB/s.
    assert many.dram == pytest.approx(1024 * (2048 + 16 + 1024 + 16) / 512e9 * 1.35e9)
