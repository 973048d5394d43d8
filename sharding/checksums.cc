#include "sharding/checksums.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/hdf5.h"
#include "base/text.h"
#include "sharding/dataset_format.h"

namespace lockstep::sharding {
namespace {

namespace fs = std::filesystem;
using Bytes = std::span<const std::uint8_t>;

constexpr const char* between_tables = "-";
constexpr const char* not_summed = "--------";

std::string hex8(std::uint32_t value) {
    std::string digits(8, '0');
    std::snprintf(digits.data(), digits.size() + 1, "%08x", value);
    return digits;
}

std::string sum_of(std::string_view text) {
    return hex8(base::crc32c(Bytes(reinterpret_cast<const std::uint8_t*>(text.data()), text.size())));
}

/// A line of checksums.txt.
struct Piece {
    std::string crc32c;
    std::uint64_t offset = 0, size = 0;  // in the file; of what lies between the tables: 0 and the file's size
    std::string file, table;

    std::string line() const { return base::str(crc32c, " ", offset, " ", size, " ", file, " ", table, "\n"); }
};

/// CRC-32C of all that no piece covers.
std::string sum_between(Bytes whole, std::vector<Piece> pieces) {
    std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.offset < b.offset; });
    std::uint32_t crc32c = 0;
    std::uint64_t at = 0;
    for (const Piece& piece : pieces) {
        if (piece.offset > at) {
            crc32c = base::crc32c(whole.subspan(at, piece.offset - at), crc32c);
        }
        at = std::max(at, piece.offset + piece.size);
    }
    return hex8(base::crc32c(whole.subspan(at), crc32c));
}

std::string lines_of(const fs::path& path, const std::vector<std::string>& tables) {
    std::vector<Piece> pieces;
    const base::MappedFile mapped(path);
    const base::Hdf5File file = base::Hdf5File::open_read_only(path);
    std::string lines;
    for (const std::string& table : tables) {
        if (!file.has(table)) {
            continue;
        }
        const base::Hdf5Extent extent = file.extent(table);
        if (extent.bytes == 0) {
            continue;  // nothing is stored, and no place is defined
        }
        const Bytes bytes = mapped.bytes().subspan(extent.file_offset, extent.bytes);
        pieces.push_back({table == format::shard_table::pool ? not_summed : hex8(base::crc32c(bytes)),
                          extent.file_offset, extent.bytes, path.filename().string(), table});
        lines += pieces.back().line();
    }
    const Piece rest{sum_between(mapped.bytes(), pieces), 0, mapped.bytes().size(), path.filename().string(),
                     between_tables};
    return lines + rest.line();
}

std::vector<std::string> index_tables() {
    using namespace format::table;
    std::vector<std::string> tables{classes, class_ids,      shard_begin,    image_id, width,
                                    height,  label,          box_offsets,    boxes,    name_offsets,
                                    names,   original_width, original_height};
    for (const char* group : {dropped_images, dropped_boxes, notes}) {
        tables.push_back(base::str(group, "/reasons"));
        tables.push_back(base::str(group, "/counts"));
    }
    return tables;
}

std::vector<std::string> shard_tables() {
    using namespace format::shard_table;
    return {pool, offsets, crc32c};
}

[[noreturn]] void fail(const fs::path& file, const std::string& what) {
    throw base::Error(base::str(file.string(), ": ", what, ": the data set is damaged: import it again"));
}

void check_file(const fs::path& path, const std::vector<Piece>& pieces, const Piece& rest) {
    if (!fs::exists(path)) {
        fail(path, "is missing");
    }
    const base::MappedFile mapped(path);
    if (mapped.bytes().size() != rest.size) {
        fail(path, base::str("has ", mapped.bytes().size(), " bytes instead of ", rest.size));
    }
    const auto compare = [&](const std::string& what, const std::string& actual, const std::string& expected) {
        if (actual != expected) {
            fail(path, base::str(what, ": checksum ", actual, " instead of ", expected));
        }
    };
    for (const Piece& piece : pieces) {
        if (piece.offset > rest.size || piece.size > rest.size - piece.offset) {
            fail(path, base::str("table '", piece.table, "' reaches beyond the end of the file"));
        }
        if (piece.crc32c != not_summed) {
            const Bytes bytes = mapped.bytes().subspan(piece.offset, piece.size);
            compare(base::str("table '", piece.table, "'"), hex8(base::crc32c(bytes)), piece.crc32c);
        }
    }
    compare("HDF5's own structures, outside the tables", sum_between(mapped.bytes(), pieces), rest.crc32c);
}

}  // namespace

void write_checksums(const fs::path& directory, std::uint64_t shards) {
    std::string lines = lines_of(directory / format::index_file, index_tables());
    for (std::uint64_t shard = 0; shard < shards; ++shard) {
        lines += lines_of(directory / format::shard_file(shard), shard_tables());
    }
    base::write_whole(directory / format::checksum_file, lines + sum_of(lines) + "\n");
}

bool check_checksums(const fs::path& directory) {
    const fs::path path = directory / format::checksum_file;
    if (!fs::exists(path)) {
        return false;
    }
    const std::string text = base::read_text(path);
    constexpr std::size_t last_line = 9;
    if (text.size() < last_line ||
        text.substr(text.size() - last_line) != sum_of(text.substr(0, text.size() - last_line)) + "\n") {
        fail(path, "its lines don't match the checksum in its last one");
    }
    std::istringstream lines(text.substr(0, text.size() - last_line));
    std::vector<Piece> pieces;
    for (std::string line; std::getline(lines, line);) {
        std::istringstream fields(line);
        Piece piece;
        fields >> piece.crc32c >> piece.offset >> piece.size >> piece.file >> piece.table;
        if (!fields || piece.file.find('/') != std::string::npos) {
            fail(path, base::str("the line '", line, "' can't be read"));
        }
        if (piece.table == between_tables) {
            check_file(directory / piece.file, pieces, piece);
            pieces.clear();
        } else {
            pieces.push_back(std::move(piece));
        }
    }
    return true;
}

}  // namespace lockstep::sharding
