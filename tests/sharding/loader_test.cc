#include "sharding/loader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <thread>

#include "base/file.h"
#include "base/random.h"
#include "base/resources.h"
#include "sharding/augmented_sheet.h"
#include "sharding/dataset_writer.h"
#include "sharding/image.h"
#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using LoaderTest = test::Scratch;

constexpr std::uint64_t images = 23;

Image noise(std::uint32_t width, std::uint32_t height, std::uint64_t seed) {
    Image image = Image::blank(width, height);
    base::Random random(seed, base::RandomPurpose::test, 0, 0);
    for (std::uint8_t& value : image.pixels) {
        value = static_cast<std::uint8_t>(random.below(256));
    }
    return image;
}

Box box(float x1, float y1, float x2, float y2, int class_index, std::uint8_t flags = 0) {
    return {x1, y1, x2, y2, (x2 - x1) * (y2 - y1), class_index, flags, 0};
}

/// What lies in the test's data sets as sample `id`: images of unlike shapes, some without boxes.
Image photo(std::uint64_t id) {
    return noise(20 + id, 30, id);
}

std::vector<Box> boxes_of(std::uint64_t id) {
    if (id % 4 == 0) {
        return {};
    }
    return {box(1, 1, 15, 12, static_cast<int>(id % 3)), box(2, 2, 10, 10, 0, box_crowd), box(5, 5, 19, 29, 1)};
}

/// PNG bytes, or what `spoil` makes of them.
void write_photos(const fs::path& directory, Task task = Task::detection, Encoding encoding = Encoding::encoded,
                  const std::function<void(std::uint64_t, std::vector<std::uint8_t>&)>& spoil = {}) {
    const DatasetDescription description{
        .task = task, .encoding = encoding, .classes = {"a", "b", "c"}, .source = "a test", .max_shard_bytes = 20000};
    write_dataset(directory, description, [&](DatasetWriter& writer) {
        for (std::uint64_t id = 0; id < images; ++id) {
            const Image image = photo(id);
            std::vector<std::uint8_t> bytes = encoding == Encoding::raw ? image.pixels : encode_png(image);
            if (spoil) {
                spoil(id, bytes);
            }
            const std::vector<Box> boxes = task == Task::detection ? boxes_of(id) : std::vector<Box>{};
            writer.add({.id = 0,
                        .image_id = static_cast<std::int64_t>(id),
                        .width = image.width,
                        .height = image.height,
                        .label = task == Task::classification ? static_cast<int>(id % 3) : -1,
                        .bytes = bytes,
                        .boxes = boxes},
                       base::str("photo-", id, ".png"));
        }
    });
}

LoaderOptions options_with(std::uint64_t effective_batch, std::uint64_t accumulate = 1, unsigned threads = 2) {
    LoaderOptions options;
    options.image_size = 32;
    options.effective_batch = effective_batch;
    options.accumulate = accumulate;
    options.threads = threads;
    options.seed = 5;
    options.closing_epoch = 1;
    options.augmentation.enabled = true;
    options.augmentation.mosaic = 0.5;
    options.augmentation.mixup = 0.2;
    options.augmentation.scale = 0.5;
    options.augmentation.translate = 0.1;
    options.augmentation.degrees = 10;
    options.augmentation.hsv_saturation = 0.7;
    options.augmentation.flip_horizontal = 0.5;
    options.augmentation.quarter_turns = 0.5;
    return options;
}

EpochOrder shuffled() {
    return {OrderKind::full, 5, images};
}

/// Batches without their timing, so that they can be compared.
std::vector<Batch> take(Loader& loader, std::size_t count) {
    std::vector<Batch> batches;
    for (std::size_t i = 0; i < count; ++i) {
        batches.push_back(loader.next());
    }
    return batches;
}

/// As the trainer does, so that buffers go round.
std::vector<Batch> take_and_give_back(Loader& loader, std::size_t count) {
    std::vector<Batch> batches;
    for (std::size_t i = 0; i < count; ++i) {
        Batch batch = loader.next();
        batches.push_back(batch);
        loader.give_back(std::move(batch));
    }
    return batches;
}

void expect_same(const MicroBatch& a, const MicroBatch& b, const std::string& where) {
    EXPECT_EQ(a.count, b.count) << where;
    EXPECT_EQ(a.sample_ids, b.sample_ids) << where;
    EXPECT_TRUE(a.pixels == b.pixels) << where << ": pixels differ";
    EXPECT_TRUE(a.boxes == b.boxes) << where << ": boxes differ";
    EXPECT_EQ(a.labels, b.labels) << where;
    EXPECT_TRUE(a.letterboxes == b.letterboxes) << where << ": letterboxes differ";
    EXPECT_EQ(a.partners, b.partners) << where;
}

void expect_same(const std::vector<Batch>& a, const std::vector<Batch>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
        const std::string where = base::str("batch ", i, " (epoch ", a[i].epoch, ", step ", a[i].step, ")");
        EXPECT_EQ(a[i].epoch, b[i].epoch) << where;
        EXPECT_EQ(a[i].step, b[i].step) << where;
        EXPECT_EQ(a[i].positions, b[i].positions) << where;
        ASSERT_EQ(a[i].micro.size(), b[i].micro.size()) << where;
        for (std::size_t m = 0; m < a[i].micro.size(); ++m) {
            expect_same(a[i].micro[m], b[i].micro[m], base::str(where, " micro-step ", m));
        }
    }
}

void append(MicroBatch& whole, const MicroBatch& share) {
    for (TargetBox target : share.boxes) {
        target.image += whole.count;
        whole.boxes.push_back(target);
    }
    whole.count += share.count;
    whole.pixels.insert(whole.pixels.end(), share.pixels.begin(), share.pixels.end());
    whole.labels.insert(whole.labels.end(), share.labels.begin(), share.labels.end());
    whole.sample_ids.insert(whole.sample_ids.end(), share.sample_ids.begin(), share.sample_ids.end());
    whole.letterboxes.insert(whole.letterboxes.end(), share.letterboxes.begin(), share.letterboxes.end());
    whole.partners += share.partners;
}

TEST_F(LoaderTest, MakesWhatOrderAndAugmenterSayOnePositionAfterTheOther) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const LoaderOptions options = options_with(8, 2);
    Loader loader(set, shuffled(), {}, options);
    const Augmenter augmenter(options.augmentation, Task::detection, 32, 5, 1, images);
    const auto fetch = [&](std::uint64_t id) {
        const auto image = std::make_shared<Image>(photo(id));
        return fit(set.sample(id), {image, image->pixels.data()}, Task::detection, 32);
    };
    std::uint64_t boxes = 0, partners = 0;
    for (std::uint64_t epoch = 0; epoch < 2; ++epoch) {
        std::uint64_t position = 0;
        for (std::uint64_t step = 0; step < 3; ++step) {
            const Batch batch = loader.next();
            EXPECT_EQ(batch.epoch, epoch);
            EXPECT_EQ(batch.step, step);
            ASSERT_EQ(batch.micro_steps().size(), 2u);
            for (const MicroBatch& micro : batch.micro_steps()) {
                EXPECT_EQ(micro.height, 32u);
                EXPECT_EQ(micro.width, 32u);
                EXPECT_EQ(micro.channels, 3u);
                ASSERT_EQ(micro.pixels.size(), micro.count * 32u * 32u * 3u);
                std::vector<std::uint8_t> pixels(32 * 32 * 3);
                std::vector<TargetBox> expected_boxes;
                for (std::uint32_t image = 0; image < micro.count; ++image) {
                    const std::uint64_t id = shuffled().sample_at(epoch, position++);
                    EXPECT_EQ(micro.sample_ids[image], id);
                    const std::size_t first_box = expected_boxes.size();
                    partners += augmenter.make(epoch, id, fetch, pixels, expected_boxes).partners;
                    for (std::size_t i = first_box; i < expected_boxes.size(); ++i) {
                        expected_boxes[i].image = image;
                    }
                    EXPECT_TRUE(std::equal(pixels.begin(), pixels.end(), micro.pixels.begin() + image * pixels.size()));
                }
                EXPECT_EQ(micro.boxes, expected_boxes);
                EXPECT_TRUE(micro.labels.empty());
                boxes += micro.boxes.size();
                partners -= micro.partners;
            }
        }
        EXPECT_EQ(position, images);
    }
    EXPECT_GT(boxes, 50u);
    EXPECT_EQ(partners, 0u);
}

class LoaderWithRanks : public LoaderTest, public testing::WithParamInterface<std::uint64_t> {};

TEST_P(LoaderWithRanks, SharesOfAllRanksMakeTheBatchOfOne) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const std::uint64_t ranks = GetParam();
    for (std::uint64_t accumulate : {1, 3}) {
        // 23 = 2 x 8 + 7: the last batch is uneven, and its micro-steps of 3, 2 and 2 leave ranks without images.
        const std::size_t batches = 7;
        const LoaderOptions options = options_with(8, accumulate);
        Loader single(set, shuffled(), {}, options);
        const std::vector<Batch> whole = take(single, batches);

        std::vector<std::vector<Batch>> shares;
        for (std::uint64_t rank = 0; rank < ranks; ++rank) {
            Loader loader(set, shuffled(), {.rank = rank, .ranks = ranks}, options);
            shares.push_back(take(loader, batches));
        }
        std::vector<Batch> joined = shares[0];
        std::vector<Ledger> ledgers(3);
        std::size_t empty_shares = 0;
        for (std::size_t b = 0; b < batches; ++b) {
            for (std::size_t m = 0; m < accumulate; ++m) {
                joined[b].micro[m] = {};
                for (const auto& share : shares) {
                    const MicroBatch& part = share[b].micro.at(m);
                    append(joined[b].micro[m], part);
                    empty_shares += part.count == 0;
                    EXPECT_EQ(part.height, 32u);
                    EXPECT_EQ(part.width, 32u);
                    for (std::uint64_t id : part.sample_ids) {
                        ledgers[share[b].epoch].enter(id);
                    }
                }
            }
        }
        expect_same(joined, whole);
        EXPECT_EQ(ledgers[0], Ledger::whole(images));
        EXPECT_EQ(ledgers[1], Ledger::whole(images));
        EXPECT_EQ(whole[2].positions, (PositionRange{16, 23}));
        EXPECT_EQ(empty_shares > 0, accumulate == 3 && ranks >= 3) << empty_shares;
    }
}

INSTANTIATE_TEST_SUITE_P(Ranks, LoaderWithRanks, testing::Values(1, 2, 3, 4));

/// Options under which batches have shapes of their own: 32x32, 64x32 and 32x64 under the published rule, whose samples
/// are 32x32 to 45x32 and 32x48; or squares of 32, 64 and 96. Budgets of pixels hold a few samples.
std::vector<LoaderOptions> scaled_options(std::uint64_t accumulate = 1) {
    std::vector<LoaderOptions> all;
    for (const ScalingRule rule : {ScalingRule::published, ScalingRule::squares}) {
        for (const double megapixels : {0.0, 0.01}) {
            LoaderOptions options = options_with(5, accumulate);
            options.scaling = {.rule = rule,
                               .short_side = 32,
                               .long_side = rule == ScalingRule::published ? 64U : 96U,
                               .multiple = 32,
                               .megapixels = megapixels};
            if (rule == ScalingRule::published) {
                options.augmentation.quarter_turns = 0;
            }
            all.push_back(options);
        }
    }
    return all;
}

std::string name_of(const LoaderOptions& options) {
    return base::str("rule ", static_cast<int>(options.scaling.rule), ", ", options.scaling.megapixels, " Mpx");
}

FittedSample fitted_photo(const Dataset& set, std::uint64_t id, const SideBounds& bounds) {
    const auto image = std::make_shared<Image>(photo(id));
    ImageBuffers buffers;
    return resized({.source = set.sample(id),
                    .width = image->width,
                    .height = image->height,
                    .pixels = {image, image->pixels.data()}},
                   fitted_size({image->width, image->height}, bounds), buffers);
}

TEST_F(LoaderTest, BatchesOfShapesOfTheirOwnAreWhatTheirOrderAndTheAugmenterSay) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    for (const LoaderOptions& options : scaled_options(2)) {
        const BatchOrder order = batch_order(set, shuffled(), options);
        Loader loader(set, order, {}, options);
        const Augmenter augmenter(options.augmentation, Task::detection, 32, 5, 1, images);
        std::set<std::pair<std::uint32_t, std::uint32_t>> shapes;
        std::uint64_t boxes = 0, partners = 0;
        for (std::uint64_t epoch = 0; epoch < 3; ++epoch) {
            const BatchesOfEpoch planned(order, epoch);
            Ledger ledger;
            for (std::uint64_t step = 0; step < order.steps_per_epoch(); ++step) {
                const Batch batch = loader.next();
                EXPECT_EQ(batch.epoch, epoch);
                EXPECT_EQ(batch.step, step);
                EXPECT_EQ(batch.positions, planned.batch(step).positions);
                const Canvas canvas = planned.batch(step).canvas;
                std::uint64_t position = batch.positions.begin;
                for (const MicroBatch& micro : batch.micro_steps()) {
                    ASSERT_EQ(micro.width, canvas.width);
                    ASSERT_EQ(micro.height, canvas.height);
                    ASSERT_EQ(micro.pixels.size(), micro.count * canvas.pixels() * 3);
                    shapes.insert({micro.width, micro.height});
                    std::vector<std::uint8_t> pixels(canvas.pixels() * 3);
                    std::vector<TargetBox> expected_boxes;
                    const auto fetch = [&](std::uint64_t id) { return fitted_photo(set, id, canvas.bounds); };
                    for (std::uint32_t image = 0; image < micro.count; ++image) {
                        const std::uint64_t id = planned.sample_at(position++);
                        ledger.enter(id);
                        EXPECT_EQ(micro.sample_ids[image], id);
                        const std::size_t first_box = expected_boxes.size();
                        partners += augmenter.make(epoch, id, canvas, fetch, pixels, expected_boxes).partners;
                        for (std::size_t i = first_box; i < expected_boxes.size(); ++i) {
                            expected_boxes[i].image = image;
                        }
                        EXPECT_TRUE(std::ranges::equal(
                            pixels, std::span(micro.pixels).subspan(image * pixels.size(), pixels.size())))
                            << name_of(options) << ", sample " << id;
                    }
                    EXPECT_EQ(micro.boxes, expected_boxes) << name_of(options);
                    boxes += micro.boxes.size();
                    partners -= micro.partners;
                }
                EXPECT_EQ(position, batch.positions.end);
            }
            EXPECT_EQ(ledger, Ledger::whole(images));
        }
        // Only one sample is a square under the published rule, and so it is padded with the others that are left.
        EXPECT_EQ(shapes.size(), options.scaling.rule == ScalingRule::published ? 2u : 3u) << name_of(options);
        EXPECT_GT(boxes, 50u);
        EXPECT_EQ(partners, 0u);
    }
}

/// The shares of all ranks, joined.
std::vector<Batch> joined(const std::vector<std::vector<Batch>>& shares) {
    std::vector<Batch> whole = shares[0];
    for (std::size_t b = 0; b < whole.size(); ++b) {
        for (std::size_t m = 0; m < whole[b].micro.size(); ++m) {
            whole[b].micro[m] = {};
            for (const auto& share : shares) {
                append(whole[b].micro[m], share[b].micro.at(m));
                EXPECT_EQ(share[b].micro[m].width, shares[0][b].micro[m].width) << "one shape on all ranks";
                EXPECT_EQ(share[b].micro[m].height, shares[0][b].micro[m].height) << "one shape on all ranks";
            }
        }
    }
    return whole;
}

TEST_P(LoaderWithRanks, SharesAreOfOneShapeAndMakeTheBatchOfOne) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const std::uint64_t ranks = GetParam();
    for (const std::uint64_t accumulate : {1, 3}) {
        for (const LoaderOptions& options : scaled_options(accumulate)) {
            const BatchOrder order = batch_order(set, shuffled(), options);
            const std::size_t batches = 2 * order.steps_per_epoch() + 1;
            Loader single(set, order, {}, options);
            const std::vector<Batch> whole = take(single, batches);
            std::vector<std::vector<Batch>> shares;
            for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                Loader loader(set, shuffled(), {.rank = rank, .ranks = ranks}, options);
                shares.push_back(take(loader, batches));
            }
            expect_same(joined(shares), whole);
        }
    }
}

/// What one number of ranks has begun, another goes on with, in the middle of an epoch.
TEST_P(LoaderWithRanks, GoOnWhereAnotherNumberOfRanksStopped) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const std::uint64_t ranks = GetParam();
    for (const LoaderOptions& options : scaled_options(2)) {
        const BatchOrder order = batch_order(set, shuffled(), options);
        const std::uint64_t steps = order.steps_per_epoch();
        Loader straight(set, order, {}, options);
        const std::vector<Batch> all = take(straight, 2 * steps);
        for (const std::uint64_t done : {std::uint64_t{1}, steps / 2, steps - 1, steps}) {
            std::vector<std::vector<Batch>> shares;
            for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                Loader loader(set, order, {.rank = rank, .ranks = ranks}, options, 0, done);
                shares.push_back(take(loader, steps));
            }
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>(done);
            expect_same(joined(shares), [&] {
                Loader resumed(set, order, {}, options, 0, done);
                return take(resumed, steps);
            }());
            for (std::size_t i = 0; i < steps; ++i) {
                EXPECT_EQ(shares[0][i].positions, (begin + static_cast<std::ptrdiff_t>(i))->positions)
                    << name_of(options) << ", after " << done;
            }
            expect_same(joined(shares), joined({{begin, begin + static_cast<std::ptrdiff_t>(steps)}}));
        }
    }
}

TEST_F(LoaderTest, ThreadsPrefetchAndRecyclingChangeNoShape) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    for (LoaderOptions options : scaled_options(2)) {
        options.threads = 1;
        Loader plain(set, shuffled(), {}, options);
        const std::vector<Batch> expected = take(plain, 15);
        options.threads = 4;
        options.prefetch = 3;
        Loader loader(set, shuffled(), {}, options);
        expect_same(take_and_give_back(loader, expected.size()), expected);
    }
}

TEST_F(LoaderTest, RefusesScalingThatCanNotBe) {
    write_photos(path("set"));
    write_photos(path("labels"), Task::classification);
    write_photos(path("raw"), Task::detection, Encoding::raw);
    const Dataset set = Dataset::open(path("set"));
    const LoaderOptions options = scaled_options().front();
    const auto message = [&](const std::string& data, const auto& change) {
        const Dataset other = Dataset::open(path(data));
        LoaderOptions changed = options;
        change(changed);
        return error_of([&] { Loader(other, shuffled(), {}, changed); });
    };
    EXPECT_TRUE(contains(message("labels", [](auto& o) { o.augmentation.enabled = false; }), "scaling.rule"));
    EXPECT_TRUE(contains(message("raw", [](auto&) {}), "without --raw"));
    EXPECT_TRUE(contains(message("set", [](auto& o) { o.augmentation.quarter_turns = 0.5; }),
                         "augmentation.quarter_turns = 0.5"));
    EXPECT_TRUE(contains(message("set", [&](auto& o) { o.preprocessed = &set; }), "disk cache"));
    EXPECT_TRUE(contains(message("set", [](auto& o) { o.scaling.long_side = 1 << 20; }), "image_size = 1048576"));
    EXPECT_NO_THROW(Loader(set, shuffled(), {}, options));
}

TEST_F(LoaderTest, ARankWithoutASingleImageStillGetsItsBatches) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    Loader loader(set, shuffled(), {.rank = 3, .ranks = 4}, options_with(3, 2));
    for (int i = 0; i < 20; ++i) {
        const Batch batch = loader.next();
        ASSERT_EQ(batch.micro.size(), 2u);
        EXPECT_EQ(batch.micro[0].count + batch.micro[1].count, 0u);
        EXPECT_EQ(batch.micro[0].height, 32u);
        EXPECT_TRUE(batch.micro[0].pixels.empty());
    }
}

TEST_F(LoaderTest, ThreadsPrefetchCacheAndRecyclingChangeNothing) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    Loader plain(set, shuffled(), {}, options_with(6, 2, 1));
    const std::vector<Batch> expected = take(plain, 10);
    for (unsigned threads : {1, 2, 4}) {
        for (unsigned prefetch : {1, 3}) {
            for (std::uint64_t cache : {0, 20000, 1 << 20}) {  // none, a quarter of the samples, all
                LoaderOptions options = options_with(6, 2, threads);
                options.prefetch = prefetch;
                options.decoded_cache_bytes = cache;
                options.verify_checksums = cache == 0;
                Loader loader(set, shuffled(), {}, options);
                expect_same(take_and_give_back(loader, expected.size()), expected);
            }
        }
    }
}

TEST_F(LoaderTest, RanksThatShareACacheMakeTheSameBatchesAndDecodeLess) {
    for (const Task task : {Task::detection, Task::classification}) {
        const std::string name = task == Task::detection ? "boxes" : "labels";
        write_photos(path(name), task);
        const Dataset set = Dataset::open(path(name));
        LoaderOptions options = options_with(6, 2);
        if (task == Task::classification) {
            options.augmentation = {.enabled = true, .flip_horizontal = 0.5};
        }
        constexpr std::uint64_t ranks = 3, batches = 12;
        for (const std::uint64_t budget : {20000, 1 << 20}) {
            options.decoded_cache = nullptr;
            options.decoded_cache_bytes = 0;
            std::vector<std::vector<Batch>> expected, got(ranks);
            for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                Loader loader(set, shuffled(), {.rank = rank, .ranks = ranks}, options);
                expected.push_back(take(loader, batches));
                EXPECT_EQ(loader.cache_use().kept, 0U);
            }
            const DecodedCache::Shape shape = decoded_cache_shape(set, options, budget);
            EXPECT_LE(shape.bytes(), budget);
            EXPECT_EQ(shape.holds_all(), budget > 20000);
            options.decoded_cache = std::make_shared<DecodedCache>(shape);
            std::vector<CacheUse> uses(ranks);
            {
                std::vector<std::jthread> threads;
                for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                    threads.emplace_back([&, rank] {
                        Loader loader(set, shuffled(), {.rank = rank, .ranks = ranks}, options);
                        got[rank] = take(loader, batches);
                        uses[rank] = loader.cache_use();
                    });
                }
            }
            std::uint64_t decoded = 0, used = 0;
            for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                expect_same(got[rank], expected[rank]);
                EXPECT_GT(uses[rank].kept, 0U) << name << ", rank " << rank;
                decoded += uses[rank].samples - uses[rank].kept;
                used += uses[rank].samples;
            }
            if (shape.holds_all()) {  // threads may decode the same sample at the same time
                EXPECT_LE(decoded, images * ranks) << name;
            }
            EXPECT_LT(decoded, used) << name;
            // Each rank has passed through whole epochs in which it decoded nothing.
            Loader late(set, shuffled(), {.rank = 0, .ranks = 1}, options, 3);
            take(late, 4);
            if (shape.holds_all()) {
                EXPECT_GE(late.cache_use().kept, late.cache_use().samples - options.prefetch * 6) << name;
            }
        }
    }
}

TEST_F(LoaderTest, ACacheThatIsTooSmallKeepsWhatIsNeededSoonest) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    LoaderOptions options = options_with(4, 1, 1);
    options.prefetch = 1;
    options.augmentation.mosaic = options.augmentation.mixup = 0;
    std::uint64_t budget = 1 << 20;
    while (decoded_cache_shape(set, options, budget).slots > images / 2) {
        budget -= 512;
    }
    const std::uint64_t slots = decoded_cache_shape(set, options, budget).slots;
    ASSERT_EQ(slots, images / 2);
    for (const OrderKind kind : {OrderKind::sequential, OrderKind::block, OrderKind::full}) {
        options.decoded_cache_bytes = budget;
        const EpochOrder order(kind, 5, images, {.block = 4, .window = 2});
        Loader loader(set, order, {}, options, 0, 0);
        constexpr std::size_t epochs = 20, steps = 6;
        take(loader, epochs * steps);
        const CacheUse use = loader.cache_use();
        // Half of the set is there, so half of what is used is, but for the first epoch: who kept what was used last
        // would find nothing in a sequential order, and a seventh in a full one.
        const double expected = static_cast<double>(slots) / images * (epochs - 1) / epochs;
        EXPECT_GT(static_cast<double>(use.kept) / static_cast<double>(use.samples), expected - 0.03)
            << "order " << static_cast<int>(kind);
    }
}

TEST_F(LoaderTest, RecyclesTheBuffersThatComeBack) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    LoaderOptions options = options_with(4);
    options.prefetch = 2;
    Loader loader(set, shuffled(), {}, options);
    std::set<const std::uint8_t*> buffers;
    for (int i = 0; i < 60; ++i) {
        Batch batch = loader.next();
        buffers.insert(batch.micro[0].pixels.data());
        loader.give_back(std::move(batch));
    }
    EXPECT_LE(buffers.size(), 4u);  // two ready, one at the consumer, one planned before the first came back
}

TEST_F(LoaderTest, ResumesAtAnyEpochAndStep) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const Share share{.rank = 1, .ranks = 2};
    Loader straight(set, shuffled(), share, options_with(8, 2));
    const std::vector<Batch> all = take(straight, 9);
    for (std::size_t start = 0; start < 6; ++start) {
        Loader resumed(set, shuffled(), share, options_with(8, 2), start / 3, start % 3);
        expect_same(take(resumed, 3), {all.begin() + start, all.begin() + start + 3});
    }
    Loader behind_the_last(set, shuffled(), share, options_with(8, 2), 0, 3);
    expect_same(take(behind_the_last, 1), {all[3]});
    EXPECT_THROW(Loader(set, shuffled(), share, options_with(8, 2), 0, 4), base::InternalError);
}

TEST_F(LoaderTest, RawPixelsGiveTheSameBatches) {
    write_photos(path("encoded"));
    write_photos(path("raw"), Task::detection, Encoding::raw);
    const Dataset encoded = Dataset::open(path("encoded"));
    const Dataset raw = Dataset::open(path("raw"));
    for (std::uint32_t size : {32U, 42U}) {
        LoaderOptions options = options_with(8);
        options.image_size = size;
        options.decoded_cache_bytes = 0;
        Loader from_encoded(encoded, shuffled(), {}, options);
        Loader from_raw(raw, shuffled(), {}, options);
        expect_same(take(from_raw, 4), take(from_encoded, 4));
    }
}

TEST_F(LoaderTest, ClassificationCarriesLabels) {
    write_photos(path("set"), Task::classification);
    const Dataset set = Dataset::open(path("set"));
    LoaderOptions options;
    options.image_size = 28;
    options.effective_batch = 10;
    options.augmentation.enabled = true;
    options.augmentation.crop_padding = 4;
    options.augmentation.flip_horizontal = 0.5;
    Loader loader(set, shuffled(), {}, options);
    for (int i = 0; i < 5; ++i) {
        Batch batch = loader.next();
        const MicroBatch& micro = batch.micro.at(0);
        ASSERT_EQ(micro.labels.size(), micro.count);
        EXPECT_TRUE(micro.boxes.empty());
        for (std::uint32_t image = 0; image < micro.count; ++image) {
            EXPECT_EQ(micro.labels[image], static_cast<int>(micro.sample_ids[image] % 3));
        }
        loader.give_back(std::move(batch));
    }
}

TEST_F(LoaderTest, WaitingIsMeasured) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const double start = base::monotonic_seconds();
    Loader loader(set, shuffled(), {}, options_with(8));
    double waited = 0;
    for (const Batch& batch : take(loader, 5)) {
        EXPECT_GT(batch.wait_seconds, 0);
        waited += batch.wait_seconds;
    }
    EXPECT_LE(waited, base::monotonic_seconds() - start);
}

TEST_F(LoaderTest, StopsAtAnyMoment) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    for (unsigned threads : {1, 4}) {
        for (std::size_t taken = 0; taken < 8; ++taken) {
            LoaderOptions options = options_with(8, 1, threads);
            options.prefetch = 4;
            Loader loader(set, shuffled(), {}, options);
            take(loader, taken);
            SequentialReader reader(set, {0, images}, {.image_size = 32, .batch = 3, .threads = threads});
            for (std::size_t i = 0; i < taken; ++i) {
                reader.next();
            }
        }
    }
}

/// Step of the first epoch in which `id` comes.
std::uint64_t step_of(std::uint64_t id, std::uint64_t effective_batch) {
    std::uint64_t position = 0;
    while (shuffled().sample_at(0, position) != id) {
        ++position;
    }
    return position / effective_batch;
}

void expect_failure_names(const Dataset& set, LoaderOptions options, std::uint64_t bad, const std::string& reason) {
    options.augmentation = {};
    Loader loader(set, shuffled(), {}, options);
    take(loader, step_of(bad, options.effective_batch));  // what comes before is not held up
    for (int i = 0; i < 2; ++i) {
        const std::string message = error_of([&] { loader.next(); });
        EXPECT_TRUE(contains(message, base::str("sample ", bad, " (photo-", bad, ".png")));
        EXPECT_TRUE(contains(message, reason));
    }
    SequentialReader reader(set, {0, images},
                            {.image_size = 32, .batch = 5, .verify_checksums = options.verify_checksums});
    for (std::uint64_t i = 0; i < bad / 5; ++i) {
        EXPECT_TRUE(reader.next().has_value());
    }
    EXPECT_TRUE(contains(error_of([&] { reader.next(); }), base::str("photo-", bad, ".png")));
}

TEST_F(LoaderTest, ASampleThatIsNoImageIsNamed) {
    const std::uint64_t bad = shuffled().sample_at(0, 13);
    write_photos(path("set"), Task::detection, Encoding::encoded,
                 [&](std::uint64_t id, std::vector<std::uint8_t>& bytes) {
                     if (id == bad) {
                         bytes.resize(bytes.size() / 2);
                     }
                 });
    const Dataset set = Dataset::open(path("set"));
    for (unsigned threads : {1, 3}) {
        expect_failure_names(set, options_with(4, 1, threads), bad, "image data");
    }
}

TEST_F(LoaderTest, OfSeveralBadSamplesTheFirstInOrderIsNamed) {
    write_photos(path("set"), Task::detection, Encoding::encoded,
                 [&](std::uint64_t, std::vector<std::uint8_t>& bytes) { bytes.resize(bytes.size() / 2); });
    const Dataset set = Dataset::open(path("set"));
    LoaderOptions options = options_with(8, 2, 4);
    options.augmentation = {};
    for (int i = 0; i < 10; ++i) {
        Loader loader(set, shuffled(), {}, options);
        const std::string message = error_of([&] { loader.next(); });
        EXPECT_TRUE(contains(message, base::str("sample ", shuffled().sample_at(0, 0), " (photo-")));
    }
}

TEST_F(LoaderTest, ADamagedSampleIsNamedByItsChecksumAlsoAsAPartner) {
    const std::uint64_t bad = shuffled().sample_at(0, 9);
    write_photos(path("set"));
    std::vector<std::uint8_t> stored = encode_png(photo(bad));
    for (const auto& entry : fs::directory_iterator(path("set"))) {
        std::vector<std::uint8_t> bytes = base::read_bytes(entry.path());
        const auto found = std::search(bytes.begin(), bytes.end(), stored.begin(), stored.end());
        if (found != bytes.end()) {
            *(found + 60) ^= 1;
            base::write_whole(entry.path(), {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
        }
    }
    const Dataset set = Dataset::open(path("set"));
    expect_failure_names(set, options_with(4), bad, "checksum");

    LoaderOptions mosaic = options_with(1);
    mosaic.augmentation.mosaic = 1;
    Loader loader(set, shuffled(), {}, mosaic);
    std::uint64_t before = 0;
    const std::string message = error_of([&] {
        while (before < 9) {
            loader.next();
            ++before;
        }
    });
    EXPECT_LT(before, 9u);  // a partner met it before it came itself
    EXPECT_TRUE(contains(message, base::str("sample ", bad, " (photo-", bad, ".png")));
}

TEST_F(LoaderTest, AnImageOfAnotherSizeThanTheIndexSaysIsNamed) {
    const std::uint64_t bad = 7;
    write_photos(path("set"), Task::detection, Encoding::encoded,
                 [&](std::uint64_t id, std::vector<std::uint8_t>& bytes) {
                     if (id == bad) {
                         bytes = encode_png(noise(31, 31, 0));
                     }
                 });
    const Dataset set = Dataset::open(path("set"));
    expect_failure_names(set, options_with(4), bad, "decodes to 31x31 where the index says 27x30");
}

TEST_F(LoaderTest, EveryOrderIsTheSameForAllRanksAndGoesOnAtAnotherNumberOfThem) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const LoaderOptions options = options_with(8, 2);
    for (const OrderKind kind : {OrderKind::sequential, OrderKind::block, OrderKind::full}) {
        const EpochOrder order(kind, 5, images, {.block = 4, .window = 2});
        Loader single(set, order, {}, options);
        std::vector<Batch> whole = take(single, 6);
        const auto joined_of = [&](std::uint64_t ranks, std::size_t first, std::size_t count) {
            std::vector<Batch> joined;
            for (std::uint64_t rank = 0; rank < ranks; ++rank) {
                Loader loader(set, order, {.rank = rank, .ranks = ranks}, options, first / 3, first % 3);
                std::vector<Batch> share = take(loader, count);
                if (rank == 0) {
                    joined = std::move(share);
                    continue;
                }
                for (std::size_t b = 0; b < count; ++b) {
                    for (std::size_t m = 0; m < 2; ++m) {
                        append(joined[b].micro[m], share[b].micro[m]);
                    }
                }
            }
            return joined;
        };
        for (std::size_t stop = 1; stop < 6; stop += 2) {
            for (const auto& [before, after] : {std::pair{1, 4}, {4, 3}, {2, 1}, {3, 2}}) {
                std::vector<Batch> all = joined_of(before, 0, stop);
                for (Batch& batch : joined_of(after, stop, 6 - stop)) {
                    all.push_back(std::move(batch));
                }
                expect_same(all, whole);
            }
        }
    }
}

TEST_F(LoaderTest, BothReadPathsMakeTheSameBatches) {
    for (const Encoding encoding : {Encoding::encoded, Encoding::raw}) {
        const std::string name = encoding == Encoding::raw ? "raw" : "encoded";
        write_photos(path(name), Task::detection, encoding);
        const Dataset mapped = Dataset::open(path(name));
        const Dataset library = Dataset::open(path(name), ReadPath::hdf5);
        LoaderOptions options = options_with(8, 2, 3);
        options.decoded_cache_bytes = 0;
        Loader a(mapped, shuffled(), {}, options), b(library, shuffled(), {}, options);
        expect_same(take(a, 5), take(b, 5));
    }
}

TEST_F(LoaderTest, ScaledDecodingChangesPixelsALittleAndNothingElse) {
    const DatasetDescription description{
        .task = Task::detection, .encoding = Encoding::encoded, .classes = {"a", "b", "c"}, .source = "a test"};
    write_dataset(path("set"), description, [&](DatasetWriter& writer) {
        for (std::uint64_t id = 0; id < images; ++id) {
            Image image = Image::blank(150 + static_cast<std::uint32_t>(id), 101);
            for (std::uint32_t y = 0; y < image.height; ++y) {
                for (std::uint32_t x = 0; x < 3 * image.width; ++x) {
                    image.row(y)[x] = static_cast<std::uint8_t>(x / 3 + y / 2);
                }
            }
            const std::vector<std::uint8_t> bytes = encode_jpeg(image, 95);
            const std::vector<Box> boxes{box(10, 20, 90, 80, 1)};
            writer.add({.id = 0,
                        .image_id = static_cast<std::int64_t>(id),
                        .width = image.width,
                        .height = image.height,
                        .label = -1,
                        .bytes = bytes,
                        .boxes = boxes},
                       "photo.jpg");
        }
    });
    const Dataset set = Dataset::open(path("set"));
    LoaderOptions options = options_with(8);
    options.augmentation = {};
    LoaderOptions scaled_options = options;
    scaled_options.decode = DecodeMode::scaled;
    Loader full(set, shuffled(), {}, options), scaled(set, shuffled(), {}, scaled_options);
    double difference = 0;
    std::size_t values = 0;
    for (std::size_t b = 0; b < 3; ++b) {
        MicroBatch a = std::move(full.next().micro[0]);
        const MicroBatch c = std::move(scaled.next().micro[0]);
        EXPECT_NE(a.pixels, c.pixels);
        for (std::size_t i = 0; i < a.pixels.size(); ++i) {
            difference += std::abs(int{a.pixels[i]} - int{c.pixels[i]});
        }
        values += a.pixels.size();
        a.pixels = c.pixels;
        expect_same(a, c, "without pixels");
    }
    EXPECT_LT(difference / static_cast<double>(values), 3);
}

TEST_F(LoaderTest, BadSamplesAreSkippedByPolicyListedAndEnteredInTheLedger) {
    const std::set<std::uint64_t> bad{3, 11, 22};
    for (const Task task : {Task::detection, Task::classification}) {
        const std::string name = task == Task::detection ? "boxes" : "labels";
        write_photos(path(name), task, Encoding::encoded, [&](std::uint64_t id, std::vector<std::uint8_t>& bytes) {
            if (bad.count(id) > 0) {
                bytes.resize(bytes.size() / 2);
            }
        });
        write_photos(path(name + " whole"), task);
        const Dataset set = Dataset::open(path(name)), whole_set = Dataset::open(path(name + " whole"));
        LoaderOptions options = options_with(8, 2, 3);
        options.augmentation = {};
        options.on_bad_sample = BadSamplePolicy::skip;
        std::size_t seen_bad = 0;
        for (std::uint64_t rank = 0; rank < 2; ++rank) {
            Loader loader(set, shuffled(), {.rank = rank, .ranks = 2}, options);
            Loader whole_loader(whole_set, shuffled(), {.rank = rank, .ranks = 2}, options);
            std::vector<std::uint64_t> skipped;
            Ledger ledger, expected;
            for (std::size_t step = 0; step < 3; ++step) {
                Batch batch = loader.next();
                const Batch whole = whole_loader.next();
                for (std::size_t m = 0; m < 2; ++m) {
                    // The whole micro-batch, with the bad samples cut out by hand.
                    MicroBatch want{.height = 32,
                                    .width = 32,
                                    .pixels = {},
                                    .boxes = {},
                                    .labels = {},
                                    .sample_ids = {},
                                    .skipped = {},
                                    .letterboxes = {}};
                    const MicroBatch& from = whole.micro[m];
                    for (std::uint32_t i = 0; i < from.count; ++i) {
                        expected.enter(from.sample_ids[i]);
                        if (bad.count(from.sample_ids[i]) > 0) {
                            continue;
                        }
                        const auto begin = from.pixels.begin() + i * 32 * 32 * 3;
                        want.pixels.insert(want.pixels.end(), begin, begin + 32 * 32 * 3);
                        want.sample_ids.push_back(from.sample_ids[i]);
                        want.letterboxes.push_back(from.letterboxes[i]);
                        if (task == Task::classification) {
                            want.labels.push_back(from.labels[i]);
                        }
                        for (TargetBox target : from.boxes) {
                            if (target.image == i) {
                                target.image = want.count;
                                want.boxes.push_back(target);
                            }
                        }
                        ++want.count;
                    }
                    expect_same(batch.micro[m], want, base::str(name, " step ", step, " micro-step ", m));
                    for (const std::uint64_t id : batch.micro[m].sample_ids) {
                        ledger.enter(id);
                    }
                    for (const SkippedSample& sample : batch.micro[m].skipped) {
                        ledger.enter(sample.id);
                        skipped.push_back(sample.id);
                        EXPECT_EQ(bad.count(sample.id), 1u);
                        EXPECT_TRUE(contains(sample.reason, base::str("sample ", sample.id, " (photo-", sample.id)));
                    }
                }
                loader.give_back(std::move(batch));
            }
            EXPECT_EQ(ledger, expected);
            seen_bad += skipped.size();
        }
        EXPECT_EQ(seen_bad, bad.size());
        options.on_bad_sample = BadSamplePolicy::error;
        Loader strict(set, shuffled(), {}, options);
        EXPECT_THROW(
            {
                for (int step = 0; step < 3; ++step) {
                    strict.next();
                }
            },
            base::Error);
    }
}

TEST_F(LoaderTest, AnAugmentedSheetShowsWhatATrainingSees) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    constexpr std::uint32_t side = 240, columns = 6, count = 8;  // cells have the size of the images
    LoaderOptions options = options_with(count);
    options.image_size = side;
    options.augmentation.enabled = true;
    const Image sheet = decode_rgb(draw_augmented_sheet(set, options, count), "sheet");
    EXPECT_EQ(sheet.width, columns * side);
    EXPECT_EQ(sheet.height, 2 * side);
    Loader loader(set, shuffled(), {}, options);
    const MicroBatch seen = std::move(loader.next().micro[0]);
    ASSERT_EQ(seen.count, count);
    for (std::uint32_t image = 0; image < count; ++image) {
        std::size_t equal = 0;
        for (std::uint32_t y = 0; y < side; ++y) {
            const std::uint8_t* cell =
                sheet.row(image / columns * side + y) + std::size_t{3} * side * (image % columns);
            const std::uint8_t* own = seen.pixels.data() + (std::size_t{image} * side + y) * side * 3;
            for (std::uint32_t x = 0; x < 3 * side; ++x) {
                equal += cell[x] == own[x];
            }
        }
        EXPECT_GT(equal, std::size_t{3} * side * side * 8 / 10) << "image " << image << ", boxes apart";
    }
}

TEST_F(LoaderTest, ImpossibleOptionsAreNamed) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const auto message_with = [&](const std::function<void(LoaderOptions&)>& change) {
        LoaderOptions options = options_with(4);
        change(options);
        try {
            Loader(set, shuffled(), {}, options);
        } catch (const base::UsageError& error) {
            return std::string(error.what());
        }
        return std::string("taken");
    };
    EXPECT_TRUE(contains(message_with([](auto& o) { o.image_size = 0; }), "image_size = 0"));
    EXPECT_TRUE(contains(message_with([](auto& o) { o.image_size = 100000; }), "image_size = 100000"));
    EXPECT_TRUE(contains(message_with([](auto& o) { o.effective_batch = 0; }), "effective_batch = 0"));
    EXPECT_TRUE(contains(message_with([](auto& o) { o.accumulate = 0; }), "accumulate = 0"));
    EXPECT_TRUE(contains(message_with([](auto& o) { o.threads = 0; }), "threads = 0"));
    EXPECT_TRUE(contains(message_with([](auto& o) { o.prefetch = 0; }), "prefetch = 0"));
    EXPECT_TRUE(contains(message_with([](auto& o) { o.augmentation.mosaic = 2; }), "augmentation.mosaic = 2"));
    EXPECT_TRUE(contains(message_with([](auto& o) { o.augmentation.erase = 1; }), "augmentation.erase = 1"));
}

TEST_F(LoaderTest, SequentialReaderGivesEverySampleOfItsRangeOnceInOrder) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    for (const PositionRange range : {PositionRange{0, images}, PositionRange{4, 13}, PositionRange{22, 23}}) {
        SequentialReader reader(set, range, {.image_size = 32, .batch = 4, .threads = 3});
        std::uint64_t next_id = range.begin;
        while (std::optional<MicroBatch> batch = reader.next()) {
            ASSERT_EQ(batch->count, std::min<std::uint64_t>(4, range.end - next_id));
            ASSERT_EQ(batch->letterboxes.size(), batch->count);
            std::vector<TargetBox> boxes;
            for (std::uint32_t image = 0; image < batch->count; ++image) {
                EXPECT_EQ(batch->sample_ids[image], next_id);
                const auto source = std::make_shared<Image>(photo(next_id));
                const auto fetch = [&](std::uint64_t id) {
                    return fit(set.sample(id), {source, source->pixels.data()}, Task::detection, 32);
                };
                std::vector<std::uint8_t> pixels(32 * 32 * 3);
                const std::size_t first_box = boxes.size();
                const Placement placement =
                    Augmenter({}, Task::detection, 32, 0, 0, images).make(0, next_id, fetch, pixels, boxes);
                for (std::size_t i = first_box; i < boxes.size(); ++i) {
                    boxes[i].image = image;
                }
                EXPECT_TRUE(std::equal(pixels.begin(), pixels.end(), batch->pixels.begin() + image * pixels.size()));
                EXPECT_EQ(batch->letterboxes[image], placement.letterbox);
                ++next_id;
            }
            EXPECT_EQ(batch->boxes, boxes);
            reader.give_back(std::move(*batch));
        }
        EXPECT_EQ(next_id, range.end);
        EXPECT_FALSE(reader.next().has_value());
    }
    SequentialReader nothing(set, {9, 9}, {.image_size = 32});
    EXPECT_FALSE(nothing.next().has_value());
    EXPECT_THROW(SequentialReader(set, {0, images + 1}, {}), base::InternalError);
    EXPECT_THROW(SequentialReader(set, {0, images}, {.batch = 0}), base::UsageError);
}

TEST_F(LoaderTest, SequentialReaderGivesEachSampleInItsOwnShape) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const ScalingOptions scaling = scaled_options().front().scaling;
    for (const PositionRange range : {PositionRange{0, images}, PositionRange{4, 13}, PositionRange{22, 23}}) {
        SequentialReader reader(set, range, {.image_size = 32, .scaling = scaling, .batch = 4, .threads = 3});
        Ledger ledger;
        std::size_t batches = 0;
        while (std::optional<MicroBatch> batch = reader.next()) {
            ++batches;
            ASSERT_GE(batch->count, 1u);
            ASSERT_LE(batch->count, 4u);
            for (std::uint32_t image = 0; image < batch->count; ++image) {
                const std::uint64_t id = batch->sample_ids[image];
                ledger.enter(id);
                const Image source = photo(id);
                const Canvas canvas = Canvas::of_sample({source.width, source.height}, scaling);
                EXPECT_EQ(batch->width, canvas.width) << "sample " << id;
                EXPECT_EQ(batch->height, canvas.height) << "sample " << id;
                std::vector<std::uint8_t> pixels(canvas.pixels() * 3);
                std::vector<TargetBox> boxes;
                const auto fetch = [&](std::uint64_t wanted) { return fitted_photo(set, wanted, canvas.bounds); };
                const Placement placement =
                    Augmenter({}, Task::detection, 32, 0, 0, images).make(0, id, canvas, fetch, pixels, boxes);
                EXPECT_TRUE(
                    std::ranges::equal(pixels, std::span(batch->pixels).subspan(image * pixels.size(), pixels.size())))
                    << "sample " << id;
                EXPECT_EQ(batch->letterboxes[image], placement.letterbox);
            }
            reader.give_back(std::move(*batch));
        }
        Ledger expected;
        for (std::uint64_t id = range.begin; id < range.end; ++id) {
            expected.enter(id);
        }
        EXPECT_EQ(ledger, expected);
        EXPECT_LE(batches, range.count() / 4 + 3) << "at most one that isn't full for each of three shapes";
    }
}

}  // namespace
}  // namespace lockstep::sharding
