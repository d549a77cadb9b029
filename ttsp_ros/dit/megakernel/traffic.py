"""What the plan asks of the DRAM in one denoising step, and the time below which no kernel can be."""

from __future__ import annotations

from dataclasses import dataclass

from ttsp_ros.dit.megakernel.arena import HEAD_DIM_PADDED, TILE, TILE_BYTES, ArenaLayout, Operation

#: Blackhole p150: eight GDDR6 controllers of 64 GB/s.
DRAM_BYTES_PER_SECOND = 512e9


@dataclass(frozen=True)
class Traffic:
    """Bytes read from each bank in one step.

    Attributes:
        blocks, tail: weights, padding slots not counted.
        keys: cross keys and values, which the cores read anew in every step.
    """

    blocks: tuple[int, ...]
    tail: tuple[int, ...]
    keys: tuple[int, ...]

    @property
    def banks(self) -> tuple[int, ...]:
        return tuple(map(sum, zip(self.blocks, self.tail, self.keys, strict=True)))

    @property
    def step_bytes(self) -> int:
        return sum(self.banks)

    @property
    def balance(self) -> float:
        """Busiest bank over the mean: 1 is even."""
        return max(self.banks) * len(self.banks) / self.step_bytes

    def seconds(self, steps: int) -> float:
        """Least time of `steps` steps: the busiest bank at its share of the bandwidth."""
        return steps * max(self.banks) * len(self.banks) / DRAM_BYTES_PER_SECOND


def model_traffic(layout: ArenaLayout) -> Traffic:
    """The traffic of a layout. Keys and values are interleaved: tile t of each tensor lies in bank t % banks."""
    keys = [0] * layout.n_banks
    for block in layout.config.cross_blocks:
        tiles = layout.config.n_heads * layout.keys_padded(block) * HEAD_DIM_PADDED // TILE**2
        for bank in range(layout.n_banks):
            keys[bank] += 2 * len(range(bank, tiles, layout.n_banks)) * TILE_BYTES["bf16"]
    return Traffic(_weights(layout, layout.stream_ops), _weights(layout, layout.tail_ops), tuple(keys))


def _weights(layout: ArenaLayout, operations: tuple[Operation, ...]) -> tuple[int, ...]:
    read = [0] * layout.n_banks
    for op in operations:
        for core in range(op.n_cores):
            read[layout.bank_of(core)] += op.piece_bytes
    return tuple(read)


def busiest_core(layout: ArenaLayout) -> tuple[int, float]:
    """Weight bytes of the compute core that streams most in a step, and its ratio to the mean."""
    read = [0] * layout.n_compute
    for op in layout.stream_ops + layout.tail_ops:
        for core in range(op.n_cores):
            read[core] += op.piece_bytes
    return max(read), max(read) * len(read) / sum(read)
