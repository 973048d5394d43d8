#pragma once

#include <filesystem>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "comm/rank_log.h"

namespace lockstep::trainer {

/// Writes what every rank did when, as Chrome's tracing and Perfetto show it: a process for each rank, with a row for
/// each track of its spans. Machines' clocks are brought together by their time of day, so what two of them say of one
/// moment is apart by as much as these are. Rank 0 writes `file`. Throws base::Error naming it. Collective.
void write_trace(const std::filesystem::path& file, std::span<const comm::Span> spans, comm::Communicator& control);

}  // namespace lockstep::trainer
