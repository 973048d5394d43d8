#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "bench/analysis.h"
#include "bench/claims.h"

namespace lockstep::bench {

/// The first screen: what to switch on, what it gains, what gains nothing, and what this sweep could not tell. A
/// sentence each, plain text.
std::vector<std::string> answers(const SweepAnalysis& sweep);

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
