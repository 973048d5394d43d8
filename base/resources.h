#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

/// Seconds of the monotonic clock, from an arbitrary start.
double monotonic_seconds();
/// Seconds since 1970.
double unix_seconds();
/// By that clock, that `work` takes.
template <typename Work>
double seconds_of(const Work& work) {
    const double start = monotonic_seconds();
    work();
    return monotonic_seconds() - start;
}
/// "2026-11-30T04:05:06Z", or with `decimals` (up to 9) "2026-11-30T04:05:06.123Z".
std::string utc_timestamp(int decimals = 0);
/// Proportional set size of this process (smaps_rollup), in bytes; shared pages count by their share. 0 where
/// unreadable.
std::uint64_t pss_bytes();
/// Peak resident set of this process (getrusage), in bytes.
std::uint64_t peak_rss_bytes();
/// Numbers of the logical CPUs in this process's affinity mask, ascending; at least one.
std::vector<std::int32_t> allowed_cpus();
/// Cores that this process may run on (affinity mask and cgroup quota), at least 1.
unsigned usable_cores();
/// Memory that this process could still take before the machine or its control groups run out, in bytes; 0 where
/// unreadable.
std::uint64_t available_memory_bytes();
/// Bytes that this machine's (or network namespace's) interfaces have sent since it was started, loopback left out; 0
/// where unreadable.
std::uint64_t network_bytes_sent();
std::string host_name();
std::string cpu_model();

namespace detail {
/// The smallest CPU quota, in cores, on the way from this process's control group up to the root; nothing where
/// unlimited. `membership` is the content of /proc/self/cgroup, `root` where the control groups are mounted (versions 1
/// and 2).
std::optional<double> cgroup_cpu_quota(const std::filesystem::path& root, std::string_view membership);
/// Likewise the bytes that the memory limits leave.
std::optional<double> cgroup_memory_room(const std::filesystem::path& root, std::string_view membership);
/// `table` is the content of /proc/net/dev.
std::uint64_t sent_of_interfaces(std::string_view table);
}  // namespace detail

}  // namespace lockstep::base
