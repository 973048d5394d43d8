#include "base/toml_literal.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/error.h"

namespace lockstep::base {

std::string toml_literal(std::string_view text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            quoted += '\\';
        }
        quoted += c;
    }
    return quoted + '"';
}

std::string toml_literal(bool value) {
    return value ? "true" : "false";
}

std::string toml_literal(std::int64_t value) {
    return std::to_string(value);
}

std::string toml_literal(double value) {
    std::array<char, 32> buffer;
    const double size = std::abs(value);
    const bool reads_well = value == 0 || (size >= 1e-4 && size < 1e15);
    const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value,
                                      reads_well ? std::chars_format::fixed : std::chars_format::scientific);
    LOCKSTEP_CHECK(result.ec == std::errc());
    const std::string text(buffer.data(), result.ptr);
    return text.find_first_of(".ein") == std::string::npos ? text + ".0" : text;
}

}  // namespace lockstep::base
