"""Which Tensix core does what: one rectangle of cores, five roles.

* compute: 2 row tiles x 48 column tiles of the token stream [64, 1536], core c numbered row by row. Its DRAM bank is
  c % 8. Cores h, 32 + h and 64 + h hold query, key and value of head h.
* reader: one a DRAM bank, close to it; in "relay" mode it reads the weights for the compute cores of its bank.
* hub, hub2: gather what the compute cores made, multicast it back to the rectangle, and hold the action state. Two of
  them in the middle of the rectangle, so that one gathers while the other sends.
* spare: no work, but inside the rectangle, so that a multicast of the rectangle reaches a core that expects it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from ttsp_ros.dit.megakernel.arena import ROW_TILES, ArenaLayout
from ttsp_ros.tenstorrent.program import Core, Rectangle, grid_cores

NOT_APPLICABLE = 0xFFFF
VIRTUAL_CHANNELS = 4  # unicast request channels of a NoC port (tt-metal: `NOC_UNICAST_WRITE_VC` and its neighbours)
PER_CORE_WORDS = ("compute_index", "bank", "virtual_channel", "head", "group")

#: The logical worker next to each of Blackhole's DRAM banks 0 to 7: columns 0 and 7 are beside the two columns of DRAM
#: controllers. What ttnn's get_optimal_dram_bank_to_logical_worker_assignment says for NoC 0 on an 11x10 grid.
NEAR_DRAM: tuple[Core, ...] = ((0, 9), (0, 0), (0, 7), (0, 3), (7, 9), (7, 1), (7, 6), (7, 4))


class Role(Enum):
    COMPUTE = "compute"
    READER = "reader"
    HUB = "hub"
    HUB2 = "hub2"
    SPARE = "spare"


@dataclass(frozen=True)
class CoreMap:
    """Roles on the rectangle (0, 0) .. (width - 1, height - 1) of logical worker cores.

    Attributes:
        grid: (width, height).
        compute: core of each compute index.
        readers: core of each DRAM bank.
        hub, hub2, spare: see the module.
        n_heads: heads, each on three compute cores.
    """

    grid: tuple[int, int]
    compute: tuple[Core, ...]
    readers: tuple[Core, ...]
    hub: Core
    hub2: Core
    spare: tuple[Core, ...]
    n_heads: int

    def __post_init__(self) -> None:
        self.check()

    # ---- roles

    def all_cores(self) -> tuple[Core, ...]:
        """Every core of the rectangle, row by row."""
        return tuple(grid_cores(*self.grid))

    @cached_property
    def role_of(self) -> Mapping[Core, Role]:
        roles = dict.fromkeys(self.compute, Role.COMPUTE) | dict.fromkeys(self.readers, Role.READER)
        return roles | dict.fromkeys(self.spare, Role.SPARE) | {self.hub: Role.HUB, self.hub2: Role.HUB2}

    @cached_property
    def core_sets(self) -> Mapping[str, frozenset[Core]]:
        """The named sets to which buffers, semaphores and flags refer."""
        return {
            "all": frozenset(self.all_cores()),
            "compute": frozenset(self.compute),
            "readers": frozenset(self.readers),
            "hub": frozenset({self.hub}),
            "hub2": frozenset({self.hub2}),
            "hubs": frozenset({self.hub, self.hub2}),
            "spare": frozenset(self.spare),
        }

    @property
    def n_compute(self) -> int:
        return len(self.compute)

    @property
    def n_banks(self) -> int:
        return len(self.readers)

    @property
    def multicast_rectangle(self) -> Rectangle:
        """First and last core of the multicasts: the whole rectangle."""
        return (0, 0), (self.grid[0] - 1, self.grid[1] - 1)

    def check(self) -> None:
        """Raise unless every core of the rectangle has exactly one role."""
        named = [*self.compute, *self.readers, self.hub, self.hub2, *self.spare]
        twice = sorted({core for core in named if named.count(core) > 1})
        if twice:
            raise ValueError(f"cores with two roles: {twice}")
        outside = sorted(set(named) - set(self.all_cores()))
        if outside:
            raise ValueError(f"cores outside the {self.grid[0]}x{self.grid[1]} rectangle: {outside}")
        missing = sorted(set(self.all_cores()) - set(named))
        if missing:
            raise ValueError(f"cores without a role: {missing}")
        if 3 * self.n_heads > self.n_compute:
            raise ValueError(f"{self.n_heads} heads need {3 * self.n_heads} compute cores, there are {self.n_compute}")

    # ---- what a core is told

    def bank_of(self, compute_index: int) -> int:
        """DRAM bank of a compute core; the same rule as `ArenaLayout.bank_of`."""
        return compute_index % self.n_banks

    @cached_property
    def virtual_channels(self) -> Mapping[Core, int]:
        """Virtual channel on which each compute core and reader reads.

        Answers of one bank to cores of one row of the grid share links, so each takes the channel least used so far by
        its bank in its row, then by its bank.
        """
        channels: dict[Core, int] = {}
        in_row: dict[tuple[int, int, int], int] = {}
        in_bank: dict[tuple[int, int], int] = {}
        streams = [(self.bank_of(c), core) for c, core in enumerate(self.compute)]
        for bank, core in [*enumerate(self.readers), *streams]:
            row = core[1]
            channel = min(
                range(VIRTUAL_CHANNELS), key=lambda v: (in_row.get((bank, row, v), 0), in_bank.get((bank, v), 0), v)
            )
            channels[core] = channel
            in_row[bank, row, channel] = in_row.get((bank, row, channel), 0) + 1
            in_bank[bank, channel] = in_bank.get((bank, channel), 0) + 1
        return channels

    def head_of(self, compute_index: int) -> int | None:
        """The head whose query, key or value the core holds."""
        return compute_index % self.n_heads if compute_index < 3 * self.n_heads else None

    def group_of(self, compute_index: int) -> int | None:
        """0: the core holds its head's query, 1: key, 2: value."""
        return compute_index // self.n_heads if compute_index < 3 * self.n_heads else None

    def per_core_args(self) -> dict[Core, tuple[int, ...]]:
        """`PER_CORE_WORDS` of every core, 0xFFFF where a word does not apply. The hubs' group tells them apart."""
        na = NOT_APPLICABLE
        words: dict[Core, tuple[int, ...]] = {core: (na,) * len(PER_CORE_WORDS) for core in self.all_cores()}
        channel = self.virtual_channels
        for bank, core in enumerate(self.readers):
            words[core] = (na, bank, channel[core], na, na)
        for index, core in enumerate(self.compute):
            head, group = self.head_of(index), self.group_of(index)
            words[core] = (
                index,
                self.bank_of(index),
                channel[core],
                na if head is None else head,
                na if group is None else group,
            )
        words[self.hub] = (na, na, na, na, 0)
        words[self.hub2] = (na, na, na, na, 1)
        return words


def core_map(
    layout: ArenaLayout, device_grid: tuple[int, int] = (11, 10), readers: tuple[Core, ...] | None = None
) -> CoreMap:
    """The core map of a layout on a card whose worker grid is `device_grid`.

    The rectangle is as high as the grid and as wide as needed: 11 x 10 of today's p150 for the published width.

    Args:
        readers: core of each bank; default: next to the DRAM controllers where the rectangle holds those cores.

    Raises:
        ValueError: when the grid has too few cores; the message says how many are needed and for what.
    """
    needed = layout.n_compute + layout.n_banks + 2
    columns, height = device_grid
    width = -(-needed // height) if height > 0 else 0
    if width > columns or width < 1:
        raise ValueError(
            f"the card offers {columns}x{height} = {columns * height} worker cores; the plan needs {needed}: "
            f"{layout.n_compute} compute ({ROW_TILES} row tiles x {layout.width_tiles} column tiles), {layout.n_banks} "
            f"readers, 2 hubs. A p150 with its 11x10 grid is enough for width 1536"
        )
    grid = (width, height)
    taken = readers if readers is not None else _default_readers(grid, layout.n_banks)
    if len(taken) != layout.n_banks:
        raise ValueError(f"readers: got {len(taken)} cores for {layout.n_banks} DRAM banks")
    free = [core for core in grid_cores(*grid) if core not in taken]
    hub, hub2 = sorted(free, key=lambda core: (_from_centre(core, grid), core))[:2]
    free = [core for core in free if core not in (hub, hub2)]
    return CoreMap(
        grid=grid,
        compute=tuple(free[: layout.n_compute]),
        readers=taken,
        hub=hub,
        hub2=hub2,
        spare=tuple(free[layout.n_compute :]),
        n_heads=layout.config.n_heads,
    )


def _default_readers(grid: tuple[int, int], n_banks: int) -> tuple[Core, ...]:
    width, height = grid
    if n_banks == len(NEAR_DRAM) and all(x < width and y < height for x, y in NEAR_DRAM):
        return NEAR_DRAM
    by_column = [(x, y) for x in range(width) for y in range(height)]
    return tuple(by_column[:n_banks])


def _from_centre(core: Core, grid: tuple[int, int]) -> float:
    return abs(core[0] - (grid[0] - 1) / 2) + abs(core[1] - (grid[1] - 1) / 2)
