#include "base/resources.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/text.h"

namespace lockstep::base {
namespace {

namespace fs = std::filesystem;

/// What follows "KEY:" in a file of such lines; nothing where it is missing or the file unreadable.
std::optional<std::string> field(const fs::path& path, std::string_view key) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        const std::size_t colon = line.find(':');
        if (colon != std::string::npos && trim(std::string_view(line).substr(0, colon)) == key) {
            return std::string(trim(std::string_view(line).substr(colon + 1)));
        }
    }
    return std::nullopt;
}

/// The quota that one control group sets, in cores: version 2 ("200000 100000" or "max 100000") or version 1.
std::optional<double> group_quota(const fs::path& group) {
    double quota = 0;
    double period = 0;
    if (std::ifstream file(group / "cpu.max"); file >> quota >> period && period > 0) {
        return quota / period;
    }
    std::ifstream quota_file(group / "cpu.cfs_quota_us");
    std::ifstream period_file(group / "cpu.cfs_period_us");
    if (quota_file >> quota && period_file >> period && quota > 0 && period > 0) {  // -1: unlimited
        return quota / period;
    }
    return std::nullopt;
}

/// Bytes that one control group's limit leaves: version 2 or 1. Cached file pages that nobody uses don't count as used.
std::optional<double> group_memory_room(const fs::path& group) {
    const auto number = [&](const char* file) {
        double value = 0;
        std::ifstream stream(group / file);
        return stream >> value ? value : -1;  // "max" where there is no limit
    };
    double limit = number("memory.max");
    double used = number("memory.current");
    if (limit < 0 || used < 0) {
        limit = number("memory.limit_in_bytes");
        used = number("memory.usage_in_bytes");
    }
    if (limit < 0 || used < 0 || limit > 0x1p62) {  // version 1 writes a huge number for "unlimited"
        return std::nullopt;
    }
    double cached = 0;
    std::ifstream statistics(group / "memory.stat");
    double value = 0;
    for (std::string key; statistics >> key >> value;) {
        if (key == "inactive_file" || key == "total_inactive_file") {
            cached = value;
        }
    }
    return std::max(limit - used + cached, 0.0);
}

/// The smallest reading of the control groups on the way from `membership` up to the root.
template <typename Read>
std::optional<double> least_of_groups(const fs::path& root, std::string_view membership, std::string_view controller,
                                      Read read) {
    std::optional<double> least;
    for (const std::string& line : split(membership, '\n')) {
        // "0::/path" (version 2), "4:cpu,cpuacct:/path" (version 1, mounted under its controllers' names).
        const std::vector<std::string> parts = split(line, ':');
        if (parts.size() < 3) {
            continue;
        }
        const std::vector<std::string> controllers = split(parts[1], ',');
        if (!parts[1].empty() && std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) {
            continue;
        }
        const fs::path mount = parts[1].empty() ? root : root / parts[1];
        const fs::path group = fs::path(parts[2]).relative_path();
        for (fs::path level = group;; level = level.parent_path()) {
            if (const std::optional<double> value = read(mount / level)) {
                least = std::min(least.value_or(std::numeric_limits<double>::infinity()), *value);
            }
            if (level.empty()) {
                break;
            }
        }
    }
    return least;
}

std::string own_groups() {
    std::stringstream membership;
    membership << std::ifstream("/proc/self/cgroup").rdbuf();
    return membership.str();
}

}  // namespace

double monotonic_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double unix_seconds() {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string utc_timestamp(int decimals) {
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    std::tm parts{};
    gmtime_r(&now.tv_sec, &parts);
    std::array<char, 32> seconds;
    std::string text(seconds.data(), std::strftime(seconds.data(), seconds.size(), "%Y-%m-%dT%H:%M:%S", &parts));
    if (decimals > 0) {
        std::array<char, 16> fraction;
        std::snprintf(fraction.data(), fraction.size(), "%09ld", now.tv_nsec);
        text += '.';
        text.append(fraction.data(), static_cast<std::size_t>(std::min(decimals, 9)));
    }
    text += 'Z';
    return text;
}

std::uint64_t pss_bytes() {
    std::uint64_t kibibytes = 0;
    std::istringstream(field("/proc/self/smaps_rollup", "Pss").value_or("0")) >> kibibytes;
    return kibibytes * 1024;
}

std::uint64_t peak_rss_bytes() {
    rusage usage{};
    LOCKSTEP_CHECK_EQ(getrusage(RUSAGE_SELF, &usage), 0);
    return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

std::vector<std::int32_t> allowed_cpus() {
    std::vector<std::int32_t> cpus;
    // The kernel refuses a mask that is smaller than its own.
    for (int capacity = 1024; capacity <= 1 << 20; capacity *= 2) {
        std::vector<unsigned long> mask(CPU_ALLOC_SIZE(capacity) / sizeof(unsigned long));
        const std::size_t bytes = mask.size() * sizeof(unsigned long);
        auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
        if (sched_getaffinity(0, bytes, set) == 0) {
            for (std::int32_t cpu = 0; cpu < capacity; ++cpu) {
                if (CPU_ISSET_S(cpu, bytes, set)) {
                    cpus.push_back(cpu);
                }
            }
            break;
        }
    }
    return cpus.empty() ? std::vector<std::int32_t>{0} : cpus;
}

unsigned usable_cores() {
    const auto allowed = static_cast<unsigned>(allowed_cpus().size());
    const auto quota = detail::cgroup_cpu_quota("/sys/fs/cgroup", own_groups());
    return quota ? std::clamp(static_cast<unsigned>(std::min(std::ceil(*quota), 1e9)), 1u, allowed) : allowed;
}

std::optional<double> detail::cgroup_cpu_quota(const fs::path& root, std::string_view membership) {
    return least_of_groups(root, membership, "cpu", group_quota);
}

std::optional<double> detail::cgroup_memory_room(const fs::path& root, std::string_view membership) {
    return least_of_groups(root, membership, "memory", group_memory_room);
}

std::uint64_t available_memory_bytes() {
    std::uint64_t kibibytes = 0;
    std::istringstream(field("/proc/meminfo", "MemAvailable").value_or("0")) >> kibibytes;
    const auto room = detail::cgroup_memory_room("/sys/fs/cgroup", own_groups());
    const std::uint64_t bytes = kibibytes * 1024;
    return room ? std::min(bytes, static_cast<std::uint64_t>(*room)) : bytes;
}

std::uint64_t detail::sent_of_interfaces(std::string_view table) {
    std::uint64_t total = 0;
    for (const std::string& line : split(table, '\n')) {
        const std::size_t colon = line.find(':');
        if (colon == std::string::npos || trim(std::string_view(line).substr(0, colon)) == "lo") {
            continue;
        }
        // Eight columns of what came, then what was sent, bytes first.
        std::istringstream columns(line.substr(colon + 1));
        std::uint64_t column = 0;
        for (int i = 0; i < 9; ++i) {
            columns >> column;
        }
        total += columns ? column : 0;
    }
    return total;
}

std::uint64_t network_bytes_sent() {
    std::ifstream file("/proc/self/net/dev");
    std::ostringstream table;
    table << file.rdbuf();
    return detail::sent_of_interfaces(table.str());
}

std::string host_name() {
    utsname names{};
    LOCKSTEP_CHECK_EQ(uname(&names), 0);
    return names.nodename;
}

std::string cpu_model() {
    if (const auto model = field("/proc/cpuinfo", "model name")) {
        return *model;
    }
    utsname names{};
    LOCKSTEP_CHECK_EQ(uname(&names), 0);
    return names.machine;
}

}  // namespace lockstep::base
