#pragma once

#include <memory>
#include <string_view>

#include "comm/communicator.h"

namespace lockstep::comm {

/// "fp32", "bf16", "fp16", as recipes call them. Throws base::UsageError for another name.
DataType wire_type_of(std::string_view name);

/// Reductions of FP32 values travel as 16 bits: each rank's values are rounded to `wire` (bf16 or f16), reduced over
/// `inner`, and widened again, which halves the traffic. How often sums are rounded on their way is `inner`'s affair:
/// once, if it adds all of them in one place. With f16 the ranks first agree on a power of two, from their
/// largest value, that no sum overflows with. All other operations go to `inner` as they are: parameters travel whole.
/// sent() tells what the rounding cost. Not collective.
std::unique_ptr<Communicator> make_wire_communicator(std::unique_ptr<Communicator> inner, DataType wire);

}  // namespace lockstep::comm
