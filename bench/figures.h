#pragma once

#include <string>
#include <vector>

#include "bench/analysis.h"

/// Figures of a sweep's report: inline SVG with a caption, as HTML. They take their colours from the page's variables,
/// and are drawn for a column of a telephone's width. "" where the sweep has nothing to draw.
namespace lockstep::bench {

/// Ratios with their intervals, an arm a row.
std::string interval_figure(const SweepAnalysis& sweep, const MetricResult& metric);
/// Every launch as a dot: what the medians are made of.
std::string strip_figure(const SweepAnalysis& sweep, const MetricResult& metric);
/// Factors added one after the other, and each taken out of all.
std::string waterfall_figure(const std::vector<FactorSteps>& steps, const MetricResult& metric);
/// Throughput over ranks, where a factor named ranks sets them. Marked arms are no scaling, and drawn hollow.
std::string scaling_figure(const SweepAnalysis& sweep);
/// Losses of the first launch of each arm: a whole training where there is one.
std::string loss_figure(const SweepAnalysis& sweep);

/// Where an image's time goes in an arm: medians over its launches.
struct TimeParts {
    std::size_t arm = 0;
    double total = 0, data = 0, exposed = 0;  ///< milliseconds
    double skew = 0;                          ///< that the first rank waited for the last; not part of the total
    double core = 0;                          ///< that reducing took of a core while the backward pass went on
};
std::vector<TimeParts> time_parts(const SweepAnalysis& sweep);
std::string breakdown_figure(const SweepAnalysis& sweep, const std::vector<TimeParts>& parts);

}  // namespace lockstep::bench
