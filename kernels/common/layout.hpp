// Every byte layout that the kernels of SuperPoint's post-processing and the host share.
//
// The Python mirror is ttsp_ros/tenstorrent/layout.py; test/tenstorrent/test_layout.py proves that both agree.
// All words are uint32, little-endian. The header is free-standing: kernels and host compilers read it alike.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ttsp {

// SuperPoint's cells: 8 x 8 pixels; the scores of a cell are 64 pixel channels (8 i + j) and a dustbin.
inline constexpr uint32_t CELL = 8;

// ---- strip layout -----------------------------------------------------------------------------------------------
// An image row is cut into LANES strips of `strip = ceil(width / LANES)` columns. Position p of lane l is column
// l * strip - radius + p, for p in [0, strip + 2 radius): every lane holds its strip and the halo on both sides, so
// that a window maximum is an elementwise maximum of positions. Columns outside the image are 0. bf16, lanes
// innermost: a position is four rows of DST, which is why a shift by one position is a plain SFPU address.
inline constexpr uint32_t LANES = 64;
inline constexpr uint32_t POSITION_BYTES = 2 * LANES;
inline constexpr uint32_t POSITION_WORDS = POSITION_BYTES / 4;

// ---- slots ------------------------------------------------------------------------------------------------------
// NMS core c owns the image rows [c * rows, (c + 1) * rows). Its rows go to two slots, one per data-movement RISC:
// slot 2 c the first (rows + 1) / 2 of them, slot 2 c + 1 the rest. Slots, rows and the entries in a slot are in
// raster order, so slots written one after the other are the keypoints of the image in raster order.
inline constexpr uint32_t SLOTS_PER_CORE = 2;
inline constexpr uint32_t first_half(uint32_t rows) { return (rows + 1) / 2; }

// ---- record: a keypoint in its final form (L1 of the NMS cores, and in the header) ---------------------------------
// Tensor `records`: uint32 [slots, 4 * capacity], height-sharded, the two slots of a core in its own L1.
struct Record {
    uint32_t yx;            // y << 16 | x, pixels
    uint32_t score;         // float32 bits (a bf16 score with 16 zero bits below)
    uint32_t cells_top;     // c00 | c01 << 16: descriptor cells (row * cell_columns + column) of the upper taps
    uint32_t cells_bottom;  // c10 | c11 << 16: of the lower taps; the second digit is the column (0 left, 1 right)
};
inline constexpr uint32_t RECORD_BYTES = 16;
inline constexpr uint32_t RECORD_WORDS = RECORD_BYTES / 4;
static_assert(sizeof(Record) == RECORD_BYTES && offsetof(Record, score) == 4 && offsetof(Record, cells_top) == 8 &&
              offsetof(Record, cells_bottom) == 12);

// ---- candidates: all that the host needs to choose keypoints itself (DRAM) ---------------------------------------
// Tensor `candidates`: uint32 [slots, 1 + capacity]. Word 0: how many pixels of the slot passed, which may be more
// than `capacity`; then min(count, capacity) words, the first in raster order. Words behind them are undefined.
// A word is score16 << 16 | row * width + x, row counted from the first row of the slot.
inline constexpr uint32_t CANDIDATE_COUNT_WORD = 0;
inline constexpr uint32_t CANDIDATE_FIRST_WORD = 1;
inline constexpr uint32_t CANDIDATE_PIXELS = 1u << 16;  // rows of a slot * width is at most this
inline constexpr uint32_t candidate_word(uint32_t score16, uint32_t pixel) { return score16 << 16 | pixel; }

// ---- counts: the counts of all slots, dense (L1, interleaved) ----------------------------------------------------
// Tensor `counts`: uint32 [pages, COUNT_PAGE_BYTES / 4]. 16 bytes a slot, as small as a NoC write between aligned
// addresses can be: word 0 is the slot's count (see candidates), the other three are 0. Pages are small and spread
// over the cores because every sampler core reads all of them at the same time.
inline constexpr uint32_t COUNT_BYTES = 16;
inline constexpr uint32_t COUNT_PAGE_BYTES = 256;
inline constexpr uint32_t COUNTS_PER_PAGE = COUNT_PAGE_BYTES / COUNT_BYTES;

// ---- parameters: what may change from one request to the next without compiling (DRAM, one page) -----------------
struct Params {
    uint32_t threshold_bits;  // bf16 bits p: a score passes when its bits are greater than p, as integers
    uint32_t top, bottom;     // rows [top, bottom) of the map may hold keypoints: border, and padding left out
    uint32_t left, right;     // columns [left, right)
    uint32_t bucket;          // the host's speculation: descriptor bucket of the next request
    uint32_t limit;           // at most this many keypoints on the device, <= kmax; more: the host chooses
    uint32_t reserved[9];
};
inline constexpr uint32_t PARAMS_BYTES = 64;
static_assert(sizeof(Params) == PARAMS_BYTES && offsetof(Params, top) == 4 && offsetof(Params, bottom) == 8 &&
              offsetof(Params, left) == 12 && offsetof(Params, right) == 16 && offsetof(Params, bucket) == 20 &&
              offsetof(Params, limit) == 24);

// ---- header: the keypoint list of one image (DRAM) ---------------------------------------------------------------
// HEADER_WORDS words, then RECORD_WORDS words for each of kmax records, the first `count` of which are valid.
struct Header {
    uint32_t count;           // records that follow, <= kmax
    uint32_t total;           // sum of all slot counts, also of what did not fit
    uint32_t overflow_slots;  // slots whose count is greater than their capacity: pixels of theirs are lost
    uint32_t bucket;          // descriptor bucket that the device wrote
    uint32_t reserved[12];
};
inline constexpr uint32_t HEADER_BYTES = 64;
inline constexpr uint32_t HEADER_WORDS = HEADER_BYTES / 4;
static_assert(sizeof(Header) == HEADER_BYTES && offsetof(Header, total) == 4 && offsetof(Header, overflow_slots) == 8 &&
              offsetof(Header, bucket) == 12);

}  // namespace ttsp
