#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "sharding/dataset.h"
#include "sharding/image.h"
#include "sharding/scaling.h"

namespace lockstep::sharding {

/// How an image was placed in a canvas: x_canvas = x_image * scale + pad_left. Reference section 9: bilinear, colour
/// 114, padding split evenly with the odd pixel at the bottom/right.
struct Letterbox {
    float scale = 1;
    float pad_left = 0, pad_top = 0;
    std::uint32_t source_width = 0, source_height = 0;
    bool operator==(const Letterbox&) const = default;
};

/// A box of a batch: pixels of the batch's image, after augmentation or letterbox.
struct TargetBox {
    std::uint32_t image;  ///< index in its MicroBatch
    std::int32_t class_index;
    float x1, y1, x2, y2;
    bool operator==(const TargetBox&) const = default;
};

/// Training augmentation of detection (reference section 8) and classification. All off by default.
struct AugmentationOptions {
    bool enabled = false;
    double mosaic = 0;     ///< probability of a 2x2 mosaic with three partners drawn from the whole set (detection)
    double mixup = 0;      ///< probability of blending with another image of the whole set (detection)
    double degrees = 0;    ///< rotation +-
    double translate = 0;  ///< fraction of the side, +-
    double scale = 0;      ///< gain: uniform in 1 +- scale
    double shear = 0;      ///< degrees, +-
    double hsv_hue = 0, hsv_saturation = 0, hsv_value = 0;  ///< gains: each channel times 1 +- gain
    double contrast = 0;  ///< gain: each pixel's difference from the image's mean gray times 1 +- gain (haze, glare)
    double flip_horizontal = 0, flip_vertical = 0;  ///< probabilities
    double quarter_turns = 0;                       ///< probability of a turn by 90, 180 or 270 degrees (aerial photos)
    /// Together with contrast, in an order that is drawn too: ColorJitter of torchvision.
    double jitter_brightness = 0, jitter_saturation = 0;  ///< gains: 1 +- this
    double jitter_hue = 0;                                ///< shift by +- this part of a turn, at most 0.5
    /// Classification: a window of at least this part of the area and an aspect of 3/4 to 4/3 is resized to the square
    /// (RandomResizedCrop of torchvision, without its smoothing). 0: off.
    double resized_crop = 0;
    std::uint32_t crop_padding = 0;  ///< classification: pad by this many pixels and crop at random
    double erase = 0;                ///< classification: probability of erasing a random rectangle
};

/// A sample decoded and resized so that it only needs placing. Detection: as its canvas's SideBounds say (in a square:
/// the long side is the square's) and the aspect is kept, rounded to whole pixels; classification: both sides are the
/// image size, or as decoded where a window is cut out of them (resized_crop).
struct FittedSample {
    Sample source;  ///< boxes stay in the source's pixels
    std::uint32_t width = 0, height = 0;
    std::shared_ptr<const std::uint8_t> pixels;  ///< height x width x 3, RGB
};

/// The size that fit() brings a sample to.
ImageSize fitted_size(ImageSize sample, Task task, std::uint32_t image_size);

/// `pixels`: the sample's, RGB, of the size `given` where it was decoded at a fraction of its own; taken as they are
/// where no resizing is needed.
FittedSample fit(const Sample& sample, std::shared_ptr<const std::uint8_t> pixels, Task task, std::uint32_t image_size,
                 std::optional<ImageSize> given = std::nullopt);
/// The same, with resized pixels in one of `buffers`.
FittedSample fit(const Sample& sample, std::shared_ptr<const std::uint8_t> pixels, ImageSize given, Task task,
                 std::uint32_t image_size, ImageBuffers& buffers);

/// A sample of any size brought to this one: as it is where it has it already, else with pixels in one of `buffers`.
FittedSample resized(FittedSample sample, ImageSize size, ImageBuffers& buffers);

/// What make() tells beside pixels and boxes.
struct Placement {
    Letterbox letterbox;         ///< identity when augmented, and for classification
    std::uint32_t partners = 0;  ///< further samples drawn by mosaic and mixup
};

/// Turns a sample into one image of a batch. Every random number comes from (seed, epoch, sample id), so the
/// result depends on neither threads nor ranks nor what was made before. Thread-safe.
///
/// All geometry (mosaic tiles, affine, flips, turns) is one affine map from a canvas to the output, sampled once and
/// bilinearly: each mosaic tile goes straight into the output, the canvas of twice the side is never made.
class Augmenter {
  public:
    /// Gives the fitted sample of an id: the primary one or a partner.
    using Fetch = std::function<FittedSample(std::uint64_t id)>;

    /// From `closing_epoch` on mosaic and mixup are off. Throws base::UsageError naming the option that is out of its
    /// range or can't take effect for the task.
    Augmenter(const AugmentationOptions& options, Task task, std::uint32_t image_size, std::uint64_t seed,
              std::uint64_t closing_epoch, std::uint64_t dataset_size);

    /// Writes image_size x image_size x 3 RGB bytes to `pixels` and appends the boxes that stay visible to `boxes`
    /// (with image index 0). Crowd and difficult boxes are left out.
    Placement make(std::uint64_t epoch, std::uint64_t id, const Fetch& fetch, std::span<std::uint8_t> pixels,
                   std::vector<TargetBox>& boxes) const;
    /// The same on a canvas of another size (detection): height x width x 3 bytes. `fetch` gives samples fitted to
    /// `canvas.bounds`. A mosaic has a canvas of twice its sides, and what doesn't fit its quarter is cut off there.
    /// Quarter turns need a square.
    Placement make(std::uint64_t epoch, std::uint64_t id, const Canvas& canvas, const Fetch& fetch,
                   std::span<std::uint8_t> pixels, std::vector<TargetBox>& boxes) const;

    /// Partners that make() will most likely fetch, to be read ahead.
    std::vector<std::uint64_t> likely_partners(std::uint64_t epoch, std::uint64_t id) const;

  private:
    AugmentationOptions options_;
    Task task_;
    std::uint32_t image_size_;
    std::uint64_t seed_;
    std::uint64_t closing_epoch_;
    std::uint64_t dataset_size_;
};

/// Multiplies hue (0..180, modulo), saturation and value (clipped to 0..255) in OpenCV's 8-bit HSV. `pixels`: RGB rows
/// of `width` pixels, changed in place.
void scale_hsv(std::span<std::uint8_t> pixels, std::uint32_t width, double hue, double saturation, double value);

/// Turns every hue by this part of a turn, in steps of OpenCV's 2 degrees.
void shift_hue(std::span<std::uint8_t> pixels, std::uint32_t width, double turn);

/// Multiplies every value, rounded and clipped to 0..255.
void scale_brightness(std::span<std::uint8_t> pixels, double gain);

/// Multiplies each value's difference from its own pixel's gray (ITU-R BT.601), rounded and clipped to 0..255.
void scale_saturation(std::span<std::uint8_t> pixels, double gain);

/// Multiplies each value's difference from the image's mean gray (ITU-R BT.601), clipped to 0..255: "contrast" of
/// torchvision and Pillow, whose mean is rounded to a whole number too. `pixels`: RGB, changed in place.
void scale_contrast(std::span<std::uint8_t> pixels, double gain);

}  // namespace lockstep::sharding
