#include "trainer/telemetry/step_times.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <vector>

#include "base/error.h"

namespace lockstep::trainer {

double StepTimes::total() const {
    return std::accumulate(seconds_.begin(), seconds_.end(), 0.0);
}

StepTimes& StepTimes::operator+=(const StepTimes& other) {
    std::ranges::transform(seconds_, other.seconds_, seconds_.begin(), std::plus<>{});
    return *this;
}

void StepTimes::fill_up(double total) {
    (*this)[StepPart::rest] = 0;
    (*this)[StepPart::rest] = std::max(0.0, total - this->total());
}

nlohmann::json spread_over_ranks(const StepTimes& times, std::uint64_t steps, comm::Communicator& control) {
    const auto of_ranks = control.all_gather_bytes(std::as_bytes(std::span(&times, 1)), "times of the ranks");
    nlohmann::json result = nlohmann::json::object();
    for (std::size_t part = 0; part < step_part_names.size(); ++part) {
        std::vector<double> seconds;
        for (const auto& bytes : of_ranks) {
            LOCKSTEP_CHECK_EQ(bytes.size(), sizeof(StepTimes));
            StepTimes theirs;
            std::memcpy(&theirs, bytes.data(), sizeof(theirs));
            seconds.push_back(theirs[static_cast<StepPart>(part)] /
                              static_cast<double>(std::max<std::uint64_t>(1, steps)));
        }
        const auto greatest = std::ranges::max_element(seconds);
        result[step_part_names.at(part)] = {
            {"mean", std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size())},
            {"least", *std::ranges::min_element(seconds)},
            {"greatest", *greatest},
            {"greatest_rank", greatest - seconds.begin()}};
    }
    return result;
}

}  // namespace lockstep::trainer
