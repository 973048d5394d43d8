#pragma once

#include <vector>

namespace lockstep::trainer {

// For tests of the channel kernels. Their loops are compiled for several kinds of CPU, and a program uses the widest
// that its own can run. Between versions, rounding may differ.

enum class LoopVersion { any_cpu, x86_64_v3, x86_64_v4 };

/// Those that this CPU can run, the widest last.
std::vector<LoopVersion> runnable_loops();

/// Makes the channel kernels use another of them from now on. Not while one of them runs.
void use_loops(LoopVersion version);

}  // namespace lockstep::trainer
