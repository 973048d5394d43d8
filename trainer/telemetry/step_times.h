#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "comm/communicator.h"

namespace lockstep::trainer {

/// What a rank's step is made of. No instant is in two of them.
enum class StepPart : std::uint8_t {
    data_wait,
    forward,        ///< losses included
    backward,       ///< with what reduces beside it and takes the core's time
    communication,  ///< that nothing hid: of gradients, partitioned optimizers, batch norm's statistics
    rank_wait,      ///< until the slowest rank was done with its backward pass
    optimizer,
    rest  ///< agreement, metrics, ...
};
constexpr std::array step_part_names = {"data_wait", "forward",   "backward", "exposed_communication",
                                        "rank_wait", "optimizer", "rest"};

/// Seconds of each part.
class StepTimes {
  public:
    double& operator[](StepPart part) { return seconds_[static_cast<std::size_t>(part)]; }
    double operator[](StepPart part) const { return seconds_[static_cast<std::size_t>(part)]; }
    double total() const;
    StepTimes& operator+=(const StepTimes& other);

    /// Makes `rest` what the other parts leave of `total`.
    void fill_up(double total);

  private:
    std::array<double, step_part_names.size()> seconds_{};
};

/// For each part {"mean", "least", "greatest", "greatest_rank"} of the ranks, in seconds of an average step of `steps`.
/// Collective.
nlohmann::json spread_over_ranks(const StepTimes& times, std::uint64_t steps, comm::Communicator& control);

}  // namespace lockstep::trainer
