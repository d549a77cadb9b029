"""superpoint_node with an extractor that takes its time, as a process: slow_node.py configuring|inferring SECONDS."""

from __future__ import annotations

import os
import sys
import threading
import time

from ttsp_ros.ros.stop_signal import StopSignal, leave

stop = StopSignal().install()

from ttsp_ros.ros.lifecycle import spin  # noqa: E402
from ttsp_ros.ros.superpoint_node import SuperPointNode  # noqa: E402
from ttsp_ros.superpoint.features import Features  # noqa: E402


def end_with(parent: int) -> None:
    """Tests that are killed must leave nothing behind."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

PHASE, SECONDS = sys.argv[1], float(sys.argv[2])


class SlowExtractor:
    backend, description = "slow", "a slow one"

    def __init__(self, options, log):
        if PHASE == "configuring":
            print("configuring", flush=True)
            time.sleep(SECONDS)
        self.calls = 0

    def extract(self, image, settings, mask=None):
        self.calls += 1
        if PHASE == "inferring" and self.calls > 1:
            print("inferring", flush=True)
            time.sleep(SECONDS)
        return Features.empty()

    def check(self, settings):
        pass

    def close(self):
        print("closed", flush=True)


leave(spin(lambda: SuperPointNode(make_extractor=SlowExtractor), sys.argv[3:], stop))
