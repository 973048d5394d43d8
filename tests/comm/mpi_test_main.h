#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <span>

#include "comm/communicator.h"

/// For test programs that run under mpirun (lockstep_test with RANKS; link lockstep::mpi_test_main instead of
/// gtest_main). All ranks run the same tests; failures are printed with their rank, and a failed test ends the job on
/// all ranks, since they may no longer be in step.
namespace lockstep::tests {

inline constexpr std::chrono::seconds test_timeout{60};

/// All ranks, with a deadline.
std::unique_ptr<comm::Communicator> make_test_communicator();

/// Collective: whether every rank holds exactly the bytes of rank 0.
bool same_on_all_ranks(comm::Communicator& communicator, std::span<const std::byte> bytes);

template <typename T>
bool same_on_all_ranks(comm::Communicator& communicator, std::span<const T> values) {
    return same_on_all_ranks(communicator, std::as_bytes(values));
}

}  // namespace lockstep::tests
