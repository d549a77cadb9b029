"""Which backend computes the features: the one place that knows them all. Imports them when one is made, not before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ttsp_ros.simulator.environment import active_grid

if TYPE_CHECKING:
    from ttsp_ros.superpoint.extractor import Extractor

BACKENDS = ("auto", "ttnn", "torch")
NETWORKS = ("device", "host")
CARD_DEVICES = Path("/dev/tenstorrent")


class BackendError(ValueError):
    """The backend that was asked for can't be had here; the text names what is missing."""


@dataclass(frozen=True)
class ExtractorOptions:
    """What is fixed when an extractor is made.

    Attributes:
        backend: one of BACKENDS; "auto" is ttnn where nothing is missing for it, else torch.
        weights: a weight file; None for the default one.
        precision: "auto", "float32" or "bfloat16".
        resize: (height, width) that every image is resized to; None keeps its size.
        threads: CPU threads of torch; None leaves them as they are.
        network: of the ttnn backend, one of NETWORKS: "device" runs the network on the card, "host" with torch, and
            only what follows it on the card.
    """

    backend: str = "auto"
    weights: Path | None = None
    precision: str = "auto"
    resize: tuple[int, int] | None = None
    threads: int | None = None
    network: str = "device"


def missing_for_ttnn() -> str | None:
    """What the ttnn backend lacks here; None when it can be used, be it on a simulated Blackhole."""
    if find_spec("ttnn") is None:
        return "the Python package ttnn isn't installed (pip install ttnn)"
    return None if active_grid() is not None else missing_card()


def missing_card() -> str | None:
    """Why there is no real card here; None when there is one."""
    if CARD_DEVICES.is_dir() and any(CARD_DEVICES.iterdir()):
        return None
    return f"no card: nothing in {CARD_DEVICES} (is it plugged in, and the driver tt-kmd loaded?)"


def create_extractor(options: ExtractorOptions, log: Callable[[str], None] = lambda line: None) -> Extractor:
    """Make the extractor that `options` ask for.

    Args:
        log: gets one line that says what was taken, and for "auto" why.

    Raises:
        BackendError: "ttnn" was asked for, and something is missing for it; or there is no such backend.
        ValueError: another option isn't allowed, or the weights can't be used.
    """
    if options.backend not in BACKENDS:
        raise BackendError(f"backend: got '{options.backend}', allowed is one of {', '.join(BACKENDS)}")
    missing = missing_for_ttnn() if options.backend != "torch" else None
    if options.backend == "auto":
        missing = missing or missing_card()  # a simulated card is for whoever asks for it
    if options.backend == "ttnn" and missing:
        raise BackendError(f"backend 'ttnn' can't be used: {missing}. 'torch' runs everywhere")
    if options.backend == "torch" or missing:
        extractor = _torch(options)
        reason = f" ('auto': not ttnn, since {missing})" if missing else ""
    else:
        extractor = _ttnn(options, log)
        reason = " ('auto': a card is there)" if options.backend == "auto" else ""
    log(f"backend {extractor.backend}{reason}: {extractor.description}")
    return extractor


def _torch(options: ExtractorOptions) -> Extractor:
    from ttsp_ros.superpoint.extractor import TorchExtractor

    return TorchExtractor(options.weights, options.precision, options.resize, options.threads)


def _ttnn(options: ExtractorOptions, log: Callable[[str], None]) -> Extractor:
    from ttsp_ros.tenstorrent.extractor import TtExtractor, TtExtractorConfig

    if options.precision == "float32":
        raise BackendError("precision: got 'float32', but the card computes in bfloat16; allowed are auto and bfloat16")
    return TtExtractor(options.weights, options.resize, config=TtExtractorConfig(options.network), log=log)
