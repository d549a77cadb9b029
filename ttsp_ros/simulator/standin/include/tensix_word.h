#pragma once
// Included before every Tensix source. SFPI's assembler knows `.ttinsn`; for GNU as it is a macro that emits the Tensix
// instruction as the RISC-V cores fetch it: the word rotated left by two bits.
#ifdef __riscv_xtttensixbh
asm(".macro .ttinsn word\n"
    "  .4byte ((((\\word) >> 30) & 3) | (((\\word) & 0x3fffffff) << 2))\n"
    ".endm\n");
#endif
