#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace lockstep::base {
namespace {

using Words = std::vector<std::string>;

TEST(Str, JoinsAsAnOstreamPrints) {
    EXPECT_EQ(str(), "");
    EXPECT_EQ(str("rank ", 1, " of ", 4u, ": ", 0.5, ' ', std::string("x"), std::string_view("y")),
              "rank 1 of 4: 0.5 xy");
}

TEST(Fixed, RoundsToTheDecimals) {
    EXPECT_EQ(fixed(0.12345, 3), "0.123");
    EXPECT_EQ(fixed(-2.5, 0), "-2");  // the nearest even of two equally near, as printf does
    EXPECT_EQ(fixed(3.5, 0), "4");
    EXPECT_EQ(fixed(1, 2), "1.00");
    EXPECT_EQ(fixed(999.9996, 3), "1000.000");
    EXPECT_EQ(fixed(std::numeric_limits<double>::infinity(), 1), "inf");
    EXPECT_EQ(fixed(std::numeric_limits<double>::max(), 30).size(), 309u + 1 + 30);
    EXPECT_THROW(fixed(1, -1), InternalError);
}

TEST(HumanBytes, ChangesTheUnitWhereTheNumberWouldReach1024) {
    EXPECT_EQ(human_bytes(0), "0 B");
    EXPECT_EQ(human_bytes(981), "981 B");
    EXPECT_EQ(human_bytes(1023), "1023 B");
    EXPECT_EQ(human_bytes(1024), "1.0 KiB");
    EXPECT_EQ(human_bytes(1536), "1.5 KiB");
    EXPECT_EQ(human_bytes(1024 * 1024 - 1), "1.0 MiB");
    EXPECT_EQ(human_bytes(25.0 * 1024 * 1024), "25.0 MiB");
    EXPECT_EQ(human_bytes(0x1p63), "8.0 EiB");
    EXPECT_EQ(human_bytes(0x1p72), "4096.0 EiB");
    EXPECT_EQ(human_bytes(-2048), "-2.0 KiB");
}

TEST(HumanDuration, IsAClockFromOneMinuteOn) {
    EXPECT_EQ(human_duration(0.84), "0.8 s");
    EXPECT_EQ(human_duration(59.94), "59.9 s");
    EXPECT_EQ(human_duration(59.96), "1:00");
    EXPECT_EQ(human_duration(245), "4:05");
    EXPECT_EQ(human_duration(3599.6), "1:00:00");
    EXPECT_EQ(human_duration(3723), "1:02:03");
    EXPECT_EQ(human_duration(360000), "100:00:00");
    EXPECT_EQ(human_duration(std::numeric_limits<double>::infinity()), "?");
    EXPECT_EQ(human_duration(1e300), "?");
}

TEST(Join, PutsTheSeparatorBetween) {
    EXPECT_EQ(join(Words{}, ", "), "");
    EXPECT_EQ(join(Words{"a"}, ", "), "a");
    EXPECT_EQ(join(Words{"a", "", "c"}, ", "), "a, , c");
}

TEST(Split, KeepsEmptyParts) {
    EXPECT_EQ(split("a,b,c", ','), (Words{"a", "b", "c"}));
    EXPECT_EQ(split("a,,b", ','), (Words{"a", "", "b"}));
    EXPECT_EQ(split(",", ','), (Words{"", ""}));
    EXPECT_EQ(split("", ','), (Words{""}));
}

TEST(Trim, TakesWhiteSpaceOffBothEnds) {
    EXPECT_EQ(trim("  a b\t\r\n"), "a b");
    EXPECT_EQ(trim("a"), "a");
    EXPECT_EQ(trim(" \n "), "");
    EXPECT_EQ(trim(""), "");
}

TEST(NearestWord, FindsALikelySlipOfTyping) {
    const Words keys = {"batch", "epochs", "learning_rate", "momentum", "lr"};
    EXPECT_EQ(nearest_word("bach", keys), "batch");         // deletion
    EXPECT_EQ(nearest_word("eepochs", keys), "epochs");     // insertion
    EXPECT_EQ(nearest_word("momentun", keys), "momentum");  // substitution
    EXPECT_EQ(nearest_word("bacth", keys), "batch");        // swap of neighbours: one edit, not two
    EXPECT_EQ(nearest_word("learnig-rate", keys), "learning_rate");
    EXPECT_EQ(nearest_word("rl", keys), "lr");
    EXPECT_EQ(nearest_word("batch", keys), "batch");
}

TEST(NearestWord, PrefersTheNearestAndOfEqualsTheFirst) {
    EXPECT_EQ(nearest_word("weight_dacay", Words{"weight_delay", "weight_decay"}), "weight_decay");
    EXPECT_EQ(nearest_word("size", Words{"sizes", "side"}), "sizes");
}

TEST(NearestWord, IsEmptyWhereNothingIsNear) {
    EXPECT_EQ(nearest_word("optimizer", Words{"batch", "epochs"}), "");
    EXPECT_EQ(nearest_word("a", Words{"b"}), "");
    EXPECT_EQ(nearest_word("", Words{"b"}), "");
    EXPECT_EQ(nearest_word("batch", Words{}), "");
}

TEST(EscapeHtml, EscapesWhatHasAMeaning) {
    EXPECT_EQ(escape_html("<a href=\"x\">Tom & 'Jerry'</a>"),
              "&lt;a href=&quot;x&quot;&gt;Tom &amp; &#39;Jerry&#39;&lt;/a&gt;");
    EXPECT_EQ(escape_html("größe"), "größe");
}

TEST(ParseBytes, TakesDecimalAndBinaryUnits) {
    EXPECT_EQ(parse_bytes("4096"), 4096U);
    EXPECT_EQ(parse_bytes("4B"), 4U);
    EXPECT_EQ(parse_bytes("25MB"), 25000000U);
    EXPECT_EQ(parse_bytes("25 MiB"), 26214400U);
    EXPECT_EQ(parse_bytes("1.5GiB"), 1610612736U);
    EXPECT_EQ(parse_bytes("0"), 0U);
    for (const char* wrong : {"", "MB", "-4B", "4XB", "4 M B", "nan", "1e300GB", "25mb"}) {
        EXPECT_THROW(parse_bytes(wrong), UsageError) << wrong;
    }
}

}  // namespace
}  // namespace lockstep::base
