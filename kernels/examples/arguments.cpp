// Every way in which a kernel gets a number: writes them, in this order, to row `row` of the output. NCRISC or BRISC.
#include "api/dataflow/dataflow_api.h"
#include "arguments_sibling.hpp"
#include "common/arguments.hpp"

void kernel_main() {
    constexpr uint32_t row_bytes = get_named_compile_time_arg_val("row_bytes");
    constexpr auto output_args = TensorAccessorArgs<0>();
    const auto output = TensorAccessor(output_args, COMMON_ARGUMENT(output), row_bytes);

    const uint32_t scratch = get_write_ptr(0);
    auto* words = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(scratch);
    words[0] = FROM_DEFINE;
    words[1] = from_sibling;
    words[2] = row_bytes;
    words[3] = UNIQUE_ARGUMENT(number);
    words[4] = COMMON_ARGUMENT(shared);
    noc_async_write(scratch, output.get_noc_addr(UNIQUE_ARGUMENT(row)), row_bytes);
    noc_async_write_barrier();
}
