#include "bench/claims.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "bench/claims_text.h"

namespace lockstep::bench {
namespace {

using base::str;
using base::UsageError;
using nlohmann::json;

/// Part of a claim's distance from 1 by which ours may differ.
constexpr double tolerance = 0.2;

ClaimedFigure parse_figure(const toml::table& table, const std::string& where) {
    ClaimedFigure figure;
    for (const auto& [key, node] : table) {
        const std::string_view name = key.str();
        if (name == "metric") {
            figure.metric = node.value_or(std::string());
        } else if (name == "better") {
            const std::string better = node.value_or(std::string());
            if (better != "lower" && better != "higher") {
                throw UsageError(where + ": better must be lower or higher");
            }
            figure.lower_is_better = better == "lower";
        } else if (name == "ratio") {
            if (const toml::array* range = node.as_array()) {
                if (range->size() != 2) {
                    throw UsageError(where + ": ratio must be a number or [low, high]");
                }
                figure.low = range->get(0)->value<double>();
                figure.high = range->get(1)->value<double>();
            } else {
                figure.low = figure.high = node.value<double>();
            }
            if (!figure.low || !figure.high || !(*figure.low > 0 && *figure.low <= *figure.high)) {
                throw UsageError(where + ": ratio must be positive numbers, the lower one first");
            }
        } else {
            throw UsageError(str(where, ": unknown key ", name, " of a figure; known: metric, better, ratio"));
        }
    }
    if (figure.metric.empty()) {
        throw UsageError(where + ": a figure has no metric");
    }
    return figure;
}

/// The arm that a claim speaks of; none where the sweep has none.
std::optional<std::size_t> find_arm(const Claim& claim, const SweepInfo& info) {
    if (!claim.arm.empty()) {
        const auto found = std::ranges::find(info.arms, claim.arm, &SweepArm::name);
        return found == info.arms.end() ? std::nullopt
                                        : std::optional(static_cast<std::size_t>(found - info.arms.begin()));
    }
    const std::set<std::string> wanted(claim.factors.begin(), claim.factors.end());
    std::optional<std::size_t> best;
    for (std::size_t i = 2; i < info.arms.size() && !wanted.empty(); ++i) {
        std::set<std::string> on;
        for (std::size_t f = 0; f < info.factors.size(); ++f) {
            if (info.arms[i].levels[f] > 0) {
                on.insert(info.factors[f].name);
            }
        }
        if (on == wanted) {
            best = i;  // of several levels the last, which is "on"
        }
    }
    return best;
}

/// Why the claim can't be judged by this sweep at all; "" where it can.
std::string obstacle(const Claim& claim, const std::optional<std::size_t>& arm, const SweepAnalysis& sweep) {
    if (claim.needs_gpu) {
        return "needs a GPU";
    }
    for (const auto& [name, reason] : sweep.info.missing) {
        if (std::ranges::find(claim.factors, name) != claim.factors.end()) {
            return reason;
        }
    }
    if (!claim.unmeasured.empty()) {
        return claim.unmeasured;
    }
    if (!arm) {
        return claim.factors.empty() && claim.arm.empty()
                   ? "it names no setting that could be switched"
                   : str("this sweep has no arm for it (",
                         claim.arm.empty() ? base::join(claim.factors, " + ") : claim.arm, ")");
    }
    const SweepArm& info = sweep.info.arms[*arm];
    if (const std::string mark = sweep.mark(info); !mark.empty()) {
        return mark + ": such results are shown and not judged";
    }
    return sweep.failures[*arm].empty() ? "" : str("arm ", info.name, ": ", sweep.failures[*arm]);
}

json number_or_null(const std::optional<double>& value) {
    return value && std::isfinite(*value) ? json(*value) : json();
}

json figure_json(const FigureVerdict& figure) {
    const auto& ours = figure.ours;
    const bool is_range = figure.claimed.low != figure.claimed.high;
    return {
        {"metric", figure.claimed.metric},
        {"verdict", name_of(figure.kind)},
        {"ours", ours ? json(ours->ratio) : json()},
        {"low", ours ? json(ours->interval.low) : json()},
        {"high", ours ? json(ours->interval.high) : json()},
        {"claimed", is_range ? json{*figure.claimed.low, *figure.claimed.high} : number_or_null(figure.claimed.low)},
        {"reason", figure.reason}};
}

}  // namespace

std::string_view name_of(VerdictKind kind) {
    switch (kind) {
        case VerdictKind::holds:
            return "holds";
        case VerdictKind::falls_short:
            return "falls short";
        case VerdictKind::exceeds:
            return "exceeds";
        case VerdictKind::contradicted:
            return "contradicted";
        case VerdictKind::not_measurable:
            break;
    }
    return "not measurable here";
}

std::vector<Claim> published_claims() {
    return parse_claims(claims_text, "bench/claims.toml");
}

std::vector<Claim> parse_claims(std::string_view text, const std::string& origin) {
    toml::table root;
    try {
        root = toml::parse(text, origin);
    } catch (const toml::parse_error& error) {
        throw UsageError(str(origin, ":", error.source().begin.line, ": ", std::string(error.description())));
    }
    std::vector<Claim> claims;
    std::set<std::string> ids;
    const toml::array* rows = root["claim"].as_array();
    for (const toml::node& row : rows != nullptr ? *rows : toml::array()) {
        const std::string where = str(origin, ":", row.source().begin.line);
        const toml::table* table = row.as_table();
        if (table == nullptr) {
            throw UsageError(where + ": a claim must be a table");
        }
        Claim claim;
        for (const auto& [key, node] : *table) {
            const std::string name(key.str());
            if (name == "id") {
                claim.id = node.value_or(std::string());
            } else if (name == "text") {
                claim.text = node.value_or(std::string());
            } else if (name == "source") {
                claim.source = node.value_or(std::string());
            } else if (name == "conditions") {
                claim.conditions = node.value_or(std::string());
            } else if (name == "arm") {
                claim.arm = node.value_or(std::string());
            } else if (name == "unmeasured") {
                claim.unmeasured = node.value_or(std::string());
            } else if (name == "needs_gpu") {
                claim.needs_gpu = node.value_or(false);
            } else if (name == "factors" && node.as_array() != nullptr) {
                for (const toml::node& factor : *node.as_array()) {
                    claim.factors.push_back(factor.value_or(std::string()));
                }
            } else if (name == "figures" && node.as_array() != nullptr) {
                for (const toml::node& figure : *node.as_array()) {
                    if (figure.as_table() == nullptr) {
                        throw UsageError(where + ": a figure must be a table");
                    }
                    claim.figures.push_back(parse_figure(*figure.as_table(), where));
                }
            } else {
                throw UsageError(str(where, ": unknown or misshapen key ", name, " of a claim"));
            }
        }
        if (claim.id.empty() || claim.text.empty() || claim.source.empty()) {
            throw UsageError(where + ": a claim needs id, text and source");
        }
        if (!ids.insert(claim.id).second) {
            throw UsageError(str(where, ": the id ", claim.id, " is there twice"));
        }
        claims.push_back(std::move(claim));
    }
    return claims;
}

FigureVerdict judge_figure(const ClaimedFigure& claimed, const Comparison& ours, double band) {
    FigureVerdict verdict{.kind = VerdictKind::not_measurable, .claimed = claimed, .ours = ours, .reason = {}};
    if (ours.blocks < 2) {
        verdict.reason = str("only ", ours.blocks, " block that can be compared");
        return verdict;
    }
    // Gains: logarithms of which more is better.
    const double sign = claimed.lower_is_better ? -1 : 1;
    double low = sign * std::log(ours.interval.low), high = sign * std::log(ours.interval.high);
    const double middle = sign * std::log(ours.ratio);
    if (low > high) {
        std::swap(low, high);
    }
    if (!claimed.low) {
        verdict.kind = low > 0 ? VerdictKind::holds : high < 0 ? VerdictKind::contradicted : VerdictKind::falls_short;
        verdict.reason =
            verdict.kind == VerdictKind::falls_short ? str("no difference shown: ", interval_text(ours)) : "";
        return verdict;
    }
    double claimed_low = sign * std::log(*claimed.low), claimed_high = sign * std::log(*claimed.high);
    if (claimed_low > claimed_high) {
        std::swap(claimed_low, claimed_high);
    }
    const double margin = std::log1p(band);
    const double worst = claimed_low - std::max(tolerance * std::abs(claimed_low), margin);
    const double best = claimed_high + std::max(tolerance * std::abs(claimed_high), margin);
    const bool claims_a_gain = claimed_low > margin;
    if (claims_a_gain && high < 0) {
        verdict.kind = VerdictKind::contradicted;
    } else if (high < worst) {
        verdict.kind = VerdictKind::falls_short;
    } else if (low >= worst) {
        verdict.kind = middle <= best ? VerdictKind::holds : VerdictKind::exceeds;
    } else {
        verdict.reason = str("too noisy to tell: ", interval_text(ours));
    }
    return verdict;
}

std::vector<Verdict> judge_claims(const std::vector<Claim>& claims, const SweepAnalysis& sweep) {
    std::vector<Verdict> verdicts;
    for (const Claim& claim : claims) {
        Verdict verdict{.claim = claim, .kind = VerdictKind::not_measurable, .arm = {}, .reason = {}, .figures = {}};
        const auto arm = find_arm(claim, sweep.info);
        const std::string reason = obstacle(claim, arm, sweep);
        if (arm) {
            verdict.arm = sweep.info.arms[*arm].name;
        }
        for (const ClaimedFigure& figure : claim.figures) {
            FigureVerdict judged{.kind = VerdictKind::not_measurable, .claimed = figure, .ours = {}, .reason = reason};
            const MetricResult* metric = sweep.find(figure.metric);
            if (arm && metric != nullptr && metric->of_arm(*arm)) {
                if (reason.empty()) {
                    judged = judge_figure(figure, *metric->of_arm(*arm), metric->comparison.band);
                } else {
                    judged.ours = metric->of_arm(*arm);
                }
            } else if (reason.empty()) {
                judged.reason = str("no launch of this sweep measured ", figure.metric);
            }
            verdict.figures.push_back(std::move(judged));
        }
        const auto first = [&](VerdictKind kind) {
            const auto found = std::ranges::find(verdict.figures, kind, &FigureVerdict::kind);
            if (found != verdict.figures.end()) {
                verdict.decisive = static_cast<std::size_t>(found - verdict.figures.begin());
                verdict.kind = kind;
                return true;
            }
            return false;
        };
        if (!(first(VerdictKind::contradicted) || first(VerdictKind::falls_short) || first(VerdictKind::holds) ||
              first(VerdictKind::exceeds))) {
            verdict.reason = !reason.empty()           ? reason
                             : verdict.figures.empty() ? "the claim gives neither a figure nor a direction"
                                                       : verdict.figures.front().reason;
        } else {
            verdict.reason = verdict.figures[verdict.decisive].reason;
        }
        verdicts.push_back(std::move(verdict));
    }
    return verdicts;
}

std::string verdicts_json(const std::vector<Verdict>& verdicts) {
    json rows = json::array();
    for (const Verdict& verdict : verdicts) {
        json row = verdict.figures.empty()
                       ? json{{"ours", nullptr}, {"low", nullptr}, {"high", nullptr}, {"claimed", nullptr}}
                       : figure_json(verdict.figures[verdict.decisive]);
        row.erase("metric");
        row["id"] = verdict.claim.id;
        row["verdict"] = name_of(verdict.kind);
        row["reason"] = verdict.reason;
        row["arm"] = verdict.arm;
        row["source"] = verdict.claim.source;
        row["text"] = verdict.claim.text;
        row["figures"] = json::array();
        for (const FigureVerdict& figure : verdict.figures) {
            row["figures"].push_back(figure_json(figure));
        }
        rows.push_back(std::move(row));
    }
    return json{{"claims", rows}}.dump(1) + "\n";
}

}  // namespace lockstep::bench
