"""A simulated Blackhole: the real ttnn, real kernels, no card (docs/simulator.md).

Wolfpine simulates the chip; ttnn starts it by itself where TT_METAL_SIMULATOR is set. Kernels are built by SFPI,
Tenstorrent's compiler, where it is installed, else by Debian's RISC-V GCC behind a stand-in (`toolchain`).
"""
