#pragma once

#include <string>
#include <vector>

namespace lockstep::bench {

/// A table of a report, for both of its formats.
struct ReportTable {
    std::vector<std::string> head;
    std::vector<std::vector<std::string>> rows;  ///< of as many cells as the head
};

std::string markdown_of(const ReportTable& table);
/// On a narrow screen a row becomes a card, each cell under its head.
std::string html_of(const ReportTable& table);

}  // namespace lockstep::bench
