#include "sharding/preprocessed_cache.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/file.h"
#include "base/hdf5.h"
#include "base/random.h"
#include "scratch.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"
#include "sharding/inspect.h"
#include "sharding/loader.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;

class PreprocessedCache : public test::Scratch {
  protected:
    Dataset write_source(std::uint64_t images, Task task = Task::detection) const {
        write_dataset(path("set"), {.task = task, .classes = {"a", "b"}, .source = "test"}, [&](DatasetWriter& writer) {
            for (std::uint64_t id = 0; id < images; ++id) {
                base::Random random(3, base::RandomPurpose::test, 0, id);
                Image image = Image::blank(70 + static_cast<std::uint32_t>(id % 7), 50);
                for (std::uint8_t& value : image.pixels) {
                    value = static_cast<std::uint8_t>(random.below(256));
                }
                const auto bytes = encode_jpeg(image, 90);
                const Box box{.x1 = 3,
                              .y1 = 4,
                              .x2 = 41.5F,
                              .y2 = 33,
                              .area = 900,
                              .class_index = 1,
                              .flags = 0,
                              .annotation_id = 0};
                const bool detection = task == Task::detection;
                writer.add({.id = 0,
                            .image_id = static_cast<std::int64_t>(id),
                            .width = image.width,
                            .height = image.height,
                            .label = detection ? -1 : static_cast<std::int32_t>(id % 2),
                            .bytes = bytes,
                            .boxes = detection ? std::span(&box, 1) : std::span<const Box>{}},
                           base::str("photo-", id, ".jpg"));
            }
        });
        return Dataset::open(path("set"));
    }
    Dataset open_cache(const Dataset& source, unsigned threads = 2, DecodeMode decode = DecodeMode::full) const {
        return open_preprocessed_cache(source, path("cache"), {.image_size = 32, .decode = decode}, threads);
    }
    std::size_t entries_of_cache() const {
        const fs::directory_iterator all(path("cache"));
        return static_cast<std::size_t>(std::distance(begin(all), end(all)));
    }
};

LoaderOptions options_with(const Dataset* preprocessed, DecodeMode decode) {
    LoaderOptions options;
    options.image_size = 32;
    options.effective_batch = 5;
    options.decode = decode;
    options.preprocessed = preprocessed;
    options.decoded_cache_bytes = 0;
    options.augmentation.enabled = true;
    options.augmentation.flip_horizontal = 0.5;
    options.augmentation.degrees = 10;
    options.augmentation.hsv_value = 0.4;
    return options;
}

TEST_F(PreprocessedCache, GivesTheSameBatchesBitForBit) {
    for (const Task task : {Task::detection, Task::classification}) {
        fs::remove_all(path("set"));
        fs::remove_all(path("cache"));
        const Dataset source = write_source(23, task);
        for (const DecodeMode decode : {DecodeMode::full, DecodeMode::scaled}) {
            const Dataset cache = open_cache(source, 2, decode);
            verify_all(cache, 1);
            for (const std::uint64_t in_memory : {0, 1 << 20}) {
                LoaderOptions with = options_with(&cache, decode);
                with.decoded_cache_bytes = in_memory;
                with.augmentation.mosaic = task == Task::detection ? 0.5 : 0;
                LoaderOptions without = with;
                without.preprocessed = nullptr;
                const EpochOrder order(OrderKind::full, 1, source.size());
                Loader a(source, order, {}, with), b(source, order, {}, without);
                for (int step = 0; step < 12; ++step) {
                    const Batch one = a.next(), other = b.next();
                    EXPECT_TRUE(one.micro[0].pixels == other.micro[0].pixels) << "step " << step;
                    EXPECT_TRUE(one.micro[0].boxes == other.micro[0].boxes) << "step " << step;
                    EXPECT_EQ(one.micro[0].labels, other.micro[0].labels);
                    EXPECT_EQ(one.micro[0].sample_ids, other.micro[0].sample_ids);
                    EXPECT_TRUE(one.micro[0].letterboxes == other.micro[0].letterboxes);
                }
                EXPECT_EQ(a.cache_use().kept > 0, in_memory > 0);
                EXPECT_GE(a.cache_use().samples, 12u * 4);
            }
        }
        EXPECT_EQ(entries_of_cache(), 2u) << "one for each way to decode";
    }
}

TEST_F(PreprocessedCache, IsMadeOnceAndForeignOnesAreRefused) {
    const Dataset source = write_source(9);
    const fs::path made = open_cache(source).directory();
    const auto when = fs::last_write_time(made / "index.h5");
    EXPECT_EQ(open_cache(source).directory(), made);
    EXPECT_EQ(fs::last_write_time(made / "index.h5"), when);

    fs::remove_all(path("set"));
    const Dataset other = write_source(10);
    const fs::path of_other = open_cache(other).directory();
    EXPECT_NE(of_other, made);
    fs::remove_all(of_other);
    fs::rename(made, of_other);
    EXPECT_TRUE(contains(error_of([&] { open_cache(other); }), "is not the cache of"));
}

TEST_F(PreprocessedCache, ADamagedCacheIsNoticed) {
    const Dataset source = write_source(9);
    {
        const Dataset cache = open_cache(source);
        const fs::path shard = cache.directory() / "shard-00000.h5";
        const std::uint64_t pool = base::Hdf5File::open_read_only(shard).extent("pool").file_offset;
        std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
        file.seekg(static_cast<std::streamoff>(pool));
        const int byte = file.get();
        file.seekp(static_cast<std::streamoff>(pool));
        file.put(static_cast<char>(byte ^ 1));
    }
    const Dataset cache = open_cache(source);
    const SampleReader reader(source, {.image_size = 32, .preprocessed = &cache});
    ImageBuffers buffers;
    EXPECT_TRUE(contains(error_of([&] { reader.read(0, buffers); }), "sample 0 (photo-0.jpg"));
    EXPECT_NO_THROW(reader.read(1, buffers));
}

TEST_F(PreprocessedCache, ASampleThatCantBeReadIsNamedAndNothingIsLeft) {
    write_dataset(path("set"), {.classes = {"a"}, .source = "test"}, [](DatasetWriter& writer) {
        const std::vector<std::uint8_t> bytes{1, 2, 3};
        writer.add({.id = 0, .image_id = 0, .width = 5, .height = 5, .label = -1, .bytes = bytes, .boxes = {}},
                   "bad.jpg");
    });
    const Dataset source = Dataset::open(path("set"));
    EXPECT_TRUE(contains(error_of([&] { open_cache(source); }), "bad.jpg"));
    EXPECT_EQ(entries_of_cache(), 0u);
}

// Several processes begin at once; whoever writes is killed at any moment.
TEST_F(PreprocessedCache, AKilledWriterIsFollowedByAnotherThatGoesOn) {
    const Dataset source = write_source(60);
    const fs::path whole = path("whole");
    const std::string expected =
        base::read_text(open_preprocessed_cache(source, whole, {.image_size = 32}, 1).directory() / "shard-00000.h5");
    const auto start_one = [&] {
        const pid_t child = fork();
        if (child == 0) {
            try {
                open_cache(source, 1);
            } catch (...) {
                _exit(1);
            }
            _exit(0);
        }
        return child;
    };
    int kills = 0;
    for (int attempt = 0; attempt < 20 && (!fs::exists(path("cache")) || kills < 3); ++attempt) {
        const pid_t child = start_one();
        std::this_thread::sleep_for(std::chrono::milliseconds(2 + attempt));
        kill(child, SIGKILL);
        int status = 0;
        waitpid(child, &status, 0);
        kills += WIFSIGNALED(status) ? 1 : 0;
    }
    EXPECT_GT(kills, 0);
    const pid_t one = start_one(), other = start_one();
    for (const pid_t child : {one, other}) {
        int status = 0;
        waitpid(child, &status, 0);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    const Dataset cache = open_cache(source, 1);
    EXPECT_EQ(base::read_text(cache.directory() / "shard-00000.h5"), expected);
    EXPECT_EQ(entries_of_cache(), 1u) << "nothing half-done stays beside it";
}

}  // namespace
}  // namespace lockstep::sharding
