#include <gtest/gtest.h>

#include <iostream>

#include "base/resources.h"
#include "scratch.h"
#include "sharding/dataset_writer.h"
#include "sharding/loader.h"

namespace lockstep::sharding {
namespace {

using test::mapped_bytes_in_memory;

constexpr std::uint64_t mib = 1 << 20;

/// What a set of many small samples costs a rank.
struct Cost {
    double open_seconds = 0;
    std::uint64_t mapped_by_opening = 0;  ///< pages of the files in this process's memory
    std::uint64_t mapped_by_batches = 0;
    std::uint64_t memory = 0;  ///< by which the process has grown until a training would begin
    double samples_per_second = 0;
};

class LargeDataset : public test::Scratch {
  protected:
    Cost cost_of(std::uint64_t samples) const {
        constexpr std::uint32_t side = 8;
        const auto directory = path(base::str("set-", samples));
        write_dataset(directory, {.encoding = Encoding::raw, .classes = {"a", "b"}, .source = "test"},
                      [&](DatasetWriter& writer) {
                          std::vector<std::uint8_t> pixels(std::size_t{side} * side * 3);
                          for (std::uint64_t id = 0; id < samples; ++id) {
                              std::memcpy(pixels.data(), &id, sizeof id);
                              const Box box{.x1 = 1,
                                            .y1 = 1,
                                            .x2 = 5,
                                            .y2 = 7,
                                            .area = 24,
                                            .class_index = static_cast<std::int32_t>(id % 2),
                                            .flags = 0,
                                            .annotation_id = static_cast<std::int64_t>(id)};
                              writer.add({.id = 0,
                                          .image_id = static_cast<std::int64_t>(id),
                                          .width = side,
                                          .height = side,
                                          .label = -1,
                                          .bytes = pixels,
                                          .boxes = {&box, 1}},
                                         "image");
                          }
                      });
        const std::uint64_t before = base::pss_bytes();
        Cost cost;
        const double start = base::monotonic_seconds();
        const Dataset set = Dataset::open(directory);
        cost.open_seconds = base::monotonic_seconds() - start;
        cost.mapped_by_opening = mapped_bytes_in_memory(directory);
        EXPECT_EQ(set.size(), samples);
        EXPECT_EQ(set.max_boxes_per_image(), 1u);  // a training asks for it
        const std::uint64_t after = base::pss_bytes();
        cost.memory = after > before ? after - before : 0;

        LoaderOptions options;
        options.image_size = side;
        options.effective_batch = 64;
        options.decoded_cache_bytes = 0;
        Loader loader(set, EpochOrder(OrderKind::full, 1, set.size()), {}, options);
        for (int warm = 0; warm < 4; ++warm) {
            loader.give_back(loader.next());
        }
        const double first = base::monotonic_seconds();
        std::uint64_t seen = 0;
        for (int batch = 0; batch < 2000; ++batch) {
            Batch next = loader.next();
            for (std::size_t i = 0; i < next.micro[0].count; ++i) {
                std::uint64_t id = 0;
                std::memcpy(&id, next.micro[0].pixels.data() + i * side * side * 3, sizeof id);
                EXPECT_EQ(id, next.micro[0].sample_ids[i]);
                ++seen;
            }
            loader.give_back(std::move(next));
        }
        cost.samples_per_second = static_cast<double>(seen) / (base::monotonic_seconds() - first);
        cost.mapped_by_batches = mapped_bytes_in_memory(directory);
        return cost;
    }
};

TEST_F(LargeDataset, OpeningTouchesAsFewPagesHoweverLargeItIs) {
    const Cost small = cost_of(1'000);
    const Cost large = cost_of(100'000);
    // The files of the larger one have 27 MiB. A fault brings in 64 KiB around it, and each table has two ends.
    EXPECT_GT(small.mapped_by_opening, 0u);
    EXPECT_LT(large.mapped_by_opening, 4 * mib);
}

TEST_F(LargeDataset, AMillionSamples) {
    for (const std::uint64_t samples : {1'000, 1'000'000}) {
        const Cost cost = cost_of(samples);
        std::cout << samples << " samples: open in " << cost.open_seconds * 1e3 << " ms, "
                  << static_cast<double>(cost.mapped_by_opening) / mib << " MiB mapped by opening, "
                  << static_cast<double>(cost.memory) / mib << " MiB more before the first batch, "
                  << static_cast<double>(cost.mapped_by_batches) / mib << " MiB mapped after 2000 batches of 64, "
                  << cost.samples_per_second << " samples/s\n";
        EXPECT_LT(cost.mapped_by_opening, 4 * mib);
        EXPECT_LT(cost.memory, 100 * mib);
    }
}

}  // namespace
}  // namespace lockstep::sharding
