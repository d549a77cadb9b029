// window: NMS in the strip layout, then back to image order: the NMS map and the keypoints of every slot.
//
//   window_move.cpp (NCRISC: slot 0 of the core, BRISC: slot 1)  fetch the halo, later unfold the rows of their slot
//   window_compute.cpp (TRISCs)                                  window maximum and comparison on the SFPU
//
// Circular buffers, and who reserves (r), pushes (p) and waits (w):
//
//   cb_strips   the core's part of `strips`, pages of one position: read by the unpacker, never pushed
//   cb_halo_0   a signal: the halo above is there     NCRISC p, unpack w
//   cb_halo_1   a signal: the halo below is there     BRISC p, unpack w
//   cb_flags    which positions are maxima, see below pack r p, NCRISC and BRISC w (both read, nobody pops)
//   cb_work_0/1 memory only: scratch of NCRISC/BRISC
//
// DST holds a block of image rows: `block` output rows and 2 radius rows more, `loaded` positions of each, 4 DST rows a
// position. Where the whole row fits (`chunks` == 1) the block is copied as one run of tiles; else every row is one
// tile, of which `out` positions come out, and the row takes several such chunks.
//
// Flags. Maxima are few, so the SFPU gives a bit for each instead of its score, FLAG_BITS positions of a lane in one
// bf16: unfolding an image row takes LANES / 2 loads, not LANES / 2 * strip. The packer must keep all bits, so the
// number is kept normal: bit 14 is always set, bit 13 never.
#pragma once

#include "strips.hpp"

namespace ttsp::nms {

inline constexpr uint32_t block = get_named_compile_time_arg_val("block");    // output rows that DST takes at a time
inline constexpr uint32_t loaded = get_named_compile_time_arg_val("loaded");  // positions of a row in DST
inline constexpr uint32_t out = loaded - 2 * radius;                          // positions that come out of them
inline constexpr uint32_t chunks = (strip + out - 1) / out;

inline constexpr uint32_t TILE_BYTES = 2048;
inline constexpr uint32_t TILE_POSITIONS = TILE_BYTES / POSITION_BYTES;
inline constexpr uint32_t POSITION_ROWS = 4;  // of DST, 16 lanes each
inline constexpr uint32_t DST_ROWS = 1024;

inline constexpr uint32_t blocks = (rows + block - 1) / block;

inline constexpr uint32_t FLAG_BITS = 14;
inline constexpr uint32_t NO_FLAGS = 0x4000;
constexpr uint32_t flag(uint32_t bit) { return bit == FLAG_BITS - 1 ? 0x8000 : 1u << bit; }
inline constexpr uint32_t flag_words = (out + FLAG_BITS - 1) / FLAG_BITS;  // of a lane in one chunk
// Flags of one chunk of one block: [row][word][lane], in whole tiles.
inline constexpr uint32_t flag_tiles = (block * flag_words + TILE_POSITIONS - 1) / TILE_POSITIONS;

// Where the flags of a block fit one tile they are packed after every row, each time into another page: the
// data-movement RISCs unfold the first rows while the SFPU is at the last. In a core's only block rows of slot 0 and
// slot 1 take turns.
inline constexpr bool by_row = chunks == 1 && flag_tiles == 1;
inline constexpr uint32_t row_at(uint32_t turn) {
    return blocks > 1 ? turn : turn % 2 == 0 ? turn / 2 : first_half(rows) + turn / 2;
}
inline constexpr uint32_t turn_of(uint32_t row) {
    return blocks > 1 ? row : row < first_half(rows) ? 2 * row : 2 * (row - first_half(rows)) + 1;
}

// Page of cb_flags in which the flags of a row of the core begin, and the pages there must be until they are all there.
inline constexpr uint32_t block_pages = chunks * flag_tiles;
inline constexpr uint32_t flag_page(uint32_t row) { return by_row ? turn_of(row) : row / block * block_pages; }
inline constexpr uint32_t flag_pages_needed(uint32_t row) {
    return by_row ? turn_of(row) + 1 : (row / block + 1) * block_pages;
}

// Flags lie from the start of DST: where they are written row by row, they stay within the first, which is done with.
static_assert(!by_row || block * flag_words <= loaded);
static_assert((block + 2 * radius) * loaded * POSITION_ROWS <= DST_ROWS);
static_assert(chunks == 1 || loaded == TILE_POSITIONS);
static_assert(chunks > 1 || out == strip);

}  // namespace ttsp::nms
