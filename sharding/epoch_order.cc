#include "sharding/epoch_order.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/random.h"

namespace lockstep::sharding {

PositionRange part_of(PositionRange range, std::uint64_t parts, std::uint64_t index) {
    LOCKSTEP_CHECK_LE(range.begin, range.end);
    LOCKSTEP_CHECK_LT(index, parts);
    const std::uint64_t least = range.count() / parts;
    const std::uint64_t larger_parts = range.count() % parts;
    const std::uint64_t begin = range.begin + index * least + std::min(index, larger_parts);
    return {begin, begin + least + (index < larger_parts ? 1 : 0)};
}

namespace {

/// A keyed permutation of 0 .. size-1 that is not stored: the swap-or-not shuffle (Hoang, Morris, Rogaway, CRYPTO
/// 2012). Each round pairs x with key - x (mod size) and swaps the pair or not by one pseudo-random bit that both
/// partners compute alike. Unlike a Feistel network it is a bijection of any size as it stands. About 6 log2(size)
/// rounds mix well.
class Permutation {
  public:
    Permutation(base::Random keys, std::uint64_t size) : keys_(keys), size_(size) {}

    std::uint64_t operator()(std::uint64_t x) const {
        base::Random keys = keys_;
        for (std::size_t round = 0; round < rounds(); ++round) {
            const ShuffleRound now = draw(keys);
            x = applied(now, x, size_);
        }
        return x;
    }

    /// The x that is mapped to `y`. Every round is its own inverse.
    std::uint64_t inverse(std::uint64_t y) const {
        const std::vector<ShuffleRound> drawn = draw_all();
        std::for_each(drawn.rbegin(), drawn.rend(), [&](const ShuffleRound& round) { y = applied(round, y, size_); });
        return y;
    }

    std::vector<ShuffleRound> draw_all() const {
        base::Random keys = keys_;
        std::vector<ShuffleRound> drawn;
        for (std::size_t round = 0; round < rounds(); ++round) {
            drawn.emplace_back(draw(keys));
        }
        return drawn;
    }

    static std::uint64_t applied(const ShuffleRound& round, std::uint64_t x, std::uint64_t size) {
        const std::uint64_t partner = round.pairing >= x ? round.pairing - x : size - (x - round.pairing);
        return (base::mix64(std::max(x, partner) ^ round.bits) & 1) != 0 ? partner : x;
    }

  private:
    std::size_t rounds() const {
        constexpr std::size_t rounds_for_tiny_sizes = 16;
        return 6 * static_cast<std::size_t>(std::bit_width(size_)) + rounds_for_tiny_sizes;
    }
    ShuffleRound draw(base::Random& keys) const {
        const std::uint64_t pairing = keys.below(size_);
        return {pairing, keys.next_u64()};
    }

    base::Random keys_;
    std::uint64_t size_;
};

/// Streams of keys within an epoch: 0 and 1, and from 2 on one for each window.
constexpr std::uint64_t whole_stream = 0, block_stream = 1, first_window_stream = 2;

}  // namespace

EpochOrder::EpochOrder(OrderKind kind, std::uint64_t seed, std::uint64_t size, BlockShape shape)
    : kind_(kind), seed_(seed), size_(size), shape_(shape) {
    LOCKSTEP_CHECK(shape.block > 0 && shape.window > 0 && shape.window <= UINT64_MAX / shape.block, "block ",
                   shape.block, ", window ", shape.window);
}

std::uint64_t EpochOrder::sample_at(std::uint64_t epoch, std::uint64_t position) const {
    LOCKSTEP_CHECK_LT(position, size_);
    const auto keys = [&](std::uint64_t stream) {
        return base::Random(seed_, base::RandomPurpose::order, epoch, stream);
    };
    switch (kind_) {
        case OrderKind::sequential:
            return position;
        case OrderKind::full:
            return Permutation(keys(whole_stream), size_)(position);
        case OrderKind::block:
            break;
    }
    const std::uint64_t window_size = shape_.block * shape_.window;
    const std::uint64_t window = position / window_size;
    const std::uint64_t begin = window * window_size;
    const Permutation inside(keys(first_window_stream + window), std::min(window_size, size_ - begin));
    return in_blocks(epoch, begin + inside(position - begin));
}

/// What lies at `position` where only whole blocks have changed their places.
std::uint64_t EpochOrder::in_blocks(std::uint64_t epoch, std::uint64_t position) const {
    const std::uint64_t whole_blocks = size_ / shape_.block;
    const std::uint64_t rest = size_ % shape_.block;  // of the last block, which may come anywhere
    const Permutation blocks(base::Random(seed_, base::RandomPurpose::order, epoch, block_stream),
                             whole_blocks + (rest != 0 ? 1 : 0));
    if (rest != 0) {
        const std::uint64_t rest_begin = blocks.inverse(whole_blocks) * shape_.block;
        if (position >= rest_begin && position < rest_begin + rest) {
            return whole_blocks * shape_.block + (position - rest_begin);
        }
        if (position >= rest_begin) {
            position += shape_.block - rest;  // as though the last block were as long as the others
        }
    }
    return blocks(position / shape_.block) * shape_.block + position % shape_.block;
}

std::uint64_t EpochOrder::position_of(std::uint64_t epoch, std::uint64_t id) const {
    LOCKSTEP_CHECK_LT(id, size_);
    const auto keys = [&](std::uint64_t stream) {
        return base::Random(seed_, base::RandomPurpose::order, epoch, stream);
    };
    switch (kind_) {
        case OrderKind::sequential:
            return id;
        case OrderKind::full:
            return Permutation(keys(whole_stream), size_).inverse(id);
        case OrderKind::block:
            break;
    }
    const std::uint64_t position = from_blocks(epoch, id);
    const std::uint64_t window_size = shape_.block * shape_.window;
    const std::uint64_t window = position / window_size;
    const std::uint64_t begin = window * window_size;
    const Permutation inside(keys(first_window_stream + window), std::min(window_size, size_ - begin));
    return begin + inside.inverse(position - begin);
}

/// The inverse of in_blocks.
std::uint64_t EpochOrder::from_blocks(std::uint64_t epoch, std::uint64_t id) const {
    const std::uint64_t whole_blocks = size_ / shape_.block;
    const std::uint64_t rest = size_ % shape_.block;
    const Permutation blocks(base::Random(seed_, base::RandomPurpose::order, epoch, block_stream),
                             whole_blocks + (rest != 0 ? 1 : 0));
    const std::uint64_t place = blocks.inverse(id / shape_.block);
    const bool is_after_rest = rest != 0 && place > blocks.inverse(whole_blocks);
    return place * shape_.block + id % shape_.block - (is_after_rest ? shape_.block - rest : 0);
}

OrderOfEpoch::OrderOfEpoch(const EpochOrder& order, std::uint64_t epoch) : order_(order), epoch_(epoch) {
    if (order.kind_ == OrderKind::full && order.size_ > 0) {
        const base::Random keys(order.seed_, base::RandomPurpose::order, epoch, whole_stream);
        rounds_ = Permutation(keys, order.size_).draw_all();
    }
}

std::uint64_t OrderOfEpoch::sample_at(std::uint64_t position) const {
    if (rounds_.empty()) {
        return order_.sample_at(epoch_, position);
    }
    LOCKSTEP_CHECK_LT(position, order_.size_);
    for (const ShuffleRound& round : rounds_) {
        position = Permutation::applied(round, position, order_.size_);
    }
    return position;
}

std::uint64_t OrderOfEpoch::position_of(std::uint64_t id) const {
    if (rounds_.empty()) {
        return order_.position_of(epoch_, id);
    }
    LOCKSTEP_CHECK_LT(id, order_.size_);
    std::for_each(rounds_.rbegin(), rounds_.rend(), [&](const ShuffleRound& round) {  // each is its own inverse
        id = Permutation::applied(round, id, order_.size_);
    });
    return id;
}

double EpochOrder::shuffle_quality(std::uint64_t epoch) const {
    constexpr std::uint64_t most_pairs = 4096;
    if (size_ < 3) {
        return 1;
    }
    const std::uint64_t pairs = std::min(most_pairs, size_ - 1);
    double distance = 0;
    for (std::uint64_t pair = 0; pair < pairs; ++pair) {
        const std::uint64_t position = part_of({0, size_ - 1}, pairs, pair).begin;
        const std::uint64_t here = sample_at(epoch, position);
        const std::uint64_t next = sample_at(epoch, position + 1);
        distance += static_cast<double>(std::max(here, next) - std::min(here, next));
    }
    return distance / static_cast<double>(pairs) / ((static_cast<double>(size_) + 1) / 3);
}

std::uint64_t EpochOrder::steps_per_epoch(std::uint64_t effective_batch) const {
    LOCKSTEP_CHECK(effective_batch > 0);
    return size_ / effective_batch + (size_ % effective_batch != 0 ? 1 : 0);
}

PositionRange EpochOrder::effective_batch(std::uint64_t step, std::uint64_t effective_batch) const {
    LOCKSTEP_CHECK_LT(step, steps_per_epoch(effective_batch));
    const std::uint64_t begin = step * effective_batch;
    return {begin, begin + std::min(effective_batch, size_ - begin)};
}

void Ledger::enter(std::uint64_t sample_id) {
    // The offset keeps sample 0 from adding nothing: mix64 maps 0 to 0.
    constexpr std::uint64_t golden_ratio = 0x9e3779b97f4a7c15ULL;
    ++count;
    hash += base::mix64(sample_id + golden_ratio);
}

Ledger Ledger::whole(std::uint64_t size) {
    Ledger ledger;
    for (std::uint64_t id = 0; id < size; ++id) {
        ledger.enter(id);
    }
    return ledger;
}

}  // namespace lockstep::sharding
