#pragma once
// SFPI's names for the Tensix REPLAY instruction (opcode 0x04: start << 14, length << 4, execute << 1, record).
#include <cstdint>

extern volatile uint32_t __instrn_buffer[];

namespace lltt {
enum ExecBool : bool { NoExec, Exec };

[[gnu::always_inline]] constexpr uint32_t replay_insn(unsigned start, unsigned length) {
    return (0x04u << 24) | (start << 14) | (length << 4);
}

[[gnu::always_inline]] inline void replay(unsigned start, unsigned length) {
    __instrn_buffer[0] = replay_insn(start, length);
}

template <ExecBool execute = NoExec>
[[gnu::always_inline]] inline void record(unsigned start, unsigned length) {
    __instrn_buffer[0] = replay_insn(start, length) | (unsigned(execute) << 1) | 1u;
}
}  // namespace lltt
