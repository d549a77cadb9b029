// The functions of ttnn's prebuilt noc.o and substitutes.o, which are SFPI LTO objects that no other compiler reads.
#include <cstdint>

enum class L1WordCount : int32_t {};

void l1_to_local_mem_copy(uint32_t* to, uint32_t* from, L1WordCount words) {
    volatile uint32_t* source = from;  // keeps GCC from making this a memcpy, which may not read L1 word by word
    for (int32_t i = 0; i < static_cast<int32_t>(words); ++i) {
        to[i] = source[i];
    }
}

namespace {
constexpr uint32_t noc_configuration = 0xFFB20100u;
constexpr uint32_t noc_instance_stride = 0x10000u;
uint32_t active_noc = 0;

volatile uint32_t& configuration_register(uint32_t index) {
    const uint32_t address = noc_configuration + active_noc * noc_instance_stride + index * sizeof(uint32_t);
    return *reinterpret_cast<volatile uint32_t*>(address);
}
}  // namespace

void noc_set_active_instance(uint32_t instance) { active_noc = instance; }
void noc_set_cfg_reg(uint32_t index, uint32_t value) { configuration_register(index) = value; }
uint32_t noc_get_cfg_reg(uint32_t index) { return configuration_register(index); }

extern "C" {
[[noreturn]] void exit(int) {
    while (true) {
    }
}

int atexit(void (*)()) { return 0; }

void wzerorange(uint32_t* begin, uint32_t* end) {
    for (; begin != end; ++begin) {
        *begin = 0;
    }
}

// ttnn's ELF loader refuses an allocatable .data section that lies in no segment, which an empty one does.
__attribute__((used, section(".data"))) uint32_t keep_data_segment = 1;
}
