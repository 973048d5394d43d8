#include "sharding/batch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>

#include "base/error.h"
#include "base/random.h"
#include "base/resources.h"
#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

using test::contains;
using test::error_of;

std::pair<std::uint32_t, std::uint32_t> shape(const Canvas& canvas) {
    return {canvas.width, canvas.height};
}

// ---- The published rule

TEST(PublishedRule, AsWorkedOutByHand) {
    struct Example {
        ImageSize sample, fitted;
        std::uint32_t width, height;
    };
    const Example examples[] = {
        {{1280, 640}, {1280, 640}, 1280, 640},   // both bounds at once
        {{1920, 1080}, {1138, 640}, 1152, 640},  // 640 / 1080 of it: 1137.8 x 640
        {{1080, 1920}, {640, 1138}, 640, 1152},
        {{640, 480}, {853, 640}, 864, 640},  // enlarged
        {{1000, 1000}, {640, 640}, 640, 640},
        {{4000, 1000}, {1280, 320}, 1280, 320},  // the short side alone would need 2560 x 640
        {{3840, 1700}, {1280, 567}, 1280, 576},  // 1280 / 3840 of it: 1280 x 566.7
        {{5000, 20}, {1280, 5}, 1280, 32},
        {{9000, 1}, {1280, 1}, 1280, 32},
    };
    for (const Example& example : examples) {
        const std::string what = base::str(example.sample.width, "x", example.sample.height);
        const Canvas canvas = Canvas::of_sample(example.sample, {.rule = ScalingRule::published});
        EXPECT_EQ(fitted_size(example.sample, canvas.bounds), example.fitted)
            << what << ": " << fitted_size(example.sample, canvas.bounds).width << "x"
            << fitted_size(example.sample, canvas.bounds).height;
        EXPECT_EQ(canvas.width, example.width) << what;
        EXPECT_EQ(canvas.height, example.height) << what;
    }
}

/// In whole numbers: no rounding but the last.
TEST(PublishedRule, EqualsAPlainVersion) {
    base::Random random(3, base::RandomPurpose::test, 0, 0);
    const std::uint64_t shorter = 96, longer = 224, multiple = 32;
    const ScalingOptions options{
        .rule = ScalingRule::published, .short_side = shorter, .long_side = longer, .multiple = multiple};
    for (int i = 0; i < 20000; ++i) {
        const auto width = static_cast<std::uint32_t>(1 + random.below(3000));
        const auto height = static_cast<std::uint32_t>(1 + random.below(3000));
        const std::uint64_t least = std::min(width, height), most = std::max(width, height);
        const bool short_governs = most * shorter <= longer * least;
        const std::uint64_t numerator = short_governs ? shorter : longer;
        const std::uint64_t denominator = short_governs ? least : most;
        const auto scaled = [&](std::uint64_t side) {
            return std::max<std::uint64_t>(1, (2 * side * numerator + denominator) / (2 * denominator));
        };
        const Canvas canvas = Canvas::of_sample({width, height}, options);
        const ImageSize fitted = fitted_size({width, height}, canvas.bounds);
        ASSERT_EQ(fitted.width, scaled(width)) << width << "x" << height;
        ASSERT_EQ(fitted.height, scaled(height)) << width << "x" << height;
        ASSERT_EQ(canvas.width, (scaled(width) + multiple - 1) / multiple * multiple) << width << "x" << height;
        ASSERT_EQ(canvas.height, (scaled(height) + multiple - 1) / multiple * multiple) << width << "x" << height;
        ASSERT_NEAR(canvas.bounds.scale_of({width, height}), static_cast<double>(numerator) / denominator,
                    1e-6 * numerator / denominator);
    }
}

TEST(SideBounds, OfASquareAreTheLetterboxThatThereIs) {
    base::Random random(4, base::RandomPurpose::test, 0, 0);
    for (int i = 0; i < 5000; ++i) {
        const ImageSize size{static_cast<std::uint32_t>(1 + random.below(3000)),
                             static_cast<std::uint32_t>(1 + random.below(3000))};
        const auto side = static_cast<std::uint32_t>(8 + random.below(1000));
        EXPECT_EQ(fitted_size(size, Canvas::square(side).bounds), fitted_size(size, side));
        EXPECT_EQ(Canvas::square(side).bounds.scale_of(size),
                  static_cast<float>(side) / static_cast<float>(std::max(size.width, size.height)));
    }
}

// ---- Batches

/// Sizes of photos: most of a few kinds, some of a kind of their own.
ImageSize size_of(std::uint64_t id) {
    base::Random random(11, base::RandomPurpose::test, 0, id);
    switch (random.below(8)) {
        case 0:
        case 1:
        case 2:
            return {640, 480};
        case 3:
        case 4:
            return {480, 640};
        case 5:
            return {1920, 1080};
        case 6:
            return {500, 500};
        default:
            return {static_cast<std::uint32_t>(300 + random.below(900)),
                    static_cast<std::uint32_t>(300 + random.below(900))};
    }
}

ScalingOptions published(double megapixels = 0) {
    return {
        .rule = ScalingRule::published, .short_side = 96, .long_side = 192, .multiple = 32, .megapixels = megapixels};
}

ScalingOptions squares(double megapixels = 0) {
    return {.rule = ScalingRule::squares, .short_side = 64, .long_side = 192, .multiple = 32, .megapixels = megapixels};
}

BatchOrder order_of(std::uint64_t samples, std::uint64_t batch, const ScalingOptions& scaling,
                    OrderKind kind = OrderKind::full, std::uint64_t seed = 5) {
    return {EpochOrder(kind, seed, samples, {.block = 8, .window = 4}),
            {.image_size = 128, .effective_batch = batch, .scaling = scaling},
            size_of};
}

struct Made {
    Canvas canvas;
    std::vector<std::uint64_t> ids;
    bool operator==(const Made&) const = default;
};

std::vector<Made> epoch_of(const BatchOrder& order, std::uint64_t epoch) {
    const BatchesOfEpoch batches(order, epoch);
    std::vector<Made> all;
    for (std::uint64_t step = 0; step < order.steps_per_epoch(); ++step) {
        const PlannedBatch batch = batches.batch(step);
        Made& made = all.emplace_back(Made{batch.canvas, {}});
        for (std::uint64_t position = batch.positions.begin; position < batch.positions.end; ++position) {
            made.ids.push_back(batches.sample_at(position));
        }
    }
    return all;
}

TEST(BatchOrder, OfAFixedSizeIsTheOrderCutIntoPieces) {
    for (const OrderKind kind : {OrderKind::full, OrderKind::block, OrderKind::sequential}) {
        const EpochOrder order(kind, 5, 57, {.block = 8, .window = 4});
        const BatchOrder batches(order, {.image_size = 128, .effective_batch = 8}, nullptr);
        ASSERT_EQ(batches.steps_per_epoch(), 8u);
        for (const std::uint64_t epoch : {0, 3}) {
            std::uint64_t position = 0;
            for (const Made& batch : epoch_of(batches, epoch)) {
                EXPECT_EQ(batch.canvas, Canvas::square(128));
                EXPECT_EQ(batch.ids.size(), position == 56 ? 1u : 8u);
                for (const std::uint64_t id : batch.ids) {
                    EXPECT_EQ(id, order.sample_at(epoch, position++));
                }
            }
            EXPECT_EQ(position, 57u);
            EXPECT_EQ(batches.pixels_of_epoch(epoch), 57u * 128 * 128);
        }
    }
}

struct Case {
    const char* name;
    std::uint64_t samples, batch;
    ScalingOptions scaling;
};

void PrintTo(const Case& c, std::ostream* out) {
    *out << c.name << ", " << c.samples << " samples, batch " << c.batch;
}

class BatchOrderOf : public testing::TestWithParam<Case> {};

TEST_P(BatchOrderOf, HoldsEverySampleOnceInEquallyManySteps) {
    const auto& [name, samples, batch, scaling] = GetParam();
    for (const OrderKind kind : {OrderKind::full, OrderKind::block, OrderKind::sequential}) {
        const BatchOrder order = order_of(samples, batch, scaling, kind);
        std::map<std::uint32_t, std::uint64_t> steps_of_side;
        for (std::uint64_t epoch = 0; epoch < 5; ++epoch) {
            Ledger ledger;
            std::uint64_t pixels = 0;
            for (const Made& made : epoch_of(order, epoch)) {
                ASSERT_GE(made.ids.size(), 1u) << "epoch " << epoch;
                ASSERT_LE(made.ids.size(), batch);
                if (scaling.megapixels > 0 && made.ids.size() > 1) {
                    ASSERT_LE(static_cast<double>(made.ids.size() * made.canvas.pixels()), scaling.megapixels * 1e6);
                }
                for (const std::uint64_t id : made.ids) {
                    ledger.enter(id);
                    if (scaling.rule == ScalingRule::published) {
                        const Canvas own = Canvas::of_sample(size_of(id), scaling);
                        ASSERT_LE(own.width, made.canvas.width) << "sample " << id;
                        ASSERT_LE(own.height, made.canvas.height) << "sample " << id;
                        ASSERT_EQ(own.bounds, made.canvas.bounds);
                    }
                }
                pixels += made.ids.size() * made.canvas.pixels();
                ++steps_of_side[made.canvas.width];
            }
            EXPECT_EQ(ledger, Ledger::whole(samples)) << "epoch " << epoch;
            EXPECT_EQ(order.pixels_of_epoch(epoch), pixels);
        }
        if (scaling.megapixels == 0) {
            EXPECT_EQ(order.steps_per_epoch(), (samples + batch - 1) / batch) << "as with a fixed size";
        }
        if (scaling.rule == ScalingRule::squares && samples > 0) {  // five sides, five epochs: each as often
            ASSERT_EQ(steps_of_side.size(), 5u);
            for (const auto& [side, steps] : steps_of_side) {
                EXPECT_EQ(steps, order.steps_per_epoch()) << "side " << side;
            }
        }
    }
}

TEST_P(BatchOrderOf, IsAPureFunctionOfSeedEpochAndStep) {
    const auto& [name, samples, batch, scaling] = GetParam();
    const BatchOrder order = order_of(samples, batch, scaling);
    const std::vector<Made> third = epoch_of(order, 3);
    epoch_of(order, 4);
    EXPECT_EQ(epoch_of(order, 3), third);
    EXPECT_EQ(epoch_of(order_of(samples, batch, scaling), 3), third);
    if (samples > 20) {
        EXPECT_NE(epoch_of(order, 4), third);
        EXPECT_NE(epoch_of(order_of(samples, batch, scaling, OrderKind::full, 6), 3), third);
    }
}

INSTANTIATE_TEST_SUITE_P(Rules, BatchOrderOf,
                         testing::Values(Case{"published", 0, 8, published()}, Case{"published", 1, 8, published()},
                                         Case{"published", 7, 8, published()}, Case{"published", 289, 8, published()},
                                         Case{"published", 1000, 1, published()},
                                         Case{"published", 1000, 64, published()},
                                         Case{"published, bounded", 289, 64, published(0.1)},
                                         Case{"published, bounded", 1000, 1000, published(0.25)},
                                         Case{"published, one at a time", 100, 1000, published(1e-3)},
                                         Case{"squares", 0, 8, squares()}, Case{"squares", 1, 8, squares()},
                                         Case{"squares", 57, 8, squares()}, Case{"squares", 1000, 64, squares()},
                                         Case{"squares, bounded", 57, 64, squares(0.08)},
                                         Case{"squares, bounded", 1000, 1000, squares(0.5)},
                                         Case{"squares, one at a time", 23, 1000, squares(1e-3)}));

/// What the rule says, written down anew with containers that hide nothing.
std::vector<Made> plain_published(const std::vector<std::uint64_t>& order, std::uint64_t batch,
                                  const ScalingOptions& scaling) {
    std::vector<Made> made;
    std::map<std::pair<std::uint32_t, std::uint32_t>, Made> open;
    for (const std::uint64_t id : order) {
        const Canvas canvas = Canvas::of_sample(size_of(id), scaling);
        Made& group = open[shape(canvas)];
        group.canvas = canvas;
        group.ids.push_back(id);
        if (group.ids.size() == batch) {
            made.push_back(group);
            group.ids.clear();
        }
    }
    std::vector<Made> left;
    for (const auto& [key, group] : open) {
        left.push_back(group);
    }
    std::ranges::sort(left, [](const Made& a, const Made& b) {
        const std::uint64_t across = std::uint64_t{a.canvas.width} * b.canvas.height;
        const std::uint64_t down = std::uint64_t{b.canvas.width} * a.canvas.height;
        return across != down ? across < down : a.canvas.width < b.canvas.width;
    });
    Made last;
    for (const Made& group : left) {
        for (const std::uint64_t id : group.ids) {
            if (last.ids.size() == batch) {
                made.push_back(last);
                last = {};
            }
            last.canvas = {std::max(last.canvas.width, group.canvas.width),
                           std::max(last.canvas.height, group.canvas.height), group.canvas.bounds};
            last.ids.push_back(id);
        }
    }
    if (!last.ids.empty()) {
        made.push_back(last);
    }
    return made;
}

TEST(BatchOrder, GroupsAsAPlainVersionDoes) {
    for (const OrderKind kind : {OrderKind::sequential, OrderKind::block, OrderKind::full}) {
        const BatchOrder order = order_of(500, 16, published(), kind);
        for (const std::uint64_t epoch : {0, 2}) {
            std::vector<std::uint64_t> ids;
            for (std::uint64_t position = 0; position < 500; ++position) {
                ids.push_back(order.samples().sample_at(epoch, position));
            }
            std::vector<Made> expected = plain_published(ids, 16, published());
            std::vector<Made> got = epoch_of(order, epoch);
            if (kind == OrderKind::full) {  // then shuffled
                EXPECT_NE(got, expected);
                std::ranges::sort(got, {}, &Made::ids);
                std::ranges::sort(expected, {}, &Made::ids);
            }
            EXPECT_EQ(got, expected) << "epoch " << epoch;
        }
    }
}

/// Three kinds of photos, 10 samples each, batches of 4: two full batches each, and two samples left of each, which are
/// lined up portrait, square, landscape.
TEST(BatchOrder, WhatIsLeftOfGroupsAsWorkedOutByHand) {
    const auto kind_of = [](std::uint64_t id) {
        return std::array{ImageSize{200, 100}, ImageSize{100, 100}, ImageSize{100, 200}}[id % 3];
    };
    const ScalingOptions scaling{
        .rule = ScalingRule::published, .short_side = 64, .long_side = 128, .multiple = 32, .megapixels = 0};
    const BatchOrder order(EpochOrder(OrderKind::sequential, 1, 30),
                           {.image_size = 64, .effective_batch = 4, .scaling = scaling}, kind_of);
    const std::vector<Made> batches = epoch_of(order, 0);
    const SideBounds bounds{64, 128};
    const Canvas landscape{128, 64, bounds}, square{64, 64, bounds}, portrait{64, 128, bounds};
    const std::vector<Made> expected{
        {landscape, {0, 3, 6, 9}},     {square, {1, 4, 7, 10}},    {portrait, {2, 5, 8, 11}},
        {landscape, {12, 15, 18, 21}}, {square, {13, 16, 19, 22}}, {portrait, {14, 17, 20, 23}},
        {portrait, {26, 29, 25, 28}},  // two tall ones and two squares, padded to the tall shape
        {landscape, {24, 27}},
    };
    ASSERT_EQ(batches.size(), expected.size());
    for (std::size_t i = 0; i < batches.size(); ++i) {
        EXPECT_EQ(batches[i].canvas, expected[i].canvas) << "step " << i;
        EXPECT_EQ(batches[i].ids, expected[i].ids) << "step " << i;
    }
    EXPECT_EQ(order.pixels_of_epoch(0), (8u + 8 + 4 + 2) * 128 * 64 + 8u * 64 * 64);
    EXPECT_EQ(order.canvases().size(), 3u);
    EXPECT_EQ(order.largest_side(), 128u);
}

TEST(BatchOrder, ASampleOfMorePixelsThanTheBudgetStandsAlone) {
    const BatchOrder order(EpochOrder(OrderKind::sequential, 1, 4),
                           {.image_size = 64,
                            .effective_batch = 8,
                            .scaling = {.rule = ScalingRule::published,
                                        .short_side = 64,
                                        .long_side = 128,
                                        .multiple = 32,
                                        .megapixels = 0.008192}},  // just two squares, or one that is twice as long
                           [](std::uint64_t id) {
                               return id == 2 ? ImageSize{200, 100} : ImageSize{50, 50};
                           });
    std::vector<std::size_t> counts;
    for (const Made& made : epoch_of(order, 0)) {
        counts.push_back(made.ids.size());
    }
    EXPECT_EQ(counts, (std::vector<std::size_t>{2, 1, 1}));
}

/// A shape's batches must not come at one end of the epoch.
TEST(BatchOrder, ShapesAreSpreadOverTheEpoch) {
    const BatchOrder order = order_of(20000, 16, published());
    const std::vector<Made> batches = epoch_of(order, 0);
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::array<double, 2>> of_half;
    for (std::size_t step = 0; step < batches.size(); ++step) {
        ++of_half[shape(batches[step].canvas)][2 * step / batches.size()];
    }
    std::size_t frequent = 0;
    for (const auto& [key, counts] : of_half) {
        const double all = counts[0] + counts[1];
        if (all >= 50) {
            ++frequent;
            EXPECT_NEAR(counts[0], all / 2, 4 * std::sqrt(all) / 2) << key.first << "x" << key.second;
        }
    }
    EXPECT_GE(frequent, 4u);
}

TEST(BatchOrder, NamesTheOptionThatIsImpossible) {
    const auto message_with = [](ScalingOptions scaling) { return error_of([&] { order_of(10, 4, scaling); }); };
    EXPECT_TRUE(contains(message_with({.megapixels = 1}), "scaling.pixel_budget = 1"));
    EXPECT_TRUE(contains(message_with(published(-1)), "scaling.pixel_budget = -1"));
    ScalingOptions options = published();
    options.short_side = 256;
    EXPECT_TRUE(contains(message_with(options), "scaling.short_side = 256"));
    options.short_side = 100;
    EXPECT_TRUE(contains(message_with(options), "not a multiple of 32"));
    options = squares();
    options.multiple = 0;
    EXPECT_TRUE(contains(message_with(options), "scaling.multiple = 0"));
}

TEST(BatchOrder, OfAMillionSamples) {
    constexpr std::uint64_t samples = 1'000'000;
    std::optional<BatchOrder> order;
    const double order_seconds = base::seconds_of([&] { order.emplace(order_of(samples, 64, published())); });
    std::optional<BatchesOfEpoch> epoch;
    const double epoch_seconds = base::seconds_of([&] { epoch.emplace(*order, 7); });
    std::printf("shapes of a million samples: %.2f s; an epoch's batches: %.2f s, %zu canvases\n", order_seconds,
                epoch_seconds, order->canvases().size());
    Ledger ledger;
    for (std::uint64_t step = 0; step < order->steps_per_epoch(); ++step) {
        const PositionRange positions = epoch->batch(step).positions;
        for (std::uint64_t position = positions.begin; position < positions.end; ++position) {
            ledger.enter(epoch->sample_at(position));
        }
    }
    EXPECT_EQ(ledger, Ledger::whole(samples));
    EXPECT_EQ(order->steps_per_epoch(), 15625u);
}

}  // namespace
}  // namespace lockstep::sharding
