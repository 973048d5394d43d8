// Any bytes as a Pascal VOC annotation; what clipping keeps of the boxes must be what a data set may hold.
#include "base/error.h"
#include "sharding/dataset_format.h"
#include "sharding/import_voc.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace lockstep;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const bool one_based : {true, false}) {
        for (sharding::Box box : sharding::read_voc_text(text, one_based)) {
            if (!sharding::clip_to_image(box, {64, 48})) {
                LOCKSTEP_CHECK(sharding::format::is_valid(box, 64, 48, 1));
            }
        }
    }
    return 0;
}
