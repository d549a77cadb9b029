#pragma once
// Raw SFPU code over whole tiles in DST. The SFPU sees 32 lanes at a time: 4 rows by 8 even or odd columns of a face,
// so 32 steps of two DST rows are a tile of 64 rows (16 elements each).
#include <cstdint>

constexpr uint32_t dst_rows_per_tile = 64;
constexpr uint32_t steps_per_tile = 32;

#ifdef TRISC_MATH
// Runs `step` for each group of 32 lanes of the tiles that begin at DST tile 0; SFPLOAD and SFPSTORE addresses in it
// are those of the first group, tile k at k * dst_rows_per_tile.
template <typename Step>
inline void for_each_lane_group(Step step) {
    math::set_dst_write_addr<DstTileShape::Tile32x32, UnpackDestination::SrcRegs>(0);
    TTI_STALLWAIT(p_stall::STALL_SFPU, p_stall::MATH);  // copy_tile has written DST
    for (uint32_t i = 0; i < steps_per_tile; ++i) {
        step();
        TTI_INCRWC(0, 2, 0, 0);
    }
    TTI_SETRWC(p_setrwc::CLR_NONE, 0, 0, 0, 0, p_setrwc::SET_D);
}
#endif
