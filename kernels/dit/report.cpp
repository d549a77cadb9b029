// Says on every RISC of every core what the program told it, and what it finds at the places that the plan gives.
//
// Not part of the DiT: with it, a program is checked before the kernel that it is for exists, and on a new card before
// anything is blamed on that kernel. Words go to the start of the core's shard of `activations`, REPORT_WORDS for each
// of NCRISC, BRISC and TRISC (the packing one):
//    0  1 NCRISC, 2 BRISC, 3 TRISC     1  is_reader + 2 is_hub + 4 is_compute    2 .. 6  PerCore
//    7  n_blocks    8  bytes_weights    9  address of `activations`   10  number of offsets   11  last offset
//   12  step       13  hub x + y << 16     14  hub2     15  last core of the multicasts
//   16 ..  NCRISC of compute cores: for every block and Kind, first word of its first and of its last K-block
#if defined(COMPILE_FOR_NCRISC) || defined(COMPILE_FOR_BRISC)
#include "api/dataflow/dataflow_api.h"
#else
#include "api/compute/common.h"
#endif

#include "common/arguments.hpp"
#include "dit/plan.hpp"

namespace {

using namespace ttsp::dit;

constexpr uint32_t REPORT_WORDS = 40;
constexpr uint32_t FIRST_WEIGHT_WORD = 16;
constexpr uint32_t MOST_BLOCKS = (REPORT_WORDS - FIRST_WEIGHT_WORD) / (2 * KINDS);
constexpr uint32_t SCRATCH_BYTES = 2048;  // behind the first tile, which holds the report
constexpr uint32_t READ_BYTES = 64;

// Constants by name: a look-up outside of a constant expression would put the table of all names into local memory.
constexpr uint32_t arg_offsets = get_named_compile_time_arg_val("arg_offsets");
constexpr uint32_t cb_activations = get_named_compile_time_arg_val("cb_activations");
constexpr uint32_t n_blocks = get_named_compile_time_arg_val("n_blocks");
constexpr uint32_t bytes_weights = get_named_compile_time_arg_val("bytes_weights");
constexpr uint32_t is_reader = get_named_compile_time_arg_val("is_reader");
constexpr uint32_t is_hub = get_named_compile_time_arg_val("is_hub");
constexpr uint32_t is_compute = get_named_compile_time_arg_val("is_compute");
constexpr uint32_t hub = get_named_compile_time_arg_val("hub_noc_x") | get_named_compile_time_arg_val("hub_noc_y")
                                                                           << 16;
constexpr uint32_t hub2 = get_named_compile_time_arg_val("hub2_noc_x") | get_named_compile_time_arg_val("hub2_noc_y")
                                                                             << 16;
constexpr uint32_t last = get_named_compile_time_arg_val("last_noc_x") | get_named_compile_time_arg_val("last_noc_y")
                                                                             << 16;

using Words = volatile uint32_t*;

void report_arguments(Words words, uint32_t risc) {
    const uint32_t offsets = COMMON_ARGUMENT(arg_offset_count);
    words[0] = risc;
    words[1] = is_reader | is_hub << 1 | is_compute << 2;
    for (uint32_t i = 0; i < sizeof(PerCore) / sizeof(uint32_t); ++i) {
        words[2 + i] = get_arg_val<uint32_t>(i);
    }
    words[7] = n_blocks;
    words[8] = bytes_weights;
    words[9] = COMMON_ARGUMENT(io_activations);
    words[10] = offsets;
    words[11] = get_common_arg_val<uint32_t>(arg_offsets + offsets - 1);
    words[12] = COMMON_ARGUMENT(arg_step);
    words[13] = hub;
    words[14] = hub2;
    words[15] = last;
}

#if defined(COMPILE_FOR_NCRISC)
void report_weights(Words words, uint32_t scratch) {
    const PerCore core{get_arg_val<uint32_t>(0), get_arg_val<uint32_t>(1)};
    const uint32_t arena = COMMON_ARGUMENT(io_arena_stream);
    const auto first_word = [&](uint32_t offset) {
        noc_async_read(get_noc_addr_from_bank_id<true>(core.bank, arena + offset), scratch, READ_BYTES);
        noc_async_read_barrier();
        return *reinterpret_cast<Words>(scratch);
    };
    for (uint32_t i = 0; i < KINDS * (n_blocks < MOST_BLOCKS ? n_blocks : MOST_BLOCKS); ++i) {
        const Operation op = operation(i / KINDS, static_cast<Kind>(i % KINDS));
        if (core.compute_index >= op.cores) {
            continue;
        }
        const uint32_t first_byte = get_common_arg_val<uint32_t>(arg_offsets + i);
        words[2 * i] = first_word(op.block_offset(first_byte, core.compute_index, 0));
        words[2 * i + 1] = first_word(op.block_offset(first_byte, core.compute_index, op.k_blocks - 1));
    }
}
#endif

}  // namespace

void kernel_main() {
#if defined(COMPILE_FOR_NCRISC)
    // The circular buffer's own address: it must be the tensor's.
    const uint32_t shard = get_write_ptr(cb_activations);
    const auto words = reinterpret_cast<Words>(shard);
    report_arguments(words, 1);
    words[9] = shard;
    if constexpr (is_compute == 1) {
        const uint32_t scratch = (shard + SCRATCH_BYTES + READ_BYTES - 1) / READ_BYTES * READ_BYTES;
        report_weights(words + FIRST_WEIGHT_WORD, scratch);
    }
#elif defined(COMPILE_FOR_BRISC)
    report_arguments(reinterpret_cast<Words>(COMMON_ARGUMENT(io_activations)) + REPORT_WORDS, 2);
#elif defined(TRISC_PACK)
    report_arguments(reinterpret_cast<Words>(COMMON_ARGUMENT(io_activations)) + 2 * REPORT_WORDS, 3);
#endif
}
