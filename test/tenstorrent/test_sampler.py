"""DeviceSampler on a simulated Blackhole against its definition in torch, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from ttsp_ros.superpoint.descriptors import SampleTables, normalise, sample_unnormalised
from ttsp_ros.tenstorrent import layout
from ttsp_ros.tenstorrent.sampler import DeviceSampler, Sampled, SamplerPlan, records_of
from ttsp_ros.tools.bench_device_sampler import upload_dense, upload_slots

# One plan for most tests, so that its kernels are built once. Few cores, because each of them costs time.
HEIGHT, WIDTH, CORES = 64, 96, 6
SLOT_MAP = layout.SlotMap(HEIGHT, WIDTH, rows=16, capacity=256)


@dataclass(frozen=True)
class Keypoints:
    y: np.ndarray
    x: np.ndarray
    scores: np.ndarray

    @staticmethod
    def at(y: np.ndarray, x: np.ndarray, seed: int = 0) -> Keypoints:
        """Keypoints at these pixels in raster order, with random bf16 scores."""
        order = np.argsort(y * 65536 + x, kind="stable")
        scores = torch.rand(len(y), generator=torch.Generator().manual_seed(seed)).bfloat16().float()
        return Keypoints(y[order], x[order], scores.numpy())

    @staticmethod
    def random(count: int, height: int = HEIGHT, width: int = WIDTH, seed: int = 0) -> Keypoints:
        raster = np.random.default_rng(seed).choice(height * width, count, replace=False)
        return Keypoints.at(raster // width, raster % width, seed)


def random_map(height: int = HEIGHT, width: int = WIDTH, channels: int = 256, seed: int = 0) -> torch.Tensor:
    """bf16 [height / 8, width / 8, channels] with values of many magnitudes and both zeros."""
    generator = torch.Generator().manual_seed(seed)
    shape = (height // 8, width // 8, channels)
    values = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-20, 20, shape, generator=generator))
    values[torch.rand(shape, generator=generator) < 0.05] = 0.0
    values[torch.rand(shape, generator=generator) < 0.05] = -0.0
    return values.bfloat16()


class Bench:
    """A sampler with everything around it."""

    def __init__(self, device, plan: SamplerPlan, slot_map: layout.SlotMap, dense: torch.Tensor) -> None:
        self.device, self.plan, self.slot_map, self.dense = device, plan, slot_map, dense
        self.sampler = DeviceSampler(device, plan, slot_map)
        self.dense_on_card = upload_dense(device, dense.reshape(plan.cells, plan.channels))

    def run(self, records: np.ndarray, bucket: int = 0, limit: int | None = None) -> None:
        import ttnn

        params = layout.Params(0, 0, self.plan.height, 0, self.plan.width, bucket, limit or self.plan.kmax)
        slots = upload_slots(self.device, self.slot_map, records, params)
        self.sampler.run(self.dense_on_card, slots.records, slots.counts, slots.params)
        for tensor in (slots.records, slots.counts, slots.params):
            ttnn.deallocate(tensor)

    def sample(self, keypoints: Keypoints, bucket: int = 0) -> Sampled:
        self.run(self.records(keypoints), bucket)
        return self.sampler.read(bucket, unit_length=False)

    def sample_uploaded(self, keypoints: Keypoints) -> Sampled:
        self.sampler.upload(keypoints.y, keypoints.x, keypoints.scores, total=5000, overflow_slots=2)
        self.sampler.run_top_k(self.dense_on_card)
        return self.sampler.read_top_k(len(keypoints.y), unit_length=False)

    def records(self, keypoints: Keypoints) -> np.ndarray:
        return records_of(keypoints.y, keypoints.x, keypoints.scores, self.plan.height, self.plan.width)

    def expected(self, keypoints: Keypoints) -> torch.Tensor:
        return sample_unnormalised(self.dense, torch.from_numpy(keypoints.y), torch.from_numpy(keypoints.x))

    def close(self) -> None:
        import ttnn

        self.sampler.release()
        ttnn.deallocate(self.dense_on_card)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


def assert_sampled(sampled: Sampled, keypoints: Keypoints, expected: torch.Tensor) -> None:
    assert torch.equal(sampled.y, torch.from_numpy(keypoints.y))
    assert torch.equal(sampled.x, torch.from_numpy(keypoints.x))
    assert same_bits(sampled.scores, torch.from_numpy(keypoints.scores))
    assert same_bits(sampled.descriptors, expected)


@pytest.fixture(scope="module")
def plan(device) -> SamplerPlan:
    return SamplerPlan(HEIGHT, WIDTH, device.compute_with_storage_grid_size().x, CORES, kmax=256, head_fraction=0.6)


@pytest.fixture(scope="module")
def bench(device, plan):
    opened = Bench(device, plan, SLOT_MAP, random_map())
    yield opened
    opened.close()


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 64, 200])
def test_rows_and_header_are_the_definition(bench, count):
    keypoints = Keypoints.random(count, seed=count)
    sampled = bench.sample(keypoints)
    assert_sampled(sampled, keypoints, bench.expected(keypoints))
    assert sampled.total == count and sampled.complete


def test_keypoints_on_borders_and_corners(bench):
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    rim = (y == 0) | (y == HEIGHT - 1) | (x == 0) | (x == WIDTH - 1)
    every_fifth = np.arange(HEIGHT * WIDTH).reshape(HEIGHT, WIDTH) % 5 == 0
    corner = ((y < 4) | (y >= HEIGHT - 4)) & ((x < 4) | (x >= WIDTH - 4))
    chosen = (rim & every_fifth) | corner
    keypoints = Keypoints.at(y[chosen], x[chosen])
    assert_sampled(bench.sample(keypoints), keypoints, bench.expected(keypoints))


@pytest.mark.parametrize("slot", [0, SLOT_MAP.slots - 1])
def test_all_keypoints_in_one_slot(bench, slot):
    first, last = SLOT_MAP.bounds(slot)
    y, x = np.mgrid[first:last, 0:WIDTH:16]
    keypoints = Keypoints.at(y.ravel(), x.ravel())
    assert_sampled(bench.sample(keypoints), keypoints, bench.expected(keypoints))


def test_one_keypoint_in_every_slot(bench):
    y = SLOT_MAP.first_rows()
    keypoints = Keypoints.at(y, y % WIDTH)
    assert_sampled(bench.sample(keypoints), keypoints, bench.expected(keypoints))


@pytest.mark.parametrize("bucket", [0, 1, 2, 7])
def test_wrong_speculation_costs_nothing_but_time(bench, bucket):
    keypoints = Keypoints.random(40, seed=1)
    sampled = bench.sample(keypoints, bucket)
    assert_sampled(sampled, keypoints, bench.expected(keypoints))
    # Which bucket was read last says whether the case was what its name says: 40 keypoints need bucket 1.
    assert bench.sampler.read(max(bucket, 1)).total == 40


def test_split_and_single_read_back_are_the_same_bytes(bench, plan):
    keypoints = Keypoints.random(150, seed=2)
    split = bench.sample(keypoints)
    single = Bench(bench.device, replace(plan, head_fraction=1.0), SLOT_MAP, bench.dense)
    whole = single.sample(keypoints)
    single.close()
    assert plan.tail_rows(plan.bucket(150)) == 64 and plan.head_rows(plan.bucket(150)) < 150  # the tail is in use
    assert_sampled(split, keypoints, whole.descriptors)
    assert_sampled(whole, keypoints, bench.expected(keypoints))


def test_unit_length_is_the_definition_whichever_part_a_row_came_in(bench):
    keypoints = Keypoints.random(150, seed=2)
    bench.run(bench.records(keypoints), bucket=4)
    assert same_bits(bench.sampler.read(4).descriptors, normalise(bench.expected(keypoints)))


@pytest.mark.parametrize("count", [0, 1, 5, 64])
def test_uploaded_keypoints_in_any_order(bench, count):
    keypoints = Keypoints.random(count, seed=3)
    order = np.random.default_rng(0).permutation(count)
    keypoints = Keypoints(keypoints.y[order], keypoints.x[order], keypoints.scores[order])
    sampled = bench.sample_uploaded(keypoints)
    assert_sampled(sampled, keypoints, bench.expected(keypoints))
    assert (sampled.total, sampled.overflow_slots) == (5000, 2)


def test_programs_in_turn_keep_their_results_apart(bench):
    first, best, second = (Keypoints.random(count, seed=count) for count in (20, 9, 21))
    bench.run(bench.records(first), bucket=0)
    uploaded = bench.sample_uploaded(best)
    still_first = bench.sampler.read(0, unit_length=False)
    last = bench.sample(second)
    still_best = bench.sampler.read_top_k(9, unit_length=False)
    assert_sampled(still_first, first, bench.expected(first))
    assert_sampled(last, second, bench.expected(second))
    assert_sampled(uploaded, best, bench.expected(best))
    assert_sampled(still_best, best, bench.expected(best))


def test_too_many_keypoints_are_left_to_the_host(bench):
    keypoints = Keypoints.random(21, seed=4)
    bench.run(bench.records(keypoints), bucket=1, limit=20)
    sampled = bench.sampler.read(1)
    assert len(sampled.scores) == 0 and sampled.total == 21 and not sampled.complete
    bench.run(bench.records(keypoints), bucket=1, limit=21)
    assert bench.sampler.read(1).complete


def test_more_than_kmax_whatever_the_limit_says(bench, plan):
    keypoints = Keypoints.random(plan.kmax + 1, seed=5)
    bench.run(bench.records(keypoints), bucket=0, limit=10 * plan.kmax)
    sampled = bench.sampler.read(0)
    assert len(sampled.scores) == 0 and sampled.total == plan.kmax + 1


def test_slots_that_hold_fewer_than_they_counted_are_reported(device, plan):
    small = layout.SlotMap(HEIGHT, WIDTH, rows=16, capacity=4)
    bench = Bench(device, plan, small, random_map())
    y, x = np.array([0, 1, 2, 3, 4, 40, 40, 40, 40, 41]), np.arange(10)
    bench.run(bench.records(Keypoints.at(y, x)))
    sampled = bench.sampler.read(0)
    bench.close()
    assert len(sampled.scores) == 0 and sampled.total == 10 and sampled.overflow_slots == 2 and not sampled.complete


def test_hostile_cells_and_pixels_stay_inside_the_tensors(bench):
    keypoints = Keypoints.at(np.array([0, 9, 17, 25, 33]), np.array([5, 10, 20, 30, 40]))
    records = bench.records(keypoints)
    records[1, 2:] = 0xFFFFFFFF
    records[3, 2] = 0xFFFF0000 | (records[3, 2] & 0xFFFF)
    bench.run(records)
    sampled = bench.sampler.read(0, unit_length=False)
    expected = bench.expected(keypoints)
    flat = bench.dense.reshape(-1, 256).float()
    for index in (1, 3):
        cells = [word >> shift & 0xFFFF for word in records[index, 2:].tolist() for shift in (0, 16)]
        taps = [flat[min(cell, len(flat) - 1)] for cell in cells]
        at = torch.tensor([keypoints.y[index]]), torch.tensor([keypoints.x[index]])
        w = SampleTables.of(HEIGHT, WIDTH).weights(*at)[:, 0]
        expected[index] = ((taps[0] * w[0] + taps[1] * w[1]) + taps[2] * w[2]) + taps[3] * w[3]
    assert_sampled(sampled, keypoints, expected)
    # A pixel outside of the image: its row is anything, those of the others are what they were.
    records = bench.records(keypoints)
    records[4, 0] = 0xFFFFFFFF
    bench.run(records)
    sampled = bench.sampler.read(0, unit_length=False)
    assert len(sampled.scores) == 5 and (sampled.y[4], sampled.x[4]) == (0xFFFF, 0xFFFF)
    assert same_bits(sampled.descriptors[:4], bench.expected(keypoints)[:4])


def test_nan_and_infinity_stay_with_their_keypoints(device, plan):
    dense = random_map(seed=6)
    dense[0, 0, 3], dense[3, 4, 5], dense[3, 4, 6], dense[6, 9, :] = np.nan, np.inf, -np.inf, np.nan
    bench = Bench(device, plan, SLOT_MAP, dense)
    y, x = np.mgrid[2:HEIGHT:6, 2:WIDTH:6]
    keypoints = Keypoints.at(y.ravel(), x.ravel())
    sampled, expected = bench.sample(keypoints), bench.expected(keypoints)
    bench.close()
    finite = torch.isfinite(expected)
    assert finite.all(dim=1).sum() > 100 and (~finite).any(dim=1).sum() > 5  # there is something to disturb, and to be
    assert torch.equal(torch.isnan(sampled.descriptors), torch.isnan(expected))
    assert same_bits(sampled.descriptors.nan_to_num(nan=7.0), expected.nan_to_num(nan=7.0))


@pytest.mark.parametrize(
    ("height", "width", "channels", "cores"),
    [(8, 8, 256, 2), (40, 200, 128, 13), (120, 72, 64, 3)],
    ids=["one-cell", "two-rows-of-cores", "few-channels"],
)
def test_sizes(device, plan, height, width, channels, cores):
    slot_map = layout.SlotMap(height, width, rows=max(8, height // 4), capacity=64)
    sized = SamplerPlan(height, width, plan.columns, cores, channels, kmax=64, head_fraction=0.5)
    bench = Bench(device, sized, slot_map, random_map(height, width, channels))
    keypoints = Keypoints.random(37, height, width)
    sampled = bench.sample(keypoints)
    uploaded = bench.sample_uploaded(keypoints)
    bench.close()
    assert_sampled(sampled, keypoints, bench.expected(keypoints))
    assert_sampled(uploaded, keypoints, bench.expected(keypoints))


def test_nothing_is_compiled_for_another_image(bench):
    keypoints = Keypoints.random(3)
    bench.sample(keypoints)
    bench.sample_uploaded(keypoints)
    entries = bench.device.num_program_cache_entries()
    bench.run(bench.records(Keypoints.random(7)), bucket=3, limit=5)
    bench.sample_uploaded(Keypoints.random(2))
    assert bench.device.num_program_cache_entries() == entries


def test_use_after_release_is_refused_and_release_may_be_repeated(device, plan):
    sampler = DeviceSampler(device, replace(plan, kmax=32), SLOT_MAP)
    sampler.release()
    sampler.release()
    with pytest.raises(RuntimeError, match="build a new one"):
        sampler.read(0)
    with pytest.raises(RuntimeError, match="build a new one"):
        sampler.run_top_k(None)


def test_what_does_not_fit_is_refused(device, plan, bench):
    other_columns = replace(plan, columns=plan.columns - 1)
    with pytest.raises(ValueError, match="columns"):
        DeviceSampler(device, other_columns, SLOT_MAP)
    with pytest.raises(ValueError, match="must agree"):
        DeviceSampler(device, replace(plan, width=2 * WIDTH), SLOT_MAP)
    with pytest.raises(ValueError, match="expected bf16"):
        bench.sampler.run_top_k(upload_dense(device, torch.zeros(4, 256).bfloat16()))
    outside = Keypoints.at(np.array([HEIGHT]), np.array([0]))
    with pytest.raises(ValueError, match="outside of the image"):
        bench.sampler.upload(outside.y, outside.x, outside.scores, total=1)
    with pytest.raises(ValueError, match="bucket"):
        bench.sampler.read(plan.buckets)


@pytest.mark.device_full
def test_1024_keypoints_and_more_than_that(device):
    """A full list on many cores at 480x640, then one keypoint more, which the top-k program takes."""
    height, width = 480, 640
    columns = device.compute_with_storage_grid_size().x
    plan = SamplerPlan(height, width, columns, cores=2 * columns, head_fraction=0.65)
    slot_map = layout.SlotMap(height, width, rows=40, capacity=128)
    bench = Bench(device, plan, slot_map, random_map(height, width))
    keypoints = Keypoints.random(1024, height, width, seed=7)
    sampled = bench.sample(keypoints, bucket=30)
    assert_sampled(sampled, keypoints, bench.expected(keypoints))
    more = Keypoints.random(1025, height, width, seed=8)
    bench.run(bench.records(more), bucket=31)
    assert bench.sampler.read(31).total == 1025
    order = np.argsort(-more.scores, kind="stable")[:1024]
    best = Keypoints(more.y[order], more.x[order], more.scores[order])
    uploaded = bench.sample_uploaded(best)
    bench.close()
    assert_sampled(uploaded, best, bench.expected(best))
