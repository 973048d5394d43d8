#include "base/resources.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <vector>

#include "base/text.h"
#include "scratch.h"

namespace lockstep::base {
namespace {

void put(const std::filesystem::path& path, std::string_view content) {
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
}

TEST(MonotonicSeconds, NeverGoesBack) {
    double last = monotonic_seconds();
    for (int i = 0; i < 1000; ++i) {
        const double now = monotonic_seconds();
        ASSERT_GE(now, last);
        last = now;
    }
}

TEST(UtcTimestamp, IsNow) {
    const std::time_t before = std::time(nullptr);
    const std::string text = utc_timestamp();
    const std::time_t after = std::time(nullptr);
    std::tm parts{};
    const char* end = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    ASSERT_TRUE(end && *end == '\0') << text;
    EXPECT_EQ(text.size(), 20u) << text;
    const std::time_t stated = timegm(&parts);
    EXPECT_GE(stated, before);
    EXPECT_LE(stated, after);
}

TEST(UtcTimestamp, HasAsManyDecimalsAsAsked) {
    EXPECT_EQ(utc_timestamp().size(), std::string("2026-11-30T04:05:06Z").size());
    EXPECT_EQ(utc_timestamp(3).size(), std::string("2026-11-30T04:05:06.123Z").size());
    EXPECT_EQ(utc_timestamp(6)[19], '.');
    EXPECT_EQ(utc_timestamp(6).back(), 'Z');
}

TEST(NetworkBytesSent, AreThoseOfAllInterfacesButLoopback) {
    EXPECT_EQ(detail::sent_of_interfaces("Inter-|   Receive                    |  Transmit\n"
                                         " face |bytes    packets errs drop fifo frame compressed multicast|bytes\n"
                                         "    lo:  500 1 0 0 0 0 0 0  700 1 0 0 0 0 0 0\n"
                                         "  eth0: 1000 2 0 0 0 0 0 0 3000 4 0 0 0 0 0 0\n"
                                         "   ib0:12345 2 0 0 0 0 0 0   40 4 0 0 0 0 0 0\n"),
              3040U);
    EXPECT_EQ(detail::sent_of_interfaces(""), 0U);
    EXPECT_EQ(detail::sent_of_interfaces("eth0: 1 2 3"), 0U);
    const std::uint64_t before = network_bytes_sent();
    EXPECT_LE(before, network_bytes_sent());
}

TEST(Memory, GrowsWithTouchedPages) {
    constexpr std::size_t size = 64 << 20;
    const std::uint64_t before = pss_bytes();
    ASSERT_GT(before, 0u);
    std::vector<char> touched(size, 1);
    EXPECT_GT(pss_bytes(), before + size * 9 / 10) << before << " before, " << touched.back();
    EXPECT_GT(peak_rss_bytes(), size);
}

TEST(UsableCores, FollowsTheAffinityMask) {
    cpu_set_t all;
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    EXPECT_GE(usable_cores(), 1u);
    EXPECT_LE(usable_cores(), static_cast<unsigned>(CPU_COUNT(&all)));
    cpu_set_t one;
    CPU_ZERO(&one);
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
        if (CPU_ISSET(cpu, &all)) {
            CPU_SET(cpu, &one);
            break;
        }
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(usable_cores(), 1u);
    ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
}

TEST(CgroupCpuQuota, IsTheSmallestOnTheWayUp) {
    const ScratchDirectory root;
    put(root / "job/cpu.max", "300000 100000\n");
    put(root / "job/step/cpu.max", "max 100000\n");
    put(root / "job/step/task/cpu.max", "450000 100000\n");
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), "0::/job/step/task\n"), 3.0);
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), "0::/job\n"), 3.0);
    put(root / "cpu.max", "150000 100000\n");  // a container sees its own quota at the root
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), "0::/\n"), 1.5);
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), "0::/job/step\n"), 1.5);
}

TEST(CgroupCpuQuota, ReadsVersionOne) {
    const ScratchDirectory root;
    put(root / "cpu,cpuacct/job/cpu.cfs_quota_us", "200000\n");
    put(root / "cpu,cpuacct/job/cpu.cfs_period_us", "50000\n");
    put(root / "cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put(root / "cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), "5:memory:/job\n4:cpu,cpuacct:/job\n0::/job\n"), 4.0);
}

TEST(CgroupMemoryRoom, IsTheLeastOfTheLimitsOnTheWayUp) {
    const ScratchDirectory root;
    put(root / "job/memory.max", "5000\n");
    put(root / "job/memory.current", "3000\n");
    put(root / "job/memory.stat", "anon 2500\ninactive_file 400\nactive_file 100\n");
    put(root / "job/step/memory.max", "max\n");
    put(root / "job/step/memory.current", "2900\n");
    EXPECT_EQ(detail::cgroup_memory_room(root.path(), "0::/job/step\n"), 2400.0);
    put(root / "job/step/memory.max", "2800\n");  // lowered under what is in use
    EXPECT_EQ(detail::cgroup_memory_room(root.path(), "0::/job/step\n"), 0.0);
    EXPECT_EQ(detail::cgroup_memory_room(root.path(), "0::/other\n"), std::nullopt);
}

TEST(CgroupMemoryRoom, ReadsVersionOne) {
    const ScratchDirectory root;
    put(root / "memory/job/memory.limit_in_bytes", "7000\n");
    put(root / "memory/job/memory.usage_in_bytes", "1000\n");
    put(root / "memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(root / "memory/memory.usage_in_bytes", "1000\n");
    EXPECT_EQ(detail::cgroup_memory_room(root.path(), "4:memory:/job\n0::/\n"), 6000.0);
    EXPECT_EQ(detail::cgroup_memory_room(root.path(), "4:memory:/\n"), std::nullopt);
}

TEST(AvailableMemory, IsSomeOfTheMachines) {
    EXPECT_GT(available_memory_bytes(), std::uint64_t{1} << 20);
    EXPECT_LT(available_memory_bytes(), std::uint64_t{1} << 46);
}

TEST(CgroupCpuQuota, IsNothingWhereUnlimitedMissingOrUnreadable) {
    const ScratchDirectory root;
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), "0::/job\n"), std::nullopt);
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), ""), std::nullopt);
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), "nonsense\n::\n"), std::nullopt);
    put(root / "job/cpu.max", "max 100000\n");
    EXPECT_EQ(detail::cgroup_cpu_quota(root.path(), "0::/job\n"), std::nullopt);
}

TEST(Host, HasTheSystemsName) {
    std::array<char, 256> name{};
    ASSERT_EQ(gethostname(name.data(), name.size()), 0);
    EXPECT_EQ(host_name(), name.data());
}

TEST(CpuModel, IsOneTrimmedLine) {
    const std::string model = cpu_model();
    EXPECT_FALSE(model.empty());
    EXPECT_EQ(model, trim(model));
    EXPECT_EQ(model.find('\n'), std::string::npos) << model;
}

}  // namespace
}  // namespace lockstep::base
