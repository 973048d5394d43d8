// The ranks add up their numbers: prints "sum S of N ranks" once.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <span>

#include "comm/job_communicators.h"
#include "comm/job_watch.h"

int main() {
    return lockstep::comm::run_ranks([] {
        const lockstep::comm::JobCommunicators job({.timeout = std::chrono::seconds(20)});
        const auto world = job.make("world");
        std::int64_t sum = index_of(world->rank()) + 1;
        world->all_reduce(lockstep::comm::Buffer::of(std::span(&sum, 1)), lockstep::comm::ReduceOp::sum, "sum");
        if (index_of(world->rank()) == 0) {
            std::printf("sum %ld of %d ranks\n", static_cast<long>(sum), world->size());
        }
        return 0;
    });
}
