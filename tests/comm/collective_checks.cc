#include "tests/comm/collective_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "base/text.h"
#include "comm/reduce.h"

namespace lockstep::comm::tests {

namespace {

/// Exact in the type, and so is the sum over eight ranks.
double value_at(DataType type, std::int32_t rank, std::size_t i) {
    const auto offset = static_cast<std::size_t>(rank);
    switch (type) {
        case DataType::f16:
            return static_cast<double>((i * 37 + offset * 101) % 499) - 250;
        case DataType::bf16:
            return static_cast<double>((i * 7 + offset * 17) % 31) - 15;
        case DataType::u8:
            return static_cast<double>((i * 7 + offset * 17) % 31);
        case DataType::f32:
            return static_cast<double>((i + offset * 1048576) % 2000003) - 500;
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
        for (std::size_t i = 0; i < count; ++i) {
            const double value = value_at(type, rank, i);
            sum[i] += value;
            low[i] = std::min(low[i], value);
            high[i] = std::max(high[i], value);
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

template <typename T>
struct Floats {
    T stored{};
    double operator()(T value) const { return value; }
};
template <float (*Widen)(std::uint16_t)>
struct HalfFloats {
    std::uint16_t stored{};
    double operator()(std::uint16_t bits) const { return Widen(bits); }
};

/// Index of the first average that is farther off than the rounding of each division and addition explains, or the
/// count. Types that don't round have to be equal.
std::size_t first_wrong_average(std::span<const std::byte> bytes, std::span<const std::byte> expected, DataType type,
                                std::int32_t size, std::size_t first_index) {
    const auto look = [&]<typename Load>(double unit, Load load) {
        using Stored = std::decay_t<decltype(load.stored)>;
        for (std::size_t i = 0; i < bytes.size() / sizeof(Stored); ++i) {
            Stored ours{};
            Stored right{};
            std::memcpy(&ours, bytes.data() + i * sizeof(Stored), sizeof(Stored));
            std::memcpy(&right, expected.data() + i * sizeof(Stored), sizeof(Stored));
            double magnitude = 0;
            for (std::int32_t rank = 0; rank < size; ++rank) {
                magnitude += std::abs(value_at(type, rank, first_index + i)) / size;
            }
            if (!(std::abs(load(ours) - load(right)) <= (size + 3) * unit * magnitude)) {
                return i;
            }
        }
        return bytes.size() / sizeof(Stored);
    };
    switch (type) {
        case DataType::f32:
            return look(0x1p-24, Floats<float>{});
        case DataType::f64:
            return look(0x1p-53, Floats<double>{});
        case DataType::f16:
            return look(0x1p-11, HalfFloats<f16_to_float>{});
        case DataType::bf16:
            return look(0x1p-8, HalfFloats<bf16_to_float>{});
        default:
            return first_difference(bytes, expected, type);
    }
}

/// A buffer with its values, anew for every operation. Collective where the memory is shared.
class Values {
  public:
    Values(Communicator& ranks, DataType type, std::size_t count, Memory memory)
        : buffer_{nullptr, count, type},
          memory_(memory == Memory::shared ? ranks.allocate(count * size_of(type), "test buffer")
                                           : std::shared_ptr<std::byte>(new std::byte[count * size_of(type) + 1],
                                                                        std::default_delete<std::byte[]>())) {
        buffer_.data = memory_.get();
    }

    const Buffer& set(const std::vector<std::byte>& bytes) {
        std::ranges::copy(bytes, memory_.get());
        return buffer_;
    }
    std::span<const std::byte> bytes() const { return {memory_.get(), buffer_.bytes()}; }
    std::span<const std::byte> bytes(const Slice& slice) const { return cut(bytes(), slice); }
    std::span<const std::byte> cut(std::span<const std::byte> all, const Slice& slice) const {
        return all.subspan(slice.begin * size_of(buffer_.type), slice.count() * size_of(buffer_.type));
    }

  private:
    Buffer buffer_;
    std::shared_ptr<std::byte> memory_;
};

/// Even; all to the last rank; uneven with gaps, in reverse order of ranks.
std::vector<std::vector<Slice>> cuts(std::size_t count, std::int32_t size) {
    std::vector<Slice> last(static_cast<std::size_t>(size), {0, 0});
    last.back() = {0, count};
    std::vector<Slice> odd(static_cast<std::size_t>(size), {0, 0});
    std::size_t begin = count / 10;
    for (std::size_t i = odd.size(); i-- > 0;) {
        const std::size_t end = begin + (count - begin) / (i + 2);
        odd[i] = {begin, end};
        begin = std::min(count, end + 1);
    }
    return {even_slices(count, size), last, odd};
}

std::vector<std::byte> rough_values(DataType type, std::int32_t rank, std::size_t count) {
    base::Random random(7, base::RandomPurpose::test, 0, static_cast<std::uint64_t>(rank));
    std::vector<double> values(count);
    for (double& value : values) {
        value = std::ldexp(random.uniform(-1, 1), static_cast<int>(random.below(20)));
    }
    return encoded(values, type);
}

}  // namespace

std::string error_of(const std::function<void()>& call) {
    try {
        call();
    } catch (const base::Error& error) {
        return error.what();
    }
    return "no error";
}

bool same_on_all_ranks(Communicator& communicator, std::span<const std::byte> bytes) {
    const auto all = communicator.all_gather_bytes(bytes, "same_on_all_ranks");
    return std::ranges::all_of(all, [&](const auto& theirs) { return theirs == all.front(); });
}

void expect_closed_forms(Communicator& ranks, DataType type, std::size_t count, Memory memory, Averages averages) {
    const std::int32_t rank = index_of(ranks.rank());
    const std::int32_t size = ranks.size();
    SCOPED_TRACE(base::str(count, " ", name_of(type), " on rank ", rank, " of ", size,
                           memory == Memory::shared ? ", shared memory" : ""));
    Values values(ranks, type, count, memory);
    const std::vector<std::byte> mine = encoded(values_of(type, rank, count), type);
    const auto expected = reduced(type, size, count);
    const auto first_wrong = [&](std::span<const std::byte> bytes, std::size_t op, const Slice& part) {
        const auto right = values.cut(expected[op], part);
        const bool may_round = all_ops[op] == ReduceOp::average && averages == Averages::of_parts_divided;
        return may_round ? first_wrong_average(bytes, right, type, size, part.begin)
                         : first_difference(bytes, right, type);
    };
    for (std::size_t op = 0; op < std::size(all_ops); ++op) {
        ranks.all_reduce(values.set(mine), all_ops[op], "test");
        ASSERT_EQ(first_wrong(values.bytes(), op, {0, count}), count) << "all_reduce, " << name_of(all_ops[op]);
        for (const std::vector<Slice>& slices : cuts(count, size)) {
            const Slice own = slices[static_cast<std::size_t>(rank)];
            ranks.reduce_scatter(values.set(mine), slices, all_ops[op], "test");
            ASSERT_EQ(first_wrong(values.bytes(own), op, own), own.count())
                << "reduce_scatter, " << name_of(all_ops[op]) << ", slice " << own.begin << ".." << own.end;
        }
    }
    for (const std::vector<Slice>& slices : cuts(count, size)) {
        std::vector<double> all(count, -3);
        std::vector<double> own(count, -3);
        for (std::int32_t owner = 0; owner < size; ++owner) {
            const Slice slice = slices[static_cast<std::size_t>(owner)];
            for (std::size_t i = slice.begin; i < slice.end; ++i) {
                all[i] = value_at(type, owner, i);
                own[i] = owner == rank ? all[i] : -3;
            }
        }
        ranks.all_gather(values.set(encoded(own, type)), slices, "test");
        ASSERT_EQ(first_difference(values.bytes(), encoded(all, type), type), count) << "all_gather";
    }
    for (std::int32_t root = 0; root < size; ++root) {
        ranks.broadcast(values.set(mine), Rank{root}, "test");
        ASSERT_EQ(first_difference(values.bytes(), encoded(values_of(type, root, count), type), type), count)
            << "broadcast from " << root;
    }
}

void expect_rank_order(Communicator& ranks, DataType type, std::size_t count, Memory memory) {
    std::vector<std::vector<std::byte>> contributions;
    std::vector<const std::byte*> sources;
    for (std::int32_t rank = 0; rank < ranks.size(); ++rank) {
        contributions.push_back(rough_values(type, rank, count));
        sources.push_back(contributions.back().data());
    }
    std::vector<std::byte> expected(count * size_of(type));
    reduce_in_order(sources, expected.data(), count, type, ReduceOp::sum);
    Values values(ranks, type, count, memory);
    for (int repetition = 0; repetition < 2; ++repetition) {
        ranks.all_reduce(values.set(contributions[static_cast<std::size_t>(index_of(ranks.rank()))]), ReduceOp::sum,
                         "test");
        ASSERT_EQ(first_difference(values.bytes(), expected, type), count) << count << " " << name_of(type);
    }
}

void expect_bytes_of_any_length(Communicator& ranks) {
    const auto text_of = [](std::int32_t rank, std::size_t scale) {
        return std::string(static_cast<std::size_t>(rank) * scale, static_cast<char>('a' + rank));
    };
    for (const std::size_t scale : {0, 1, 1000, 1 << 20}) {  // rank 0 always gives nothing
        const std::string mine = text_of(index_of(ranks.rank()), scale);
        const auto all = ranks.all_gather_bytes(std::as_bytes(std::span(mine)), "test");
        ASSERT_EQ(all.size(), static_cast<std::size_t>(ranks.size()));
        for (std::int32_t rank = 0; rank < ranks.size(); ++rank) {
            const auto& bytes = all[static_cast<std::size_t>(rank)];
            ASSERT_TRUE(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()) == text_of(rank, scale))
                << "rank " << rank << ", scale " << scale << ", " << bytes.size() << " bytes";
        }
    }
}

}  // namespace lockstep::comm::tests
