#pragma once

#include <string>
#include <vector>

#include "comm/rank_status.h"

namespace lockstep::comm {

/// Why a job ended that could not go on: from what its ranks said last. The text begins with the cause; the ranks that
/// only suffered from it come after.
struct StopReport {
    std::string text;
    std::string json;
    int exit_code = 0;
};

/// `ranks` in the order of the job. At least one of them failed, was late or is gone.
StopReport make_stop_report(const std::vector<SeenRank>& ranks);

/// Whether the rank can't go on.
bool is_in_trouble(const SeenRank& rank);

}  // namespace lockstep::comm
