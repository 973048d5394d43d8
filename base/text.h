#pragma once

#include <cstdint>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::base {

/// Joins the arguments as an ostream prints them. The one formatter that every file may use: fmt cannot be included
/// beside LibTorch, which carries another version of it.
template <typename... Parts>
std::string str(const Parts&... parts) {
    if constexpr (sizeof...(parts) == 0) {
        return {};
    } else {
        std::ostringstream out;
        (out << ... << parts);
        return std::move(out).str();
    }
}

/// Fixed-point text: fixed(0.12345, 3) is "0.123".
std::string fixed(double value, int decimals);

/// "25.0 MiB", "981 B": powers of 1024, one decimal from KiB on.
std::string human_bytes(double bytes);
/// "4B", "25MB" (10^6), "25MiB" (2^20), "1.5GiB" or a bare number of bytes. Throws UsageError for anything else.
std::size_t parse_bytes(std::string_view text);

/// "1:02:03", "4:05", "0.8 s"; "?" where it is not finite.
std::string human_duration(double seconds);

std::string join(std::span<const std::string> parts, std::string_view separator);
/// Keeps empty parts: "a,,b" has three, and "" has one.
std::vector<std::string> split(std::string_view text, char separator);
/// Without white space at both ends.
std::string_view trim(std::string_view text);

/// The candidate with the least edit distance to `word` (insertion, deletion, substitution, swap of neighbours; the
/// first of equals), or "" where none is near enough to be a likely slip of typing: one edit, or a third of the longer
/// word.
std::string nearest_word(std::string_view word, std::span<const std::string> candidates);

/// Escapes &, <, >, " and ' so that the text can stand in HTML and in attributes.
std::string escape_html(std::string_view text);

}  // namespace lockstep::base
