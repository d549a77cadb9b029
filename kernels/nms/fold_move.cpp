// Reads the scores of this core's image rows, every second run of 16 cells; then folds its share of the rows.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"
#include "fold.hpp"

using namespace ttsp;
using namespace ttsp::nms;

namespace {

constexpr uint32_t half = get_named_compile_time_arg_val("half");
constexpr uint32_t cb_staged = get_named_compile_time_arg_val("cb_staged");
constexpr uint32_t cb_mine =
    half == 0 ? get_named_compile_time_arg_val("cb_half_0") : get_named_compile_time_arg_val("cb_half_1");
constexpr uint32_t cb_other =
    half == 0 ? get_named_compile_time_arg_val("cb_half_1") : get_named_compile_time_arg_val("cb_half_0");
constexpr uint32_t tile_columns = get_named_compile_time_arg_val("tile_columns");

void write_zeros(uint32_t address, uint32_t bytes) {
    auto* word = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(address);
    for (uint32_t i = 0; i < bytes / 4; i++) {
        word[i] = 0;
    }
}

// Image rows 2 pair and 2 pair + 1: the runs of cells that lie in one face each.
template <class Scores>
void stage_pair(const Scores& scores, uint32_t pair, uint32_t to) {
    const uint32_t cell_row = pair / (CELL / 2), face_column = pair % (CELL / 2);
    const uint32_t front = front_cells(cell_row) * STAGED_CELL;
    uint32_t cell = cell_row * cell_columns;
    const uint32_t end = cell + cell_columns;
    to += front;
    for (uint32_t run = 0; cell < end; run++) {
        const uint32_t in_face = cell % FACE_ROWS;
        const uint32_t cells = smaller(FACE_ROWS - in_face, end - cell);
        if (run % 2 == half) {
            const uint32_t page = cell / TILE_ROWS * tile_columns + face_column / 2;
            const uint32_t face = cell % TILE_ROWS / FACE_ROWS * 2 + face_column % 2;
            const uint32_t offset = face * FACE_BYTES + in_face * STAGED_CELL;
            noc_async_read(scores.get_noc_addr(page, offset), to, cells * STAGED_CELL);
        }
        to += cells * STAGED_CELL;
        cell += cells;
    }
}

// The cells of zeros before (NCRISC) or behind (BRISC) those of a pair.
void clear_margin(uint32_t pair, uint32_t to) {
    const uint32_t front = front_cells(pair / (CELL / 2)) * STAGED_CELL;
    if constexpr (half == 0) {
        write_zeros(to, front);
    } else {
        write_zeros(to + front + cell_columns * STAGED_CELL, (staged_cells - cell_columns) * STAGED_CELL);
    }
}

}  // namespace

void kernel_main() {
    constexpr auto arguments = TensorAccessorArgs<0>();
    const auto scores = TensorAccessor(arguments, COMMON_ARGUMENT(scores), TILE_BYTES);
    const uint32_t first_row = UNIQUE_ARGUMENT(first_row), count = UNIQUE_ARGUMENT(row_count);
    const uint32_t staged = align_up(get_write_ptr(cb_staged));

    const uint32_t first_pair = first_row / 2, last_pair = (first_row + count - 1) / 2;
    for (uint32_t pair = first_pair; pair <= last_pair; pair++) {
        stage_pair(scores, pair, staged + (pair - first_pair) * staged_bytes);
    }
    for (uint32_t pair = first_pair; pair <= last_pair; pair++) {
        clear_margin(pair, staged + (pair - first_pair) * staged_bytes);
    }
    noc_async_read_barrier();
    cb_push_back(cb_mine, 1);
    cb_wait_front(cb_other, 1);
    invalidate_l1_cache();
    fold_rows(half == 0 ? NCRISC : BRISC, staged, COMMON_ARGUMENT(strips), first_row, count);
}
