// Any bytes as a Pascal VOC annotation.
#include "base/error.h"
#include "sharding/import_voc.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    for (const bool one_based : {true, false}) {
        try {
            lockstep::sharding::read_voc_text(text, one_based);
        } catch (const lockstep::base::Error&) {
        }
    }
    return 0;
}
