// IDX import and composed scenes.
#include "sharding/import_idx.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/file.h"
#include "sharding/import_composed.h"
#include "sharding/inspect.h"
#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;

std::string big_endian(std::uint32_t value) {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) {
        bytes += static_cast<char>(value >> shift);
    }
    return bytes;
}

std::string images_file(std::uint32_t count, std::uint32_t height, std::uint32_t width, const std::string& pixels) {
    return big_endian(0x803) + big_endian(count) + big_endian(height) + big_endian(width) + pixels;
}
std::string labels_file(const std::string& labels) {
    return big_endian(0x801) + big_endian(static_cast<std::uint32_t>(labels.size())) + labels;
}

class ImportIdxTest : public test::Scratch {
  protected:
    ImportIdxTest() {
        options.source = path("in");
        options.out = path("out");
        write("in/train-images-idx3-ubyte", images_file(3, 2, 4, "abcdefghijklmnopqrstuvwx"));
        write("in/train-labels-idx1-ubyte", labels_file(std::string("\2\0\1", 3)));
    }
    void expect_failure(std::initializer_list<std::string_view> parts) {
        const std::string message = error_of([&] { import_idx(options); });
        for (const std::string_view part : parts) {
            EXPECT_TRUE(contains(message, part));
        }
        EXPECT_FALSE(fs::exists(path("out")));
    }
    IdxOptions options;
};

TEST_F(ImportIdxTest, GrayBecomesRgbAndLabelsKeepTheirOrder) {
    options.classes = {"boot", "bag", "coat"};
    import_idx(options);
    const Dataset set = Dataset::open(path("out"));
    EXPECT_EQ(set.task(), Task::classification);
    EXPECT_EQ(set.encoding(), Encoding::raw);
    EXPECT_EQ(set.classes(), options.classes);
    ASSERT_EQ(set.size(), 3u);
    const Sample second = set.sample(1);
    EXPECT_EQ(second.label, 0);
    EXPECT_EQ(second.width, 4u);
    EXPECT_EQ(second.height, 2u);
    EXPECT_EQ(std::string(second.bytes.begin(), second.bytes.end()), "iiijjjkkklllmmmnnnoooppp");
    EXPECT_EQ(set.file_name(1), "train-images-idx3-ubyte#1");
}

TEST_F(ImportIdxTest, CompressedFilesGiveTheSame) {
    import_idx(options);
    const std::uint64_t plain = Dataset::open(path("out")).content_hash();
    for (const char* name : {"in/train-images-idx3-ubyte", "in/train-labels-idx1-ubyte"}) {
        const std::string content = base::read_text(path(name));
        const gzFile file = gzopen((path(name).string() + ".gz").c_str(), "wb");
        gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
        gzclose(file);
        fs::remove(path(name));
    }
    fs::remove_all(path("out"));
    import_idx(options);
    const Dataset set = Dataset::open(path("out"));
    EXPECT_EQ(set.content_hash(), plain);
    EXPECT_EQ(set.classes(), (std::vector<std::string>{"0", "1", "2"}));
}

TEST_F(ImportIdxTest, BadFiles) {
    write("in/train-images-idx3-ubyte", images_file(3, 2, 4, "too short"));
    expect_failure({"train-images-idx3-ubyte", "shorter than its header says"});
    write("in/train-images-idx3-ubyte", images_file(3, 2, 4, "abcdefghijklmnopqrstuvwxyz"));
    expect_failure({"train-images-idx3-ubyte", "longer than its header says"});
    write("in/train-images-idx3-ubyte", images_file(4'000'000'000u, 60000, 60000, "x"));
    expect_failure({"train-images-idx3-ubyte", "more than a file of"});
    write("in/train-images-idx3-ubyte", images_file(0, 2, 4, ""));
    expect_failure({"train-images-idx3-ubyte", "the set is empty"});
    write("in/train-images-idx3-ubyte", labels_file("abc"));
    expect_failure({"train-images-idx3-ubyte", "not an IDX file of bytes with 3 dimensions"});
    write("in/train-images-idx3-ubyte", images_file(2, 2, 4, "abcdefghijklmnop"));
    expect_failure({"train-labels-idx1-ubyte", "3 labels for the 2 images"});
    fs::remove(path("in/train-labels-idx1-ubyte"));
    expect_failure({"neither train-labels-idx1-ubyte nor"});
}

TEST_F(ImportIdxTest, TruncatedCompressedFile) {
    const gzFile file = gzopen(path("in/train-images-idx3-ubyte.gz").c_str(), "wb");
    const std::string content = images_file(3, 2, 4, "abcdefghijklmnopqrstuvwx");
    gzwrite(file, content.data(), static_cast<unsigned>(content.size()));
    gzclose(file);
    fs::remove(path("in/train-images-idx3-ubyte"));
    fs::resize_file(path("in/train-images-idx3-ubyte.gz"), 35);
    expect_failure({"train-images-idx3-ubyte.gz", "damaged, or shorter"});
}

TEST_F(ImportIdxTest, LabelBeyondTheClasses) {
    options.classes = {"a", "b"};
    expect_failure({"record 0 of train has label 2", "2 classes"});
}

TEST_F(ImportIdxTest, InspectSaysWhatIsThere) {
    options.classes = {"boot", "bag", "coat"};
    import_idx(options);
    const Dataset set = Dataset::open(path("out"));
    const nlohmann::json json = nlohmann::json::parse(describe_json(set));
    EXPECT_EQ(json["images"], 3);
    EXPECT_EQ(json["boxes"], 0);
    EXPECT_EQ(json["classes"], (std::vector<std::string>{"boot", "bag", "coat"}));
    EXPECT_EQ(json["shards"], 1);
    EXPECT_EQ(json["bytes"], set.bytes_on_disk());
    EXPECT_EQ(json["dropped_images"], nlohmann::json::object());
    EXPECT_EQ(json["dropped_boxes"], nlohmann::json::object());
    EXPECT_EQ(json["per_class"], (std::vector<int>{1, 1, 1}));
    EXPECT_TRUE(contains(describe_text(set), "images          3"));
}

// ---- composed scenes ----

/// Four articles of 28 x 28: an opaque rectangle each, at a known place, of another class each.
IdxSet rectangles() {
    IdxSet set{.images_file = "test",
               .width = 28,
               .height = 28,
               .pixels = std::vector<std::uint8_t>(4 * 28 * 28),
               .labels = {0, 1, 2, 3}};
    for (std::size_t i = 0; i < 4; ++i) {
        for (std::size_t y = 4 + i; y < 24; ++y) {
            for (std::size_t x = 6; x < 18 + i; ++x) {
                set.pixels[i * 28 * 28 + y * 28 + x] = 255;
            }
        }
    }
    return set;
}

std::vector<Image> black_photo() {
    return {Image::blank(300, 200)};
}

TEST(Composed, BoxesAreTheVisiblePixelsExactly) {
    ComposedOptions options;
    options.size = 160;
    options.smallest = 20;
    options.largest = 60;
    std::size_t boxes = 0;
    for (std::uint64_t index = 0; index < 50; ++index) {
        const Scene scene = compose_scene(rectangles(), black_photo(), options, index);
        ASSERT_EQ(scene.image.width, 160u);
        ASSERT_EQ(scene.image.height, 160u);
        boxes += scene.boxes.size();
        // The photo is black, so whatever is lit belongs to an article: each lit pixel lies in one box, and each of a
        // box's four edges has a lit pixel.
        std::vector<std::array<bool, 4>> touched(scene.boxes.size());
        for (std::uint32_t y = 0; y < 160; ++y) {
            for (std::uint32_t x = 0; x < 160; ++x) {
                if (scene.image.row(y)[std::size_t{3} * x] == 0) {
                    continue;
                }
                int owners = 0;
                for (std::size_t b = 0; b < scene.boxes.size(); ++b) {
                    const Box& box = scene.boxes[b];
                    const auto fx = static_cast<float>(x), fy = static_cast<float>(y);
                    if (fx >= box.x1 && fx < box.x2 && fy >= box.y1 && fy < box.y2) {
                        ++owners;
                        touched[b][0] |= fx == box.x1;
                        touched[b][1] |= fy == box.y1;
                        touched[b][2] |= fx == box.x2 - 1;
                        touched[b][3] |= fy == box.y2 - 1;
                    }
                }
                ASSERT_EQ(owners, 1) << "pixel " << x << ", " << y << " of scene " << index;
            }
        }
        for (const auto& edges : touched) {
            EXPECT_EQ(edges, (std::array{true, true, true, true})) << "scene " << index;
        }
    }
    EXPECT_GE(boxes, 100u);
}

/// A gray frame (value 200) around cloth of one value, at its own size on a white photo.
Scene framed(std::uint8_t inside) {
    IdxSet article{
        .images_file = "test", .width = 28, .height = 28, .pixels = std::vector<std::uint8_t>(28 * 28), .labels = {0}};
    for (std::size_t y = 4; y < 24; ++y) {
        for (std::size_t x = 4; x < 24; ++x) {
            const bool is_frame = y < 6 || y >= 22 || x < 6 || x >= 22;
            article.pixels[y * 28 + x] = is_frame ? 200 : inside;
        }
    }
    Image white = Image::blank(100, 100);
    std::ranges::fill(white.pixels, std::uint8_t{255});
    ComposedOptions options;
    options.size = 64;
    options.smallest = options.largest = 28;
    options.most_articles = 1;
    return compose_scene(article, {white}, options, 0);
}

TEST(Composed, ClothCoversThePhotoHoweverDarkAndAnOpeningDoesNot) {
    const std::pair<int, int> cases[] = {{100, 100}, {30, 30}, {10, 10}, {0, 255}};  // inside the frame, expected there
    for (const auto& [inside, expected] : cases) {
        const Scene scene = framed(static_cast<std::uint8_t>(inside));
        ASSERT_EQ(scene.boxes.size(), 1u);
        EXPECT_EQ(scene.boxes[0].x2 - scene.boxes[0].x1, 20);
        const auto x = static_cast<std::size_t>(scene.boxes[0].x1) + 10;
        const auto y = static_cast<std::uint32_t>(scene.boxes[0].y1) + 10;
        EXPECT_EQ(scene.image.row(y)[3 * x], expected) << "inside of " << inside;
    }
}

TEST(Composed, ASceneIsAFunctionOfSeedSplitAndIndex) {
    ComposedOptions options;
    const auto scene = [&](std::uint64_t seed, const char* split, std::uint64_t index) {
        options.seed = seed;
        options.split = split;
        return compose_scene(rectangles(), black_photo(), options, index).image.pixels;
    };
    const auto first = scene(1, "train", 7);
    EXPECT_EQ(first, scene(1, "train", 7));
    EXPECT_NE(first, scene(2, "train", 7));
    EXPECT_NE(first, scene(1, "t10k", 7));
    EXPECT_NE(first, scene(1, "train", 8));
}

class ImportComposedTest : public test::Scratch {
  protected:
    ImportComposedTest() {
        const IdxSet articles = rectangles();
        write("in/train-images-idx3-ubyte",
              images_file(4, 28, 28, std::string(articles.pixels.begin(), articles.pixels.end())));
        write("in/train-labels-idx1-ubyte", labels_file(std::string(articles.labels.begin(), articles.labels.end())));
        write("photos/a.png", encode_png(Image::blank(200, 170)));
        write("photos/readme.txt", "no photo");
        options.articles = path("in");
        options.photos = {path("photos")};
        options.out = path("out");
        options.images = 12;
        options.size = 96;
        options.largest = 60;
    }
    ComposedOptions options;
};

TEST_F(ImportComposedTest, ThreadsChangeNothingAndTheSetIsCalledComposed) {
    std::optional<std::uint64_t> hash;
    for (const unsigned threads : {1u, 4u}) {
        fs::remove_all(path("out"));
        options.threads = threads;
        import_composed(options);
        const Dataset set = Dataset::open(path("out"));
        EXPECT_EQ(set.size(), 12u);
        EXPECT_GE(set.box_count(), 12u);
        EXPECT_EQ(set.classes().size(), 4u);
        EXPECT_TRUE(contains(set.source(), "composed"));
        EXPECT_EQ(hash.value_or(set.content_hash()), set.content_hash());
        hash = set.content_hash();
        EXPECT_NO_THROW(verify_all(set));
    }
}

TEST_F(ImportComposedTest, RawScenesAreTheComposedPixels) {
    options.raw = true;
    import_composed(options);
    const Dataset set = Dataset::open(path("out"));
    const Scene scene = compose_scene(rectangles(), {Image::blank(200, 170)}, options, 5);
    const Sample sample = set.sample(5);
    EXPECT_EQ(std::vector(sample.bytes.begin(), sample.bytes.end()), scene.image.pixels);
    ASSERT_EQ(sample.boxes.size(), scene.boxes.size());
    EXPECT_EQ(sample.boxes[0].x1, scene.boxes[0].x1);
}

TEST_F(ImportComposedTest, ScenesHaveAsManyArticlesAsFit) {
    options.smallest = options.largest = 24;
    options.fewest_articles = options.most_articles = 3;
    for (std::uint64_t i = 0; i < 8; ++i) {
        EXPECT_EQ(compose_scene(rectangles(), {Image::blank(200, 170)}, options, i).boxes.size(), 3u) << "scene " << i;
    }
    options.smallest = options.largest = 96;
    for (std::uint64_t i = 0; i < 8; ++i) {
        const std::size_t found = compose_scene(rectangles(), {Image::blank(200, 170)}, options, i).boxes.size();
        EXPECT_GE(found, 1u) << "scene " << i;
        EXPECT_LT(found, 3u) << "scene " << i;
    }
}

TEST_F(ImportComposedTest, ScenesOfUnlikeShapesLieAndStand) {
    options.longest = 160;
    options.images = 40;
    import_composed(options);
    const Dataset set = Dataset::open(path("out"));
    int lying = 0, standing = 0;
    std::uint32_t longest = 0;
    for (std::uint64_t id = 0; id < set.size(); ++id) {
        const Sample sample = set.sample(id);
        EXPECT_EQ(std::min(sample.width, sample.height), 96u) << "scene " << id;
        longest = std::max({longest, sample.width, sample.height});
        lying += sample.width > sample.height;
        standing += sample.width < sample.height;
        const Scene scene = compose_scene(rectangles(), {Image::blank(200, 170)}, options, id);
        EXPECT_EQ(scene.image.width, sample.width);
        EXPECT_EQ(scene.image.height, sample.height);
        for (const Box& box : scene.boxes) {
            EXPECT_LE(box.x2, static_cast<float>(sample.width));
            EXPECT_LE(box.y2, static_cast<float>(sample.height));
        }
    }
    EXPECT_GT(lying, 8);
    EXPECT_GT(standing, 8);
    EXPECT_GT(longest, 150u);
    EXPECT_LE(longest, 160u);
    EXPECT_NO_THROW(verify_all(set));
}

TEST_F(ImportComposedTest, ContradictionsAndMissingPhotos) {
    const auto refused = [&](auto change) {
        ComposedOptions wrong = options;
        change(wrong);
        EXPECT_THROW(import_composed(wrong), base::UsageError);
    };
    refused([](ComposedOptions& o) { o.images = 0; });
    refused([](ComposedOptions& o) { o.photos = {}; });
    refused([](ComposedOptions& o) { o.smallest = 0; });
    refused([](ComposedOptions& o) { o.smallest = o.largest + 1; });
    refused([](ComposedOptions& o) { o.size = 0; });
    refused([](ComposedOptions& o) { o.longest = o.size - 1; });
    refused([](ComposedOptions& o) { o.most_articles = 0; });
    refused([](ComposedOptions& o) { o.fewest_articles = o.most_articles + 1; });
    refused([](ComposedOptions& o) { o.fewest_articles = 0; });
    options.photos = {path("in")};
    EXPECT_TRUE(contains(error_of([&] { import_composed(options); }), "no .jpg or .png photo"));
    options.photos = {path("photos/readme.txt")};
    EXPECT_TRUE(contains(error_of([&] { import_composed(options); }), "readme.txt: not a JPEG"));
    EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace lockstep::sharding
