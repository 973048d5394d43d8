#include "trainer/telemetry/event_file.h"

#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/hash.h"
#include "base/resources.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using base::str;

constexpr const char* name_prefix = "events.out.tfevents.";

/// A message of protocol buffers in the making. Fields are numbered as in event.proto and summary.proto.
class Message {
  public:
    Message& add_varint(int field, std::uint64_t value) {
        tag(field, 0);
        varint(value);
        return *this;
    }
    template <typename T>
    Message& add_fixed(int field, T value) {
        static_assert(std::endian::native == std::endian::little);
        tag(field, sizeof(T) == 8 ? 1 : 5);
        bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
        return *this;
    }
    Message& add_bytes(int field, std::string_view value) {
        tag(field, 2);
        varint(value.size());
        bytes_.append(value);
        return *this;
    }
    const std::string& bytes() const { return bytes_; }

  private:
    void tag(int field, int wire_type) {
        varint(static_cast<std::uint64_t>(field) << 3 | static_cast<unsigned>(wire_type));
    }
    void varint(std::uint64_t value) {
        for (; value >= 0x80; value >>= 7) {
            bytes_.push_back(static_cast<char>(value | 0x80));
        }
        bytes_.push_back(static_cast<char>(value));
    }

    std::string bytes_;
};

/// As the record format wants it, since a CRC of bytes that contain their CRC is a weak check.
std::uint32_t masked_crc32c(std::string_view text) {
    const std::uint32_t crc = base::crc32c({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
    return std::rotr(crc, 15) + 0xa282ead8u;
}

template <typename T>
std::string_view bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

void remove_event_files(const fs::path& directory) {
    for (const auto& entry : fs::directory_iterator(directory)) {
        if (entry.path().filename().string().starts_with(name_prefix)) {
            fs::remove(entry.path());
        }
    }
}

}  // namespace

EventFile::EventFile(const fs::path& directory) {
    const auto now = base::unix_seconds();
    path_ = directory / str(name_prefix, static_cast<std::uint64_t>(now), ".lockstep");
    std::error_code failure;
    fs::create_directories(directory, failure);
    if (failure) {
        throw base::Error(str(directory.string(), ": can't create the folder: ", failure.message()));
    }
    remove_event_files(directory);
    file_.open(path_, std::ios::binary);
    write_record(Message().add_fixed(1, now).add_bytes(3, "brain.Event:2").bytes());
}

void EventFile::add(std::uint64_t step, double seconds, std::span<const Scalar> scalars) {
    Message summary;
    for (const auto& [name, value] : scalars) {
        summary.add_bytes(1, Message().add_bytes(1, name).add_fixed(2, static_cast<float>(value)).bytes());
    }
    write_record(Message().add_fixed(1, seconds).add_varint(2, step).add_bytes(5, summary.bytes()).bytes());
}

void EventFile::write_record(const std::string& event) {
    const std::uint64_t length = event.size();
    file_ << bytes_of(length) << bytes_of(masked_crc32c(bytes_of(length))) << event << bytes_of(masked_crc32c(event))
          << std::flush;
    if (!file_) {
        throw base::Error(str(path_.string(), ": can't write: ", std::strerror(errno), "; is the disk full?"));
    }
}

}  // namespace lockstep::trainer
