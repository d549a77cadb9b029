// Reads from a neighbour's L1: each core holds a shard of `rows` rows and appends to it the first row of the next
// core's shard, as a halo exchange does. NCRISC or BRISC; input and output are height-sharded in L1.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"

void kernel_main() {
    constexpr uint32_t row_bytes = get_named_compile_time_arg_val("row_bytes");
    constexpr uint32_t rows = get_named_compile_time_arg_val("rows");
    const uint32_t input = COMMON_ARGUMENT(input);
    const uint32_t output = COMMON_ARGUMENT(output);

    const uint64_t own = get_noc_addr(input);
    const uint64_t next = get_noc_addr(UNIQUE_ARGUMENT(next_x), UNIQUE_ARGUMENT(next_y), input);
    noc_async_read(own, output, rows * row_bytes);
    noc_async_read(next, output + rows * row_bytes, row_bytes);
    noc_async_read_barrier();
}
