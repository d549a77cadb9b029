// fold: from the scores of the cells (bf16, TILE, DRAM) to the strip layout in L1, on all five RISCs of every core.
//
//   fold_move.cpp (NCRISC, BRISC)  read half of the core's scores each, then fold rows 0 and 1 of every five
//   fold_compute.cpp (TRISCs)      fold rows 2, 3 and 4 of every five, as plain scalar code
//
// Circular buffers, and who reserves (r), pushes (p) and waits (w):
//
//   cb_staged  memory only: the staged scores, see below
//   cb_half_0  a signal: NCRISC's half is there    NCRISC p, BRISC w, unpack w
//   cb_half_1  a signal: BRISC's half is there     BRISC p, NCRISC w, unpack w
//
// Staging. 16 channels of a cell are two image rows: one column of faces in the tiles of the scores. The DMA takes
// these columns apart, so that a pair of image rows is a run of cells of 32 bytes, 8 pixels of the upper row and 8 of
// the lower, with cells of zeros before and after. Which cell and which pixel of it a lane needs at a position repeats
// every `period` lanes, so that one position takes `period` addresses and constant distances from them.
#pragma once

#include "strips.hpp"

namespace ttsp::nms {

inline constexpr uint32_t WORKERS = 5;
enum Worker : uint32_t { NCRISC, BRISC, UNPACK_RISC, MATH_RISC, PACK_RISC };

inline constexpr uint32_t FACE_ROWS = 16, FACE_BYTES = 512, TILE_ROWS = 32, TILE_BYTES = 2048;
inline constexpr uint32_t STAGED_CELL = 32;  // bytes: the pixels of a cell in two image rows, 2 * CELL of them
inline constexpr uint32_t READ_ALIGNMENT = 64;
inline constexpr uint32_t cell_columns = width / CELL;

// The last pixel that a lane asks for is LANES * strip + radius - 1.
inline constexpr uint32_t staged_cells = (LANES * strip + radius - 1) / CELL + 1;
// Two cells in front: one or two of zeros, so that a cell has the same alignment in L1 as in DRAM.
inline constexpr uint32_t staged_bytes =
    ((2 + staged_cells) * STAGED_CELL + READ_ALIGNMENT - 1) / READ_ALIGNMENT * READ_ALIGNMENT;

// Zeros in front of the first cell of a cell row: cell 0 is row `cell_row * cell_columns` of the score tensor.
constexpr uint32_t front_cells(uint32_t cell_row) { return 2 - (cell_row * cell_columns) % 2; }

constexpr uint32_t align_up(uint32_t address) {
    return (address + READ_ALIGNMENT - 1) / READ_ALIGNMENT * READ_ALIGNMENT;
}

// Greatest common divisor of the strip and a cell.
inline constexpr uint32_t common_divisor = strip % 8 == 0 ? 8 : strip % 4 == 0 ? 4 : strip % 2 == 0 ? 2 : 1;
inline constexpr uint32_t period = CELL / common_divisor;
inline constexpr uint32_t period_bytes = strip / common_divisor * STAGED_CELL;

// L1 answers a load after eight cycles and takes four loads in seven; stores that follow each other in 16 bytes cost
// five together. So loads are spread between the other instructions and run BATCH lanes ahead. The compiler, which
// believes that loads are quick, would gather them: it is not let (5,900 cycles a row of 640 pixels, 3,300 so).
inline constexpr uint32_t BATCH = 4;

inline __attribute__((always_inline)) uint32_t load_pixel(const uint16_t* pixel) {
    uint32_t value;
    asm volatile("lhu %0, %1" : "=r"(value) : "m"(*pixel));
    return value;
}
inline __attribute__((always_inline)) void store_word(uint32_t* word, uint32_t value) {
    asm volatile("sw %1, %0" : "=m"(*word) : "r"(value));
}

// One image row. `source` is the staged address of pixel -8 of the row, from which pixel x - 8 is x + x / 8 * 8
// halfwords.
inline void fold_row(uint32_t source, uint32_t target) {
    auto* word = reinterpret_cast<uint32_t*>(target);
    for (uint32_t position = 0; position < positions; position++, word += POSITION_WORDS) {
        const uint16_t* pixel[period];
#pragma GCC unroll 8
        for (uint32_t lane = 0; lane < period; lane++) {
            const uint32_t x = lane * strip + position + CELL - radius;
            pixel[lane] = reinterpret_cast<const uint16_t*>(source + 2 * (x + x / CELL * CELL));
        }
        const auto load = [&](uint32_t lane) __attribute__((always_inline)) {
            return load_pixel(pixel[lane % period] + lane / period * (period_bytes / 2));
        };
        uint32_t now[BATCH], next[BATCH];
#pragma GCC unroll 4
        for (uint32_t i = 0; i < BATCH; i++) {
            now[i] = load(i);
        }
#pragma GCC unroll 16
        for (uint32_t first = 0; first < LANES; first += BATCH) {
#pragma GCC unroll 2
            for (uint32_t i = 0; i < BATCH; i += 2) {
                if (first + BATCH < LANES) {
                    next[i] = load(first + BATCH + i);
                    next[i + 1] = load(first + BATCH + i + 1);
                }
                store_word(word + (first + i) / 2, now[i] | now[i + 1] << 16);
            }
#pragma GCC unroll 4
            for (uint32_t i = 0; i < BATCH; i++) {
                now[i] = next[i];
            }
        }
    }
}

// The rows of one worker. `staged` is the staging area of the core, whose first image row is `first_row`.
inline void fold_rows(uint32_t worker, uint32_t staged, uint32_t strips, uint32_t first_row, uint32_t count) {
    for (uint32_t i = worker; i < count; i += WORKERS) {
        const uint32_t y = first_row + i;
        const uint32_t pair = y / 2 - first_row / 2;
        const uint32_t before = (front_cells(y / CELL) - 1) * STAGED_CELL + y % 2 * (STAGED_CELL / 2);
        fold_row(staged + pair * staged_bytes + before, strips + (radius + i) * row_bytes);
    }
}

}  // namespace ttsp::nms
