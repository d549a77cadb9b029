"""How torch's CPU threads wait for one another."""

from __future__ import annotations

import os


def wait_passively() -> None:
    """Threads of OpenMP that wait give their core to others, unless the user's OMP_WAIT_POLICY says otherwise.

    By default they spin, and when another process has the core of the thread that they wait for, they keep it from
    running. On two cores with five other busy processes an image took 1.5 to 4 s like that, and 0.2 to 0.3 s with
    passive waiting; with idle cores there is no difference to be measured.

    To be called before torch is imported: OpenMP reads its settings once, and knows no other way to be told.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
