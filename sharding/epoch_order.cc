#include "sharding/epoch_order.h"

#include <algorithm>
#include <bit>

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

EpochOrder::EpochOrder(OrderKind kind, std::uint64_t seed, std::uint64_t size)
    : kind_(kind), seed_(seed), size_(size) {}

// The swap-or-not shuffle (Hoang, Morris, Rogaway, CRYPTO 2012): each round pairs x with key - x (mod size) and swaps
// the pair or not by one pseudo-random bit that both partners compute alike. Unlike a Feistel network it is a bijection
// of any size as it stands. About 6 log2(size) rounds mix well.
std::uint64_t EpochOrder::sample_at(std::uint64_t epoch, std::uint64_t position) const {
    LOCKSTEP_CHECK_LT(position, size_);
    if (kind_ == OrderKind::sequential) {
        return position;
    }
    constexpr int rounds_for_tiny_sizes = 16;
    const int rounds = 6 * std::bit_width(size_) + rounds_for_tiny_sizes;
    base::Random keys(seed_, base::RandomPurpose::order, epoch, 0);
    std::uint64_t x = position;
    for (int round = 0; round < rounds; ++round) {
        const std::uint64_t pairing = keys.below(size_);
        const std::uint64_t partner = pairing >= x ? pairing - x : size_ - (x - pairing);
        const std::uint64_t pair = std::max(x, partner);
        if (base::mix64(pair ^ keys.next_u64()) & 1) {
            x = partner;
        }
    }
    return x;
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
