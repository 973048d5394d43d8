#include "sharding/decoded_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/hash.h"

namespace lockstep::sharding {

/// One cache line for what all users change.
struct alignas(64) DecodedCache::Counters {
    std::atomic<std::uint64_t> slots_begun;  ///< slots from here on have never been used, up to their number
    std::atomic<std::uint64_t> draws;
};

/// `control` holds the state (zero: never used) and how many hold the pixels (pins). Whoever changes `ready` without
/// pins to `writing` has the slot for itself until it says `ready`; while it is pinned, nobody can.
struct DecodedCache::Slot {
    std::atomic<std::uint64_t> control;
    std::atomic<std::uint64_t> next_use;
    std::uint64_t id;
    std::uint32_t width, height;
};

namespace {

constexpr std::uint64_t pins_mask = 0xFFFFFFFF;
constexpr std::uint64_t state_mask = ~pins_mask;
constexpr std::uint64_t writing = std::uint64_t{1} << 32;
constexpr std::uint64_t ready = std::uint64_t{2} << 32;

constexpr std::uint32_t absent = 0;
constexpr std::uint32_t being_written = std::numeric_limits<std::uint32_t>::max();

// Processes must not meet in a lock that the library keeps in the memory of each.
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic_ref<std::uint32_t>::is_always_lock_free);

constexpr std::size_t line_bytes = 64;
constexpr std::size_t page_bytes = 4096;

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

/// Where the parts begin.
struct Layout {
    std::size_t places, slots, pixels, bytes_of_slot, end;

    Layout(const DecodedCache::Shape& shape, std::size_t counter_bytes, std::size_t slot_bytes)
        : places(rounded_up(counter_bytes, line_bytes)),
          slots(places + rounded_up(shape.samples * sizeof(std::uint32_t), line_bytes)),
          pixels(rounded_up(slots + shape.slots * slot_bytes, page_bytes)),
          bytes_of_slot(rounded_up(shape.bytes_of_slot, line_bytes)),
          end(pixels + shape.slots * bytes_of_slot) {}
};

std::shared_ptr<std::byte> private_memory(std::size_t bytes) {
    void* const address =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        throw base::Error(base::str(base::process_name(), ": there is no address space for a cache of ", bytes,
                                    " bytes of decoded samples: ", std::strerror(errno), ". Lower data.cache_mib"));
    }
    return {static_cast<std::byte*>(address), [bytes](std::byte* mapped) { munmap(mapped, bytes); }};
}

}  // namespace

std::size_t DecodedCache::Shape::bytes() const {
    return Layout(*this, sizeof(Counters), sizeof(Slot)).end;
}

DecodedCache::Shape DecodedCache::shape_within(std::uint64_t budget, std::uint64_t samples,
                                               std::uint64_t bytes_of_slot) {
    Shape shape{.samples = samples, .bytes_of_slot = bytes_of_slot, .slots = 0};
    const std::size_t without_slots = shape.bytes();
    const std::size_t each = rounded_up(bytes_of_slot, line_bytes) + sizeof(Slot);
    if (bytes_of_slot > 0 && budget > without_slots) {
        constexpr std::uint64_t most = being_written - 1;
        shape.slots = std::min({(budget - without_slots) / each, samples, most});
    }
    while (shape.slots > 0 && shape.bytes() > budget) {  // by the rounding up to a page
        --shape.slots;
    }
    return shape;
}

DecodedCache::DecodedCache(const Shape& shape, std::shared_ptr<std::byte> memory)
    : shape_(shape), memory_(std::move(memory)) {
    LOCKSTEP_CHECK(shape.slots > 0 && shape.slots <= shape.samples, shape.slots, " of ", shape.samples);
    LOCKSTEP_CHECK_EQ(reinterpret_cast<std::uintptr_t>(memory_.get()) % page_bytes, 0U);
    const Layout layout(shape, sizeof(Counters), sizeof(Slot));
    counters_ = reinterpret_cast<Counters*>(memory_.get());
    place_of_ = reinterpret_cast<std::uint32_t*>(memory_.get() + layout.places);
    slots_ = reinterpret_cast<Slot*>(memory_.get() + layout.slots);
    pixels_ = reinterpret_cast<std::uint8_t*>(memory_.get() + layout.pixels);
}

DecodedCache::DecodedCache(const Shape& shape) : DecodedCache(shape, private_memory(shape.bytes())) {}

bool DecodedCache::contains(std::uint64_t id) const {
    LOCKSTEP_CHECK_LT(id, shape_.samples);
    return std::atomic_ref(place_of_[id]).load(std::memory_order_relaxed) != absent;
}

std::optional<DecodedCache::Pixels> DecodedCache::find(std::uint64_t id, std::uint64_t next_use) {
    LOCKSTEP_CHECK_LT(id, shape_.samples);
    const std::uint32_t place = std::atomic_ref(place_of_[id]).load(std::memory_order_relaxed);
    if (place == absent || place == being_written) {
        return std::nullopt;
    }
    LOCKSTEP_CHECK_LE(place, shape_.slots);
    Slot* const slot = &slots_[place - 1];
    std::uint64_t seen = slot->control.load(std::memory_order_relaxed);
    do {
        if ((seen & state_mask) != ready) {
            return std::nullopt;
        }
    } while (!slot->control.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire));
    const std::uint8_t* const data = pixels_ + (place - 1) * rounded_up(shape_.bytes_of_slot, line_bytes);
    std::shared_ptr<const std::uint8_t> pinned(
        data, [slot, memory = memory_](const std::uint8_t*) { slot->control.fetch_sub(1, std::memory_order_release); });
    if (slot->id != id) {  // it was given to another sample since we looked the place up
        return std::nullopt;
    }
    // A rank that is a batch behind must not take back what one ahead has said.
    std::uint64_t known = slot->next_use.load(std::memory_order_relaxed);
    while (known < next_use && !slot->next_use.compare_exchange_weak(known, next_use, std::memory_order_relaxed)) {
    }
    return Pixels{.size = {slot->width, slot->height}, .data = std::move(pinned)};
}

void DecodedCache::put(std::uint64_t id, ImageSize size, const std::uint8_t* pixels, std::uint64_t next_use) {
    LOCKSTEP_CHECK_LT(id, shape_.samples);
    const std::uint64_t bytes = std::uint64_t{size.width} * size.height * 3;
    const std::atomic_ref place(place_of_[id]);
    std::uint32_t expected = absent;
    if (bytes > shape_.bytes_of_slot ||
        !place.compare_exchange_strong(expected, being_written, std::memory_order_relaxed)) {
        return;
    }
    const std::optional<std::uint32_t> number = slot_for(next_use);
    if (!number) {
        place.store(absent, std::memory_order_relaxed);
        return;
    }
    Slot& slot = slots_[*number];
    slot.id = id;
    slot.width = size.width;
    slot.height = size.height;
    slot.next_use.store(next_use, std::memory_order_relaxed);
    std::copy_n(pixels, bytes, pixels_ + *number * rounded_up(shape_.bytes_of_slot, line_bytes));
    // In this order: whoever takes the slot from a sample must find the place that it says is no longer true.
    place.store(*number + 1, std::memory_order_relaxed);
    slot.control.store(ready, std::memory_order_release);
}

/// A slot in the state `writing`: one that was never used, else that of a few drawn ones which is needed last, unless
/// that is sooner than `next_use`.
std::optional<std::uint32_t> DecodedCache::slot_for(std::uint64_t next_use) {
    if (counters_->slots_begun.load(std::memory_order_relaxed) < shape_.slots) {
        const std::uint64_t slot = counters_->slots_begun.fetch_add(1, std::memory_order_relaxed);
        if (slot < shape_.slots) {
            slots_[slot].control.store(writing, std::memory_order_relaxed);
            return static_cast<std::uint32_t>(slot);
        }
    }
    constexpr int drawn = 8;
    std::optional<std::uint32_t> last;
    std::uint64_t last_use = next_use;
    for (int i = 0; i < drawn; ++i) {
        const std::uint64_t draw = counters_->draws.fetch_add(1, std::memory_order_relaxed);
        const auto slot = static_cast<std::uint32_t>(base::mix64(draw) % shape_.slots);
        const std::uint64_t its_use = slots_[slot].next_use.load(std::memory_order_relaxed);
        if (its_use > last_use && slots_[slot].control.load(std::memory_order_relaxed) == ready) {
            last = slot;
            last_use = its_use;
        }
    }
    return last && take(*last) ? last : std::nullopt;
}

/// From `ready` without pins to `writing`, and its sample is absent.
bool DecodedCache::take(std::uint32_t slot) {
    std::uint64_t expected = ready;
    if (!slots_[slot].control.compare_exchange_strong(expected, writing, std::memory_order_acquire)) {
        return false;
    }
    std::atomic_ref(place_of_[slots_[slot].id]).store(absent, std::memory_order_relaxed);
    return true;
}

}  // namespace lockstep::sharding
