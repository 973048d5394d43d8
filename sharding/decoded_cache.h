#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "sharding/image.h"

namespace lockstep::sharding {

/// Decoded samples in memory, which processes may share: any thread of any of them finds what another one has put
/// there. Room for a fixed number of samples; where they are more, the one that is needed last makes room, since every
/// sample comes once an epoch and whatever was used longest ago may be needed next.
///
/// Nobody ever waits for another: a sample that is being written counts as absent, and what a process
/// that ends in the middle was writing or held is not used again.
class DecodedCache {
  public:
    struct Shape {
        std::uint64_t samples = 0;        ///< ids are 0 .. samples-1
        std::uint64_t bytes_of_slot = 0;  ///< pixels of the largest sample
        std::uint64_t slots = 0;          ///< samples that are held at most; 0: none
        bool holds_all() const { return slots >= samples; }
        std::size_t bytes() const;  ///< of memory in all
    };
    /// As many slots as `budget` bytes have room for, and no more than samples.
    static Shape shape_within(std::uint64_t budget, std::uint64_t samples, std::uint64_t bytes_of_slot);

    /// Over `memory` of shape.bytes(), aligned to a page, which was zeroed before its first user came; every user gives
    /// the same shape. The cache and what it gave out share in owning it.
    DecodedCache(const Shape& shape, std::shared_ptr<std::byte> memory);
    /// Over memory of this process, of which pages are taken as they are used. Throws base::Error where there is no
    /// address space.
    explicit DecodedCache(const Shape& shape);

    struct Pixels {
        ImageSize size;
        std::shared_ptr<const std::uint8_t> data;  ///< height x width x 3; stays what it is as long as it is held
    };
    /// `next_use`: when the sample will be needed again after this, on any clock that all users share.
    std::optional<Pixels> find(std::uint64_t id, std::uint64_t next_use);
    /// Keeps a copy, unless the sample is there, is larger than a slot, or all that was looked at to make room for it
    /// is needed sooner.
    void put(std::uint64_t id, ImageSize size, const std::uint8_t* pixels, std::uint64_t next_use);
    bool contains(std::uint64_t id) const;

    const Shape& shape() const { return shape_; }

  private:
    struct Counters;
    struct Slot;
    std::optional<std::uint32_t> slot_for(std::uint64_t next_use);
    bool take(std::uint32_t slot);

    Shape shape_;
    std::shared_ptr<std::byte> memory_;
    Counters* counters_;
    std::uint32_t* place_of_;  ///< by id: 0 absent, being_written, or its slot + 1; atomic
    Slot* slots_;
    std::uint8_t* pixels_;
};

}  // namespace lockstep::sharding
