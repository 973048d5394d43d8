#include "base/random.h"

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace lockstep::base {
namespace {

std::uint32_t low_word(std::uint64_t value) {
    return static_cast<std::uint32_t>(value);
}
std::uint32_t high_word(std::uint64_t value) {
    return static_cast<std::uint32_t>(value >> 32);
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
    constexpr std::uint64_t multiplier_0 = 0xD2511F53;
    constexpr std::uint64_t multiplier_1 = 0xCD9E8D57;
    constexpr std::uint32_t weyl_0 = 0x9E3779B9;  // golden ratio
    constexpr std::uint32_t weyl_1 = 0xBB67AE85;  // sqrt(3) - 1
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product_0 = multiplier_0 * counter[0];
        const std::uint64_t product_1 = multiplier_1 * counter[2];
        counter = {high_word(product_1) ^ counter[1] ^ key[0], low_word(product_1),
                   high_word(product_0) ^ counter[3] ^ key[1], low_word(product_0)};
        key[0] += weyl_0;
        key[1] += weyl_1;
    }
    return counter;
}

// Counter and key have room for 192 bits and the arguments have 224, so (seed, purpose, epoch) is first hashed to a key
// by the same bijection; the counter keeps the item and the number of the block.
Random::Random(std::uint64_t seed, RandomPurpose purpose, std::uint64_t epoch, std::uint64_t item)
    : counter_{0, 0, low_word(item), high_word(item)} {
    const auto hashed = philox4x32_10({static_cast<std::uint32_t>(purpose), low_word(epoch), high_word(epoch), 0},
                                      {low_word(seed), high_word(seed)});
    key_ = {hashed[0], hashed[1]};
}

std::uint32_t Random::next_u32() {
    if (used_ == block_.size()) {
        block_ = philox4x32_10(counter_, key_);
        used_ = 0;
        if (++counter_[0] == 0) {
            ++counter_[1];
        }
    }
    return block_[used_++];
}

std::uint64_t Random::next_u64() {
    const std::uint64_t low = next_u32();
    return low | static_cast<std::uint64_t>(next_u32()) << 32;
}

double Random::uniform() {
    return static_cast<double>(next_u64() >> 11) * 0x1p-53;
}

double Random::uniform(double low, double high) {
    LOCKSTEP_CHECK_LE(low, high);
    const double value = low + (high - low) * uniform();
    return value < high || low == high ? value : std::nextafter(high, low);  // the sum may round up to `high`
}

std::uint64_t Random::below(std::uint64_t bound) {
    LOCKSTEP_CHECK(bound > 0);
    // Lemire, "Fast random integer generation in an interval", 2019: the high word of a product, rejecting the
    // 2^64 mod bound low words that would favour some results.
    const std::uint64_t favoured = -bound % bound;
    for (;;) {
        const auto product = static_cast<unsigned __int128>(next_u64()) * bound;
        if (static_cast<std::uint64_t>(product) >= favoured) {
            return static_cast<std::uint64_t>(product >> 64);
        }
    }
}

bool Random::coin(double probability_of_true) {
    return uniform() < probability_of_true;
}

double Random::normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));  // 1 - uniform() is in (0, 1]
    return radius * std::cos(2 * std::numbers::pi * uniform());
}

}  // namespace lockstep::base
