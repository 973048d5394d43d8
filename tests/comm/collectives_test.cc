// Every collective against closed forms, on real ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "base/error.h"
#include "comm/job_communicators.h"
#include "comm/mpi.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/mpi_test_main.h"

namespace lockstep::comm {
namespace {

using lockstep::tests::make_test_communicator;
using tests::all_types;
using tests::error_of;
using tests::expect_bytes_of_any_length;
using tests::expect_closed_forms;
using tests::expect_rank_order;
using tests::Memory;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t largest_count = 1 << 17;
#else
constexpr std::size_t largest_count = 1 << 20;
#endif

/// What carries the collectives: MPI alone, or what the job's shape composes.
class Collectives : public testing::TestWithParam<std::string> {
  protected:
    /// Null where the shape is for another number of ranks.
    std::unique_ptr<Communicator> make() {
        if (GetParam() == "mpi") {
            return make_test_communicator();
        }
        const JobCommunicators job({.topology = "auto", .timeout = lockstep::tests::test_timeout});
        if (GetParam() == "2x2" && job.topology().ranks() != 4) {
            return nullptr;
        }
        return JobCommunicators({.topology = GetParam(), .timeout = lockstep::tests::test_timeout}).make("test");
    }
};

TEST_P(Collectives, GiveTheClosedForms) {
    const auto ranks = make();
    if (!ranks) {
        GTEST_SKIP() << "for 4 ranks";
    }
    for (const DataType type : all_types) {
        for (const std::size_t count :
             {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{1000}, std::size_t{10007}, largest_count}) {
            expect_closed_forms(*ranks, type, count, Memory::any);
            expect_closed_forms(*ranks, type, count, Memory::shared);
        }
    }
    expect_bytes_of_any_length(*ranks);
}

INSTANTIATE_TEST_SUITE_P(Carriers, Collectives, testing::Values("mpi", "auto", "2x2"),
                         [](const auto& info) { return "Of" + info.param; });

class AllReduceAlgorithms : public testing::TestWithParam<MpiAllReduce> {};

TEST_P(AllReduceAlgorithms, GiveTheClosedForms) {
    const JobShape flat{.topology = "flat", .timeout = lockstep::tests::test_timeout, .algorithm = GetParam()};
    const auto ranks = JobCommunicators(flat).make("test");
    for (const DataType type : all_types) {
        for (const std::size_t count : {0, 1, 7, 1000, 10007}) {
            expect_closed_forms(*ranks, type, count, Memory::any);
        }
    }
    expect_closed_forms(*ranks, DataType::f32, 3 * largest_count / 2, Memory::any);  // several chunks of every size
}

TEST_P(AllReduceAlgorithms, RoundAlikeOnAllRanks) {
    const auto ranks = make_mpi_communicator("test", lockstep::tests::test_timeout, /*log=*/nullptr, GetParam());
    for (const std::size_t count : {1, 1000, 400001}) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i) {
            values[i] = 1.0F / static_cast<float>(i + 3 + static_cast<std::size_t>(index_of(ranks->rank())) * 7);
        }
        ranks->all_reduce(Buffer::of(std::span(values)), ReduceOp::average, "test");
        EXPECT_TRUE(tests::same_on_all_ranks(*ranks, std::as_bytes(std::span(values)))) << count;
        for (std::size_t i = 0; i < count; i += 997) {
            double mean = 0;
            for (std::int32_t rank = 0; rank < ranks->size(); ++rank) {
                mean += 1.0 / static_cast<double>(i + 3 + static_cast<std::size_t>(rank) * 7) / ranks->size();
            }
            EXPECT_NEAR(values[i], mean, mean * 1e-6) << count << ", element " << i;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, AllReduceAlgorithms, testing::ValuesIn(mpi_all_reduces),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// What a rank sends, by the algorithm's formula; all of it is payload.
TEST(AllReduceAlgorithms, SendAsManyBytesAsTheyShould) {
    const std::size_t count = 840 << 12;  // cut evenly by 1 to 8 ranks
    const std::size_t bytes = count * sizeof(float);
    std::vector<float> values(count, 1.0F);
    for (const MpiAllReduce algorithm : mpi_all_reduces) {
        const auto ranks = make_mpi_communicator("test", lockstep::tests::test_timeout, /*log=*/nullptr, algorithm);
        const SentData before = ranks->sent();
        ranks->all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "test");
        std::vector<std::uint64_t> sent(static_cast<std::size_t>(ranks->size()));
        sent[static_cast<std::size_t>(index_of(ranks->rank()))] = (ranks->sent() - before).bytes;
        ranks->all_gather({sent.data(), sent.size(), DataType::i64}, "sent");
        std::uint64_t total = 0;
        for (const std::uint64_t of_rank : sent) {
            total += of_rank;
        }
        EXPECT_EQ(total, 2 * static_cast<std::size_t>(ranks->size() - 1) * bytes) << name_of(algorithm);
        const bool is_power_of_two = std::has_single_bit(static_cast<unsigned>(ranks->size()));
        if (algorithm != MpiAllReduce::central && (algorithm != MpiAllReduce::halving_doubling || is_power_of_two)) {
            for (const std::uint64_t of_rank : sent) {
                EXPECT_EQ(of_rank, total / sent.size()) << name_of(algorithm);
            }
        }
    }
}

TEST(AllReduce, AddsInRankOrderWhateverTheSizeAndTheRun) {
    const auto flat = make_test_communicator();
    const auto composed = JobCommunicators({.topology = "auto", .timeout = lockstep::tests::test_timeout}).make("test");
    for (Communicator* ranks : {flat.get(), composed.get()}) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{1000}, std::size_t{10007}, largest_count}) {
            for (const DataType type : {DataType::f32, DataType::f64, DataType::bf16}) {
                expect_rank_order(*ranks, type, count, Memory::any);
                expect_rank_order(*ranks, type, count, Memory::shared);
            }
        }
    }
}

/// Counts that the pipeline of chunks and the staging area cut in many ways.
TEST(AllReduce, OfThirtyMillionElements) {
    if (largest_count < 1 << 20) {
        GTEST_SKIP() << "too slow under a sanitizer";
    }
    const auto composed = JobCommunicators({.topology = "auto", .timeout = lockstep::tests::test_timeout}).make("test");
    const auto flat = make_test_communicator();
    for (const DataType type : {DataType::f32, DataType::u8}) {
        const std::size_t count = 30'000'000;
        const auto memory = composed->allocate(count * size_of(type), "test");
        const auto value = [&](std::int32_t rank, std::size_t i) {
            return (i * 7 + static_cast<std::size_t>(rank)) % 31;
        };
        for (Communicator* ranks : {flat.get(), composed.get()}) {
            const auto set_and_check = [&]<typename T>() {
                auto* const data = reinterpret_cast<T*>(memory.get());
                for (std::size_t i = 0; i < count; ++i) {
                    data[i] = static_cast<T>(value(index_of(ranks->rank()), i));
                }
                ranks->all_reduce({data, count, type}, ReduceOp::sum, "test");
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < count; ++i) {
                    std::size_t sum = 0;
                    for (std::int32_t rank = 0; rank < ranks->size(); ++rank) {
                        sum += value(rank, i);
                    }
                    wrong += data[i] == static_cast<T>(sum) ? 0 : 1;
                }
                EXPECT_EQ(wrong, 0U) << name_of(type);
            };
            if (type == DataType::f32) {
                set_and_check.operator()<float>();
            } else {
                set_and_check.operator()<std::uint8_t>();
            }
        }
    }
}

TEST(JobCommunicators, SayWhatTheyAre) {
    const JobCommunicators job({.topology = "auto", .timeout = lockstep::tests::test_timeout});
    EXPECT_EQ(job.describe(), job.topology().ranks() == 1 ? "alone" : "shared memory");
    const JobCommunicators flat({.topology = "flat", .timeout = lockstep::tests::test_timeout});
    EXPECT_EQ(flat.describe(), flat.topology().ranks() == 1 ? "alone" : "MPI (direct all-reduce)");
    if (job.topology().ranks() == 4) {
        EXPECT_EQ(JobCommunicators({.topology = "2x2", .timeout = lockstep::tests::test_timeout}).describe(),
                  "hierarchical: shared memory inside 2 nodes, MPI (direct all-reduce) across, 2 lane(s)");
    }
}

TEST(Barrier, NobodyLeavesBeforeEverybodyCame) {
    const auto ranks = make_test_communicator();
    std::string folder = (std::filesystem::temp_directory_path() / "lockstep-barrier-XXXXXX").string();
    if (ranks->rank() == Rank{0}) {
        ASSERT_NE(mkdtemp(folder.data()), nullptr);
    }
    ranks->broadcast({folder.data(), folder.size(), DataType::u8}, Rank{0}, "folder");
    for (int round = 0; round < 20; ++round) {
        const auto mark_of = [&](std::int32_t rank) {
            return std::filesystem::path(folder) / (std::to_string(round) + "-" + std::to_string(rank));
        };
        std::ofstream(mark_of(index_of(ranks->rank()))) << "here";
        ranks->barrier("test");
        for (std::int32_t rank = 0; rank < ranks->size(); ++rank) {
            ASSERT_TRUE(std::filesystem::exists(mark_of(rank))) << "round " << round << ", rank " << rank;
        }
    }
    ranks->barrier("all have looked");
    if (ranks->rank() == Rank{0}) {
        std::filesystem::remove_all(folder);
    }
}

TEST(Communicators, OfTwoPurposesRunSideBySide) {
    const auto gradients = make_mpi_communicator("gradients", lockstep::tests::test_timeout);
    const auto control = make_mpi_communicator("control", lockstep::tests::test_timeout);
    const auto total = [](Communicator& ranks, double scale) {
        double sum = 0;
        for (std::int32_t rank = 0; rank < ranks.size(); ++rank) {
            sum += scale * (rank + 1);
        }
        return sum;
    };
    int wrong = 0;
    std::thread other([&] {
        for (int round = 0; round < 200; ++round) {
            std::vector<double> value = {-1.0 * round * (index_of(control->rank()) + 1)};
            control->all_reduce(Buffer::of(std::span(value)), ReduceOp::sum, "test");
            wrong += value[0] == total(*control, -1.0 * round) ? 0 : 1;
        }
    });
    for (int round = 0; round < 20; ++round) {
        std::vector<float> values(50000, static_cast<float>(round * (index_of(gradients->rank()) + 1)));
        gradients->all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "test");
        EXPECT_EQ(values, std::vector<float>(50000, static_cast<float>(total(*gradients, round))));
    }
    other.join();
    EXPECT_EQ(wrong, 0);
}

TEST(Topology, OfOneMachineIsOneNode) {
    const auto ranks = make_test_communicator();
    const Topology topology = detect_topology(*ranks);
    EXPECT_EQ(topology.ranks(), ranks->size());
    EXPECT_EQ(topology.nodes(), 1);
    EXPECT_EQ(topology.local_rank_of(ranks->rank()), index_of(ranks->rank()));
    EXPECT_FALSE(topology.host_of(Rank{0}).empty());
}

/// After a failure a late message may still come, so communicator.h wants the buffer kept until the job ends.
Buffer buffer_for_good(std::size_t count) {
    static std::deque<std::vector<float>> kept;
    return Buffer::of(std::span(kept.emplace_back(count, 1.0F)));
}

TEST(Failure, ARankThatNeverCallsIsNamedAfterTheDeadline) {
    const auto control = make_test_communicator();
    const auto impatient = make_mpi_communicator("gradients", std::chrono::seconds(2));
    const Buffer buffer = buffer_for_good(5000);
    const std::int32_t absent = control->size() - 1;
    if (control->size() > 1 && index_of(control->rank()) != absent) {
        const std::string late = error_of([&] { impatient->all_reduce(buffer, ReduceOp::sum, "bucket 3"); });
        const std::string here = base::str("on rank ", index_of(control->rank()), " on ");
        const std::string there = base::str("waiting for rank ", absent, " on ");
        for (const std::string& part : {std::string("gradients: all_reduce (sum of f32)"), std::string("\"bucket 3\""),
                                        std::string("operation 3"), std::string("19.5 KiB"), here, there}) {
            EXPECT_NE(late.find(part), std::string::npos) << "no <" << part << "> in: " << late;
        }
        const std::string refused = error_of([&] { impatient->barrier("next"); });
        EXPECT_NE(refused.find("barrier \"next\""), std::string::npos) << refused;
        EXPECT_NE(refused.find("not possible after"), std::string::npos) << refused;
    }
    control->barrier("all have looked");
}

TEST(Failure, DifferentSizesAreNoticedOnEveryRank) {
    const auto control = make_test_communicator();
    for (const std::size_t count : {10, 100000}) {
        const auto ranks = make_mpi_communicator("gradients", std::chrono::seconds(2));
        const Buffer buffer = buffer_for_good(ranks->rank() == Rank{0} ? 2 * count : count);
        const std::string error = error_of([&] { ranks->all_reduce(buffer, ReduceOp::sum, "bucket 0"); });
        if (ranks->size() == 1) {
            EXPECT_EQ(error, "no error");
        } else {
            EXPECT_NE(error.find("bucket 0"), std::string::npos) << error;
        }
        control->barrier("all have looked");
    }
}

}  // namespace
}  // namespace lockstep::comm
