#include "comm/communication_probe.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"

namespace lockstep::comm {

namespace {

constexpr double hardly_faster = 0.9;  ///< of the other's time
/// No smaller ones: beside a backward pass that keeps the core busy, a bucket waits for the scheduler some times on its
/// way, which a probe on an idle core can't see. At 1 Gbit/s, with a core a rank, buckets of 256 KiB hid 64 % of the
/// communication of YOLOv10-n, of 1 MiB 91 %, of 4 MiB 96 % (bench/exposed_communication.py).
constexpr std::array<std::size_t, 3> bucket_sizes{1 << 20, 4 << 20, 16 << 20};

/// The first one finds out whether the link is so slow that two more must do.
double median_seconds(Communicator& communicator, Buffer buffer) {
    constexpr double slow = 0.2;
    const auto one = [&] {
        communicator.barrier("start of an all-reduce");
        double seconds = base::seconds_of([&] { communicator.all_reduce(buffer, ReduceOp::sum, "probe"); });
        communicator.all_reduce(Buffer::of(std::span(&seconds, 1)), ReduceOp::max, "slowest rank's time");
        return seconds;
    };
    const std::size_t repetitions = one() > slow ? 2 : 5;
    std::vector<double> times;
    while (times.size() < repetitions) {
        times.push_back(one());
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::ranges::nth_element(times, middle);
    return *middle;
}

}  // namespace

std::string ProbedAllReduce::describe() const {
    return base::str(name_of(algorithm), ", ", base::human_bytes(static_cast<double>(bytes)), ": ",
                     base::fixed(seconds * 1e3, 1), " ms");
}

CommunicationChoice choose_communication(std::span<const ProbedAllReduce> probed) {
    LOCKSTEP_CHECK(!probed.empty());
    const auto best_of = [&](MpiAllReduce algorithm) {
        const ProbedAllReduce* best = nullptr;
        for (const ProbedAllReduce& candidate : probed) {
            if (candidate.algorithm == algorithm &&
                (!best || candidate.seconds_per_byte() < best->seconds_per_byte())) {
                best = &candidate;
            }
        }
        return best->seconds_per_byte();
    };
    const MpiAllReduce usual = probed.front().algorithm;
    const MpiAllReduce fastest = std::ranges::min_element(probed, {}, &ProbedAllReduce::seconds_per_byte)->algorithm;
    const MpiAllReduce chosen = best_of(fastest) < hardly_faster * best_of(usual) ? fastest : usual;
    std::size_t bytes = 0;
    for (const ProbedAllReduce& candidate : probed) {
        const bool is_good = hardly_faster * candidate.seconds_per_byte() <= best_of(chosen);
        if (candidate.algorithm == chosen && is_good && (bytes == 0 || candidate.bytes < bytes)) {
            bytes = candidate.bytes;
        }
    }
    return {chosen, bytes};
}

std::vector<ProbedAllReduce> probe_communication(const JobShape& shape, DataType wire,
                                                 std::span<const MpiAllReduce> algorithms,
                                                 std::optional<std::size_t> bucket_bytes) {
    std::vector<std::size_t> sizes(bucket_sizes.begin(), bucket_sizes.end());
    if (bucket_bytes) {
        sizes = {std::max(*bucket_bytes, sizeof(float))};
    }
    std::vector<ProbedAllReduce> probed;
    for (const MpiAllReduce algorithm : algorithms) {
        JobShape with_algorithm = shape;
        with_algorithm.algorithm = algorithm;
        const auto communicator =
            JobCommunicators(std::move(with_algorithm)).make("probe", {.beside_compute = true, .wire = wire});
        const std::shared_ptr<std::byte> memory = communicator->allocate(sizes.back(), "probe");
        for (const std::size_t bytes : sizes) {
            const Buffer buffer{memory.get(), bytes / sizeof(float), DataType::f32};
            const ProbedAllReduce now{algorithm, bytes, median_seconds(*communicator, buffer)};
            const bool is_first = probed.empty() || probed.back().algorithm != algorithm;
            const bool is_faster =
                is_first || now.seconds_per_byte() < hardly_faster * probed.back().seconds_per_byte();
            probed.push_back(now);
            if (!is_faster) {
                break;
            }
        }
    }
    return probed;
}

}  // namespace lockstep::comm
