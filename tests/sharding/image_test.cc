// Decoding, checked against hand-made files and against OpenCV's own reading where it is right.
#include "sharding/image.h"

#include <gtest/gtest.h>

#include <cstdio>
// jpeglib.h needs size_t and FILE declared before it.
#include <jpeglib.h>

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <opencv2/core.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>

#include "base/error.h"
#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

using Bytes = std::vector<std::uint8_t>;
using Pixel = std::array<int, 3>;
using test::contains;
using test::error_of;

constexpr Pixel red{250, 10, 10}, green{10, 240, 10}, blue{10, 10, 250}, white{245, 245, 245};

void paint(Image& image, std::uint32_t x, std::uint32_t y, const Pixel& colour) {
    for (std::size_t c = 0; c < 3; ++c) {
        image.row(y)[3 * x + c] = static_cast<std::uint8_t>(colour[c]);
    }
}

Pixel pixel(const Image& image, std::uint32_t x, std::uint32_t y) {
    const std::uint8_t* p = image.row(y) + std::size_t{3} * x;
    return {p[0], p[1], p[2]};
}

bool near(const Pixel& a, const Pixel& b, int tolerance) {
    return std::equal(a.begin(), a.end(), b.begin(), [&](int u, int v) { return std::abs(u - v) <= tolerance; });
}

/// 48 x 32: red top left, green top right, blue bottom left, white bottom right.
Image quarters() {
    Image image = Image::blank(48, 32);
    for (std::uint32_t y = 0; y < 32; ++y) {
        for (std::uint32_t x = 0; x < 48; ++x) {
            paint(image, x, y, y < 16 ? (x < 24 ? red : green) : (x < 24 ? blue : white));
        }
    }
    return image;
}

Image gradient(std::uint32_t width, std::uint32_t height) {
    Image image = Image::blank(width, height);
    for (std::size_t i = 0; i < image.pixels.size(); ++i) {
        image.pixels[i] = static_cast<std::uint8_t>(i * 7 + i / 50);
    }
    return image;
}

/// What a viewer shows at the four corners of quarters() for each EXIF orientation: top left, top right, bottom left,
/// bottom right (EXIF 2.3, tag 274: where the 0th row and the 0th column are).
struct OrientationCase {
    std::uint8_t orientation;
    std::array<Pixel, 4> corners;
};
const OrientationCase orientation_cases[] = {
    {1, {red, green, blue, white}}, {2, {green, red, white, blue}}, {3, {white, blue, green, red}},
    {4, {blue, white, red, green}}, {5, {red, blue, green, white}}, {6, {blue, red, white, green}},
    {7, {white, green, blue, red}}, {8, {green, white, red, blue}},
};

void expect_corners(const Image& image, const OrientationCase& expected) {
    const bool turned = expected.orientation >= 5;
    ASSERT_EQ(image.width, turned ? 32u : 48u);
    ASSERT_EQ(image.height, turned ? 48u : 32u);
    const std::uint32_t right = image.width - 4, bottom = image.height - 4;
    const std::array<Pixel, 4> got{pixel(image, 3, 3), pixel(image, right, 3), pixel(image, 3, bottom),
                                   pixel(image, right, bottom)};
    for (std::size_t corner = 0; corner < 4; ++corner) {
        EXPECT_TRUE(near(got[corner], expected.corners[corner], 20))
            << "orientation " << int{expected.orientation} << ", corner " << corner << ": " << got[corner][0] << " "
            << got[corner][1] << " " << got[corner][2];
    }
}

/// The smallest TIFF structure with one tag: the orientation.
Bytes exif_block(std::uint8_t orientation, bool big_endian) {
    if (big_endian) {
        return {'M', 'M', 0, '*', 0, 0, 0, 8, 0, 1, 1, 18, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0, 0, 0, 0, 0};
    }
    return {'I', 'I', '*', 0, 8, 0, 0, 0, 1, 0, 18, 1, 3, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0, 0, 0, 0};
}

Bytes with_exif(const Bytes& jpeg, const Bytes& exif) {
    Bytes segment{0xFF, 0xE1, 0, static_cast<std::uint8_t>(exif.size() + 8), 'E', 'x', 'i', 'f', 0, 0};
    segment.insert(segment.end(), exif.begin(), exif.end());
    Bytes bytes = jpeg;
    bytes.insert(bytes.begin() + 2, segment.begin(), segment.end());
    return bytes;
}

Bytes opencv_encoded(const char* extension, const cv::Mat& image, const std::vector<int>& parameters = {}) {
    Bytes bytes;
    EXPECT_TRUE(cv::imencode(extension, image, bytes, parameters));
    return bytes;
}

cv::Mat as_bgr(const Image& image) {
    cv::Mat mat(static_cast<int>(image.height), static_cast<int>(image.width), CV_8UC3);
    for (std::uint32_t y = 0; y < image.height; ++y) {
        for (std::uint32_t x = 0; x < image.width; ++x) {
            const Pixel p = pixel(image, x, y);
            mat.at<cv::Vec3b>(static_cast<int>(y), static_cast<int>(x)) = {
                static_cast<std::uint8_t>(p[2]), static_cast<std::uint8_t>(p[1]), static_cast<std::uint8_t>(p[0])};
        }
    }
    return mat;
}

// ---- orientation ----

TEST(Image, JpegOrientationsOfBothByteOrders) {
    const Bytes plain = encode_jpeg(quarters(), 95);
    for (const OrientationCase& expected : orientation_cases) {
        for (const bool big_endian : {false, true}) {
            const Bytes jpeg = with_exif(plain, exif_block(expected.orientation, big_endian));
            const Image image = decode_rgb(jpeg, "test");
            expect_corners(image, expected);
            EXPECT_EQ(probe_size(jpeg, "test"), (ImageSize{image.width, image.height}));
        }
    }
}

TEST(Image, JpegEqualsOpenCvPixelByPixelInEveryOrientation) {
    const Bytes plain = encode_jpeg(gradient(53, 31), 80);
    for (const OrientationCase& expected : orientation_cases) {
        const Bytes jpeg = with_exif(plain, exif_block(expected.orientation, true));
        const cv::Mat reference = cv::imdecode(jpeg, cv::IMREAD_COLOR);
        const Image image = decode_rgb(jpeg, "test");
        ASSERT_EQ(as_bgr(image).size(), reference.size());
        EXPECT_EQ(cv::norm(as_bgr(image), reference, cv::NORM_INF), 0) << int{expected.orientation};
    }
}

TEST(Image, ReducedJpegEqualsOpenCvsInEveryOrientation) {
    const Bytes plain = encode_jpeg(gradient(83, 61), 80);
    const std::array flags = {cv::IMREAD_REDUCED_COLOR_2, cv::IMREAD_REDUCED_COLOR_4, cv::IMREAD_REDUCED_COLOR_8};
    for (const OrientationCase& expected : orientation_cases) {
        const Bytes jpeg = with_exif(plain, exif_block(expected.orientation, true));
        const ImageSize full = probe_size(jpeg, "test");
        for (std::uint32_t i = 0; i < 3; ++i) {
            const std::uint32_t denominator = 2U << i;
            const ImageSize least{(full.width + denominator - 1) / denominator,
                                  (full.height + denominator - 1) / denominator};
            const cv::Mat reference = cv::imdecode(jpeg, flags.at(i));
            const ReducedImage reduced = decode_reduced(jpeg, least, "test");
            EXPECT_EQ(reduced.full, full);
            ASSERT_EQ(as_bgr(reduced.image).size(), reference.size()) << denominator;
            EXPECT_EQ(cv::norm(as_bgr(reduced.image), reference, cv::NORM_INF), 0)
                << "1/" << denominator << ", orientation " << int{expected.orientation};
        }
    }
}

TEST(Image, OnlyAsMuchIsReducedAsBothSidesAllow) {
    const Bytes jpeg = encode_jpeg(gradient(64, 40), 80);
    const auto size_for = [&](std::uint32_t width, std::uint32_t height) {
        const Image image = decode_reduced(jpeg, {width, height}, "test").image;
        return ImageSize{image.width, image.height};
    };
    EXPECT_EQ(size_for(64, 40), (ImageSize{64, 40}));
    EXPECT_EQ(size_for(33, 1), (ImageSize{64, 40}));
    EXPECT_EQ(size_for(1, 21), (ImageSize{64, 40}));
    EXPECT_EQ(size_for(32, 20), (ImageSize{32, 20}));
    EXPECT_EQ(size_for(16, 10), (ImageSize{16, 10}));
    EXPECT_EQ(size_for(1, 1), (ImageSize{8, 5}));
    const Bytes png = encode_png(gradient(64, 40));
    EXPECT_EQ(decode_reduced(png, {1, 1}, "test").image.pixels, gradient(64, 40).pixels);
    EXPECT_THROW(decode_reduced(Bytes(jpeg.begin(), jpeg.end() - 100), {8, 5}, "test"), base::Error);
}

TEST(Image, ReducedPixelsAreNearTheMeansOfTheFullImage) {
    Image smooth = Image::blank(640, 480);
    for (std::uint32_t y = 0; y < 480; ++y) {
        for (std::uint32_t x = 0; x < 640; ++x) {
            const auto wave = [&](double period) {
                return static_cast<int>(std::lround(128 + 50 * std::sin(x / period) + 50 * std::cos(y / period)));
            };
            paint(smooth, x, y, {wave(8), wave(12), wave(20)});
        }
    }
    const Bytes jpeg = encode_jpeg(smooth, 95);
    const cv::Mat full = as_bgr(decode_rgb(jpeg, "test"));
    for (const int denominator : {2, 4, 8}) {
        cv::Mat means;
        cv::resize(full, means, {640 / denominator, 480 / denominator}, 0, 0, cv::INTER_AREA);
        const Image reduced =
            decode_reduced(jpeg, {static_cast<std::uint32_t>(means.cols), static_cast<std::uint32_t>(means.rows)},
                           "test")
                .image;
        ASSERT_EQ(as_bgr(reduced).size(), means.size());
        const double difference = cv::norm(as_bgr(reduced), means, cv::NORM_L1) / (3.0 * means.rows * means.cols);
        EXPECT_LT(difference, 2) << "1/" << denominator;
    }
}

TEST(Image, PngOrientation) {
    const Bytes plain = encode_png(quarters());
    for (const OrientationCase& expected : orientation_cases) {
        const Bytes exif = exif_block(expected.orientation, true);
        Bytes chunk{0, 0, 0, static_cast<std::uint8_t>(exif.size()), 'e', 'X', 'I', 'f'};
        chunk.insert(chunk.end(), exif.begin(), exif.end());
        const auto checksum = crc32(0, chunk.data() + 4, static_cast<uInt>(chunk.size() - 4));
        for (int shift = 24; shift >= 0; shift -= 8) {
            chunk.push_back(static_cast<std::uint8_t>(checksum >> shift));
        }
        Bytes png = plain;
        constexpr std::ptrdiff_t after_header = 8 + 25;
        png.insert(png.begin() + after_header, chunk.begin(), chunk.end());
        expect_corners(decode_rgb(png, "test"), expected);
    }
}

/// Uncompressed RGB in one strip.
Bytes tiff(const Image& image, std::uint8_t orientation) {
    Bytes bytes{'I', 'I', '*', 0, 8, 0, 0, 0};
    const auto put = [&](std::uint32_t value, int width) {
        for (int i = 0; i < width; ++i) {
            bytes.push_back(static_cast<std::uint8_t>(value >> 8 * i));
        }
    };
    constexpr std::uint32_t entries = 10, u16 = 3, u32 = 4;
    constexpr std::uint32_t after_directory = 8 + 2 + 12 * entries + 4;
    put(entries, 2);
    const auto entry = [&](std::uint32_t tag, std::uint32_t type, std::uint32_t count, std::uint32_t value) {
        put(tag, 2);
        put(type, 2);
        put(count, 4);
        put(value, 4);
    };
    entry(256, u32, 1, image.width);
    entry(257, u32, 1, image.height);
    entry(258, u16, 3, after_directory);  // bits per sample
    entry(259, u16, 1, 1);                // no compression
    entry(262, u16, 1, 2);                // RGB
    entry(273, u32, 1, after_directory + 6);
    entry(274, u16, 1, orientation);
    entry(277, u16, 1, 3);
    entry(278, u32, 1, image.height);
    entry(279, u32, 1, static_cast<std::uint32_t>(image.pixels.size()));
    put(0, 4);
    for (int channel = 0; channel < 3; ++channel) {
        put(8, 2);
    }
    bytes.insert(bytes.end(), image.pixels.begin(), image.pixels.end());
    return bytes;
}

TEST(Image, TiffOrientation) {
    for (const OrientationCase& expected : orientation_cases) {
        const Bytes bytes = tiff(quarters(), expected.orientation);
        const Image image = decode_rgb(bytes, "test");
        expect_corners(image, expected);
        EXPECT_EQ(probe_size(bytes, "test"), (ImageSize{image.width, image.height}));
    }
}

// ---- colours and depths ----

TEST(Image, LosslessFormatsGiveThePixelsBack) {
    const Image image = gradient(37, 21);
    const Bytes files[] = {encode_png(image), encode_png(image, 0), opencv_encoded(".bmp", as_bgr(image)),
                           opencv_encoded(".tiff", as_bgr(image)),
                           opencv_encoded(".webp", as_bgr(image), {cv::IMWRITE_WEBP_QUALITY, 101})};
    for (const Bytes& file : files) {
        EXPECT_EQ(probe_size(file, "test"), (ImageSize{37, 21}));
        EXPECT_EQ(decode_rgb(file, "test").pixels, image.pixels) << "starts with " << file[0] << file[1];
    }
}

TEST(Image, LossyFormatsComeNear) {
    for (const Bytes& file :
         {encode_jpeg(quarters(), 95), opencv_encoded(".webp", as_bgr(quarters()), {cv::IMWRITE_WEBP_QUALITY, 90})}) {
        EXPECT_EQ(probe_size(file, "test"), (ImageSize{48, 32}));
        expect_corners(decode_rgb(file, "test"), orientation_cases[0]);
    }
}

TEST(Image, GrayIsRepeated) {
    cv::Mat gray(5, 7, CV_8U, cv::Scalar(93));
    for (const char* extension : {".png", ".jpg", ".tiff"}) {
        EXPECT_EQ(pixel(decode_rgb(opencv_encoded(extension, gray), "test"), 6, 4), (Pixel{93, 93, 93})) << extension;
    }
}

TEST(Image, AlphaIsDropped) {
    const cv::Mat transparent(4, 4, CV_8UC4, cv::Scalar(30, 20, 10, 0));
    EXPECT_EQ(pixel(decode_rgb(opencv_encoded(".png", transparent), "test"), 1, 2), (Pixel{10, 20, 30}));
}

TEST(Image, SixteenBitsAreCutToTheHighByte) {
    const cv::Mat deep(4, 4, CV_16UC3, cv::Scalar(0x1FFF, 0x80FF, 0xFF80));
    for (const char* extension : {".png", ".tiff"}) {
        EXPECT_EQ(pixel(decode_rgb(opencv_encoded(extension, deep), "test"), 0, 0), (Pixel{0xFF, 0x80, 0x1F}))
            << extension;
    }
    const cv::Mat gray(4, 4, CV_16U, cv::Scalar(0x7FFF));
    EXPECT_EQ(pixel(decode_rgb(opencv_encoded(".png", gray), "test"), 0, 0), (Pixel{0x7F, 0x7F, 0x7F}));
}

TEST(Image, FloatingPointPixelsAreRefused) {
    const cv::Mat real(4, 4, CV_32FC3, cv::Scalar(0.5, 0.5, 0.5));
    EXPECT_TRUE(
        contains(error_of([&] { decode_rgb(opencv_encoded(".tiff", real), "a.tiff"); }), "a.tiff: pixels of type"));
}

Bytes cmyk_jpeg(const std::array<std::uint8_t, 4>& inverted_inks) {
    jpeg_compress_struct info{};
    jpeg_error_mgr errors{};
    info.err = jpeg_std_error(&errors);
    jpeg_create_compress(&info);
    std::uint8_t* buffer = nullptr;
    unsigned long size = 0;
    jpeg_mem_dest(&info, &buffer, &size);
    info.image_width = info.image_height = 16;
    info.input_components = 4;
    info.in_color_space = JCS_CMYK;
    jpeg_set_defaults(&info);
    jpeg_set_quality(&info, 100, TRUE);
    jpeg_start_compress(&info, TRUE);
    Bytes row;
    for (int x = 0; x < 16; ++x) {
        row.insert(row.end(), inverted_inks.begin(), inverted_inks.end());
    }
    for (int y = 0; y < 16; ++y) {
        JSAMPROW pointer = row.data();
        jpeg_write_scanlines(&info, &pointer, 1);
    }
    jpeg_finish_compress(&info);
    Bytes bytes(buffer, buffer + size);
    jpeg_destroy_compress(&info);
    std::free(buffer);
    return bytes;
}

TEST(Image, CmykIsConverted) {
    // Little cyan, half magenta, full yellow, a fifth of black; inverted, as Adobe writes them.
    const Image image = decode_rgb(cmyk_jpeg({230, 128, 0, 204}), "test");
    EXPECT_TRUE(near(pixel(image, 8, 8), {230 * 204 / 255, 128 * 204 / 255, 0}, 3)) << pixel(image, 8, 8)[0];
}

// ---- damage ----

TEST(Image, EveryTruncationIsAnError) {
    const Image image = gradient(64, 64);
    const std::pair<const char*, Bytes> files[] = {
        {"a.jpg", encode_jpeg(image, 90)},
        {"a.png", encode_png(image)},
        {"a.bmp", opencv_encoded(".bmp", as_bgr(image))},
        {"a.tiff", tiff(image, 1)},
        {"a.webp", opencv_encoded(".webp", as_bgr(image), {cv::IMWRITE_WEBP_QUALITY, 90})},
    };
    for (const auto& file : files) {
        const Bytes& whole = file.second;
        ASSERT_NO_THROW(decode_rgb(whole, file.first));
        for (std::size_t keep = 0; keep < whole.size(); keep += whole.size() / 40 + 1) {
            const std::string message = error_of([&] { decode_rgb(std::span(whole).first(keep), file.first); });
            EXPECT_TRUE(contains(message, file.first)) << keep << " of " << whole.size() << " bytes";
        }
    }
}

TEST(Image, TruncatedJpegIsCalledSo) {
    const Bytes whole = encode_jpeg(gradient(64, 64), 90);
    const std::string message = error_of([&] { decode_rgb(std::span(whole).first(whole.size() / 2), "photos/a.jpg"); });
    EXPECT_TRUE(contains(message, "photos/a.jpg: damaged or truncated JPEG"));
}

TEST(Image, StrayBytesBetweenMarkersAreNoDamage) {
    Bytes jpeg = encode_jpeg(gradient(64, 64), 90);
    const Image clean = decode_rgb(jpeg, "test");
    const std::ptrdiff_t after_jfif = 4 + 256 * jpeg[4] + jpeg[5];
    jpeg.insert(jpeg.begin() + after_jfif, {0, 0, 0});
    EXPECT_EQ(decode_rgb(jpeg, "test").pixels, clean.pixels);
}

TEST(Image, WhatIsNoImage) {
    const std::string text = "<html>not found</html>";
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    EXPECT_TRUE(
        contains(error_of([&] { decode_rgb(bytes, "a.jpg"); }), "a.jpg: not a JPEG, PNG, TIFF, WebP or BMP image"));
    EXPECT_TRUE(contains(error_of([&] { probe_size({}, "b.jpg"); }), "b.jpg: the file is empty"));
}

TEST(Image, SizesAreCheckedBeforeAnythingIsAllocated) {
    Bytes png = encode_png(gradient(8, 8));
    const auto set_size = [&](std::uint32_t width, std::uint32_t height) {
        for (int i = 0; i < 4; ++i) {
            png[16 + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(width >> (24 - 8 * i));
            png[20 + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(height >> (24 - 8 * i));
        }
    };
    set_size(1'000'000, 1'000'000);
    EXPECT_TRUE(contains(error_of([&] { decode_rgb(png, "a.png"); }), "1000000 x 1000000 pixels, more than the limit"));
    set_size(0, 8);
    EXPECT_TRUE(contains(error_of([&] { probe_size(png, "a.png"); }), "width or height of zero"));

    Bytes jpeg = encode_jpeg(gradient(8, 8), 90);
    const std::array<std::uint8_t, 2> start_of_frame{0xFF, 0xC0};
    const auto frame = std::search(jpeg.begin(), jpeg.end(), start_of_frame.begin(), start_of_frame.end());
    std::fill_n(frame + 5, 4, std::uint8_t{0xF0});  // height and width of 61680
    EXPECT_TRUE(contains(error_of([&] { decode_rgb(jpeg, "a.jpg"); }), "61680 x 61680 pixels, more than the limit"));
}

TEST(Image, DamagedHeadersNeverCrash) {
    for (const Bytes& whole :
         {with_exif(encode_jpeg(gradient(9, 9), 90), exif_block(6, false)), tiff(gradient(9, 9), 3),
          encode_png(gradient(9, 9)), opencv_encoded(".webp", as_bgr(gradient(9, 9)))}) {
        for (std::size_t position = 0; position < std::min<std::size_t>(whole.size(), 200); ++position) {
            Bytes damaged = whole;
            damaged[position] ^= 0xFF;
            try {
                const ImageSize size = probe_size(damaged, "test");
                EXPECT_LE(std::uint64_t{size.width} * size.height, max_image_pixels);
            } catch (const base::Error&) {
            }
        }
    }
}

TEST(Image, Crop) {
    const Image image = gradient(10, 8);
    const Image part = crop(image, 3, 2, 4, 5);
    EXPECT_EQ(part.width, 4u);
    EXPECT_EQ(part.height, 5u);
    for (std::uint32_t y = 0; y < 5; ++y) {
        for (std::uint32_t x = 0; x < 4; ++x) {
            EXPECT_EQ(pixel(part, x, y), pixel(image, x + 3, y + 2));
        }
    }
}

}  // namespace
}  // namespace lockstep::sharding
