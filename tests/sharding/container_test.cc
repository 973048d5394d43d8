// Bytes of the HDF5 container itself are changed, not of the tables in it (fuzz/shard_fuzz.cc does those). libhdf5
// parses them before our code can look, and has faults of its own; so each changed data set is opened in a child
// process, and a fault is laid at the door of whoever was running.

#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <map>
#include <vector>

#include "base/file.h"
#include "base/hdf5.h"
#include "base/random.h"
#include "scratch.h"
#include "sharding/checksums.h"
#include "sharding/dataset_format.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"
#include "sharding/inspect.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

enum Outcome : int { read_through = 0, refused = 10, fault_in_hdf5 = 20, fault_in_ours = 21 };

/// In the child, on a fault, an abort or the alarm: whose code is nearest to the top of the stack.
void attribute_fault(int) {
    constexpr int most_frames = 64;
    void* frames[most_frames];
    const int count = backtrace(frames, most_frames);
    Dl_info own;
    dladdr(reinterpret_cast<void*>(&attribute_fault), &own);
    for (int i = 1; i < count; ++i) {
        Dl_info info;
        if (dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) {
            continue;
        }
        if (std::string_view(info.dli_fname).find("libhdf5") != std::string_view::npos) {
            _exit(fault_in_hdf5);
        }
        if (info.dli_fbase == own.dli_fbase) {
            _exit(fault_in_ours);
        }
    }
    _exit(fault_in_ours);
}

[[noreturn]] void read_everything(const fs::path& directory, int message_pipe) {
    void* warm[1];
    backtrace(warm, 1);  // loads what it needs before it is needed in a handler
    for (const int signal : {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGALRM}) {
        std::signal(signal, attribute_fault);
    }
    constexpr unsigned seconds_until_it_hangs = 60;
    alarm(seconds_until_it_hangs);
    try {
        for (const ReadPath read : {ReadPath::mmap, ReadPath::hdf5}) {
            const Dataset set = Dataset::open(directory, read);
            describe_json(set);
            verify_all(set, 1);
        }
        _exit(read_through);
    } catch (const base::Error& error) {
        const std::string message = error.what();
        const auto written = write(message_pipe, message.data(), std::min<std::size_t>(message.size(), 4000));
        _exit(written > 0 ? refused : fault_in_ours);
    } catch (...) {
        _exit(fault_in_ours);
    }
}

class ContainerTest : public test::Scratch {
  protected:
    ContainerTest() {
        write_dataset(set_, {.classes = {"a", "b"}, .source = "test"}, [](DatasetWriter& writer) {
            for (std::uint8_t id = 0; id < 5; ++id) {
                Image image = Image::blank(8, 6);
                std::ranges::fill(image.pixels, id);
                const std::vector<std::uint8_t> bytes = encode_png(image);
                const Box box{.x1 = 1,
                              .y1 = 1,
                              .x2 = 5,
                              .y2 = 5,
                              .area = 16,
                              .class_index = id % 2,
                              .flags = 0,
                              .annotation_id = 7};
                writer.add(
                    {.id = 0, .image_id = id, .width = 8, .height = 6, .label = -1, .bytes = bytes, .boxes = {&box, 1}},
                    "image");
            }
            writer.drop_box("no_area");
        });
        fs::remove(set_ / format::checksum_file);  // it would find every change at once
    }

    /// Bytes of the file that no table takes.
    static std::vector<std::size_t> bytes_of_the_container(const fs::path& path) {
        const base::Hdf5File file = base::Hdf5File::open_read_only(path);
        std::vector<bool> is_table(fs::file_size(path));
        for (const char* table : {"pool", "offsets", "crc32c", "width", "height", "image_id", "box_offsets", "boxes",
                                  "name_offsets", "names", "classes", "shard_begin"}) {
            if (file.has(table)) {
                const base::Hdf5Extent extent = file.extent(table);
                std::fill_n(is_table.begin() + static_cast<std::ptrdiff_t>(extent.file_offset), extent.bytes, true);
            }
        }
        std::vector<std::size_t> places;
        for (std::size_t at = 0; at < is_table.size(); ++at) {
            if (!is_table[at]) {
                places.push_back(at);
            }
        }
        return places;
    }

    /// How the child ended, and what it said.
    std::pair<int, std::string> open_in_child() const {
        int ends[2];
        EXPECT_EQ(pipe(ends), 0);
        std::cout.flush();
        const pid_t child = fork();
        if (child == 0) {
            read_everything(set_, ends[1]);
        }
        close(ends[1]);
        std::string message(4000, '\0');
        const ssize_t got = read(ends[0], message.data(), message.size());
        message.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        close(ends[0]);
        int status = 0;
        EXPECT_EQ(waitpid(child, &status, 0), child);
        return {WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status), message};
    }

    const fs::path set_ = path("set");
};

TEST_F(ContainerTest, ChangedBytesAreReadRefusedOrLibhdf5sFault) {
    EXPECT_EQ(open_in_child().first, read_through);
    const char* const wanted = std::getenv("LOCKSTEP_CONTAINER_MUTATIONS");
    const std::uint64_t mutations = wanted == nullptr ? 300 : std::stoull(wanted);
    std::map<int, int> outcomes;
    for (const char* name : {"index.h5", "shard-00000.h5"}) {
        const std::vector<std::uint8_t> whole = base::read_bytes(set_ / name);
        const std::vector<std::size_t> places = bytes_of_the_container(set_ / name);
        // Most of a file's container is padding; what is not zero has a meaning.
        std::vector<std::size_t> used;
        for (const std::size_t at : places) {
            if (whole[at] != 0) {
                used.push_back(at);
            }
        }
        ASSERT_GT(used.size(), 100u);
        for (std::uint64_t i = 0; i < mutations; ++i) {
            base::Random random(1, base::RandomPurpose::test, 0, i);
            std::vector<std::uint8_t> changed = whole;
            std::string changes;
            for (std::uint64_t count = 1 + random.below(2); count > 0; --count) {
                const auto& from = random.coin(0.7) ? used : places;
                const std::size_t at = from[random.below(from.size())];
                constexpr std::uint8_t telling[] = {0, 1, 0x7F, 0x80, 0xFF};
                changed[at] =
                    random.coin(0.5) ? telling[random.below(5)] : static_cast<std::uint8_t>(random.below(256));
                changes += base::str(" [", at, "]=", int{changed[at]});
            }
            write(base::str("set/", name), std::span(std::as_const(changed)));
            const auto [outcome, message] = open_in_child();
            ++outcomes[outcome];
            EXPECT_TRUE(outcome == read_through || outcome == refused || outcome == fault_in_hdf5)
                << name << changes << ": ended with " << outcome;
            if (outcome == refused) {
                EXPECT_TRUE(test::contains(message, "set")) << name << changes << ": the message names no file";
            }
        }
        write(base::str("set/", name), std::span(whole));
    }
    std::cout << outcomes[read_through] << " read through, " << outcomes[refused] << " refused, "
              << outcomes[fault_in_hdf5] << " faults in libhdf5\n";
    EXPECT_GT(outcomes[refused], 0);
    EXPECT_GT(outcomes[read_through], 0);
}

}  // namespace
}  // namespace lockstep::sharding
