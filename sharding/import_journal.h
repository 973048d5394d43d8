#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace lockstep::sharding {

/// One entry of a journal in the making, or being taken apart: plain values and texts, one after the other.
class JournalEntry {
  public:
    JournalEntry() = default;
    explicit JournalEntry(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {}

    template <typename T>
    JournalEntry& put(const T& value) {
        static_assert(std::is_trivially_copyable_v<T>);
        return put_bytes(&value, sizeof(T));
    }
    JournalEntry& put_text(std::string_view text) {
        return put(std::uint64_t{text.size()}).put_bytes(text.data(), text.size());
    }
    /// The next value; an entry is taken apart as it was put together. Throws base::Error where it is too short.
    template <typename T>
    T take() {
        static_assert(std::is_trivially_copyable_v<T>);
        T value{};
        std::memcpy(static_cast<void*>(&value), take_bytes(sizeof(T)).data(), sizeof(T));
        return value;
    }
    std::string take_text();

    std::span<const std::uint8_t> bytes() const { return bytes_; }

  private:
    JournalEntry& put_bytes(const void* bytes, std::size_t size);
    std::span<const std::uint8_t> take_bytes(std::uint64_t size);

    std::vector<std::uint8_t> bytes_;
    std::size_t taken_ = 0;
};

/// What an import has done so far, entry after entry, each with its length and CRC-32C, so that the end that a kill
/// tore is recognised. Not thread-safe.
class ImportJournal {
  public:
    /// The whole entries at the beginning of the file; none where there is no file.
    static std::vector<JournalEntry> read(const std::filesystem::path& file);

    /// Goes on after the first `entries` entries of the file, dropping what follows; makes it where it is missing.
    ImportJournal(std::filesystem::path file, std::span<const JournalEntry> entries);

    /// Hands the entry to the system: it outlives this process. Throws base::Error where the disk is full.
    void append(const JournalEntry& entry);

  private:
    struct CloseFile {
        void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::filesystem::path path_;
    std::unique_ptr<std::FILE, CloseFile> file_;
};

}  // namespace lockstep::sharding
