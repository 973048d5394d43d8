// What a rank writes of itself, and what others read of it: by the same process, by another one, and after its death.
#include "comm/rank_log.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace lockstep::comm {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<RankStatus> shared_status() {
    void* const memory = mmap(nullptr, sizeof(RankStatus), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return {static_cast<RankStatus*>(memory), [](RankStatus* status) { munmap(status, sizeof(RankStatus)); }};
}

Operation operation(std::uint64_t sequence) {
    return {OperationKind::all_reduce,
            ReduceOp::sum,
            DataType::f32,
            1000 + sequence,
            "bucket " + std::to_string(sequence),
            sequence,
            {}};
}

class RankLogTest : public testing::Test {
  protected:
    RankLogTest() { fs::create_directories(folder); }
    ~RankLogTest() override { fs::remove_all(folder); }

    std::vector<std::string> lines_of_record() const {
        std::ifstream file(folder / "record.txt");
        std::vector<std::string> lines;
        for (std::string line; std::getline(file, line);) {
            lines.push_back(line);
        }
        return lines;
    }

    fs::path folder = fs::temp_directory_path() / ("lockstep-rank-log-" + std::to_string(getpid()));
    std::shared_ptr<RankStatus> status = shared_status();
};

TEST_F(RankLogTest, SaysWhatTheRankDoes) {
    EXPECT_EQ(see(*status, {}).state, RankState::absent);
    RankLog log(status);
    log.enter("training", 12);
    const std::size_t gradients = log.open("gradients"), control = log.open("control");
    log.begin(gradients, operation(5));
    log.begin(control, operation(9));
    log.end(control);

    const SeenRank seen = see(*status, {3, "node1"});
    EXPECT_EQ(seen.state, RankState::runs);
    EXPECT_EQ(seen.process, getpid());
    EXPECT_FALSE(seen.is_gone);
    EXPECT_FALSE(seen.is_stopped);
    EXPECT_EQ(seen.phase, "training");
    EXPECT_EQ(seen.step, 12);
    ASSERT_EQ(seen.operations.size(), 2u);
    EXPECT_EQ(seen.operations[0].purpose, "gradients");
    EXPECT_TRUE(seen.operations[0].is_under_way);
    EXPECT_EQ(seen.operations[0].operation.describe(), operation(5).describe());
    EXPECT_FALSE(seen.operations[1].is_under_way);

    log.failed("no such file", 2, false);
    EXPECT_EQ(see(*status, {}).state, RankState::failed);
    EXPECT_EQ(see(*status, {}).failure, "no such file");
    EXPECT_EQ(see(*status, {}).exit_code, 2);
    log.finished();
    EXPECT_EQ(see(*status, {}).state, RankState::finished);
}

TEST_F(RankLogTest, KeepsSpansOfPhasesAndOperations) {
    RankLog log(status);
    const std::size_t gradients = log.open("gradients");
    log.begin(gradients, operation(1));  // begun before spans are kept, so it has none
    log.start_spans();
    log.end(gradients);
    log.enter("forward", 1);
    log.begin(gradients, operation(2));
    log.enter("backward", 1);
    log.end(gradients);
    log.begin(gradients, operation(3));  // not over when spans are taken
    log.enter("optimizer", 1);
    const std::vector<Span> spans = log.take_spans();
    ASSERT_EQ(spans.size(), 4u);
    EXPECT_EQ(spans[0].track, "phases");
    EXPECT_EQ(spans[0].name, "forward");
    EXPECT_EQ(spans[1].track, "gradients");
    EXPECT_EQ(spans[1].name, operation(2).describe());
    EXPECT_EQ(spans[2].name, "backward");
    EXPECT_EQ(spans[3].name, "optimizer");
    EXPECT_LE(spans[0].begin, spans[1].begin);
    EXPECT_LE(spans[0].end, spans[1].end);
    EXPECT_EQ(spans[0].end, spans[2].begin);
    log.enter("forward", 2);
    EXPECT_TRUE(log.take_spans().empty());
}

TEST_F(RankLogTest, LongTextsAreCut) {
    RankLog log(status);
    log.failed(std::string(5000, 'x'), 1, false);
    EXPECT_EQ(see(*status, {}).failure, std::string(1023, 'x'));
}

TEST_F(RankLogTest, PlacesAreGivenBackAndMoreCommunicatorsThanPlacesAreNoError) {
    RankLog log(status);
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < RankStatus::room_for_operations + 3; ++i) {
        places.push_back(log.open("many"));
        log.begin(places.back(), operation(i + 1));
        log.end(places.back());
    }
    EXPECT_EQ(see(*status, {}).operations.size(), RankStatus::room_for_operations);
    for (const std::size_t place : places) {
        log.close(place);
    }
    EXPECT_TRUE(see(*status, {}).operations.empty());
    const std::size_t again = log.open("again");
    log.begin(again, operation(1));
    ASSERT_EQ(see(*status, {}).operations.size(), 1u);
    EXPECT_EQ(see(*status, {}).operations[0].purpose, "again");
}

TEST_F(RankLogTest, AnOperationIsReadWholeWhileItIsWritten) {
    RankLog log(status);
    const std::size_t place = log.open("gradients");
    log.begin(place, operation(1));
    std::atomic<bool> is_over{false};
    std::jthread writer([&] {
        for (std::uint64_t sequence = 2; !is_over.load(); ++sequence) {
            log.begin(place, operation(sequence));
            log.end(place);
            if (sequence % 16 == 0) {
                std::this_thread::sleep_for(std::chrono::microseconds(100));
            }
        }
    });
    std::uint64_t furthest = 1;
    for (int look = 0; look < 2000; ++look) {
        const SeenRank seen = see(*status, {});
        ASSERT_EQ(seen.operations.size(), 1u);
        const Operation& read = seen.operations[0].operation;
        EXPECT_EQ(read.describe(), operation(read.sequence).describe());
        furthest = std::max(furthest, read.sequence);
    }
    EXPECT_GT(furthest, 1u);
    is_over = true;
}

TEST_F(RankLogTest, TheLastOperationOfAKilledProcessIsReadFromMemoryAndFile) {
    const pid_t child = fork();
    if (child == 0) {
        RankLog log(status);
        log.record_in(folder / "record.txt");
        const std::size_t place = log.open("gradients");
        for (std::uint64_t sequence = 1; sequence < 1000; ++sequence) {
            log.begin(place, operation(sequence));
            log.end(place);
        }
        log.begin(place, operation(1000));
        raise(SIGKILL);
    }
    int result = 0;
    // Killed, but not yet collected: its remains don't count as a process.
    siginfo_t info{};
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
    EXPECT_TRUE(see(*status, {}).is_gone);
    ASSERT_EQ(waitpid(child, &result, 0), child);

    const SeenRank seen = see(*status, {});
    EXPECT_TRUE(seen.is_gone);
    ASSERT_EQ(seen.operations.size(), 1u);
    EXPECT_TRUE(seen.operations[0].is_under_way);
    EXPECT_EQ(seen.operations[0].operation.name, "bucket 1000");

    std::vector<std::string> lines = lines_of_record();
    ASSERT_EQ(lines.size(), FlightRecord::lines);
    std::ranges::sort(lines);
    EXPECT_NE(lines.back().find("waits"), std::string::npos) << lines.back();
    EXPECT_NE(lines.back().find("gradients: all_reduce (sum of f32) \"bucket 1000\""), std::string::npos);
    for (std::size_t i = 0; i < lines.size(); ++i) {
        EXPECT_EQ(std::stoull(lines[i]), 1000 - FlightRecord::lines + i);
        EXPECT_EQ(lines[i].size(), FlightRecord::width - 1);
        EXPECT_EQ(lines[i].find("done ") == std::string::npos, i + 1 == lines.size()) << lines[i];
    }
}

TEST_F(RankLogTest, AProcessThatCantBeLookedAtIsNotGone) {
    RankLog log(status);
    EXPECT_FALSE(has_died(*status));
    // Without a descriptor left, /proc can't be read.
    std::vector<int> taken;
    for (int descriptor = dup(0); descriptor >= 0; descriptor = dup(0)) {
        taken.push_back(descriptor);
        if (taken.size() > 200000) {
            break;
        }
    }
    const bool is_exhausted = errno == EMFILE;
    const bool has_died_then = has_died(*status), is_gone_then = see(*status, {}).is_gone;
    for (const int descriptor : taken) {
        close(descriptor);
    }
    if (!is_exhausted) {
        GTEST_SKIP() << "descriptors without end";
    }
    EXPECT_FALSE(has_died_then);
    EXPECT_FALSE(is_gone_then);
}

TEST_F(RankLogTest, AStoppedProcessIsSeenAsStopped) {
    const pid_t child = fork();
    if (child == 0) {
        const RankLog log(status);
        raise(SIGSTOP);
        std::_Exit(0);
    }
    int result = 0;
    ASSERT_EQ(waitpid(child, &result, WUNTRACED), child);
    EXPECT_TRUE(see(*status, {}).is_stopped);
    EXPECT_FALSE(see(*status, {}).is_gone);
    kill(child, SIGKILL);
    kill(child, SIGCONT);
    ASSERT_EQ(waitpid(child, &result, 0), child);
}

TEST_F(RankLogTest, ALineThatWasWrittenOverIsNotMarkedDone) {
    FlightRecord record(folder / "record.txt");
    const std::uint64_t first = record.begin("the long one");
    for (std::size_t i = 0; i < FlightRecord::lines; ++i) {
        record.begin("another");
    }
    record.end(first);
    for (const std::string& line : lines_of_record()) {
        EXPECT_NE(line.find("waits"), std::string::npos) << line;
    }
}

TEST_F(RankLogTest, ARecordThatCantBeMadeIsAnErrorWithItsPath) {
    RankLog log(status);
    try {
        log.record_in(folder / "no such folder" / "record.txt");
        FAIL();
    } catch (const base::Error& error) {
        EXPECT_NE(std::string(error.what()).find("no such folder/record.txt"), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace lockstep::comm
