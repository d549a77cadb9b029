"""NMS and sampler in a row on a simulated Blackhole, on what the network makes of a photograph."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from skimage import data

from ttsp_ros.superpoint.descriptors import sample
from ttsp_ros.superpoint.features import DetectionSettings, Features
from ttsp_ros.superpoint.keypoints import detect
from ttsp_ros.superpoint.network import NetworkOutputs, SuperPointNetwork
from ttsp_ros.superpoint.weights import load_parameters
from ttsp_ros.tenstorrent import layout
from ttsp_ros.tenstorrent.nms import DeviceNms
from ttsp_ros.tenstorrent.sampler import DeviceSampler, SamplerPlan, choose, features
from ttsp_ros.tools.bench_device_sampler import upload_dense

HEIGHT, WIDTH, CORES = 64, 96, 4
SETTINGS = DetectionSettings(threshold=0.0005, nms_radius=2, border=2, max_keypoints=256)


@pytest.fixture(scope="module")
def outputs() -> NetworkOutputs:
    """bf16 scores and descriptors of a crop of the camera man of scikit-image."""
    crop = data.camera()[288 : 288 + HEIGHT, 64 : 64 + WIDTH]
    return SuperPointNetwork(load_parameters(), torch.bfloat16)(torch.from_numpy(crop.copy()))


def torch_features(outputs: NetworkOutputs, settings: DetectionSettings) -> Features:
    """What the torch backend makes of the same maps."""
    selection = detect(outputs.cells, settings)
    descriptors = sample(outputs.dense, selection.y, selection.x)
    keypoints = torch.stack([selection.x, selection.y], 1).float()
    return Features(keypoints.numpy(), selection.scores.float().numpy(), descriptors.numpy())


def assert_same_bits(found: Features, expected: Features) -> None:
    for name in ("keypoints", "scores", "descriptors"):
        a, b = getattr(found, name), getattr(expected, name)
        assert a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32)), name


class Chain:
    """The two operations and the network's maps on the card."""

    def __init__(self, device, outputs: NetworkOutputs) -> None:
        import ttnn

        self.nms = DeviceNms(
            device,
            HEIGHT,
            WIDTH,
            SETTINGS.nms_radius,
            threshold=SETTINGS.threshold,
            border=SETTINGS.border,
            emit_map=False,
            core_limit=CORES,
        )
        plan = SamplerPlan(
            HEIGHT, WIDTH, device.compute_with_storage_grid_size().x, CORES, kmax=256, head_fraction=0.65
        )
        self.sampler = DeviceSampler(device, plan, self.nms.plan.slot_map)
        rows, columns, channels = outputs.dense.shape
        self.dense = upload_dense(device, outputs.dense.reshape(rows * columns, channels))
        self.scores = ttnn.from_torch(
            outputs.cells.permute(1, 2, 0).reshape(1, 1, rows * columns, -1),
            dtype=ttnn.bfloat16,
            layout=ttnn.TILE_LAYOUT,
            device=device,
            memory_config=ttnn.DRAM_MEMORY_CONFIG,
        )

    def extract(self, settings: DetectionSettings) -> Features:
        """One image, as the backend of the card does it."""
        import ttnn

        sampler, limit = self.sampler, min(settings.max_keypoints, self.sampler.plan.kmax)
        bucket = sampler.speculation.bucket
        self.nms.set_params(settings.threshold, settings.border, bucket=bucket, limit=limit)
        output = self.nms(self.scores)
        sampler.run(self.dense, output.records, output.counts, self.nms.params)
        sampled = sampler.read(bucket)
        if not sampled.complete:
            words = ttnn.to_torch(output.candidates).numpy().view(np.uint32)
            candidates = layout.decode_candidates(words, sampler.slot_map)
            assert candidates.overflowed == 0
            best = choose(candidates, limit)
            sampler.upload(*best, total=sampled.total)
            sampler.run_top_k(self.dense)
            sampled = sampler.read_top_k(len(best[0]))
        return features(sampled, settings.max_keypoints)

    def close(self) -> None:
        import ttnn

        self.nms.release()
        self.sampler.release()
        ttnn.deallocate(self.dense)
        ttnn.deallocate(self.scores)


@pytest.fixture(scope="module")
def chain(device, outputs):
    opened = Chain(device, outputs)
    yield opened
    opened.close()


def test_features_of_a_photograph_are_those_of_the_torch_backend(chain, outputs):
    expected = torch_features(outputs, SETTINGS)
    assert len(expected) > 40
    assert_same_bits(chain.extract(SETTINGS), expected)
    # The first guess was one chunk; now the bucket fits.
    assert chain.sampler.speculation.bucket == chain.sampler.plan.bucket(len(expected)) > 0
    assert_same_bits(chain.extract(SETTINGS), expected)


def test_too_many_keypoints_are_chosen_by_the_host_and_sampled_on_the_card(chain, outputs):
    settings = DetectionSettings(SETTINGS.threshold, SETTINGS.nms_radius, SETTINGS.border, max_keypoints=21)
    expected = torch_features(outputs, settings)
    assert len(expected) == 21
    assert_same_bits(chain.extract(settings), expected)


def test_no_keypoint_gives_empty_features(chain):
    settings = DetectionSettings(0.9999, SETTINGS.nms_radius, SETTINGS.border, SETTINGS.max_keypoints)
    assert_same_bits(chain.extract(settings), Features.empty())
