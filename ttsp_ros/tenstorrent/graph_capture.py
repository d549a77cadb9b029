"""Checks whole networks of ttnn operations where they cannot run: ttnn's own graph capture without dispatch.

ttnn then does everything but run: it checks arguments, chooses programs and shardings, builds kernels and counts
buffers. An operation that refuses a shape or layout fails here as it does on a card. Nothing is placed in memory, so
what does not fit into L1 does not fail: see `Capture.fits`. Values do not exist.

Where kernels can't be built (docs/simulator.md), a session with hollow kernels builds empty ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ttnn

L1_TYPE = 1  # ttnn.BufferType.L1; L1_SMALL has a part of L1 for itself and is another one
ALIGNMENT = 16  # of buffers in L1


@dataclass(frozen=True)
class TensorRecord:
    """A tensor that an operation made. memory: ttnn's MemoryConfig as text, "host" where it is not on the device."""

    shape: tuple[int, ...]
    dtype: str
    layout: str
    memory: str


@dataclass(frozen=True)
class L1Usage:
    """Bytes of L1 in use on the fullest core at one moment.

    buffers: tensors and tables. programs: the running program's circular buffers and scratchpads; those that are only
    another name for a tensor's memory are not counted again.
    """

    buffers: int = 0
    programs: int = 0

    @property
    def total(self) -> int:
        return self.buffers + self.programs


@dataclass(frozen=True)
class OperationRecord:
    """A call of a ttnn function.

    programs: the device programs that it would have run, in order; none where it only moves data from or to the host.
    kernels: the source files of a program of our own, below `kernels/`.
    outputs: what it made last. peak: L1 at its worst moment.
    """

    name: str
    programs: tuple[str, ...]
    kernels: tuple[str, ...]
    outputs: tuple[TensorRecord, ...]
    peak: L1Usage


@dataclass(frozen=True)
class Capture:
    """What a function would have done on the device.

    result: what it returned; its tensors have shapes and memory configurations but no values.
    peak: L1 at the worst moment. l1_size: bytes of L1 of a core that tensors and circular buffers share.
    """

    result: Any
    operations: tuple[OperationRecord, ...]
    peak: L1Usage
    l1_size: int

    @property
    def fits(self) -> bool:
        """Whether it fits into L1. Fragmentation is not counted, so a Capture that fits barely may fail on a card."""
        return self.peak.total <= self.l1_size


def capture(function: Callable[[], Any], device: ttnn.MeshDevice) -> Capture:
    """Calls `function` without running anything. What ttnn refuses raises as on a card.

    Args:
        function: makes its own tensors in L1, which are counted then; pools refuse to be captured while other ones are
            there. Tensors in DRAM may exist before. What it makes is of no use after.
        device: the one that `function` uses.
    """
    import ttnn

    ttnn.graph.begin_graph_capture(ttnn.graph.RunMode.NO_DISPATCH)
    try:
        result = function()
    finally:
        graph = ttnn.graph.end_graph_capture()
    operations = tuple(_operations(graph))
    peak = max((operation.peak for operation in operations), key=lambda usage: usage.total, default=L1Usage())
    return Capture(result, operations, peak, ttnn.get_memory_view(device, ttnn.BufferType.L1).total_bytes_per_bank)


def _operations(graph: list[dict[str, Any]]) -> Iterator[OperationRecord]:
    """The outermost calls of a graph, whose nodes are in the order of time."""
    memory, depth = _Memory(), 0
    name, programs, kernels = "", list[str](), list[str]()
    outputs: tuple[TensorRecord, ...] = ()
    peak = memory.usage
    for node in graph:
        memory.follow(node)
        peak = max(peak, memory.usage, key=lambda usage: usage.total)
        if node["node_type"] == "function_start":
            if depth == 0:
                name, programs, kernels, outputs, peak = node["params"]["name"], [], [], (), memory.usage
            if "program_factory_type" in node["params"]:
                programs.append(node["params"]["name"])
                kernels += _kernels(node["arguments"])
            depth += 1
        elif node["node_type"] == "function_end":
            memory.end_program()
            depth -= 1
            outputs = _tensors(graph, node) or outputs
            if depth == 0 and name != "Tensor::deallocate":  # the end of a tensor, not a call
                yield OperationRecord(name, tuple(programs), tuple(kernels), outputs, peak)


@dataclass
class _Memory:
    """L1 as the nodes of a graph fill and free it.

    A buffer takes the same place on all cores, from the top down. Circular buffers grow from the bottom on the cores of
    their program, each behind the last one on any of its cores.
    """

    buffers: dict[int, int] = field(default_factory=dict)  # bytes a core, by the buffer's node
    programs: dict[tuple[int, int], int] = field(default_factory=dict)  # end of what the program has, by core

    @property
    def usage(self) -> L1Usage:
        return L1Usage(sum(self.buffers.values()), max(self.programs.values(), default=0))

    def follow(self, node: Mapping[str, Any]) -> None:
        kind, params = node["node_type"], node["params"]
        if kind == "buffer_allocate" and params["buffer_type"] == L1_TYPE:
            self.buffers[node["connections"][0]] = params["max_size_per_bank"]
        elif kind == "buffer_deallocate":
            self.buffers.pop(node["connections"][0], None)
        elif kind == "circular_buffer_deallocate_all":
            self.end_program()
        elif kind in ("circular_buffer_allocate", "dataflow_buffer_allocate", "scratchpad_allocate"):
            borrows = params.get("globally_allocated") == "1" or params.get("borrows_memory") == "1"
            if not borrows:
                self._append(list(_cores(params["core_range_set"])), params["size"])

    def end_program(self) -> None:
        self.programs.clear()

    def _append(self, cores: list[tuple[int, int]], size: int) -> None:
        end = max(self.programs.get(core, 0) for core in cores) + -(-size // ALIGNMENT) * ALIGNMENT
        self.programs.update(dict.fromkeys(cores, end))


def _cores(ranges: str) -> Iterator[tuple[int, int]]:
    """Of a CoreRangeSet as text: "{[0-0 - 10-5], [0-6 - 8-6]}"."""
    for match in re.finditer(r"\[(\d+)-(\d+) - (\d+)-(\d+)\]", ranges):
        left, top, right, bottom = map(int, match.groups())
        yield from ((x, y) for x in range(left, right + 1) for y in range(top, bottom + 1))


def _kernels(arguments: Iterable[str]) -> list[str]:
    """Source files named in a program's description, below `kernels/`, each once."""
    paths = re.findall(r"[^\s\"'=,()]+\.cpp", " ".join(arguments))
    return list(dict.fromkeys(str(PurePath(*PurePath(path).parts[-2:])) for path in paths))


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
