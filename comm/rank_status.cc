#include "comm/rank_status.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/resources.h"
#include "base/text.h"

namespace lockstep::comm {

namespace {

struct ProcessLook {
    char state = unknown;  ///< of proc(5): 'R', 'S', 'D', 'Z', 'T', 't', 'X'
    std::uint64_t start = 0;

    static constexpr char unknown = '?';
    static constexpr char absent = '-';
};

ProcessLook look_at(std::int64_t process) {
    std::ifstream file(base::str("/proc/", process, "/stat"));
    std::string text;
    if (!std::getline(file, text)) {
        // No file of /proc may also mean no descriptor left, or none allowed: a job must not end for that.
        const bool is_absent = kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH;
        return {is_absent ? ProcessLook::absent : ProcessLook::unknown, 0};
    }
    // "PID (NAME) STATE ...": the name may hold blanks and brackets; field 22 is the start.
    const std::size_t end_of_name = text.rfind(')');
    if (end_of_name == std::string::npos) {
        return {};
    }
    std::istringstream fields(text.substr(end_of_name + 1));
    ProcessLook look;
    fields >> look.state;
    std::string skipped;
    for (int field = 4; field < 22; ++field) {
        fields >> skipped;
    }
    fields >> look.start;
    return look;
}

bool are_remains(const ProcessLook& look) {
    return look.state == 'Z' || look.state == 'X' || look.state == ProcessLook::absent;
}

SeenOperation copy_of(const SharedOperation& shared) {
    SeenOperation seen;
    const std::uint32_t packed = shared.kind_op_type.load(std::memory_order_acquire);
    seen.operation.kind = static_cast<OperationKind>(packed & 0xff);
    seen.operation.op = static_cast<ReduceOp>((packed >> 8) & 0xff);
    seen.operation.type = static_cast<DataType>((packed >> 16) & 0xff);
    seen.operation.count = shared.count.load(std::memory_order_acquire);
    seen.operation.sequence = shared.sequence.load(std::memory_order_acquire);
    seen.operation.name = shared.name.read();
    seen.purpose = shared.purpose.read();
    seen.is_under_way = shared.is_under_way.load(std::memory_order_acquire) != 0;
    seen.seconds = base::monotonic_seconds() - shared.since.load(std::memory_order_acquire);
    return seen;
}

/// Waits for a writer in the middle, which may have lost its core. One that was killed there never ends, so that the
/// last attempt counts, whatever it gives.
SeenOperation whole_copy_of(const SharedOperation& shared) {
    SeenOperation seen;
    constexpr int attempts = 100;
    constexpr std::chrono::milliseconds pause{1};
    for (int attempt = 0; attempt < attempts; ++attempt) {
        const std::uint32_t before = shared.version.load(std::memory_order_acquire);
        seen = copy_of(shared);
        if (before % 2 == 0 && shared.version.load(std::memory_order_acquire) == before) {
            break;
        }
        std::this_thread::sleep_for(pause);
    }
    return seen;
}

bool is_gone(const RankStatus& status, const ProcessLook& look) {
    const std::uint64_t start = status.process_start.load(std::memory_order_acquire);
    const bool is_another = look.state != ProcessLook::unknown && start != 0 && look.start != start;
    return are_remains(look) || is_another;
}

}  // namespace

bool has_died(const RankStatus& status) {
    const RankState state = status.state.load(std::memory_order_acquire);
    return state != RankState::absent && state != RankState::finished &&
           is_gone(status, look_at(status.process.load(std::memory_order_acquire)));
}

std::uint64_t start_of_process(std::int64_t process) {
    const ProcessLook look = look_at(process);
    return are_remains(look) ? 0 : look.start;
}

std::string SeenOperation::describe() const {
    if (operation.sequence == 0) {
        return base::str(purpose, ": nothing yet");
    }
    return base::str(purpose, ": ", operation.describe(), is_under_way ? ", waiting for " : ", done, begun ",
                     base::human_duration(seconds), is_under_way ? "" : " ago");
}

SeenRank see(const RankStatus& status, Member member) {
    SeenRank seen;
    seen.member = std::move(member);
    seen.state = status.state.load(std::memory_order_acquire);
    seen.process = status.process.load(std::memory_order_acquire);
    seen.exit_code = status.exit_code.load(std::memory_order_acquire);
    seen.failed_at = status.failed_at.load(std::memory_order_acquire);
    seen.failure = status.failure.read();
    seen.phase = status.phase.read();
    seen.step = status.step.load(std::memory_order_acquire);
    if (seen.state != RankState::absent && seen.state != RankState::finished) {
        const ProcessLook look = look_at(seen.process);
        seen.is_gone = is_gone(status, look);
        seen.is_stopped = !seen.is_gone && (look.state == 'T' || look.state == 't');
    }
    for (const SharedOperation& shared : status.operations) {
        if (shared.is_used.load(std::memory_order_acquire) != 0) {
            seen.operations.push_back(whole_copy_of(shared));
        }
    }
    return seen;
}

}  // namespace lockstep::comm
