"""The open card: opened once, used by one thread, closed on every way out."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ttnn


class DeviceError(RuntimeError):
    """The card can't be opened, or failed at work; the text says what to do."""


@dataclass(frozen=True)
class SessionConfig:
    """How the card is opened.

    Attributes:
        device_id: which card.
        l1_small_size: bytes of each L1 set apart for the tables of convolutions and pools. Graph capture of SuperPoint
            shows at most 3 KiB in use at once; 32 KiB are what ttnn's own vision models take.
        trace_region_size: bytes of DRAM for captured traces. The graph launches 49 programs on up to 130 cores (see
            `superpoint_graph`); a SuperPoint port of 100 launches was given 6 MiB, and 32 MiB leave room for the
            second trace.
    """

    device_id: int = 0
    l1_small_size: int = 32 * 1024
    trace_region_size: int = 32 * 1024 * 1024


class DeviceSession:
    """One open card. Everything but the constructor runs on the thread that called `open`.

    `open` may be called again after `close`: that is how a card that failed is brought back.
    """

    def __init__(self, config: SessionConfig | None = None) -> None:
        self.config = config or SessionConfig()
        self._device: ttnn.MeshDevice | None = None
        self._owner: int | None = None

    def open(self) -> None:
        """Open the card for the calling thread.

        Raises:
            DeviceError: ttnn is not installed, there is no such card, or another process has it.
        """
        if self._device is not None:
            raise DeviceError("the card is open already; one session is one card")
        try:
            import ttnn
        except ImportError as error:
            raise DeviceError(f"ttnn can't be imported ({error}). Install it with 'pip install ttnn'") from error
        config = self.config
        try:
            self._device = ttnn.open_device(
                device_id=config.device_id,
                l1_small_size=config.l1_small_size,
                trace_region_size=config.trace_region_size if self.fast_dispatch else 0,
            )
        except Exception as error:
            raise DeviceError(_explain(error, config.device_id)) from error
        self._owner = threading.get_ident()

    @property
    def device(self) -> ttnn.MeshDevice:
        """The open device, for the thread that opened it.

        Raises:
            DeviceError: not open, or another thread asks.
        """
        if self._device is None:
            raise DeviceError("the card is not open")
        if threading.get_ident() != self._owner:
            raise DeviceError("the card belongs to the thread that opened it; hand the work to that thread")
        return self._device

    @property
    def is_open(self) -> bool:
        return self._device is not None

    @property
    def fast_dispatch(self) -> bool:
        """Whether ttnn's own setting leaves launching to the card, which traces need (a simulated card has not)."""
        return os.environ.get("TT_METAL_SLOW_DISPATCH_MODE", "0") in ("", "0")

    def close(self) -> None:
        """Close the card; nothing where it is closed already. A card that fails while it closes counts as closed."""
        if self._device is None:
            return
        import ttnn

        device, self._device, self._owner = self.device, None, None
        ttnn.close_device(device)


#: What ttnn says when a card can't be opened, and what it means. The first that is in the message counts.
_CAUSES = (
    (("lock", "in use", "busy", "already open"), "another process has it: end that process, or take another card"),
    (("no such", "not found", "no chips", "no devices", "0 devices"), "it isn't there: is the driver tt-kmd loaded?"),
    (("permission",), "no permission: add your user to the group of /dev/tenstorrent/*"),
    (("firmware", "version"), "firmware and ttnn don't fit together: see the release notes of ttnn"),
)


def _explain(error: Exception, device_id: int) -> str:
    text = str(error) or type(error).__name__
    first_line = next((line.strip() for line in text.splitlines() if line.strip()), text)
    lowered = text.lower()
    cause = next((meaning for words, meaning in _CAUSES if any(word in lowered for word in words)), None)
    advice = f"{cause} " if cause else ""
    return f"card {device_id} can't be opened: {advice}({first_line})"
