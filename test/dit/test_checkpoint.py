"""Checkpoints written with the names of NVIDIA/Isaac-GR00T."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ttsp_ros.dit.checkpoint import Checkpoint, CheckpointError, config_from_json, read_config
from ttsp_ros.dit.config import CONFIGS, N15, N16, N17, GrootConfig
from ttsp_ros.dit.model import ActionHead
from ttsp_ros.dit.weights import RandomWeights, expected_shapes

BACKBONES = {
    "n1.5": "backbone.eagle_model.language_model.model.layers.0.mlp.up_proj.weight",
    "n1.6": "backbone.model.language_model.model.layers.0.self_attn.q_proj.weight",
    "n1.7": "backbone.model.model.visual.patch_embed.proj.weight",
}

# As the published config.json files have it, with the sizes of the tiny heads.
N15_JSON = {
    "model_type": "gr00t_n1_5",
    "action_horizon": 16,
    "action_dim": 32,
    "backbone_cfg": {"select_layer": 12},
    "action_head_cfg": {
        "action_dim": 32,
        "action_horizon": 16,
        "add_pos_embed": True,
        "backbone_embedding_dim": 32,
        "hidden_size": 40,
        "input_embedding_dim": 32,
        "max_num_embodiments": 32,
        "max_seq_len": 64,
        "max_state_dim": 64,
        "num_inference_timesteps": 4,
        "num_target_vision_tokens": 32,
        "use_vlln": True,
        "diffusion_model_cfg": {
            "attention_head_dim": 16,
            "cross_attention_dim": 32,
            "interleave_self_attention": True,
            "norm_type": "ada_norm",
            "num_attention_heads": 2,
            "num_layers": 4,
            "output_dim": 40,
            "positional_embeddings": None,
        },
        "vl_self_attention_cfg": {"attention_head_dim": 8, "num_attention_heads": 4, "num_layers": 2},
    },
}


def small(config: GrootConfig) -> GrootConfig:
    tiny = config.tiny()
    return replace(tiny, out_dim=tiny.hidden, ff_dim=4 * tiny.width, vl_ff_dim=4 * tiny.vl_dim)


def tensors_of(config: GrootConfig, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    """Head and a bit of backbone, as in a published file."""
    weights = RandomWeights(config, seed=4, dtype=dtype, spread=3.0)
    head = {f"action_head.{name}": weights.tensor(name) for name in expected_shapes(config)}
    return {**head, BACKBONES[config.version]: torch.zeros(3)}


def write(folder: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> Path:
    """model.safetensors, or shards with an index; each tensor in the next shard."""
    folder.mkdir(exist_ok=True)
    if shards == 1:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
        return folder
    files = [f"model-{shard + 1:05d}-of-{shards:05d}.safetensors" for shard in range(shards)]
    weight_map = {name: files[index % shards] for index, name in enumerate(tensors)}
    for file in files:
        part = {name: tensor.contiguous() for name, tensor in tensors.items() if weight_map[name] == file}
        save_file(part, folder / file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def chunk(head: ActionHead) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(20, head.config.vl_dim, generator=generator)
    context = head.encode_tokens(features, torch.arange(20) > 8)
    return head.sample(context, torch.randn(head.config.max_state_dim, generator=generator), head.noise(1))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("shards", [1, 3])
def test_head_from_a_checkpoint_is_the_head(config: GrootConfig, shards: int, tmp_path: Path) -> None:
    config = small(config)
    folder = write(tmp_path / "model", tensors_of(config), shards)
    with Checkpoint(folder, config) as weights:
        loaded = ActionHead(config, weights, 7)
    direct = ActionHead(config, RandomWeights(config, seed=4, dtype=torch.bfloat16, spread=3.0), 7)
    assert torch.equal(chunk(loaded), chunk(direct))


def test_lerobots_prefix_and_training_only_tensors(tmp_path: Path) -> None:
    config = small(N16)
    tensors = {f"_groot_model.{name}": tensor for name, tensor in tensors_of(config).items()}
    tensors["_groot_model.action_head.mask_token"] = torch.zeros(1, 1, config.width)
    with Checkpoint(write(tmp_path / "model", tensors), config) as weights:
        assert weights.tensor("vlln.weight").shape == (config.vl_dim,)


def test_one_file_alone(tmp_path: Path) -> None:
    config = small(N17)
    file = write(tmp_path / "model", tensors_of(config)) / "model.safetensors"
    with Checkpoint(file, config) as weights:
        assert torch.equal(weights.row("state_encoder.layer1.W", 3), weights.tensor("state_encoder.layer1.W")[3])


def missing(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["action_head.model.transformer_blocks.1.attn1.to_q.bias"]


def unknown(tensors: dict[str, torch.Tensor]) -> None:
    tensors["action_head.model.transformer_blocks.0.attn2.to_q.bias"] = torch.zeros(1)


def stranger(tensors: dict[str, torch.Tensor]) -> None:
    tensors["encoder.layer.0.weight"] = torch.zeros(1)


def misshapen(tensors: dict[str, torch.Tensor]) -> None:
    tensors["action_head.vlln.weight"] = torch.zeros(7)


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (missing, r"needs 1 tensors more: model\.transformer_blocks\.1\.attn1\.to_q\.bias"),
        (unknown, r"n1\.5 has no model\.transformer_blocks\.0\.attn2\.to_q\.bias"),
        (stranger, r"belong neither to action_head\.\* nor to backbone\.\*: encoder\.layer\.0\.weight"),
        (misshapen, r"action_head\.vlln\.weight has shape \(7,\), GR00T n1\.5 expects \(32,\)"),
    ],
)
def test_damaged_checkpoints_are_refused_by_name(damage, message: str, shards: int, tmp_path: Path) -> None:
    config = small(N15)
    tensors = tensors_of(config)
    damage(tensors)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(write(tmp_path / "model", tensors, shards), config)


def test_files_that_are_not_there_or_not_whole(tmp_path: Path) -> None:
    config = small(N15)
    with pytest.raises(CheckpointError, match="no such file or folder"):
        Checkpoint(tmp_path / "nothing", config)
    with pytest.raises(CheckpointError, match=r"holds neither model\.safetensors nor"):
        Checkpoint(tmp_path, config)
    folder = write(tmp_path / "model", tensors_of(config), shards=2)
    shard = folder / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(CheckpointError, match="is no safetensors file or is cut short"):
        Checkpoint(folder, config)
    shard.unlink()
    with pytest.raises(CheckpointError, match="is missing, though the index lists it"):
        Checkpoint(folder, config)


def test_index_that_promises_too_much(tmp_path: Path) -> None:
    config = small(N15)
    folder = write(tmp_path / "model", tensors_of(config), shards=2)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"]["action_head.more"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"the index promises action_head\.more"):
        Checkpoint(folder, config)


def test_version_and_sizes_from_config_json(tmp_path: Path) -> None:
    assert config_from_json(N15_JSON) == small(N15)
    assert config_from_json({"model_type": "Gr00tN1d7", "action_horizon": 16}) == replace(N17, horizon=16)
    n16 = {"model_type": "Gr00tN1d6", "max_state_dim": 29, "diffusion_model_cfg": {"num_layers": 16}}
    assert config_from_json(n16) == replace(N16, max_state_dim=29, n_blocks=16)
    (tmp_path / "config.json").write_text(json.dumps(N15_JSON))
    assert read_config(tmp_path) == small(N15)
    folder = write(tmp_path, tensors_of(small(N15)))
    with Checkpoint(folder) as weights:
        assert weights.config.version == "n1.5"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "llama"}, "model_type: got 'llama', allowed are gr00t_n1_5"),
        ({"state_history_length": 2}, "state_history_length: got 2"),
        ({"strict_action_padding_mask": True}, "strict_action_padding_mask: got True"),
        ({"use_alternate_vl_dit": False}, "use_alternate_vl_dit: got False"),
        ({"diffusion_model_cfg": {"norm_type": "layer_norm"}}, "norm_type: got 'layer_norm'"),
        ({"diffusion_model_cfg": {"num_layers": 31}}, "n_blocks: got 31, must be even"),
    ],
)
def test_variants_that_this_head_does_not_have(change, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        config_from_json({"model_type": "Gr00tN1d7", **change})


def test_no_config_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is missing, so the version is unknown"):
        read_config(tmp_path)
