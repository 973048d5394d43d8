#include "trainer/models/safetensors.h"

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"

namespace lockstep::trainer {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are little-endian");

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;  // the format's own limit

struct TypeName {
    at::ScalarType type;
    std::string_view name;
};
constexpr TypeName type_names[] = {
    {at::kDouble, "F64"}, {at::kFloat, "F32"}, {at::kHalf, "F16"}, {at::kBFloat16, "BF16"}, {at::kLong, "I64"}};

std::string type_name(const NamedTensor& named) {
    for (const TypeName& entry : type_names) {
        if (entry.type == named.tensor.scalar_type()) {
            return std::string(entry.name);
        }
    }
    throw base::Error(
        base::str("tensor ", named.name, " of type ", named.tensor.scalar_type(), " can't be saved as safetensors"));
}

std::optional<at::ScalarType> type_named(std::string_view name) {
    for (const TypeName& entry : type_names) {
        if (entry.name == name) {
            return entry.type;
        }
    }
    return std::nullopt;
}

/// a * b, or nothing where it doesn't fit.
std::optional<std::uint64_t> product(std::uint64_t a, std::uint64_t b) {
    std::uint64_t result = 0;
    return __builtin_mul_overflow(a, b, &result) ? std::nullopt : std::optional(result);
}

struct Entry {
    std::string name;
    at::ScalarType type;
    std::vector<std::int64_t> shape;
    std::uint64_t begin, end;  ///< in the data that follow the header
};

/// Reads an untrusted header; every complaint names the file.
class HeaderReader {
  public:
    HeaderReader(const std::filesystem::path& path, std::uint64_t data_bytes) : path_(path), data_bytes_(data_bytes) {}

    [[noreturn]] void fail(const std::string& what) const {
        throw base::Error(base::str(path_.string(), ": ", what, "; the file is damaged or no safetensors file"));
    }

    Entry entry(const std::string& name, const nlohmann::json& json) const {
        if (!json.is_object() || !json.contains("dtype") || !json["dtype"].is_string() || !json.contains("shape") ||
            !json["shape"].is_array() || !json.contains("data_offsets") || !json["data_offsets"].is_array() ||
            json["data_offsets"].size() != 2) {
            fail(base::str("tensor ", name, " lacks a proper dtype, shape or data_offsets"));
        }
        const std::string type = json["dtype"];
        const std::optional<at::ScalarType> scalar_type = type_named(type);
        if (!scalar_type) {
            throw base::Error(base::str(path_.string(), ": tensor ", name, " has type ", type,
                                        "; known are F64, F32, F16, BF16 and I64: convert it"));
        }
        Entry entry{name,
                    *scalar_type,
                    {},
                    unsigned_number(name, json["data_offsets"][0]),
                    unsigned_number(name, json["data_offsets"][1])};
        std::optional<std::uint64_t> bytes = c10::elementSize(*scalar_type);
        for (const nlohmann::json& size : json["shape"]) {
            const std::uint64_t extent = unsigned_number(name, size);
            bytes = product(*bytes, extent);
            if (!bytes || extent > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
                fail(base::str("tensor ", name, " has an impossible shape"));
            }
            entry.shape.push_back(static_cast<std::int64_t>(extent));
        }
        if (entry.begin > entry.end || entry.end > data_bytes_) {
            fail(base::str("tensor ", name, " claims bytes ", entry.begin, " to ", entry.end, " of ", data_bytes_));
        }
        if (entry.end - entry.begin != *bytes) {
            fail(base::str("tensor ", name, " has ", entry.end - entry.begin, " bytes where its shape needs ", *bytes));
        }
        return entry;
    }

    /// The format wants the data covered once, without a gap.
    void check_cover(const std::vector<Entry>& sorted) const {
        std::uint64_t position = 0;
        for (const Entry& entry : sorted) {
            if (entry.begin != position) {
                fail(base::str("tensor ", entry.name, " begins at byte ", entry.begin,
                               " where the one before it ends at ", position));
            }
            position = entry.end;
        }
        if (position != data_bytes_) {
            fail(base::str(data_bytes_ - position, " bytes at the end belong to no tensor"));
        }
    }

  private:
    std::uint64_t unsigned_number(const std::string& name, const nlohmann::json& json) const {
        if (!json.is_number_unsigned()) {
            fail(base::str("tensor ", name, " has a size or an offset that is no unsigned integer"));
        }
        return json.get<std::uint64_t>();
    }

    const std::filesystem::path& path_;
    std::uint64_t data_bytes_;
};

/// Refuses a name that comes twice in one object, which the parser by itself would pass over.
nlohmann::json parse_header(const HeaderReader& reader, std::string_view text) {
    std::vector<std::set<std::string>> names;  // of each object that is open
    const auto watch = [&](int, nlohmann::json::parse_event_t event, nlohmann::json& parsed) {
        using Event = nlohmann::json::parse_event_t;
        if (event == Event::object_start) {
            names.emplace_back();
        } else if (event == Event::object_end) {
            names.pop_back();
        } else if (event == Event::key && !names.back().insert(parsed.get<std::string>()).second) {
            reader.fail(base::str("the header has ", parsed.get<std::string>(), " twice"));
        }
        return true;
    };
    try {
        return nlohmann::json::parse(text, watch);
    } catch (const nlohmann::json::exception& error) {
        reader.fail(base::str("the header is no JSON (", error.what(), ")"));
    }
}

std::map<std::string, std::string> read_metadata(const HeaderReader& reader, const nlohmann::json& json) {
    std::map<std::string, std::string> metadata;
    if (!json.is_object()) {
        reader.fail("__metadata__ is no object");
    }
    for (const auto& [key, value] : json.items()) {
        if (!value.is_string()) {
            reader.fail(base::str("metadata ", key, " is no text"));
        }
        metadata[key] = value.get<std::string>();
    }
    return metadata;
}

}  // namespace

void save_safetensors(const std::filesystem::path& path, std::span<const NamedTensor> tensors,
                      const std::map<std::string, std::string>& metadata) {
    nlohmann::json header = nlohmann::json::object();
    if (!metadata.empty()) {
        header["__metadata__"] = metadata;
    }
    std::string data;
    for (const NamedTensor& named : tensors) {
        LOCKSTEP_CHECK(!header.contains(named.name), "tensor ", named.name, " twice");
        const at::Tensor tensor = named.tensor.detach().to(at::kCPU).contiguous();
        const std::size_t begin = data.size();
        data.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
        header[named.name] = {
            {"dtype", type_name(named)}, {"shape", tensor.sizes().vec()}, {"data_offsets", {begin, data.size()}}};
    }
    std::string file = header.dump();
    file.append((length_bytes - file.size() % length_bytes) % length_bytes, ' ');  // the data begin aligned
    const std::uint64_t header_size = file.size();
    file.insert(0, reinterpret_cast<const char*>(&header_size), length_bytes);
    base::write_whole(path, file.append(data));
}

Safetensors load_safetensors(const std::filesystem::path& path) {
    const base::MappedFile mapped(path);
    const std::span<const std::uint8_t> bytes = mapped.bytes();
    std::uint64_t header_size = 0;
    const bool has_length = bytes.size() >= length_bytes;
    if (has_length) {
        std::memcpy(&header_size, bytes.data(), length_bytes);
    }
    const std::uint64_t after_length = has_length ? bytes.size() - length_bytes : 0;
    const bool has_header = has_length && header_size <= std::min(after_length, max_header_bytes);
    const HeaderReader reader(path, has_header ? after_length - header_size : 0);
    if (!has_header) {
        reader.fail(base::str("a header of ", header_size, " bytes in a file of ", bytes.size()));
    }
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + length_bytes, header_size);
    const nlohmann::json header = parse_header(reader, text);
    if (!header.is_object()) {
        reader.fail("the header is no JSON object");
    }

    Safetensors result;
    std::vector<Entry> entries;
    for (const auto& [name, json] : header.items()) {
        if (name == "__metadata__") {
            result.metadata = read_metadata(reader, json);
        } else {
            entries.push_back(reader.entry(name, json));
        }
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return std::pair(a.begin, a.end) <
               std::pair(b.begin, b.end);  // an empty tensor comes before the one at its place
    });
    reader.check_cover(entries);

    const std::uint8_t* data = bytes.data() + length_bytes + header_size;
    for (const Entry& entry : entries) {
        at::Tensor tensor = at::empty(entry.shape, entry.type);
        if (entry.end != entry.begin) {
            std::memcpy(tensor.mutable_data_ptr(), data + entry.begin, entry.end - entry.begin);
        }
        result.tensors.push_back({entry.name, std::move(tensor)});
    }
    return result;
}

LoadReport load_weights(torch::nn::Module& model, const Safetensors& file) {
    const at::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> available;
    for (const NamedTensor& named : file.tensors) {
        available[named.name] = named.tensor;
    }
    LoadReport report;
    for (NamedTensor& target : state_of(model)) {
        const auto found = available.find(target.name);
        if (found == available.end()) {
            report.missing.push_back(target.name);
            continue;
        }
        const at::Tensor source = found->second;
        available.erase(found);
        if (source.sizes() == target.tensor.sizes()) {
            target.tensor.copy_(source);
            report.matched.push_back(target.name);
        } else {
            report.shape_mismatched.push_back(
                base::str(target.name, ": file ", source.sizes(), ", model ", target.tensor.sizes()));
        }
    }
    for (const auto& [name, tensor] : available) {
        report.unexpected.push_back(name);
    }
    return report;
}

LoadReport load_weights(torch::nn::Module& model, const std::filesystem::path& path) {
    return load_weights(model, load_safetensors(path));
}

}  // namespace lockstep::trainer
