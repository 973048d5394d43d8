// From records to comparisons, verdicts and pages. Sweeps are written by hand here: what comes out is known.

#include "bench/report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "tests/base/scratch.h"

namespace lockstep::bench {
namespace {

using nlohmann::json;

/// A sweep of blocks x arms, whose arms take `factors` of the baseline's time and memory, with a little noise.
struct MadeSweep {
    SweepInfo info;
    std::vector<Record> records;
    double noise = 0.004;

    explicit MadeSweep(std::vector<std::string> factors) {
        info.title = "Made up <by> hand & \"quoted\"";
        info.plan_hash = "plan";
        info.recipe = "recipe.toml";
        info.seed = 1;
        for (const std::string& name : factors) {
            info.factors.push_back({name, "", {"off", "on"}});
        }
        info.measurements = {{"speed", 12, {}}};
        const std::vector<std::size_t> none(factors.size(), 0);
        info.arms.push_back({.name = "baseline",
                             .levels = none,
                             .settings = "as the recipe says",
                             .command = "lockstep train recipe.toml",
                             .impossible = {}});
        info.arms.push_back(
            {.name = "again", .levels = none, .settings = "", .command = "", .is_control = true, .impossible = {}});
        add_launches("baseline", 1, 1);
        add_launches("again", 1, 1);
    }
    SweepArm& add_arm(const std::string& name, const std::vector<std::size_t>& levels, double time, double memory) {
        info.arms.push_back(
            {.name = name, .levels = levels, .settings = name + "=on", .command = "train " + name, .impossible = {}});
        add_launches(name, time, memory);
        return info.arms.back();
    }
    void add_launches(const std::string& arm, double time, double memory, const std::string& measurement = "speed",
                      std::int64_t blocks = 12, double score = 0) {
        for (std::int64_t block = 1; block <= blocks; ++block) {
            base::Random random(7, base::RandomPurpose::test, records.size(), 0);
            Record record;
            record.id = base::str("r", records.size());
            record.sweep = "plan";
            record.measurement = measurement;
            record.block = block;
            record.arm = arm;
            record.order = static_cast<std::int64_t>(records.size());
            record.provenance = R"({"cores": 2, "cpu": "<fast>"})";
            record.status = LaunchStatus::ok;
            // Blocks drift; a pair within a block doesn't.
            const double drift = 1 + 0.05 * static_cast<double>(block);
            record.metrics = {{"seconds_per_image", 0.1 * time * drift * std::exp(noise * random.normal())},
                              {"memory_mib", 500 * memory * std::exp(0.1 * noise * random.normal())},
                              {"data_wait_fraction", 0.2},
                              {"exposed_communication_fraction", 0.1},
                              {"final_loss", 3.5}};
            if (score > 0) {
                record.metrics["AP50"] = score;
            }
            record.steps.loss = {9, 6, 4, 3.5};
            records.push_back(record);
        }
    }
    SweepAnalysis analysed() const { return analyse(info, records); }
};

TEST(Analysis, FindsThePlantedRatiosThroughADrift) {
    MadeSweep made({"precision", "bucket"});
    made.add_arm("precision", {1, 0}, 0.6, 0.8);
    made.add_arm("bucket", {0, 1}, 1, 1);
    const SweepAnalysis sweep = made.analysed();
    EXPECT_EQ(sweep.cores, 2);
    const MetricResult& time = *sweep.find("seconds_per_image");
    EXPECT_NEAR(time.of_arm(2)->ratio, 0.6, 0.005);
    EXPECT_EQ(time.of_arm(2)->finding, Finding::lower);
    EXPECT_NE(time.of_arm(3)->finding, Finding::lower);
    EXPECT_NE(time.of_arm(3)->finding, Finding::higher);
    EXPECT_NEAR(sweep.find("memory_mib")->of_arm(2)->ratio, 0.8, 0.005);
    EXPECT_EQ(sweep.find("AP50"), nullptr) << "no launch measured it";
}

TEST(Analysis, TakesTheUndisturbedLaunchOfABlock) {
    MadeSweep made({"precision"});
    made.add_arm("precision", {1}, 0.6, 1);
    for (std::size_t i = 0, end = made.records.size(); i < end; ++i) {
        if (made.records[i].arm == "precision") {
            Record again = made.records[i];
            made.records[i].interference = {"load"};
            made.records[i].metrics["seconds_per_image"] *= 3;
            again.attempt = 2;
            again.order = static_cast<std::int64_t>(made.records.size());
            made.records.push_back(again);
        }
    }
    EXPECT_NEAR(made.analysed().find("seconds_per_image")->of_arm(2)->ratio, 0.6, 0.005);
    for (Record& record : made.records) {
        record.interference = {"load"};
    }
    EXPECT_NEAR(made.analysed().find("seconds_per_image")->of_arm(2)->ratio, 0.6, 0.005)
        << "of disturbed ones the last";
}

TEST(Analysis, FailedAndStrangeLaunchesDoNotCount) {
    MadeSweep made({"precision"});
    made.add_arm("precision", {1}, 0.6, 1);
    for (Record& record : made.records) {
        if (record.arm == "precision") {
            record.status = LaunchStatus::failed;
            record.reason = "out of memory";
        }
    }
    Record stranger = made.records.front();
    stranger.sweep = "another plan";
    stranger.metrics["seconds_per_image"] = 1e9;
    made.records.push_back(stranger);
    const SweepAnalysis sweep = made.analysed();
    EXPECT_FALSE(sweep.find("seconds_per_image")->of_arm(2).has_value());
    EXPECT_EQ(sweep.failures[2], "out of memory");
    EXPECT_TRUE(base::contains(markdown_report(sweep, {}), "Failed: precision: out of memory"));
    EXPECT_LT(sweep.find("seconds_per_image")->values[0].at(1), 1);
}

Comparison comparison(double ratio, double low, double high) {
    return {.blocks = 12, .ratio = ratio, .interval = {low, high}};
}

TEST(Verdicts, FollowTheRule) {
    // Claimed 0.6: the neighbourhood is 0.6^1.2 = 0.542 to 0.6^0.8 = 0.665.
    const ClaimedFigure claimed{.metric = "seconds_per_image", .low = 0.6, .high = 0.6};
    const auto kind = [&](const ClaimedFigure& figure, const Comparison& ours) {
        return judge_figure(figure, ours, 0.01).kind;
    };
    EXPECT_EQ(kind(claimed, comparison(0.61, 0.58, 0.64)), VerdictKind::holds);
    EXPECT_EQ(kind(claimed, comparison(0.56, 0.50, 0.60)), VerdictKind::holds) << "better values at one end";
    EXPECT_EQ(kind(claimed, comparison(0.50, 0.45, 0.60)), VerdictKind::exceeds);
    EXPECT_EQ(kind(claimed, comparison(0.40, 0.38, 0.42)), VerdictKind::exceeds);
    EXPECT_EQ(kind(claimed, comparison(0.80, 0.70, 0.90)), VerdictKind::falls_short);
    EXPECT_EQ(kind(claimed, comparison(1.00, 0.98, 1.02)), VerdictKind::falls_short);
    EXPECT_EQ(kind(claimed, comparison(1.20, 1.10, 1.30)), VerdictKind::contradicted);
    const FigureVerdict wide = judge_figure(claimed, comparison(0.65, 0.5, 0.9), 0.01);
    EXPECT_EQ(wide.kind, VerdictKind::not_measurable);
    EXPECT_TRUE(base::contains(wide.reason, "too noisy to tell: 65.0% (50.0% to 90.0%)"));
    // A range, and a figure of which more is better.
    const ClaimedFigure range{.metric = "x", .low = 2.0, .high = 3.0, .lower_is_better = false};
    EXPECT_EQ(kind(range, comparison(2.5, 1.9, 3.2)), VerdictKind::holds);
    EXPECT_EQ(kind(range, comparison(1.3, 1.2, 1.4)), VerdictKind::falls_short);
    EXPECT_EQ(kind(range, comparison(5, 4.5, 5.5)), VerdictKind::exceeds);
    EXPECT_EQ(kind(range, comparison(0.8, 0.7, 0.9)), VerdictKind::contradicted);
    // Nearly nothing claimed: the band is the neighbourhood. A loss that was admitted isn't contradicted by a loss.
    const ClaimedFigure little{.metric = "AP50", .low = 0.997, .high = 0.997, .lower_is_better = false};
    EXPECT_EQ(kind(little, comparison(1.0, 0.995, 1.005)), VerdictKind::holds);
    EXPECT_EQ(kind(little, comparison(0.9, 0.85, 0.95)), VerdictKind::falls_short);
    // Only a direction.
    const ClaimedFigure less{.metric = "memory_mib", .low = {}, .high = {}};
    EXPECT_EQ(kind(less, comparison(0.9, 0.85, 0.95)), VerdictKind::holds);
    EXPECT_EQ(kind(less, comparison(1.1, 1.05, 1.15)), VerdictKind::contradicted);
    EXPECT_EQ(kind(less, comparison(1.0, 0.9, 1.1)), VerdictKind::falls_short);
    EXPECT_EQ(kind(less, Comparison{.blocks = 1, .ratio = 0.5, .interval = {0.5, 0.5}}), VerdictKind::not_measurable);
}

const Verdict& verdict_of(const std::vector<Verdict>& verdicts, const std::string& id) {
    const auto found = std::ranges::find_if(verdicts, [&](const Verdict& verdict) { return verdict.claim.id == id; });
    if (found == verdicts.end()) {
        throw std::runtime_error("no verdict on " + id);
    }
    return *found;
}

TEST(Verdicts, EveryPublishedRowGetsOneOfFive) {
    MadeSweep made({"precision", "ranks", "zero"});
    made.add_arm("precision", {1, 0, 0}, 0.741, 0.6);
    made.add_arm("ranks", {0, 1, 0}, 0.7, 1.9).ranks = 2;
    made.add_arm("ranks + zero", {0, 1, 1}, 0.7, 1.7).ranks = 4;
    made.info.missing = {{"quantisation", "there is no quantised inference yet"}};
    const auto verdicts = judge_claims(published_claims(), made.analysed());
    EXPECT_EQ(verdicts.size(), published_claims().size());
    const std::set<std::string> known = {"holds", "falls short", "exceeds", "contradicted", "not measurable here"};
    for (const Verdict& verdict : verdicts) {
        EXPECT_TRUE(known.contains(std::string(name_of(verdict.kind)))) << verdict.claim.id;
        EXPECT_EQ(verdict.reason.empty() && verdict.kind == VerdictKind::not_measurable, false) << verdict.claim.id;
    }
    EXPECT_EQ(verdict_of(verdicts, "amp.t").kind, VerdictKind::holds);
    EXPECT_EQ(verdict_of(verdicts, "amp.p").kind, VerdictKind::falls_short) << "1.35x where 1.5x is the least claimed";
    EXPECT_EQ(verdict_of(verdicts, "ddp").kind, VerdictKind::exceeds);
    EXPECT_EQ(verdict_of(verdicts, "zero").reason, "4 ranks share 2 cores: such results are shown and not judged");
    EXPECT_EQ(verdict_of(verdicts, "nccl.tuned").reason, "needs a GPU");
    EXPECT_EQ(verdict_of(verdicts, "quant.static8").reason, "there is no quantised inference yet");
    EXPECT_TRUE(base::contains(verdict_of(verdicts, "compile").reason, "no arm for it (graph)"));
    EXPECT_EQ(verdict_of(verdicts, "combo.base").kind, VerdictKind::holds) << "the baseline against itself";
    // The contract of verdicts.json.
    const json written = json::parse(verdicts_json(verdicts));
    ASSERT_EQ(written["claims"].size(), verdicts.size());
    for (const json& row : written["claims"]) {
        for (const char* key : {"id", "verdict", "ours", "low", "high", "claimed"}) {
            EXPECT_TRUE(row.contains(key)) << row["id"] << " lacks " << key;
        }
        EXPECT_TRUE(known.contains(row["verdict"].get<std::string>()));
        if (row["id"] == "amp.t") {
            EXPECT_NEAR(row["ours"].get<double>(), 0.741, 0.01);
            EXPECT_LE(row["low"], row["ours"]);
            EXPECT_GE(row["high"], row["ours"]);
            EXPECT_EQ(row["claimed"], 0.741);
        }
    }
}

TEST(Verdicts, ContradictionOutweighsTheRest) {
    MadeSweep made({"precision"});
    made.add_arm("precision", {1}, 0.741, 1.2);
    const Verdict verdict = verdict_of(judge_claims(published_claims(), made.analysed()), "amp.t");
    EXPECT_EQ(verdict.kind, VerdictKind::contradicted) << "40% less memory was claimed, 20% more is taken";
    EXPECT_EQ(verdict.figures[verdict.decisive].claimed.metric, "memory_mib");
}

TEST(Claims, AreTheRowsOfThePublishedTable) {
    // The ids of the three articles' tables, by hand.
    const std::vector<std::string> expected = {
        "combo.base",    "combo.amp_ddp",   "combo.all",     "quant.none",    "quant.dynamic8",
        "quant.static8", "quant.mixed16",   "load.mmap",     "load.threads",  "load.threads.zero",
        "load.cache",    "load.functional", "scale.dynamic", "batch.dynamic", "accumulate.4",
        "accumulate.lr", "accumulate.bn",   "amp.t",         "amp.p",         "amp.s",
        "amp.heads",     "amp.lr",          "compile",       "ddp",           "zero",
        "nccl.tuned",    "nccl.env",        "warmup",        "lr.linear",     "lr.floor",
        "all.40"};
    std::vector<std::string> ids;
    for (const Claim& claim : published_claims()) {
        ids.push_back(claim.id);
    }
    EXPECT_EQ(ids, expected);
}

TEST(Claims, AreRefusedWhereTheyAreWrong) {
    const auto refusal = [](const std::string& text) {
        return base::message_of<base::UsageError>([&] { parse_claims(text, "claims.toml"); });
    };
    const std::string head = "[[claim]]\nid = \"a\"\ntext = \"t\"\nsource = \"T\"\n";
    EXPECT_TRUE(base::contains(refusal("[[claim]]\nid = \"a\"\n"), "needs id, text and source"));
    EXPECT_TRUE(base::contains(refusal(head + "figure = 1\n"), "unknown or misshapen key figure"));
    EXPECT_TRUE(base::contains(refusal(head + head), "the id a is there twice"));
    EXPECT_TRUE(base::contains(refusal(head + "figures = [{metric = \"x\", ratio = -1}]\n"), "positive"));
    EXPECT_TRUE(base::contains(refusal(head + "figures = [{ratio = 1.0}]\n"), "no metric"));
    EXPECT_TRUE(base::contains(refusal(head + "figures = [{metric = \"x\", best = 1}]\n"), "unknown key best"));
}

/// A page with everything in it.
SweepAnalysis rich_sweep() {
    MadeSweep made({"precision", "ranks", "zero"});
    made.info.measurements.push_back({"accuracy", 3, {}});
    made.add_arm("precision", {1, 0, 0}, 0.6, 0.8);
    made.add_arm("ranks", {0, 1, 0}, 0.7, 1.9).ranks = 4;
    made.add_arm("zero", {0, 0, 1}, 1.2, 0.9);
    made.add_arm("precision + ranks", {1, 1, 0}, 0.5, 1.7).ranks = 2;
    made.add_arm("all", {1, 1, 1}, 0.55, 1.6).ranks = 4;
    made.add_arm("all without precision", {0, 1, 1}, 0.75, 1.75).simulates_nodes = true;
    for (const auto& [arm, score] : {std::pair{"baseline", 0.8}, {"again", 0.8}, {"precision", 0.8}}) {
        made.add_launches(arm, 1, 1, "accuracy", 3, score);
    }
    made.info.arms.push_back(
        {.name = "refused", .levels = {1, 0, 1}, .settings = "x", .command = "", .impossible = "the recipe says no"});
    made.info.missing = {{"graph", "no captured step yet"}};
    return made.analysed();
}

TEST(Report, FirstScreenSaysWhatToSwitchOnAndWhatItGains) {
    const SweepAnalysis sweep = rich_sweep();
    const Answer answer = answer_of(sweep);
    EXPECT_TRUE(answer.headline.starts_with("Switch on precision + ranks: training then takes ")) << answer.headline;
    EXPECT_TRUE(base::contains(answer.headline, "accuracy not measured; loss 3.500, the baseline's 3.500"))
        << "no speed without it";
    EXPECT_EQ(answer.command, "train precision + ranks");
    const auto advice = [&](const std::string& arm) {
        const auto row = std::ranges::find_if(answer.table.rows, [&](const auto& cells) { return cells[0] == arm; });
        return row == answer.table.rows.end() ? "not there" : (*row)[1];
    };
    EXPECT_EQ(answer.table.rows[0][0], "precision + ranks");
    EXPECT_EQ(advice("precision + ranks"), "switch on: faster");
    EXPECT_EQ(advice("precision"), "switch on: faster, and less memory");
    EXPECT_EQ(advice("zero"), "only where memory is short: slower");
    EXPECT_EQ(advice("all"), "not judged: 4 ranks share 2 cores");
    EXPECT_EQ(advice("all without precision"), "not judged: simulated nodes");
    const std::string notes = base::join(answer.notes, "\n");
    EXPECT_TRUE(base::contains(notes, "100% is the baseline, recipe.toml (as the recipe says): "));
    EXPECT_TRUE(base::contains(notes, "Failed: refused: the recipe says no."));
    MadeSweep nothing({"precision"});
    nothing.add_arm("precision", {1}, 1, 1);
    EXPECT_TRUE(base::contains(answer_of(nothing.analysed()).headline, "Nothing here is shown to be faster"));
    EXPECT_TRUE(base::contains(answer_of(nothing.analysed()).headline, "could have found a difference in time of "));
    EXPECT_EQ(answer_of(nothing.analysed()).command, "");
}

TEST(Report, AnArmThatCostsAccuracyIsNotRecommended) {
    MadeSweep made({"precision", "bucket"});
    made.add_arm("precision", {1, 0}, 0.5, 0.8);
    made.add_arm("bucket", {0, 1}, 0.9, 1);
    for (const auto& [arm, score] : {std::pair{"baseline", 0.8}, {"again", 0.8}, {"precision", 0.6}, {"bucket", 0.8}}) {
        made.add_launches(arm, 1, 1, "accuracy", 3, score);
    }
    const Answer answer = answer_of(made.analysed());
    EXPECT_TRUE(answer.headline.starts_with("Switch on bucket: ")) << answer.headline;
    EXPECT_EQ(answer.table.rows.back()[1], "costs accuracy");
}

TEST(Report, MarkdownHasEverySection) {
    const SweepAnalysis sweep = rich_sweep();
    const std::string page = markdown_report(sweep, judge_claims(published_claims(), sweep));
    for (const char* part :
         {"# Made up <by> hand", "## What to switch on, and what it gains", "## Every arm",
          "## One after the other, and one left out", "the gains do not multiply", "## Published claims", "| amp.t |",
          "## How sure this is", "smallest difference this sweep could have found",
          "## What could not be measured, and why", "| graph | no captured step yet |",
          "| arm refused | the recipe says no |", "4 ranks share 2 cores", "## Environment", "AP50", "no worse"}) {
        EXPECT_TRUE(base::contains(page, part));
    }
    // Rows of a table have as many cells as its head.
    std::size_t columns = 0;
    for (const std::string& line : base::split(page, '\n')) {
        std::size_t cells = 0;
        for (std::size_t i = 0; i < line.size(); ++i) {
            cells += line[i] == '|' && (i == 0 || line[i - 1] != '\\') ? 1 : 0;
        }
        if (!line.starts_with("|")) {
            columns = 0;
        } else if (columns == 0) {
            columns = cells;
        } else {
            EXPECT_EQ(cells, columns) << line;
        }
    }
}

/// Tags that don't nest, by line; every figure's children.
struct Page {
    std::vector<std::string> problems;
    std::size_t figures = 0, drawings = 0;
    std::map<std::string, std::string> attributes;

    explicit Page(const std::string& html) {
        static const std::regex tag(R"(<(/?)([a-zA-Z0-9]+)((?:\s+[a-zA-Z0-9:-]+="[^"<]*")*)\s*(/?)>)");
        std::vector<std::string> open;
        std::map<std::string, bool> in_figure;
        std::string rest = html.substr(html.find("<html"));
        std::size_t brackets = static_cast<std::size_t>(std::ranges::count(rest, '<')), tags = 0;
        for (auto match = std::sregex_iterator(rest.begin(), rest.end(), tag); match != std::sregex_iterator();
             ++match) {
            ++tags;
            const std::string name = (*match)[2];
            if ((*match)[4] == "/") {
                continue;
            }
            if ((*match)[1] == "/") {
                if (open.empty() || open.back() != name) {
                    problems.push_back("</" + name + "> closes " +
                                       (open.empty() ? "nothing" : "<" + open.back() + ">"));
                    return;
                }
                if (name == "figure" && !(in_figure["svg"] && in_figure["figcaption"])) {
                    problems.emplace_back("a figure without drawing or caption");
                }
                open.pop_back();
                continue;
            }
            if (name == "figure") {
                ++figures;
                in_figure.clear();
            }
            drawings += name == "svg" ? 1 : 0;
            in_figure[name] = true;
            open.push_back(name);
        }
        if (!open.empty()) {
            problems.push_back("<" + open.back() + "> is not closed");
        }
        if (tags != brackets) {
            problems.push_back(base::str(brackets - tags, " < that begin no tag"));
        }
    }
};

TEST(Report, HtmlIsWellFormedSelfContainedAndCaptioned) {
    const SweepAnalysis sweep = rich_sweep();
    const std::string html = html_report(sweep, judge_claims(published_claims(), sweep));
    const Page page(html);
    EXPECT_EQ(page.problems, std::vector<std::string>{});
    EXPECT_GE(page.figures, 8u);
    EXPECT_EQ(page.figures, page.drawings) << "every drawing is a figure with a caption";
    EXPECT_TRUE(html.starts_with("<!DOCTYPE html>"));
    for (const char* foreign :
         {"http:", "https:", "src=", "href=", "@import", "url(", "<script", "<link", "<img", "<iframe"}) {
        EXPECT_EQ(html.find(foreign), std::string::npos) << foreign;
    }
    EXPECT_TRUE(base::contains(html, "prefers-color-scheme:dark"));
    EXPECT_TRUE(base::contains(html, "@media print"));
    EXPECT_TRUE(base::contains(html, "Made up &lt;by&gt; hand &amp; &quot;quoted&quot;"));
    EXPECT_TRUE(base::contains(html, "&lt;fast&gt;"));
    EXPECT_EQ(html.find("nan"), std::string::npos);
    EXPECT_TRUE(base::contains(html, "Hollow points are no scaling"));
}

/// bench/report_page opens it in a browser.
TEST(Report, WritesThePageThatABrowserIsShown) {
    const SweepAnalysis sweep = rich_sweep();
    base::write_whole(REPORT_PAGE, html_report(sweep, judge_claims(published_claims(), sweep)));
}

TEST(Report, OfASweepWithoutAnySuccess) {
    MadeSweep made({"precision"});
    for (Record& record : made.records) {
        record.status = LaunchStatus::failed;
        record.reason = "no such recipe";
        record.metrics.clear();
    }
    const SweepAnalysis sweep = made.analysed();
    EXPECT_TRUE(base::contains(answer_of(sweep).headline, "nothing can be said yet"));
    EXPECT_EQ(Page(html_report(sweep, judge_claims(published_claims(), sweep))).problems, std::vector<std::string>{});
    made.records.clear();
    EXPECT_EQ(Page(html_report(made.analysed(), judge_claims(published_claims(), made.analysed()))).problems,
              std::vector<std::string>{});
}

TEST(Compare, FindsARegressionAndNothingElse) {
    MadeSweep before({"precision", "bucket"}), after({"precision", "bucket"});
    after.noise = 0.005;
    before.add_arm("precision", {1, 0}, 0.6, 1);
    after.add_arm("precision", {1, 0}, 0.9, 1);
    before.add_arm("bucket", {0, 1}, 1, 1);
    after.add_arm("bucket", {0, 1}, 1, 0.5);
    const auto changes = compare_sweeps(before.analysed(), after.analysed());
    std::vector<std::string> worse, better;
    for (const Change& change : changes) {
        if (change.is_worse) {
            worse.push_back(change.metric + ", " + change.arm);
        }
        if (change.is_better) {
            better.push_back(change.metric + ", " + change.arm);
        }
    }
    EXPECT_EQ(worse, std::vector<std::string>{"training time, precision"});
    EXPECT_EQ(better, std::vector<std::string>{"memory, bucket"});
    EXPECT_TRUE(comparison_text(changes).starts_with("worse   training time, precision: +"));
    EXPECT_TRUE(base::contains(comparison_text(changes), "1 regression among 6 comparisons"));
    EXPECT_EQ(json::parse(comparison_json(changes))["rows"].size(), 6u);
    EXPECT_TRUE(base::contains(comparison_text({}), "nothing can be compared"));
}

TEST(Sweep, DirectoryWithoutOneIsRefused) {
    const base::ScratchDirectory scratch;
    EXPECT_TRUE(base::contains(base::message_of<base::UsageError>([&] { write_sweep_report(scratch.path()); }),
                               "holds no sweep"));
    base::write_whole(scratch / "sweep.json", "{}");
    EXPECT_TRUE(base::contains(base::message_of<base::Error>([&] { write_sweep_report(scratch.path()); }),
                               "not a sweep that this version"));
}

}  // namespace
}  // namespace lockstep::bench
