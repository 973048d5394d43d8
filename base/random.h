#pragma once

#include <array>
#include <cstdint>

namespace lockstep::base {

/// What a stream of random numbers is for; two purposes never share numbers.
enum class RandomPurpose : std::uint32_t {
    order = 1,
    augmentation = 2,
    mosaic = 3,
    initialisation = 4,
    composition = 5,
    measurement = 6,  ///< order of launches, resampling
    test = 99
};

/// Counter-based random numbers (Philox4x32-10: Salmon, Moraes, Dror, Shaw, SC'11): a pure function of
/// (seed, purpose, epoch, item) and the number of draws made so far, so threads, ranks and resumes cannot change them.
/// Cheap to make: one per sample.
class Random {
  public:
    Random(std::uint64_t seed, RandomPurpose purpose, std::uint64_t epoch, std::uint64_t item);

    std::uint32_t next_u32();
    std::uint64_t next_u64();
    double uniform();                          ///< [0, 1), 53 bits
    double uniform(double low, double high);   ///< [low, high)
    std::uint64_t below(std::uint64_t bound);  ///< [0, bound) without bias; bound > 0
    bool coin(double probability_of_true);
    double normal();  ///< mean 0, variance 1 (Box-Muller)

  private:
    std::array<std::uint32_t, 2> key_;
    std::array<std::uint32_t, 4> counter_;
    std::array<std::uint32_t, 4> block_{};
    unsigned used_ = 4;
};

/// The bare bijection, for tests against the published vectors.
std::array<std::uint32_t, 4> philox4x32_10(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

}  // namespace lockstep::base
