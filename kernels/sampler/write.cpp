// Writer: gathers every odd group of this core, and puts its keypoints and descriptors where the host reads them.
//
// Bucket b holds chunk * (b + 1) descriptors, in two tensors of float32 rows of `channels`: the head, whose first rows
// are the header (Header and a record for each descriptor that the bucket can hold), and the tail with the descriptors
// that don't fit in the head. Core 0 writes the header's words, every core the records and descriptors of its share.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"
#include "gather.hpp"

using namespace ttsp;
using namespace ttsp::sampler;

namespace {

constexpr uint32_t row_bytes = 4 * get_named_compile_time_arg_val("channels");

// Arguments are lists with an entry for each bucket.
uint32_t head_address(uint32_t bucket) { return get_common_arg_val<uint32_t>(ARGUMENT_POSITION(heads) + bucket); }
uint32_t tail_address(uint32_t bucket) { return get_common_arg_val<uint32_t>(ARGUMENT_POSITION(tails) + bucket); }
uint32_t head_rows(uint32_t bucket) { return get_common_arg_val<uint32_t>(ARGUMENT_POSITION(head_rows) + bucket); }

uint32_t header_rows(uint32_t bucket) {
    constexpr uint32_t chunk = get_named_compile_time_arg_val("chunk");
    return (HEADER_BYTES + chunk * (bucket + 1) * RECORD_BYTES + row_bytes - 1) / row_bytes;
}

template <class Args>
struct Bucket {
    static constexpr Args args{};
    uint32_t index = 0;
    uint32_t descriptors_in_head = 0;
    uint32_t first_row = 0;

    explicit Bucket(uint32_t bucket)
        : index(bucket), descriptors_in_head(head_rows(bucket)), first_row(header_rows(bucket)) {}

    auto head() const { return TensorAccessor(args, head_address(index)); }
    auto tail() const { return TensorAccessor(args, tail_address(index)); }

    // `bytes` at `offset` of the header rows, which are pages of row_bytes each.
    void write_header(uint32_t from, uint32_t offset, uint32_t bytes) const {
        while (bytes != 0) {
            const uint32_t in_page = offset % row_bytes;
            const uint32_t part = smaller(bytes, row_bytes - in_page);
            noc_async_write(from, head().get_noc_addr(offset / row_bytes, in_page), part);
            from += part;
            offset += part;
            bytes -= part;
        }
    }

    void write_descriptor(uint32_t from, uint32_t row) const {
        const uint64_t to = row < descriptors_in_head ? head().get_noc_addr(first_row + row)
                                                      : tail().get_noc_addr(row - descriptors_in_head);
        noc_async_write(from, to, row_bytes);
    }
};

}  // namespace

void kernel_main() {
    constexpr auto map_args = TensorAccessorArgs<0>();
    constexpr auto weights_args = TensorAccessorArgs<map_args.next_compile_time_args_offset()>();
    constexpr auto bucket_args = TensorAccessorArgs<weights_args.next_compile_time_args_offset()>();
    const auto map = TensorAccessor(map_args, COMMON_ARGUMENT(map));
    const auto weights = TensorAccessor(weights_args, COMMON_ARGUMENT(weights));
    constexpr uint32_t cb_odd = get_named_compile_time_arg_val("cb_odd");
    constexpr uint32_t cb_rows = get_named_compile_time_arg_val("cb_rows");
    constexpr uint32_t cb_share = get_named_compile_time_arg_val("cb_share");
    constexpr uint32_t cb_weights = get_named_compile_time_arg_val("cb_weights");

    cb_wait_front(cb_share, 1);
    invalidate_l1_cache();
    const uint32_t share_at = get_read_ptr(cb_share);
    const auto* share = reinterpret_cast<volatile tt_l1_ptr Share*>(share_at);
    const uint32_t begin = share->begin, count = share->count, records = share->records;
    using Args = decltype(bucket_args);
    const Bucket<Args> bucket(share->header.bucket);

    if (core_index<get_named_compile_time_arg_val("columns")>() == 0) {
        bucket.write_header(share_at, 0, HEADER_BYTES);
        if (share->speculated != bucket.index) {
            // The host reads this one first, and learns from it where to look.
            Bucket<Args>(share->speculated).write_header(share_at, 0, HEADER_BYTES);
        }
    }
    bucket.write_header(records, HEADER_BYTES + begin * RECORD_BYTES, count * RECORD_BYTES);

    const Gather gather{map, weights, records, get_write_ptr(cb_weights)};
    uint32_t next_odd = GROUP;
    for (uint32_t first = 0; first < count; first += GROUP) {
        // At most one odd group ahead of the one being written, which is as much as cb_odd has room for.
        if (next_odd < count && next_odd <= first + GROUP) {
            gather.group(next_odd, count, cb_odd);
            next_odd += 2 * GROUP;
        }
        cb_wait_front(cb_rows, 1);
        uint32_t from = get_read_ptr(cb_rows);
        const uint32_t end = smaller(first + GROUP, count);
        for (uint32_t index = first; index < end; index++, from += ROW_BYTES_MAX) {
            bucket.write_descriptor(from, begin + index);
        }
        noc_async_writes_flushed();
        cb_pop_front(cb_rows, 1);
    }
    noc_async_write_barrier();
}
