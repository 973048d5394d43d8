#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// Values as TOML writes them.
namespace lockstep::base {

/// In double quotes, with quotes and backslashes escaped.
std::string toml_literal(std::string_view text);
/// So that `toml_literal("text")` isn't taken for a boolean.
inline std::string toml_literal(const char* text) {
    return toml_literal(std::string_view(text));
}
std::string toml_literal(bool value);
std::string toml_literal(std::int64_t value);
/// The shortest text that reads back the same, and never as a whole number: 0.1, 3.0, 1e-05, inf.
std::string toml_literal(double value);

}  // namespace lockstep::base
