#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::sharding {

/// A half-open range of positions in an epoch's order.
struct PositionRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t count() const { return end - begin; }
    bool operator==(const PositionRange&) const = default;
};

/// The `index`-th of `parts` contiguous pieces of `range`; sizes differ by at most one, larger pieces first, pieces may
/// be empty. Micro-steps are parts of the effective batch, ranks' shares are parts of the micro-step: so what a
/// micro-step holds never depends on the number of ranks.
PositionRange part_of(PositionRange range, std::uint64_t parts, std::uint64_t index);

/// `full`: any sample may follow any other. `block`: blocks of neighbouring samples are shuffled, then the samples
/// inside a window of several blocks, so that reads stay near each other on the disk.
enum class OrderKind : std::uint8_t { sequential, block, full };

/// How far OrderKind::block looks: `block` neighbouring samples travel together, and `window` blocks are mixed.
struct BlockShape {
    std::uint64_t block = 64;
    std::uint64_t window = 16;
};

/// One round of the shuffle behind an order.
struct ShuffleRound {
    std::uint64_t pairing;
    std::uint64_t bits;
};

/// The pure function from (seed, epoch, position) to a sample id: a permutation of 0 .. size-1 for each epoch,
/// the same for every number of ranks and threads, without storing the permutation (a keyed bijection).
class EpochOrder {
  public:
    EpochOrder(OrderKind kind, std::uint64_t seed, std::uint64_t size, BlockShape shape = {});
    OrderKind kind() const { return kind_; }
    std::uint64_t seed() const { return seed_; }
    std::uint64_t size() const { return size_; }
    std::uint64_t sample_at(std::uint64_t epoch, std::uint64_t position) const;
    /// The inverse: where in the epoch a sample comes.
    std::uint64_t position_of(std::uint64_t epoch, std::uint64_t id) const;

    std::uint64_t steps_per_epoch(std::uint64_t effective_batch) const;
    /// Positions of step `step` (within the epoch); the last one may be shorter, never padded.
    PositionRange effective_batch(std::uint64_t step, std::uint64_t effective_batch) const;

    /// Mean distance |id(p + 1) - id(p)| of neighbours in the epoch's order over what a fair shuffle would give,
    /// (size + 1) / 3: 1 for OrderKind::full up to chance, 3 / (size + 1) for OrderKind::sequential. Taken at no more
    /// than 4096 evenly spaced positions. 1 where there is nothing to shuffle (fewer than 3 samples).
    double shuffle_quality(std::uint64_t epoch) const;

  private:
    friend class OrderOfEpoch;
    std::uint64_t in_blocks(std::uint64_t epoch, std::uint64_t position) const;
    std::uint64_t from_blocks(std::uint64_t epoch, std::uint64_t id) const;

    OrderKind kind_;
    std::uint64_t seed_;
    std::uint64_t size_;
    BlockShape shape_;
};

/// One epoch of an order, for many positions: gives what EpochOrder::sample_at gives, and draws the keys of a full
/// shuffle once instead of for each position, so that a position costs nearly the same in a large set as in a small
/// one.
class OrderOfEpoch {
  public:
    OrderOfEpoch(const EpochOrder& order, std::uint64_t epoch);
    std::uint64_t epoch() const { return epoch_; }
    std::uint64_t sample_at(std::uint64_t position) const;
    std::uint64_t position_of(std::uint64_t id) const;

  private:
    EpochOrder order_;
    std::uint64_t epoch_;
    std::vector<ShuffleRound> rounds_;  ///< of OrderKind::full
};

/// Count and order-free hash of the primary sample ids that one rank consumed in an epoch. Ledgers add up over ranks
/// (both fields by wrapping sum), and the total must equal `whole(size)`.
struct Ledger {
    std::uint64_t count = 0;
    std::uint64_t hash = 0;
    void enter(std::uint64_t sample_id);
    static Ledger whole(std::uint64_t size);
    bool operator==(const Ledger&) const = default;
};

}  // namespace lockstep::sharding
