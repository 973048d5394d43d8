#include "bench/report_table.h"

#include "base/text.h"

namespace lockstep::bench {
namespace {

using base::escape_html;

std::string markdown_line(const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) {
        text += ' ';
        for (const char c : cell) {
            text += c == '|' ? std::string("\\|") : std::string(1, c == '\n' ? ' ' : c);
        }
        text += " |";
    }
    return text + "\n";
}

}  // namespace

std::string markdown_of(const ReportTable& table) {
    std::string text = markdown_line(table.head) + markdown_line(std::vector<std::string>(table.head.size(), "---"));
    for (const auto& row : table.rows) {
        text += markdown_line(row);
    }
    return text + "\n";
}

std::string html_of(const ReportTable& table) {
    std::string text = "<table><thead><tr>";
    for (const auto& cell : table.head) {
        text += "<th>" + escape_html(cell) + "</th>";
    }
    text += "</tr></thead><tbody>\n";
    for (const auto& row : table.rows) {
        text += "<tr>";
        for (std::size_t i = 0; i < row.size(); ++i) {
            text += "<td data-head=\"" + escape_html(table.head[i]) + "\">" + escape_html(row[i]) + "</td>";
        }
        text += "</tr>\n";
    }
    return text + "</tbody></table>\n";
}

}  // namespace lockstep::bench
