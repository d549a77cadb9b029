// ((G0 W0 + G1 W1) + G2 W2) + G3 W3 in float32, every product and every sum rounded, for four keypoints at a time.
//
// The taps of a keypoint are the four faces of one tile, its weights four scalars that math loads into the SFPU as
// immediates, so that no weight has to be copied to as many lanes as there are channels.
#include "api/compute/common.h"
#include "api/compute/pack.h"
#include "api/compute/tile_move_copy.h"
#include "share.hpp"

using namespace ttsp;
using namespace ttsp::sampler;

namespace {

// DST is 16 bits wide, and a float32 takes two of its rows. A half of it (512 rows) holds, in this kernel, the taps as
// bf16 tiles 0..3 (rows 0..255) and the descriptors as fp32 tile RESULT (rows 256..383). Copying the taps as 16 bits
// leaves every bit alone; the copy to fp32 tiles is an addition in the FPU, which makes +0 of -0 and infinity of NaN.
constexpr bool TO_FP32 = false;
constexpr uint32_t RESULT = 2;

#ifdef TRISC_MATH

constexpr uint32_t BF16 = 2, FP32 = 3;  // SFPLOAD and SFPSTORE: what DST holds
constexpr uint32_t STAY = ADDR_MOD_7, ADVANCE = ADDR_MOD_6;
constexpr uint32_t TILE_ROWS = 64, FACE_ROWS = 16, VECTOR_ROWS = 2;  // in addresses; a vector is 32 lanes

// SFPMAD's addend is negated: with +0 as addend a product of -0 would become +0.
constexpr uint32_t ZERO = p_sfpu::LCONST_0, ONE = p_sfpu::LCONST_1, MINUS_ADDEND = 2;

void configure_address_steps() {
    addr_mod_t{.srca = {.incr = 0}, .srcb = {.incr = 0}, .dest = {.incr = 0}}.set(STAY);
    addr_mod_t{.srca = {.incr = 0}, .srcb = {.incr = 0}, .dest = {.incr = 2 * VECTOR_ROWS}}.set(ADVANCE);
}

template <uint32_t lreg>
void load_scalar(uint32_t bits) {
    TT_SFPLOADI(lreg, sfpi::SFPLOADI_MOD0_LOWER, bits & 0xffff);
    TT_SFPLOADI(lreg, sfpi::SFPLOADI_MOD0_UPPER, bits >> 16);
}

// One tap of two vectors: LREG5 and LREG7 hold their sums. Two vectors at a time keep the SFPU busy for the two cycles
// that a product or a sum takes.
template <uint32_t keypoint, uint32_t tap>
void add_tap() {
    constexpr uint32_t address = keypoint * TILE_ROWS + tap * FACE_ROWS;
    TTI_SFPLOAD(p_sfpu::LREG4, BF16, STAY, address);
    TTI_SFPLOAD(p_sfpu::LREG6, BF16, STAY, address + VECTOR_ROWS);
    if constexpr (tap == 0) {
        TTI_SFPMAD(p_sfpu::LREG4, tap, ZERO, p_sfpu::LREG5, MINUS_ADDEND);
        TTI_SFPMAD(p_sfpu::LREG6, tap, ZERO, p_sfpu::LREG7, MINUS_ADDEND);
    } else {
        TTI_SFPMAD(p_sfpu::LREG4, tap, ZERO, p_sfpu::LREG4, MINUS_ADDEND);
        TTI_SFPMAD(p_sfpu::LREG6, tap, ZERO, p_sfpu::LREG6, MINUS_ADDEND);
        TTI_SFPADD(ONE, p_sfpu::LREG5, p_sfpu::LREG4, p_sfpu::LREG5, 0);
        TTI_SFPADD(ONE, p_sfpu::LREG7, p_sfpu::LREG6, p_sfpu::LREG7, 0);
    }
}

// The descriptor of keypoint 0..3 of the group, to face `keypoint` of the fp32 tile RESULT.
template <uint32_t keypoint>
void blend(const volatile uint32_t* weights) {
    constexpr uint32_t channels = get_named_compile_time_arg_val("channels");
    load_scalar<p_sfpu::LREG0>(weights[0]);
    load_scalar<p_sfpu::LREG1>(weights[1]);
    load_scalar<p_sfpu::LREG2>(weights[2]);
    load_scalar<p_sfpu::LREG3>(weights[3]);
    for (uint32_t channel = 0; channel < channels; channel += 64) {
        add_tap<keypoint, 0>();
        add_tap<keypoint, 1>();
        add_tap<keypoint, 2>();
        add_tap<keypoint, 3>();
        constexpr uint32_t address = RESULT * TILE_ROWS + keypoint * FACE_ROWS;
        TTI_SFPSTORE(p_sfpu::LREG5, FP32, STAY, address);
        TTI_SFPSTORE(p_sfpu::LREG7, FP32, ADVANCE, address + VECTOR_ROWS);
    }
    math::reset_counters(p_setrwc::SET_D);
}

// The weights of keypoint `index`: the table has WEIGHT_PIXELS pixels side by side.
const volatile uint32_t* weights_of(uint32_t index, uint32_t records, uint32_t weights) {
    const uint32_t yx = (reinterpret_cast<const volatile Record*>(records) + index)->yx;
    return reinterpret_cast<const volatile uint32_t*>(weights + index * WEIGHT_BYTES) +
           yx % WEIGHT_PIXELS * WEIGHT_WORDS;
}

void blend_group(uint32_t first, uint32_t count, uint32_t records, uint32_t weights) {
    math::set_dst_write_addr<DstTileShape::Tile32x32, UnpackDestination::SrcRegs>(0);
    TTI_STALLWAIT(p_stall::STALL_SFPU, p_stall::MATH);
    blend<0>(weights_of(first, records, weights));
    if (count > 1) {
        blend<1>(weights_of(first + 1, records, weights));
    }
    if (count > 2) {
        blend<2>(weights_of(first + 2, records, weights));
    }
    if (count > 3) {
        blend<3>(weights_of(first + 3, records, weights));
    }
}

#endif

}  // namespace

void kernel_main() {
    constexpr uint32_t cb_even = get_named_compile_time_arg_val("cb_even");
    constexpr uint32_t cb_odd = get_named_compile_time_arg_val("cb_odd");
    constexpr uint32_t cb_rows = get_named_compile_time_arg_val("cb_rows");
    constexpr uint32_t cb_task = get_named_compile_time_arg_val("cb_task");

    compute_kernel_hw_startup(cb_even, cb_rows);
    copy_init<TO_FP32>(cb_even);
    MATH(configure_address_steps());

    cb_wait_front(cb_task, 1);
    UNPACK(invalidate_l1_cache());
    const uint32_t count = read_tile_value(cb_task, 0, TASK_COUNT);
    [[maybe_unused]] const uint32_t records = read_tile_value(cb_task, 0, TASK_RECORDS);
    [[maybe_unused]] const uint32_t weights = read_tile_value(cb_task, 0, TASK_WEIGHTS);

    for (uint32_t first = 0; first < count; first += GROUP) {
        const uint32_t cb_taps = first / GROUP % 2 == 0 ? cb_even : cb_odd;
        const uint32_t present = smaller(count - first, GROUP);
        cb_wait_front(cb_taps, GROUP);
        // Math reads the weights from L1 itself; the message tells it that they are there.
        get_tile_address(cb_taps, 0);
        MATH(invalidate_l1_cache());

        tile_regs_acquire();
        for (uint32_t keypoint = 0; keypoint < present; keypoint++) {
            copy_tile<TO_FP32>(cb_taps, keypoint, keypoint);
        }
        cb_pop_front(cb_taps, GROUP);
        MATH(blend_group(first, present, records, weights));
        tile_regs_commit();

        cb_reserve_back(cb_rows, 1);
        tile_regs_wait();
        pack_tile(RESULT, cb_rows);
        tile_regs_release();
        cb_push_back(cb_rows, 1);
    }
}
