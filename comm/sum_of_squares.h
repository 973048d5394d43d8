#pragma once

#include <array>
#include <cstddef>

namespace lockstep::comm {

/// Of value_at(0) to value_at(count - 1), in FP64 and in a fixed order that fills the vector unit.
template <typename ValueAt>
double sum_of_squares(std::size_t count, ValueAt value_at) {
    std::array<double, 16> lanes{};
    std::size_t i = 0;
    for (; i + lanes.size() <= count; i += lanes.size()) {
        for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
            const auto value = static_cast<double>(value_at(i + lane));
            lanes[lane] += value * value;
        }
    }
    double sum = 0;
    for (const double lane : lanes) {
        sum += lane;
    }
    for (; i < count; ++i) {
        const auto value = static_cast<double>(value_at(i));
        sum += value * value;
    }
    return sum;
}

}  // namespace lockstep::comm
