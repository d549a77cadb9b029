// Streams the tiles of two tensors from DRAM into circular buffers 0 and 1. NCRISC.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"

namespace {
template <typename Tensor>
void push_tile(const Tensor& tensor, uint32_t tile, uint32_t buffer) {
    cb_reserve_back(buffer, 1);
    noc_async_read_tile(tile, tensor, get_write_ptr(buffer));
    noc_async_read_barrier();
    cb_push_back(buffer, 1);
}
}  // namespace

void kernel_main() {
    constexpr auto left_args = TensorAccessorArgs<0>();
    constexpr auto right_args = TensorAccessorArgs<left_args.next_compile_time_args_offset()>();
    const auto left = TensorAccessor(left_args, COMMON_ARGUMENT(left), get_tile_size(0));
    const auto right = TensorAccessor(right_args, COMMON_ARGUMENT(right), get_tile_size(1));
    const uint32_t tiles = COMMON_ARGUMENT(tiles);
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        push_tile(left, tile, 0);
        push_tile(right, tile, 1);
    }
}
