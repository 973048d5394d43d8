#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/text.h"
#include "scratch.h"

namespace {

/// What the library asked of the disk, in order: "sync NAME" and "rename FROM TO" without directories.
std::vector<std::string>* disk_calls = nullptr;

std::string last_name(const std::string& path) {
    return std::filesystem::path(path).filename().string();
}

}  // namespace

// These stand before the C library's.
extern "C" int fsync(int fd) {
    if (disk_calls) {
        std::array<char, 4096> path{};
        const std::string link = "/proc/self/fd/" + std::to_string(fd);
        EXPECT_GT(readlink(link.c_str(), path.data(), path.size() - 1), 0);
        disk_calls->push_back("sync " + last_name(path.data()));
    }
    return static_cast<int>(syscall(SYS_fsync, fd));
}

extern "C" int rename(const char* from, const char* to) noexcept {
    if (disk_calls) {
        disk_calls->push_back("rename " + last_name(from) + " " + last_name(to));
    }
    return static_cast<int>(syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to));
}

namespace lockstep::base {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

std::string partial(const std::string& name) {
    return str(name, ".partial-", getpid());
}

template <typename Action>
Names disk_calls_of(Action&& action) {
    Names calls;
    disk_calls = &calls;
    action();
    disk_calls = nullptr;
    return calls;
}

TEST(Read, GivesTheWholeContent) {
    const ScratchDirectory scratch;
    const std::string content("a\0b\r\n\xff", 6);
    std::ofstream(scratch / "f", std::ios::binary) << content;
    EXPECT_EQ(read_text(scratch / "f"), content);
    EXPECT_EQ(read_bytes(scratch / "f"), (std::vector<std::uint8_t>{'a', 0, 'b', '\r', '\n', 0xff}));
    std::ofstream(scratch / "empty") << "";
    EXPECT_EQ(read_text(scratch / "empty"), "");
}

TEST(Read, TakesFilesWhoseSizeIsNotKnownBefore) {
    EXPECT_TRUE(contains(read_text("/proc/self/status"), str("Pid:\t", getpid(), "\n")));
}

TEST(Read, NamesThePathAndTheReason) {
    const ScratchDirectory scratch;
    const std::string missing = message_of<Error>([&] { read_text(scratch / "missing.txt"); });
    EXPECT_TRUE(contains(missing, (scratch / "missing.txt").string() + ": No such file or directory"));
    EXPECT_TRUE(contains(message_of<Error>([&] { read_bytes(scratch.path()); }), "Is a directory"));
}

TEST(WriteWhole, CreatesAndReplaces) {
    const ScratchDirectory scratch;
    write_whole(scratch / "f", "old");
    EXPECT_EQ(read_text(scratch / "f"), "old");
    write_whole(scratch / "f", std::string("new\0one", 7));
    EXPECT_EQ(read_text(scratch / "f"), std::string("new\0one", 7));
    EXPECT_EQ(scratch.names(), Names{"f"});
}

TEST(WriteWhole, GivesTheUsualPermissions) {
    const ScratchDirectory scratch;
    const mode_t mask = umask(027);
    write_whole(scratch / "f", "x");
    umask(mask);
    struct stat status {};
    ASSERT_EQ(stat((scratch / "f").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(WriteWhole, SyncsTheFileThenRenamesThenSyncsTheDirectory) {
    const ScratchDirectory scratch;
    const Names calls = disk_calls_of([&] { write_whole(scratch / "f", "x"); });
    EXPECT_EQ(calls, (Names{"sync " + partial("f"), "rename " + partial("f") + " f",
                            "sync " + scratch.path().filename().string()}));
}

TEST(WriteWhole, KeepsTheOldContentAndNothingElseWhenTheDiskIsFull) {
    const ScratchDirectory scratch;
    write_whole(scratch / "f", "old");
    std::string message;
    {
        const FileSizeLimit limit(1000);
        message = message_of<Error>([&] { write_whole(scratch / "f", std::string(1001, 'x')); });
    }
    EXPECT_TRUE(contains(message, "can't write " + (scratch / "f").string()));
    EXPECT_TRUE(contains(message, "File too large"));
    EXPECT_EQ(read_text(scratch / "f"), "old");
    EXPECT_EQ(scratch.names(), Names{"f"});
}

TEST(WriteWhole, LeavesNothingWhereTheTargetIsADirectory) {
    const ScratchDirectory scratch;
    fs::create_directory(scratch / "d");
    EXPECT_TRUE(contains(message_of<Error>([&] { write_whole(scratch / "d", "x"); }), "Is a directory"));
    EXPECT_EQ(scratch.names(), Names{"d"});
}

TEST(WriteWhole, NamesAMissingDirectory) {
    const ScratchDirectory scratch;
    const std::string message = message_of<Error>([&] { write_whole(scratch / "no/f", "x"); });
    EXPECT_TRUE(contains(message, (scratch / "no/f").string()));
    EXPECT_TRUE(contains(message, "No such file or directory"));
}

TEST(WriteWhole, IsNotStoppedByWhatAKilledProcessLeft) {
    const ScratchDirectory scratch;
    std::ofstream(scratch / partial("f")) << "someone's";
    write_whole(scratch / "f", "x");
    EXPECT_EQ(read_text(scratch / "f"), "x");
    EXPECT_EQ(read_text(scratch / partial("f")), "someone's");
}

TEST(WriteWhole, IsWholeForReadersWhileThreadsReplaceIt) {
    const ScratchDirectory scratch;
    write_whole(scratch / "f", std::string(50000, 'a'));
    {
        std::vector<std::jthread> writers;
        for (const char letter : {'b', 'c'}) {
            writers.emplace_back([&, letter] {
                for (int i = 0; i < 20; ++i) {
                    write_whole(scratch / "f", std::string(50000, letter));
                }
            });
        }
        for (int i = 0; i < 100; ++i) {
            const std::string content = read_text(scratch / "f");
            ASSERT_EQ(content, std::string(50000, content.at(0)));
        }
    }
    EXPECT_EQ(scratch.names(), Names{"f"});
}

TEST(WriteDirectoryWhole, AppearsWithAllItsFiles) {
    const ScratchDirectory scratch;
    write_directory_whole(scratch / "d", [&](const fs::path& aside) {
        EXPECT_FALSE(fs::exists(scratch / "d"));
        EXPECT_EQ(aside, scratch / partial("d"));
        fs::create_directory(aside / "sub");
        std::ofstream(aside / "a") << "1";
        std::ofstream(aside / "sub" / "b") << "2";
    });
    EXPECT_EQ(read_text(scratch / "d/a"), "1");
    EXPECT_EQ(read_text(scratch / "d/sub/b"), "2");
    EXPECT_EQ(scratch.names(), Names{"d"});
}

TEST(WriteDirectoryWhole, SyncsEverythingThenRenamesThenSyncsTheParent) {
    const ScratchDirectory scratch;
    Names calls = disk_calls_of([&] {
        write_directory_whole(scratch / "d", [](const fs::path& aside) {
            fs::create_directory(aside / "sub");
            std::ofstream(aside / "sub" / "b") << "2";
        });
    });
    ASSERT_EQ(calls.size(), 5u) << join(calls, ", ");
    std::sort(calls.begin(), calls.begin() + 2);  // the order inside is the file system's
    EXPECT_EQ(calls, (Names{"sync b", "sync sub", "sync " + partial("d"), "rename " + partial("d") + " d",
                            "sync " + scratch.path().filename().string()}));
}

TEST(WriteDirectoryWhole, LeavesNothingOnAnException) {
    const ScratchDirectory scratch;
    const std::string message = message_of<Error>([&] {
        write_directory_whole(scratch / "d", [](const fs::path& aside) {
            fs::create_directory(aside / "sub");
            std::ofstream(aside / "sub" / "b") << "2";
            throw Error("image 3 is broken");
        });
    });
    EXPECT_EQ(message, "image 3 is broken");
    EXPECT_EQ(scratch.names(), Names{});
}

TEST(WriteDirectoryWhole, RefusesWhatExists) {
    const ScratchDirectory scratch;
    fs::create_directory(scratch / "empty");
    std::ofstream(scratch / "file") << "";
    fs::create_symlink("nowhere", scratch / "link");
    for (const char* name : {"empty", "file", "link"}) {
        bool called = false;
        const std::string message =
            message_of<Error>([&] { write_directory_whole(scratch / name, [&](const fs::path&) { called = true; }); });
        EXPECT_TRUE(contains(message, (scratch / name).string() + " exists already"));
        EXPECT_FALSE(called) << "work would be done in vain";
    }
}

TEST(WriteDirectoryWhole, NamesAMissingParent) {
    const ScratchDirectory scratch;
    const std::string message =
        message_of<Error>([&] { write_directory_whole(scratch / "no/d", [](const fs::path&) {}); });
    EXPECT_TRUE(contains(message, "No such file or directory"));
}

TEST(WriteDirectoryWhole, TakesATrailingSlash) {
    const ScratchDirectory scratch;
    write_directory_whole(scratch / "d/", [](const fs::path& aside) { std::ofstream(aside / "a") << "1"; });
    EXPECT_EQ(read_text(scratch / "d/a"), "1");
    EXPECT_EQ(scratch.names(), Names{"d"});
}

TEST(RelativePaths, AreInTheWorkingDirectory) {
    const ScratchDirectory scratch;
    const fs::path before = fs::current_path();
    fs::current_path(scratch.path());
    write_whole("f", "x");
    write_directory_whole("d", [](const fs::path&) {});
    require_free_space("not/there/yet", 1, "a test");
    fs::current_path(before);
    EXPECT_EQ(read_text(scratch / "f"), "x");
    EXPECT_TRUE(fs::is_directory(scratch / "d"));
}

TEST(RequireFreeSpace, NamesBothFigures) {
    const ScratchDirectory scratch;
    require_free_space(scratch / "new/run", 1, "the run");
    const std::string message =
        message_of<Error>([&] { require_free_space(scratch / "new/run", 1ull << 62, "the data set"); });
    EXPECT_TRUE(contains(message, "the data set needs 4.0 EiB at " + (scratch / "new/run").string()));
    EXPECT_TRUE(contains(message, "free there"));
}

TEST(SyncToDisk, NamesAMissingFile) {
    EXPECT_TRUE(contains(message_of<Error>([] { sync_to_disk("/nowhere/f"); }), "/nowhere/f: No such file"));
}

TEST(MappedFile, ShowsTheContentForItsLife) {
    const ScratchDirectory scratch;
    write_whole(scratch / "f", std::string(10000, 'x') + "end");
    MappedFile first(scratch / "f");
    ASSERT_EQ(first.bytes().size(), 10003u);
    EXPECT_EQ(first.bytes()[10000], 'e');

    const std::uint8_t* address = first.bytes().data();
    MappedFile moved(std::move(first));
    EXPECT_EQ(moved.bytes().data(), address);
    write_whole(scratch / "g", "other");
    MappedFile assigned(scratch / "g");
    assigned = std::move(moved);
    EXPECT_EQ(assigned.bytes().data(), address);
    fs::remove(scratch / "f");
    EXPECT_EQ(assigned.bytes()[10002], 'd');
}

TEST(MappedFile, TakesHintsForAnyRange) {
    const ScratchDirectory scratch;
    write_whole(scratch / "f", std::string(10000, 'x'));
    const MappedFile file(scratch / "f");
    file.will_need(0, 10000);
    file.will_need(4097, 1);
    file.will_need(9999, ~std::size_t{0});
    file.will_need(~std::size_t{0}, 5);
    EXPECT_EQ(file.bytes()[9999], 'x');
}

TEST(MappedFile, IsEmptyForAnEmptyFile) {
    const ScratchDirectory scratch;
    write_whole(scratch / "f", "");
    const MappedFile file(scratch / "f");
    EXPECT_TRUE(file.bytes().empty());
    file.will_need(0, 1);
}

TEST(MappedFile, RefusesWhatIsNoFile) {
    const ScratchDirectory scratch;
    EXPECT_TRUE(contains(message_of<Error>([&] { MappedFile{scratch / "missing"}; }), "No such file"));
    EXPECT_TRUE(contains(message_of<Error>([&] { MappedFile{scratch.path()}; }), "not a regular file"));
}

}  // namespace
}  // namespace lockstep::base
