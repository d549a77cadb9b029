"""A ttnn that computes nothing and does what a test tells it: for failures that no simulated card can be brought to."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch


class ScriptedTtnn(MagicMock):
    """Takes the place of the module ttnn. Every image has no keypoint: all that is read are zeros.

    Attributes of a test's interest:
        failures: name of a function to the exceptions that its next calls raise; None in the list lets a call pass.
        calls: names of the functions called, in order.
        threads: idents of the threads that called.
        live_traces: traces that could be replayed.
        open_devices: devices not closed yet.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.failures: dict[str, list[Exception | None]] = {}
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.live_traces: set[int] = set()
        self.open_devices = 0
        self.capturing = False
        self._traces = 0
        for name in (
            "open_device",
            "close_device",
            "from_torch",
            "to_torch",
            "copy_host_to_device_tensor",
            "allocate_tensor_on_device",
            "conv2d",
            "generic_op",
            "begin_trace_capture",
            "end_trace_capture",
            "execute_trace",
            "release_trace",
            "synchronize_device",
        ):
            setattr(self, name, MagicMock(side_effect=self._scripted(name)))
        self.DRAM_MEMORY_CONFIG = "DRAM"
        self.Shape = tuple

    def _get_child_mock(self, **kwargs: Any) -> MagicMock:
        return MagicMock(**kwargs)

    def _scripted(self, name: str) -> Any:
        action = getattr(self, f"_do_{name}", lambda *args, **kwargs: MagicMock(name=name))

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self.threads.add(threading.get_ident())
            waiting = self.failures.get(name)
            failure = waiting.pop(0) if waiting else None
            if failure is not None:
                raise failure
            return action(*args, **kwargs)

        return call

    def _do_open_device(self, **options: Any) -> Any:
        self.open_devices += 1
        self.live_traces.clear()
        device = MagicMock(name="device")
        device.compute_with_storage_grid_size.return_value = SimpleNamespace(x=11, y=10)
        device.worker_core_from_logical_core.side_effect = lambda core: SimpleNamespace(x=1, y=2)
        return device

    def _do_close_device(self, device: Any) -> None:
        self.open_devices -= 1

    def _do_allocate_tensor_on_device(self, shape: Any, dtype: Any, order: Any, device: Any, memory: Any) -> Any:
        assert self.capturing or not self.live_traces, "allocated where a trace that can be replayed may write"
        return self._tensor(shape, dtype, order)

    def _do_from_torch(self, values: torch.Tensor, **options: Any) -> Any:
        if "device" in options:
            assert self.capturing or not self.live_traces, "allocated where a trace that can be replayed may write"
        return self._tensor(tuple(values.shape), options.get("dtype"), options.get("layout"))

    def _tensor(self, shape: Any, dtype: Any, order: Any) -> Any:
        tensor = MagicMock(name="tensor", dtype=dtype, layout=order)
        tensor.shape = tensor.padded_shape = shape
        tensor.buffer_address.return_value = 0x1000
        tensor.memory_config.return_value = self.DRAM_MEMORY_CONFIG
        tensor.cpu.side_effect = lambda **options: tensor
        return tensor

    def _do_conv2d(self, **options: Any) -> Any:
        return MagicMock(name="activations"), (options["weight_tensor"], options["bias_tensor"])

    def _do_to_torch(self, tensor: Any) -> torch.Tensor:
        return torch.zeros(tuple(tensor.shape))

    def _do_begin_trace_capture(self, device: Any, cq_id: int) -> int:
        self.capturing = True
        self._traces += 1
        return self._traces

    def _do_end_trace_capture(self, device: Any, trace: int, cq_id: int) -> None:
        self.capturing = False
        self.live_traces.add(trace)

    def _do_execute_trace(self, device: Any, trace: int, cq_id: int, blocking: bool) -> None:
        assert trace in self.live_traces, "replayed a trace that was released"

    def _do_release_trace(self, device: Any, trace: int) -> None:
        self.live_traces.remove(trace)
