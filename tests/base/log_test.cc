#include "base/log.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"
#include "scratch.h"

namespace lockstep::base {
namespace {

template <typename Action>
std::string stderr_of(Action&& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
}

/// What `action` writes to stderr when that is a terminal; little enough to fit the terminal's buffer.
template <typename Action>
std::string terminal_output_of(Action&& action) {
    int reader = -1, terminal = -1;
    EXPECT_EQ(openpty(&reader, &terminal, nullptr, nullptr, nullptr), 0);
    std::fflush(stderr);
    const int before = dup(STDERR_FILENO);
    dup2(terminal, STDERR_FILENO);
    action();
    std::fflush(stderr);
    dup2(before, STDERR_FILENO);
    close(before);
    close(terminal);
    std::string output;
    std::array<char, 4096> buffer;
    // Reading a terminal that nobody holds open any more ends with an error, not with 0.
    for (ssize_t got; (got = read(reader, buffer.data(), buffer.size())) > 0;) {
        output.append(buffer.data(), static_cast<std::size_t>(got));
    }
    close(reader);
    return output;
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines = split(text, '\n');
    EXPECT_EQ(lines.back(), "") << "the last line has no end: " << text;
    lines.pop_back();
    return lines;
}

TEST(Log, WritesALineWithTimeLevelAndTheMessageAsItIs) {
    const std::string output = stderr_of([] {
        log_info("read {} of {0:>50} 100% %v");
        log_warning("careful");
        log_error("failed");
    });
    const std::vector<std::string> lines = lines_of(output);
    ASSERT_EQ(lines.size(), 3u) << output;
    EXPECT_TRUE(contains(lines[0], " info read {} of {0:>50} 100% %v"));
    EXPECT_TRUE(contains(lines[1], " warning careful"));
    EXPECT_TRUE(contains(lines[2], " error failed"));
    std::tm time{};
    EXPECT_NE(strptime(lines[0].c_str(), "%Y-%m-%d %H:%M:%S", &time), nullptr) << lines[0];
}

TEST(Log, KeepsLinesOfThreadsWhole) {
    constexpr int threads = 4, each = 200;
    const std::string output = stderr_of([] {
        std::vector<std::jthread> writers;
        writers.reserve(threads);
        for (int thread = 0; thread < threads; ++thread) {
            writers.emplace_back([thread] {
                for (int i = 0; i < each; ++i) {
                    log_info(str("<", thread, ":", i, ">"));
                }
            });
        }
    });
    const std::vector<std::string> lines = lines_of(output);
    ASSERT_EQ(lines.size(), static_cast<std::size_t>(threads * each));
    for (int thread = 0; thread < threads; ++thread) {
        for (int i = 0; i < each; ++i) {
            const std::string ending = str(" info <", thread, ":", i, ">");
            ASSERT_EQ(
                std::count_if(lines.begin(), lines.end(), [&](const auto& line) { return line.ends_with(ending); }), 1)
                << ending;
        }
    }
}

// The logger is made once in a process, so each launcher needs a process of its own.
TEST(LogDeathTest, NamesRankAndHostUnderALauncherOnly) {
    testing::FLAGS_gtest_death_test_style = "threadsafe";
    forget_launcher();
    const auto log_and_exit = [](const char* rank) {
        if (rank) {
            setenv("OMPI_COMM_WORLD_RANK", rank, 1);
            setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
        }
        log_info("started");
        std::exit(0);
    };
    EXPECT_EXIT(log_and_exit("1"), testing::ExitedWithCode(0), "info \\[rank 1 of 4 on .+\\] started");
    EXPECT_EXIT(log_and_exit("%v"), testing::ExitedWithCode(0), "info \\[rank %v of 4 on .+\\] started");
    EXPECT_EXIT(log_and_exit(nullptr), testing::ExitedWithCode(0), "info started");
}

TEST(Progress, WithoutATerminalWritesPlainLinesRarely) {
    const double before = monotonic_seconds();
    const std::string output = stderr_of([] {
        Progress progress("import", "images", 1000);
        for (unsigned long long done = 1; done <= 1000; ++done) {
            progress.update(done);
        }
        progress.finish();
    });
    const double seconds = monotonic_seconds() - before;
    const std::vector<std::string> lines = lines_of(output);
    EXPECT_LE(lines.size(), 1 + seconds / 10) << output;
    EXPECT_TRUE(contains(lines.back(), "import: 1000 images in "));
    EXPECT_EQ(output.find('\r'), std::string::npos) << output;
}

TEST(Progress, WritesNothingBeforeTheFirstUpdate) {
    EXPECT_EQ(stderr_of([] { const Progress progress("import", "images", 10); }), "");
    EXPECT_EQ(terminal_output_of([] { const Progress progress("import", "images", 10); }), "");
}

TEST(Progress, OnATerminalRewritesOneLine) {
    const std::string output = terminal_output_of([] {
        Progress progress("import", "images", 1000);
        for (unsigned long long done = 1; done <= 1000; ++done) {
            progress.update(done, "photo.jpg");
        }
        progress.finish();
    });
    EXPECT_TRUE(output.starts_with("\r\033[Kimport: 1 of 1000 images, ")) << output;
    EXPECT_TRUE(contains(output, " left, photo.jpg"));
    EXPECT_TRUE(contains(output, "\r\033[Kimport: 1000 images in "));
    EXPECT_TRUE(output.ends_with("/s\r\n")) << output;  // the terminal adds the \r
    EXPECT_EQ(std::count(output.begin(), output.end(), '\n'), 1) << output;
}

TEST(Progress, OnATerminalEndsItsLineWhenAnExceptionEndsTheWork) {
    const std::string output = terminal_output_of([] {
        try {
            Progress progress("import", "images", 0);
            progress.update(3);
            throw Error("no space left");
        } catch (const Error&) {
        }
    });
    EXPECT_TRUE(output.starts_with("\r\033[Kimport: 3 images, ")) << output;
    EXPECT_EQ(output.find("left"), std::string::npos) << "an unknown total has no time left: " << output;
    EXPECT_TRUE(output.ends_with("\r\n")) << output;
}

TEST(Progress, TakesUpdatesFromManyThreads) {
    const std::string output = stderr_of([] {
        Progress progress("import", "images", 400);
        {
            constexpr int threads = 4;
            std::vector<std::jthread> workers;
            workers.reserve(threads);
            for (int thread = 0; thread < threads; ++thread) {
                workers.emplace_back([&progress] {
                    for (int i = 0; i < 100; ++i) {
                        progress.update(400);
                    }
                });
            }
        }
        progress.finish();
    });
    EXPECT_TRUE(contains(output, "import: 400 images in "));
}

}  // namespace
}  // namespace lockstep::base
