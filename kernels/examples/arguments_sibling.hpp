#pragma once
// A header beside its kernel is found by its bare name, one elsewhere by its path below kernels/.
#include <cstdint>

constexpr uint32_t from_sibling = 1234;
