"""Checks whole networks of ttnn operations where they cannot run: ttnn's own graph capture without dispatch.

ttnn then does everything but run: it checks arguments, chooses programs and shardings and counts buffers. An operation
that refuses a shape or layout fails here as it does on a card. Nothing is placed in memory, so what does not fit into
L1 does not fail: see `Capture.fits`. Values do not exist and kernels are not built.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TensorRecord:
    """A tensor that an operation made. memory: ttnn's MemoryConfig as text, "host" where it is not on the device."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    memory: str


@dataclass(frozen=True)
class OperationRecord:
    """A call of a ttnn function: the device programs that it would have run, in order, and what it made last."""

    name: str
    programs: tuple[str, ...]
    outputs: tuple[TensorRecord, ...]


@dataclass(frozen=True)
class Capture:
    """What a function would have done on the device.

    result: what it returned; its tensors have shapes and memory configurations but no values.
    peak_l1: bytes of L1 in use at the worst moment on the fullest core, of which are
    peak_buffers (tensors and tables) and peak_circular_buffers; these two need not be at the same moment.
    l1_size: bytes of L1 that programs can use on a core.
    """

    result: Any
    operations: tuple[OperationRecord, ...]
    peak_l1: int
    peak_buffers: int
    peak_circular_buffers: int
    l1_size: int

    @property
    def fits(self) -> bool:
        """Whether it fits into L1. Fragmentation is not counted, so a Capture that fits barely may fail on a card."""
        return self.peak_l1 <= self.l1_size


def capture(function: Callable[[], Any]) -> Capture:
    """Calls `function` without running anything. What ttnn refuses raises as on a card.

    Tensors that it takes from the device must have been made before; those that it makes are of no use after.
    """
    import ttnn

    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    try:
        result = function()
    finally:
        graph = ttnn.graph.end_graph_capture()
    usage = ttnn.graph.extract_resource_usage_per_core(graph)
    l1_size = ttnn.get_max_worker_l1_unreserved_size()
    return Capture(result, _operations(graph), usage.peak_total, usage.peak_l1, usage.peak_cb, l1_size)


def _operations(graph: list[dict[str, Any]]) -> tuple[OperationRecord, ...]:
    """The outermost calls of a graph, whose nodes are in the order of time."""
    found, depth = [], 0
    name, programs = "", list[str]()
    outputs: tuple[TensorRecord, ...] = ()
    for node in graph:
        if node["node_type"] == "function_start":
            if depth == 0:
                name, programs, outputs = node["params"]["name"], [], ()
            if "program_factory_type" in node["params"]:
                programs.append(node["params"]["name"])
            depth += 1
        elif node["node_type"] == "function_end":
            depth -= 1
            outputs = _tensors(graph, node) or outputs
            if depth == 0 and name != "Tensor::deallocate":  # the end of a tensor, not a call
                found.append(OperationRecord(name, tuple(programs), outputs))
    return tuple(found)


def _tensors(graph: list[dict[str, Any]], node: dict[str, Any]) -> tuple[TensorRecord, ...]:
    following = [graph[index] for index in node["connections"]]
    return tuple(_tensor(other["params"]) for other in following if other["node_type"] == "tensor")


def _tensor(values: dict[str, str]) -> TensorRecord:
    return TensorRecord(
        shape=tuple(int(size) for size in re.findall(r"\d+", values["shape"])),
        dtype=values["dtype"].rpartition(":")[2],
        layout=values["layout"].rpartition(":")[2],
        memory=values.get("memory_config", "host"),
    )
