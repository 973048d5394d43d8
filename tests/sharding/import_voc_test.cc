// Pascal VOC import on small files made here: what is stored, what is dropped and counted, and every bad input.
#include "sharding/import_voc.h"

#include <gtest/gtest.h>

#include <array>

#include "base/file.h"
#include "sharding/inspect.h"
#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::error_of;
using Corners = std::array<float, 4>;

Image pattern(std::uint32_t width, std::uint32_t height) {
    Image image = Image::blank(width, height);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
        image.pixels[i] = static_cast<std::uint8_t>(i * 31 + i / 97);
    }
    return image;
}

std::string object(const std::string& name, const std::string& x1, const std::string& y1, const std::string& x2,
                   const std::string& y2, const std::string& more = "") {
    return base::str("<object><name>", name, "</name>", more, "<bndbox><xmax>", x2, "</xmax><xmin>", x1,
                     "</xmin><ymin>", y1, "</ymin><ymax>", y2, "</ymax></bndbox></object>\n");
}

std::string annotation(const std::string& file, const std::string& objects, int width = 64, int height = 48) {
    return base::str("<?xml version=\"1.0\"?>\n<annotation><filename>", file, "</filename><size><width>", width,
                     "</width><height>", height, "</height><depth>3</depth></size>\n", objects, "</annotation>\n");
}

Corners corners(const Box& box) {
    return {box.x1, box.y1, box.x2, box.y2};
}

class ImportVocTest : public test::Scratch {
  protected:
    /// A photo of 64 x 48 pixels and its annotation.
    void photo(const std::string& stem, const std::string& objects) {
        write("in/" + stem + ".png", encode_png(pattern(64, 48)));
        write("in/" + stem + ".xml", annotation(stem + ".png", objects));
    }
    Dataset import() {
        voc.source = voc.source.empty() ? path("in") : voc.source;
        options.out = path("out");
        Findings findings(options.strict);
        import_images(read_voc(voc, options.threads, findings), options, findings);
        return Dataset::open(path("out"));
    }
    /// The import fails with a message that has all of these, and leaves nothing.
    void expect_failure(std::initializer_list<std::string_view> parts) {
        const std::string message = error_of([&] { import(); });
        for (const std::string_view part : parts) {
            EXPECT_TRUE(contains(message, part));
        }
        EXPECT_FALSE(fs::exists(path("out")));
        EXPECT_LE(entries(), 1u);
    }

    VocOptions voc;
    ImportOptions options;
};

TEST_F(ImportVocTest, OneBasedCoordinatesBecomeEdges) {
    photo("a", object("cat", "1", "1", "64", "48") + object("bus", "11", "21", "20", "30"));
    const Dataset set = import();
    EXPECT_EQ(set.classes(), (std::vector<std::string>{"bus", "cat"}));
    const Sample sample = set.sample(0);
    ASSERT_EQ(sample.boxes.size(), 2u);
    EXPECT_EQ(corners(sample.boxes[0]), (Corners{0, 0, 64, 48}));
    EXPECT_EQ(sample.boxes[0].class_index, 1);
    EXPECT_EQ(corners(sample.boxes[1]), (Corners{10, 20, 20, 30}));
    EXPECT_EQ(sample.boxes[1].area, 100);
    EXPECT_EQ(sample.boxes[1].class_index, 0);
    EXPECT_NE(sample.boxes[0].annotation_id, sample.boxes[1].annotation_id);
}

TEST_F(ImportVocTest, ZeroBasedCoordinatesAreEdges) {
    photo("a", object("cat", "0", "0", "64", "48") + object("cat", "10.5", "20", "20", "30.25"));
    voc.one_based = false;
    const Dataset set = import();
    EXPECT_EQ(corners(set.sample(0).boxes[0]), (Corners{0, 0, 64, 48}));
    EXPECT_EQ(corners(set.sample(0).boxes[1]), (Corners{10.5f, 20, 20, 30.25f}));
}

TEST_F(ImportVocTest, WholeImagesKeepTheirOriginalBytes) {
    photo("a", object("cat", "1", "1", "9", "9"));
    const Dataset set = import();
    const std::vector<std::uint8_t> original = base::read_bytes(path("in/a.png"));
    const auto stored = set.sample(0).bytes;
    EXPECT_EQ(std::vector(stored.begin(), stored.end()), original);
    EXPECT_EQ(set.sample(0).width, 64u);
    EXPECT_EQ(set.sample(0).height, 48u);
    EXPECT_EQ(set.file_name(0), "a.png");
    EXPECT_NO_THROW(verify_all(set));
}

TEST_F(ImportVocTest, BadBoxesAreDroppedAndCountedAndTheImageIsKept) {
    photo("a", object("cat", "30", "5", "20", "9") +        //
                   object("cat", "5", "5", "4", "9") +      // one-based: no column at all
                   object("cat", "100", "5", "120", "9") +  //
                   object("cat", "-20", "5", "-10", "9") +  //
                   object("cat", "nan", "5", "10", "9") +   //
                   object("cat", "five", "5", "10", "9") +  //
                   object("", "1", "1", "10", "9") +        //
                   "<object><name>cat</name><polygon><x1>3</x1></polygon></object>" +
                   object("cat", "60", "40", "80", "60"));  // half outside: clipped
    photo("b", "");
    const Dataset set = import();
    EXPECT_EQ(set.size(), 2u);
    EXPECT_EQ(set.dropped_images(), DropCounts{});
    EXPECT_EQ(set.dropped_boxes(), (DropCounts{{"inverted", 1},
                                               {"no_area", 1},
                                               {"outside", 2},
                                               {"not_finite", 1},
                                               {"no_class_name", 1},
                                               {"no_bndbox", 2}}));
    ASSERT_EQ(set.sample(0).boxes.size(), 1u);
    EXPECT_EQ(corners(set.sample(0).boxes[0]), (Corners{59, 39, 64, 48}));
    EXPECT_TRUE(set.sample(1).boxes.empty());
}

TEST_F(ImportVocTest, DifficultIsAFlagAndMayBeMissingOrEmpty) {
    photo("a", object("cat", "1", "1", "9", "9", "<difficult>1</difficult>") +
                   object("cat", "1", "1", "9", "9", "<difficult>0</difficult>") +
                   object("cat", "1", "1", "9", "9", "<difficult/>") + object("cat", "1", "1", "9", "9"));
    const Dataset set = import();
    const auto boxes = set.sample(0).boxes;
    ASSERT_EQ(boxes.size(), 4u);
    EXPECT_EQ(boxes[0].flags, box_difficult);
    for (std::size_t i = 1; i < 4; ++i) {
        EXPECT_EQ(boxes[i].flags, 0) << i;
    }
}

TEST_F(ImportVocTest, ImagesAreFoundInTheUsualPlaces) {
    const std::vector<std::uint8_t> png = encode_png(pattern(64, 48));
    const std::string objects = object("cat", "1", "1", "9", "9");
    write("in/JPEGImages/named.png", png);
    write("in/Annotations/a.xml", annotation("named.png", objects));
    write("in/JPEGImages/b.png", png);
    write("in/Annotations/b.xml", annotation("b.tif", objects));  // another extension
    write("in/images/c.png", png);
    write("in/Annotations/c.xml", annotation("", objects));  // no file name
    write("in/images/d.png", png);
    write("in/Annotations/d.xml", annotation("d", objects));  // no extension
    write("in/Annotations/notes.txt", "not an annotation");
    const Dataset set = import();
    ASSERT_EQ(set.size(), 4u);
    EXPECT_EQ(set.file_name(0), "named.png");
    EXPECT_EQ(set.file_name(1), "b.png");
    EXPECT_EQ(set.file_name(2), "c.png");
    EXPECT_EQ(set.file_name(3), "d.png");
}

TEST_F(ImportVocTest, AnAnnotationCannotPointElsewhere) {
    write("secret.png", encode_png(pattern(64, 48)));
    options.strict = true;
    write("in/a.xml", annotation("../secret.png", object("cat", "1", "1", "9", "9")));
    EXPECT_TRUE(contains(error_of([&] { import(); }), "there is no image"));
}

TEST_F(ImportVocTest, OneFileIsASourceToo) {
    photo("a", object("cat", "1", "1", "9", "9"));
    photo("b", object("dog", "1", "1", "9", "9"));
    voc.source = path("in/b.xml");
    const Dataset set = import();
    EXPECT_EQ(set.size(), 1u);
    EXPECT_EQ(set.classes(), (std::vector<std::string>{"dog"}));
}

// ---- tiles ----

TEST_F(ImportVocTest, TilesHoldTheirPixelsAndTheirBoxes) {
    const Image whole = pattern(64, 48);
    // In the left tile only; in both by half; a third of it in the upper tiles, two thirds in the lower.
    photo("a", object("cat", "3", "5", "10", "12") + object("cat", "29", "1", "36", "8") +
                   object("cat", "3", "31", "8", "36"));
    options.tiles = TileOptions{.side = 32, .overlap = 0, .min_visible = 0.4};
    const Dataset set = import();
    ASSERT_EQ(set.size(), 4u);
    const std::array<std::string, 4> names{"a.png#0,0", "a.png#32,0", "a.png#0,16", "a.png#32,16"};
    const std::array<Rectangle, 4> tiles{{{0, 0, 32, 32}, {32, 0, 32, 32}, {0, 16, 32, 32}, {32, 16, 32, 32}}};
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(set.file_name(i), names[i]);
        EXPECT_EQ(set.sample(i).image_id, static_cast<std::int64_t>(i) + 1);
        const Image tile = decode_rgb(set.sample(i).bytes, names[i]);
        EXPECT_EQ(tile.pixels, crop(whole, tiles[i].x, tiles[i].y, 32, 32).pixels) << names[i];
    }
    ASSERT_EQ(set.sample(0).boxes.size(), 2u);
    EXPECT_EQ(corners(set.sample(0).boxes[0]), (Corners{2, 4, 10, 12}));
    EXPECT_EQ(corners(set.sample(0).boxes[1]), (Corners{28, 0, 32, 8}));
    ASSERT_EQ(set.sample(1).boxes.size(), 1u);
    EXPECT_EQ(corners(set.sample(1).boxes[0]), (Corners{0, 0, 4, 8}));
    ASSERT_EQ(set.sample(2).boxes.size(), 1u);
    EXPECT_EQ(corners(set.sample(2).boxes[0]), (Corners{2, 14, 8, 20}));
    EXPECT_TRUE(set.sample(3).boxes.empty());
    EXPECT_EQ(set.dropped_boxes(), (DropCounts{{"cut_below_min_visible", 1}}));  // the third box in the first tile
    EXPECT_EQ(set.dropped_images(), DropCounts{});
}

TEST_F(ImportVocTest, EmptyTilesCanBeLeftOut) {
    photo("a", object("cat", "3", "5", "10", "12"));
    options.tiles = TileOptions{.side = 32, .overlap = 0, .min_visible = 0.4, .drop_empty = true};
    const Dataset set = import();
    EXPECT_EQ(set.size(), 1u);
    EXPECT_EQ(set.dropped_images(), (DropCounts{{"tile_without_box", 3}}));
}

TEST_F(ImportVocTest, TheNumberOfThreadsChangesNothing) {
    for (int i = 0; i < 9; ++i) {
        photo(base::str("p", i),
              object("cat", "3", "5", base::str(10 + i), "12") + object("dog", "50", "1", "60", "40"));
    }
    options.tiles = TileOptions{.side = 32, .overlap = 16};
    options.threads = 1;
    import();
    const std::vector<std::uint8_t> index = base::read_bytes(path("out/index.h5"));
    const std::vector<std::uint8_t> shard = base::read_bytes(path("out/shard-00000.h5"));
    for (const unsigned threads : {2u, 5u}) {
        fs::remove_all(path("out"));
        options.threads = threads;
        import();
        EXPECT_EQ(base::read_bytes(path("out/index.h5")), index) << threads;
        EXPECT_EQ(base::read_bytes(path("out/shard-00000.h5")), shard) << threads;
    }
}

// ---- bad input ----

TEST_F(ImportVocTest, BrokenXml) {
    options.strict = true;
    photo("a", object("cat", "1", "1", "9", "9"));
    write("in/b.xml", "<annotation>\n<object>\n<name>cat</nome>\n</annotation>");
    expect_failure({"b.xml", "line 3", "not well-formed XML"});
    options.strict = false;
    EXPECT_EQ(import().dropped_images(), (DropCounts{{"broken_annotation", 1}}));
}

TEST_F(ImportVocTest, OtherXml) {
    options.strict = true;
    write("in/a.xml", "<html></html>");
    expect_failure({"a.xml", "no <annotation> element"});
}

TEST_F(ImportVocTest, MissingImage) {
    options.strict = true;
    write("in/a.xml", annotation("photo.jpg", object("cat", "1", "1", "9", "9")));
    expect_failure({"a.xml", "'photo.jpg'", "missing", "--strict"});
}

TEST_F(ImportVocTest, TruncatedAndForeignImages) {
    options.strict = true;
    photo("a", object("cat", "1", "1", "9", "9"));
    const std::vector<std::uint8_t> jpeg = encode_jpeg(pattern(64, 48), 90);
    write("in/b.jpg", std::span(jpeg).first(jpeg.size() / 2));
    write("in/b.xml", annotation("b.jpg", object("cat", "1", "1", "9", "9")));
    expect_failure({"b.jpg", "truncated"});
    write("in/b.jpg", "this is no image");
    expect_failure({"b.jpg", "not a JPEG, PNG, TIFF, WebP or BMP image"});
    write("in/b.jpg", "");
    expect_failure({"b.jpg", "the file is empty"});
}

TEST_F(ImportVocTest, BadImagesAreDroppedAndCounted) {
    photo("a", object("cat", "1", "1", "9", "9"));
    const std::vector<std::uint8_t> png = encode_png(pattern(64, 48));
    write("in/b.png", std::span(png).first(png.size() / 2));
    write("in/b.xml", annotation("b.png", object("cat", "1", "1", "9", "9")));
    write("in/c.png", "this is no image");
    write("in/c.xml", annotation("c.png", object("cat", "1", "1", "9", "9")));
    write("in/d.xml", annotation("d.png", object("cat", "1", "1", "9", "9")));
    for (const bool tiled : {false, true}) {
        fs::remove_all(path("out"));
        options.tiles = tiled ? std::optional(TileOptions{.side = 32, .overlap = 0}) : std::nullopt;
        const Dataset set = import();
        EXPECT_EQ(set.size(), tiled ? 4u : 1u);
        EXPECT_EQ(set.dropped_images(), (DropCounts{{"unreadable", 2}, {"missing", 1}})) << tiled;
    }
}

TEST_F(ImportVocTest, BoxesOfATurnedPhotoAreRefused) {
    write("in/a.png", encode_png(pattern(48, 64)));
    write("in/a.xml", annotation("a.png", object("cat", "1", "1", "60", "40"), 64, 48));
    options.strict = true;
    expect_failure({"a.png", "48 x 64", "64 x 48", "EXIF"});
    photo("b", object("cat", "1", "1", "8", "8"));
    options.strict = false;
    const Dataset set = import();
    EXPECT_EQ(set.size(), 1u);
    EXPECT_EQ(set.dropped_images(), (DropCounts{{"turned", 1}}));
}

TEST_F(ImportVocTest, UnknownClass) {
    photo("a", object("cat", "1", "1", "9", "9") + object("dgo", "1", "1", "9", "9"));
    voc.classes = {"cat", "dog"};
    expect_failure({"a.xml: object 2", "'dgo'", "did you mean 'dog'?"});
    voc.skip_unknown_classes = true;
    const Dataset set = import();
    EXPECT_EQ(set.classes(), voc.classes);
    EXPECT_EQ(set.box_count(), 1u);
    EXPECT_EQ(set.dropped_boxes(), (DropCounts{{"unknown_class", 1}}));
}

TEST_F(ImportVocTest, EmptySources) {
    expect_failure({"no such file or folder"});
    fs::create_directory(path("in"));
    expect_failure({"no .xml file"});
    photo("a", "");
    expect_failure({"no annotation names a class"});
}

TEST_F(ImportVocTest, ClassNamesMustBeDistinctAndNotEmpty) {
    photo("a", object("cat", "1", "1", "9", "9"));
    voc.classes = {"cat", "cat"};
    EXPECT_THROW(import(), base::UsageError);
    voc.classes = {"cat", ""};
    EXPECT_THROW(import(), base::UsageError);
}

TEST_F(ImportVocTest, ContradictoryTiles) {
    photo("a", object("cat", "1", "1", "9", "9"));
    options.tiles = TileOptions{.side = 32, .overlap = 40};
    EXPECT_THROW(import(), base::UsageError);
    EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace lockstep::sharding
