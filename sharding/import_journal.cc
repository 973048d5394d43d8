#include "sharding/import_journal.h"

#include <cerrno>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;

struct EntryHeader {
    std::uint32_t size;
    std::uint32_t crc32c;
};

}  // namespace

JournalEntry& JournalEntry::put_bytes(const void* bytes, std::size_t size) {
    const auto* from = static_cast<const std::uint8_t*>(bytes);
    bytes_.insert(bytes_.end(), from, from + size);
    return *this;
}

std::span<const std::uint8_t> JournalEntry::take_bytes(std::uint64_t size) {
    if (size > bytes_.size() - taken_) {
        throw base::Error("an entry of the import's journal is too short: remove the half-done import and start again");
    }
    const auto bytes = std::span<const std::uint8_t>(bytes_).subspan(taken_, size);
    taken_ += size;
    return bytes;
}

std::string JournalEntry::take_text() {
    const auto text = take_bytes(take<std::uint64_t>());
    return {text.begin(), text.end()};
}

std::vector<JournalEntry> ImportJournal::read(const fs::path& file) {
    std::vector<JournalEntry> entries;
    if (!fs::exists(file)) {
        return entries;
    }
    const std::vector<std::uint8_t> all = base::read_bytes(file);
    for (std::size_t at = 0; all.size() - at >= sizeof(EntryHeader);) {
        EntryHeader header;
        std::memcpy(&header, all.data() + at, sizeof(header));
        at += sizeof(header);
        if (header.size > all.size() - at) {
            break;
        }
        const auto content = std::span<const std::uint8_t>(all).subspan(at, header.size);
        if (base::crc32c(content) != header.crc32c) {
            break;
        }
        entries.emplace_back(std::vector<std::uint8_t>(content.begin(), content.end()));
        at += header.size;
    }
    return entries;
}

ImportJournal::ImportJournal(fs::path file, std::span<const JournalEntry> entries) : path_(std::move(file)) {
    std::uint64_t size = 0;
    for (const JournalEntry& entry : entries) {
        size += sizeof(EntryHeader) + entry.bytes().size();
    }
    if (size > 0) {
        fs::resize_file(path_, size);
    }
    file_.reset(std::fopen(path_.c_str(), size > 0 ? "ab" : "wb"));
    if (!file_) {
        throw base::Error(base::str("can't write ", path_.string(), ": ", std::generic_category().message(errno)));
    }
}

void ImportJournal::append(const JournalEntry& entry) {
    const auto bytes = entry.bytes();
    const EntryHeader header{static_cast<std::uint32_t>(bytes.size()), base::crc32c(bytes)};
    if (std::fwrite(&header, sizeof(header), 1, file_.get()) != 1 ||
        std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size() || std::fflush(file_.get()) != 0) {
        throw base::Error(base::str("can't write ", path_.string(), ": ", std::generic_category().message(errno)));
    }
}

}  // namespace lockstep::sharding
