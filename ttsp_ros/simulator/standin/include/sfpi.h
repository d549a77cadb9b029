#pragma once
// What ttnn's low-level kernels name of SFPI's own header when they move data, use the FPU or raw TTI_SFP* instructions.
// The vector types (vFloat, v_if, ...) need the real compiler: a kernel that uses them stops building here, by design.
#include <cstdint>

#include "tensix_builtins.h"

#define sfpi_inline inline __attribute__((always_inline))

namespace sfpi {
// The operand formats of SFPLOADI.
enum {
    SFPLOADI_MOD0_FLOATB = 0,
    SFPLOADI_MOD0_FLOATA = 1,
    SFPLOADI_MOD0_USHORT = 2,
    SFPLOADI_MOD0_SHORT = 4,
    SFPLOADI_MOD0_UPPER = 8,
    SFPLOADI_MOD0_LOWER = 10,
};
}  // namespace sfpi
