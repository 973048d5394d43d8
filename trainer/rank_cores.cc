#include "trainer/rank_cores.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>

#include "base/error.h"
#include "base/resources.h"

namespace lockstep::trainer {
namespace {

/// 0 where OMP_NUM_THREADS is not set. OpenMP allows a list, one number for each level of nesting: the first counts.
unsigned threads_as_asked() {
    const char* given = std::getenv("OMP_NUM_THREADS");
    if (given == nullptr || *given == '\0') {
        return 0;
    }
    const std::string_view text = given;
    unsigned threads = 0;
    const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), threads);
    const bool is_list = end == text.data() + text.size() || *end == ',';
    if (failure != std::errc{} || !is_list || threads == 0) {
        throw base::UsageError(base::str("OMP_NUM_THREADS=", text, ": give a whole number of threads, or unset it"));
    }
    return threads;
}

}  // namespace

unsigned part_of_cpus(std::span<const std::vector<std::int32_t>> cpus_of_ranks, std::size_t rank) {
    std::map<std::int32_t, unsigned> users;
    for (const auto& cpus : cpus_of_ranks) {
        for (std::int32_t cpu : cpus) {
            ++users[cpu];
        }
    }
    double part = 0;
    for (std::int32_t cpu : cpus_of_ranks[rank]) {
        part += 1.0 / users[cpu];
    }
    constexpr double rounding = 1e-9;  // three thirds are a whole
    return std::max(1U, static_cast<unsigned>(part + rounding));
}

namespace {

unsigned cores_of_rank(comm::Communicator& communicator, const comm::Topology& topology) {
    const std::vector<std::int32_t> mine = base::allowed_cpus();
    const auto gathered = communicator.all_gather_bytes(std::as_bytes(std::span(mine)), "CPUs of ranks");
    if (const unsigned asked = threads_as_asked(); asked > 0) {
        return asked;
    }
    const auto neighbours = topology.ranks_of_node(topology.node_of(communicator.rank()));
    std::vector<std::vector<std::int32_t>> cpus_of_ranks;
    for (comm::Rank rank : neighbours) {
        const auto& bytes = gathered[static_cast<std::size_t>(comm::index_of(rank))];
        std::vector<std::int32_t>& cpus = cpus_of_ranks.emplace_back(bytes.size() / sizeof(std::int32_t));
        std::memcpy(cpus.data(), bytes.data(), bytes.size());
    }
    const auto own = static_cast<std::size_t>(topology.local_rank_of(communicator.rank()));
    const unsigned part = part_of_cpus(cpus_of_ranks, own);
    const unsigned under_quota = base::usable_cores();
    const bool has_quota = under_quota < mine.size();
    const auto of_quota = std::max(1U, under_quota / static_cast<unsigned>(neighbours.size()));
    return has_quota ? std::min(part, of_quota) : part;
}

}  // namespace

unsigned use_cores_of_rank(comm::Communicator& communicator, const comm::Topology& topology) {
    const unsigned cores = cores_of_rank(communicator, topology);
    at::set_num_threads(static_cast<int>(cores));
    return cores;
}

}  // namespace lockstep::trainer
