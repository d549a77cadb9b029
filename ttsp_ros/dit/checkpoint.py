"""Reads the action head out of a GR00T checkpoint: safetensors, in one file or in shards with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ttsp_ros.dit.config import CONFIGS, GrootConfig
from ttsp_ros.dit.weights import Shape, expected_shapes

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
HEAD = "action_head."
# The vision-language model shares the checkpoint's files; it runs elsewhere.
BACKBONE = "backbone."
# lerobot saves the whole model as a member of its policy.
WRAPPERS = ("_groot_model.", "")
# Replaces a dropped-out state during training (N1.6 and early N1.7); never used for actions.
TRAINING_ONLY = frozenset({"mask_token"})

_MODEL_TYPES = {"gr00t_n1_5": "n1.5", "Gr00tN1d6": "n1.6", "Gr00tN1d7": "n1.7"}


class CheckpointError(ValueError):
    """A checkpoint that does not hold the expected action head; the message names file, tensor and remedy."""


class Checkpoint:
    """The action head's tensors in a checkpoint, read on demand. Use as a context manager, or call `close`.

    Every name and shape is checked when it is opened. Tensors `backbone.*` are left alone; any other name that the
    head does not have is refused.

    Args:
        path: a folder with model.safetensors or model.safetensors.index.json, or one .safetensors file.
        config: the head that it must hold; by default the one its config.json describes.

    Raises:
        CheckpointError: missing file or tensor, unknown tensor, wrong shape, or a config.json this head cannot follow.
    """

    def __init__(self, path: str | Path, config: GrootConfig | None = None) -> None:
        self._stack = ExitStack()
        self.path = Path(path)
        self.config = config or read_config(self.path)
        try:
            self._tensors = self._open(self.path)
            self._check(expected_shapes(self.config))
        except BaseException:
            self.close()
            raise

    def _open(self, path: Path) -> dict[str, tuple[Any, str]]:
        """Name within the head -> (open file, name in that file)."""
        tensors: dict[str, tuple[Any, str]] = {}
        unknown = []
        for file, names in _files(path).items():
            handle = self._handle(file)
            held = set(handle.keys())
            absent = sorted(set(names or ()) - held)
            if absent:
                raise CheckpointError(f"{file}: the index promises {_some(absent)}, which the file does not hold")
            for full in sorted(held if names is None else names):
                part, name = _split(full)
                if part == HEAD and name not in TRAINING_ONLY:
                    tensors[name] = (handle, full)
                elif part == "":
                    unknown.append(full)
        if unknown:
            raise CheckpointError(
                f"{path}: {len(unknown)} tensors belong neither to {HEAD}* nor to {BACKBONE}*: {_some(unknown)}. "
                "Is it a GR00T checkpoint?"
            )
        return tensors

    def _handle(self, file: Path) -> Any:
        if not file.is_file():
            raise CheckpointError(f"{file} is missing, though the index lists it; download the checkpoint again")
        try:
            return self._stack.enter_context(safe_open(file, framework="pt"))
        except SafetensorError as error:
            raise CheckpointError(f"{file} is no safetensors file or is cut short ({error})") from error

    def _check(self, expected: Mapping[str, Shape]) -> None:
        missing = sorted(set(expected) - set(self._tensors))
        unknown = sorted(set(self._tensors) - set(expected))
        version = self.config.version
        if missing:
            raise CheckpointError(f"{self.path}: GR00T {version} needs {len(missing)} tensors more: {_some(missing)}")
        if unknown:
            raise CheckpointError(
                f"{self.path}: GR00T {version} has no {_some(unknown)}; is the checkpoint of another version "
                f"(known: {', '.join(CONFIGS)})?"
            )
        for name, shape in expected.items():
            handle, full = self._tensors[name]
            got = tuple(handle.get_slice(full).get_shape())
            if got != shape:
                raise CheckpointError(f"{self.path}: {full} has shape {got}, GR00T {version} expects {shape}")

    def tensor(self, name: str) -> Tensor:
        """The whole tensor `action_head.<name>`, in the dtype of the file."""
        handle, full = self._tensors[name]
        return handle.get_tensor(full)

    def row(self, name: str, index: int) -> Tensor:
        """One embodiment's part of a tensor; only that part is read."""
        handle, full = self._tensors[name]
        return handle.get_slice(full)[index]

    def close(self) -> None:
        """Closes the files; tensors already read stay valid."""
        self._stack.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _files(path: Path) -> dict[Path, set[str] | None]:
    """The checkpoint's files, each with the names an index promises, or None without an index."""
    if path.is_file():
        return {path: None}
    if not path.is_dir():
        raise CheckpointError(f"{path}: no such file or folder")
    index = path / INDEX_FILE
    if index.is_file():
        files: dict[Path, set[str] | None] = {}
        for name, file in _read_json(index).get("weight_map", {}).items():
            names = files.setdefault(path / file, set())
            assert names is not None
            names.add(name)
        if not files:
            raise CheckpointError(f"{index} has no weight_map")
        return files
    if (path / SINGLE_FILE).is_file():
        return {path / SINGLE_FILE: None}
    raise CheckpointError(f"{path} holds neither {SINGLE_FILE} nor {INDEX_FILE}")


def _split(full: str) -> tuple[str, str]:
    """The part of the policy a tensor belongs to (HEAD, BACKBONE or "" for neither), and its name within it."""
    for wrapper in WRAPPERS:
        for part in (HEAD, BACKBONE):
            if full.startswith(wrapper + part):
                return part, full.removeprefix(wrapper + part)
    return "", full


def _some(names: list[str], limit: int = 5) -> str:
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path}: got {type(content).__name__}, expected an object")
    return content


def read_config(path: str | Path) -> GrootConfig:
    """The head that a checkpoint's config.json describes.

    Raises:
        CheckpointError: there is no config.json, or it asks for a variant that this head does not have.
    """
    folder = Path(path)
    file = (folder if folder.is_dir() else folder.parent) / "config.json"
    if not file.is_file():
        raise CheckpointError(f"{file} is missing, so the version is unknown; name it ({', '.join(CONFIGS)})")
    try:
        return config_from_json(_read_json(file))
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from error


def config_from_json(content: Mapping[str, Any]) -> GrootConfig:
    """The head that the content of a GR00T config.json describes: the published one where it says nothing.

    Raises:
        CheckpointError: unknown model type, or a variant that this head does not have.
    """
    model_type = content.get("model_type")
    if model_type not in _MODEL_TYPES:
        raise CheckpointError(f"model_type: got {model_type!r}, allowed are {', '.join(_MODEL_TYPES)}")
    base = CONFIGS[_MODEL_TYPES[model_type]]
    # N1.5 keeps the head's settings in an object of their own.
    head = content.get("action_head_cfg", content)
    dit = head.get("diffusion_model_cfg") or {}
    vl = head.get("vl_self_attention_cfg")
    _refuse_variants(head, dit, base)
    given = {
        "n_blocks": dit.get("num_layers"),
        "n_heads": dit.get("num_attention_heads"),
        "head_dim": dit.get("attention_head_dim"),
        "out_dim": dit.get("output_dim"),
        "hidden": head.get("hidden_size"),
        "vl_dim": head.get("backbone_embedding_dim"),
        "max_state_dim": head.get("max_state_dim"),
        "max_action_dim": head.get("max_action_dim", head.get("action_dim")),
        "horizon": head.get("action_horizon"),
        "n_future_tokens": head.get("num_target_vision_tokens") if base.n_future_tokens else None,
        "text_every": head.get("attend_text_every_n_blocks") if base.text_every else None,
        "n_embodiments": head.get("max_num_embodiments"),
        "max_seq_len": head.get("max_seq_len"),
        "n_steps": head.get("num_inference_timesteps"),
        "n_timestep_buckets": head.get("num_timestep_buckets"),
        **(_vl_settings(vl) if isinstance(vl, Mapping) else {}),
    }
    changed = {name: value for name, value in given.items() if value is not None}
    try:
        config = replace(base, **changed)
        return replace(config, ff_dim=4 * config.width, vl_ff_dim=4 * config.vl_dim)
    except (TypeError, ValueError) as error:
        raise CheckpointError(str(error)) from error


def _vl_settings(vl: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "vl_layers": vl.get("num_layers"),
        "vl_heads": vl.get("num_attention_heads"),
        "vl_head_dim": vl.get("attention_head_dim"),
    }


def _refuse_variants(head: Mapping[str, Any], dit: Mapping[str, Any], base: GrootConfig) -> None:
    """Names a setting that would change the computation in a way this head does not follow."""
    required = {
        "add_pos_embed": (head, True),
        "use_vlln": (head, True),
        "use_alternate_vl_dit": (head, bool(base.text_every)),
        "state_history_length": (head, 1),
        "strict_action_padding_mask": (head, False),
        "use_tactile": (head, False),
        "interleave_self_attention": (dit, True),
        "norm_type": (dit, "ada_norm"),
        "positional_embeddings": (dit, None),
    }
    for name, (source, allowed) in required.items():
        if name in source and source[name] != allowed:
            raise CheckpointError(f"{name}: got {source[name]!r}, this head only has {allowed!r}")
