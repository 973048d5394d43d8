#include "base/toml_literal.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "base/random.h"

namespace lockstep::base {
namespace {

TEST(TomlLiteral, TextIsQuotedAndEscaped) {
    EXPECT_EQ(toml_literal("runs/a"), "\"runs/a\"");
    EXPECT_EQ(toml_literal(std::string(R"(a "b" \c)")), R"("a \"b\" \\c")");
}

TEST(TomlLiteral, BooleansAndWholeNumbers) {
    EXPECT_EQ(toml_literal(true), "true");
    EXPECT_EQ(toml_literal(std::int64_t{-12}), "-12");
}

TEST(TomlLiteral, NumbersAreShortAndNeverWhole) {
    EXPECT_EQ(toml_literal(0.1), "0.1");
    EXPECT_EQ(toml_literal(0.30000000000000004), "0.30000000000000004");
    EXPECT_EQ(toml_literal(3.0), "3.0");
    EXPECT_EQ(toml_literal(-2000.0), "-2000.0");
    EXPECT_EQ(toml_literal(0.0005), "0.0005");
    EXPECT_EQ(toml_literal(100000.0), "100000.0");
    EXPECT_EQ(toml_literal(0.0), "0.0");
    EXPECT_EQ(toml_literal(0.00001), "1e-05");
    EXPECT_EQ(toml_literal(std::numeric_limits<double>::infinity()), "inf");
}

TEST(TomlLiteral, NumbersReadBackTheSame) {
    Random random(1, RandomPurpose::test, 0, 0);
    for (int i = 0; i < 1000; ++i) {
        const double value = random.normal() * std::pow(10, random.uniform(-20, 20));
        EXPECT_EQ(std::stod(toml_literal(value)), value) << toml_literal(value);
    }
}

}  // namespace
}  // namespace lockstep::base
