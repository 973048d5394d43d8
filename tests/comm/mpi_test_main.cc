#include "tests/comm/mpi_test_main.h"

#include <gtest/gtest.h>

#include <iostream>
#include <thread>

#include "base/error.h"
#include "base/exit_code.h"
#include "comm/job_watch.h"
#include "comm/mpi.h"
#include "tests/comm/collective_checks.h"

namespace lockstep::tests {

std::unique_ptr<comm::Communicator> make_test_communicator() {
    return comm::make_mpi_communicator("test", test_timeout);
}

bool same_on_all_ranks(comm::Communicator& communicator, std::span<const std::byte> bytes) {
    return comm::tests::same_on_all_ranks(communicator, bytes);
}

namespace {

/// Rank 0 reports as gtest does; the others only what failed.
class FailurePrinter final : public testing::EmptyTestEventListener {
  public:
    void OnTestPartResult(const testing::TestPartResult& result) override {
        if (result.failed()) {
            const char* file = result.file_name() != nullptr ? result.file_name() : "unknown file";
            std::cerr << base::str(base::process_name(), ": ", file, ":", result.line_number(), ": ", result.message(),
                                   "\n");
        }
    }
};

class JobEnder final : public testing::EmptyTestEventListener {
  public:
    void OnTestEnd(const testing::TestInfo& info) override {
        if (info.result()->Failed()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(500));  // the others may want to say why, too
            comm::abort_job(base::exit_code::failure, base::str("failed: ", info.test_suite_name(), ".", info.name()));
        }
    }
};

int run_tests() {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    const bool is_first = make_test_communicator()->rank() == comm::Rank{0};
    if (!is_first) {
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new FailurePrinter);  // owned by the list, as is the next one
    }
    listeners.Append(new JobEnder);
    return RUN_ALL_TESTS();
}

}  // namespace

}  // namespace lockstep::tests

int main(int argc, char** argv) {
    testing::InitGoogleTest(&argc, argv);
    if (!lockstep::comm::is_launched_by_mpi()) {
        std::cerr << "run me under mpirun: mpirun -np 2 " << argv[0] << std::endl;
        return lockstep::base::exit_code::usage;
    }
    return lockstep::comm::run_ranks(lockstep::tests::run_tests);
}
