#include "bench/page_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "base/file.h"

namespace lockstep::bench {

double resident_fraction(const std::filesystem::path& file) {
    const base::MappedFile mapped(file);
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t size = mapped.bytes().size();
    std::vector<unsigned char> pages((size + page - 1) / page);
    if (pages.empty()) {
        return 0;
    }
    if (mincore(const_cast<std::uint8_t*>(mapped.bytes().data()), size, pages.data()) != 0) {
        return 1;
    }
    const auto resident = std::ranges::count_if(pages, [](unsigned char flags) { return (flags & 1) != 0; });
    return static_cast<double>(resident) / static_cast<double>(pages.size());
}

namespace {

std::vector<std::filesystem::path> files_of(const std::filesystem::path& directory) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
        if (entry.is_regular_file()) {
            files.push_back(entry.path());
        }
    }
    return files;
}

}  // namespace

bool drop_from_page_cache(const std::filesystem::path& directory) {
    bool is_gone = true;
    for (const auto& path : files_of(directory)) {
        base::sync_to_disk(path);
        const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        if (file < 0) {
            return false;
        }
        posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
        close(file);
        is_gone &= resident_fraction(path) == 0;
    }
    return is_gone;
}

bool read_into_page_cache(const std::filesystem::path& directory, std::uint64_t most_bytes) {
    const auto files = files_of(directory);
    std::uint64_t bytes = 0;
    for (const auto& path : files) {
        bytes += std::filesystem::file_size(path);
    }
    if (bytes > most_bytes) {
        return false;
    }
    bool is_there = true;
    for (const auto& path : files) {
        if (resident_fraction(path) < 1) {
            std::ifstream file(path, std::ios::binary);
            std::vector<char> piece(std::size_t{1} << 20);
            while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
            }
        }
        is_there &= resident_fraction(path) == 1;
    }
    return is_there;
}

}  // namespace lockstep::bench
