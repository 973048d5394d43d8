#include "trainer/telemetry/trace_file.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/file.h"
#include "base/resources.h"
#include "base/text.h"

namespace lockstep::trainer {
namespace {

using nlohmann::json;

constexpr double microseconds = 1e6;

json named(const char* kind, std::int32_t rank, std::size_t row, const std::string& name) {
    return {{"ph", "M"}, {"pid", rank}, {"tid", row}, {"name", kind}, {"args", {{"name", name}}}};
}

/// Format: "Trace Event Format", complete events ("X") and metadata ("M"); times in microseconds since 1970.
json events_of(std::span<const comm::Span> spans, const comm::Communicator& control) {
    const std::int32_t rank = comm::index_of(control.rank());
    const double to_time_of_day = base::unix_seconds() - base::monotonic_seconds();
    json events = json::array();
    events.push_back(named("process_name", rank, 0, base::str("rank ", rank, " on ", base::host_name())));
    std::map<std::string, std::size_t> rows;
    for (const comm::Span& span : spans) {
        const auto [row, is_new] = rows.try_emplace(span.track, rows.size());
        if (is_new) {
            events.push_back(named("thread_name", rank, row->second, span.track));
        }
        events.push_back({{"ph", "X"},
                          {"pid", rank},
                          {"tid", row->second},
                          {"name", span.name},
                          {"ts", (span.begin + to_time_of_day) * microseconds},
                          {"dur", (span.end - span.begin) * microseconds}});
    }
    return events;
}

}  // namespace

void write_trace(const std::filesystem::path& file, std::span<const comm::Span> spans, comm::Communicator& control) {
    const std::string own = events_of(spans, control).dump(-1, ' ', false, json::error_handler_t::replace);
    const std::vector<std::string> of_ranks = control.all_gather_texts(own, "spans of the ranks");
    if (comm::index_of(control.rank()) != 0) {
        return;
    }
    json events = json::array();
    for (const std::string& text : of_ranks) {
        json theirs = json::parse(text);
        std::ranges::move(theirs, std::back_inserter(events));
    }
    double start = std::numeric_limits<double>::infinity();
    for (const json& event : events) {
        start = std::min(start, event.value("ts", start));
    }
    for (json& event : events) {
        if (event.contains("ts")) {
            event["ts"] = event.at("ts").get<double>() - start;
        }
    }
    base::write_whole(file, json({{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}).dump() + "\n");
}

}  // namespace lockstep::trainer
