// The plan of the DiT megakernel as compile-time constants: ttsp_ros/dit/megakernel/arena.py and core_map.py in C++.
//
// Where the weights of an operation lie follows from its first byte (a common runtime argument) and from what is below;
// test/dit/megakernel/test_on_simulator.py reads them on every core and compares with what the host packed.
#pragma once

#include <cstdint>

namespace ttsp::dit {

inline constexpr uint32_t NOT_APPLICABLE = 0xFFFF;
inline constexpr uint32_t TILE = 32;

inline constexpr uint32_t block_rows = get_named_compile_time_arg_val("block_rows");
inline constexpr uint32_t block_columns = get_named_compile_time_arg_val("block_columns");
inline constexpr uint32_t block_bytes =
    block_rows * block_columns * get_named_compile_time_arg_val("stream_tile_bytes");
inline constexpr uint32_t n_banks = get_named_compile_time_arg_val("n_banks");
inline constexpr uint32_t n_heads = get_named_compile_time_arg_val("n_heads");
inline constexpr bool relayed = get_named_compile_time_arg_val("reader_mode") == 1;

// What each core is told, in the order of PER_CORE_WORDS.
struct PerCore {
    uint32_t compute_index;
    uint32_t bank;
    uint32_t virtual_channel;
    uint32_t head;
    uint32_t group;
};

// Operations of a block, in the order in which they run and in which their offsets follow one another.
enum class Kind : uint32_t { Queries, Out, Ff1, Ff2 };
inline constexpr uint32_t KINDS = 4;

struct Operation {
    uint32_t cores;     // 0 .. cores - 1 own a piece
    uint32_t k_blocks;  // of a piece

    constexpr uint32_t slots() const { return (cores + n_banks - 1) / n_banks; }

    // First byte, from the start of the arena in the core's bank, of a K-block of the piece of `core`.
    constexpr uint32_t block_offset(uint32_t first_byte, uint32_t core, uint32_t k_block) const {
        const uint32_t slot = core / n_banks;
        return first_byte + (relayed ? k_block * slots() + slot : slot * k_blocks + k_block) * block_bytes;
    }
};

constexpr bool is_cross(uint32_t block) { return block % 2 == 0; }

constexpr Operation operation(uint32_t block, Kind kind) {
    constexpr uint32_t width = get_named_compile_time_arg_val("width") / TILE;
    constexpr uint32_t attention = n_heads * get_named_compile_time_arg_val("head_dim_padded") / TILE;
    constexpr uint32_t inner = get_named_compile_time_arg_val("ff_dim") / TILE;
    constexpr uint32_t split = get_named_compile_time_arg_val("out_split");
    switch (kind) {
        case Kind::Queries:
            return {(is_cross(block) ? 1 : 3) * attention / block_columns, width / block_rows};
        case Kind::Out:
            return {width / block_columns * split, attention / split / block_rows};
        case Kind::Ff1:
            return {inner / block_columns, width / block_rows};
        case Kind::Ff2:
            return {width / block_columns * split, inner / split / block_rows};
    }
    return {0, 0};
}

}  // namespace ttsp::dit
