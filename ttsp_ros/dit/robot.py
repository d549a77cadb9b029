"""A robot file (YAML): which joints a checkpoint's state and action keys are, and what the checkpoint doesn't say.

    embodiment: new_embodiment
    state:
      arm: {joints: [joint_1, joint_2, joint_3], min: [-3, -2, -3], max: [3, 2, 3]}
    action:
      arm: {joints: [joint_1, joint_2, joint_3], min: [-3, -2, -3], max: [3, 2, 3], relative: false}

Order of keys, modes and statistics come from the checkpoint's JSON files where it has them (N1.6, N1.7:
processor_config.json, statistics.json, embodiment_id.json; N1.5: experiment_cfg/metadata.json, statistics only). What
the robot file says wins, except for the order.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from ttsp_ros.dit.config import GrootConfig
from ttsp_ros.dit.normalisation import ActionKey, Modality, Scaling, StateKey, make_scaling

# For checkpoints without embodiment_id.json. Source: `embodiment_tags.py` (N1.5), `processing_gr00t_n1d7.py`.
PUBLISHED_INDICES: dict[str, dict[str, int]] = {
    "n1.5": {"new_embodiment": 31, "oxe_droid": 17, "agibot_genie1": 26, "gr1": 24},
    "n1.6": {"new_embodiment": 10},
    "n1.7": {"new_embodiment": 10},
}

_TOP = {"embodiment", "embodiment_index", "steps", "clip", "state", "action"}
_STATISTICS = {"min", "max", "q01", "q99", "mean", "std"}
_COMMON = {"joints", "mode", "unit", "scale", "offset"} | _STATISTICS
_ALLOWED = {"state": _COMMON | {"constant"}, "action": _COMMON | {"relative", "state_key", "unused"}}
_UNITS = {"rad": 1.0, "deg": 180.0 / np.pi}


@dataclass(frozen=True)
class _Told:
    """What a checkpoint's JSON files say about one embodiment.

    Attributes:
        order: key names of "state" and "action"; None where it doesn't say.
        modes: by ("state" or "action", key).
        relative: by action key: the state key it is relative to, or None.
        statistics: by ("state", "action" or "relative_action", key).
        steps: rows of a chunk.
        index: of the embodiment's weights.
        clip: whether normalised values are clipped.
    """

    order: dict[str, tuple[str, ...] | None] = field(default_factory=lambda: {"state": None, "action": None})
    modes: dict[tuple[str, str], str] = field(default_factory=dict)
    relative: dict[str, str | None] = field(default_factory=dict)
    statistics: dict[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    steps: int | None = None
    index: int | None = None
    clip: bool = True


def read_robot(
    path: str | Path, config: GrootConfig, checkpoint: str | Path | None = None, embodiment: str | None = None
) -> Modality:
    """The robot of a robot file, checked against the head and the checkpoint.

    Args:
        path: the YAML file.
        config: the head.
        checkpoint: its folder, or the .safetensors file in it; None: the robot file says everything.
        embodiment: taken instead of the file's.

    Raises:
        ValueError: the file, or what it says of a key, is wrong; the key is named.
    """
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read as YAML: {error}") from error
    if embodiment and isinstance(content, Mapping):
        content = {**content, "embodiment": embodiment}
    try:
        return make_robot(content, config, checkpoint)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def make_robot(content: Any, config: GrootConfig, checkpoint: str | Path | None = None) -> Modality:
    """As `read_robot`, from the file's content."""
    content = _mapping("robot file", content)
    _refuse_unknown("robot file", content, _TOP)
    embodiment = content.get("embodiment", "new_embodiment")
    told = _read_checkpoint(checkpoint, embodiment) if checkpoint is not None else _Told()
    clip = content.get("clip", told.clip)
    groups = {group: _ordered(group, content.get(group), told.order[group]) for group in ("state", "action")}
    modality = Modality(
        embodiment=embodiment,
        index=_index(content.get("embodiment_index", told.index), embodiment, config),
        state=tuple(_state_key(name, entry, told, clip) for name, entry in groups["state"].items()),
        action=tuple(_action_key(name, entry, told, clip) for name, entry in groups["action"].items()),
        steps=_steps(content.get("steps", told.steps), config),
    )
    modality.check(config.max_state_dim, config.max_action_dim, config.horizon, config.n_embodiments)
    return modality


def _steps(steps: Any, config: GrootConfig) -> int:
    if steps is None:
        return config.horizon
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps: got {steps!r}, allowed is 1..{config.horizon}")
    return steps


def _index(index: Any, embodiment: str, config: GrootConfig) -> int:
    known = PUBLISHED_INDICES[config.version]
    if index is None:
        index = known.get(embodiment)
    if index is None:
        raise ValueError(
            f"embodiment: {embodiment!r} is in no table of the checkpoint and not among {', '.join(known)}; "
            "give embodiment_index"
        )
    if not isinstance(index, int) or index < 0:
        raise ValueError(f"embodiment_index: got {index!r}, allowed is 0..{config.n_embodiments - 1}")
    return index


def _ordered(group: str, entries: Any, order: tuple[str, ...] | None) -> dict[str, dict[str, Any]]:
    """The file's entries of a group in the checkpoint's order."""
    given = {name: _mapping(f"{group}.{name}", entry) for name, entry in _mapping(group, entries).items()}
    for name, entry in given.items():
        _refuse_unknown(f"{group}.{name}", entry, _ALLOWED[group])
    if order is None:
        return given
    missing, unknown = [name for name in order if name not in given], [name for name in given if name not in order]
    if missing or unknown:
        raise ValueError(
            f"{group}: the checkpoint has the keys {', '.join(order)}; "
            + "; ".join(
                text
                for names, text in (
                    (missing, f"say which joints {', '.join(missing)} are"),
                    (unknown, f"{', '.join(unknown)} is not among them"),
                )
                if names
            )
        )
    return {name: given[name] for name in order}


def _state_key(name: str, entry: Mapping[str, Any], told: _Told, clip: bool) -> StateKey:
    where = f"state.{name}"
    constant = None
    if "constant" in entry:
        if "joints" in entry:
            raise ValueError(f"{where}: has both joints and a constant; give one")
        constant = _vector(f"{where}.constant", entry["constant"], None)
    joints = () if constant is not None else _joints(where, entry)
    width = len(joints) if constant is None else len(constant)
    factor, offset = _units(where, entry, width)
    scaling = _scaling(where, ("state", name), entry, told, width, clip)
    return StateKey(name, joints, scaling, factor, offset, constant)


def _action_key(name: str, entry: Mapping[str, Any], told: _Told, clip: bool) -> ActionKey:
    where = f"action.{name}"
    relative_to = _relative_to(where, name, entry, told)
    statistics = ("relative_action" if relative_to else "action", name)
    if "unused" in entry:
        if "joints" in entry:
            raise ValueError(f"{where}: has both joints and unused; give one")
        width = entry["unused"]
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise ValueError(f"{where}.unused: got {width!r}, expected how many numbers the key is wide")
        return ActionKey(name, (), Scaling("none"), np.ones(width), np.zeros(width))
    joints = _joints(where, entry)
    factor, offset = _units(where, entry, len(joints))
    scaling = _scaling(where, statistics, entry, told, len(joints), clip)
    if scaling.mode == "sin_cos":
        raise ValueError(f"{where}: mode sin_cos has no inverse and is for states only")
    return ActionKey(name, joints, scaling, factor, offset, relative_to)


def _relative_to(where: str, name: str, entry: Mapping[str, Any], told: _Told) -> str | None:
    relative = entry.get("relative", told.relative.get(name) is not None)
    if not isinstance(relative, bool):
        raise ValueError(f"{where}.relative: got {relative!r}, allowed are true and false")
    if not relative:
        return None
    return entry.get("state_key") or told.relative.get(name) or name


def _scaling(
    where: str, source: tuple[str, str], entry: Mapping[str, Any], told: _Told, width: int, clip: bool
) -> Scaling:
    group, name = source
    mode = entry.get("mode") or told.modes.get((group.removeprefix("relative_"), name), "min_max")
    statistics = {**told.statistics.get(source, {}), **{key: entry[key] for key in _STATISTICS if key in entry}}
    return make_scaling(where, mode, statistics, width, clip)


def _joints(where: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    joints = entry.get("joints")
    if not isinstance(joints, list) or not joints or not all(isinstance(joint, str) for joint in joints):
        raise ValueError(f"{where}.joints: got {joints!r}, expected names of joints, in the key's order")
    if len(set(joints)) != len(joints):
        raise ValueError(f"{where}.joints: got {joints}, and a name can be there only once")
    return tuple(joints)


def _units(where: str, entry: Mapping[str, Any], width: int) -> tuple[np.ndarray, np.ndarray]:
    """(factor, offset): the checkpoint's value is factor x position + offset."""
    unit = entry.get("unit", "rad")
    if unit not in _UNITS:
        raise ValueError(f"{where}.unit: got {unit!r}, allowed are {', '.join(_UNITS)}")
    factor = _vector(f"{where}.scale", entry.get("scale", 1.0), width) * _UNITS[unit]
    if (factor == 0).any():
        raise ValueError(f"{where}.scale: 0 cannot be undone")
    return factor, _vector(f"{where}.offset", entry.get("offset", 0.0), width)


def _vector(where: str, value: Any, width: int | None) -> np.ndarray:
    """float64 [width] from a list or, if the width is known, one number for all."""
    try:
        vector = np.asarray(value, dtype=np.float64)
        vector = np.full(width, vector) if vector.ndim == 0 and width is not None else vector
    except (TypeError, ValueError):
        vector = np.zeros((0, 0))
    if vector.ndim != 1 or len(vector) == 0 or (width is not None and len(vector) != width):
        raise ValueError(f"{where}: got {value!r}, expected {'numbers' if width is None else f'{width} numbers'}")
    if not np.isfinite(vector).all():
        raise ValueError(f"{where}: got {value!r}, which is not finite")
    return vector


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: got {value!r}, expected keys with values")
    return {str(key): item for key, item in value.items()}


def _refuse_unknown(where: str, entry: Mapping[str, Any], allowed: set[str]) -> None:
    unknown = sorted(set(entry) - allowed)
    if unknown:
        raise ValueError(f"{where}: unknown {', '.join(unknown)}; allowed are {', '.join(sorted(allowed))}")


def _read_checkpoint(checkpoint: str | Path, embodiment: str) -> _Told:
    """What the JSON files beside the checkpoint's tensors say; nothing where there are none."""
    path = Path(checkpoint)
    folder = path if path.is_dir() else path.parent
    for place in (folder, folder / "processor"):
        if (place / "processor_config.json").is_file():
            return _read_processor(place, embodiment)
    metadata = folder / "experiment_cfg" / "metadata.json"
    return _read_metadata(metadata, embodiment) if metadata.is_file() else _Told()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _mapping(str(path), json.loads(path.read_text(encoding="utf-8")))
    except (OSError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from error


def _of_embodiment(path: Path, content: Mapping[str, Any], embodiment: str) -> Any:
    if embodiment not in content:
        raise ValueError(f"embodiment: {path.name} does not know {embodiment!r}, only {', '.join(sorted(content))}")
    return content[embodiment]


def _read_metadata(path: Path, embodiment: str) -> _Told:
    """N1.5: statistics alone; order and modes are in its training script, so the robot file gives them."""
    statistics = _mapping(str(path), _of_embodiment(path, _read_json(path), embodiment)).get("statistics", {})
    return _Told(statistics=_flat(statistics))


def _flat(statistics: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {
        (group, name): _mapping(f"{group}.{name}", numbers)
        for group in ("state", "action", "relative_action")
        for name, numbers in (statistics.get(group) or {}).items()
    }


def _read_processor(folder: Path, embodiment: str) -> _Told:
    """N1.6 and N1.7."""
    path = folder / "processor_config.json"
    settings = _mapping(str(path), _read_json(path).get("processor_kwargs"))
    for name in ("use_mean_std", "exclude_state", "use_tactile"):
        if settings.get(name):
            raise ValueError(f"{path.name}: {name} is on, which this policy does not follow")
    modalities = _of_embodiment(path, _mapping("modality_configs", settings.get("modality_configs")), embodiment)
    state, action = _mapping("state", modalities.get("state")), _mapping("action", modalities.get("action"))
    if len(state.get("delta_indices") or [0]) != 1:
        raise ValueError(f"state.delta_indices: got {state['delta_indices']}, only the present state is supported")
    statistics, indices = folder / "statistics.json", folder / "embodiment_id.json"
    relative = _relative(settings, action)
    # The published processor scales relative keys by min and max, whatever use_percentiles says.
    modes = _modes(settings, state, action) | {
        ("action", key): "min_max" for key in relative if key not in (action.get("mean_std_embedding_keys") or [])
    }
    return _Told(
        order={"state": tuple(state["modality_keys"]), "action": tuple(action["modality_keys"])},
        modes=modes,
        relative=relative,
        statistics=_flat(_of_embodiment(statistics, _read_json(statistics), embodiment))
        if statistics.is_file()
        else {},
        steps=len(action.get("delta_indices") or []) or None,
        index=_read_json(indices).get(embodiment) if indices.is_file() else None,
        clip=bool(settings.get("clip_outliers", True)),
    )


def _modes(
    settings: Mapping[str, Any], state: Mapping[str, Any], action: Mapping[str, Any]
) -> dict[tuple[str, str], str]:
    usual = "percentiles" if settings.get("use_percentiles") else "min_max"
    sin_cos = state.get("sin_cos_embedding_keys") or [] if settings.get("apply_sincos_state_encoding") else []
    modes = {}
    for group, config in (("state", state), ("action", action)):
        for key in config["modality_keys"]:
            modes[group, key] = "mean_std" if key in (config.get("mean_std_embedding_keys") or []) else usual
            if group == "state" and key in sin_cos:
                modes[group, key] = "sin_cos"
    return modes


def _relative(settings: Mapping[str, Any], action: Mapping[str, Any]) -> dict[str, str | None]:
    relative: dict[str, str | None] = {}
    for key, config in zip(action["modality_keys"], action.get("action_configs") or [], strict=False):
        if config is None or config.get("rep") != "RELATIVE" or not settings.get("use_relative_action"):
            continue
        if config.get("type") == "EEF":
            raise ValueError(f"action.{key}: a relative pose of the end effector, which is no joint position")
        relative[key] = config.get("state_key") or key
    return relative
