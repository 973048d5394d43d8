#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "scratch.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"
#include "sharding/loader.h"

namespace {

/// Allocations of at least a page of pixels, by any thread.
std::atomic<std::uint64_t> large_allocations{0};
constexpr std::size_t large = 16 << 10;

}  // namespace

// The whole program allocates through these, so that what the loader's threads do is seen.
// Not inlined: the compiler would take new and free, seen together, for a mistake.
[[gnu::noinline]] void* operator new(std::size_t size) {
    large_allocations += size >= large ? 1 : 0;
    if (void* memory = std::malloc(size == 0 ? 1 : size)) {
        return memory;
    }
    throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
    std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
    std::free(memory);
}

namespace lockstep::sharding {
namespace {

using test::mapped_bytes_in_memory;

class LoaderMemory : public test::Scratch {
  protected:
    Dataset dataset(Encoding encoding, std::uint64_t images, std::uint32_t width, std::uint32_t height,
                    ReadPath read = ReadPath::mmap) const {
        write_dataset(path("set"), {.encoding = encoding, .classes = {"thing"}, .source = "test"},
                      [&](DatasetWriter& writer) {
                          for (std::uint64_t id = 0; id < images; ++id) {
                              Image image = Image::blank(width, height);
                              for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
                                  image.pixels[i] = static_cast<std::uint8_t>(i / 97 + id);
                              }
                              const auto bytes = encoding == Encoding::raw ? image.pixels : encode_jpeg(image, 90);
                              const Box box{.x1 = 1,
                                            .y1 = 1,
                                            .x2 = 20,
                                            .y2 = 20,
                                            .area = 361,
                                            .class_index = 0,
                                            .flags = 0,
                                            .annotation_id = 0};
                              writer.add({.id = 0,
                                          .image_id = static_cast<std::int64_t>(id),
                                          .width = width,
                                          .height = height,
                                          .label = -1,
                                          .bytes = bytes,
                                          .boxes = {&box, 1}},
                                         "image");
                          }
                      });
        return Dataset::open(path("set"), read);
    }
};

LoaderOptions options_of(std::uint32_t image_size) {
    LoaderOptions options;
    options.image_size = image_size;
    options.effective_batch = 8;
    options.decoded_cache_bytes = 0;
    options.augmentation.enabled = true;
    options.augmentation.mosaic = 0.5;
    options.augmentation.flip_horizontal = 0.5;
    options.augmentation.hsv_value = 0.4;
    return options;
}

TEST_F(LoaderMemory, NothingLargeIsAllocatedOnceItIsWarm) {
    for (const auto& [encoding, read] : {std::pair{Encoding::encoded, ReadPath::mmap},
                                         {Encoding::encoded, ReadPath::hdf5},
                                         {Encoding::raw, ReadPath::mmap},
                                         {Encoding::raw, ReadPath::hdf5}}) {
        std::filesystem::remove_all(path("set"));
        const Dataset set = dataset(encoding, 40, 160, 120, read);
        Loader loader(set, EpochOrder(OrderKind::full, 1, set.size()), {}, options_of(96));
        const auto take = [&](int batches) {
            for (int i = 0; i < batches; ++i) {
                loader.give_back(loader.next());
            }
        };
        take(20);
        const std::uint64_t before = large_allocations;
        take(40);
        EXPECT_EQ(large_allocations - before, 0u)
            << "encoding " << static_cast<int>(encoding) << ", read " << static_cast<int>(read);
    }
}

TEST_F(LoaderMemory, NothingLargeIsAllocatedForShapesThatWereThereBefore) {
    const Dataset set = dataset(Encoding::encoded, 40, 160, 120, ReadPath::mmap);
    LoaderOptions options = options_of(96);
    options.scaling = {
        .rule = ScalingRule::squares, .short_side = 64, .long_side = 160, .multiple = 32, .megapixels = 0};
    Loader loader(set, EpochOrder(OrderKind::full, 1, set.size()), {}, options);
    const auto take = [&](int batches) {
        for (int i = 0; i < batches; ++i) {
            loader.give_back(loader.next());
        }
    };
    take(60);
    const std::uint64_t before = large_allocations;
    take(60);
    EXPECT_EQ(large_allocations - before, 0u);
}

TEST_F(LoaderMemory, MappedShardsAreLetGoOf) {
    constexpr std::uint64_t mib = 1 << 20;
    const Dataset set = dataset(Encoding::raw, 160, 512, 400);  // 94 MiB
    LoaderOptions options = options_of(512);
    Loader loader(set, EpochOrder(OrderKind::full, 1, set.size()), {}, options);
    std::uint64_t most = 0;
    for (int batch = 0; batch < 40; ++batch) {
        loader.give_back(loader.next());
        most = std::max(most, mapped_bytes_in_memory(path("set")));
    }
    EXPECT_GT(most, 8 * mib) << "the shards must be seen in /proc/self/smaps";
    EXPECT_LT(most, 48 * mib);
}

TEST(ImageBuffers, GivesOutAgainWhatNobodyHolds) {
    ImageBuffers buffers;
    const std::shared_ptr<Image> first = buffers.take();
    std::shared_ptr<Image> second = buffers.take();
    EXPECT_NE(first, second);
    const Image* const free = second.get();
    second.reset();
    EXPECT_EQ(buffers.take().get(), free);
    EXPECT_EQ(buffers.size(), 2u);
}

}  // namespace
}  // namespace lockstep::sharding
