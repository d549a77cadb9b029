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
        row_passes_ = y >= params_.top && y < params_.bottom;
    }

    bool row_passes() const { return row_passes_; }

    void offer(uint32_t x, uint32_t score) {
        if (!row_passes_ || score <= params_.threshold_bits || x < params_.left || x >= params_.right) {
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
    uint32_t count_ = 0, y_ = 0, top_ = 0, bottom_ = 0;
    bool row_passes_ = false;
};

// The flags of an image row start at L1 address `flags`, those of the next chunk of it `chunk_bytes` on.
// found(lane, position) is called for every maximum, from left to right.
template <class Found>
inline void unfold_row(uint32_t flags, Found found) {
    constexpr uint32_t chunk_bytes = flag_tiles * TILE_BYTES;
    constexpr uint32_t empty = NO_FLAGS << 16 | NO_FLAGS;
    constexpr uint32_t words = chunks * flag_words;
    for (uint32_t pair = 0; pair < LANES / 2; pair++) {
        uint32_t word[words], differs = 0;
#pragma GCC unroll 64
        for (uint32_t i = 0; i < words; i++) {
            const uint32_t address = flags + i / flag_words * chunk_bytes + i % flag_words * POSITION_BYTES + 4 * pair;
            word[i] = *reinterpret_cast<const volatile uint32_t*>(address);
            differs |= word[i] ^ empty;
        }
        if (differs == 0) {
            continue;
        }
        for (uint32_t lane = 2 * pair; lane < 2 * pair + 2; lane++) {
            for (uint32_t i = 0; i < words; i++) {
                uint32_t bits = word[i] >> lane % 2 * 16;
                bits = (bits & 0x1fff) | (bits & 0x8000) >> 2;
                for (uint32_t p = i / flag_words * out + i % flag_words * FLAG_BITS; bits != 0; p++, bits >>= 1) {
                    if (bits & 1) {
                        found(lane, p);
                    }
                }
            }
        }
    }
}

}  // namespace ttsp::nms
