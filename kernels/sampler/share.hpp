// What one core of the sampler works on, and how the cores divide the keypoints of an image.
//
// A program of the sampler has three kernels on every core:
//
//   read_slots.cpp or read_header.cpp (NCRISC)  finds the core's keypoints, gathers the taps of every even group
//   write.cpp (BRISC)                           gathers the taps of every odd group, writes keypoints and descriptors
//   interpolate.cpp (TRISCs)                    sum of taps times weights, a group of four keypoints at a time
//
// Circular buffers, and who waits (w), reserves (r), pushes (p) and pops (o) what:
//
//   cb_even, cb_odd  taps, a page a keypoint, groups of four pages   NCRISC or BRISC r p, unpack w o
//   cb_rows          a page: the descriptors of a group              pack r p, BRISC w o
//   cb_share         one page: Share and the records                 NCRISC p, BRISC w
//   cb_task          one page: what interpolate.cpp needs of Share   NCRISC p, unpack w
//   cb_weights       memory only: WEIGHT_BYTES a keypoint            DMA in, math reads
#pragma once

#include "common/compare.hpp"
#include "common/layout.hpp"

namespace ttsp::sampler {

inline constexpr uint32_t TAPS = 4;
inline constexpr uint32_t GROUP = 4;  // keypoints: a tile of taps each fills one half of DST in fp32

// The taps of a keypoint lie in one bf16 tile, a 16 x 16 face each, and its descriptor in a face of an fp32 tile.
// Elementwise arithmetic does not mind which channel is where, so rows of 256 channels are copied as they are.
inline constexpr uint32_t CHANNELS_MAX = 256;
inline constexpr uint32_t TAP_BYTES = 2 * CHANNELS_MAX;
inline constexpr uint32_t TAPS_BYTES = TAPS * TAP_BYTES;
inline constexpr uint32_t ROW_BYTES_MAX = 4 * CHANNELS_MAX;

// Four float32 a pixel in the weight table. DRAM reads are of 64 aligned bytes, so four pixels come with each.
inline constexpr uint32_t WEIGHT_BYTES = 64;
inline constexpr uint32_t WEIGHT_PIXELS = 4;
inline constexpr uint32_t WEIGHT_WORDS = TAPS;

struct Share {
    Header header;        // as the bucket gets it
    uint32_t begin;       // index in the list of this core's first keypoint
    uint32_t count;       // this core's keypoints
    uint32_t records;     // L1 address of their records
    uint32_t speculated;  // bucket that the host reads first
    uint32_t reserved[12];
};
inline constexpr uint32_t SHARE_BYTES = 128;
static_assert(sizeof(Share) == SHARE_BYTES);

// Words of cb_task.
enum Task : uint32_t { TASK_COUNT, TASK_RECORDS, TASK_WEIGHTS };

// The bucket for `count` rows: as many chunks as they need, or the speculated bucket where that is larger.
template <uint32_t chunk, uint32_t buckets>
constexpr uint32_t bucket_of(uint32_t count, uint32_t speculated) {
    const uint32_t needed = count == 0 ? 0 : (count - 1) / chunk;
    return larger(needed, smaller(speculated, buckets - 1));
}

// Core `index` of `cores` gets the keypoints [begin, begin + count): shares differ by one keypoint at most.
template <uint32_t cores>
void apportion(Share& share, uint32_t index) {
    share.begin = share.header.count * index / cores;
    share.count = share.header.count * (index + 1) / cores - share.begin;
}

// Index of this core among the cores of the program, which fill the grid row by row.
template <uint32_t columns>
uint32_t core_index() {
    return get_absolute_logical_y() * columns + get_absolute_logical_x();
}

}  // namespace ttsp::sampler
