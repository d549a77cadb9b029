// The smaller and the larger of two values, for constants and sizes alike.
#pragma once

namespace ttsp {

template <class T>
constexpr T smaller(T a, T b) {
    return a < b ? a : b;
}
template <class T>
constexpr T larger(T a, T b) {
    return a < b ? b : a;
}

}  // namespace ttsp
