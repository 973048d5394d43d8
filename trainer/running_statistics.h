#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace lockstep::trainer {

/// The running means and variances of all batch norms, moved into one flat memory: they are made the same on all ranks
/// after every step, so that what is evaluated and saved is no single rank's view, and a moving average follows them as
/// one follows the weights.
class RunningStatistics {
  public:
    using NamedBuffer = std::pair<std::string, at::Tensor>;

    /// Takes the floating-point buffers among `buffers` (all of one type) and replaces their storage.
    explicit RunningStatistics(const std::vector<NamedBuffer>& buffers);

    /// The mean over ranks, weighted by the images that each has seen in this step: `images` of `all_images`.
    /// Collective; a rank without images takes part and gets the others' mean.
    void average_over_ranks(comm::Communicator& communicator, std::uint64_t images, std::uint64_t all_images);
    void update_average(double decay);
    /// Remembers the live statistics; put_back() makes them what they were then.
    void keep();
    void put_back();
    /// Live statistics and their moving average change places.
    void swap_with_average();
    const std::vector<NamedBuffer>& live() const { return live_; }
    std::vector<NamedBuffer> average() const;  ///< views, under the same names

  private:
    std::vector<NamedBuffer> live_;
    at::Tensor flat_;
    at::Tensor average_;
    at::Tensor kept_;
};

}  // namespace lockstep::trainer
