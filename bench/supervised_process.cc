#include "bench/supervised_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/resources.h"

namespace lockstep::bench {
namespace {

using base::Error;
using base::str;

constexpr std::chrono::milliseconds poll_interval{50};
/// After a TERM, for a training to end by itself.
constexpr double grace_seconds = 5;
constexpr std::uint64_t disk_block = 512;  ///< unit of ru_inblock

class Descriptor {
  public:
    explicit Descriptor(int value = -1) : value_(value) {}
    ~Descriptor() { close(); }
    Descriptor(Descriptor&& other) noexcept : value_(std::exchange(other.value_, -1)) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        std::swap(value_, other.value_);
        return *this;
    }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    int get() const { return value_; }
    void close() {
        if (value_ >= 0) {
            ::close(std::exchange(value_, -1));
        }
    }

  private:
    int value_;
};

struct Pipe {
    Descriptor read, write;
};

Pipe make_pipe() {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) {
        throw Error(str("can't make a pipe: ", std::strerror(errno)));
    }
    return {Descriptor(ends[0]), Descriptor(ends[1])};
}

/// What the guardian tells this process at the end.
struct Message {
    int start_error;  ///< errno of exec, or 0
    int status;       ///< as wait gives it
    int timed_out;
    double cpu_seconds;
    std::uint64_t disk_bytes_read;
};

struct ProcessEntry {
    pid_t parent = 0;
    char state = 'Z';
};

ProcessEntry read_entry(pid_t pid) {
    std::ifstream file(str("/proc/", pid, "/stat"));
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const auto name_end = text.rfind(')');  // the name may hold anything
    ProcessEntry entry;
    if (name_end != std::string::npos) {
        std::istringstream rest(text.substr(name_end + 1));
        rest >> entry.state >> entry.parent;
    }
    return entry;
}

void signal_all_below(pid_t root, int signal) {
    for (const pid_t pid : process_tree(root)) {
        if (pid != root) {
            kill(pid, signal);
        }
    }
}

/// Reaps whatever ended; true when nothing is left. `status` is the command's own once it has ended.
bool reap(pid_t command, int& status, bool& command_ended) {
    for (;;) {
        int ended_status = 0;
        const pid_t ended = waitpid(-1, &ended_status, WNOHANG);
        if (ended == 0) {
            return false;
        }
        if (ended < 0) {
            if (errno == EINTR) {
                continue;
            }
            return true;  // no child is left
        }
        if (ended == command) {
            status = ended_status;
            command_ended = true;
        }
    }
}

/// The guardian's whole life, in the forked process.
[[noreturn]] void guard(const ProcessRequest& request, const Descriptor& lifeline, const Descriptor& result) {
    // Its own group, so that a Ctrl-C on a terminal ends the runner first, and orphans of the command become its own.
    setpgid(0, 0);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    Message message{};
    Pipe started = make_pipe();
    const pid_t command = fork();
    if (command == 0) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        const int output = open(request.output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
        const int nothing = open("/dev/null", O_RDONLY);
        dup2(nothing, STDIN_FILENO);
        dup2(output, STDOUT_FILENO);
        dup2(output, STDERR_FILENO);
        for (const auto& [name, value] : request.environment) {
            setenv(name.c_str(), value.c_str(), 1);
        }
        std::vector<char*> words;
        for (const std::string& word : request.words) {
            words.push_back(const_cast<char*>(word.c_str()));
        }
        words.push_back(nullptr);
        execvp(words[0], words.data());
        const int reason = errno;
        [[maybe_unused]] const auto written = write(started.write.get(), &reason, sizeof(reason));
        _exit(127);
    }
    started.write.close();
    if (command < 0) {
        message.start_error = errno;
    } else if (read(started.read.get(), &message.start_error, sizeof(message.start_error)) <= 0) {
        message.start_error = 0;
    }
    const double begin = base::monotonic_seconds();
    double end_by_force = 0;
    bool command_ended = command < 0;
    while (!reap(command, message.status, command_ended)) {
        const double now = base::monotonic_seconds();
        pollfd watched{lifeline.get(), POLLIN, 0};
        const bool runner_died = poll(&watched, 1, static_cast<int>(poll_interval.count() / 2)) > 0;
        if (end_by_force == 0 && request.timeout_seconds > 0 && now - begin > request.timeout_seconds) {
            message.timed_out = 1;
            signal_all_below(getpid(), SIGTERM);
            end_by_force = now + grace_seconds;
        }
        // What the command left behind when it ended goes at once, as all does when nobody waits for the result.
        if (runner_died || command_ended || (end_by_force > 0 && now > end_by_force)) {
            signal_all_below(getpid(), SIGKILL);
        }
    }
    rusage usage{};
    getrusage(RUSAGE_CHILDREN, &usage);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
    };
    message.cpu_seconds = seconds(usage.ru_utime) + seconds(usage.ru_stime);
    message.disk_bytes_read = static_cast<std::uint64_t>(usage.ru_inblock) * disk_block;
    [[maybe_unused]] const auto written = write(result.get(), &message, sizeof(message));
    _exit(0);
}

}  // namespace

std::vector<pid_t> process_tree(pid_t root) {
    std::vector<pid_t> tree = {root};
    for (std::size_t i = 0; i < tree.size(); ++i) {
        std::error_code failure;
        const std::filesystem::path tasks = str("/proc/", tree[i], "/task");
        for (std::filesystem::directory_iterator task(tasks, failure), end; !failure && task != end;
             task.increment(failure)) {
            std::ifstream children(task->path() / "children");
            for (pid_t child = 0; children >> child;) {
                if (read_entry(child).state != 'Z') {
                    tree.push_back(child);
                }
            }
        }
    }
    return tree;
}

ProcessOutcome run_supervised(const ProcessRequest& request) {
    LOCKSTEP_CHECK(!request.words.empty());
    Pipe lifeline = make_pipe(), result = make_pipe();
    const double begin = base::monotonic_seconds();
    const pid_t guardian = fork();
    if (guardian < 0) {
        throw Error(str("can't start a process: ", std::strerror(errno)));
    }
    if (guardian == 0) {
        lifeline.write.close();
        result.read.close();
        guard(request, lifeline.read, result.write);
    }
    lifeline.read.close();
    result.write.close();
    for (;;) {
        pollfd watched{result.read.get(), POLLIN, 0};
        if (poll(&watched, 1, static_cast<int>(poll_interval.count())) > 0) {
            break;
        }
        if (request.watch) {
            std::vector<pid_t> tree = process_tree(guardian);
            tree.erase(tree.begin());
            request.watch(tree);
        }
    }
    Message message{};
    const auto got = read(result.read.get(), &message, sizeof(message));
    int ignored = 0;
    while (waitpid(guardian, &ignored, 0) < 0 && errno == EINTR) {
    }
    if (got != static_cast<ssize_t>(sizeof(message))) {
        throw Error(str(request.words.front(), ": the process that watches over it was killed"));
    }
    if (message.start_error != 0) {
        throw Error(str(request.words.front(), " can't be started: ", std::strerror(message.start_error)));
    }
    return {.exit_code = WIFEXITED(message.status) ? WEXITSTATUS(message.status) : -1,
            .signal = WIFSIGNALED(message.status) ? WTERMSIG(message.status) : 0,
            .timed_out = message.timed_out != 0,
            .wall_seconds = base::monotonic_seconds() - begin,
            .cpu_seconds = message.cpu_seconds,
            .disk_bytes_read = message.disk_bytes_read};
}

}  // namespace lockstep::bench
