#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace lockstep::sharding {

/// Larger images are refused before anything is allocated for them.
inline constexpr std::uint64_t max_image_pixels = std::uint64_t{1} << 28;

/// 8-bit RGB, rows from the top, without padding.
struct Image {
    std::uint32_t width = 0, height = 0;
    std::vector<std::uint8_t> pixels;  ///< height x width x 3

    static Image blank(std::uint32_t width, std::uint32_t height);
    std::uint8_t* row(std::uint32_t y) { return pixels.data() + std::size_t{y} * width * 3; }
    const std::uint8_t* row(std::uint32_t y) const { return pixels.data() + std::size_t{y} * width * 3; }
};

struct ImageSize {
    std::uint32_t width = 0, height = 0;
    bool operator==(const ImageSize&) const = default;
};

/// Size that decode_rgb would give, from the header alone. `name` stands for the image in errors. Throws base::Error
/// where the bytes are no JPEG, PNG, TIFF, WebP or BMP (by content, never by file name), or claim a size of zero or of
/// more than max_image_pixels.
ImageSize probe_size(std::span<const std::uint8_t> bytes, std::string_view name);

/// Decodes to RGB: the EXIF orientation is applied, gray is repeated, alpha dropped, CMYK converted (with inverted
/// inks, as Adobe writes them), 16 bits cut to the high byte. Throws base::Error where probe_size does, and where the
/// data is damaged or ends early, also where a decoder would only warn and fill in gray.
Image decode_rgb(std::span<const std::uint8_t> bytes, std::string_view name);

/// What decode_reduced gives.
struct ReducedImage {
    Image image;
    ImageSize full;  ///< what decode_rgb would give
};

/// As decode_rgb, but a JPEG comes out of the decoder at 1/2, 1/4 or 1/8 (the least of them whose sides, rounded up,
/// are not below `least`). Faster, and its pixels are those of a resized full image but for the reduction's own
/// low-pass filter and a border of less than one pixel. Other formats, and JPEGs that are not large enough, come in
/// full.
ReducedImage decode_reduced(std::span<const std::uint8_t> bytes, ImageSize least, std::string_view name);

/// What an image file has that its decoded pixels don't.
struct ImageTraits {
    bool has_alpha = false;
    bool has_16_bits = false;
    std::string_view extension;  ///< the usual one of its format: ".jpg", ".png", ".tif", ".webp" or ".bmp"
};
/// From the header alone. Throws base::Error where probe_size does.
ImageTraits probe_traits(std::span<const std::uint8_t> bytes, std::string_view name);

/// The size with a long side of `side` pixels and the same aspect, as the loader fits images.
ImageSize fitted_size(ImageSize size, std::uint32_t side);
/// Bilinear, without smoothing, as the loader resizes.
Image resize(const Image& image, ImageSize size);

/// Lossless; `compression` from 0 (none) to 9 (smallest).
std::vector<std::uint8_t> encode_png(const Image& image, int compression = 3);
/// `quality` from 1 to 100.
std::vector<std::uint8_t> encode_jpeg(const Image& image, int quality);

/// A copy of the rectangle, which lies inside the image.
Image crop(const Image& image, std::uint32_t x, std::uint32_t y, std::uint32_t width, std::uint32_t height);

}  // namespace lockstep::sharding
