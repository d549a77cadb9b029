// left * right + left in fp32, rounded after each operation as a CPU does: SFPMUL, then SFPADD. Needs fp32 DST and
// circular buffers 0 and 1 unpacked to DST in fp32 (program.compute(fp32=True, unpack_to_dst_fp32=[0, 1])).
#include "api/compute/common.h"
#include "api/compute/compute_kernel_hw_startup.h"
#include "api/compute/pack.h"
#include "api/compute/tile_move_copy.h"
#include "sfpu.hpp"

void kernel_main() {
    compute_kernel_hw_startup(0, 1, 16);
    cb_wait_front(0, 1);
    cb_wait_front(1, 1);
    tile_regs_acquire();
    copy_init(0);
    copy_tile(0, 0, 0);
    copy_init(1);
    copy_tile(1, 0, 1);
    MATH((for_each_lane_group([] {
        TTI_SFPLOAD(0, 3, 3, 0);
        TTI_SFPLOAD(1, 3, 3, dst_rows_per_tile);
        TTI_SFPMUL(0, 1, 9, 2, 0);   // r2 = r0 * r1 + 0 (constant register 9)
        TTI_SFPNOP;                  // the product is there one cycle later
        TTI_SFPADD(10, 2, 0, 2, 0);  // r2 = 1 (constant register 10) * r2 + r0
        TTI_SFPNOP;
        TTI_SFPSTORE(2, 3, 3, 0);
    })));
    tile_regs_commit();
    cb_pop_front(0, 1);
    cb_pop_front(1, 1);

    cb_reserve_back(16, 1);
    tile_regs_wait();
    pack_tile(0, 16);
    tile_regs_release();
    cb_push_back(16, 1);
}
