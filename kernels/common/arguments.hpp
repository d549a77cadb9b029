#pragma once
// Runtime arguments by name. ttsp_ros/tenstorrent/program.py gives the position of each as a compile-time argument of
// the same name; the lambda makes the look-up a constant, which a bare get_named_compile_time_arg_val need not be.
#include <cstdint>

#define ARGUMENT_POSITION(name)                                              \
    [] {                                                                     \
        constexpr uint32_t position = get_named_compile_time_arg_val(#name); \
        return position;                                                     \
    }()
#define UNIQUE_ARGUMENT(name) get_arg_val<uint32_t>(ARGUMENT_POSITION(name))
#define COMMON_ARGUMENT(name) get_common_arg_val<uint32_t>(ARGUMENT_POSITION(name))
