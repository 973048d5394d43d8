#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "comm/communicator.h"

namespace lockstep::comm::tests {

constexpr DataType all_types[] = {DataType::f32, DataType::f64, DataType::f16, DataType::bf16,
                                  DataType::i32, DataType::i64, DataType::u8};
constexpr ReduceOp all_ops[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max};

/// Where the buffers of a check lie.
enum class Memory {
    any,     ///< wherever the program has its memory
    shared,  ///< in memory of Communicator::allocate
};

/// How averages of floating-point numbers come about.
enum class Averages {
    of_the_sum,       ///< the sum is divided: the closed form's bits
    of_parts_divided  ///< each value is divided, then they are added (NCCL): within rounding
};

/// Runs every collective on `count` elements, with every operation, root and cut into slices, against closed forms, and
/// fails the test with the first wrong element. Values encode rank and index and are exact in their type, so that
/// "equal" means equal bits. Collective; at most 8 ranks.
void expect_closed_forms(Communicator& ranks, DataType type, std::size_t count, Memory memory,
                         Averages averages = Averages::of_the_sum);

/// Sums that round: the bits of rank order, the same on all ranks, twice.
void expect_rank_order(Communicator& ranks, DataType type, std::size_t count, Memory memory);

/// all_gather_bytes of different lengths, and barriers that nobody leaves early.
void expect_bytes_of_any_length(Communicator& ranks);

/// The text of the base::Error that `call` throws, or "no error".
std::string error_of(const std::function<void()>& call);

/// Collective: whether every rank holds exactly the bytes of rank 0.
bool same_on_all_ranks(Communicator& communicator, std::span<const std::byte> bytes);

}  // namespace lockstep::comm::tests
