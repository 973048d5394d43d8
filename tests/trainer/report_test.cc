#include "trainer/report.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "trainer/run_directory.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

class ReportTest : public testing::Test {
  protected:
    ~ReportTest() override { fs::remove_all(run_); }

    /// A run of `epochs` epochs of two steps each, evaluated where `metrics` isn't empty.
    void write_run(int epochs, const json& metrics) {
        fs::remove_all(run_);
        RunDirectory run = RunDirectory::create(run_);
        Recipe recipe;
        recipe.model = "yolov10n";
        recipe.data.train = "a </pre><script>alert(1)</script> path";
        run.write_recipe(recipe);
        run.write_environment({"node-a"});
        for (int epoch = 1; epoch <= epochs; ++epoch) {
            for (int step = 2 * epoch - 1; step <= 2 * epoch; ++step) {
                run.log_metrics({{"kind", "step"},
                                 {"epoch", epoch},
                                 {"step", step},
                                 {"loss", 5.0 / step},
                                 {"learning_rate", 0.01},
                                 {"gradient_norm", 1.0}});
            }
            json line = {
                {"kind", "epoch"}, {"epoch", epoch}, {"step", 2 * epoch}, {"loss", 1.0}, {"images_per_second", 3.0}};
            line.update(metrics);
            run.log_metrics(line);
        }
        run.write_summary({{"model", "yolov10n"},
                           {"ranks", 2},
                           {"images_per_second", 3.0},
                           {"seconds_per_epoch", 1.0},
                           {"peak_pss_mib", 100.0},
                           {"data_wait_fraction", 0.0},
                           {"metrics", metrics},
                           {"epochs", epochs},
                           {"steps", 2 * epochs}});
    }

    std::string page(std::span<const Picture> pictures, std::span<const std::string> classes) const {
        write_report(run_, pictures, classes);
        return base::read_text(run_ / "report.html");
    }

    fs::path run_ = fs::path(testing::TempDir()) / "report-test";
};

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

TEST_F(ReportTest, NamesFromFilesAreTextAndNeverMarkup) {
    write_run(3, {{"AP50", 0.5}, {"AP", 0.25}});
    const std::vector<std::string> classes{"<script>alert('x')</script>", "a \"quoted\" & plain one"};
    Picture picture{
        .caption = "<b>photo</b>.png#0,0", .width = 8, .height = 8, .pixels = {}, .truth = {}, .predicted = {}};
    picture.pixels.assign(8 * 8 * 3, 90);
    picture.truth.push_back({1, 1, 5, 5, 1, 0});
    picture.predicted.push_back({1, 1, 5, 6, 0.9, 0});
    picture.predicted.push_back({2, 2, 7, 7, 0.8, 1});
    const std::string text = page(std::span(&picture, 1), classes);
    for (const char* markup : {"<script", "<b>", "</pre><script", "\"quoted\" &"}) {
        EXPECT_FALSE(contains(text, markup)) << markup;
    }
    EXPECT_TRUE(contains(text, "&lt;script&gt;alert("));
    EXPECT_TRUE(contains(text, "&amp; plain one"));
    EXPECT_TRUE(contains(text, "&lt;b&gt;photo"));
    EXPECT_TRUE(contains(text, "data:image/jpeg;base64,"));
}

TEST_F(ReportTest, IsWrittenWithoutPicturesWithoutMetricsAndWithoutAnEpoch) {
    write_run(2, json::object());
    EXPECT_TRUE(contains(page({}, {}), "</html>"));
    write_run(0, json::object());
    EXPECT_TRUE(contains(page({}, {}), "</html>"));
}

TEST_F(ReportTest, SaysWhatTheSummarySays) {
    write_run(3, {{"AP50", 0.4321}, {"AP", 0.25}});
    const std::string text = page({}, {});
    for (const char* fact : {"yolov10n", "0.432", "3 epochs", "6 steps", "2 rank", "100 MiB a rank", "loss"}) {
        EXPECT_TRUE(contains(text, fact)) << fact;
    }
}

}  // namespace
}  // namespace lockstep::trainer
