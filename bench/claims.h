#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/analysis.h"

namespace lockstep::bench {

/// One published figure: a ratio to the baseline, or only a direction.
struct ClaimedFigure {
    std::string metric;         ///< as in a record; one that no launch measures yet is "not measurable here"
    std::optional<double> low;  ///< ratio; of a range its ends, else both the same
    std::optional<double> high;
    bool lower_is_better = true;
};

/// A row of bench/claims.toml.
struct Claim {
    std::string id;
    std::string text;                  ///< the claim in words
    std::string source;                ///< T, P or S: which article
    std::string conditions;            ///< those that it gives, if any
    std::vector<std::string> factors;  ///< the plan's factors that are on, all others at the baseline
    std::string arm;                   ///< or an arm by its name
    std::string unmeasured;            ///< why no launch measures it yet
    bool needs_gpu = false;
    std::vector<ClaimedFigure> figures;
};

enum class VerdictKind { holds, falls_short, exceeds, contradicted, not_measurable };
std::string_view name_of(VerdictKind kind);

/// What the sweep says about one figure.
struct FigureVerdict {
    VerdictKind kind = VerdictKind::not_measurable;
    ClaimedFigure claimed;
    std::optional<Comparison> ours;
    std::string reason;
};

struct Verdict {
    Claim claim;
    VerdictKind kind = VerdictKind::not_measurable;
    std::string arm;     ///< the arm that it was judged by
    std::string reason;  ///< always there where it is not measurable
    std::vector<FigureVerdict> figures;
    std::size_t decisive = 0;  ///< the figure that decided; 0 where there is none
};

/// The table in the checkout, compiled in.
std::vector<Claim> published_claims();
std::vector<Claim> parse_claims(std::string_view toml, const std::string& origin);

/// By rule. A figure's neighbourhood is a fifth of its distance from 1 (as logarithms) to both sides, at least the
/// sweep's no-difference band. *holds*: our interval lies in it, or reaches from it to better values with the median in
/// it. *exceeds*: it lies, or its median lies and nothing of it is worse than the neighbourhood, on the better side.
/// *falls short*: it lies on the worse side. *contradicted*: an improvement is claimed, and all of our interval is a
/// change for the worse. Anything else is too wide to tell and *not measurable here*, with the interval as the reason.
/// Where a claim has only a direction it holds if all of our interval is on that side, is contradicted if all of it is
/// on the other, and falls short else.
FigureVerdict judge_figure(const ClaimedFigure& claimed, const Comparison& ours, double band);

/// A row is contradicted if one of its figures is, else falls short if one does, else it is not measurable if none is
/// measured, else exceeds if all measured ones do, else holds.
std::vector<Verdict> judge_claims(const std::vector<Claim>& claims, const SweepAnalysis& sweep);

/// {"claims": [{"id", "verdict", "ours", "low", "high", "claimed", "reason", "arm", "source", "figures": [...]}]};
/// numbers are ratios to the baseline, null where there is none.
std::string verdicts_json(const std::vector<Verdict>& verdicts);

}  // namespace lockstep::bench
