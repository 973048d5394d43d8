#include "bench/provenance.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <sstream>

#include "base/file.h"
#include "base/hash.h"
#include "base/resources.h"
#include "base/text.h"

extern char** environ;

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::str;
using nlohmann::json;

constexpr std::array<std::string_view, 12> recorded_variables = {"OMP_",      "KMP_",       "OMPI_MCA_", "UCX_",
                                                                 "NCCL_",     "CUDA_",      "HDF5_",     "MALLOC_",
                                                                 "TCMALLOC_", "SLURM_JOB_", "SLURM_N",   "MKL_"};

/// What a command prints, without the line end; "" where it can't be run.
std::string output_of(const std::string& command) {
    const auto close = [](std::FILE* pipe) { pclose(pipe); };
    const std::unique_ptr<std::FILE, decltype(close)> pipe(popen((command + " 2>/dev/null").c_str(), "r"), close);
    std::string text;
    std::array<char, 4096> buffer{};
    while (pipe) {
        const std::size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe.get());
        if (got == 0) {
            break;
        }
        text.append(buffer.data(), got);
    }
    return std::string(base::trim(text));
}

std::string quoted(const std::string& word) {
    std::string text = "'";
    for (const char c : word) {
        text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
    return text + "'";
}

std::string first_line(const fs::path& path) {
    std::ifstream file(path);
    std::string line;
    std::getline(file, line);
    return line;
}

/// Type of the file system that holds `path`: of the longest mount point above it.
std::string mount_type(const fs::path& path) {
    std::error_code failure;
    const std::string place = fs::weakly_canonical(path, failure).string();
    std::ifstream mounts("/proc/self/mounts");
    std::string best_point, best_type;
    for (std::string line; std::getline(mounts, line);) {
        std::istringstream words(line);
        std::string device, point, type;
        words >> device >> point >> type;
        const bool is_above = point == "/" || place == point || place.starts_with(point + "/");
        if (is_above && point.size() >= best_point.size()) {
            best_point = point;
            best_type = type;
        }
    }
    return best_type;
}

/// Versioned file names of the libraries that decide about speed.
json libraries_of(const std::string& program) {
    json names = json::array();
    std::istringstream lines(output_of("ldd " + quoted(program)));
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::string name, arrow, path;
        words >> name >> arrow >> path;
        constexpr std::array<std::string_view, 10> known = {"libtorch", "libc10",         "libgomp", "libmpi.",
                                                            "libhdf5",  "libopencv_core", "libjpeg", "libtcmalloc",
                                                            "libc.so",  "libstdc++"};
        if (std::ranges::any_of(known, [&](auto prefix) { return name.starts_with(prefix); })) {
            std::error_code failure;
            const fs::path real = fs::canonical(path, failure);
            names.push_back(failure ? name : real.filename().string());
        }
    }
    return names;
}

json allowed_environment() {
    json variables = json::object();
    for (char** entry = environ; *entry != nullptr; ++entry) {
        const std::string_view text = *entry;
        const auto equals = text.find('=');
        if (equals != std::string_view::npos &&
            std::ranges::any_of(recorded_variables, [&](auto prefix) { return text.starts_with(prefix); })) {
            variables[std::string(text.substr(0, equals))] = std::string(text.substr(equals + 1));
        }
    }
    return variables;
}

/// Names of what LD_PRELOAD puts before the libraries that the program was linked to.
json preloaded() {
    json names = json::array();
    const char* const value = std::getenv("LD_PRELOAD");
    std::string text = value != nullptr ? value : "";
    std::ranges::replace(text, ':', ' ');
    std::istringstream words(text);
    for (std::string path; words >> path;) {
        names.push_back(fs::path(path).filename().string());
    }
    return names;
}

/// Those that decide which kernels run.
json cpu_features() {
    static const std::set<std::string> telling = {"fma",         "f16c",        "avx",         "avx2",     "avx512f",
                                                  "avx512_bf16", "avx512_fp16", "avx512_vnni", "avx_vnni", "amx_bf16",
                                                  "amx_int8",    "asimd",       "bf16",        "i8mm",     "sve"};
    json found = json::array();
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);) {
        if (line.starts_with("flags") || line.starts_with("Features")) {
            std::istringstream words(line.substr(line.find(':') + 1));
            for (std::string word; words >> word;) {
                if (telling.contains(word)) {
                    found.push_back(word);
                }
            }
            break;
        }
    }
    return found;
}

std::vector<fs::path> entries_of(const fs::path& directory) {
    std::vector<fs::path> entries;
    std::error_code failure;
    for (fs::directory_iterator entry(directory, failure), end; !failure && entry != end; entry.increment(failure)) {
        entries.push_back(entry->path());
    }
    std::ranges::sort(entries);
    return entries;
}

json gpus() {
    json models = json::array();
    for (const fs::path& gpu : entries_of("/proc/driver/nvidia/gpus")) {
        const std::string line = first_line(gpu / "information");
        models.push_back(std::string(base::trim(line.substr(line.find(':') + 1))));
    }
    return models;
}

/// Interface -> speed in Mb/s as the driver says; "" where it doesn't.
json network() {
    json speeds = json::object();
    for (const fs::path& interface : entries_of("/sys/class/net")) {
        if (interface.filename() != "lo") {
            speeds[interface.filename().string()] = first_line(interface / "speed");
        }
    }
    return speeds;
}

std::size_t numa_nodes() {
    return static_cast<std::size_t>(std::ranges::count_if(entries_of("/sys/devices/system/node"), [](const auto& path) {
        const std::string name = path.filename().string();
        return name.starts_with("node") && name.size() > 4;
    }));
}

bool is_word_character(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_' || c == '.';
}

/// `whole_words`: not in the middle of a longer name.
void replace_all(std::string& text, const std::string& from, const std::string& to, bool whole_words) {
    for (std::size_t at = 0; !from.empty() && (at = text.find(from, at)) != std::string::npos;) {
        const std::size_t end = at + from.size();
        const bool is_inside =
            (at > 0 && is_word_character(text[at - 1])) || (end < text.size() && is_word_character(text[end]));
        if (whole_words && is_inside) {
            at = end;
            continue;
        }
        text.replace(at, from.size(), to);
        at += to.size();
    }
}

}  // namespace

PublicText::PublicText(const std::string& program, const fs::path& sweep)
    : program_(program), sweep_(fs::absolute(sweep).lexically_normal().string()), host_(base::host_name()) {
    if (sweep_.ends_with('/')) {
        sweep_.pop_back();
    }
    std::error_code failure;
    here_ = fs::current_path(failure).string();
    const char* const home = std::getenv("HOME");
    home_ = home != nullptr && std::string_view(home).size() > 1 ? home : "";
}

std::string PublicText::of(std::string text) const {
    if (program_.starts_with('/')) {
        replace_all(text, program_, fs::path(program_).filename().string(), false);
    }
    replace_all(text, sweep_ + "/", "", false);
    replace_all(text, sweep_, ".", false);
    if (here_.size() > 1) {
        replace_all(text, here_ + "/", "", false);
    }
    if (!home_.empty()) {
        replace_all(text, home_ + "/", "~/", false);
    }
    if (host_ != "localhost") {
        replace_all(text, host_, "HOST", true);
    }
    return text;
}

std::string data_hash(const fs::path& directory) {
    const fs::path index = directory / "index.h5";
    if (!fs::exists(index)) {
        return {};
    }
    return base::Hash64().add(std::span<const std::uint8_t>(base::MappedFile(index).bytes())).hex();
}

std::string provenance_json(const std::string& program, const std::map<std::string, fs::path>& places) {
    const std::string changes = output_of("git diff HEAD");
    utsname system{};
    uname(&system);
    json mounts = json::object();
    for (const auto& [role, place] : places) {
        mounts[role] = mount_type(place);
    }
    std::string program_hash;
    if (fs::is_regular_file(program)) {
        program_hash = base::Hash64().add(base::MappedFile(program).bytes()).hex();
    }
    const json object = {{"commit", output_of("git rev-parse HEAD")},
                         {"changes_hash", changes.empty() ? "" : base::Hash64().add(changes).hex()},
                         {"program_hash", program_hash},
                         {"compiler", "g++ " __VERSION__},
                         {"flags", LOCKSTEP_BUILD_FLAGS},
                         {"libraries", libraries_of(program)},
                         {"preloaded", preloaded()},
                         {"cpu", base::cpu_model()},
                         {"cpu_features", cpu_features()},
                         {"cores", base::usable_cores()},
                         {"numa_nodes", numa_nodes()},
                         {"available_memory_mib", base::available_memory_bytes() >> 20},
                         {"gpus", gpus()},
                         {"network", network()},
                         {"kernel", str(system.sysname, " ", system.release)},
                         {"governor", first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
                         {"mounts", mounts},
                         {"environment", allowed_environment()}};
    return object.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace lockstep::bench
