// A job of ranks of which one goes wrong in a chosen way; job_end_test looks at how the job ends.
#include <csignal>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/exit_code.h"
#include "comm/job_communicators.h"
#include "comm/mpi.h"

namespace lockstep::comm {
namespace {

int run(const std::string& mode, const std::string& topology) {
    const JobCommunicators job({.topology = topology, .timeout = std::chrono::seconds(mode == "absent" ? 5 : 100)});
    const auto ranks = job.make("gradients");
    const bool is_last = index_of(ranks->rank()) == ranks->size() - 1;
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
    if (mode == "usage") {
        throw base::UsageError("unknown key on purpose");
    }
    std::vector<float> values(100000);
    ranks->all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "bucket 3");
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
    if (mode == "guard") {  // without run_ranks: the exception meets the guard before any handler
        try {
            const lockstep::comm::MpiGuard guard;
            return lockstep::comm::run("throw", topology);
        } catch (const std::exception&) {
            return lockstep::base::exit_code::success;
        }
    }
    return lockstep::comm::run_ranks([&] { return lockstep::comm::run(mode, topology); });
}
