// Any bytes as COCO JSON; the boxes go on to clipping, and what clipping keeps must be what a data set may hold.
#include "base/error.h"
#include "sharding/dataset_format.h"
#include "sharding/import_coco.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace lockstep;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    try {
        sharding::Findings findings(false);
        const sharding::ImportSource source = sharding::read_coco_text(text, "input", "images", findings);
        for (const sharding::SourceImage& image : source.images) {
            for (sharding::Box box : image.boxes) {
                if (!sharding::clip_to_image(box, {64, 48})) {
                    LOCKSTEP_CHECK(
                        sharding::format::is_valid(box, 64, 48, static_cast<std::int32_t>(source.classes.size())));
                }
            }
        }
    } catch (const base::Error&) {
    }
    return 0;
}
