#include "sharding/augmented_sheet.h"

#include <algorithm>

#include "sharding/sheet.h"

namespace lockstep::sharding {

std::vector<std::uint8_t> draw_augmented_sheet(const Dataset& set, LoaderOptions options, std::uint64_t count) {
    count = std::min(count, set.size());
    options.effective_batch = count;
    options.accumulate = 1;
    options.prefetch = 1;
    Loader loader(set, EpochOrder(OrderKind::full, options.seed, set.size()), {}, options);
    const Batch batch = loader.next();
    const MicroBatch& images = batch.micro.front();
    const std::size_t bytes = std::size_t{images.height} * images.width * images.channels;
    Sheet sheet(images.count, set.classes());
    for (std::uint32_t i = 0; i < images.count; ++i) {
        const auto begin = images.pixels.begin() + static_cast<std::ptrdiff_t>(i * bytes);
        std::vector<Sheet::Mark> marks;
        for (const TargetBox& box : images.boxes) {
            if (box.image == i) {
                marks.push_back({box.x1, box.y1, box.x2, box.y2, box.class_index});
            }
        }
        sheet.add({images.width, images.height, {begin, begin + static_cast<std::ptrdiff_t>(bytes)}}, marks,
                  images.labels.empty() ? -1 : images.labels[i]);
    }
    return sheet.png();
}

}  // namespace lockstep::sharding
