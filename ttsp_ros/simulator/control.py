"""What a simulator process and the process that uses it tell each other, besides ttnn's own wire: files in one folder.

ttnn starts the simulator and leaves no room for arguments, so both find the folder by the user's process id. Standard
library only: the simulator may run in an interpreter that has neither ttnn nor torch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FAILURE_SIGNAL = signal.SIGUSR1  # the simulator sends it to its user when a program fails


@dataclass(frozen=True)
class Control:
    """The folder of the process `user`, the one whose ttnn uses the simulator."""

    user: int

    @property
    def folder(self) -> Path:
        return Path(tempfile.gettempdir()) / f"ttsp_ros-simulator-{os.getuid()}" / str(self.user)

    @property
    def log(self) -> Path:
        """What the simulator prints."""
        return self.folder / "log.txt"

    @property
    def failure(self) -> Path:
        """The report of a program that failed, written before FAILURE_SIGNAL."""
        return self.folder / "failure.txt"

    @property
    def signals(self) -> Path:
        """A pipe with the number of each signal that the user gets, also while it is inside ttnn and cannot react."""
        return self.folder / "signals"

    @property
    def measuring(self) -> Path:
        """Exists while launches are to be measured."""
        return self.folder / "measuring"

    @property
    def launches(self) -> Path:
        """A line of JSON for each measured launch."""
        return self.folder / "launches.jsonl"

    def prepare(self) -> None:
        """Makes the folder and the pipe, whichever of the two processes comes first."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.mkfifo(self.signals)

    @classmethod
    def remove_stale(cls) -> None:
        """Removes the folders of processes that are no more, left where a simulator was killed."""
        for folder in cls(os.getpid()).folder.parent.glob("*"):
            if not Path("/proc", folder.name).exists():
                shutil.rmtree(folder, ignore_errors=True)

    def read_launches(self) -> list[dict[str, Any]]:
        if not self.launches.exists():
            return []
        return [json.loads(line) for line in self.launches.read_text().splitlines()]
