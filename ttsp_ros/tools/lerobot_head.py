"""lerobot's GR00T action head, an independent implementation to compare with (tests, bench).

lerobot 0.6.1 is installed without its dependencies, so the `__init__` files above its GR00T modules cannot run. The
two files that define the action head need none of that: `groot_n1_7.py` and `action_head/cross_attention_dit.py` are
loaded as they are, below empty packages that stand in for those `__init__` files.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from ttsp_ros.dit.config import GrootConfig
from ttsp_ros.dit.weights import Weights

_GROOT = "lerobot.policies.groot"


def load_lerobot() -> ModuleType:
    """lerobot's module `lerobot.policies.groot.groot_n1_7`.

    Raises:
        ImportError: lerobot is not installed (`pip install --no-deps lerobot==0.6.1`).
    """
    module = f"{_GROOT}.groot_n1_7"
    if module in sys.modules:
        return sys.modules[module]
    found = importlib.util.find_spec("lerobot")
    if found is None or found.origin is None:
        raise ImportError("lerobot is not installed; pip install --no-deps lerobot==0.6.1")
    root = Path(found.origin).parent
    for name in ("lerobot.policies", _GROOT, f"{_GROOT}.action_head"):
        package = ModuleType(name)
        package.__path__ = [str(root.joinpath(*name.split(".")[1:]))]
        sys.modules[name] = package
    # Sizes of camera images, which the action head never sees; the real module pulls in torchvision.
    configuration = ModuleType(f"{_GROOT}.configuration_groot")
    vars(configuration).update(N1_7_DEFAULT_IMAGE_CROP_SIZE=None, N1_7_DEFAULT_IMAGE_TARGET_SIZE=None)
    sys.modules[configuration.__name__] = configuration
    return importlib.import_module(module)


class LerobotHead(nn.Module):
    """lerobot's action head with the dimensions of any version, and given weights.

    N1.6 and N1.7 are lerobot's own head class. lerobot 0.6.1 has no N1.5 head, only its parts (DiT, VL self-attention,
    per-embodiment layers); `_sample_n15` joins them as Isaac-GR00T's N1.5 does.
    """

    def __init__(self, config: GrootConfig, weights: Weights, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        lerobot = load_lerobot()
        with torch.device("meta"):
            self.head = lerobot.GR00TN17ActionHead(_settings(lerobot, config))
            if config.n_future_tokens:
                self.head.future_tokens = nn.Embedding(config.n_future_tokens, config.width)
        for name, parameter in list(self.head.named_parameters()):
            value = weights.tensor(name).to(dtype)
            if value.shape != parameter.shape:
                raise ValueError(f"{name}: lerobot has {tuple(parameter.shape)}, given {tuple(value.shape)}")
            owner, _, last = name.rpartition(".")
            setattr(self.head.get_submodule(owner), last, nn.Parameter(value, requires_grad=False))
        self.head.eval()

    @torch.no_grad()
    def sample(
        self, features: Tensor, is_image: Tensor, state: Tensor, noise: Tensor, embodiment: int, **options: Any
    ) -> Tensor:
        """Normalised actions [horizon, max_action_dim]; features [tokens, vl_dim], state [max_state_dim].

        Options: `previous` [rows, max_action_dim], `overlap`, `frozen`, `ramp_rate` for real-time chunking.
        """
        backbone, inputs = _inputs(features, is_image, state, embodiment)
        if self.config.n_future_tokens:
            return self._sample_n15(backbone, inputs, noise)
        rtc = None
        if options:
            inputs["action"] = options["previous"][None]
            rtc = {
                "action_horizon": len(options["previous"]),
                "rtc_overlap_steps": options["overlap"],
                "rtc_frozen_steps": options["frozen"],
                "rtc_ramp_rate": options["ramp_rate"],
            }
        with _fixed_noise(noise):
            return self.head.get_action(backbone, inputs, rtc)["action_pred"][0]

    def _sample_n15(self, backbone: Any, inputs: Any, noise: Tensor) -> Tensor:
        head, config = self.head, self.config
        vl = head.process_backbone_output(backbone)["backbone_features"]
        state = head.state_encoder(inputs.state, inputs.embodiment_id)
        actions = noise[None]
        for timestep in config.timesteps:
            time = torch.full((1,), timestep)
            encoded = head.action_encoder(actions.to(vl.dtype), time, inputs.embodiment_id)
            encoded = encoded + head.position_embedding.weight[: config.horizon]
            x = torch.cat([state, head.future_tokens.weight[None], encoded], dim=1)
            output = head.model(hidden_states=x, encoder_hidden_states=vl, timestep=time)
            velocity = head.action_decoder(output, inputs.embodiment_id)[:, -config.horizon :]
            actions = actions + velocity / config.n_steps
        return actions[0]


def _inputs(features: Tensor, is_image: Tensor, state: Tensor, embodiment: int) -> tuple[Any, Any]:
    from transformers.feature_extraction_utils import BatchFeature

    backbone = {
        "backbone_features": features[None],
        "backbone_attention_mask": torch.ones(1, len(features), dtype=torch.bool),
        "image_mask": is_image[None],
    }
    inputs = {"state": state[None, None], "embodiment_id": torch.tensor([embodiment])}
    return BatchFeature(data=backbone), BatchFeature(data=inputs)


class _fixed_noise:  # noqa: N801  (a context manager, used like a function)
    """Lets lerobot's head, which draws its own noise, start from a given one."""

    def __init__(self, noise: Tensor) -> None:
        self._noise = noise

    def __enter__(self) -> None:
        self._randn = torch.randn
        noise = self._noise

        def given(*, size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
            return noise.reshape(size).to(device, dtype).clone()

        torch.randn = given  # type: ignore[assignment]

    def __exit__(self, *_: object) -> None:
        torch.randn = self._randn


def _settings(lerobot: ModuleType, config: GrootConfig) -> Any:
    """lerobot's own configuration object with our dimensions."""
    defaults = lerobot.GR00T_N1_7_DEFAULTS
    dit = {
        **defaults["diffusion_model_cfg"],
        "num_layers": config.n_blocks,
        "num_attention_heads": config.n_heads,
        "attention_head_dim": config.head_dim,
        "output_dim": config.out_dim,
    }
    vl = {
        **defaults["vl_self_attention_cfg"],
        "num_layers": config.vl_layers,
        "num_attention_heads": config.vl_heads,
        "attention_head_dim": config.vl_head_dim,
    }
    return lerobot.GR00TN17Config(
        diffusion_model_cfg=dit,
        vl_self_attention_cfg=vl,
        use_alternate_vl_dit=bool(config.text_every),
        attend_text_every_n_blocks=config.text_every or 2,
        max_state_dim=config.max_state_dim,
        max_action_dim=config.max_action_dim,
        action_horizon=config.horizon,
        hidden_size=config.hidden,
        input_embedding_dim=config.width,
        backbone_embedding_dim=config.vl_dim,
        max_seq_len=config.max_seq_len,
        max_num_embodiments=config.n_embodiments,
        num_inference_timesteps=config.n_steps,
        num_timestep_buckets=config.n_timestep_buckets,
    )
