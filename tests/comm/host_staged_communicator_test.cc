// Device memory is plain memory here, that counts what is copied; tests/comm/nccl_communicator_test.cc has a device
// whose memory the host can't touch.
#include "comm/host_staged_communicator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/on_device_communicator.h"
#include "tests/comm/thread_node.h"

namespace lockstep::comm {
namespace {

class PlainMemory final : public DeviceMemory {
  public:
    std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
        return {new std::byte[bytes + 1]{}, std::default_delete<std::byte[]>()};
    }
    std::shared_ptr<void> pin(std::span<std::byte> host_memory) override {
        ++pins;
        pinned = host_memory;
        return {host_memory.data(), [this](void*) { pinned = {}; }};
    }
    void copy(std::byte* to, const std::byte* from, std::size_t bytes,
              std::chrono::steady_clock::time_point deadline) override {
        if (std::chrono::steady_clock::now() > deadline) {
            throw base::Error("too late");
        }
        copied += bytes;
        for (const std::byte* const place : {static_cast<const std::byte*>(to), from}) {
            in_pinned += pinned.data() <= place && place + bytes <= pinned.data() + pinned.size() ? bytes : 0;
        }
        std::memmove(to, from, bytes);
    }

    int pins = 0;
    std::span<std::byte> pinned;
    std::size_t copied = 0, in_pinned = 0;
};

constexpr std::size_t piece_bytes = 64 << 10;  // so that a buffer of a moderate size has several

void on_threads(std::int32_t size, const std::function<void(Communicator&, PlainMemory&)>& body) {
    std::vector<Rank> members;
    for (std::int32_t rank = 0; rank < size; ++rank) {
        members.push_back(Rank{rank});
    }
    tests::ThreadNode node(members);
    tests::on_rank_threads(size, [&](Rank rank) {
        const auto memory = std::make_shared<PlainMemory>();
        const auto ranks =
            make_host_staged_communicator(node.join("staged", rank, std::chrono::minutes(5)), memory, piece_bytes);
        body(*ranks, *memory);
    });
}

class HostStaged : public testing::TestWithParam<std::int32_t> {};

TEST_P(HostStaged, EveryCollectiveGivesTheClosedForm) {
    on_threads(GetParam(), [](Communicator& ranks, PlainMemory& memory) {
        for (const DataType type : tests::types_to_check()) {
            for (const std::size_t count : {0, 1, 7, 1000, 40009}) {
                tests::expect_closed_forms(ranks, type, count, tests::Memory::any);
            }
        }
        tests::expect_rank_order(ranks, DataType::bf16, 10007, tests::Memory::any);
        tests::expect_bytes_of_any_length(ranks);
        EXPECT_EQ(memory.pinned.size(), piece_bytes);
        EXPECT_EQ(memory.pins, 1);
    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, HostStaged, testing::Values(1, 2, 3));

TEST(HostStagedCopies, GoThroughPinnedMemoryAndCarryOnlyWhatIsNeeded) {
    on_threads(2, [](Communicator& ranks, PlainMemory& memory) {
        const auto data = ranks.allocate(4000, "bucket");
        const Buffer buffer{data.get(), 1000, DataType::f32};
        const auto copied_by = [&](const auto& operation) {
            const std::size_t before = memory.copied;
            operation();
            return memory.copied - before;
        };
        const bool is_first = ranks.rank() == Rank{0};
        const std::vector<Slice> slices{{0, 100}, {300, 900}};
        EXPECT_EQ(copied_by([&] { ranks.all_reduce(buffer, ReduceOp::sum, "test"); }), 8000U);
        EXPECT_EQ(copied_by([&] { ranks.reduce_scatter(buffer, slices, ReduceOp::sum, "test"); }),
                  4000U + (is_first ? 400U : 2400U));
        EXPECT_EQ(copied_by([&] { ranks.all_gather(buffer, slices, "test"); }), 2800U + (is_first ? 400U : 2400U));
        EXPECT_EQ(copied_by([&] { ranks.broadcast(buffer, Rank{1}, "test"); }), is_first ? 4000U : 8000U);
        EXPECT_EQ(memory.copied, memory.in_pinned) << "every copy has one end in page-locked memory";
    });
}

}  // namespace
}  // namespace lockstep::comm
