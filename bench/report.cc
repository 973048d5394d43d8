#include "bench/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "bench/figures.h"
#include "bench/report_table.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::escape_html;
using base::fixed;
using base::str;
using nlohmann::json;

/// Accuracy counts as no worse where the interval of its ratio lies above this.
constexpr double no_worse = 0.995;
/// Of the first screen's table.
constexpr std::size_t most_rows = 8;

/// "-38.2%" of a ratio of 0.618.
std::string change_text(double ratio) {
    return str(ratio < 1 ? "−" : "+", fixed(100 * std::abs(ratio - 1), 1), "%");
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

/// The metric that says how good a model became; null where no launch was a whole training.
const MetricResult* score_of(const SweepAnalysis& sweep) {
    const MetricResult* score = sweep.find("AP50");
    return score != nullptr ? score : sweep.find("accuracy");
}

bool costs_accuracy(const SweepAnalysis& sweep, std::size_t arm) {
    const MetricResult* score = score_of(sweep);
    const auto ours = score == nullptr ? std::nullopt : score->of_arm(arm);
    return ours && ours->blocks > 0 && ours->interval.high < no_worse;
}

/// What an arm does to the model: no speed is shown without it.
std::string quality_text(const SweepAnalysis& sweep, std::size_t arm) {
    const MetricResult* score = score_of(sweep);
    if (const auto ours = score == nullptr ? std::nullopt : score->of_arm(arm); ours && ours->blocks > 0) {
        return str(score->metric.title, " ", interval_text(*ours), ", ", finding_text(*score, *ours));
    }
    const auto loss = final_loss(sweep, sweep.info.arms[arm].name);
    const auto of_baseline = final_loss(sweep, sweep.info.arms[baseline_arm].name);
    if (!loss || !of_baseline) {
        return "accuracy not measured";
    }
    return str("accuracy not measured; loss ", fixed(*loss, 3), ", the baseline's ", fixed(*of_baseline, 3));
}

/// "60.3% (59.8% to 61.0%), better", or why there is nothing.
std::string result_text(const SweepAnalysis& sweep, const MetricResult* metric, std::size_t arm) {
    const auto ours = metric == nullptr ? std::nullopt : metric->of_arm(arm);
    if (!ours || ours->blocks == 0) {
        return sweep.failures[arm].empty() ? "–" : "failed";
    }
    return str(interval_text(*ours), ", ", arm == control_arm ? "noise" : finding_text(*metric, *ours));
}

/// Of short launches, or else of whole trainings; null where no baseline succeeded.
const MetricResult* time_of(const SweepAnalysis& sweep) {
    const MetricResult* time = sweep.find("seconds_per_image", "speed");
    return time != nullptr ? time : sweep.find("training_seconds");
}

/// What to do about an arm, and its rank in the table of the first screen.
struct Advice {
    int rank = 0;
    std::string text;
};

Advice advice_on(const SweepAnalysis& sweep, const MetricResult& time, std::size_t arm) {
    const Comparison ours = *time.of_arm(arm);
    const MetricResult* memory = sweep.find("memory_mib");
    const auto its_memory = memory == nullptr ? std::nullopt : memory->of_arm(arm);
    const bool saves_memory = its_memory && is_gain(*memory, *its_memory);
    if (const std::string mark = sweep.mark(sweep.info.arms[arm]); !mark.empty()) {
        return {5, "not judged: " + mark};
    }
    if (costs_accuracy(sweep, arm)) {
        return {4, "costs accuracy"};
    }
    if (is_gain(time, ours)) {
        return {0, saves_memory ? "switch on: faster, and less memory" : "switch on: faster"};
    }
    if (is_loss(time, ours)) {
        return {saves_memory ? 2 : 4, saves_memory ? "only where memory is short: slower" : "leave off: slower"};
    }
    if (saves_memory) {
        return {1, "switch on where memory is short"};
    }
    return ours.finding == Finding::no_difference ? Advice{3, "makes no difference in time"}
                                                  : Advice{3, "not clear: within the noise"};
}

struct AdvisedArm {
    std::size_t arm = 0;
    double ratio = 1;
    Advice advice;
};

/// The best advice first, and of the same advice the fastest.
std::vector<AdvisedArm> advised_arms(const SweepAnalysis& sweep, const MetricResult& time) {
    std::vector<AdvisedArm> arms;
    for (const std::size_t arm : time.arms) {
        arms.push_back({arm, time.of_arm(arm)->ratio, advice_on(sweep, time, arm)});
    }
    std::ranges::stable_sort(arms, {},
                             [](const AdvisedArm& entry) { return std::pair(entry.advice.rank, entry.ratio); });
    return arms;
}

std::string headline_of(const SweepAnalysis& sweep, const MetricResult& time, const std::vector<AdvisedArm>& arms) {
    const auto best = std::ranges::find_if(arms, [](const AdvisedArm& entry) { return entry.advice.rank <= 1; });
    if (best == arms.end()) {
        return str("Nothing here is shown to be faster than the baseline, or to take less memory.",
                   std::isfinite(time.smallest_findable) ? str(" This sweep could have found a difference in time of ",
                                                               percent(time.smallest_findable), ".")
                                                         : " It had too few blocks to find anything.");
    }
    const MetricResult* memory = sweep.find("memory_mib");
    const auto its_memory = memory == nullptr ? std::nullopt : memory->of_arm(best->arm);
    return str("Switch on ", sweep.info.arms[best->arm].name, ": training then takes ",
               interval_text(*time.of_arm(best->arm)), " of the baseline's time",
               its_memory ? str(" and ", interval_text(*its_memory), " of its memory") : std::string(), "; ",
               quality_text(sweep, best->arm), ".");
}

std::vector<std::string> notes_on(const SweepAnalysis& sweep, const MetricResult& time, std::size_t rows) {
    const auto of_baseline = [&](const MetricResult& metric) {
        std::vector<double> values;
        for (const auto& [block, value] : metric.values[baseline_arm]) {
            values.push_back(value * metric.metric.scale);
        }
        return str(fixed(median(values), 2), " ", metric.metric.unit);
    };
    const MetricResult* memory = sweep.find("memory_mib");
    const SweepComparison& noise = time.comparison;
    std::vector<std::string> notes = {str("100% is the baseline, ", sweep.info.recipe, " (",
                                          sweep.info.arms[baseline_arm].settings, "): ", of_baseline(time),
                                          memory != nullptr ? ", " + of_baseline(*memory) : std::string(),
                                          ". In brackets: 95% intervals.")};
    if (noise.control.blocks > 0) {
        notes.push_back(str("The baseline against itself came out at ", interval_text(noise.control),
                            ": what lies within ±", percent(noise.band), " is no difference."));
    }
    for (const MetricResult& metric : sweep.metrics) {
        if (metric.comparison.control_differs) {
            notes.push_back(str("Caution: in ", metric.metric.title,
                                " the baseline differs from itself beyond chance; this sweep's blocks are not "
                                "comparable."));
        }
    }
    if (rows > most_rows) {
        notes.push_back(str(rows - most_rows, " more arms are below."));
    }
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        if (!sweep.failures[arm].empty()) {
            notes.push_back(str("Failed: ", sweep.info.arms[arm].name, ": ", sweep.failures[arm], "."));
        }
    }
    return notes;
}

ReportTable arms_table(const SweepAnalysis& sweep) {
    ReportTable table{{"arm"}, {}};
    for (const MetricResult& metric : sweep.metrics) {
        table.head.push_back(metric.metric.title);
    }
    table.head.emplace_back("final loss");
    table.head.emplace_back("settings");
    for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
        const SweepArm& info = sweep.info.arms[arm];
        std::vector<std::string> row = {sweep.marked_name(arm)};
        for (const MetricResult& metric : sweep.metrics) {
            if (arm == baseline_arm) {
                std::vector<double> values;
                for (const auto& [block, value] : metric.values[arm]) {
                    values.push_back(value * metric.metric.scale);
                }
                row.push_back(str("100% = ", fixed(median(values), 3), " ", metric.metric.unit));
            } else {
                row.push_back(result_text(sweep, &metric, arm));
            }
        }
        const auto loss = final_loss(sweep, info.name);
        row.push_back(loss ? fixed(*loss, 3) : "–");
        row.push_back(info.is_control ? "the baseline once more" : info.settings);
        table.rows.push_back(std::move(row));
    }
    return table;
}

std::string title_of(const SweepAnalysis& sweep, const std::string& metric) {
    const MetricResult* found = sweep.find(metric);
    return found == nullptr ? metric : found->metric.title;
}

std::string claimed_text(const ClaimedFigure& figure) {
    if (!figure.low) {
        return figure.lower_is_better ? "less" : "more";
    }
    return *figure.low == *figure.high ? percent(*figure.low) : percent(*figure.low) + " to " + percent(*figure.high);
}

std::string ours_text(const FigureVerdict& figure) {
    return figure.ours && figure.ours->blocks > 0 ? interval_text(*figure.ours) : "–";
}

/// Ours beside the published one; no rows where the sweep has none of its arms.
ReportTable combination_table(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    ReportTable table{{"arm", "figure", "here", "published", "verdict", "why"}, {}};
    for (const Verdict& verdict : verdicts) {
        if (!verdict.claim.id.starts_with("combo.") || verdict.arm.empty() ||
            verdict.arm == sweep.info.arms[control_arm].name) {
            continue;
        }
        for (const FigureVerdict& figure : verdict.figures) {
            table.rows.push_back({verdict.arm, title_of(sweep, figure.claimed.metric), ours_text(figure),
                                  claimed_text(figure.claimed), std::string(name_of(figure.kind)), figure.reason});
        }
    }
    return table;
}

/// What could be judged first.
ReportTable claims_table(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    ReportTable table{{"claim", "published", "here", "verdict", "why"}, {}};
    for (const bool judged : {true, false}) {
        for (const Verdict& verdict : verdicts) {
            if ((verdict.kind != VerdictKind::not_measurable) != judged) {
                continue;
            }
            std::vector<std::string> ours;
            for (const FigureVerdict& figure : verdict.figures) {
                if (figure.ours && figure.ours->blocks > 0) {
                    ours.push_back(str(title_of(sweep, figure.claimed.metric), " ", ours_text(figure), ": ",
                                       name_of(figure.kind)));
                }
            }
            const Claim& claim = verdict.claim;
            table.rows.push_back({claim.id,
                                  str(claim.text, claim.conditions.empty() ? "" : " [" + claim.conditions + "]", " (",
                                      claim.source, ")"),
                                  ours.empty() ? "–" : base::join(ours, "; "), std::string(name_of(verdict.kind)),
                                  verdict.reason});
        }
    }
    return table;
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

ReportTable time_table(const SweepAnalysis& sweep, const std::vector<TimeParts>& parts) {
    ReportTable table{
        {"arm", "ms an image", "waiting for data", "waiting for gradients", "skew of ranks", "core of the reduction"},
        {}};
    for (const TimeParts& bar : parts) {
        const auto share = [&](double part) { return percent(bar.total > 0 ? part / bar.total : 0); };
        table.rows.push_back({sweep.marked_name(bar.arm), fixed(bar.total, 2), share(bar.data), share(bar.exposed),
                              share(bar.skew), share(bar.core)});
    }
    return table;
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
    std::vector<std::string> warnings;
    for (const Record& record : sweep.records) {
        disturbed += record.interference.empty() ? 0 : 1;
        failed += record.status == LaunchStatus::ok ? 0 : 1;
        drifting += record.warm_up.still_drifts && record.measurement == "speed" ? 1 : 0;
        for (const std::string& warning : record.warnings) {
            if (std::ranges::find(warnings, warning) == warnings.end() && warnings.size() < most_rows) {
                warnings.push_back(warning);
            }
        }
    }
    std::vector<std::string> notes = {str(sweep.records.size(), " launches; ", disturbed,
                                          " were disturbed by something else on the machine, ", failed, " failed, ",
                                          drifting, " still drifted after half of their steps.")};
    for (const std::string& warning : warnings) {
        notes.push_back("Trainings warned: " + warning);
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

ReportTable environment_table(const SweepAnalysis& sweep) {
    ReportTable table{{"what", "value"}, {}};
    if (sweep.records.empty()) {
        return table;
    }
    const Record& first = sweep.records.front();
    const json provenance = json::parse(first.provenance);
    for (const auto& [key, value] : provenance.items()) {
        std::vector<std::string> parts;
        for (const auto& [name, part] : value.items()) {
            const std::string text = part.is_string() ? part.get<std::string>() : part.dump();
            parts.push_back(value.is_object() ? name + " " + text : text);
        }
        table.rows.push_back({key, parts.empty() ? "–" : base::join(parts, ", ")});
    }
    for (const auto& [data, hash] : first.data_hashes) {
        table.rows.push_back({"data " + data, hash});
    }
    table.rows.push_back({"first launch", first.started});
    table.rows.push_back({"last launch", sweep.records.back().ended});
    return table;
}

struct Section {
    std::string title;
    std::vector<std::string> paragraphs;
    ReportTable table;
    std::string figures;  ///< HTML only
};

std::vector<Section> sections(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    std::vector<Section> list;
    std::string intervals, strips;
    for (const MetricResult& metric : sweep.metrics) {
        intervals += interval_figure(sweep, metric);
        strips += strip_figure(sweep, metric);
    }
    if (ReportTable combination = combination_table(sweep, verdicts); !combination.rows.empty()) {
        list.push_back({"The combination table, beside the published one",
                        {"Ratios to the baseline. Nothing is known of the published figures' spread."},
                        std::move(combination),
                        ""});
    }
    list.push_back({"Every arm",
                    {"Median ratios to the baseline over blocks, with 95% intervals. \"again\" is the baseline once "
                     "more: what differs is noise."},
                    arms_table(sweep),
                    intervals});
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
        list.push_back({"Ranks", {}, {}, scaling});
    }
    list.push_back({"Published claims",
                    {"Three practitioners' articles (T, P, S) give these figures, without spread. A verdict is given "
                     "by rule, none by hand; figures are ratios to the baseline."},
                    claims_table(sweep, verdicts),
                    ""});
    const std::vector<TimeParts> parts = time_parts(sweep);
    if (!parts.empty()) {
        list.push_back(
            {"Where the time goes",
             {"Shares of the time of an image. Waiting for gradients is what the last rank still waited; the "
              "skew is what the first one waited for the last. The core of the reduction is what it took of "
              "a core while gradients were computed."},
             time_table(sweep, parts),
             breakdown_figure(sweep, parts) + loss_figure(sweep)});
    }
    list.push_back({"How sure this is", launch_notes(sweep), noise_table(sweep), strips});
    list.push_back({"What could not be measured, and why", {}, missing_table(sweep), ""});
    list.push_back({"Environment", {}, environment_table(sweep), ""});
    return list;
}

constexpr const char* style = R"(
:root{color-scheme:light dark;--ink:#1c2430;--soft:#5b6675;--line:#d9dee5;--paper:#fdfdfc;--card:#fff;--good:#2e7d4f;--bad:#a3293d;--mid:#2563a8;--warm:#b4530a;--band:#e8ecf1}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ee;--soft:#9aa5b4;--line:#343c48;--paper:#14181e;--card:#1b2028;--good:#6cc492;--bad:#ee7f90;--mid:#6ba6e8;--warm:#f0a35e;--band:#262d37}}
*{box-sizing:border-box}body{margin:0 auto;max-width:1320px;padding:24px 16px 60px;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 6px}h2{font-size:1.15rem;margin:40px 0 10px}p{margin:0 0 8px;max-width:80em}.soft{color:var(--soft);font-size:.9rem}
.answer{background:var(--card);border:1px solid var(--line);border-left:4px solid var(--good);border-radius:8px;padding:14px 18px;margin:18px 0}.answer h2{margin:0 0 6px}.answer .head{font-size:1.15rem;font-weight:600}
code{display:block;font:.82rem/1.5 ui-monospace,monospace;background:var(--band);border-radius:6px;padding:8px 10px;margin:0 0 12px}
.grid{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:18px;align-items:start;margin:0 0 18px}figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
figcaption{font-size:.82rem;color:var(--soft);margin-top:8px}svg{display:block;width:100%;height:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums;font-size:.86rem;margin:0 0 12px}td,th{padding:5px 12px 5px 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);overflow-wrap:anywhere}th{color:var(--soft);font-weight:600}td:first-child{font-weight:600;min-width:7em}
text{fill:var(--ink);font:12px system-ui,sans-serif}text.s{fill:var(--soft);font-size:11px}.axis{stroke:var(--line)}.one{stroke:var(--soft);stroke-dasharray:3 3}.band{fill:var(--band)}
@media (max-width:720px){thead{display:none}table,tbody,tr,td{display:block}tr{border-bottom:1px solid var(--line);padding:8px 0}td{display:grid;grid-template-columns:8em minmax(0,1fr);gap:8px;border:0;padding:1px 0}td::before{content:attr(data-head);color:var(--soft);overflow-wrap:break-word}td:first-child{display:block}td:first-child::before{content:none}td:empty{display:none}}
@media print{body{max-width:none;padding:0}figure,tr{break-inside:avoid}}
)";

}  // namespace

Answer answer_of(const SweepAnalysis& sweep) {
    const MetricResult* time = time_of(sweep);
    if (time == nullptr) {
        Answer answer;
        answer.headline = "No launch of the baseline has succeeded, so nothing can be said yet.";
        for (std::size_t arm = 0; arm < sweep.info.arms.size(); ++arm) {
            answer.notes.push_back(str(sweep.info.arms[arm].name, ": ", sweep.failures[arm], "."));
        }
        return answer;
    }
    const std::vector<AdvisedArm> arms = advised_arms(sweep, *time);
    Answer answer;
    answer.headline = headline_of(sweep, *time, arms);
    if (!arms.empty() && arms.front().advice.rank <= 1) {
        answer.command = sweep.info.arms[arms.front().arm].command;
    }
    answer.table.head = {"switched on", "what to do", "training time", "memory", "model"};
    for (std::size_t i = 0; i < std::min(arms.size(), most_rows); ++i) {
        const std::size_t arm = arms[i].arm;
        answer.table.rows.push_back({sweep.info.arms[arm].name, arms[i].advice.text, result_text(sweep, time, arm),
                                     result_text(sweep, sweep.find("memory_mib"), arm), quality_text(sweep, arm)});
    }
    answer.notes = notes_on(sweep, *time, arms.size());
    return answer;
}

std::string markdown_report(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    const Answer answer = answer_of(sweep);
    std::string text = str("# ", sweep.info.title, "\n\n");
    if (!sweep.info.about.empty()) {
        text += sweep.info.about + "\n\n";
    }
    text += str("## What to switch on, and what it gains\n\n**", answer.headline, "**\n\n");
    if (!answer.command.empty()) {
        text += str("```\n", answer.command, "\n```\n\n");
    }
    if (!answer.table.rows.empty()) {
        text += markdown_of(answer.table);
    }
    for (const std::string& note : answer.notes) {
        text += str("- ", note, "\n");
    }
    text += "\n";
    for (const Section& section : sections(sweep, verdicts)) {
        if (section.table.rows.empty()) {
            continue;  // only figures, which are in report.html
        }
        text += str("## ", section.title, "\n\n");
        for (const std::string& paragraph : section.paragraphs) {
            text += paragraph + "\n\n";
        }
        text += markdown_of(section.table);
    }
    return text;
}

std::string html_report(const SweepAnalysis& sweep, const std::vector<Verdict>& verdicts) {
    const Answer answer = answer_of(sweep);
    const auto paragraph = [](const std::string& text, const char* kind) {
        return str("<p class=\"", kind, "\">", escape_html(text), "</p>\n");
    };
    std::string page =
        str("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/><meta name=\"viewport\" "
            "content=\"width=device-width, initial-scale=1\"/><title>",
            escape_html(sweep.info.title), "</title><style>", style, "</style></head><body>\n<h1>",
            escape_html(sweep.info.title), "</h1>\n");
    if (!sweep.info.about.empty()) {
        page += paragraph(sweep.info.about, "soft");
    }
    page += "<div class=\"answer\"><h2>What to switch on, and what it gains</h2>" + paragraph(answer.headline, "head");
    if (!answer.command.empty()) {
        page += "<code>" + escape_html(answer.command) + "</code>\n";
    }
    if (!answer.table.rows.empty()) {
        page += html_of(answer.table);
    }
    for (const std::string& note : answer.notes) {
        page += paragraph(note, "soft");
    }
    page += "</div>\n";
    for (const Section& section : sections(sweep, verdicts)) {
        page += "<h2>" + escape_html(section.title) + "</h2>\n";
        for (const std::string& text : section.paragraphs) {
            page += paragraph(text, "soft");
        }
        if (!section.table.rows.empty()) {
            page += html_of(section.table);
        }
        if (!section.figures.empty()) {
            page += "<div class=\"grid\">" + section.figures + "</div>\n";
        }
    }
    return page + "</body></html>\n";
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
