#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/analysis.h"
#include "bench/claims.h"
#include "bench/report_table.h"

namespace lockstep::bench {

/// The first screen: what to switch on, and what it gains. Plain text.
struct Answer {
    std::string headline;
    std::string command;  ///< that trains with it; empty where nothing is to be switched on
    ReportTable table;    ///< each arm with an advice, the best first; of many arms some
    std::vector<std::string> notes;
};
/// The headline's arm is the fastest that is shown to be faster, or else to take less memory. Arms that cost accuracy,
/// share cores or simulate nodes are no candidates.
Answer answer_of(const SweepAnalysis& sweep);

std::string markdown_report(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts);
/// One page without a network: figures as inline SVG, each with a caption; light, dark and on paper.
std::string html_report(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts);

/// Writes DIR/report.md, DIR/report.html and DIR/verdicts.json from DIR's records. Throws base::UsageError where DIR
/// holds no sweep.
void write_sweep_report(const std::filesystem::path& directory);

/// What `lockstep bench compare A B` prints: every common arm and metric, regressions first.
std::string comparison_text(const std::vector<Change>& changes);
std::string comparison_json(const std::vector<Change>& changes);

}  // namespace lockstep::bench
