// A job of ranks of which one goes wrong in a chosen way; job_end_test looks at how the job ends.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <initializer_list>
#include <iostream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/exit_code.h"
#include "comm/job_communicators.h"
#include "comm/job_watch.h"
#include "comm/mpi.h"

namespace lockstep::comm {
namespace {

bool is_any_of(const std::string& mode, std::initializer_list<const char*> modes) {
    return std::ranges::find(modes, mode) != modes.end();
}

int run(const std::string& mode, const std::string& topology, JobWatch& watch) {
    const bool waits_in_vain = is_any_of(mode, {"absent", "stopped", "fewer", "mismatch"});
    const JobCommunicators job({.topology = topology, .timeout = std::chrono::seconds(waits_in_vain ? 5 : 100)},
                               watch.log());
    const auto ranks = job.make("gradients");
    const bool is_last = index_of(ranks->rank()) == ranks->size() - 1;
    if (const char* const directory = std::getenv("LOCKSTEP_TEST_DIRECTORY")) {
        watch.keep_in(directory);
    }
    watch.log()->enter("rehearsing", 7);
    ranks->barrier("start");
    if (is_last && mode == "throw") {
        throw base::Error("disk full on purpose");
    }
    if (is_last && mode == "abort") {
        abort_job(3, "stopped on purpose");
    }
    if (is_last && mode == "absent") {
        std::this_thread::sleep_for(std::chrono::seconds(100));
    }
    if (is_last && mode == "killed") {
        raise(SIGKILL);
    }
    if (is_last && mode == "stopped") {
        raise(SIGSTOP);
    }
    if (is_last && mode == "slow") {
        std::this_thread::sleep_for(std::chrono::seconds(3));
    }
    if (mode == "usage") {
        throw base::UsageError("unknown key on purpose");
    }
    std::vector<float> values(is_last && mode == "mismatch" ? 99999 : 100000);
    if (!(is_last && mode == "fewer")) {
        ranks->all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "bucket 3");
    }
    if (is_last && mode == "fewer") {
        // It goes on with something else than the others, and never comes to their operation.
        std::this_thread::sleep_for(std::chrono::seconds(100));
    }
    if (mode == "again") {
        return base::exit_code::run_again;
    }
    std::cout << "reached the end" << std::endl;
    return base::exit_code::success;
}

}  // namespace
}  // namespace lockstep::comm

int main(int argc, char** argv) {
    const std::string mode = argc > 1 ? argv[1] : "";
    const std::string topology = argc > 2 ? argv[2] : "auto";
    std::signal(SIGTERM, SIG_IGN);  // as a training, which finishes its step first
    if (mode == "guard") {          // without run_ranks: the exception meets the guard before any handler
        try {
            const lockstep::comm::MpiGuard guard;
            lockstep::comm::JobWatch watch;
            return lockstep::comm::run("throw", topology, watch);
        } catch (const std::exception&) {
            return lockstep::base::exit_code::success;
        }
    }
    return lockstep::comm::run_ranks(
        [&](lockstep::comm::JobWatch& watch) { return lockstep::comm::run(mode, topology, watch); });
}
