// A node of 1 to 8 ranks as threads over one segment, so that the thread sanitizer sees the whole protocol.
#include "comm/shared_memory_communicator.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <functional>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/thread_node.h"

namespace lockstep::comm {
namespace {

using tests::error_of;
using tests::is_sanitized;

/// body(communicator of this rank), on a thread for each rank. In the job they are ranks 10, 11, ...
void on_threads(std::int32_t size, const std::function<void(Communicator&)>& body,
                std::chrono::milliseconds timeout = std::chrono::minutes(5)) {
    std::vector<Rank> members;
    for (std::int32_t rank = 0; rank < size; ++rank) {
        members.push_back(Rank{rank + 10});
    }
    tests::ThreadNode node(members);
    tests::on_rank_threads(size, [&](Rank rank) { body(*node.join("gradients", rank, timeout)); });
}

class SharedMemory : public testing::TestWithParam<std::int32_t> {};

TEST_P(SharedMemory, EveryCollectiveGivesTheClosedForm) {
    on_threads(GetParam(), [](Communicator& ranks) {
        for (const DataType type : tests::types_to_check()) {
            for (const std::size_t count : {0, 1, 7, 1000, 10007, is_sanitized ? 40009 : 300007}) {
                for (const tests::Memory memory : {tests::Memory::any, tests::Memory::shared}) {
                    tests::expect_closed_forms(ranks, type, count, memory);
                }
            }
        }
        tests::expect_bytes_of_any_length(ranks);
    });
}

TEST_P(SharedMemory, AddsInRankOrderAndRoundsSixteenBitsOnce) {
    on_threads(GetParam(), [](Communicator& ranks) {
        for (const DataType type : {DataType::f32, DataType::f64, DataType::f16, DataType::bf16}) {
            for (const std::size_t count : {7, 10007, 100003}) {
                tests::expect_rank_order(ranks, type, count, tests::Memory::any);
                tests::expect_rank_order(ranks, type, count, tests::Memory::shared);
            }
        }
    });
}

/// One rank's buffer in shared memory, the others' elsewhere; parts of an allocation at unequal offsets.
TEST_P(SharedMemory, MixedPlacesAreStaged) {
    on_threads(GetParam(), [](Communicator& ranks) {
        const std::int32_t rank = index_of(ranks.rank());
        constexpr std::size_t count = 50000;
        const auto memory = ranks.allocate((count + 8) * sizeof(float), "bucket");
        std::vector<float> elsewhere(count);
        for (const bool all_shared : {false, true}) {
            float* const data =
                rank == 0 || all_shared ? reinterpret_cast<float*>(memory.get()) + rank : elsewhere.data();
            std::fill_n(data, count, static_cast<float>(rank + 1));
            ranks.all_reduce({data, count, DataType::f32}, ReduceOp::sum, "mixed");
            const auto expected = static_cast<float>(ranks.size() * (ranks.size() + 1)) / 2;
            EXPECT_EQ(std::vector<float>(data, data + count), std::vector<float>(count, expected));
        }
    });
}

/// Delays at random places between operations of random kinds and sizes; a protocol that reuses memory too early shows
/// wrong sums.
TEST_P(SharedMemory, RandomDelaysChangeNothing) {
    on_threads(GetParam(), [](Communicator& ranks) {
        base::Random delays(1, base::RandomPurpose::test, 0, static_cast<std::uint64_t>(index_of(ranks.rank())));
        base::Random plan(2, base::RandomPurpose::test, 0, 0);  // the same on every rank
        const auto shared = ranks.allocate(200000 * sizeof(float), "bucket");
        std::vector<float> own(200000);
        for (int round = 0; round < (is_sanitized ? 40 : 400); ++round) {
            for (std::uint64_t i = delays.below(20); i-- > 0;) {
                sched_yield();
            }
            const bool is_small = plan.below(2) == 0;
            const std::size_t count = 1 + plan.below(is_small ? 100 : is_sanitized ? 60000 : 200000);
            float* const data = plan.below(2) == 0 ? own.data() : reinterpret_cast<float*>(shared.get());
            const auto value = static_cast<float>(round % 100 + index_of(ranks.rank()));
            const auto total = static_cast<float>(ranks.size() * (round % 100) + ranks.size() * (ranks.size() - 1) / 2);
            std::fill_n(data, count, value);
            float expected = total;
            Slice slice{0, count};
            switch (plan.below(4)) {
                case 0:
                    ranks.all_reduce({data, count, DataType::f32}, ReduceOp::sum, "test");
                    break;
                case 1:
                    ranks.reduce_scatter({data, count, DataType::f32}, ReduceOp::sum, "test");
                    slice = slice_of(count, ranks.size(), ranks.rank());
                    break;
                case 2:
                    ranks.broadcast({data, count, DataType::f32}, Rank{0}, "test");
                    expected = static_cast<float>(round % 100);
                    break;
                default:
                    ranks.all_gather({data, count, DataType::f32}, "test");
                    slice = slice_of(count, ranks.size(), Rank{ranks.size() - 1});
                    expected = static_cast<float>(round % 100 + ranks.size() - 1);
            }
            const std::vector<float> result(data + slice.begin, data + slice.end);
            ASSERT_EQ(result, std::vector<float>(slice.count(), expected)) << "round " << round << ", " << count;
        }
    });
}

INSTANTIATE_TEST_SUITE_P(Ranks, SharedMemory, testing::Values(1, 2, 3, 4, 5, 8));

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
        EXPECT_NE(text.find(part), std::string::npos) << "no <" << part << "> in: " << text;
    }
}

TEST(SharedMemoryFailure, AnAbsentRankIsNamedAfterTheDeadlineAndTheRestStops) {
    std::vector<std::string> errors(3);
    std::vector<std::string> refusals(3);
    std::latch all_failed(2);
    on_threads(
        3,
        [&](Communicator& ranks) {
            const auto rank = static_cast<std::size_t>(index_of(ranks.rank()));
            if (rank == 2) {
                all_failed.wait();
                return;
            }
            std::vector<float> values(5000, 1.0F);
            errors[rank] =
                error_of([&] { ranks.all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "bucket 3"); });
            refusals[rank] = error_of([&] { ranks.barrier("next"); });
            all_failed.count_down();
        },
        std::chrono::seconds(2));
    for (const std::size_t rank : {0, 1}) {
        expect_parts(errors[rank], {"gradients: all_reduce (sum of f32) \"bucket 3\"", "operation 1", "19.5 KiB",
                                    "rank 12 on node7"});
        expect_parts(refusals[rank], {"barrier \"next\"", "not possible after"});
    }
    expect_parts(errors[0] + errors[1], {"is not done after", "waiting for "});
}

TEST(SharedMemoryFailure, RanksThatCallDifferentThingsAllSaySo) {
    for (const bool other_size : {true, false}) {
        std::vector<std::string> errors(3);
        on_threads(3, [&](Communicator& ranks) {
            const auto rank = static_cast<std::size_t>(index_of(ranks.rank()));
            std::vector<float> values(rank == 1 && other_size ? 100001 : 100000);
            errors[rank] = error_of([&] {
                if (rank == 1 && !other_size) {
                    ranks.broadcast(Buffer::of(std::span(values)), Rank{0}, "weights");
                } else {
                    ranks.all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "bucket 0");
                }
            });
        });
        for (const std::string& error : errors) {
            expect_parts(error, {"the ranks call different operations"});
        }
        expect_parts(errors[0],
                     {other_size ? "all_reduce of 100001 f32 on rank 11" : "broadcast of 100000 f32 from 0"});
    }
}

TEST(SharedSegment, IsOpenedByItsHandleAndSharesItsBytes) {
    const SharedSegment made = SharedSegment::create(10000);
    made.reserve(0, 10000);
    const SharedSegment opened = SharedSegment::open(made.handle());
    made.bytes()[9999] = std::byte{7};
    EXPECT_EQ(opened.bytes()[9999], std::byte{7});
    EXPECT_EQ(opened.bytes().size(), 10000U);
}

TEST(SharedSegment, RefusesAnotherDescriptorAndMemoryThatIsNotThere) {
    const SharedSegment made = SharedSegment::create(4096);
    SharedSegment::Handle other = made.handle();
    ++other.inode;
    expect_parts(error_of([&] { SharedSegment::open(other); }), {"is not the segment that was announced"});
    SharedSegment::Handle gone = made.handle();
    gone.descriptor = 100000;
    expect_parts(error_of([&] { SharedSegment::open(gone); }), {"can't be opened", "topology = \"flat\""});
    // More than any machine has; the thread sanitizer has no address space for so much.
    const std::size_t huge_bytes = std::size_t{1} << (tests::is_sanitized ? 40 : 44);
    const SharedSegment huge = SharedSegment::create(huge_bytes);
    expect_parts(error_of([&] { huge.reserve(0, huge_bytes); }), {"there is no memory for", "fewer ranks"});
}

}  // namespace
}  // namespace lockstep::comm
