// Window maximum and comparison with the centre on the SFPU, 32 lanes at a time.
//
// A score is a bf16 >= 0, whose bits order as an integer: maxima and comparisons are those of integers. SFPSTORE would
// flush denormals in the format of DST, so what comes from a register is stored as plain 16 bits and loaded as such.
// All registers with scores have zeros in their lower halves.
#include "api/compute/common.h"
#include "api/compute/compute_kernel_hw_startup.h"
#include "api/compute/pack.h"
#include "api/compute/tile_move_copy.h"
#include <utility>

#include "window.hpp"

using namespace ttsp;
using namespace ttsp::nms;

namespace {

constexpr uint32_t cb_strips = get_named_compile_time_arg_val("cb_strips");
constexpr uint32_t cb_halo_0 = get_named_compile_time_arg_val("cb_halo_0");
constexpr uint32_t cb_halo_1 = get_named_compile_time_arg_val("cb_halo_1");
constexpr uint32_t cb_flags = get_named_compile_time_arg_val("cb_flags");

#ifdef TRISC_MATH

constexpr uint32_t SCORES = 2;     // SFPLOAD: bf16 as the unpacker put it; SFPSTORE: as pack takes it
constexpr uint32_t UPPER_16 = 15;  // SFPLOAD, SFPSTORE: the upper half of a lane as plain bits
constexpr uint32_t STAY = ADDR_MOD_7, NEXT = ADDR_MOD_6;
constexpr uint32_t VECTOR_STEP = 2;      // of NEXT: to the other columns of these DST rows, then to the next rows
constexpr uint32_t COMPARE_TO_MASK = 8;  // SFPLE: all ones or zeros into VD
constexpr uint32_t MIN_TO_VD = 1;        // SFPSWAP: the minimum to VD, the maximum to VC
constexpr uint32_t UPPER_IMMEDIATE = 0;  // SFPLOADI: 16 bits into the upper half, zeros below
constexpr uint32_t T = 7, FLAGS = 6;     // registers: scratch, flags of a lane

template <uint32_t value>
using Constant = std::integral_constant<uint32_t, value>;

// f(0), f(1), ... f(count - 1), the index a constant: instructions need it as an immediate.
template <uint32_t count, class F, uint32_t... index>
ALWI void unrolled(F f, std::integer_sequence<uint32_t, index...>) {
    (f(Constant<index>{}), ...);
}
template <uint32_t count, class F>
ALWI void unrolled(F f) {
    unrolled<count>(f, std::make_integer_sequence<uint32_t, count>{});
}

template <uint32_t to, uint32_t other>
ALWI void maximum() {  // register `other` is lost
    TTI_SFPSWAP(0, to, other, MIN_TO_VD);
}
template <uint32_t from, uint32_t to>
ALWI void copy() {
    TTI_SFPMOV(0, from, to, 0);
}
template <uint32_t lreg, uint32_t value>
ALWI void set() {
    TTI_SFPLOADI(lreg, UPPER_IMMEDIATE, value);
}

// `count` running maxima of windows of 2 radius + 1 inputs: output i is the maximum of inputs i to i + 2 radius.
// Inputs count - 1 to 2 radius are in all windows: they are reduced once (a van Herk scheme within eight registers).
// Output i is then max(A_i, P_i), with A_i the maximum of inputs i to 2 radius, P_i that of 2 radius + 1 to 2 radius +
// i.
//
// IO::load<lreg>(i) loads input i; IO::prepare<lreg>() may change what all outputs include; IO::emit<i, lreg>() takes
// output i, when all inputs up to i were read.
template <class IO, uint32_t count>
ALWI void running_maxima() {
    static_assert(count >= 1 && count <= 7 && count <= 2 * radius + 1);
    constexpr uint32_t P = 0, last = count - 1, window = 2 * radius;
    IO::template load<last, last>();
    unrolled<window - last>([](auto i) {
        IO::template load<T, last + 1 + i>();
        maximum<last, T>();
    });
    IO::template prepare<last>();
    unrolled<last>([](auto i) {
        constexpr uint32_t a = last - 1 - i;
        IO::template load<a, a>();
        copy<a + 1, T>();
        maximum<a, T>();
    });
    IO::template emit<0, 0>();
    unrolled<last>([](auto j) {
        constexpr uint32_t i = j + 1;
        if constexpr (i == 1) {
            IO::template load<P, window + 1>();
        } else {
            IO::template load<T, window + i>();
            maximum<P, T>();
        }
        if constexpr (i < last) {
            copy<P, T>();
            maximum<i, T>();
        } else {
            maximum<i, P>();
        }
        IO::template emit<i, i>();
    });
}

// DST: input row i is at i * loaded * POSITION_ROWS. The centres of output row i are in input row radius + i and stay
// there; its vertical maxima go to an input row that is no centre and has been used.
constexpr uint32_t row_address(uint32_t row) { return row * loaded * POSITION_ROWS; }
template <uint32_t height>
constexpr uint32_t vertical_address(uint32_t row) {
    return row_address(row < radius ? row : height + row);
}

template <uint32_t height>
struct Vertical {
    template <uint32_t lreg, uint32_t i>
    static ALWI void load() {
        TTI_SFPLOAD(lreg, SCORES, STAY, row_address(i));
    }
    template <uint32_t lreg>
    static ALWI void prepare() {}
    template <uint32_t i, uint32_t lreg>
    static ALWI void emit() {
        constexpr uint32_t mode = i + 1 == height ? NEXT : STAY;
        TTI_SFPSTORE(lreg, UPPER_16, mode, vertical_address<height>(i));
    }
};

// All positions of the block, one vector of 32 lanes a round.
template <uint32_t height>
void vertical_maxima() {
    static_assert(height <= 2 * radius);
    for (uint32_t vector = 0; vector < loaded * POSITION_ROWS / VECTOR_STEP; vector++) {
        running_maxima<Vertical<height>, height>();
    }
    TTI_SETRWC(p_setrwc::CLR_NONE, 0, 0, 0, 0, p_setrwc::SET_D);
}

// Row `row` of the block: horizontal maxima from position `first` on, compared with the centres. A maximum of 0 counts
// as the smallest score, so that nothing of a plain of zeros is a maximum.
template <uint32_t height, uint32_t row, uint32_t first>
struct Horizontal {
    template <uint32_t lreg, uint32_t i>
    static ALWI void load() {
        TTI_SFPLOAD(lreg, UPPER_16, STAY, vertical_address<height>(row) + (first + i) * POSITION_ROWS);
    }
    template <uint32_t lreg>
    static ALWI void prepare() {
        set<T, 1>();
        maximum<lreg, T>();
    }
    template <uint32_t i, uint32_t lreg>
    static ALWI void emit() {
        TTI_SFPLOAD(T, SCORES, STAY, row_address(radius + row) + (radius + first + i) * POSITION_ROWS);
        TTI_SFPLE(0, T, lreg, COMPARE_TO_MASK);  // maximum <= centre
        set<T, flag((first + i) % FLAG_BITS)>();
        TTI_SFPAND(0, T, lreg, 0);
        TTI_SFPOR(0, lreg, FLAGS, 0);
    }
};

constexpr uint32_t group_limit = smaller<uint32_t>(FLAGS, 2 * radius + 1);

// Word `word` of the flags of a row, in as few groups as the registers allow, of equal size up to one. Flags are stored
// densely from the start of DST, below everything that is still needed.
template <uint32_t height, uint32_t row, uint32_t word>
ALWI void flag_maxima() {
    constexpr uint32_t start = word * FLAG_BITS, count = smaller(FLAG_BITS, out - start);
    constexpr uint32_t groups = (count + group_limit - 1) / group_limit;
    set<FLAGS, NO_FLAGS>();
    unrolled<groups>([](auto group) {
        constexpr uint32_t first = group * count / groups, end = (group + 1) * count / groups;
        running_maxima<Horizontal<height, row, start + first>, end - first>();
    });
    TTI_SFPSTORE(FLAGS, SCORES, STAY, (row * flag_words + word) * POSITION_ROWS);
}

template <uint32_t height, uint32_t row>
void flag_row() {
    for (uint32_t columns = 0; columns < POSITION_ROWS / VECTOR_STEP; columns++) {
        unrolled<flag_words>([](auto word) { flag_maxima<height, row, word>(); });
        TTI_INCRWC(0, VECTOR_STEP, 0, 0);
    }
    TTI_SETRWC(p_setrwc::CLR_NONE, 0, 0, 0, 0, p_setrwc::SET_D);
}

void configure_sfpu() {
    addr_mod_t{.srca = {.incr = 0}, .srcb = {.incr = 0}, .dest = {.incr = 0}}.set(STAY);
    addr_mod_t{.srca = {.incr = 0}, .srcb = {.incr = 0}, .dest = {.incr = VECTOR_STEP}}.set(NEXT);
    unrolled<8>([](auto lreg) { set<lreg, 0>(); });
}

template <uint32_t height>
void start_sfpu() {
    math::set_dst_write_addr<DstTileShape::Tile32x32, UnpackDestination::SrcRegs>(0);
    TTI_STALLWAIT(p_stall::STALL_SFPU, p_stall::MATH);
    vertical_maxima<height>();
}

#endif

// Hands the flags that there are to the packer and from there on. DST stays math's until the `last` time; each but the
// `first` time waits until the packer has taken what was handed to it before, which it did while the SFPU went on.
ALWI void publish_flags(bool first, bool last) {
    if (!first) {
        tile_regs_acquire();
    }
    tile_regs_commit();
    tile_regs_wait();
    cb_reserve_back(cb_flags, flag_tiles);
    for (uint32_t tile = 0; tile < flag_tiles; tile++) {
        pack_tile(tile, cb_flags);
    }
    cb_push_back(cb_flags, flag_tiles);
    if (last) {
        tile_regs_release();
    } else {
        PACK((_llk_pack_dest_section_done_<DstSync::SyncFull, DST_ACCUM_MODE, false>()));
    }
}

template <uint32_t height, uint32_t... turn>
ALWI void flag_rows(std::integer_sequence<uint32_t, turn...>) {
    (
        [] {
            MATH((flag_row<height, row_at(turn)>()));
            if constexpr (by_row || turn + 1 == height) {
                publish_flags(turn == 0 || !by_row, turn + 1 == height);
            }
        }(),
        ...);
}

// `height` output rows from row `first_row` of the core, chunk `chunk` of each.
template <uint32_t height>
void process(uint32_t first_row, uint32_t chunk) {
    tile_regs_acquire();
    if constexpr (chunks == 1) {
        constexpr uint32_t tiles = ((height + 2 * radius) * loaded + TILE_POSITIONS - 1) / TILE_POSITIONS;
        for (uint32_t tile = 0; tile < tiles; tile++) {
            copy_tile(cb_strips, first_row * loaded + tile * TILE_POSITIONS, tile);
        }
    } else {
        for (uint32_t row = 0; row < height + 2 * radius; row++) {
            copy_tile(cb_strips, (first_row + row) * positions + chunk * out, row);
        }
    }
    MATH((start_sfpu<height>()));
    flag_rows<height>(std::make_integer_sequence<uint32_t, height>{});
}

}  // namespace

void kernel_main() {
    compute_kernel_hw_startup(cb_strips, cb_flags);
    copy_init(cb_strips);
    MATH((configure_sfpu()));
    cb_wait_front(cb_halo_0, 1);
    cb_wait_front(cb_halo_1, 1);
    constexpr uint32_t full_blocks = rows / block, rest = rows % block;
    for (uint32_t index = 0; index < full_blocks; index++) {
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            process<block>(index * block, chunk);
        }
    }
    if constexpr (rest != 0) {
        for (uint32_t chunk = 0; chunk < chunks; chunk++) {
            process<rest>(full_blocks * block, chunk);
        }
    }
}
