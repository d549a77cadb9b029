"""Which form of each stage runs on the card: for comparisons on a card, all on by default."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Stages:
    """Each stage and how its two forms relate.

    Attributes:
        wide: the image goes up in pages of 64 bytes and is reshaped on the card, instead of pages of one pixel. The
            same bytes.
        hifi4: convolutions read all bits of activations and weights (HiFi4) instead of all but the activations' last
            bit (HiFi2), at twice the matrix cycles. HiFi2 cuts that bit off, so it makes every sum a little smaller.
        rms: descriptors are normalised by rms_norm (one bf16 rounding) instead of multiply, sum, rsqrt, multiply
            (a bf16 rounding after each).
        nms: NMS and candidates on the card, instead of scores to the host and NMS there. The same bits.
        sampler: descriptors are sampled on the card, instead of the dense map to the host and sampling there. The same
            bits before the last normalisation. Needs nms.
        trace: the whole graph is captured once and replayed, instead of launched operation by operation. The same
            bits; not possible with slow dispatch.
    """

    wide: bool = True
    hifi4: bool = True
    rms: bool = True
    nms: bool = True
    sampler: bool = True
    trace: bool = True

    def __post_init__(self) -> None:
        if self.sampler and not self.nms:
            raise ValueError("stages: sampler works on the lists that nms makes; leave both out, or only sampler")

    @staticmethod
    def names() -> tuple[str, ...]:
        return tuple(field.name for field in fields(Stages))

    @staticmethod
    def of(names: Iterable[str]) -> Stages:
        """Exactly these stages on.

        Raises:
            ValueError: an unknown name.
        """
        wanted = list(names)
        unknown = sorted(set(wanted) - set(Stages.names()))
        if unknown:
            raise ValueError(f"stages: unknown {', '.join(unknown)}; allowed are {', '.join(Stages.names())}")
        return Stages(**{name: name in wanted for name in Stages.names()})
