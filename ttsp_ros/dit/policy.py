"""From an observation to an action chunk in the robot's own units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ttsp_ros.dit.chunking import NS, ActionChunk, Plan
from ttsp_ros.dit.config import GrootConfig
from ttsp_ros.dit.model import Inpainting
from ttsp_ros.dit.normalisation import Modality


@dataclass(frozen=True)
class Tokens:
    """The vision-language tokens of one observation.

    Attributes:
        features: float32 [tokens, vl_dim], as the backbone gives them.
        is_image: bool [tokens], image tokens; the others are text.
        valid: bool [tokens], False for padding, which is left out.
    """

    features: np.ndarray
    is_image: np.ndarray
    valid: np.ndarray

    def __post_init__(self) -> None:
        if self.features.ndim != 2:
            raise ValueError(f"features: got shape {self.features.shape}, expected [tokens, width]")
        for name in ("is_image", "valid"):
            mask = getattr(self, name)
            if mask.shape != self.features.shape[:1] or mask.dtype != bool:
                raise ValueError(f"{name}: got {mask.dtype} {mask.shape}, expected bool ({len(self.features)},)")

    def without_padding(self) -> Tokens:
        """Only valid tokens; all of their features must be finite.

        Raises:
            ValueError: no valid token, or one with a feature that is not finite.
        """
        if not self.valid.any():
            raise ValueError(f"none of the {len(self.features)} tokens is valid")
        kept = (
            self
            if self.valid.all()
            else Tokens(*(part[self.valid] for part in (self.features, self.is_image, self.valid)))
        )
        finite = np.isfinite(kept.features).all(axis=1)
        if not finite.all():
            raise ValueError(f"{np.count_nonzero(~finite)} of {len(finite)} tokens have a feature that is not finite")
        return kept


class Head(Protocol):
    """What computes normalised actions; `ActionHead` is one, a head on the card another."""

    config: GrootConfig

    def encode_tokens(self, features: Tensor, is_image: Tensor | None = None, valid: Tensor | None = None) -> Any: ...

    def noise(self, seed: int | None = None) -> Tensor: ...

    def sample(self, context: Any, state: Tensor, noise: Tensor, inpainting: Inpainting | None = None) -> Tensor: ...


@dataclass(frozen=True)
class Prediction:
    """A chunk, and what real-time chunking needs of it.

    Attributes:
        chunk: in the robot's units.
        rows: float32 [horizon, max_action_dim], as the head gave them.
    """

    chunk: ActionChunk
    rows: np.ndarray


@dataclass(frozen=True)
class Continuation:
    """What the next chunk has to continue.

    Attributes:
        plan: what the arm is told to do.
        last: the prediction that the plan came from.
        frozen: rows, from the observation on, that will have passed when the next chunk is ready.
        overlap: rows after those in which the chunk may depart from the plan only gradually.
    """

    plan: Plan
    last: Prediction
    frozen: int
    overlap: int


class Policy:
    """One robot driven by one head.

    Args:
        head: computes normalised actions with this robot's weights.
        modality: the robot.
        action_dt: seconds from row to row of a chunk, as in the training data.

    Raises:
        ValueError: the head's dimensions don't take this robot.
    """

    def __init__(self, head: Head, modality: Modality, action_dt: float) -> None:
        config = head.config
        modality.check(config.max_state_dim, config.max_action_dim, config.horizon, config.n_embodiments)
        self.head = head
        self.modality = modality
        self.action_dt = action_dt

    def predict(
        self,
        tokens: Tokens,
        positions: Mapping[str, float],
        stamp: int,
        seed: int | None = None,
        continuation: Continuation | None = None,
    ) -> Prediction:
        """The chunk that starts at an observation.

        Args:
            tokens: of the images and the instruction.
            positions: rad or m by joint name, at the time of the images.
            stamp: time of the observation, ns.
            seed: of the noise that the chunk is made from; None: another one each time.
            continuation: real-time chunking with the running plan.

        Raises:
            ValueError: tokens or positions are incomplete or not finite, or the head's result is not.
        """
        modality, config = self.modality, self.head.config
        tokens = tokens.without_padding()
        state = torch.from_numpy(modality.encode_state(positions, config.max_state_dim))
        context = self.head.encode_tokens(
            torch.from_numpy(np.ascontiguousarray(tokens.features, np.float32)), torch.from_numpy(tokens.is_image)
        )
        inpainting = None if continuation is None else self._inpainting(continuation, positions, stamp)
        rows = self.head.sample(context, state, self.head.noise(seed), inpainting).numpy()
        moves = modality.decode_actions(rows, positions).astype(np.float32)
        return Prediction(ActionChunk(moves, modality.joints, self.action_dt, stamp), rows)

    def _inpainting(self, continuation: Continuation, positions: Mapping[str, float], stamp: int) -> Inpainting | None:
        """The plan at the new chunk's times, as the head sees it; None when the plan ends before."""
        step = self.action_dt * NS
        planned = int((continuation.plan.end - stamp) // step) + 1
        count = min(continuation.frozen + continuation.overlap, planned, self.modality.steps)
        if count < 1:
            return None
        times = stamp + np.round(np.arange(count) * step).astype(np.int64)
        shift = round((stamp - continuation.last.chunk.stamp) / step)
        last = np.clip(shift + np.arange(count), 0, len(continuation.last.rows) - 1)
        rows = self.modality.encode_actions(continuation.plan.at(times), positions, continuation.last.rows[last])
        return Inpainting(torch.from_numpy(rows), min(continuation.frozen, count))
