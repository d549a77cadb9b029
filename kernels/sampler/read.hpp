// The part of the reader that does not depend on where the keypoint list comes from.
#pragma once

#include "gather.hpp"

namespace ttsp::sampler {

// Tells the other kernels of this core what to do, then gathers every even group.
template <class Map, class Weights>
void serve(Share& share, const Map& map, const Weights& weights) {
    constexpr uint32_t cb_even = get_named_compile_time_arg_val("cb_even");
    constexpr uint32_t cb_share = get_named_compile_time_arg_val("cb_share");
    constexpr uint32_t cb_task = get_named_compile_time_arg_val("cb_task");
    constexpr uint32_t cb_weights = get_named_compile_time_arg_val("cb_weights");
    const uint32_t weight_base = get_write_ptr(cb_weights);

    auto* out = reinterpret_cast<volatile tt_l1_ptr Share*>(get_write_ptr(cb_share));
    out->header.count = share.header.count;
    out->header.total = share.header.total;
    out->header.overflow_slots = share.header.overflow_slots;
    out->header.bucket = share.header.bucket;
    for (uint32_t& word : share.header.reserved) {
        out->header.reserved[&word - share.header.reserved] = 0;
    }
    out->begin = share.begin;
    out->count = share.count;
    out->records = share.records;
    out->speculated = share.speculated;
    cb_push_back(cb_share, 1);
    auto* task = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(get_write_ptr(cb_task));
    task[TASK_COUNT] = share.count;
    task[TASK_RECORDS] = share.records;
    task[TASK_WEIGHTS] = weight_base;
    cb_push_back(cb_task, 1);

    const Gather<Map, Weights> gather{map, weights, share.records, weight_base};
    for (uint32_t first = 0; first < share.count; first += 2 * GROUP) {
        gather.group(first, share.count, cb_even);
    }
}

}  // namespace ttsp::sampler
