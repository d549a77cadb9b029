// Reader of the main program: the keypoint list is what NMS left in the L1 of its cores, slot by slot.
//
// Every core adds up the counts of all slots, so that it knows how many keypoints there are and which are its own,
// and copies only the records of those.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"
#include "read.hpp"

using namespace ttsp;
using namespace ttsp::sampler;

namespace {

constexpr uint32_t slots = get_named_compile_time_arg_val("slots");
constexpr uint32_t capacity = get_named_compile_time_arg_val("capacity");
constexpr uint32_t blocks = (slots + COUNTS_PER_PAGE - 1) / COUNTS_PER_PAGE;

// Slots before block b hold before[b] keypoints.
struct Prefix {
    uint32_t before[blocks];
};

uint32_t count_of(const volatile uint32_t* counts, uint32_t slot) { return counts[slot * (COUNT_BYTES / 4)]; }

// What the loads of a batch add: eight at a time, unrolled, since a load from L1 takes eight cycles.
struct Sums {
    uint32_t total = 0;
    uint32_t largest = 0;

    template <uint32_t batch>
    void add(const volatile uint32_t* counts, uint32_t slot) {
        uint32_t count[batch];
#pragma GCC unroll 8
        for (uint32_t i = 0; i < batch; i++) {
            count[i] = count_of(counts, slot + i);
        }
#pragma GCC unroll 8
        for (uint32_t i = 0; i < batch; i++) {
            total += count[i];
            largest = larger(largest, count[i]);
        }
    }
};

// Totals into `header`.
Prefix add_up(const volatile uint32_t* counts, Header& header) {
    constexpr uint32_t batch = 8;
    Prefix prefix;
    Sums sums;
    for (uint32_t block = 0; block < blocks; block++) {
        prefix.before[block] = sums.total;
        const uint32_t end = smaller((block + 1) * COUNTS_PER_PAGE, slots);
        uint32_t slot = block * COUNTS_PER_PAGE;
        for (; slot + batch <= end; slot += batch) {
            sums.add<batch>(counts, slot);
        }
        for (; slot < end; slot++) {
            sums.add<1>(counts, slot);
        }
    }
    header.total = sums.total;
    header.overflow_slots = 0;
    if (sums.largest > capacity) {
        for (uint32_t slot = 0; slot < slots; slot++) {
            header.overflow_slots += count_of(counts, slot) > capacity;
        }
    }
    return prefix;
}

// The records [begin, begin + count) of the list, to share.records.
template <class Records>
void read_records(const Records& records, const volatile uint32_t* counts, const Prefix& prefix, const Share& share) {
    const uint32_t end = share.begin + share.count;
    uint32_t block = 0;
    while (block + 1 < blocks && prefix.before[block + 1] <= share.begin) {
        block++;
    }
    uint32_t first = prefix.before[block];
    for (uint32_t slot = block * COUNTS_PER_PAGE; first < end; slot++) {
        const uint32_t next = first + count_of(counts, slot);
        const uint32_t from = larger(first, share.begin), to = smaller(next, end);
        if (from < to) {
            noc_async_read(records.get_noc_addr(slot, (from - first) * RECORD_BYTES),
                           share.records + (from - share.begin) * RECORD_BYTES, (to - from) * RECORD_BYTES);
        }
        first = next;
    }
    noc_async_read_barrier();
}

}  // namespace

void kernel_main() {
    constexpr auto map_args = TensorAccessorArgs<0>();
    constexpr auto weights_args = TensorAccessorArgs<map_args.next_compile_time_args_offset()>();
    constexpr auto counts_args = TensorAccessorArgs<weights_args.next_compile_time_args_offset()>();
    constexpr auto records_args = TensorAccessorArgs<counts_args.next_compile_time_args_offset()>();
    constexpr auto params_args = TensorAccessorArgs<records_args.next_compile_time_args_offset()>();
    const auto map = TensorAccessor(map_args, COMMON_ARGUMENT(map));
    const auto weights = TensorAccessor(weights_args, COMMON_ARGUMENT(weights));
    const auto counts = TensorAccessor(counts_args, COMMON_ARGUMENT(counts));
    const auto records = TensorAccessor(records_args, COMMON_ARGUMENT(records));
    const auto params = TensorAccessor(params_args, COMMON_ARGUMENT(params));
    constexpr uint32_t kmax = get_named_compile_time_arg_val("kmax");
    constexpr uint32_t cb_share = get_named_compile_time_arg_val("cb_share");
    constexpr uint32_t cb_counts = get_named_compile_time_arg_val("cb_counts");

    const uint32_t params_at = get_write_ptr(cb_counts), counts_at = params_at + PARAMS_BYTES;
    noc_async_read(params.get_noc_addr(0), params_at, PARAMS_BYTES);
    const uint32_t index = core_index<get_named_compile_time_arg_val("columns")>();
    // Each core begins at another page: all of them asking for the same one would wait for each other.
    uint32_t page = index % blocks;
    for (uint32_t read = 0; read < blocks; read++, page = page + 1 == blocks ? 0 : page + 1) {
        noc_async_read(counts.get_noc_addr(page), counts_at + page * COUNT_PAGE_BYTES, COUNT_PAGE_BYTES);
    }
    noc_async_read_barrier();

    const auto* parameters = reinterpret_cast<volatile tt_l1_ptr Params*>(params_at);
    const auto* slot_counts = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(counts_at);
    Share share{};
    const Prefix prefix = add_up(slot_counts, share.header);
    // The host chooses when the list is incomplete or too long; it then finds count = 0 < total.
    const bool complete = share.header.overflow_slots == 0 && share.header.total <= smaller(kmax, parameters->limit);
    share.header.count = complete ? share.header.total : 0;
    share.speculated = parameters->bucket;
    share.header.bucket = bucket_of<get_named_compile_time_arg_val("chunk"), get_named_compile_time_arg_val("buckets")>(
        share.header.count, share.speculated);
    share.speculated = smaller(share.speculated, share.header.bucket);
    apportion<get_named_compile_time_arg_val("cores")>(share, index);
    share.records = get_write_ptr(cb_share) + SHARE_BYTES;
    if (share.count != 0) {
        read_records(records, slot_counts, prefix, share);
    }
    serve(share, map, weights);
}
