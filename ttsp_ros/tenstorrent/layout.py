"""Byte layouts shared with the kernels: the mirror of ``kernels/common/layout.hpp``, which describes every field.

All words are uint32, little-endian. Nothing here needs ttnn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CELL = 8

DRAM_ALIGNMENT = 64  # bytes: what a read from DRAM starts at

LANES = 64
POSITION_BYTES = 2 * LANES
POSITION_WORDS = POSITION_BYTES // 4

SLOTS_PER_CORE = 2

#: One keypoint: y << 16 | x, the score as float32, and the four descriptor cells around it.
RECORD_FIELDS = ("yx", "score", "cells_top", "cells_bottom")
RECORD_WORDS = len(RECORD_FIELDS)
RECORD_BYTES = 4 * RECORD_WORDS

CANDIDATE_COUNT_WORD = 0
CANDIDATE_FIRST_WORD = 1
CANDIDATE_PIXELS = 1 << 16

COUNT_BYTES = 16
COUNT_PAGE_BYTES = 256
COUNTS_PER_PAGE = COUNT_PAGE_BYTES // COUNT_BYTES

#: Words of the parameter tensor that have a meaning; the rest of the 64 bytes is 0.
PARAMS_FIELDS = ("threshold_bits", "top", "bottom", "left", "right", "bucket", "limit")
PARAMS_BYTES = 64
PARAMS_WORDS = PARAMS_BYTES // 4

#: Words of the header that have a meaning; the rest of its 16 words is 0. Records follow.
HEADER_FIELDS = ("count", "total", "overflow_slots", "bucket")
HEADER_BYTES = 64
HEADER_WORDS = HEADER_BYTES // 4


def aligned(size: int) -> int:
    """`size` in bytes, rounded up to whole DRAM_ALIGNMENT."""
    return -(-size // DRAM_ALIGNMENT) * DRAM_ALIGNMENT


@dataclass(frozen=True)
class Params:
    """What may change from one request to the next without compiling anything."""

    threshold_bits: int
    top: int
    bottom: int
    left: int
    right: int
    bucket: int = 0
    limit: int = 0

    def words(self) -> np.ndarray:
        """uint32 [16], as the kernels read it."""
        words = np.zeros(PARAMS_WORDS, np.uint32)
        words[: len(PARAMS_FIELDS)] = [getattr(self, name) for name in PARAMS_FIELDS]
        return words


def header_size(kmax: int) -> int:
    """Words of a header with room for kmax records."""
    return HEADER_WORDS + RECORD_WORDS * kmax


@dataclass(frozen=True)
class SlotMap:
    """Which image rows go to which slot, and how slots lie in the tensors.

    Attributes:
        height, width: of the score map, pixels.
        rows: image rows of an NMS core; the last core may have fewer.
        capacity: entries of a slot.
    """

    height: int
    width: int
    rows: int
    capacity: int

    @property
    def cores(self) -> int:
        return -(-self.height // self.rows)

    @property
    def slots(self) -> int:
        return SLOTS_PER_CORE * self.cores

    @property
    def split(self) -> int:
        """Rows of a core that go to its first slot."""
        return (self.rows + 1) // 2

    @property
    def count_pages(self) -> int:
        return -(-self.slots // COUNTS_PER_PAGE)

    def bounds(self, slot: int) -> tuple[int, int]:
        """Image rows [first, last + 1) of a slot; empty where the last core has no row for it."""
        core, half = divmod(slot, SLOTS_PER_CORE)
        first = core * self.rows + half * self.split
        end = first + self.split if half == 0 else (core + 1) * self.rows
        return min(first, self.height), min(end, self.height)

    def first_rows(self) -> np.ndarray:
        """int64 [slots]: image row of the first row of every slot."""
        return np.array([self.bounds(slot)[0] for slot in range(self.slots)], np.int64)


def decode_counts(counts: np.ndarray, slots: int) -> np.ndarray:
    """uint32 [slots] from the tensor `counts` (uint32, any shape of its pages)."""
    return counts.reshape(-1, COUNT_BYTES // 4)[:slots, 0]


@dataclass(frozen=True)
class CandidateList:
    """Candidates of an image in raster order.

    Attributes:
        y, x: int64 [N], pixels.
        score_bits: uint16 [N], bf16 bits.
        overflowed: slots that had more candidates than they hold; the list lacks those, so choose from the NMS map.
    """

    y: np.ndarray
    x: np.ndarray
    score_bits: np.ndarray
    overflowed: int


def decode_candidates(candidates: np.ndarray, slot_map: SlotMap) -> CandidateList:
    """The list in the tensor `candidates` (uint32 [slots, 1 + capacity], leading dimensions of 1 allowed)."""
    words = candidates.reshape(slot_map.slots, CANDIDATE_FIRST_WORD + slot_map.capacity)
    counts = words[:, CANDIDATE_COUNT_WORD].astype(np.int64)
    held = np.minimum(counts, slot_map.capacity)
    valid = np.arange(slot_map.capacity)[None, :] < held[:, None]
    entries = words[:, CANDIDATE_FIRST_WORD:][valid]
    pixels = (entries & (CANDIDATE_PIXELS - 1)).astype(np.int64)
    first = np.repeat(slot_map.first_rows(), held)
    return CandidateList(
        y=first + pixels // slot_map.width,
        x=pixels % slot_map.width,
        score_bits=(entries >> 16).astype(np.uint16),
        overflowed=int((counts > slot_map.capacity).sum()),
    )
