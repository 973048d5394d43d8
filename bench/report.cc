#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::escape_html;
using base::fixed;
using base::str;
using nlohmann::json;

/// Accuracy counts as no worse where the interval of its ratio lies above this.
constexpr double no_worse = 0.995;
constexpr std::size_t baseline = 0;
constexpr std::size_t control = 1;

std::string percent(double ratio, int decimals = 1) {
    return fixed(100 * ratio, decimals) + "%";
}
/// "-38.2%" of a ratio of 0.618.
std::string change_text(double ratio) {
    return str(ratio < 1 ? "−" : "+", fixed(100 * std::abs(ratio - 1), 1), "%");
}
std::string interval_text(const Comparison& comparison) {
    return str(percent(comparison.ratio), " (", percent(comparison.interval.low), " to ",
               percent(comparison.interval.high), ")");
}

bool is_gain(const MetricResult& metric, const Comparison& comparison) {
    return comparison.finding == (metric.metric.lower_is_better ? Finding::lower : Finding::higher);
}
bool is_loss(const MetricResult& metric, const Comparison& comparison) {
    return comparison.finding == (metric.metric.lower_is_better ? Finding::higher : Finding::lower);
}

std::string finding_text(const MetricResult& metric, const Comparison& comparison) {
    if (metric.metric.measurement == "accuracy" && !metric.metric.lower_is_better) {
        // Few seeds: no test could find anything, so the interval itself speaks.
        if (comparison.interval.low > no_worse) {
            return comparison.interval.low > 1 ? "better in every resample" : "no worse";
        }
        return comparison.interval.high < no_worse ? "worse" : "unclear";
    }
    switch (comparison.finding) {
        case Finding::lower:
            return metric.metric.lower_is_better ? "better" : "worse";
        case Finding::higher:
            return metric.metric.lower_is_better ? "worse" : "better";
        case Finding::no_difference:
            return "no difference";
        case Finding::unclear:
            break;
    }
    return "unclear";
}

/// Accuracy of an arm beside its speed: no speed is shown without it or the loss.
std::string accuracy_text(const SweepAnalysis& sweep, std::size_t arm) {
    for (const char* name : {"AP50", "accuracy"}) {
        const MetricResult* metric = sweep.find(name);
        if (metric != nullptr && metric->of_arm(arm)) {
            const Comparison ours = *metric->of_arm(arm);
            return str(name, " ", interval_text(ours), ", ", finding_text(*metric, ours));
        }
    }
    return "accuracy not measured";
}

/// The loss that the launches of an arm ended at: median over blocks.
std::optional<double> final_loss(const SweepAnalysis& sweep, const std::string& arm) {
    std::vector<double> losses;
    for (const Record& record : sweep.records) {
        const auto found = record.metrics.find("final_loss");
        if (record.arm == arm && record.status == LaunchStatus::ok && found != record.metrics.end()) {
            losses.push_back(found->second);
        }
    }
    return losses.empty() ? std::nullopt : std::optional(median(losses));
}

std::string marked_name(const SweepAnalysis& sweep, std::size_t arm) {
    const SweepArm& info = sweep.info.arms[arm];
    const std::string mark = sweep.mark(info);
    return info.name + (mark.empty() ? "" : " [" + mark + "]");
}

/// One table, for both formats.
struct ReportTable {
    std::vector<std::string> head;
    std::vector<std::vector<std::string>> rows;
};

std::string markdown_of(const ReportTable& table) {
    const auto line = [](const std::vector<std::string>& cells) {
        std::string text = "|";
        for (std::string cell : cells) {
            std::string safe;
            for (const char c : cell) {
                safe += c == '|' ? std::string("\\|") : c == '\n' ? std::string(" ") : std::string(1, c);
            }
            text += " " + safe + " |";
        }
        return text + "\n";
    };
    return line(table.head) + line(std::vector<std::string>(table.head.size(), "---")) + [&] {
        std::string rows;
        for (const auto& row : table.rows) {
            rows += line(row);
        }
        return rows;
    }() + "\n";
}

std::string html_of(const ReportTable& table) {
    std::string text = "<div class=\"wide\"><table><thead><tr>";
    for (const auto& cell : table.head) {
        text += "<th>" + escape_html(cell) + "</th>";
    }
    text += "</tr></thead><tbody>";
    for (const auto& row : table.rows) {
        text += "<tr>";
        for (const auto& cell : row) {
            text += "<td>" + escape_html(cell) + "</td>";
        }
        text += "</tr>\n";
    }
    return text + "</tbody></table></div>\n";
}

const Verdict* verdict_of_arm(const std::vector<Verdict>& verdicts, const std::string& arm) {
    const auto found = std::ranges::find_if(
        verdicts, [&](const Verdict& verdict) { return verdict.arm == arm && verdict.claim.id.starts_with("combo."); });
    return found == verdicts.end() ? nullptr : &*found;
}

ReportTable arms_table(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    ReportTable table{{"arm", "settings"}, {}};
    for (const MetricResult& metric : sweep.metrics) {
        table.head.push_back(metric.metric.title + ", ratio to the baseline (95% interval)");
    }
    table.head.emplace_back("final loss");
    table.head.emplace_back("published");
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        const SweepArm& info = sweep.info.arms[arm];
        std::vector<std::string> row = {marked_name(sweep, arm),
                                        info.is_control ? "the baseline once more" : info.settings};
        for (const MetricResult& metric : sweep.metrics) {
            if (arm == baseline) {
                std::vector<double> values;
                for (const auto& [block, value] : metric.values[arm]) {
                    values.push_back(value);
                }
                row.push_back(str("100% = ", fixed(median(values) * metric.metric.scale, 3), " ", metric.metric.unit));
            } else if (const auto ours = metric.of_arm(arm); ours && ours->blocks > 0) {
                row.push_back(str(interval_text(*ours), ", ", arm == control ? "noise" : finding_text(metric, *ours)));
            } else {
                row.push_back(sweep.failures[arm].empty() ? "–" : "failed: " + sweep.failures[arm]);
            }
        }
        const auto loss = final_loss(sweep, info.name);
        row.push_back(loss ? fixed(*loss, 3) : "–");
        const Verdict* published = arm == control ? nullptr : verdict_of_arm(verdicts, info.name);
        row.push_back(published == nullptr ? "" : str(published->claim.text, " (", published->claim.source, ")"));
        table.rows.push_back(std::move(row));
    }
    return table;
}

ReportTable claims_table(const std::vector<Verdict>& verdicts) {
    ReportTable table{{"claim", "published", "source", "our figure (95% interval)", "verdict", "why"}, {}};
    for (const Verdict& verdict : verdicts) {
        std::vector<std::string> ours;
        for (const FigureVerdict& figure : verdict.figures) {
            if (figure.ours && figure.ours->blocks > 0) {
                ours.push_back(
                    str(figure.claimed.metric, " ", interval_text(*figure.ours), ": ", name_of(figure.kind)));
            }
        }
        table.rows.push_back(
            {verdict.claim.id,
             verdict.claim.text + (verdict.claim.conditions.empty() ? "" : " [" + verdict.claim.conditions + "]"),
             verdict.claim.source, ours.empty() ? "–" : base::join(ours, "; "), std::string(name_of(verdict.kind)),
             verdict.reason});
    }
    return table;
}

/// A factor alone, added in order, and taken out of all: as ratios of one metric.
struct FactorSteps {
    std::string name;
    std::optional<Comparison> alone;   ///< to the baseline
    std::optional<double> cumulative;  ///< with all before it, to the baseline
    std::optional<double> step;        ///< to the cumulative arm before
    std::optional<double> taken_out;   ///< all / all without it: what it does in the company of all others
};

std::optional<std::size_t> arm_with(const SweepInfo& info, const std::vector<std::size_t>& levels) {
    for (std::size_t i = 0; i < info.arms.size(); ++i) {
        if (info.arms[i].levels == levels && !info.arms[i].is_control) {
            return i;
        }
    }
    return std::nullopt;
}

std::vector<FactorSteps> factor_steps(const SweepAnalysis& sweep, const MetricResult& metric) {
    const auto& factors = sweep.info.factors;
    std::vector<std::size_t> none(factors.size(), 0), all, cumulative = none;
    for (const SweepFactor& factor : factors) {
        all.push_back(factor.levels.size() - 1);
    }
    const auto ratio_at = [&](const std::vector<std::size_t>& levels) -> std::optional<double> {
        const auto arm = arm_with(sweep.info, levels);
        if (arm && *arm == baseline) {
            return 1;
        }
        const auto ours = arm ? metric.of_arm(*arm) : std::nullopt;
        return ours && ours->blocks > 0 ? std::optional(ours->ratio) : std::nullopt;
    };
    std::vector<FactorSteps> steps;
    std::optional<double> before = 1;
    for (std::size_t i = 0; i < factors.size(); ++i) {
        FactorSteps entry{.name = factors[i].name, .alone = {}, .cumulative = {}, .step = {}, .taken_out = {}};
        std::vector<std::size_t> alone = none, without = all;
        alone[i] = all[i];
        without[i] = 0;
        if (const auto arm = arm_with(sweep.info, alone)) {
            entry.alone = metric.of_arm(*arm);
        }
        cumulative[i] = all[i];
        entry.cumulative = ratio_at(cumulative);
        if (entry.cumulative && before) {
            entry.step = *entry.cumulative / *before;
        }
        before = entry.cumulative;
        const auto whole = ratio_at(all), rest = ratio_at(without);
        if (whole && rest) {
            entry.taken_out = *whole / *rest;
        }
        steps.push_back(entry);
    }
    return steps;
}

/// Where the gains of the factors alone, multiplied, are not what they are together; "" where that can't be said.
std::string interaction_text(const std::vector<FactorSteps>& steps, const MetricResult& metric) {
    double product = 1;
    for (const FactorSteps& entry : steps) {
        if (!entry.alone || entry.alone->blocks == 0) {
            return {};
        }
        product *= entry.alone->ratio;
    }
    if (steps.size() < 2 || !steps.back().cumulative) {
        return {};
    }
    const double together = *steps.back().cumulative;
    const bool multiplies =
        std::abs(std::log(together / product)) <= std::log1p(std::max(metric.comparison.band, 0.02));
    return str(metric.metric.title, ": alone they would multiply to ", percent(product), ", together they reach ",
               percent(together), multiplies ? ": they multiply within the noise." : ": the gains do not multiply.");
}

ReportTable steps_table(const std::vector<FactorSteps>& steps) {
    ReportTable table{{"factor", "alone", "added in order", "its own step", "taken out of all"}, {}};
    const auto text = [](const std::optional<double>& value) { return value ? percent(*value) : std::string("–"); };
    for (const FactorSteps& entry : steps) {
        table.rows.push_back({entry.name, entry.alone && entry.alone->blocks > 0 ? interval_text(*entry.alone) : "–",
                              text(entry.cumulative), text(entry.step), text(entry.taken_out)});
    }
    return table;
}

bool shows_steps(const std::vector<FactorSteps>& steps) {
    return steps.size() > 1 && std::ranges::any_of(steps, [](const FactorSteps& entry) {
               return entry.step.has_value() || entry.taken_out.has_value();
           });
}

ReportTable noise_table(const SweepAnalysis& sweep) {
    ReportTable table{{"figure", "blocks", "the baseline against itself", "no-difference band",
                       "smallest difference this sweep could have found"},
                      {}};
    for (const MetricResult& metric : sweep.metrics) {
        const SweepComparison& comparison = metric.comparison;
        table.rows.push_back(
            {metric.metric.title, str(comparison.control.blocks),
             comparison.control.blocks > 0 ? interval_text(comparison.control) : "–", "±" + percent(comparison.band),
             std::isfinite(metric.smallest_findable) ? percent(metric.smallest_findable) : "none: too few blocks"});
    }
    return table;
}

std::vector<std::string> launch_notes(const SweepAnalysis& sweep) {
    std::size_t disturbed = 0, failed = 0, drifting = 0;
    for (const Record& record : sweep.records) {
        disturbed += record.interference.empty() ? 0 : 1;
        failed += record.status == LaunchStatus::ok ? 0 : 1;
        drifting += record.warm_up.still_drifts && record.measurement == "speed" ? 1 : 0;
    }
    std::vector<std::string> notes = {str(sweep.records.size(), " launches; ", disturbed,
                                          " were disturbed by something else on the machine, ", failed, " failed, ",
                                          drifting, " still drifted after half of their steps.")};
    for (const MetricResult& metric : sweep.metrics) {
        if (metric.comparison.control_differs) {
            notes.push_back(
                str("Caution: in ", metric.metric.title,
                    " the baseline differs from itself beyond chance; blocks of this sweep are not comparable."));
        }
    }
    return notes;
}

ReportTable missing_table(const SweepAnalysis& sweep) {
    ReportTable table{{"what", "why it was not measured"}, {}};
    for (const auto& [name, reason] : sweep.info.missing) {
        table.rows.push_back({name, reason});
    }
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        if (!sweep.failures[arm].empty()) {
            table.rows.push_back({"arm " + sweep.info.arms[arm].name, sweep.failures[arm]});
        }
        if (const std::string mark = sweep.mark(sweep.info.arms[arm]); !mark.empty()) {
            table.rows.push_back(
                {"scaling of " + sweep.info.arms[arm].name, mark + ": its times are of a crowded machine"});
        }
    }
    for (const char* kind : {"speed", "accuracy"}) {
        if (std::ranges::none_of(sweep.info.measurements, [&](const SweepMeasurement& m) { return m.kind == kind; })) {
            table.rows.push_back({kind, str("the plan has no [", kind, "]")});
        }
    }
    return table;
}

// ---- figures
// ---------------------------------------------------------------------------------------------------------

constexpr const char* style = R"(
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d9dee5;--paper:#fdfdfc;--card:#fff;--good:#2e7d4f;--bad:#a3293d;--mid:#2563a8;--warm:#b4530a;--band:#e8ecf1}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b4;--line:#343c48;--paper:#14181e;--card:#1b2028;--good:#6cc492;--bad:#ee7f90;--mid:#6ba6e8;--warm:#f0a35e;--band:#262d37}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1180px;padding:24px 16px 60px;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:0 0 4px}h2{font-size:1.15rem;margin:36px 0 10px}p,li{margin:0 0 8px}.soft{color:var(--soft)}.answer{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--good);border-radius:8px;padding:14px 18px}
.grid{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr));gap:18px}figure{margin:0 0 18px;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
figcaption{font-size:.85rem;color:var(--soft);margin-top:6px}svg{display:block;width:100%;height:auto}.wide{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.88rem}td,th{padding:4px 14px 4px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);min-width:6em}
text{fill:var(--ink);font:11px system-ui,sans-serif}text.s{fill:var(--soft)}.axis{stroke:var(--line)}.one{stroke:var(--soft);stroke-dasharray:3 3}.band{fill:var(--band)}
pre{white-space:pre-wrap;font-size:.8rem;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
@media print{body{max-width:none;padding:0}figure,table{break-inside:avoid}.wide{overflow:visible}}
)";

constexpr double figure_width = 640;

std::string text_at(double x, double y, const std::string& text, const char* anchor = "start", const char* kind = "") {
    return str("<text x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" text-anchor=\"", anchor, "\"",
               *kind != '\0' ? str(" class=\"", kind, "\"") : "", ">", escape_html(text), "</text>");
}
std::string line_of(double x1, double y1, double x2, double y2, const std::string& attributes) {
    return str("<line x1=\"", fixed(x1, 1), "\" y1=\"", fixed(y1, 1), "\" x2=\"", fixed(x2, 1), "\" y2=\"",
               fixed(y2, 1), "\" ", attributes, "/>");
}
std::string rectangle(double x, double y, double width, double height, const std::string& attributes) {
    return str("<rect x=\"", fixed(x, 1), "\" y=\"", fixed(y, 1), "\" width=\"", fixed(std::max(0.0, width), 1),
               "\" height=\"", fixed(height, 1), "\" ", attributes, "/>");
}
std::string circle(double x, double y, double radius, const std::string& attributes) {
    return str("<circle cx=\"", fixed(x, 1), "\" cy=\"", fixed(y, 1), "\" r=\"", fixed(radius, 1), "\" ", attributes,
               "/>");
}
std::string figure_of(double height, const std::string& drawing, const std::string& caption) {
    return str("<figure><svg viewBox=\"0 0 ", figure_width, " ", fixed(height, 0), "\" role=\"img\" aria-label=\"",
               escape_html(caption), "\">", drawing, "</svg><figcaption>", escape_html(caption),
               "</figcaption></figure>\n");
}
std::string shortened(const std::string& text, std::size_t most) {
    return text.size() <= most ? text : text.substr(0, most - 1) + "…";
}

struct Axis {
    double low, high, left = 190, right = figure_width - 60;
    double at(double value) const {
        return left + (std::clamp(value, low, high) - low) / (high - low) * (right - left);
    }
};

std::string colour_of(const MetricResult& metric, const Comparison& comparison) {
    return is_gain(metric, comparison) ? "var(--good)" : is_loss(metric, comparison) ? "var(--bad)" : "var(--mid)";
}

/// Ratios with their intervals, an arm a line.
std::string interval_figure(const SweepAnalysis& sweep, const MetricResult& metric) {
    Axis axis{.low = 1 / (1 + metric.comparison.band), .high = 1 + metric.comparison.band};
    std::vector<std::pair<std::size_t, Comparison>> shown;
    for (std::size_t arm = control; arm < sweep.info.arms.size(); ++arm) {
        if (const auto ours = metric.of_arm(arm); ours && ours->blocks > 0) {
            shown.emplace_back(arm, *ours);
            axis.low = std::min(axis.low, ours->interval.low);
            axis.high = std::max(axis.high, ours->interval.high);
        }
    }
    const double pad = 0.06 * (axis.high - axis.low) + 1e-9;
    axis.low -= pad;
    axis.high += pad;
    constexpr double row = 24, top = 26;
    const double height = top + row * static_cast<double>(shown.size()) + 10;
    const double low = axis.at(1 / (1 + metric.comparison.band)), high = axis.at(1 + metric.comparison.band);
    std::string drawing = rectangle(low, top - 8, high - low, height - top, "class=\"band\"");
    drawing += line_of(axis.at(1), top - 8, axis.at(1), height - 8, "class=\"one\"") +
               text_at(axis.at(1), 12, "100%", "middle", "s");
    double y = top + 8;
    for (const auto& [arm, ours] : shown) {
        const std::string colour = arm == control ? "var(--soft)" : colour_of(metric, ours);
        drawing += text_at(0, y + 4, shortened(marked_name(sweep, arm), 34));
        drawing += line_of(axis.at(ours.interval.low), y, axis.at(ours.interval.high), y,
                           str("stroke=\"", colour, "\" stroke-width=\"2\""));
        drawing += circle(axis.at(ours.ratio), y, 4, str("fill=\"", colour, "\""));
        drawing += text_at(figure_width, y + 4, percent(ours.ratio), "end");
        y += row;
    }
    return figure_of(
        height, drawing,
        str("Ratio to the baseline in ", metric.metric.title, " (", metric.metric.lower_is_better ? "lower" : "higher",
            " is better): median over blocks and 95% interval. Gray band: no difference. \"again\" is the baseline "
            "against itself."));
}

/// Every launch as a dot: what the medians are made of.
std::string strip_figure(const SweepAnalysis& sweep, const MetricResult& metric) {
    double low = 1e300, high = -1e300;
    std::size_t rows = 0;
    for (const auto& values : metric.values) {
        rows += values.empty() ? 0 : 1;
        for (const auto& [block, value] : values) {
            low = std::min(low, value * metric.metric.scale);
            high = std::max(high, value * metric.metric.scale);
        }
    }
    const double pad = 0.05 * (high - low) + 1e-9;
    const Axis axis{.low = low - pad, .high = high + pad};
    constexpr double row = 24, top = 26;
    const double height = top + row * static_cast<double>(rows) + 10;
    std::string drawing = text_at(axis.left, 12, fixed(low, 2), "middle", "s") +
                          text_at(axis.right, 12, str(fixed(high, 2), " ", metric.metric.unit), "middle", "s");
    double y = top + 8;
    for (std::size_t arm = 0; arm < metric.values.size(); ++arm) {
        if (metric.values[arm].empty()) {
            continue;
        }
        drawing += text_at(0, y + 4, shortened(marked_name(sweep, arm), 34));
        drawing += line_of(axis.left, y, axis.right, y, "class=\"axis\"");
        for (const auto& [block, value] : metric.values[arm]) {
            drawing += circle(axis.at(value * metric.metric.scale), y, 3, "fill=\"var(--mid)\" fill-opacity=\"0.55\"");
        }
        y += row;
    }
    return figure_of(height, drawing, str("All samples of ", metric.metric.title, ": a dot a block's launch"));
}

std::string waterfall_figure(const std::vector<FactorSteps>& steps, const MetricResult& metric) {
    double most = 1;
    for (const FactorSteps& entry : steps) {
        most = std::max(most, entry.cumulative.value_or(1));
    }
    const Axis axis{.low = 0, .high = most * 1.05};
    constexpr double row = 46, top = 30;
    const double height = top + row * static_cast<double>(steps.size()) + 12;
    std::string drawing = line_of(axis.at(1), top - 8, axis.at(1), height - 8, "class=\"one\"") +
                          text_at(axis.at(1), 12, "baseline 100%", "middle", "s");
    double y = top, before = 1;
    for (const FactorSteps& entry : steps) {
        drawing += text_at(0, y + 12, shortened(entry.name, 30));
        if (entry.cumulative) {
            const double low = std::min(before, *entry.cumulative), high = std::max(before, *entry.cumulative);
            const bool gains = (*entry.cumulative < before) == metric.metric.lower_is_better;
            drawing += rectangle(axis.at(low), y, axis.at(high) - axis.at(low), 14,
                                 str("fill=\"var(--", gains ? "good" : "bad", ")\""));
            drawing += text_at(figure_width, y + 12, "to " + percent(*entry.cumulative), "end");
            before = *entry.cumulative;
        }
        if (entry.taken_out) {
            const double low = std::min(1.0, *entry.taken_out), high = std::max(1.0, *entry.taken_out);
            drawing += rectangle(axis.at(low), y + 18, axis.at(high) - axis.at(low), 8, "fill=\"var(--warm)\"");
            drawing += text_at(figure_width, y + 27, "in all " + percent(*entry.taken_out), "end", "s");
        }
        y += row;
    }
    return figure_of(height, drawing,
                     str("Waterfall of ", metric.metric.title,
                         ": factors switched on one after the other (wide bars), and below each what it still does in "
                         "the company of all the "
                         "others (narrow bars: all against all without it)"));
}

/// Median parts of a step: computing, waiting for data, waiting for gradients.
std::string breakdown_figure(const SweepAnalysis& sweep) {
    struct Parts {
        std::size_t arm;
        double compute, data, exposed;
    };
    std::vector<Parts> bars;
    double most = 0;
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        std::vector<double> totals, data, exposed;
        for (const Record& record : sweep.records) {
            if (record.arm == sweep.info.arms[arm].name && record.measurement == "speed" &&
                record.status == LaunchStatus::ok) {
                const double total = record.metrics.at("seconds_per_image") * 1000;
                const auto part = [&](const char* name) {
                    const auto found = record.metrics.find(name);
                    return found == record.metrics.end() ? 0 : found->second * total;
                };
                totals.push_back(total);
                data.push_back(part("data_wait_fraction"));
                exposed.push_back(part("exposed_communication_fraction"));
            }
        }
        if (!totals.empty()) {
            const double wait = median(data), send = median(exposed);
            bars.push_back({arm, std::max(0.0, median(totals) - wait - send), wait, send});
            most = std::max(most, median(totals));
        }
    }
    if (bars.empty()) {
        return {};
    }
    const Axis axis{.low = 0, .high = most * 1.02};
    constexpr double row = 24, top = 10;
    std::string drawing;
    double y = top;
    for (const Parts& bar : bars) {
        drawing += text_at(0, y + 12, shortened(marked_name(sweep, bar.arm), 34));
        double x = axis.left;
        for (const auto& [value, colour] : {std::pair{bar.compute, "mid"}, {bar.data, "warm"}, {bar.exposed, "bad"}}) {
            drawing += rectangle(x, y, axis.at(value) - axis.left, 15, str("fill=\"var(--", colour, ")\""));
            x += axis.at(value) - axis.left;
        }
        drawing += text_at(figure_width, y + 12, str(fixed(bar.compute + bar.data + bar.exposed, 2), " ms"), "end");
        y += row;
    }
    return figure_of(y + 8, drawing,
                     "Where the time of an image goes, in ms: computing (blue), waiting for data (orange), waiting for "
                     "gradients (red)");
}

std::string loss_figure(const SweepAnalysis& sweep) {
    constexpr double height = 260, left = 46, right = figure_width - 150, top = 10, bottom = 230;
    const std::vector<const char*> colours = {"mid", "warm", "good", "bad", "soft", "ink"};
    struct Curve {
        std::string name;
        std::vector<double> values;
    };
    std::vector<Curve> curves;
    double most = 0;
    for (const SweepArm& arm : sweep.info.arms) {
        if (arm.is_control || curves.size() == colours.size()) {
            continue;
        }
        // A training where there is one; else a short launch.
        for (const char* kind : {"accuracy", "speed"}) {
            const auto found = std::ranges::find_if(sweep.records, [&](const Record& record) {
                return record.arm == arm.name && record.measurement == kind && record.status == LaunchStatus::ok;
            });
            if (found != sweep.records.end()) {
                constexpr std::size_t points = 120;
                const auto& losses = found->steps.loss;
                Curve curve{arm.name, {}};
                const std::size_t count = std::min(points, losses.size());
                for (std::size_t i = 0; i < count; ++i) {
                    const std::size_t begin = i * losses.size() / count, end = (i + 1) * losses.size() / count;
                    double sum = 0;
                    for (std::size_t k = begin; k < end; ++k) {
                        sum += losses[k];
                    }
                    curve.values.push_back(sum / static_cast<double>(end - begin));
                    most = std::isfinite(curve.values.back()) ? std::max(most, curve.values.back()) : most;
                }
                curves.push_back(std::move(curve));
                break;
            }
        }
    }
    if (curves.empty() || most <= 0) {
        return {};
    }
    std::string drawing = line_of(left, bottom, right, bottom, "class=\"axis\"") +
                          text_at(left - 6, top + 8, fixed(most, 2), "end", "s") +
                          text_at(left - 6, bottom, "0", "end", "s") +
                          text_at(right, bottom + 16, "end of the launch", "end", "s");
    for (std::size_t c = 0; c < curves.size(); ++c) {
        std::string path;
        const auto& values = curves[c].values;
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (std::isfinite(values[i])) {
                const double x = left + (right - left) * static_cast<double>(i) /
                                            std::max<double>(1, static_cast<double>(values.size() - 1));
                path += str(path.empty() ? "M" : "L", fixed(x, 1), " ",
                            fixed(bottom - (bottom - top) * values[i] / most, 1));
            }
        }
        drawing +=
            str("<path d=\"", path, "\" fill=\"none\" stroke-width=\"1.6\" stroke=\"var(--", colours[c], ")\"/>");
        drawing +=
            rectangle(right + 10, top + 18 * static_cast<double>(c), 12, 3, str("fill=\"var(--", colours[c], ")\"")) +
            text_at(right + 28, top + 18 * static_cast<double>(c) + 6, shortened(curves[c].name, 20));
    }
    return figure_of(height, drawing, "Loss of the first launch of each arm, from its first step to its last");
}

/// Throughput over ranks, where a factor sets them. Marked points are no scaling, and drawn hollow.
std::string scaling_figure(const SweepAnalysis& sweep) {
    const MetricResult* metric = sweep.find("seconds_per_image", "speed");
    const auto factor = std::ranges::find(sweep.info.factors, "ranks", &SweepFactor::name);
    if (metric == nullptr || factor == sweep.info.factors.end()) {
        return {};
    }
    const auto index = static_cast<std::size_t>(factor - sweep.info.factors.begin());
    struct Point {
        double ranks, speed;
        std::string mark;
    };
    std::vector<Point> points;
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        const SweepArm& info = sweep.info.arms[arm];
        std::vector<std::size_t> only(sweep.info.factors.size(), 0);
        only[index] = info.levels[index];
        const auto ours = arm == baseline ? std::optional(Comparison{.blocks = 1, .ratio = 1, .interval = {1, 1}})
                                          : metric->of_arm(arm);
        if (!info.is_control && info.levels == only && ours && ours->blocks > 0) {
            points.push_back({static_cast<double>(info.ranks), 1 / ours->ratio, sweep.mark(info)});
        }
    }
    if (points.size() < 2) {
        return {};
    }
    double most = 0;
    for (const Point& point : points) {
        most = std::max({most, point.ranks, point.speed});
    }
    constexpr double height = 260, left = 40, right = figure_width - 200, top = 12, bottom = 226;
    const auto x_at = [&](double x) { return left + (right - left) * x / most; };
    const auto y_at = [&](double y) { return bottom - (bottom - top) * y / most; };
    const double first = points.front().ranks;
    std::string drawing = line_of(left, bottom, right, bottom, "class=\"axis\"") +
                          line_of(left, top, left, bottom, "class=\"axis\"") +
                          line_of(x_at(first), y_at(1), x_at(most), y_at(most / first), "class=\"one\"") +
                          text_at(right, bottom + 16, "ranks", "end", "s") +
                          text_at(right + 6, y_at(most / first) + 4, "ideal", "start", "s");
    bool is_marked = false;
    for (const Point& point : points) {
        const bool hollow = !point.mark.empty();
        is_marked = is_marked || hollow;
        drawing += circle(x_at(point.ranks), y_at(point.speed), 4,
                          hollow ? "fill=\"none\" stroke=\"var(--warm)\" stroke-width=\"2\"" : "fill=\"var(--mid)\"");
        drawing += text_at(x_at(point.ranks) + 8, y_at(point.speed) + 14,
                           str(point.ranks, ": ", fixed(point.speed, 2), "x", hollow ? ", " + point.mark : ""));
    }
    return figure_of(
        height, drawing,
        str("Images a second over ranks, the baseline as 1, with the ideal line",
            is_marked ? ". Hollow points are no scaling: their ranks share cores or their nodes are simulated" : ""));
}

std::string environment_text(const SweepAnalysis& sweep) {
    if (sweep.records.empty()) {
        return "no launch was made";
    }
    const Record& first = sweep.records.front();
    const json provenance = json::parse(first.provenance);
    std::string text;
    for (const auto& [key, value] : provenance.items()) {
        text += str(key, ": ", value.is_string() ? value.get<std::string>() : value.dump(), "\n");
    }
    for (const auto& [data, hash] : first.data_hashes) {
        text += str("data ", data, ": ", hash, "\n");
    }
    return text + str("first launch ", first.started, ", last ", sweep.records.back().ended, "\n");
}

struct Section {
    std::string title;
    std::vector<std::string> paragraphs;
    std::optional<ReportTable> table;
    std::string figures;  ///< HTML only
};

std::vector<Section> sections(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    std::vector<Section> list;
    std::string intervals, strips;
    for (const MetricResult& metric : sweep.metrics) {
        intervals += interval_figure(sweep, metric);
        strips += strip_figure(sweep, metric);
    }
    list.push_back({"Every arm", {}, arms_table(sweep, verdicts), "<div class=\"grid\">" + intervals + "</div>\n"});
    for (const MetricResult& metric : sweep.metrics) {
        const auto steps = factor_steps(sweep, metric);
        if (shows_steps(steps)) {
            const std::string interaction = interaction_text(steps, metric);
            list.push_back({"One after the other, and one left out: " + metric.metric.title,
                            interaction.empty() ? std::vector<std::string>{} : std::vector{interaction},
                            steps_table(steps), waterfall_figure(steps, metric)});
        }
    }
    if (const std::string scaling = scaling_figure(sweep); !scaling.empty()) {
        list.push_back({"Ranks", {}, std::nullopt, scaling});
    }
    list.push_back({"Published claims",
                    {"A verdict is given by rule (docs/bench.md), none by hand. Figures are ratios to the baseline."},
                    claims_table(verdicts),
                    ""});
    list.push_back({"Where the time goes",
                    {},
                    std::nullopt,
                    "<div class=\"grid\">" + breakdown_figure(sweep) + loss_figure(sweep) + "</div>\n"});
    list.push_back(
        {"How sure this is", launch_notes(sweep), noise_table(sweep), "<div class=\"grid\">" + strips + "</div>\n"});
    list.push_back({"What could not be measured, and why", {}, missing_table(sweep), ""});
    return list;
}

}  // namespace

std::vector<std::string> answers(const SweepAnalysis& sweep) {
    std::vector<std::string> sentences;
    const MetricResult* time = sweep.find("seconds_per_image", "speed");
    if (time == nullptr) {
        time = sweep.find("training_seconds");
    }
    const MetricResult* memory = sweep.find("memory_mib");
    if (time == nullptr) {
        return {"No launch of the baseline has succeeded, so nothing can be said yet."};
    }
    std::optional<std::size_t> best;
    std::vector<std::string> gains, losses, nothing, unclear;
    for (std::size_t i = 0; i < time->arms.size(); ++i) {
        const std::size_t arm = time->arms[i];
        const Comparison& ours = time->comparison.arms[i];
        const std::string named = str(marked_name(sweep, arm), " (", change_text(ours.ratio), ")");
        if (is_gain(*time, ours)) {
            gains.push_back(named);
            if (!best || ours.ratio < time->of_arm(*best)->ratio) {
                best = arm;
            }
        } else if (is_loss(*time, ours)) {
            losses.push_back(named);
        } else {
            (ours.finding == Finding::no_difference ? nothing : unclear).push_back(marked_name(sweep, arm));
        }
    }
    if (best) {
        const Comparison ours = *time->of_arm(*best);
        const auto its_memory = memory == nullptr ? std::nullopt : memory->of_arm(*best);
        sentences.push_back(str("Switch on ", marked_name(sweep, *best), ": ", sweep.info.arms[*best].settings, ". ",
                                time->metric.title, " ", interval_text(ours), " of the baseline's",
                                its_memory && its_memory->blocks > 0 ? ", memory " + interval_text(*its_memory) : "",
                                "; ", accuracy_text(sweep, *best), "."));
    } else {
        sentences.push_back(
            str("Nothing here is shown to be faster than the baseline.",
                std::isfinite(time->smallest_findable)
                    ? str(" This sweep could have found a difference of ", percent(time->smallest_findable), ".")
                    : ""));
    }
    const auto say = [&](const std::string& what, const std::vector<std::string>& arms) {
        if (!arms.empty()) {
            sentences.push_back(what + base::join(arms, ", ") + ".");
        }
    };
    say("Faster than the baseline: ", gains);
    say("Slower, leave off for speed: ", losses);
    say("No difference in time: ", nothing);
    say("Not clear from this sweep: ", unclear);
    if (memory != nullptr) {
        std::vector<std::string> lean;
        for (std::size_t i = 0; i < memory->arms.size(); ++i) {
            if (is_gain(*memory, memory->comparison.arms[i])) {
                lean.push_back(
                    str(marked_name(sweep, memory->arms[i]), " (", change_text(memory->comparison.arms[i].ratio), ")"));
            }
        }
        say("Takes less memory: ", lean);
    }
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        if (!sweep.failures[arm].empty()) {
            sentences.push_back(str("Failed: ", sweep.info.arms[arm].name, ": ", sweep.failures[arm], "."));
        }
    }
    return sentences;
}

std::string markdown_report(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    std::string text = str("# ", sweep.info.title, "\n\n");
    if (!sweep.info.about.empty()) {
        text += sweep.info.about + "\n\n";
    }
    text += "## What to switch on, and what it gains\n\n";
    for (const std::string& sentence : answers(sweep)) {
        text += str("- ", sentence, "\n");
    }
    text += "\n";
    for (const Section& section : sections(sweep, verdicts)) {
        if (section.paragraphs.empty() && !section.table) {
            continue;  // only figures, which are in report.html
        }
        text += str("## ", section.title, "\n\n");
        for (const std::string& paragraph : section.paragraphs) {
            text += paragraph + "\n\n";
        }
        if (section.table) {
            text += markdown_of(*section.table);
        }
    }
    return text + "## Environment\n\n```\n" + environment_text(sweep) + "```\n";
}

std::string html_report(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    std::string page =
        str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
            "content=\"width=device-width, initial-scale=1\"/><title>",
            escape_html(sweep.info.title), "</title><style>", style, "</style></head><body>\n<h1>",
            escape_html(sweep.info.title), "</h1>\n");
    if (!sweep.info.about.empty()) {
        page += "<p class=\"soft\">" + escape_html(sweep.info.about) + "</p>\n";
    }
    page += "<h2>What to switch on, and what it gains</h2><div class=\"answer\">";
    for (const std::string& sentence : answers(sweep)) {
        page += "<p>" + escape_html(sentence) + "</p>\n";
    }
    page += "</div>\n";
    for (const Section& section : sections(sweep, verdicts)) {
        page += "<h2>" + escape_html(section.title) + "</h2>\n";
        for (const std::string& paragraph : section.paragraphs) {
            page += "<p>" + escape_html(paragraph) + "</p>\n";
        }
        page += section.figures + (section.table ? html_of(*section.table) : "");
    }
    return page + "<h2>Environment</h2><pre>" + escape_html(environment_text(sweep)) + "</pre>\n</body></html>\n";
}

void write_sweep_report(const fs::path& directory) {
    const SweepAnalysis sweep = analyse(directory);
    const std::vector<Verdict> verdicts = judge_claims(published_claims(), sweep);
    base::write_whole(directory / "report.md", markdown_report(sweep, verdicts));
    base::write_whole(directory / "report.html", html_report(sweep, verdicts));
    base::write_whole(directory / "verdicts.json", verdicts_json(verdicts));
}

std::string comparison_text(const std::vector<Change>& changes) {
    if (changes.empty()) {
        return "nothing can be compared: the sweeps share no arm with at least two blocks in both\n";
    }
    std::vector<Change> sorted = changes;
    std::ranges::stable_sort(sorted, {}, [](const Change& change) {
        return change.is_worse ? 0 : change.is_better ? 1 : 2;
    });
    std::string text;
    for (const Change& change : sorted) {
        text += str(change.is_worse    ? "worse   "
                    : change.is_better ? "better  "
                                       : "        ",
                    change.metric, ", ", change.arm, ": ", change_text(change.ratio), " (",
                    change_text(change.interval.low), " to ", change_text(change.interval.high), ", p ",
                    fixed(change.adjusted_p, 4), ")\n");
    }
    const auto worse = std::ranges::count_if(changes, &Change::is_worse);
    return text + str(worse, worse == 1 ? " regression" : " regressions", " among ", changes.size(), " comparisons\n");
}

std::string comparison_json(const std::vector<Change>& changes) {
    json rows = json::array();
    for (const Change& change : changes) {
        rows.push_back({{"metric", change.metric},
                        {"arm", change.arm},
                        {"ratio", change.ratio},
                        {"low", change.interval.low},
                        {"high", change.interval.high},
                        {"p", change.p},
                        {"adjusted_p", change.adjusted_p},
                        {"finding", change.is_worse    ? "worse"
                                    : change.is_better ? "better"
                                                       : "no difference shown"}});
    }
    return json{{"rows", rows}}.dump(1) + "\n";
}

}  // namespace lockstep::bench
