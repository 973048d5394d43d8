// Every collective against closed forms, on real ranks. Values encode rank and index; they are small enough to be exact
// in their type, so that "equal" means equal bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "comm/mpi.h"
#include "comm/reduce.h"
#include "tests/comm/mpi_test_main.h"

namespace lockstep::comm {
namespace {

using tests::make_test_communicator;
using tests::same_on_all_ranks;

constexpr DataType all_types[] = {DataType::f32, DataType::f64, DataType::f16, DataType::bf16,
                                  DataType::i32, DataType::i64, DataType::u8};
constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max};
constexpr std::size_t all_counts[] = {0, 1, 7, 1000, 10007, 1 << 20};

/// Exact in the type, and so is the sum over four ranks.
double value_at(DataType type, std::int32_t rank, std::size_t i) {
    switch (type) {
        case DataType::f16:
            return static_cast<double>((i * 37 + static_cast<std::size_t>(rank) * 101) % 499) - 250;
        case DataType::bf16:
            return static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 17) % 61) - 30;
        case DataType::u8:
            return static_cast<double>((i * 7 + static_cast<std::size_t>(rank) * 17) % 61);
        default:
            return static_cast<double>(i) + rank * 1048576.0 - 500;
    }
}

std::vector<double> values_of(DataType type, std::int32_t rank, std::size_t count) {
    std::vector<double> values(count);
    for (std::size_t i = 0; i < count; ++i) {
        values[i] = value_at(type, rank, i);
    }
    return values;
}

/// The values' bits in `type`; integers are cut toward zero.
std::vector<std::byte> encoded(const std::vector<double>& values, DataType type) {
    std::vector<std::byte> bytes(values.size() * size_of(type));
    const auto put_all = [&]<typename Convert>(Convert convert) {
        using Stored = decltype(convert(0.0));
        for (std::size_t i = 0; i < values.size(); ++i) {
            const Stored stored = convert(values[i]);
            std::memcpy(bytes.data() + i * sizeof(Stored), &stored, sizeof(Stored));
        }
    };
    switch (type) {
        case DataType::f32:
            put_all([](double value) { return static_cast<float>(value); });
            break;
        case DataType::f64:
            put_all([](double value) { return value; });
            break;
        case DataType::f16:
            put_all([](double value) { return float_to_f16(static_cast<float>(value)); });
            break;
        case DataType::bf16:
            put_all([](double value) { return float_to_bf16(static_cast<float>(value)); });
            break;
        case DataType::i32:
            put_all([](double value) { return static_cast<std::int32_t>(value); });
            break;
        case DataType::i64:
            put_all([](double value) { return static_cast<std::int64_t>(value); });
            break;
        case DataType::u8:
            put_all([](double value) { return static_cast<std::uint8_t>(value); });
            break;
    }
    return bytes;
}

/// What `size` ranks must get, by position of the operation in all_ops.
std::array<std::vector<std::byte>, 4> reduced(DataType type, std::int32_t size, std::size_t count) {
    std::vector<double> sum(count, 0.0);
    std::vector<double> low(count, INFINITY);
    std::vector<double> high(count, -INFINITY);
    for (std::int32_t rank = 0; rank < size; ++rank) {
        const std::vector<double> values = values_of(type, rank, count);
        for (std::size_t i = 0; i < count; ++i) {
            sum[i] += values[i];
            low[i] = std::min(low[i], values[i]);
            high[i] = std::max(high[i], values[i]);
        }
    }
    const bool divides_in_single = type == DataType::f32 || type == DataType::f16 || type == DataType::bf16;
    std::vector<double> average(count);
    for (std::size_t i = 0; i < count; ++i) {
        average[i] = divides_in_single ? static_cast<float>(sum[i]) / static_cast<float>(size) : sum[i] / size;
    }
    return {encoded(sum, type), encoded(average, type), encoded(low, type), encoded(high, type)};
}

/// Index of the first differing element, or the count where all are equal.
std::size_t first_difference(std::span<const std::byte> a, std::span<const std::byte> b, DataType type) {
    if (a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0)) {
        return a.size() / size_of(type);
    }
    const auto found = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
    return static_cast<std::size_t>(found - a.begin()) / size_of(type);
}

class Collectives : public testing::TestWithParam<DataType> {
  protected:
    std::unique_ptr<Communicator> ranks = make_test_communicator();
    std::int32_t rank = index_of(ranks->rank());
    std::int32_t size = ranks->size();

    static Buffer buffer(std::vector<std::byte>& bytes, std::size_t count) { return {bytes.data(), count, GetParam()}; }
};

TEST_P(Collectives, ReductionsGiveTheClosedForm) {
    for (const std::size_t count : all_counts) {
        const std::vector<std::byte> mine = encoded(values_of(GetParam(), rank, count), GetParam());
        const auto expected = reduced(GetParam(), size, count);
        const Slice own = slice_of(count, size, ranks->rank());
        const auto slice = [&](const std::vector<std::byte>& bytes) {
            return std::span(bytes).subspan(own.begin * size_of(GetParam()), own.count() * size_of(GetParam()));
        };
        for (std::size_t op = 0; op < std::size(all_ops); ++op) {
            std::vector<std::byte> data = mine;
            ranks->all_reduce(buffer(data, count), all_ops[op], "test");
            ASSERT_EQ(first_difference(data, expected[op], GetParam()), count)
                << "all_reduce, " << name_of(all_ops[op]) << " of " << count;

            data = mine;
            ranks->reduce_scatter(buffer(data, count), all_ops[op], "test");
            ASSERT_EQ(first_difference(slice(data), slice(expected[op]), GetParam()), own.count())
                << "reduce_scatter, " << name_of(all_ops[op]) << " of " << count;
        }
    }
}

TEST_P(Collectives, AllGatherFillsEverySlice) {
    for (const std::size_t count : all_counts) {
        std::vector<double> mine(count, 0);
        std::vector<double> expected(count);
        for (std::int32_t owner = 0; owner < size; ++owner) {
            const Slice slice = slice_of(count, size, Rank{owner});
            for (std::size_t i = slice.begin; i < slice.end; ++i) {
                expected[i] = value_at(GetParam(), owner, i);
                mine[i] = owner == rank ? expected[i] : 0;
            }
        }
        std::vector<std::byte> data = encoded(mine, GetParam());
        ranks->all_gather(buffer(data, count), "test");
        ASSERT_EQ(first_difference(data, encoded(expected, GetParam()), GetParam()), count) << count;
    }
}

TEST_P(Collectives, BroadcastCopiesTheRootFromEveryRoot) {
    for (const std::size_t count : all_counts) {
        for (std::int32_t root = 0; root < size; ++root) {
            std::vector<std::byte> data = encoded(values_of(GetParam(), rank, count), GetParam());
            ranks->broadcast(buffer(data, count), Rank{root}, "test");
            const std::vector<std::byte> expected = encoded(values_of(GetParam(), root, count), GetParam());
            ASSERT_EQ(first_difference(data, expected, GetParam()), count) << count << " from " << root;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, Collectives, testing::ValuesIn(all_types),
                         [](const auto& info) { return std::string(name_of(info.param)); });

/// Rounding makes every order of additions visible.
template <typename T>
std::vector<T> rough_values(std::int32_t rank, std::size_t count) {
    base::Random random(7, base::RandomPurpose::test, 0, static_cast<std::uint64_t>(rank));
    std::vector<T> values(count);
    for (T& value : values) {
        value = static_cast<T>(std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(20))));
    }
    return values;
}

template <typename T>
void expect_rank_order(Communicator& ranks, std::size_t count) {
    const std::vector<T> mine = rough_values<T>(index_of(ranks.rank()), count);
    std::vector<T> expected = rough_values<T>(0, count);
    for (std::int32_t rank = 1; rank < ranks.size(); ++rank) {
        const std::vector<T> theirs = rough_values<T>(rank, count);
        for (std::size_t i = 0; i < count; ++i) {
            expected[i] += theirs[i];
        }
    }
    for (int repetition = 0; repetition < 2; ++repetition) {
        std::vector<T> values = mine;
        ranks.all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "test");
        ASSERT_EQ(std::memcmp(values.data(), expected.data(), count * sizeof(T)), 0) << count << " elements";
        ASSERT_TRUE(same_on_all_ranks<T>(ranks, values));
    }
}

TEST(AllReduce, AddsInRankOrderWhateverTheSizeAndTheRun) {
    const auto ranks = make_test_communicator();
    for (const std::size_t count : {1, 7, 1000, 10007, 300001, 1 << 20}) {
        expect_rank_order<float>(*ranks, count);
        expect_rank_order<double>(*ranks, count);
    }
}

TEST(AllReduce, SixteenBitTypesAccumulateInSinglePrecision) {
    const auto ranks = make_test_communicator();
    for (const std::size_t count : {std::size_t{3}, std::size_t{400000}}) {
        // 256 + 1 is 256 in bf16; 256 + 1 + 1 + ... is not when it is rounded once.
        std::vector<std::uint16_t> values(count, float_to_bf16(ranks->rank() == Rank{0} ? 256.0F : 1.0F));
        ranks->all_reduce({values.data(), count, DataType::bf16}, ReduceOp::sum, "test");
        const std::uint16_t expected = float_to_bf16(256.0F + static_cast<float>(ranks->size() - 1));
        ASSERT_EQ(values, std::vector<std::uint16_t>(count, expected));
    }
}

TEST(AllGatherBytes, TakesAnyLengths) {
    const auto ranks = make_test_communicator();
    const auto text_of = [](std::int32_t rank, std::size_t scale) {
        return std::string(static_cast<std::size_t>(rank) * scale, static_cast<char>('a' + rank));
    };
    for (const std::size_t scale : {0, 1, 1000, 1 << 20}) {  // rank 0 always gives nothing
        const std::string mine = text_of(index_of(ranks->rank()), scale);
        const auto all = ranks->all_gather_bytes(std::as_bytes(std::span(mine)), "test");
        ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks->size()));
        for (std::int32_t rank = 0; rank < ranks->size(); ++rank) {
            const auto& bytes = all[static_cast<std::size_t>(rank)];
            ASSERT_TRUE(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == text_of(rank, scale))
                << "rank " << rank << ", scale " << scale << ", " << bytes.size() << " bytes";
        }
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
    const auto gradients = make_mpi_communicator("gradients", tests::test_timeout);
    const auto control = make_mpi_communicator("control", tests::test_timeout);
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

std::string error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const base::Error& error) {
        return error.what();
    }
    return "no error";
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
        const std::string here = base::str("on rank ", index_of(control->rank()), " of ", control->size());
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
