#include "trainer/running_statistics.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "base/error.h"
#include "comm/flat_tensors.h"

namespace lockstep::trainer {

RunningStatistics::RunningStatistics(const std::vector<NamedBuffer>& buffers) {
    std::int64_t count = 0;
    at::ScalarType type = at::kFloat;
    for (const auto& [name, buffer] : buffers) {
        if (buffer.is_floating_point()) {
            LOCKSTEP_CHECK(live_.empty() || buffer.scalar_type() == type, "buffer ", name, " has a type of its own");
            type = buffer.scalar_type();
            live_.emplace_back(name, buffer);
            count += buffer.numel();
        }
    }
    flat_ = at::zeros({count}, at::TensorOptions().dtype(type));
    std::int64_t begin = 0;
    for (auto& [name, buffer] : live_) {
        at::Tensor view = flat_.narrow(0, begin, buffer.numel()).view(buffer.sizes());
        view.copy_(buffer);
        buffer.set_data(view);
        begin += buffer.numel();
    }
    average_ = flat_.clone();
}

void RunningStatistics::average_over_ranks(comm::Communicator& communicator, std::uint64_t images,
                                           std::uint64_t all_images) {
    if (communicator.size() == 1 || flat_.numel() == 0) {
        return;
    }
    flat_.mul_(static_cast<double>(images) / static_cast<double>(all_images));
    communicator.all_reduce(comm::buffer_of(flat_), comm::ReduceOp::sum, "batch-norm statistics");
}

void RunningStatistics::keep() {
    kept_ = flat_.clone();
}

void RunningStatistics::put_back() {
    flat_.copy_(kept_);
}

void RunningStatistics::update_average(double decay) {
    average_.lerp_(flat_, 1 - decay);
}

void RunningStatistics::swap_with_average() {
    const at::Tensor live = flat_.clone();
    flat_.copy_(average_);
    average_.copy_(live);
}

std::vector<RunningStatistics::NamedBuffer> RunningStatistics::average() const {
    std::vector<NamedBuffer> views;
    std::int64_t begin = 0;
    for (const auto& [name, buffer] : live_) {
        views.emplace_back(name, average_.narrow(0, begin, buffer.numel()).view(buffer.sizes()));
        begin += buffer.numel();
    }
    return views;
}

}  // namespace lockstep::trainer
