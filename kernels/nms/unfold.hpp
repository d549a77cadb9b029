// From the flags of the maxima of one image row to a row of the NMS map and to the entries of a slot.
//
// Lanes are strips of the row from left to right: lane after lane, position after position is raster order.
#pragma once

#include "window.hpp"

namespace ttsp::nms {

// Taps of bilinear sampling along one axis of `cells` cells: the first is floor((2 v - 7)(cells - 1) / (16 cells - 9)),
// the second the next; outside of the map the nearest cell stands in (superpoint/descriptors.py has the derivation).
template <uint32_t cells>
struct Taps {
    uint32_t first, second;

    explicit Taps(uint32_t v) {
        if (v < CELL / 2) {
            first = second = 0;
            return;
        }
        first = (2 * v - 7) * (cells - 1) / (16 * cells - 9);
        second = smaller(first + 1, cells - 1);
    }
};

// Where the entries of one slot go, and what may enter.
class Slot {
  public:
    Slot(const Params& params, uint32_t first_row, uint32_t candidates, uint32_t records)
        : params_(params),
          first_row_(first_row),
          candidate_(reinterpret_cast<volatile uint32_t*>(candidates) + CANDIDATE_FIRST_WORD),
          record_(reinterpret_cast<volatile Record*>(records)) {}

    uint32_t count() const { return count_; }
    uint32_t held() const { return smaller(count_, capacity); }

    void start_row(uint32_t y) {
        const Taps<cell_rows> taps(y);
        top_ = taps.first * cell_columns;
        bottom_ = taps.second * cell_columns;
        y_ = y;
        // In a row that may hold no keypoint no score is enough.
        threshold_ = y >= params_.top && y < params_.bottom ? params_.threshold_bits : 0xffff;
    }

    void offer(uint32_t x, uint32_t score) {
        if (score <= threshold_ || x - params_.left >= params_.right - params_.left) {
            return;
        }
        if (count_ < capacity) {
            candidate_[count_] = candidate_word(score, (y_ - first_row_) * width + x);
            const Taps<cell_columns> taps(x);
            volatile Record& record = record_[count_];
            record.yx = y_ << 16 | x;
            record.score = score << 16;
            record.cells_top = (top_ + taps.first) | (top_ + taps.second) << 16;
            record.cells_bottom = (bottom_ + taps.first) | (bottom_ + taps.second) << 16;
        }
        count_++;
    }

  private:
    static constexpr uint32_t capacity = get_named_compile_time_arg_val("capacity");
    static constexpr uint32_t cell_rows = get_named_compile_time_arg_val("height") / CELL;
    static constexpr uint32_t cell_columns = width / CELL;

    const Params params_;
    const uint32_t first_row_;
    volatile uint32_t* const candidate_;
    volatile Record* const record_;
    uint32_t count_ = 0, y_ = 0, top_ = 0, bottom_ = 0, threshold_ = 0;
};

// Flags of two lanes, position i of the first in bit i, of the second in bit 16 + i.
constexpr uint32_t flag_bits(uint32_t word) { return (word & 0x1fff1fff) | (word & 0x80008000) >> 2; }

// The flags of two lanes: the words of a chunk lie together, those of the next chunk a chunk further.
struct PairFlags {
    static constexpr uint32_t words = chunks * flag_words;
    uint32_t word[words];

    explicit PairFlags(uint32_t address) {
#pragma GCC unroll 64
        for (uint32_t i = 0; i < words; i++) {
            const uint32_t offset = i / flag_words * flag_tiles * TILE_BYTES + i % flag_words * POSITION_BYTES;
            word[i] = *reinterpret_cast<const volatile uint32_t*>(address + offset);
        }
    }

    bool empty() const {
        uint32_t differs = 0;
#pragma GCC unroll 64
        for (uint32_t i = 0; i < words; i++) {
            differs |= word[i] ^ (NO_FLAGS << 16 | NO_FLAGS);
        }
        return differs == 0;
    }
};

// Calls found(lane, bit) for every bit of `bits`, as flag_bits has them.
template <class Found>
inline __attribute__((always_inline)) void for_each_flag(uint32_t bits, Found found) {
    for (; bits != 0; bits &= bits - 1) {
        const uint32_t bit = __builtin_ctz(bits);
        found(bit / 16, bit % 16);
    }
}

// `flags`: L1 address of the flags of an image row. `centres`: L1 address of position 0 of its output in the strips.
// pixel(x, score) is called for every maximum, from left to right.
template <class Pixel>
inline __attribute__((always_inline)) void unfold_row(uint32_t flags, uint32_t centres, Pixel pixel) {
    PairFlags next(flags);
#pragma GCC unroll 2
    for (uint32_t lane = 0; lane < LANES; lane += 2) {
        const PairFlags pair = next;
        flags += 4;
        next = PairFlags(flags);  // L1 takes eight cycles to answer; what is behind the last pair is only read
        if (pair.empty()) {
            continue;
        }
        const auto visit = [&](uint32_t odd, uint32_t position) __attribute__((always_inline)) {
            const uint32_t address = centres + position * POSITION_BYTES + 2 * (lane + odd);
            const uint32_t score = *reinterpret_cast<const volatile uint16_t*>(address);
            pixel((lane + odd) * strip + position, score);
        };
        if constexpr (PairFlags::words == 1) {
            for_each_flag(flag_bits(pair.word[0]), visit);
        } else {
            for (uint32_t odd = 0; odd < 2; odd++) {
                for (uint32_t i = 0; i < PairFlags::words; i++) {
                    const uint32_t first = i / flag_words * out + i % flag_words * FLAG_BITS;
                    const uint32_t bits = flag_bits(pair.word[i]) >> 16 * odd & 0xffff;
                    for_each_flag(bits, [&](uint32_t, uint32_t bit) { visit(odd, first + bit); });
                }
            }
        }
    }
}

}  // namespace ttsp::nms
