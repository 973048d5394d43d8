#include "sharding/decoded_cache.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <set>
#include <thread>
#include <vector>

#include "base/random.h"

namespace lockstep::sharding {
namespace {

constexpr std::uint64_t no_use = 0;

ImageSize size_of(std::uint64_t id) {
    return {static_cast<std::uint32_t>(3 + id % 5), 4};
}
constexpr std::uint64_t largest = 7 * 4 * 3;

std::vector<std::uint8_t> pixels_of(std::uint64_t id) {
    const ImageSize size = size_of(id);
    std::vector<std::uint8_t> pixels(std::size_t{size.width} * size.height * 3);
    base::Random random(5, base::RandomPurpose::test, 0, id);
    std::ranges::generate(pixels, [&] { return static_cast<std::uint8_t>(random.next_u32()); });
    return pixels;
}

void put(DecodedCache& cache, std::uint64_t id, std::uint64_t next_use) {
    cache.put(id, size_of(id), pixels_of(id).data(), next_use);
}

bool is_whole(const DecodedCache::Pixels& found, std::uint64_t id) {
    const std::vector<std::uint8_t> expected = pixels_of(id);
    return found.size == size_of(id) && std::equal(expected.begin(), expected.end(), found.data.get());
}

std::set<std::uint64_t> held(const DecodedCache& cache) {
    std::set<std::uint64_t> ids;
    for (std::uint64_t id = 0; id < cache.shape().samples; ++id) {
        if (cache.contains(id)) {
            ids.insert(id);
        }
    }
    return ids;
}

TEST(DecodedCache, GivesBackWhatWasPut) {
    DecodedCache cache({.samples = 20, .bytes_of_slot = largest, .slots = 20});
    for (std::uint64_t id = 0; id < 20; ++id) {
        EXPECT_FALSE(cache.find(id, no_use)) << id;
        put(cache, id, no_use);
    }
    for (std::uint64_t id = 0; id < 20; ++id) {
        const auto found = cache.find(id, no_use);
        ASSERT_TRUE(found) << id;
        EXPECT_TRUE(is_whole(*found, id)) << id;
    }
    put(cache, 3, no_use);  // there already
    EXPECT_EQ(held(cache).size(), 20U);
}

TEST(DecodedCache, TakesAsManyAsTheBudgetHas) {
    for (const std::uint64_t samples : {1, 7, 1000}) {
        for (const std::uint64_t bytes : {1, 64, 100, 3 * 224 * 224}) {
            for (std::uint64_t budget = 0; budget < (32 << 20); budget = budget * 5 / 3 + 999) {
                const auto shape = DecodedCache::shape_within(budget, samples, bytes);
                ASSERT_LE(shape.slots, samples);
                if (shape.slots > 0) {
                    ASSERT_LE(shape.bytes(), budget) << samples << " of " << bytes;
                }
                if (shape.slots < samples) {
                    DecodedCache::Shape more = shape;
                    ++more.slots;
                    constexpr std::uint64_t rounding = 4096;
                    ASSERT_GT(more.bytes() + rounding, budget) << samples << " of " << bytes;
                }
            }
        }
    }
    EXPECT_EQ(DecodedCache::shape_within(1 << 20, 10, 0).slots, 0U);
}

TEST(DecodedCache, WhatIsNeededLastMakesRoom) {
    constexpr std::uint64_t slots = 16;
    DecodedCache cache({.samples = 200, .bytes_of_slot = largest, .slots = slots});
    for (std::uint64_t id = 0; id < slots; ++id) {
        put(cache, id, 100 + id);
    }
    put(cache, 50, 1000);
    EXPECT_FALSE(cache.contains(50)) << "all that is there is needed sooner";
    for (std::uint64_t id = 60; id < 160; ++id) {
        const std::set<std::uint64_t> before = held(cache);
        put(cache, id, 99 - (id - 60) % 50);
        const std::set<std::uint64_t> after = held(cache);
        ASSERT_EQ(after.size(), slots);
        std::vector<std::uint64_t> gone;
        std::ranges::set_difference(before, after, std::back_inserter(gone));
        ASSERT_LE(gone.size(), 1U);
        for (const std::uint64_t old : gone) {
            const std::uint64_t its_use = old < slots ? 100 + old : 99 - (old - 60) % 50;
            EXPECT_GT(its_use, 99 - (id - 60) % 50) << "sample " << old << " made room for " << id;
        }
        for (const std::uint64_t there : after) {
            const auto found = cache.find(there, there < slots ? 100 + there : 99 - (there - 60) % 50);
            ASSERT_TRUE(found && is_whole(*found, there)) << there;
        }
    }
    for (std::uint64_t id = 0; id < slots; ++id) {
        EXPECT_FALSE(cache.contains(id)) << id << " is needed later than any of a hundred others";
    }
}

TEST(DecodedCache, AUseMovesTheNextOne) {
    DecodedCache cache({.samples = 10, .bytes_of_slot = largest, .slots = 1});
    put(cache, 0, 5);
    put(cache, 1, 7);
    EXPECT_TRUE(cache.contains(0));
    ASSERT_TRUE(cache.find(0, 25));
    put(cache, 1, 7);
    EXPECT_FALSE(cache.contains(0));
    EXPECT_TRUE(cache.contains(1));
}

TEST(DecodedCache, WhatIsHeldStaysAsItIs) {
    DecodedCache cache({.samples = 10, .bytes_of_slot = largest, .slots = 2});
    put(cache, 0, 100);
    put(cache, 1, 100);
    auto zero = cache.find(0, 100), one = cache.find(1, 100);
    ASSERT_TRUE(zero && one);
    for (std::uint64_t id = 2; id < 10; ++id) {
        put(cache, id, 1);
        EXPECT_FALSE(cache.contains(id)) << id;
    }
    EXPECT_TRUE(is_whole(*zero, 0) && is_whole(*one, 1));
    one.reset();
    put(cache, 2, 1);
    EXPECT_TRUE(cache.contains(2) && cache.contains(0) && !cache.contains(1));
}

TEST(DecodedCache, OutlivesItselfInWhatItGaveOut) {
    std::optional<DecodedCache::Pixels> found;
    {
        DecodedCache cache({.samples = 1, .bytes_of_slot = largest, .slots = 1});
        put(cache, 0, no_use);
        found = cache.find(0, no_use);
    }
    EXPECT_TRUE(found && is_whole(*found, 0));
}

/// Samples come and go; whatever is found must be what it says it is. Returns how many were found.
std::uint64_t use(DecodedCache& cache, std::uint64_t seed, std::uint64_t turns) {
    base::Random random(seed, base::RandomPurpose::test, 1, 0);
    std::uint64_t found_count = 0;
    for (std::uint64_t turn = 0; turn < turns; ++turn) {
        const std::uint64_t id = random.below(cache.shape().samples);
        const std::uint64_t next_use = random.below(1000);
        if (const auto found = cache.find(id, next_use)) {
            ++found_count;
            if (!is_whole(*found, id)) {
                ADD_FAILURE() << "sample " << id << " isn't what was put, turn " << turn;
                return 0;
            }
        } else {
            put(cache, id, next_use);
        }
    }
    return found_count;
}

TEST(DecodedCache, ThreadsShareIt) {
    for (const std::uint64_t slots : {2, 10, 40}) {
        DecodedCache cache({.samples = 40, .bytes_of_slot = largest, .slots = slots});
        std::vector<std::uint64_t> found(4);
        {
            std::vector<std::jthread> threads;
            for (std::uint64_t i = 0; i < found.size(); ++i) {
                threads.emplace_back([&, i] { found[i] = use(cache, i, 5000); });
            }
        }
        for (const std::uint64_t count : found) {
            EXPECT_GT(count, 0U) << slots << " slots";
        }
        EXPECT_LE(held(cache).size(), slots);
        EXPECT_GT(held(cache).size(), slots / 2);
    }
}

/// Memory as ranks of a node share it.
std::shared_ptr<std::byte> shared_memory(std::size_t bytes) {
    void* const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(address, MAP_FAILED);
    return {static_cast<std::byte*>(address), [bytes](std::byte* mapped) { munmap(mapped, bytes); }};
}

TEST(DecodedCache, ProcessesThatAreKilledInTheMiddleHarmNobody) {
    const DecodedCache::Shape shape{.samples = 60, .bytes_of_slot = largest, .slots = 40};
    const auto memory = shared_memory(shape.bytes());
    DecodedCache cache(shape, memory);
    constexpr int kills = 12;
    for (int turn = 0; turn < kills; ++turn) {
        int ready[2];
        ASSERT_EQ(pipe(ready), 0);
        const pid_t child = fork();
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            DecodedCache own(shape, memory);
            use(own, static_cast<std::uint64_t>(turn), 50);
            const bool told = write(ready[1], "x", 1) == 1;
            use(own, 100 + static_cast<std::uint64_t>(turn), told ? UINT64_MAX : 0);
            _exit(1);
        }
        char byte = 0;
        ASSERT_EQ(read(ready[0], &byte, 1), 1);
        EXPECT_GT(use(cache, 200 + static_cast<std::uint64_t>(turn), 2000), 0U);
        kill(child, SIGKILL);
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "the child saw a wrong sample: " << status;
        close(ready[0]);
        close(ready[1]);
    }
    EXPECT_GT(use(cache, 1, 2000), 0U);
    // A killed process leaves no more than the slot that it was writing and the one that it was holding.
    std::uint64_t usable = 0;
    for (std::uint64_t id = 0; id < shape.samples; ++id) {
        usable += cache.find(id, 0) ? 1 : 0;
    }
    EXPECT_GE(usable, shape.slots - 2 * kills);
}

TEST(DecodedCache, WhatAnotherProcessPutIsFound) {
    const DecodedCache::Shape shape{.samples = 30, .bytes_of_slot = largest, .slots = 30};
    const auto memory = shared_memory(shape.bytes());
    const pid_t child = fork();
    if (child == 0) {
        DecodedCache own(shape, memory);
        for (std::uint64_t id = 0; id < shape.samples; ++id) {
            put(own, id, no_use);
        }
        _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
    DecodedCache cache(shape, memory);
    for (std::uint64_t id = 0; id < shape.samples; ++id) {
        const auto found = cache.find(id, no_use);
        ASSERT_TRUE(found && is_whole(*found, id)) << id;
    }
}

}  // namespace
}  // namespace lockstep::sharding
