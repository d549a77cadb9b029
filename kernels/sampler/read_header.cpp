// Reader of the top-k program: the keypoint list is a header that the host has uploaded.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"
#include "read.hpp"

using namespace ttsp;
using namespace ttsp::sampler;

namespace {

constexpr uint32_t READ_ALIGNMENT = 64;

// The records [begin, begin + count) of the header, in reads of aligned 64 bytes; the address of the first in L1.
template <class Headers>
uint32_t read_records(const Headers& headers, const Share& share, uint32_t to) {
    const uint32_t begin = HEADER_BYTES + share.begin * RECORD_BYTES;
    const uint32_t end = begin + share.count * RECORD_BYTES;
    const uint32_t from = begin / READ_ALIGNMENT * READ_ALIGNMENT;
    const uint32_t bytes = (end - from + READ_ALIGNMENT - 1) / READ_ALIGNMENT * READ_ALIGNMENT;
    noc_async_read(headers.get_noc_addr(0, from), to, bytes);
    noc_async_read_barrier();
    return to + begin - from;
}

}  // namespace

void kernel_main() {
    constexpr auto map_args = TensorAccessorArgs<0>();
    constexpr auto weights_args = TensorAccessorArgs<map_args.next_compile_time_args_offset()>();
    constexpr auto header_args = TensorAccessorArgs<weights_args.next_compile_time_args_offset()>();
    const auto map = TensorAccessor(map_args, COMMON_ARGUMENT(map));
    const auto weights = TensorAccessor(weights_args, COMMON_ARGUMENT(weights));
    const auto headers = TensorAccessor(header_args, COMMON_ARGUMENT(header));
    constexpr uint32_t kmax = get_named_compile_time_arg_val("kmax");
    constexpr uint32_t cb_share = get_named_compile_time_arg_val("cb_share");

    const uint32_t records_at = get_write_ptr(cb_share) + SHARE_BYTES;
    noc_async_read(headers.get_noc_addr(0), records_at, HEADER_BYTES);
    noc_async_read_barrier();
    const auto* uploaded = reinterpret_cast<volatile tt_l1_ptr Header*>(records_at);
    Share share{};
    share.header.count = smaller(uploaded->count, kmax);
    share.header.total = uploaded->total;
    share.header.overflow_slots = uploaded->overflow_slots;
    share.header.bucket = bucket_of<get_named_compile_time_arg_val("chunk"), get_named_compile_time_arg_val("buckets")>(
        share.header.count, 0);
    share.speculated = share.header.bucket;
    apportion<get_named_compile_time_arg_val("cores")>(share, core_index<get_named_compile_time_arg_val("columns")>());
    share.records = records_at;
    if (share.count != 0) {
        share.records = read_records(headers, share, records_at);
    }
    serve(share, map, weights);
}
