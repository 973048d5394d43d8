// Any bytes as a data.yaml and as a label file; what clipping keeps of the boxes must be what a data set may hold.
#include "base/error.h"
#include "sharding/dataset_format.h"
#include "sharding/import_yolo.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace lockstep;
    const std::string text(reinterpret_cast<const char*>(data), size);
    try {
        sharding::read_yolo_yaml(text, "train", "input");
    } catch (const base::Error&) {
    }
    sharding::Findings findings(false);
    for (sharding::Box box : sharding::read_yolo_labels(text, 3, "input", findings)) {
        box.x1 *= 64;
        box.x2 *= 64;
        box.y1 *= 48;
        box.y2 *= 48;
        box.area = (box.x2 - box.x1) * (box.y2 - box.y1);
        if (!sharding::clip_to_image(box, {64, 48})) {
            LOCKSTEP_CHECK(sharding::format::is_valid(box, 64, 48, 3));
        }
    }
    return 0;
}
