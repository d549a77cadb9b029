// The strip layout of one score map (common/layout.hpp), as the kernels of NMS see it: constants by name and addresses.
//
// Tensor `strips`, height-sharded in L1: core c holds the image rows [c * rows - radius, (c + 1) * rows + radius), its
// own and the halo above and below, `positions` positions each. fold fills the own rows, window_max the halo.
#pragma once

#include "common/compare.hpp"
#include "common/layout.hpp"

namespace ttsp::nms {

inline constexpr uint32_t width = get_named_compile_time_arg_val("width");
inline constexpr uint32_t rows = get_named_compile_time_arg_val("rows");      // image rows a core
inline constexpr uint32_t radius = get_named_compile_time_arg_val("radius");  // of the window

inline constexpr uint32_t strip = (width + LANES - 1) / LANES;  // columns that a lane owns
inline constexpr uint32_t positions = strip + 2 * radius;       // columns that a lane holds
inline constexpr uint32_t row_bytes = positions * POSITION_BYTES;

static_assert(width % CELL == 0 && radius >= 1 && radius < CELL);

}  // namespace ttsp::nms
