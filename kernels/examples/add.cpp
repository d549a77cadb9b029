// Adds tiles on the FPU. Waits for and pops 0 and 1, reserves and pushes 16, a tile at a time.
#include "api/compute/common.h"
#include "api/compute/compute_kernel_hw_startup.h"
#include "api/compute/eltwise_binary.h"
#include "api/compute/pack.h"
#include "api/compute/tile_move_copy.h"
#include "common/arguments.hpp"

void kernel_main() {
    const uint32_t tiles = COMMON_ARGUMENT(tiles);
    compute_kernel_hw_startup(0, 1, 16);
    add_init(0, 1);
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        cb_wait_front(0, 1);
        cb_wait_front(1, 1);
        tile_regs_acquire();
        add_tiles(0, 1, 0, 0, 0);
        tile_regs_commit();
        cb_pop_front(0, 1);
        cb_pop_front(1, 1);

        cb_reserve_back(16, 1);
        tile_regs_wait();
        pack_tile(0, 16);
        tile_regs_release();
        cb_push_back(16, 1);
    }
}
