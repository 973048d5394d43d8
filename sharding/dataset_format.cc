#include "sharding/dataset_format.h"

#include <bit>
#include <cstddef>
#include <cstdio>
#include <mutex>

#include "base/error.h"

namespace lockstep::sharding::format {

// The record of the file is the struct in memory.
static_assert(sizeof(Box) == 40 && offsetof(Box, annotation_id) == 32 && std::endian::native == std::endian::little);

std::string shard_file(std::uint64_t shard) {
    std::string digits = std::to_string(shard);
    if (digits.size() < 5) {
        digits.insert(0, 5 - digits.size(), '0');
    }
    return "shard-" + digits + ".h5";
}

std::string task_name(Task task) {
    return task == Task::detection ? "detection" : "classification";
}
std::string encoding_name(Encoding encoding) {
    return encoding == Encoding::encoded ? "encoded" : "raw";
}

base::Hdf5Handle box_type() {
    const std::lock_guard lock(base::hdf5_mutex());
    base::Hdf5Handle type(H5Tcreate(H5T_COMPOUND, sizeof(Box)), H5Tclose);
    const auto insert = [&](const char* name, std::size_t offset, hid_t member) {
        LOCKSTEP_CHECK(H5Tinsert(type.get(), name, offset, member) >= 0, "member ", name);
    };
    insert("x1", offsetof(Box, x1), H5T_IEEE_F32LE);
    insert("y1", offsetof(Box, y1), H5T_IEEE_F32LE);
    insert("x2", offsetof(Box, x2), H5T_IEEE_F32LE);
    insert("y2", offsetof(Box, y2), H5T_IEEE_F32LE);
    insert("area", offsetof(Box, area), H5T_IEEE_F32LE);
    insert("class_index", offsetof(Box, class_index), H5T_STD_I32LE);
    insert("flags", offsetof(Box, flags), H5T_STD_U8LE);
    insert("annotation_id", offsetof(Box, annotation_id), H5T_STD_I64LE);
    return type;
}

void ContentHash::add(const Sample& sample, std::uint32_t crc32c) {
    const auto add_float = [&](float value) { hash_.add(std::uint64_t{std::bit_cast<std::uint32_t>(value)}); };
    hash_.add(static_cast<std::uint64_t>(sample.image_id));
    hash_.add((std::uint64_t{sample.width} << 32) | sample.height);
    hash_.add(static_cast<std::uint64_t>(sample.label));
    hash_.add(std::uint64_t{sample.bytes.size()}).add(std::uint64_t{crc32c});
    hash_.add(std::uint64_t{sample.boxes.size()});
    for (const Box& box : sample.boxes) {
        add_float(box.x1);
        add_float(box.y1);
        add_float(box.x2);
        add_float(box.y2);
        add_float(box.area);
        hash_.add(static_cast<std::uint64_t>(box.class_index)).add(std::uint64_t{box.flags});
        hash_.add(static_cast<std::uint64_t>(box.annotation_id));
    }
}

std::uint64_t ContentHash::value(Task task, Encoding encoding, const std::vector<std::string>& classes) const {
    base::Hash64 whole = hash_;
    whole.add(task_name(task)).add(encoding_name(encoding));
    for (const std::string& name : classes) {
        whole.add(name);
    }
    return whole.value();
}

}  // namespace lockstep::sharding::format
