#include "base/hdf5.h"

#include <gtest/gtest.h>
#include <sys/mount.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>

#include "base/file.h"
#include "base/random.h"
#include "base/text.h"
#include "scratch.h"

// libhdf5 1.10 loses memory of its own when it gives up on a damaged file; Hdf5Handles below checks ours.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
    return "leak:libhdf5";
}

namespace lockstep::base {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;
using Shape = std::vector<std::uint64_t>;
using Strings = std::vector<std::string>;

template <typename T>
void write(Hdf5File& file, const std::string& name, const std::vector<T>& values) {
    file.write(name, std::span<const T>(values));
}

Bytes bytes_of_file(const fs::path& path, Hdf5Extent extent) {
    const Bytes all = read_bytes(path);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(extent.file_offset);
    return {begin, begin + static_cast<std::ptrdiff_t>(extent.bytes)};
}

template <typename T>
std::vector<T> as(const Bytes& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

/// Runs h5py in the project's virtual environment, and gives what it printed.
std::string h5py(const std::string& action, const fs::path& path) {
    const std::string command =
        str(LOCKSTEP_PYTHON, " ", LOCKSTEP_H5PY_SCRIPT, " ", action, " ", path.string(), " 2>&1");
    FILE* pipe = popen(command.c_str(), "r");
    std::string output;
    std::array<char, 4096> buffer;
    for (std::size_t got; pipe && (got = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
        output.append(buffer.data(), got);
    }
    EXPECT_TRUE(pipe && pclose(pipe) == 0) << command << "\n" << output;
    return output;
}

#define REQUIRE_H5PY()                                                                              \
    if (!fs::exists(LOCKSTEP_PYTHON)) {                                                             \
        GTEST_SKIP() << "no virtual environment at " << LOCKSTEP_PYTHON << "; ./run test makes it"; \
    }

template <typename T>
class Hdf5Numbers : public testing::Test {};
using Types = testing::Types<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
                             std::uint32_t, std::uint64_t, float, double>;
TYPED_TEST_SUITE(Hdf5Numbers, Types);

TYPED_TEST(Hdf5Numbers, ComeBackAsTheyWere) {
    using T = TypeParam;
    const ScratchDirectory scratch;
    const std::vector<T> values = {std::numeric_limits<T>::lowest(), 0,   1,
                                   std::numeric_limits<T>::min(),    100, std::numeric_limits<T>::max()};
    Hdf5File written = Hdf5File::create(scratch / "f.h5");
    written.write("matrix", std::span<const T>(values), {2, 3});
    written.create_dataset<T>("pieces", 6);
    written.write_range("pieces", 4, std::span<const T>(values).subspan(4));
    written.write_range("pieces", 0, std::span<const T>(values).first(4));
    written.close();

    const Hdf5File file = Hdf5File::open_read_only(scratch / "f.h5");
    EXPECT_EQ(file.read<T>("matrix"), values);
    EXPECT_EQ(file.shape("matrix"), (Shape{2, 3}));
    EXPECT_EQ(file.read<T>("pieces", 6), values);
    EXPECT_EQ(file.read_range<T>("pieces", 1, 3), (std::vector<T>{values.begin() + 1, values.begin() + 4}));
    EXPECT_EQ(as<T>(bytes_of_file(scratch / "f.h5", file.extent("matrix"))), values);
}

TYPED_TEST(Hdf5Numbers, AreReadAsAWiderTypeOfTheSameKindOnly) {
    using T = TypeParam;
    const ScratchDirectory scratch;
    {
        Hdf5File file = Hdf5File::create(scratch / "f.h5");
        write<T>(file, "x", {1});
    }
    const Hdf5File file = Hdf5File::open_read_only(scratch / "f.h5");
    const auto expect = [&]<typename U>(U one) {
        const bool same_kind =
            std::is_floating_point_v<T> == std::is_floating_point_v<U> && std::is_signed_v<T> == std::is_signed_v<U>;
        if (same_kind && sizeof(U) >= sizeof(T)) {
            EXPECT_EQ(file.read<U>("x"), std::vector<U>{one});
        } else {
            const std::string message = message_of<Error>([&] { file.read<U>("x"); });
            EXPECT_TRUE(contains(message, (scratch / "f.h5").string() + ": can't read data set 'x': it holds "));
        }
    };
    expect(std::int8_t{1}), expect(std::int16_t{1}), expect(std::int32_t{1}), expect(std::int64_t{1});
    expect(std::uint8_t{1}), expect(std::uint16_t{1}), expect(std::uint32_t{1}), expect(std::uint64_t{1});
    expect(1.0F), expect(1.0);
}

TEST(Hdf5File, TheSameContentIsTheSameFileWheneverItIsWritten) {
    const ScratchDirectory scratch;
    const auto written = [&](const char* name) {
        Hdf5File file = Hdf5File::create(scratch / name);
        write<std::int32_t>(file, "x", {1, 2, 3});
        write<std::int32_t>(file, "group/in/it/y", {4});
        write<std::int32_t>(file, "group/z", {5});
        file.close();
        return read_bytes(scratch / name);
    };
    const auto earlier = written("earlier.h5");
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));  // HDF5 counts its times in seconds
    EXPECT_EQ(written("later.h5"), earlier);
}

TEST(Hdf5File, KeepsScalarsAndEmptyDataSets) {
    const ScratchDirectory scratch;
    {
        Hdf5File file = Hdf5File::create(scratch / "f.h5");
        file.write("scalar", std::span<const float>(std::vector<float>{2.5F}), {});
        file.write("no_boxes", std::span<const float>(), {0, 4});
        file.create_dataset<std::uint8_t>("no_bytes", 0);
        file.write_strings("no_names", {});
    }
    const Hdf5File file = Hdf5File::open_read_only(scratch / "f.h5");
    EXPECT_EQ(file.read<float>("scalar"), std::vector<float>{2.5F});
    EXPECT_EQ(file.shape("scalar"), Shape{});
    EXPECT_EQ(file.read<float>("no_boxes", 0), std::vector<float>{});
    EXPECT_EQ(file.shape("no_boxes"), (Shape{0, 4}));
    EXPECT_EQ(file.extent("no_bytes").bytes, 0u);
    EXPECT_EQ(file.read_range<std::uint8_t>("no_bytes", 0, 0), Bytes{});
    EXPECT_EQ(file.read_strings("no_names"), Strings{});
}

TEST(Hdf5File, KeepsStringsOfAnyLengthUpToTheLongest) {
    const ScratchDirectory scratch;
    const Strings names = {"cat", "", "Straßenbahn", std::string(5000, 'x')};
    {
        Hdf5File file = Hdf5File::create(scratch / "f.h5");
        file.write_strings("names", names);
        file.write_strings("empty", Strings{"", ""});
        file.write_attribute("source", std::string("größe"));
        file.write_attribute("nothing", std::string());
        file.write_attribute("long", std::string(70000, 'x'));
        file.write_attribute("count", std::numeric_limits<std::uint64_t>::max());
    }
    const Hdf5File file = Hdf5File::open_read_only(scratch / "f.h5");
    EXPECT_EQ(file.read_strings("names"), names);
    EXPECT_EQ(file.read_strings("empty"), (Strings{"", ""}));
    EXPECT_EQ(file.read_string_attribute("source"), "größe");
    EXPECT_EQ(file.read_string_attribute("nothing"), "");
    EXPECT_EQ(file.read_string_attribute("long"), std::string(70000, 'x'));
    EXPECT_EQ(file.read_u64_attribute("count"), std::numeric_limits<std::uint64_t>::max());
}

TEST(Hdf5File, RefusesTextsThatItCouldNotGiveBack) {
    const ScratchDirectory scratch;
    Hdf5File file = Hdf5File::create(scratch / "f.h5");
    const std::string null_inside("a\0b", 3);
    EXPECT_TRUE(
        contains(message_of<Error>([&] { file.write_strings("names", Strings{null_inside}); }), "null character"));
    EXPECT_TRUE(contains(message_of<Error>([&] { file.write_attribute("a", null_inside); }), "null character"));
}

TEST(Hdf5File, KnowsWhatItHas) {
    const ScratchDirectory scratch;
    Hdf5File file = Hdf5File::create(scratch / "f.h5");
    write<float>(file, "model/conv/weight", {1, 2});
    EXPECT_TRUE(file.has("model"));
    EXPECT_TRUE(file.has("model/conv/weight"));
    EXPECT_TRUE(file.has("/model/conv/weight"));
    for (const char* missing : {"", "bias", "model/bias", "other/weight", "model/conv/weight/x"}) {
        EXPECT_FALSE(file.has(missing)) << missing;
        EXPECT_TRUE(contains(message_of<Error>([&] { file.read<float>(missing); }), "there is none of this name"));
    }
    EXPECT_TRUE(contains(message_of<Error>([&] { file.read<float>("model"); }), "can't open data set 'model': "));
    EXPECT_TRUE(
        contains(message_of<Error>([&] { file.read_u64_attribute("a"); }), "can't read attribute 'a': there is none"));
}

TEST(Hdf5File, PlacesLargeDataSetsAtPageBoundariesAtOnce) {
    const ScratchDirectory scratch;
    Hdf5File file = Hdf5File::create(scratch / "f.h5");
    std::vector<Hdf5Extent> extents;
    for (int i = 0; i < 5; ++i) {
        const std::string name = str("pool", i);
        file.create_dataset<std::uint8_t>(name, 5000);
        write<float>(file, str("small", i), {1, 2, 3});
        const Hdf5Extent extent = file.extent(name);
        EXPECT_EQ(extent.file_offset % 4096, 0u);
        EXPECT_EQ(extent.bytes, 5000u);
        extents.push_back(extent);
        file.write_range(name, 4990, std::span<const std::uint8_t>(Bytes(10, static_cast<std::uint8_t>(i + 1))));
    }
    file.close();
    for (std::size_t i = 0; i < extents.size(); ++i) {
        const Bytes content = bytes_of_file(scratch / "f.h5", extents[i]);
        EXPECT_EQ(Bytes(content.begin() + 4990, content.end()), Bytes(10, static_cast<std::uint8_t>(i + 1)));
        EXPECT_EQ(Hdf5File::open_read_only(scratch / "f.h5").extent(str("pool", i)).file_offset,
                  extents[i].file_offset);
    }
}

TEST(Hdf5File, RefusesRangesBeyondTheEnd) {
    const ScratchDirectory scratch;
    Hdf5File file = Hdf5File::create(scratch / "f.h5");
    write<float>(file, "x", {1, 2, 3});
    file.write("matrix", std::span<const float>(std::vector<float>(6)), {2, 3});
    constexpr std::uint64_t huge = std::numeric_limits<std::uint64_t>::max();
    struct Range {
        std::uint64_t begin, count;
    };
    for (const Range range : {Range{0, 4}, {3, 1}, {4, 0}, {2, huge}, {huge, 2}}) {
        const std::string message = message_of<Error>([&] { file.read_range<float>("x", range.begin, range.count); });
        EXPECT_TRUE(contains(message, "and it has 3")) << range.begin << " + " << range.count;
        EXPECT_THROW(
            file.write_range("x", range.begin,
                             std::span<const float>(std::vector<float>(std::min<std::uint64_t>(range.count, 5)))),
            InternalError);
    }
    EXPECT_EQ(file.read_range<float>("x", 3, 0), std::vector<float>{});
    EXPECT_TRUE(contains(message_of<Error>([&] { file.read_range<float>("matrix", 0, 1); }), "2 dimensions"));
    EXPECT_TRUE(contains(message_of<Error>([&] { file.read<float>("x", 4); }), "it has 3 elements, expected 4"));
}

TEST(Hdf5File, ChecksItsCallers) {
    const ScratchDirectory scratch;
    Hdf5File file = Hdf5File::create(scratch / "f.h5");
    const std::vector<float> values(6);
    EXPECT_THROW(file.write("x", std::span<const float>(values), {2, 2}), InternalError);
    EXPECT_THROW(file.write("x", std::span<const float>(values), {1ull << 63, 2}), InternalError);
    file.create_dataset<float>("x", 6);
    EXPECT_THROW(file.write_range("x", 0, std::span<const double>(std::vector<double>(6))), InternalError);
    EXPECT_TRUE(contains(message_of<Error>([&] { write(file, "x", values); }), "can't create data set 'x': "));
    file.close();
    EXPECT_THROW(file.has("x"), InternalError);
}

TEST(Hdf5File, SaysWhyItCantBeOpened) {
    const ScratchDirectory scratch;
    const auto message = [&](const std::string& name) {
        return message_of<Error>([&] { Hdf5File::open_read_only(scratch / name); });
    };
    EXPECT_TRUE(contains(message("missing.h5"), (scratch / "missing.h5").string() + ": can't open"));
    EXPECT_TRUE(contains(message("missing.h5"), "No such file or directory"));
    write_whole(scratch / "text.h5", "this is no HDF5 file");
    EXPECT_TRUE(contains(message("text.h5"), "file signature not found"));
    write_whole(scratch / "empty.h5", "");
    EXPECT_TRUE(contains(message("empty.h5"), "can't open as an HDF5 file: "));
    fs::create_directory(scratch / "folder.h5");
    EXPECT_TRUE(contains(message("folder.h5"), "can't open as an HDF5 file: "));

    EXPECT_TRUE(
        contains(message_of<Error>([&] { Hdf5File::create(scratch / "text.h5"); }), "can't create: File exists"));
    EXPECT_EQ(read_text(scratch / "text.h5"), "this is no HDF5 file");
    EXPECT_TRUE(
        contains(message_of<Error>([&] { Hdf5File::create(scratch / "no/f.h5"); }), "No such file or directory"));
}

TEST(Hdf5File, CannotBeWrittenWhenOpenedForReading) {
    const ScratchDirectory scratch;
    Hdf5File::create(scratch / "f.h5").close();
    Hdf5File file = Hdf5File::open_read_only(scratch / "f.h5");
    EXPECT_TRUE(contains(message_of<Error>([&] { write<float>(file, "x", {1}); }), "can't create data set 'x': "));
    EXPECT_TRUE(contains(message_of<Error>([&] { file.write_attribute("a", std::uint64_t{1}); }),
                         "can't create attribute 'a': "));
}

TEST(Hdf5File, PrintsNothingOfItsOwn) {
    const ScratchDirectory scratch;
    testing::internal::CaptureStderr();
    EXPECT_THROW(Hdf5File::open_read_only(scratch / "missing.h5"), Error);
    {
        Hdf5File file = Hdf5File::create(scratch / "f.h5");
        EXPECT_THROW(file.read<float>("x"), Error);
    }
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

// ---- a full disk ----

TEST(Hdf5FullDisk, IsAnErrorOfTheWrite) {
    const ScratchDirectory scratch;
    const std::vector<float> values(100000, 1.5F);
    const FileSizeLimit limit(100000);
    Hdf5File file = Hdf5File::create(scratch / "f.h5");
    const std::string message = message_of<Error>([&] { write(file, "x", values); });
    EXPECT_TRUE(contains(message, (scratch / "f.h5").string() + ": can't write data set 'x': File too large"));
}

TEST(Hdf5FullDisk, IsAnErrorOfASmallWrite) {
    const ScratchDirectory scratch;
    const FileSizeLimit limit(3000);
    Hdf5File file = Hdf5File::create(scratch / "f.h5");
    file.create_dataset<std::uint8_t>("x", 4096);
    const std::string message =
        message_of<Error>([&] { file.write_range("x", 4000, std::span<const std::uint8_t>(Bytes(10))); });
    EXPECT_TRUE(contains(message, "can't write data set 'x': File too large"));
}

TEST(Hdf5FullDisk, IsAnErrorOfCloseWhenOnlyTheDirectoryOfTheFileIsLeftToWrite) {
    const ScratchDirectory scratch;
    const FileSizeLimit limit(2000);
    Hdf5File file = Hdf5File::create(scratch / "f.h5");
    for (int i = 0; i < 100; ++i) {
        file.create_dataset<float>(str("empty", i), 0);
    }
    const std::string message = message_of<Error>([&] { file.close(); });
    EXPECT_TRUE(contains(message, "File too large"));
}

/// A file system of 64 KiB, which ends with the object.
class SmallDisk {
  public:
    explicit SmallDisk(const fs::path& path)
        : path_(path), mounted_(mount("tmpfs", path.c_str(), "tmpfs", 0, "size=64k") == 0) {}
    ~SmallDisk() { umount2(path_.c_str(), MNT_DETACH); }
    SmallDisk(const SmallDisk&) = delete;
    SmallDisk& operator=(const SmallDisk&) = delete;

    bool mounted() const { return mounted_; }
    std::uint64_t free_bytes() const { return fs::space(path_).free; }

  private:
    fs::path path_;
    bool mounted_;
};

TEST(Hdf5FullDisk, IsAnErrorOnARealOneAndItsSpaceComesBack) {
    const ScratchDirectory scratch;
    const SmallDisk disk(scratch.path());
    if (!disk.mounted()) {
        GTEST_SKIP() << "mounting a small file system needs root: " << strerror(errno);
    }
    for (const bool fails_in_close : {false, true}) {
        const std::string message = message_of<Error>([&] {
            Hdf5File file = Hdf5File::create(scratch / "f.h5");
            if (fails_in_close) {
                write_whole(scratch / "other", std::string(disk.free_bytes() - 4096, 'x'));
                for (int i = 0; i < 200; ++i) {
                    file.create_dataset<float>(str("empty", i), 0);
                }
            } else {
                write(file, "x", std::vector<float>(100000, 1.5F));
            }
            file.close();
        });
        EXPECT_TRUE(contains(message, "No space left on device"));
        fs::remove(scratch / "f.h5");
        fs::remove(scratch / "other");
        EXPECT_EQ(disk.free_bytes(), 65536u) << "something still holds the file open";
    }
}

TEST(Hdf5FullDiskDeathTest, LetsTheProgramEndAsItWants) {
    const ScratchDirectory scratch;
    const auto fill_disk_and_exit = [&] {
        const FileSizeLimit limit(2000);
        try {
            Hdf5File file = Hdf5File::create(scratch / "f.h5");
            write(file, "x", std::vector<float>(100000, 1.5F));
        } catch (const Error&) {
            std::exit(3);
        }
    };
    EXPECT_EXIT(fill_disk_and_exit(), testing::ExitedWithCode(3), "^$");
}

// ---- untrusted files ----

constexpr std::uint64_t tampered_count = 10007;
constexpr std::uint64_t tampered_bytes = 8 * tampered_count;

/// A file of HDF5's oldest format, which has no checksums that tampering would have to mend.
void write_victim(const fs::path& path) {
    const std::lock_guard lock(hdf5_mutex());
    const Hdf5Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), H5Fclose);
    const Hdf5Handle early(H5Pcreate(H5P_DATASET_CREATE), H5Pclose);
    H5Pset_alloc_time(early.get(), H5D_ALLOC_TIME_EARLY);
    const auto create = [&](const char* name, hid_t type, hsize_t count) {
        const Hdf5Handle space(H5Screate_simple(1, &count, nullptr), H5Sclose);
        return Hdf5Handle(H5Dcreate2(file.get(), name, type, space.get(), H5P_DEFAULT, early.get(), H5P_DEFAULT),
                          H5Dclose);
    };
    create("room", H5T_NATIVE_UINT8, 300000);  // so that the offset of the next is a number like no other in the file
    const Hdf5Handle dataset = create("numbers", H5T_NATIVE_UINT64, tampered_count);
    const std::vector<std::uint64_t> numbers(tampered_count, 5);
    ASSERT_GE(H5Dwrite(dataset.get(), H5T_NATIVE_UINT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, numbers.data()), 0);
}

/// Replaces every eight bytes of the file that hold one of the numbers; says how many.
int replace_numbers(const fs::path& path, const std::vector<std::pair<std::uint64_t, std::uint64_t>>& replacements) {
    Bytes bytes = read_bytes(path);
    int replaced = 0;
    for (std::size_t i = 0; i + 8 <= bytes.size(); ++i) {
        for (const auto& [from, to] : replacements) {
            if (std::memcmp(&bytes[i], &from, 8) == 0) {
                std::memcpy(&bytes[i], &to, 8);
                ++replaced;
            }
        }
    }
    write_whole(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    return replaced;
}

template <typename Action>
void expect_refused(const fs::path& path, Action&& action) {
    const std::string message = message_of<Error>([&] {
        const Hdf5File file = Hdf5File::open_read_only(path);
        action(file);
    });
    EXPECT_TRUE(contains(message, path.string() + ": can't "));
}

void expect_numbers_refused(const fs::path& path) {
    expect_refused(path, [](const Hdf5File& file) { file.read<std::uint64_t>("numbers"); });
    expect_refused(path, [](const Hdf5File& file) { file.read_range<std::uint64_t>("numbers", 0, 1); });
    expect_refused(path, [](const Hdf5File& file) { file.extent("numbers"); });
}

TEST(Hdf5Untrusted, AnImpossibleSizeIsAnErrorAndNotAnAllocation) {
    const ScratchDirectory scratch;
    for (const std::uint64_t count : {1ul << 60, 1ul << 61, ~0ul, 1ul << 40, 2 * tampered_count}) {
        write_victim(scratch / "f.h5");
        // The count and its maximum; then the bytes that the layout states too.
        ASSERT_EQ(replace_numbers(scratch / "f.h5", {{tampered_count, count}}), 2);
        expect_numbers_refused(scratch / "f.h5");
        ASSERT_EQ(replace_numbers(scratch / "f.h5", {{tampered_bytes, count * 8}}), 1);
        expect_numbers_refused(scratch / "f.h5");
    }
}

TEST(Hdf5Untrusted, AnOffsetOutsideTheFileIsAnError) {
    const ScratchDirectory scratch;
    for (const std::uint64_t offset : {1ul << 50, ~0ul - 1, ~0ul - 4096, ~0ul, 340000ul}) {
        write_victim(scratch / "f.h5");
        const std::uint64_t before = Hdf5File::open_read_only(scratch / "f.h5").extent("numbers").file_offset;
        ASSERT_EQ(replace_numbers(scratch / "f.h5", {{before, offset}}), 1);
        expect_numbers_refused(scratch / "f.h5");
    }
}

TEST(Hdf5Untrusted, AFileCutShortIsAnError) {
    const ScratchDirectory scratch;
    write_victim(scratch / "f.h5");
    const std::uint64_t whole = fs::file_size(scratch / "f.h5");
    for (const std::uint64_t size : {whole - 1, whole / 2, std::uint64_t{2000}, std::uint64_t{100}}) {
        fs::resize_file(scratch / "f.h5", size);
        expect_numbers_refused(scratch / "f.h5");
        // Also where the header was made to say that nothing is missing.
        replace_numbers(scratch / "f.h5", {{whole, size}});
        expect_numbers_refused(scratch / "f.h5");
        write_victim(scratch / "f.h5");
    }
}

TEST(Hdf5Untrusted, DamagedHeadersGiveErrorsOrValuesOnly) {
    const ScratchDirectory scratch;
    {
        Hdf5File file = Hdf5File::create(scratch / "good.h5");
        write<float>(file, "boxes", {1, 2, 3, 4});
        file.write_strings("names", Strings{"cat", "dog"});
        file.write_attribute("source", std::string("a test"));
        file.write_attribute("count", std::uint64_t{4});
        file.close();
    }
    const Bytes good = read_bytes(scratch / "good.h5");
    int refused = 0;
    constexpr int rounds = 2000;
    for (int round = 0; round < rounds; ++round) {
        Random random(1, RandomPurpose::test, 0, static_cast<std::uint64_t>(round));
        Bytes bytes = good;
        for (std::uint64_t changes = 1 + random.below(4); changes > 0; --changes) {
            bytes[random.below(bytes.size())] = static_cast<std::uint8_t>(random.next_u32());
        }
        const fs::path path = scratch / "bad.h5";
        fs::remove(path);
        std::ofstream(path, std::ios::binary)
            .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
        try {
            const Hdf5File file = Hdf5File::open_read_only(path);
            file.read<float>("boxes");
            file.read_strings("names");
            file.read_string_attribute("source");
            file.read_u64_attribute("count");
            file.extent("boxes");
        } catch (const Error& error) {
            ++refused;
        }
    }
    EXPECT_GT(refused, rounds / 20) << "the damage must have met something";
}

// ---- h5py ----

TEST(Hdf5AndH5py, H5pyReadsWhatIsWritten) {
    REQUIRE_H5PY();
    const ScratchDirectory scratch;
    {
        Hdf5File file = Hdf5File::create(scratch / "f.h5");
        file.write("boxes", std::span<const float>(std::vector<float>{0.5F, 1, 2, 3, 4, 5, 6, 7}), {2, 4});
        write<std::int64_t>(file, "group/ids", {-1, std::numeric_limits<std::int64_t>::max()});
        write<double>(file, "losses", {0.1});
        file.create_dataset<std::uint8_t>("pool", 3);
        file.write_range("pool", 0, std::span<const std::uint8_t>(Bytes{7, 8, 255}));
        file.write_strings("names", Strings{"cat", "", "größe"});
        file.write("none", std::span<const std::uint32_t>(), {0, 4});
        file.write_attribute("count", std::uint64_t{12});
        file.write_attribute("source", std::string("trees"));
        file.close();
    }
    EXPECT_EQ(h5py("show", scratch / "f.h5"),
              "attribute count 12\n"
              "attribute source trees\n"
              "boxes float32 (2, 4) chunks None values [0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]\n"
              "group/ids int64 (2,) chunks None values [-1, 9223372036854775807]\n"
              "losses float64 (1,) chunks None values [0.1]\n"
              "names |S7 (3,) chunks None values ['cat', '', 'größe']\n"
              "none uint32 (0, 4) chunks None values []\n"
              "pool uint8 (3,) chunks None values [7, 8, 255]\n");
}

TEST(Hdf5AndH5py, WhatH5pyWritesIsReadWhereItIsPlain) {
    REQUIRE_H5PY();
    const ScratchDirectory scratch;
    h5py("write_foreign", scratch.path());
    const Hdf5File file = Hdf5File::open_read_only(scratch / "plain.h5");
    EXPECT_EQ(file.read<std::uint32_t>("numbers"), (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(file.read<std::int32_t>("big_endian"), (std::vector<std::int32_t>{1, -2, 3}));
    EXPECT_EQ(file.read_strings("names"), (Strings{"cat", "", "horse"}));
    EXPECT_EQ(file.read_u64_attribute("count"), 9u);
    EXPECT_EQ(file.read_string_attribute("source"), "h5py");
}

TEST(Hdf5AndH5py, OtherTypesAreRefusedByName) {
    REQUIRE_H5PY();
    const ScratchDirectory scratch;
    h5py("write_foreign", scratch.path());
    const Hdf5File file = Hdf5File::open_read_only(scratch / "other_types.h5");
    const auto message = [](auto&& action) { return message_of<Error>(action); };
    EXPECT_TRUE(
        contains(message([&] { file.read_strings("variable_text"); }), "it holds variable-length string values"));
    EXPECT_TRUE(contains(message([&] { file.read<float>("compound"); }), "it holds compound or other type values"));
    EXPECT_TRUE(contains(message([&] { file.read<std::int8_t>("boolean"); }), "can't read data set 'boolean'"));
    EXPECT_TRUE(contains(message([&] { file.read<float>("nothing"); }), "it has no elements and no shape"));
    EXPECT_TRUE(
        contains(message([&] { file.read_string_attribute("variable_text"); }), "it is a variable-length string"));
    EXPECT_TRUE(contains(message([&] { file.read_u64_attribute("signed"); }), "it is a 8-byte signed integer"));
    EXPECT_TRUE(contains(message([&] { file.read_u64_attribute("array"); }), "it is not a single value"));
    EXPECT_TRUE(contains(message([&] { file.read_string_attribute("signed"); }), "expected a fixed-length string"));
}

TEST(Hdf5AndH5py, OtherLayoutsAreRefusedByName) {
    REQUIRE_H5PY();
    const ScratchDirectory scratch;
    h5py("write_foreign", scratch.path());
    const Hdf5File file = Hdf5File::open_read_only(scratch / "other_layouts.h5");
    const auto message = [&](const std::string& name) {
        std::string of_read = message_of<Error>([&] { file.read<std::int32_t>(name); });
        EXPECT_EQ(message_of<Error>([&] { file.extent(name); }), of_read);
        return of_read;
    };
    EXPECT_TRUE(contains(message("chunked"), "only contiguous data sets can be read"));
    EXPECT_TRUE(contains(message("compressed"), "only contiguous data sets can be read"));
    EXPECT_TRUE(contains(message_of<Error>([&] { file.read<std::uint32_t>("virtual"); }), "only contiguous data sets"));
    EXPECT_TRUE(contains(message("never_written"), "it was declared but never written"));
    EXPECT_TRUE(contains(message("enormous"), "it was declared but never written"));
    EXPECT_TRUE(contains(message("external"), "its content is stored in another file"));
    EXPECT_TRUE(contains(message("link_outside"), "can't open data set 'link_outside': "));
    EXPECT_TRUE(contains(message("dangling"), "can't open data set 'dangling': "));
    EXPECT_TRUE(contains(message("group"), "can't open data set 'group': "));
}

// ---- handles ----

/// Files, and their groups, data sets, attributes and types, that are open in this process.
ssize_t open_objects() {
    const std::lock_guard lock(hdf5_mutex());
    return H5Fget_obj_count(static_cast<hid_t>(H5F_OBJ_ALL), H5F_OBJ_ALL);
}

TEST(Hdf5Handles, AreAllClosedAlsoAfterErrors) {
    const ScratchDirectory scratch;
    const ssize_t before = open_objects();
    {
        Hdf5File file = Hdf5File::create(scratch / "f.h5");
        write<float>(file, "group/x", {1, 2, 3});
        EXPECT_THROW(write<float>(file, "group/x", {1}), Error);
        file.write_strings("names", Strings{"cat"});
        file.write_attribute("source", std::string("a test"));
        EXPECT_EQ(open_objects(), before + 1) << "more than the file";
        Hdf5File moved = std::move(file);
        moved.close();
        EXPECT_EQ(open_objects(), before);
    }
    {
        Hdf5File file = Hdf5File::open_read_only(scratch / "f.h5");
        file = Hdf5File::open_read_only(scratch / "f.h5");
        file.read_range<float>("group/x", 0, 2);
        EXPECT_THROW(file.read<float>("names"), Error);
        EXPECT_THROW(file.read<float>("group"), Error);
        EXPECT_THROW(file.read_range<float>("group/x", 0, 4), Error);
        EXPECT_THROW(file.read_u64_attribute("source"), Error);
        EXPECT_EQ(file.read_strings("names"), Strings{"cat"});
        EXPECT_EQ(file.read_string_attribute("source"), "a test");
        EXPECT_EQ(open_objects(), before + 1) << "more than the file";
    }
    EXPECT_EQ(open_objects(), before);
}

// ---- threads ----

TEST(Hdf5Threads, ReadAndWriteAtTheSameTime) {
    const ScratchDirectory scratch;
    std::vector<std::uint32_t> values(1000);
    std::iota(values.begin(), values.end(), 0);
    {
        Hdf5File file = Hdf5File::create(scratch / "shared.h5");
        write(file, "x", values);
    }
    const Hdf5File shared = Hdf5File::open_read_only(scratch / "shared.h5");
    std::array<int, 4> right{};
    {
        std::vector<std::jthread> threads;
        for (std::uint32_t thread = 0; thread < right.size(); ++thread) {
            threads.emplace_back([&, thread] {
                const fs::path own = scratch / str(thread, ".h5");
                for (std::uint32_t i = 0; i < 50; ++i) {
                    right[thread] += shared.read_range<std::uint32_t>("x", i, 2) == std::vector{i, i + 1};
                    fs::remove(own);
                    Hdf5File file = Hdf5File::create(own);
                    write(file, "y", std::vector{thread, i});
                    file.close();
                    right[thread] += Hdf5File::open_read_only(own).read<std::uint32_t>("y") == std::vector{thread, i};
                    try {
                        shared.read<float>("x");
                    } catch (const Error&) {
                        ++right[thread];
                    }
                }
            });
        }
    }
    EXPECT_EQ(right, (std::array{150, 150, 150, 150}));
}

}  // namespace
}  // namespace lockstep::base
