// Multiplies a row of tiles by a column of tiles on the FPU into one tile: DST accumulates over the tiles.
#include "api/compute/common.h"
#include "api/compute/compute_kernel_hw_startup.h"
#include "api/compute/matmul.h"
#include "api/compute/pack.h"
#include "common/arguments.hpp"

void kernel_main() {
    const uint32_t tiles = COMMON_ARGUMENT(tiles);
    compute_kernel_hw_startup<SrcOrder::Reverse>(0, 1, 16);
    matmul_init(0, 1);
    tile_regs_acquire();
    for (uint32_t tile = 0; tile < tiles; ++tile) {
        cb_wait_front(0, 1);
        cb_wait_front(1, 1);
        matmul_tiles(0, 1, 0, 0, 0);
        cb_pop_front(0, 1);
        cb_pop_front(1, 1);
    }
    tile_regs_commit();

    cb_reserve_back(16, 1);
    tile_regs_wait();
    pack_tile(0, 16);
    tile_regs_release();
    cb_push_back(16, 1);
}
