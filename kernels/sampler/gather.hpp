// Taps and weights of the keypoints of one core, from DRAM to L1.
#pragma once

#include "api/dataflow/dataflow_api.h"
#include "share.hpp"

namespace ttsp::sampler {

// Where a core gathers from and to.
template <class Map, class Weights>
struct Gather {
    const Map& map;          // bf16, a page a cell
    const Weights& weights;  // float32, a page for WEIGHT_PIXELS pixels
    uint32_t records;        // L1
    uint32_t weight_base;    // L1

    // No index leaves the tensors, whatever a record says: a NoC read outside of them can hang the card.
    static uint32_t cell(uint32_t index) {
        constexpr uint32_t cells = get_named_compile_time_arg_val("cells");
        return smaller(index, cells - 1);
    }
    static uint32_t pixel(uint32_t yx) {
        constexpr uint32_t width = get_named_compile_time_arg_val("width");
        constexpr uint32_t pixels = get_named_compile_time_arg_val("cells") * CELL * CELL;
        return smaller((yx >> 16) * width + (yx & 0xffff), pixels - 1);
    }

    void tap(uint32_t index, uint32_t to) const {
        constexpr uint32_t bytes = 2 * get_named_compile_time_arg_val("channels");
        noc_async_read_one_packet(map.get_noc_addr(cell(index)), to, bytes);
    }

    void keypoint(uint32_t index, uint32_t to) const {
        const auto* record = reinterpret_cast<volatile tt_l1_ptr Record*>(records) + index;
        const uint32_t yx = record->yx, top = record->cells_top, bottom = record->cells_bottom;
        tap(top & 0xffff, to);
        tap(top >> 16, to + TAP_BYTES);
        tap(bottom & 0xffff, to + 2 * TAP_BYTES);
        tap(bottom >> 16, to + 3 * TAP_BYTES);
        noc_async_read_one_packet(weights.get_noc_addr(pixel(yx) / WEIGHT_PIXELS), weight_base + index * WEIGHT_BYTES,
                                  WEIGHT_BYTES);
    }

    // Keypoints [first, first + GROUP), those of them that exist, as one group of pages of `buffer`.
    void group(uint32_t first, uint32_t count, uint32_t buffer) const {
        cb_reserve_back(buffer, GROUP);
        uint32_t to = get_write_ptr(buffer);
        const uint32_t end = smaller(first + GROUP, count);
        for (uint32_t index = first; index < end; index++, to += TAPS_BYTES) {
            keypoint(index, to);
        }
        noc_async_read_barrier();
        cb_push_back(buffer, GROUP);
    }
};

}  // namespace ttsp::sampler
