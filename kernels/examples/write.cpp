// Writes the tiles of circular buffer 16 to DRAM as they come. BRISC.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"

void kernel_main() {
    constexpr uint32_t buffer = 16;
    constexpr auto output_args = TensorAccessorArgs<0>();
    const auto output = TensorAccessor(output_args, COMMON_ARGUMENT(output), get_tile_size(buffer));
    const uint32_t tiles = COMMON_ARGUMENT(tiles);
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        cb_wait_front(buffer, 1);
        noc_async_write_tile(tile, output, get_read_ptr(buffer));
        noc_async_write_barrier();
        cb_pop_front(buffer, 1);
    }
}
