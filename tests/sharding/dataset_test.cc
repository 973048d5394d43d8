// Reading and writing of data sets, checked against h5py and against tampered files.
#include "sharding/dataset.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "base/file.h"
#include "base/hash.h"
#include "base/hdf5.h"
#include "sharding/dataset_format.h"
#include "sharding/dataset_writer.h"
#include "tests/sharding/scratch.h"

// libhdf5 1.10 loses memory of its own when it gives up on a damaged file.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
    return "leak:libhdf5";
}

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using DatasetTest = test::Scratch;

std::vector<std::uint8_t> some_bytes(std::size_t size, std::uint8_t start) {
    std::vector<std::uint8_t> bytes(size);
    std::iota(bytes.begin(), bytes.end(), start);
    return bytes;
}

Box some_box(float x1, float y1, float x2, float y2, std::int32_t class_index, std::int64_t id) {
    return {.x1 = x1,
            .y1 = y1,
            .x2 = x2,
            .y2 = y2,
            .area = (x2 - x1) * (y2 - y1),
            .class_index = class_index,
            .flags = 0,
            .annotation_id = id};
}

const DatasetDescription detection{.task = Task::detection,
                                   .encoding = Encoding::encoded,
                                   .classes = {"tree", "bär"},
                                   .source = "a test",
                                   .max_shard_bytes = 1000};

struct Expected {
    std::vector<std::uint8_t> bytes;
    std::vector<Box> boxes;
};

/// Five images of 400 bytes: two to a shard of at most 1000 bytes.
std::vector<Expected> five_images() {
    std::vector<Expected> images(5);
    for (std::uint8_t i = 0; i < 5; ++i) {
        images[i].bytes = some_bytes(400, i);
    }
    images[1].boxes = {some_box(0, 0, 64, 48, 1, 7), some_box(1.5f, 2, 3, 4.25f, 0, 8)};
    images[1].boxes[0].flags = box_crowd;
    images[1].boxes[0].area = 99;
    images[4].boxes = {some_box(10, 10, 20, 20, 0, 9)};
    return images;
}

void write_five(const fs::path& directory, const DatasetDescription& description = detection) {
    write_dataset(directory, description, [](DatasetWriter& writer) {
        std::int64_t id = 100;
        for (const Expected& image : five_images()) {
            const Sample sample{.id = 0,
                                .image_id = id,
                                .width = 64,
                                .height = 48,
                                .label = -1,
                                .bytes = image.bytes,
                                .boxes = image.boxes};
            writer.add(sample, base::str("photo ", id++, ".jpg"));
        }
        writer.drop_image("unreadable", 2);
        writer.drop_box("inverted");
        writer.drop_box("inverted", 3);
    });
}

/// Stores the pool of a shard in compressed chunks, as h5repack might.
void compress_pool(const fs::path& shard) {
    const std::vector<std::uint8_t> pool = base::Hdf5File::open_read_only(shard).read<std::uint8_t>("pool");
    const std::lock_guard library(base::hdf5_mutex());
    const base::Hdf5Handle file(H5Fopen(shard.c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
    ASSERT_GE(H5Ldelete(file.get(), "pool", H5P_DEFAULT), 0);
    const hsize_t size = pool.size(), chunk = 128;
    const base::Hdf5Handle space(H5Screate_simple(1, &size, nullptr), H5Sclose);
    const base::Hdf5Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_chunk(creation.get(), 1, &chunk);
    H5Pset_deflate(creation.get(), 1);
    const base::Hdf5Handle chunked(
        H5Dcreate2(file.get(), "pool", H5T_NATIVE_UINT8, space.get(), H5P_DEFAULT, creation.get(), H5P_DEFAULT),
        H5Dclose);
    ASSERT_GE(H5Dwrite(chunked.get(), H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, pool.data()), 0);
}

TEST_F(DatasetTest, BothReadPathsGiveTheSameBytes) {
    write_five(path("set"));
    const Dataset mapped = Dataset::open(path("set"));
    const Dataset library = Dataset::open(path("set"), ReadPath::hdf5);
    EXPECT_EQ(mapped.read_path(), ReadPath::mmap);
    EXPECT_EQ(library.read_path(), ReadPath::hdf5);
    EXPECT_EQ(library.compute_content_hash(), mapped.content_hash());
    std::vector<std::uint8_t> room, untouched;
    for (const std::uint64_t id : {3, 0, 4, 1, 2}) {
        const Sample a = mapped.read(id, untouched);
        const Sample b = library.read(id, room);
        EXPECT_EQ(std::vector(a.bytes.begin(), a.bytes.end()), five_images()[id].bytes);
        EXPECT_EQ(std::vector(b.bytes.begin(), b.bytes.end()), five_images()[id].bytes);
        EXPECT_EQ(b.bytes.data(), room.data());
        EXPECT_EQ(a.bytes.data(), mapped.sample(id).bytes.data());
        EXPECT_EQ(b.boxes.size(), five_images()[id].boxes.size());
        EXPECT_TRUE(library.sample(id).bytes.empty());
        library.verify(id);
        library.prefetch(id);
    }
    EXPECT_TRUE(untouched.empty());
}

TEST_F(DatasetTest, AChunkedPoolIsReadThroughTheLibraryOrRefusedWithTheRemedy) {
    write_five(path("set"));
    compress_pool(path("set") / "shard-00001.h5");
    const std::string message = error_of([&] { Dataset::open(path("set")); });
    EXPECT_TRUE(contains(message, "shard-00001.h5: table 'pool' is chunked"));
    EXPECT_TRUE(contains(message, "data.read = \"hdf5\""));
    EXPECT_TRUE(contains(message, "h5repack -l pool:CONTI"));
    const Dataset set = Dataset::open(path("set"), ReadPath::hdf5);
    std::vector<std::uint8_t> room;
    for (std::uint64_t id = 0; id < 5; ++id) {
        const Sample sample = set.read(id, room);
        EXPECT_EQ(std::vector(sample.bytes.begin(), sample.bytes.end()), five_images()[id].bytes) << id;
        set.verify(id);
    }
}

TEST_F(DatasetTest, TheLibraryPathChecksChecksumsToo) {
    write_five(path("set"));
    std::vector<std::uint8_t> bytes = base::read_bytes(path("set") / "shard-00000.h5");
    const std::vector<std::uint8_t> stored = five_images()[1].bytes;
    const auto found = std::search(bytes.begin(), bytes.end(), stored.begin(), stored.end());
    ASSERT_NE(found, bytes.end());
    *(found + 9) ^= 4;
    base::write_whole(path("set") / "shard-00000.h5", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    const Dataset set = Dataset::open(path("set"), ReadPath::hdf5);
    set.verify(0);
    EXPECT_TRUE(contains(error_of([&] { set.verify(1); }), "sample 1 (photo 101.jpg"));
}

TEST_F(DatasetTest, GivesBackWhatWasWritten) {
    write_five(path("set"));
    const Dataset set = Dataset::open(path("set"));
    EXPECT_EQ(set.size(), 5u);
    EXPECT_EQ(set.shard_count(), 3u);
    EXPECT_EQ(set.task(), Task::detection);
    EXPECT_EQ(set.encoding(), Encoding::encoded);
    EXPECT_EQ(set.classes(), (std::vector<std::string>{"tree", "bär"}));
    EXPECT_EQ(set.source(), "a test");
    EXPECT_EQ(set.box_count(), 3u);
    EXPECT_EQ(set.max_boxes_per_image(), 2u);
    EXPECT_EQ(set.dropped_images(), (DropCounts{{"unreadable", 2}}));
    EXPECT_EQ(set.dropped_boxes(), (DropCounts{{"inverted", 4}}));
    EXPECT_EQ(set.content_hash(), set.compute_content_hash());
    EXPECT_GT(set.bytes_on_disk(), 5u * 400u);

    const std::vector<Expected> images = five_images();
    for (std::uint64_t id = 0; id < 5; ++id) {
        const Sample sample = set.sample(id);
        EXPECT_EQ(sample.id, id);
        EXPECT_EQ(sample.image_id, static_cast<std::int64_t>(100 + id));
        EXPECT_EQ(sample.width, 64u);
        EXPECT_EQ(sample.height, 48u);
        EXPECT_EQ(sample.label, -1);
        EXPECT_EQ(std::vector(sample.bytes.begin(), sample.bytes.end()), images[id].bytes) << id;
        EXPECT_EQ(set.file_name(id), base::str("photo ", 100 + id, ".jpg"));
        ASSERT_EQ(sample.boxes.size(), images[id].boxes.size()) << id;
        for (std::size_t b = 0; b < sample.boxes.size(); ++b) {
            const Box& got = sample.boxes[b];
            const Box& want = images[id].boxes[b];
            EXPECT_EQ((std::array{got.x1, got.y1, got.x2, got.y2, got.area}),
                      (std::array{want.x1, want.y1, want.x2, want.y2, want.area}));
            EXPECT_EQ(got.class_index, want.class_index);
            EXPECT_EQ(got.flags, want.flags);
            EXPECT_EQ(got.annotation_id, want.annotation_id);
        }
        EXPECT_NO_THROW(set.verify(id));
        EXPECT_NO_THROW(set.prefetch(id));
    }
}

TEST_F(DatasetTest, ContentHashKnowsContentAndNotShardBoundaries) {
    write_five(path("small shards"));
    DatasetDescription other = detection;
    other.max_shard_bytes = 1 << 20;
    other.source = "another source";
    write_five(path("one shard"), other);
    other.classes[0] = "bush";
    write_five(path("other class"), other);
    const Dataset a = Dataset::open(path("small shards"));
    const Dataset b = Dataset::open(path("one shard"));
    const Dataset c = Dataset::open(path("other class"));
    EXPECT_EQ(b.shard_count(), 1u);
    EXPECT_EQ(a.content_hash(), b.content_hash());
    EXPECT_NE(b.content_hash(), c.content_hash());
}

TEST_F(DatasetTest, EqualContentGivesEqualFiles) {
    write_five(path("a"));
    write_five(path("b"));
    for (const char* file : {"index.h5", "shard-00000.h5", "shard-00001.h5", "shard-00002.h5"}) {
        EXPECT_EQ(base::read_bytes(path("a") / file), base::read_bytes(path("b") / file)) << file;
    }
}

TEST_F(DatasetTest, H5pyReadsTheFormat) {
    write_five(path("set"));
    const std::string command = base::str(LOCKSTEP_PYTHON, " ", LOCKSTEP_H5PY_SCRIPT, " ", path("set").string());
    std::FILE* pipe = popen(command.c_str(), "r");
    ASSERT_NE(pipe, nullptr);
    std::string output;
    for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
        output += static_cast<char>(c);
    }
    ASSERT_EQ(pclose(pipe), 0) << command;
    std::string expected = "detection encoded tree,bär unreadable=2 inverted=4\n";
    const std::vector<Expected> images = five_images();
    for (std::size_t i = 0; i < images.size(); ++i) {
        const unsigned sum = std::accumulate(images[i].bytes.begin(), images[i].bytes.end(), 0u);
        expected += base::str(100 + i, " photo ", 100 + i, ".jpg 64x48 ", images[i].bytes.size(), " ", sum, " ",
                              base::crc32c(images[i].bytes));
        for (const Box& box : images[i].boxes) {
            expected += base::str(" [", box.x1, " ", box.y1, " ", box.x2, " ", box.y2, " ", box.area, " ",
                                  box.class_index, " ", unsigned{box.flags}, " ", box.annotation_id, "]");
        }
        expected += "\n";
    }
    EXPECT_EQ(output, expected);
}

TEST_F(DatasetTest, RawPixelsAndLabels) {
    const DatasetDescription description{
        .task = Task::classification, .encoding = Encoding::raw, .classes = {"a", "b", "c"}, .source = "a test"};
    write_dataset(path("set"), description, [](DatasetWriter& writer) {
        for (std::uint8_t i = 0; i < 3; ++i) {
            const std::vector<std::uint8_t> pixels = some_bytes(4 * 2 * 3, i);
            writer.add({.id = 0, .image_id = i, .width = 4, .height = 2, .label = i, .bytes = pixels, .boxes = {}}, "");
        }
    });
    const Dataset set = Dataset::open(path("set"));
    EXPECT_EQ(set.task(), Task::classification);
    EXPECT_EQ(set.encoding(), Encoding::raw);
    EXPECT_EQ(set.box_count(), 0u);
    EXPECT_EQ(set.sample(2).label, 2);
    EXPECT_EQ(set.sample(2).bytes[0], 2);
    EXPECT_EQ(set.file_name(1), "");
}

// ---- whole or nothing ----

TEST_F(DatasetTest, NothingIsLeftWhenFillingFails) {
    const std::string message = error_of([&] {
        write_dataset(path("set"), detection, [](DatasetWriter& writer) {
            const std::vector<std::uint8_t> bytes = some_bytes(2000, 0);
            writer.add({.id = 0, .image_id = 0, .width = 8, .height = 8, .label = -1, .bytes = bytes, .boxes = {}},
                       "a");
            writer.add({.id = 0, .image_id = 0, .width = 8, .height = 8, .label = -1, .bytes = bytes, .boxes = {}},
                       "b");
            throw base::Error("the source broke");
        });
    });
    EXPECT_EQ(message, "the source broke");
    EXPECT_EQ(entries(), 0u);
}

TEST_F(DatasetTest, RefusesAnEmptySet) {
    const std::string message = error_of([&] {
        write_dataset(path("set"), detection, [](DatasetWriter& writer) { writer.drop_image("unreadable", 3); });
    });
    EXPECT_TRUE(contains(message, "3 x unreadable"));
    EXPECT_EQ(entries(), 0u);
}

TEST_F(DatasetTest, RefusesAnExistingDirectory) {
    fs::create_directory(path("set"));
    EXPECT_TRUE(contains(error_of([&] { write_five(path("set")); }), "exists already"));
}

TEST_F(DatasetTest, MakesTheParentFolders) {
    write_five(path("a/b/set"));
    EXPECT_EQ(Dataset::open(path("a/b/set")).size(), 5u);
}

TEST_F(DatasetTest, NoSpaceLeftIsAnErrorAndLeavesNothing) {
    // Each limit stops another write: the spool of a pool, a shard (its tables come after the pool), the index.
    for (const rlim_t limit : {rlim_t{300}, rlim_t{1500}, rlim_t{5000}}) {
        const pid_t child = fork();
        if (child == 0) {
            std::signal(SIGXFSZ, SIG_IGN);
            const rlimit bytes{limit, limit};
            setrlimit(RLIMIT_FSIZE, &bytes);
            int code = 1;
            try {
                write_five(path("set"));
            } catch (const base::Error& error) {
                code = contains(error.what(), "set.partial-") && contains(error.what(), "File too large") ? 0 : 2;
                if (code != 0) {
                    std::fputs(error.what(), stderr);
                }
            }
            _exit(code);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status)) << "limit " << limit << ", signal " << WTERMSIG(status);
        EXPECT_EQ(WEXITSTATUS(status), 0) << "limit " << limit;
        EXPECT_EQ(entries(), 0u) << "limit " << limit;
    }
}

// ---- untrusted files ----

class TamperedTest : public DatasetTest {
  protected:
    TamperedTest() { write_five(set_); }

    /// Overwrites element `index` of a table where it lies in the file.
    template <typename T>
    void patch(const char* file, const char* table, std::size_t index, T value, std::size_t stride = sizeof(T),
               std::size_t member = 0) {
        const base::Hdf5Extent extent = base::Hdf5File::open_read_only(set_ / file).extent(table);
        ASSERT_LE((index + 1) * stride, extent.bytes);
        std::fstream stream(set_ / file, std::ios::in | std::ios::out | std::ios::binary);
        stream.seekp(static_cast<std::streamoff>(extent.file_offset + index * stride + member));
        stream.write(reinterpret_cast<const char*>(&value), sizeof(value));
        ASSERT_TRUE(stream.good());
    }

    /// Opening must fail with a message that has all of these.
    void expect_refused(std::initializer_list<std::string_view> parts) {
        const std::string message = error_of([&] { Dataset::open(set_); });
        for (const std::string_view part : parts) {
            EXPECT_TRUE(contains(message, part));
        }
    }

    const fs::path set_ = path("set");
    static constexpr std::uint64_t huge = std::uint64_t{1} << 62;
};

TEST_F(TamperedTest, SampleOffsets) {
    patch<std::uint64_t>("shard-00001.h5", "offsets", 1, huge);
    expect_refused({"shard-00001.h5", "'offsets'", "record 2", base::str(huge)});
}

TEST_F(TamperedTest, SampleOffsetsThatWrapAround) {
    patch<std::uint64_t>("shard-00000.h5", "offsets", 1, ~std::uint64_t{0});
    expect_refused({"shard-00000.h5", "'offsets'", "record 2"});
}

TEST_F(TamperedTest, LastOffsetBeyondThePool) {
    patch<std::uint64_t>("shard-00000.h5", "offsets", 2, 801);
    expect_refused({"shard-00000.h5", "'offsets'", "record 2", "is 801", "800"});
}

TEST_F(TamperedTest, FirstOffset) {
    patch<std::uint64_t>("shard-00000.h5", "offsets", 0, 1);
    expect_refused({"shard-00000.h5", "'offsets'", "record 0", "expected 0"});
}

TEST_F(TamperedTest, EmptySample) {
    patch<std::uint64_t>("shard-00000.h5", "offsets", 1, 0);
    expect_refused({"shard-00000.h5", "'offsets'", "record 1"});
}

TEST_F(TamperedTest, BoxOffsets) {
    patch<std::uint64_t>("index.h5", "box_offsets", 2, 4);
    expect_refused({"index.h5", "'box_offsets'", "record 3", "is 2, after 4"});
}

TEST_F(TamperedTest, NameOffsets) {
    patch<std::uint64_t>("index.h5", "name_offsets", 5, huge);
    expect_refused({"index.h5", "'name_offsets'", "record 5"});
}

TEST_F(TamperedTest, ShardBoundaries) {
    patch<std::uint64_t>("index.h5", "shard_begin", 1, 3);
    expect_refused({"shard-00000.h5", "'offsets'", "3 records, expected 4"});
}

TEST_F(TamperedTest, ImageSizes) {
    patch<std::uint32_t>("index.h5", "width", 3, 0);
    expect_refused({"index.h5", "'width'", "record 3", "0 x 48"});
    patch<std::uint32_t>("index.h5", "width", 3, static_cast<std::uint32_t>(-64));
    expect_refused({"index.h5", "'width'", "record 3", "4294967232 x 48"});
}

TEST_F(TamperedTest, Boxes) {
    constexpr std::size_t x1 = offsetof(Box, x1), x2 = offsetof(Box, x2), area = offsetof(Box, area);
    const auto refused = [&](std::size_t member, auto value, auto good) {
        patch("index.h5", "boxes", 1, value, sizeof(Box), member);
        expect_refused({"index.h5", "'boxes'", "record 1", "sample 1"});
        patch("index.h5", "boxes", 1, good, sizeof(Box), member);
    };
    refused(x1, std::numeric_limits<float>::quiet_NaN(), 1.5f);
    refused(x1, -0.5f, 1.5f);
    refused(x1, 3.0f, 1.5f);   // no width
    refused(x2, 64.5f, 3.0f);  // beyond the right edge
    refused(x2, std::numeric_limits<float>::infinity(), 3.0f);
    refused(area, -1.0f, 3.375f);
    refused(offsetof(Box, class_index), std::int32_t{2}, std::int32_t{0});
    refused(offsetof(Box, class_index), std::int32_t{-1}, std::int32_t{0});
    refused(offsetof(Box, flags), std::uint8_t{4}, std::uint8_t{0});
    EXPECT_NO_THROW(Dataset::open(set_));
}

TEST_F(TamperedTest, StoredBytesAreFoundByVerify) {
    patch<std::uint8_t>("shard-00001.h5", "pool", 401, 0x77);
    const Dataset set = Dataset::open(set_);
    EXPECT_NO_THROW(set.verify(2));
    const std::string message = error_of([&] { set.verify(3); });
    EXPECT_TRUE(contains(message, "shard-00001.h5"));
    EXPECT_TRUE(contains(message, "sample 3 (photo 103.jpg"));
    EXPECT_TRUE(contains(message, base::str(std::hex, base::crc32c(five_images()[3].bytes))));
}

TEST_F(TamperedTest, PlausibleBoxIsFoundByTheContentHash) {
    patch<float>("index.h5", "boxes", 0, 1.0f, sizeof(Box));
    const Dataset set = Dataset::open(set_);
    EXPECT_NE(set.content_hash(), set.compute_content_hash());
}

TEST_F(TamperedTest, AnotherFormatVersion) {
    {
        const std::lock_guard lock(base::hdf5_mutex());
        const base::Hdf5Handle file(H5Fopen((set_ / "index.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        const base::Hdf5Handle attribute(H5Aopen(file.get(), "format_version", H5P_DEFAULT), H5Aclose);
        const std::uint64_t version = 2;
        ASSERT_GE(H5Awrite(attribute.get(), H5T_NATIVE_UINT64, &version), 0);
    }
    expect_refused({"index.h5", "format version 2", "version 1"});
}

TEST_F(TamperedTest, TableOfAnotherType) {
    {
        const std::lock_guard lock(base::hdf5_mutex());
        const base::Hdf5Handle file(H5Fopen((set_ / "index.h5").c_str(), H5F_ACC_RDWR, H5P_DEFAULT), H5Fclose);
        ASSERT_GE(H5Ldelete(file.get(), "box_offsets", H5P_DEFAULT), 0);
        const hsize_t count = 6;
        const base::Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
        const base::Hdf5Handle table(
            H5Dcreate2(file.get(), "box_offsets", H5T_IEEE_F64LE, space.get(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
            H5Dclose);
        ASSERT_GE(table.get(), 0);
    }
    expect_refused({"index.h5", "'box_offsets'"});
}

TEST_F(TamperedTest, MissingAndForeignFiles) {
    EXPECT_TRUE(contains(error_of([&] { Dataset::open(path("nowhere")); }), "there is no such directory"));
    fs::create_directory(path("empty"));
    EXPECT_TRUE(contains(error_of([&] { Dataset::open(path("empty")); }), "has no index.h5"));
    write("text/index.h5", "this is no HDF5 file");
    EXPECT_TRUE(contains(error_of([&] { Dataset::open(path("text")); }), "text/index.h5"));
    fs::remove(set_ / "shard-00001.h5");
    expect_refused({"shard-00001.h5"});
}

TEST_F(TamperedTest, EveryTruncationOfAFileIsRefused) {
    for (const char* name : {"index.h5", "shard-00002.h5"}) {
        const std::vector<std::uint8_t> whole = base::read_bytes(set_ / name);
        for (std::size_t keep = 0; keep < whole.size(); keep += whole.size() / 23 + 1) {
            write(base::str("set/", name), std::span(whole).first(keep));
            EXPECT_TRUE(contains(error_of([&] { Dataset::open(set_); }), name)) << keep << " of " << whole.size();
        }
        write(base::str("set/", name), std::span(whole));
    }
    EXPECT_NO_THROW(Dataset::open(set_));
}

// Any byte may be wrong: opening and reading everything gives an error or values within bounds, never a crash.
TEST_F(TamperedTest, DamagedIndexNeverEscapesTheFile) {
    const std::vector<std::uint8_t> whole = base::read_bytes(set_ / "index.h5");
    for (std::size_t position = 0; position < whole.size(); position += 7) {
        std::vector<std::uint8_t> damaged = whole;
        damaged[position] ^= 0xFF;
        write("set/index.h5", std::span(std::as_const(damaged)));
        try {
            const Dataset set = Dataset::open(set_);
            for (std::uint64_t id = 0; id < set.size(); ++id) {
                for (const Box& box : set.sample(id).boxes) {
                    ASSERT_LT(static_cast<std::size_t>(box.class_index), set.classes().size());
                }
                set.file_name(id);
                set.verify(id);
            }
        } catch (const base::Error&) {
        }
    }
}

}  // namespace
}  // namespace lockstep::sharding
