// Elementwise minimum, then maximum, of two tiles with one SFPSWAP; bf16 in and out, exact. Pushes 2 tiles to 16.
#include "api/compute/common.h"
#include "api/compute/compute_kernel_hw_startup.h"
#include "api/compute/pack.h"
#include "api/compute/tile_move_copy.h"
#include "sfpu.hpp"

void kernel_main() {
    compute_kernel_hw_startup(0, 1, 16);
    copy_init(0);
    cb_wait_front(0, 1);
    cb_wait_front(1, 1);
    tile_regs_acquire();
    copy_tile(0, 0, 0);
    copy_tile(1, 0, 1);
    MATH((for_each_lane_group([] {
        TTI_SFPLOAD(0, 0, 3, 0);
        TTI_SFPLOAD(1, 0, 3, dst_rows_per_tile);
        TTI_SFPSWAP(0, 1, 0, 1);  // modifier 1: the smaller to register 0, by sign and magnitude
        TTI_SFPNOP;               // SFPSWAP takes two cycles
        TTI_SFPSTORE(0, 0, 3, 0);
        TTI_SFPSTORE(1, 0, 3, dst_rows_per_tile);
    })));
    tile_regs_commit();
    cb_pop_front(0, 1);
    cb_pop_front(1, 1);

    cb_reserve_back(16, 2);
    tile_regs_wait();
    pack_tile(0, 16);
    pack_tile(1, 16);
    tile_regs_release();
    cb_push_back(16, 2);
}
