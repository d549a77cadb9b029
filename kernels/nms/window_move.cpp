// Fetches the halo above (slot 0's RISC) or below (slot 1's); then turns the maxima of its slot into rows of the NMS
// map, candidates, records and a count.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"
#include "unfold.hpp"

using namespace ttsp;
using namespace ttsp::nms;

namespace {

constexpr uint32_t half = get_named_compile_time_arg_val("half");
constexpr uint32_t cb_halo =
    half == 0 ? get_named_compile_time_arg_val("cb_halo_0") : get_named_compile_time_arg_val("cb_halo_1");
constexpr uint32_t cb_work =
    half == 0 ? get_named_compile_time_arg_val("cb_work_0") : get_named_compile_time_arg_val("cb_work_1");
constexpr uint32_t cb_flags = get_named_compile_time_arg_val("cb_flags");
constexpr bool emit_map = get_named_compile_time_arg_val("emit_map");
constexpr bool emit_keypoints = get_named_compile_time_arg_val("emit_keypoints");
constexpr uint32_t capacity = get_named_compile_time_arg_val("capacity");
constexpr uint32_t halo_runs = get_named_compile_time_arg_val("halo_runs");

constexpr uint32_t NO_CORE = 0xffffffff;

// Scratch: parameters, a count, candidates, then a ring of rows of the map.
constexpr uint32_t align_up(uint32_t bytes) { return (bytes + 63) / 64 * 64; }
constexpr uint32_t count_offset = PARAMS_BYTES;
constexpr uint32_t candidates_offset = count_offset + 64;
constexpr uint32_t candidates_bytes = emit_keypoints ? align_up(4 * (CANDIDATE_FIRST_WORD + capacity)) : 0;
constexpr uint32_t ring_offset = candidates_offset + candidates_bytes;
constexpr uint32_t map_row_bytes = 2 * width;
constexpr uint32_t ring_row_bytes = align_up(map_row_bytes);
constexpr uint32_t first_row = half == 0 ? 0 : first_half(rows);
constexpr uint32_t last_row = half == 0 ? first_half(rows) : rows;
constexpr uint32_t ring_rows = get_named_compile_time_arg_val("ring_rows");

void read_zeros(uint32_t to, uint32_t bytes) {
    const uint64_t zeros = get_noc_addr(MEM_ZEROS_BASE);
    for (; bytes > MEM_ZEROS_SIZE; bytes -= MEM_ZEROS_SIZE, to += MEM_ZEROS_SIZE) {
        noc_async_read(zeros, to, MEM_ZEROS_SIZE);
    }
    noc_async_read(zeros, to, bytes);
}

// A run of image rows: where it lies in the strips of another core (or zeros, outside the image) and in ours.
struct HaloRun {
    uint32_t core, from_row, to_row, count;
};

void fetch_halo(uint32_t strips) {
    for (uint32_t i = 0; i < halo_runs; i++) {
        const uint32_t position = ARGUMENT_POSITION(halo) + 4 * i;
        const HaloRun run{get_arg_val<uint32_t>(position), get_arg_val<uint32_t>(position + 1),
                          get_arg_val<uint32_t>(position + 2), get_arg_val<uint32_t>(position + 3)};
        const uint32_t to = strips + run.to_row * row_bytes, bytes = run.count * row_bytes;
        if (run.count == 0) {
            continue;
        }
        if (run.core == NO_CORE) {
            read_zeros(to, bytes);
        } else {
            noc_async_read(get_noc_addr(run.core >> 16, run.core & 0xffff, strips + run.from_row * row_bytes), to,
                           bytes);
        }
    }
}

uint32_t row_flags(uint32_t flags, uint32_t row) {
    return flags + flag_page(row) * TILE_BYTES + row % block * flag_words * POSITION_BYTES;
}

}  // namespace

void kernel_main() {
    constexpr auto map_arguments = TensorAccessorArgs<0>();
    constexpr auto params_arguments = TensorAccessorArgs<map_arguments.next_compile_time_args_offset()>();
    constexpr auto candidates_arguments = TensorAccessorArgs<params_arguments.next_compile_time_args_offset()>();
    constexpr auto counts_arguments = TensorAccessorArgs<candidates_arguments.next_compile_time_args_offset()>();
    const auto map = TensorAccessor(map_arguments, COMMON_ARGUMENT(map), map_row_bytes);
    const auto params_page = TensorAccessor(params_arguments, COMMON_ARGUMENT(params), PARAMS_BYTES);
    const auto candidates =
        TensorAccessor(candidates_arguments, COMMON_ARGUMENT(candidates), 4 * (CANDIDATE_FIRST_WORD + capacity));
    const auto counts = TensorAccessor(counts_arguments, COMMON_ARGUMENT(counts), COUNT_PAGE_BYTES);

    const uint32_t strips = COMMON_ARGUMENT(strips);
    const uint32_t scratch = align_up(get_write_ptr(cb_work));
    const uint32_t ring = scratch + ring_offset;
    fetch_halo(strips);
    noc_async_read_barrier();
    cb_push_back(cb_halo, 1);

    if constexpr (emit_keypoints) {
        noc_async_read(params_page.get_noc_addr(0), scratch, PARAMS_BYTES);
    }
    if constexpr (emit_map) {
        read_zeros(ring, ring_rows * ring_row_bytes);
    }
    noc_async_read_barrier();
    invalidate_l1_cache();

    const uint32_t core = UNIQUE_ARGUMENT(core), slot_index = SLOTS_PER_CORE * core + half;
    const uint32_t core_row = core * rows;
    const uint32_t end_row = smaller(last_row, UNIQUE_ARGUMENT(row_count));
    const uint32_t records = COMMON_ARGUMENT(records) + half * capacity * RECORD_BYTES;
    Slot slot(*reinterpret_cast<const Params*>(scratch), core_row + first_row, scratch + candidates_offset, records);
    const uint32_t flags = get_read_ptr(cb_flags);

    for (uint32_t row = first_row; row < end_row; row++) {
        const uint32_t in_ring = (row - first_row) % ring_rows;
        const uint32_t line = ring + in_ring * ring_row_bytes;
        if (emit_map && row - first_row >= ring_rows) {
            noc_async_write_barrier();
            read_zeros(line, ring_row_bytes);
            noc_async_read_barrier();
        }
        cb_wait_front(cb_flags, flag_pages_needed(row));
        invalidate_l1_cache();
        slot.start_row(core_row + row);
        auto* pixels = reinterpret_cast<volatile tt_l1_ptr uint16_t*>(line);
        const uint32_t centres = strips + ((radius + row) * positions + radius) * POSITION_BYTES;
        unfold_row(row_flags(flags, row), centres, [&](uint32_t x, uint32_t score) {
            if constexpr (emit_map) {
                pixels[x] = score;
            }
            if constexpr (emit_keypoints) {
                slot.offer(x, score);
            }
        });
        if constexpr (emit_map) {
            noc_async_write(line, map.get_noc_addr(core_row + row), map_row_bytes);
        }
    }
    if constexpr (emit_keypoints) {
        auto* entries = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(scratch + candidates_offset);
        entries[CANDIDATE_COUNT_WORD] = slot.count();
        noc_async_write(scratch + candidates_offset, candidates.get_noc_addr(slot_index),
                        4 * (CANDIDATE_FIRST_WORD + slot.held()));
        auto* count = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(scratch + count_offset);
        count[0] = slot.count();
        count[1] = count[2] = count[3] = 0;
        noc_async_write(scratch + count_offset,
                        counts.get_noc_addr(slot_index / COUNTS_PER_PAGE, slot_index % COUNTS_PER_PAGE * COUNT_BYTES),
                        COUNT_BYTES);
    }
    noc_async_write_barrier();
}
