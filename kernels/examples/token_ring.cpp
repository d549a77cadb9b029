// Semaphores between cores: a counter passes through all cores, each adds its own number to it and hands it on. The
// first core starts and, last, stores what came round. NCRISC or BRISC; buffer 0 is one page, the mailbox of the core.
#include "api/dataflow/dataflow_api.h"
#include "common/arguments.hpp"

namespace {
constexpr uint32_t page_bytes = get_named_compile_time_arg_val("page_bytes");
constexpr uint32_t arrived_id = get_named_compile_time_arg_val("arrived");

void wait_for(volatile tt_l1_ptr uint32_t* arrived) {
    noc_semaphore_wait(arrived, 1);
    noc_semaphore_set(arrived, 0);
}
}  // namespace

void kernel_main() {
    constexpr auto output_args = TensorAccessorArgs<0>();
    const auto output = TensorAccessor(output_args, COMMON_ARGUMENT(output), page_bytes);
    const bool first = UNIQUE_ARGUMENT(first);
    const uint32_t next_x = UNIQUE_ARGUMENT(next_x);
    const uint32_t next_y = UNIQUE_ARGUMENT(next_y);

    const uint32_t mailbox = get_write_ptr(0);  // the same address on every core
    auto* token = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(mailbox);
    auto* arrived = reinterpret_cast<volatile tt_l1_ptr uint32_t*>(get_semaphore(arrived_id));

    if (first) {
        *token = 0;
    } else {
        wait_for(arrived);
    }
    *token = *token + UNIQUE_ARGUMENT(number);
    noc_async_write(mailbox, get_noc_addr(next_x, next_y, mailbox), page_bytes);
    noc_async_write_barrier();  // the token is there before the semaphore says so
    noc_semaphore_inc(get_noc_addr(next_x, next_y, get_semaphore(arrived_id)), 1);
    noc_async_atomic_barrier();
    if (first) {
        wait_for(arrived);
        noc_async_write(mailbox, output.get_noc_addr(0), page_bytes);
        noc_async_write_barrier();
    }
}
