#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/hdf5.h"
#include "sharding/dataset.h"

/// The names of docs/format.md, shared by the writer and the reader.
namespace lockstep::sharding::format {

inline constexpr const char* kind = "lockstep-dataset";
inline constexpr std::uint64_t version = 1;

inline constexpr const char* index_file = "index.h5";
inline constexpr const char* checksum_file = "checksums.txt";
std::string shard_file(std::uint64_t shard);  ///< "shard-00000.h5"

namespace attribute {
inline constexpr const char* kind = "format";
inline constexpr const char* version = "format_version";
inline constexpr const char* task = "task";
inline constexpr const char* encoding = "encoding";
inline constexpr const char* source = "source";
inline constexpr const char* content_hash = "content_hash";
}  // namespace attribute

/// Tables of index.h5. Offset tables have one entry more than there are samples, so that [i, i+1] bounds sample i.
namespace table {
inline constexpr const char* classes = "classes";
inline constexpr const char* class_ids = "class_ids";  // only where the source numbers its classes
inline constexpr const char* shard_begin = "shard_begin";
inline constexpr const char* image_id = "image_id";
inline constexpr const char* width = "width";
inline constexpr const char* height = "height";
inline constexpr const char* label = "label";              // classification
inline constexpr const char* box_offsets = "box_offsets";  // detection
inline constexpr const char* boxes = "boxes";              // detection
inline constexpr const char* name_offsets = "name_offsets";
inline constexpr const char* names = "names";
inline constexpr const char* dropped_images = "dropped/images";  // + "/reasons" and "/counts"
inline constexpr const char* dropped_boxes = "dropped/boxes";
inline constexpr const char* notes = "noted";
inline constexpr const char* original_width = "original_width";  // only where images were resized
inline constexpr const char* original_height = "original_height";
}  // namespace table

/// Tables of a shard.
namespace shard_table {
inline constexpr const char* pool = "pool";
inline constexpr const char* offsets = "offsets";
inline constexpr const char* crc32c = "crc32c";
}  // namespace shard_table

std::string task_name(Task task);
std::string encoding_name(Encoding encoding);

/// The compound type under which Box lies in the file, member for member as in memory.
base::Hdf5Handle box_type();

/// Finite, inside the image, with an area, of a known class and with known flags only.
inline bool is_valid(const Box& box, std::uint32_t width, std::uint32_t height, std::int32_t classes) {
    // Comparisons with NaN are false; & instead of && keeps the scan over a table free of branches.
    return (box.x1 >= 0) & (box.y1 >= 0) & (box.x1 < box.x2) & (box.y1 < box.y2) &
           (box.x2 <= static_cast<float>(width)) & (box.y2 <= static_cast<float>(height)) & (box.area >= 0) &
           (box.area <= std::numeric_limits<float>::max()) & (box.class_index >= 0) & (box.class_index < classes) &
           ((box.flags & ~(box_crowd | box_difficult)) == 0);
}

/// The hash behind Dataset::content_hash(), fed sample by sample in order.
class ContentHash {
  public:
    void add(const Sample& sample, std::uint32_t crc32c);
    std::uint64_t value(Task task, Encoding encoding, const std::vector<std::string>& classes) const;

  private:
    base::Hash64 hash_;
};

}  // namespace lockstep::sharding::format
