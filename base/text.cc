#include "base/text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>

#include "base/error.h"

namespace lockstep::base {
namespace {

/// Optimal string alignment: Levenshtein's distance, with a swap of neighbours as one edit.
std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> before_last(b.size() + 1);
    std::vector<std::size_t> last(b.size() + 1);
    std::vector<std::size_t> current(b.size() + 1);
    std::iota(last.begin(), last.end(), std::size_t{0});
    for (std::size_t i = 1; i <= a.size(); ++i) {
        current[0] = i;
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t substitution = a[i - 1] == b[j - 1] ? 0 : 1;
            current[j] = std::min({last[j] + 1, current[j - 1] + 1, last[j - 1] + substitution});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                current[j] = std::min(current[j], before_last[j - 2] + 1);
            }
        }
        std::swap(before_last, last);
        std::swap(last, current);
    }
    return last[b.size()];
}

}  // namespace

std::string fixed(double value, int decimals) {
    LOCKSTEP_CHECK(decimals >= 0 && decimals <= 30, decimals);
    std::array<char, 350> buffer;  // 309 digits of the largest double, sign, point, decimals
    const auto result =
        std::to_chars(buffer.data(), buffer.data() + buffer.size(), value, std::chars_format::fixed, decimals);
    LOCKSTEP_CHECK(result.ec == std::errc());
    return {buffer.data(), result.ptr};
}

std::size_t parse_bytes(std::string_view text) {
    double value = 0;
    const auto [unit_begin, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const std::string_view unit = trim(std::string_view(unit_begin, text.data() + text.size()));
    constexpr std::array<std::pair<std::string_view, double>, 8> units = {{{"", 1},
                                                                           {"B", 1},
                                                                           {"KB", 1e3},
                                                                           {"KiB", 1024},
                                                                           {"MB", 1e6},
                                                                           {"MiB", 1048576},
                                                                           {"GB", 1e9},
                                                                           {"GiB", 1073741824}}};
    const auto* const found = std::ranges::find(units, unit, &std::pair<std::string_view, double>::first);
    const double bytes = found == units.end() ? -1 : value * found->second;
    if (error != std::errc{} || !(bytes >= 0 && bytes < 0x1p53)) {
        throw UsageError(str("\"", text, "\" is no size; write 4096, 4KiB, 25MB or 1.5GiB"));
    }
    return static_cast<std::size_t>(std::llround(bytes));
}

std::string human_bytes(double bytes) {
    if (std::abs(bytes) < 1023.5) {
        return str(fixed(bytes, 0), " B");
    }
    constexpr std::array units = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    std::size_t unit = 0;
    double value = bytes / 1024;
    // 1023.95 would be printed as 1024.0.
    while (std::abs(value) >= 1023.95 && unit + 1 < units.size()) {
        value /= 1024;
        ++unit;
    }
    return str(fixed(value, 1), " ", units[unit]);
}

std::string human_duration(double seconds) {
    if (!(std::abs(seconds) < 1e15)) {  // neither infinite, nor NaN, nor beyond what is counted here
        return "?";
    }
    if (seconds < 59.95) {  // would be printed as 60.0
        return str(fixed(seconds, 1), " s");
    }
    const auto two_digits = [](long long value) { return str(value < 10 ? "0" : "", value); };
    const long long total = std::llround(seconds);
    const long long hours = total / 3600;
    const long long minutes = total / 60 % 60;
    if (hours == 0) {
        return str(minutes, ":", two_digits(total % 60));
    }
    return str(hours, ":", two_digits(minutes), ":", two_digits(total % 60));
}

std::string join(std::span<const std::string> parts, std::string_view separator) {
    std::string joined;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        joined.append(i == 0 ? std::string_view{} : separator).append(parts[i]);
    }
    return joined;
}

std::vector<std::string> split(std::string_view text, char separator) {
    std::vector<std::string> parts;
    for (;;) {
        const std::size_t end = text.find(separator);
        parts.emplace_back(text.substr(0, end));
        if (end == std::string_view::npos) {
            return parts;
        }
        text.remove_prefix(end + 1);
    }
}

std::string_view trim(std::string_view text) {
    constexpr std::string_view white_space = " \t\r\n\v\f";
    const std::size_t first = text.find_first_not_of(white_space);
    if (first == std::string_view::npos) {
        return {};
    }
    return text.substr(first, text.find_last_not_of(white_space) - first + 1);
}

std::string nearest_word(std::string_view word, std::span<const std::string> candidates) {
    std::string_view nearest;
    std::size_t least = word.size();  // a word with every letter changed is another word
    for (const std::string& candidate : candidates) {
        const std::size_t allowed = std::max<std::size_t>(1, std::max(word.size(), candidate.size()) / 3);
        const std::size_t distance = edit_distance(word, candidate);
        if (distance <= allowed && distance < least) {
            nearest = candidate;
            least = distance;
        }
    }
    return std::string(nearest);
}

std::string escape_html(std::string_view text) {
    std::string escaped;
    escaped.reserve(text.size());
    for (const char c : text) {
        switch (c) {
            case '&':
                escaped += "&amp;";
                break;
            case '<':
                escaped += "&lt;";
                break;
            case '>':
                escaped += "&gt;";
                break;
            case '"':
                escaped += "&quot;";
                break;
            case '\'':
                escaped += "&#39;";
                break;
            default:
                escaped += c;
        }
    }
    return escaped;
}

}  // namespace lockstep::base
