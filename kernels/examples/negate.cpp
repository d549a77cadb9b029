// Data movement through DRAM: reads rows of bf16, flips the sign of each element in L1, writes them back.
// NCRISC or BRISC. Circular buffer 0 is scratch memory of one row.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"

void kernel_main() {
    constexpr uint32_t row_bytes = get_named_compile_time_arg_val("row_bytes");
    constexpr auto input_args = TensorAccessorArgs<0>();
    constexpr auto output_args = TensorAccessorArgs<input_args.next_compile_time_args_offset()>();
    const auto input = TensorAccessor(input_args, COMMON_ARGUMENT(input), row_bytes);
    const auto output = TensorAccessor(output_args, COMMON_ARGUMENT(output), row_bytes);
    const uint32_t first = UNIQUE_ARGUMENT(first_row);
    const uint32_t end = first + UNIQUE_ARGUMENT(rows);

    const uint32_t scratch = get_write_ptr(0);
    auto* words = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(scratch);
    for (uint32_t row = first; row < end; ++row) {
        noc_async_read(input.get_noc_addr(row), scratch, row_bytes);
        noc_async_read_barrier();
        for (uint32_t i = 0; i < row_bytes / sizeof(uint32_t); ++i) {
            words[i] = words[i] ^ 0x80008000u;
        }
        noc_async_write(scratch, output.get_noc_addr(row), row_bytes);
        noc_async_write_barrier();
    }
}
