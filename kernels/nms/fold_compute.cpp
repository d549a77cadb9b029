// Folds rows 2, 3 and 4 of every five: plain scalar code on the three TRISCs.
#include "api/compute/common.h"
#include "common/arguments.hpp"
#include "fold.hpp"

using namespace ttsp;
using namespace ttsp::nms;

namespace {

// Only the unpacker's RISC knows circular buffers; it hands the address on to the other two when the scores are there.
uint32_t wait_for_staged_scores() {
#ifdef TRISC_UNPACK
    constexpr uint32_t cb_staged = get_named_compile_time_arg_val("cb_staged");
    cb_wait_front(get_named_compile_time_arg_val("cb_half_0"), 1);
    cb_wait_front(get_named_compile_time_arg_val("cb_half_1"), 1);
    const uint32_t staged = align_up(get_local_cb_interface(cb_staged).fifo_rd_ptr << 4);
    ckernel::mailbox_write(ckernel::ThreadId::MathThreadId, staged);
    ckernel::mailbox_write(ckernel::ThreadId::PackThreadId, staged);
    return staged;
#else
    return ckernel::mailbox_read(ckernel::ThreadId::UnpackThreadId);
#endif
}

#if defined(TRISC_UNPACK)
constexpr Worker worker = UNPACK_RISC;
#elif defined(TRISC_MATH)
constexpr Worker worker = MATH_RISC;
#else
constexpr Worker worker = PACK_RISC;
#endif

}  // namespace

void kernel_main() {
    const uint32_t staged = wait_for_staged_scores();
    asm volatile("fence" ::: "memory");  // scores came by DMA: forget cached lines of L1
    fold_rows(worker, staged, COMMON_ARGUMENT(strips), UNIQUE_ARGUMENT(first_row), UNIQUE_ARGUMENT(row_count));
}
