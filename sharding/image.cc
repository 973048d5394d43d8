#include "sharding/image.h"

#include <csetjmp>
#include <cstdio>
#include <cstring>
// jpeglib.h needs size_t and FILE declared before it.
#include <jpeglib.h>
// Knows all its codes only behind the other.
#include <jerror.h>

#include <algorithm>
#include <cmath>
#include <opencv2/core.hpp>
#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#include <optional>

#include "base/error.h"

namespace lockstep::sharding {
namespace {

using Bytes = std::span<const std::uint8_t>;

[[noreturn]] void fail(std::string_view name, std::string_view what) {
    throw base::Error(base::str(name, ": ", what));
}

// ---- headers ----

/// Reads numbers of either byte order out of untrusted bytes; what lies beyond the end reads as nothing.
class Reader {
  public:
    Reader(Bytes bytes, bool big_endian) : bytes_(bytes), big_endian_(big_endian) {}

    std::optional<std::uint32_t> number(std::size_t offset, std::size_t width) const {
        if (offset > bytes_.size() || width > bytes_.size() - offset) {
            return std::nullopt;
        }
        std::uint32_t value = 0;
        for (std::size_t i = 0; i < width; ++i) {
            value = value << 8 | bytes_[offset + (big_endian_ ? i : width - 1 - i)];
        }
        return value;
    }
    std::optional<std::uint32_t> u16(std::size_t offset) const { return number(offset, 2); }
    std::optional<std::uint32_t> u24(std::size_t offset) const { return number(offset, 3); }
    std::optional<std::uint32_t> u32(std::size_t offset) const { return number(offset, 4); }

  private:
    Bytes bytes_;
    bool big_endian_;
};

bool has_text_at(Bytes bytes, std::size_t offset, std::string_view text) {
    return offset <= bytes.size() && text.size() <= bytes.size() - offset &&
           std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}

/// The part from `offset` on, at most `size` long.
Bytes part(Bytes bytes, std::size_t offset, std::size_t size = SIZE_MAX) {
    const Bytes rest = bytes.subspan(std::min(offset, bytes.size()));
    return rest.first(std::min(size, rest.size()));
}

enum class Format { jpeg, png, tiff, webp, bmp };

std::optional<Format> sniff(Bytes bytes) {
    using namespace std::string_view_literals;
    if (has_text_at(bytes, 0, "\xFF\xD8\xFF"sv)) {
        return Format::jpeg;
    }
    if (has_text_at(bytes, 0, "\x89PNG\r\n\x1A\n"sv)) {
        return Format::png;
    }
    if (has_text_at(bytes, 0, "II*\0"sv) || has_text_at(bytes, 0, "MM\0*"sv)) {
        return Format::tiff;
    }
    if (has_text_at(bytes, 0, "RIFF"sv) && has_text_at(bytes, 8, "WEBP"sv)) {
        return Format::webp;
    }
    if (has_text_at(bytes, 0, "BM"sv)) {
        return Format::bmp;
    }
    return std::nullopt;
}

/// EXIF's values: 1 as stored, 2 to 4 mirrored or turned half, 5 to 8 with the axes swapped.
using Orientation = std::uint32_t;
constexpr Orientation upright = 1;

struct Header {
    ImageSize stored;
    Orientation orientation = upright;
};

/// The first directory of a TIFF file; EXIF blocks are TIFF files without an image.
Header read_tiff_header(Bytes bytes) {
    constexpr std::uint32_t tag_width = 256, tag_height = 257, tag_orientation = 274;
    constexpr std::uint32_t type_u16 = 3;
    const Reader reader(bytes, has_text_at(bytes, 0, "MM"));
    Header header;
    const std::size_t directory = reader.u32(4).value_or(0);
    const std::size_t entries = reader.u16(directory).value_or(0);
    for (std::size_t i = 0; i < entries; ++i) {
        const std::size_t entry = directory + 2 + 12 * i;
        const std::uint32_t tag = reader.u16(entry).value_or(0);
        const std::uint32_t value =
            (reader.u16(entry + 2) == type_u16 ? reader.u16(entry + 8) : reader.u32(entry + 8)).value_or(0);
        if (tag == tag_width) {
            header.stored.width = value;
        } else if (tag == tag_height) {
            header.stored.height = value;
        } else if (tag == tag_orientation && value >= 1 && value <= 8) {
            header.orientation = value;
        }
    }
    return header;
}

/// `exif` with or without the six bytes that JPEG puts before it.
Orientation exif_orientation(Bytes exif) {
    using namespace std::string_view_literals;
    return read_tiff_header(has_text_at(exif, 0, "Exif\0\0"sv) ? part(exif, 6) : exif).orientation;
}

Header read_png_header(Bytes bytes) {
    const Reader reader(bytes, true);
    Header header{.stored = {reader.u32(16).value_or(0), reader.u32(20).value_or(0)}};
    std::size_t chunk = 8;
    while (const auto length = reader.u32(chunk)) {
        if (has_text_at(bytes, chunk + 4, "eXIf")) {
            header.orientation = exif_orientation(part(bytes, chunk + 8, *length));
        }
        chunk += 12 + std::size_t{*length};
    }
    return header;
}

Header read_webp_header(Bytes bytes) {
    const Reader reader(bytes, false);
    Header header;
    std::size_t chunk = 12;
    while (const auto length = reader.u32(chunk + 4)) {
        const std::size_t content = chunk + 8;
        if (has_text_at(bytes, chunk, "VP8X")) {
            header.stored = {reader.u24(content + 4).value_or(0) + 1, reader.u24(content + 7).value_or(0) + 1};
        } else if (has_text_at(bytes, chunk, "VP8 ")) {
            header.stored = {reader.u16(content + 6).value_or(0) & 0x3FFF,
                             reader.u16(content + 8).value_or(0) & 0x3FFF};
        } else if (has_text_at(bytes, chunk, "VP8L")) {
            const std::uint32_t packed = reader.u32(content + 1).value_or(0);
            header.stored = {(packed & 0x3FFF) + 1, (packed >> 14 & 0x3FFF) + 1};
        } else if (has_text_at(bytes, chunk, "EXIF")) {
            header.orientation = exif_orientation(part(bytes, content, *length));
        }
        chunk += 8 + std::size_t{*length} + (*length & 1);
    }
    return header;
}

Header read_bmp_header(Bytes bytes) {
    constexpr std::uint32_t os2_header_bytes = 12;
    const Reader reader(bytes, false);
    if (reader.u32(14) == os2_header_bytes) {
        return {.stored = {reader.u16(18).value_or(0), reader.u16(20).value_or(0)}};
    }
    const auto height = static_cast<std::int32_t>(reader.u32(22).value_or(0));  // negative: rows from the top
    return {.stored = {reader.u32(18).value_or(0),
                       height < 0 ? 0u - static_cast<std::uint32_t>(height) : static_cast<std::uint32_t>(height)}};
}

// ---- JPEG ----

/// libjpeg only warns of missing data and fills it in. Of its warnings these mean that pixels are lost or wrong.
bool means_damage(int message_code) {
    switch (message_code) {
        case JWRN_JPEG_EOF:
        case JWRN_HIT_MARKER:
        case JWRN_HUFF_BAD_CODE:
        case JWRN_ARITH_BAD_CODE:
        case JWRN_MUST_RESYNC:
            return true;
        default:
            return false;
    }
}

/// libjpeg reports by callbacks that must not return; they jump back to guarded().
struct JpegErrors {
    jpeg_error_mgr manager;
    std::jmp_buf jump;
    char message[JMSG_LENGTH_MAX];

    static JpegErrors& of(j_common_ptr info) { return *reinterpret_cast<JpegErrors*>(info->err); }
    static void leave(j_common_ptr info) {
        info->err->format_message(info, of(info).message);
        std::longjmp(of(info).jump, 1);
    }
    static void hear(j_common_ptr info, int level) {
        if (level < 0 && means_damage(info->err->msg_code)) {
            leave(info);
        }
    }
};

struct JpegDecompress : jpeg_decompress_struct {
    JpegDecompress() : jpeg_decompress_struct{} {}
    ~JpegDecompress() { jpeg_destroy_decompress(this); }
    JpegDecompress(const JpegDecompress&) = delete;
    JpegDecompress& operator=(const JpegDecompress&) = delete;
};

class JpegReader {
  public:
    JpegReader(Bytes bytes, std::string_view name) : name_(name) {
        info_.err = jpeg_std_error(&errors_.manager);
        errors_.manager.error_exit = JpegErrors::leave;
        errors_.manager.emit_message = JpegErrors::hear;
        guarded([&] {
            jpeg_create_decompress(&info_);
            jpeg_mem_src(&info_, bytes.data(), bytes.size());
            jpeg_save_markers(&info_, JPEG_APP0 + 1, 0xFFFF);
            jpeg_read_header(&info_, TRUE);
        });
    }

    Header header() const {
        Header header{.stored = {info_.image_width, info_.image_height}};
        for (jpeg_saved_marker_ptr marker = info_.marker_list; marker; marker = marker->next) {
            const Bytes data(marker->data, marker->data_length);
            if (has_text_at(data, 0, "Exif")) {
                header.orientation = exif_orientation(data);
            }
        }
        return header;
    }

    /// Both sides are divided by 1, 2, 4 or 8 and rounded up.
    void reduce(unsigned denominator) {
        info_.scale_num = 1;
        info_.scale_denom = denominator;
    }

    /// As stored, before the orientation.
    Image decode() {
        guarded([&] { jpeg_calc_output_dimensions(&info_); });
        Image image = Image::blank(info_.output_width, info_.output_height);
        if (info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK) {
            decode_cmyk(image);
        } else {
            info_.out_color_space = JCS_RGB;
            guarded([&] {
                jpeg_start_decompress(&info_);
                while (info_.output_scanline < info_.output_height) {
                    JSAMPROW row = image.row(info_.output_scanline);
                    jpeg_read_scanlines(&info_, &row, 1);
                }
                jpeg_finish_decompress(&info_);
            });
        }
        return image;
    }

  private:
    /// `step` must own nothing: an error jumps out of it.
    template <typename Step>
    void guarded(const Step& step) {
        if (setjmp(errors_.jump) != 0) {
            fail(name_, base::str("damaged or truncated JPEG (", errors_.message, ")"));
        }
        step();
    }

    void decode_cmyk(Image& image) {
        info_.out_color_space = JCS_CMYK;
        std::vector<std::uint8_t> inks(std::size_t{image.width} * 4);
        guarded([&] {
            jpeg_start_decompress(&info_);
            while (info_.output_scanline < info_.output_height) {
                std::uint8_t* rgb = image.row(info_.output_scanline);
                JSAMPROW row = inks.data();
                jpeg_read_scanlines(&info_, &row, 1);
                for (std::size_t x = 0; x < image.width; ++x) {
                    const std::uint8_t* cmyk = &inks[4 * x];  // inverted: 255 is no ink
                    for (int c = 0; c < 3; ++c) {
                        *rgb++ = static_cast<std::uint8_t>((cmyk[c] * cmyk[3] + 127) / 255);
                    }
                }
            }
            jpeg_finish_decompress(&info_);
        });
    }

    std::string_view name_;
    JpegErrors errors_{};
    JpegDecompress info_;
};

// ---- the other formats ----

template <typename T>
void copy_as_rgb(const cv::Mat& decoded, int shift, Image& image) {
    const int channels = decoded.channels();
    for (int y = 0; y < decoded.rows; ++y) {
        const T* from = decoded.ptr<T>(y);
        std::uint8_t* to = image.row(static_cast<std::uint32_t>(y));
        for (int x = 0; x < decoded.cols; ++x, from += channels) {
            for (int c = 2; c >= 0; --c) {  // OpenCV's order is blue, green, red
                *to++ = static_cast<std::uint8_t>(from[channels == 1 ? 0 : c] >> shift);
            }
        }
    }
}

Image decode_with_opencv(Bytes bytes, std::string_view name) {
    cv::Mat decoded;
    try {
        const cv::Mat source(1, static_cast<int>(bytes.size()), CV_8U, const_cast<std::uint8_t*>(bytes.data()));
        decoded = cv::imdecode(source, cv::IMREAD_UNCHANGED);
    } catch (const cv::Exception& error) {
        fail(name, base::str("damaged image (", error.err, ")"));
    }
    if (decoded.empty()) {
        fail(name, "damaged or truncated image");
    }
    const int depth = decoded.depth();
    const int channels = decoded.channels();
    if ((depth != CV_8U && depth != CV_16U) || (channels != 1 && channels != 3 && channels != 4)) {
        fail(name, base::str("pixels of type ", cv::typeToString(decoded.type()),
                             " can't be read: convert the image to 8 or 16 bits, gray or RGB"));
    }
    Image image = Image::blank(static_cast<std::uint32_t>(decoded.cols), static_cast<std::uint32_t>(decoded.rows));
    if (depth == CV_8U) {
        copy_as_rgb<std::uint8_t>(decoded, 0, image);
    } else {
        copy_as_rgb<std::uint16_t>(decoded, 8, image);
    }
    return image;
}

// ---- together ----

Header checked(const Header& header, std::string_view name) {
    const auto [width, height] = header.stored;
    if (width == 0 || height == 0) {
        fail(name, "the image's header declares a width or height of zero, or is cut off");
    }
    if (std::uint64_t{width} * height > max_image_pixels) {
        fail(name, base::str("the image's header declares ", width, " x ", height, " pixels, more than the limit of ",
                             max_image_pixels, ": cut it into smaller images"));
    }
    return header;
}

Header read_header(Bytes bytes, std::string_view name) {
    const std::optional<Format> format = sniff(bytes);
    if (!format) {
        fail(name, bytes.empty() ? "the file is empty" : "not a JPEG, PNG, TIFF, WebP or BMP image");
    }
    switch (*format) {
        case Format::jpeg:
            return JpegReader(bytes, name).header();
        case Format::png:
            return read_png_header(bytes);
        case Format::tiff:
            return read_tiff_header(bytes);
        case Format::webp:
            return read_webp_header(bytes);
        case Format::bmp:
            return read_bmp_header(bytes);
    }
    LOCKSTEP_CHECK(false, "format ", static_cast<int>(*format));
}

ImageSize oriented(ImageSize size, Orientation orientation) {
    return orientation < 5 ? size : ImageSize{size.height, size.width};
}

Image oriented(Image image, Orientation orientation) {
    if (orientation == upright) {
        return image;
    }
    const auto [width, height] = oriented(ImageSize{image.width, image.height}, orientation);
    const bool swap = orientation >= 5;
    const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    Image turned = Image::blank(width, height);
    for (std::uint32_t y = 0; y < height; ++y) {
        std::uint8_t* to = turned.row(y);
        for (std::uint32_t x = 0; x < width; ++x, to += 3) {
            const std::uint32_t u = swap ? y : x;
            const std::uint32_t v = swap ? x : y;
            const std::uint8_t* from = image.row(from_bottom ? image.height - 1 - v : v) +
                                       std::size_t{3} * (from_right ? image.width - 1 - u : u);
            std::copy_n(from, 3, to);
        }
    }
    return turned;
}

std::vector<std::uint8_t> encode(const Image& image, const char* extension, const std::vector<int>& parameters) {
    const cv::Mat rgb(static_cast<int>(image.height), static_cast<int>(image.width), CV_8UC3,
                      const_cast<std::uint8_t*>(image.pixels.data()));
    cv::Mat bgr;
    cv::cvtColor(rgb, bgr, cv::COLOR_RGB2BGR);
    std::vector<std::uint8_t> bytes;
    LOCKSTEP_CHECK(cv::imencode(extension, bgr, bytes, parameters), "OpenCV has no encoder for ", extension);
    return bytes;
}

}  // namespace

Image Image::blank(std::uint32_t width, std::uint32_t height) {
    return {width, height, std::vector<std::uint8_t>(std::size_t{width} * height * 3)};
}

ImageSize probe_size(Bytes bytes, std::string_view name) {
    const Header header = checked(read_header(bytes, name), name);
    return oriented(header.stored, header.orientation);
}

Image decode_rgb(Bytes bytes, std::string_view name) {
    if (sniff(bytes) == Format::jpeg) {
        JpegReader reader(bytes, name);
        const Header header = checked(reader.header(), name);
        return oriented(reader.decode(), header.orientation);
    }
    Header header = checked(read_header(bytes, name), name);
    if (sniff(bytes) == Format::tiff) {  // OpenCV turns these itself, and only these with IMREAD_UNCHANGED
        header = {.stored = oriented(header.stored, header.orientation)};
    }
    Image image = decode_with_opencv(bytes, name);
    if (ImageSize{image.width, image.height} != header.stored) {
        fail(name, base::str("the header declares ", header.stored.width, " x ", header.stored.height,
                             " pixels and the data holds ", image.width, " x ", image.height));
    }
    return oriented(std::move(image), header.orientation);
}

ReducedImage decode_reduced(Bytes bytes, ImageSize least, std::string_view name) {
    if (sniff(bytes) != Format::jpeg) {
        Image image = decode_rgb(bytes, name);
        const ImageSize full{image.width, image.height};
        return {std::move(image), full};
    }
    JpegReader reader(bytes, name);
    const Header header = checked(reader.header(), name);
    const ImageSize full = oriented(header.stored, header.orientation);
    for (const unsigned denominator : {8U, 4U, 2U}) {
        const auto reduced = [&](std::uint32_t side) { return (side + denominator - 1) / denominator; };
        if (reduced(full.width) >= least.width && reduced(full.height) >= least.height) {
            reader.reduce(denominator);
            break;
        }
    }
    return {oriented(reader.decode(), header.orientation), full};
}

ImageTraits probe_traits(Bytes bytes, std::string_view name) {
    checked(read_header(bytes, name), name);
    const Format format = sniff(bytes).value();  // NOLINT(bugprone-unchecked-optional-access): read_header threw
    ImageTraits traits;
    switch (format) {
        case Format::jpeg:
            traits.extension = ".jpg";
            break;
        case Format::png: {
            traits.extension = ".png";
            const Reader reader(bytes, true);
            traits.has_16_bits = reader.number(24, 1) == 16U;
            const std::uint32_t colour = reader.number(25, 1).value_or(0);
            traits.has_alpha = colour == 4 || colour == 6;
            std::size_t chunk = 8;
            while (const auto length = reader.u32(chunk)) {
                traits.has_alpha |= has_text_at(bytes, chunk + 4, "tRNS");
                chunk += 12 + std::size_t{*length};
            }
            break;
        }
        case Format::tiff: {
            constexpr std::uint32_t tag_bits = 258, tag_extra_samples = 338;
            traits.extension = ".tif";
            const Reader reader(bytes, has_text_at(bytes, 0, "MM"));
            const std::size_t directory = reader.u32(4).value_or(0);
            const std::size_t entries = reader.u16(directory).value_or(0);
            for (std::size_t i = 0; i < entries; ++i) {
                const std::size_t entry = directory + 2 + 12 * i;
                const std::uint32_t tag = reader.u16(entry).value_or(0);
                traits.has_alpha |= tag == tag_extra_samples;
                if (tag == tag_bits) {  // up to two values lie in the entry, more elsewhere
                    const bool is_here = reader.u32(entry + 4).value_or(0) <= 2;
                    const std::size_t at = is_here ? entry + 8 : reader.u32(entry + 8).value_or(0);
                    traits.has_16_bits = reader.u16(at) == 16U;
                }
            }
            break;
        }
        case Format::webp:
            traits.extension = ".webp";
            traits.has_alpha =
                has_text_at(bytes, 12, "VP8X") && (Reader(bytes, false).number(20, 1).value_or(0) & 0x10) != 0;
            break;
        case Format::bmp:
            traits.extension = ".bmp";
            break;
    }
    return traits;
}

ImageSize fitted_size(ImageSize size, std::uint32_t side) {
    const double scale = double(side) / std::max(size.width, size.height);
    return {std::max(1U, static_cast<std::uint32_t>(std::lround(size.width * scale))),
            std::max(1U, static_cast<std::uint32_t>(std::lround(size.height * scale)))};
}

Image resize(const Image& image, ImageSize size) {
    if (size == ImageSize{image.width, image.height}) {
        return image;
    }
    Image resized = Image::blank(size.width, size.height);
    const cv::Mat from(static_cast<int>(image.height), static_cast<int>(image.width), CV_8UC3,
                       const_cast<std::uint8_t*>(image.pixels.data()));
    cv::Mat to(static_cast<int>(size.height), static_cast<int>(size.width), CV_8UC3, resized.pixels.data());
    cv::resize(from, to, to.size(), 0, 0, cv::INTER_LINEAR);
    return resized;
}

std::vector<std::uint8_t> encode_png(const Image& image, int compression) {
    return encode(image, ".png", {cv::IMWRITE_PNG_COMPRESSION, compression});
}

std::vector<std::uint8_t> encode_jpeg(const Image& image, int quality) {
    return encode(image, ".jpg", {cv::IMWRITE_JPEG_QUALITY, quality});
}

Image crop(const Image& image, std::uint32_t x, std::uint32_t y, std::uint32_t width, std::uint32_t height) {
    LOCKSTEP_CHECK(std::uint64_t{x} + width <= image.width && std::uint64_t{y} + height <= image.height, "(", x, ", ",
                   y, ") ", width, " x ", height, " of ", image.width, " x ", image.height);
    Image cut = Image::blank(width, height);
    for (std::uint32_t row = 0; row < height; ++row) {
        std::copy_n(image.row(y + row) + std::size_t{3} * x, std::size_t{3} * width, cut.row(row));
    }
    return cut;
}

}  // namespace lockstep::sharding
