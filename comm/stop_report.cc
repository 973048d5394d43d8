#include "comm/stop_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <tuple>

#include "base/error.h"
#include "base/exit_code.h"
#include "base/text.h"

namespace lockstep::comm {

namespace {

using base::str;

std::string joined(const std::vector<const SeenRank*>& ranks) {
    std::vector<std::string> names;
    std::ranges::transform(ranks, std::back_inserter(names), [](const SeenRank* rank) { return rank->member.name(); });
    constexpr std::size_t most = 8;
    if (names.size() > most) {
        const std::size_t left_out = names.size() - most;
        names.resize(most);
        names.push_back(str(left_out, " more"));
    }
    return base::join(names, ", ");
}

const SeenOperation* operation_of(const SeenRank& rank, std::string_view purpose) {
    const auto found = std::ranges::find(rank.operations, purpose, &SeenOperation::purpose);
    return found == rank.operations.end() ? nullptr : &*found;
}

/// Ranks that have not begun what others wait in, of the first purpose in which there are such.
std::vector<const SeenRank*> ranks_behind(const std::vector<SeenRank>& ranks) {
    std::map<std::string, std::uint64_t> furthest;
    for (const SeenRank& rank : ranks) {
        for (const SeenOperation& operation : rank.operations) {
            if (operation.is_under_way) {
                std::uint64_t& sequence = furthest[operation.purpose];
                sequence = std::max(sequence, operation.operation.sequence);
            }
        }
    }
    std::vector<const SeenRank*> behind;
    for (const auto& [purpose, sequence] : furthest) {
        for (const SeenRank& rank : ranks) {
            const SeenOperation* const own = operation_of(rank, purpose);
            if (rank.state != RankState::finished && own != nullptr && own->operation.sequence < sequence &&
                std::ranges::find(behind, &rank) == behind.end()) {
                behind.push_back(&rank);
            }
        }
        if (!behind.empty()) {
            break;  // what a composed communicator does inside stands after it, and says less
        }
    }
    return behind;
}

std::string state_text(const SeenRank& rank) {
    if (rank.is_gone) {
        return "died";
    }
    if (rank.is_stopped) {
        return "stopped by a signal";
    }
    if (rank.is_out_of_reach) {
        return "out of reach";
    }
    switch (rank.state) {
        case RankState::absent:
            return "not started";
        case RankState::runs:
            return "running";
        case RankState::failed:
            return "failed";
        case RankState::was_late:
            return "waited in vain";
        case RankState::finished:
            return "finished";
    }
    LOCKSTEP_CHECK(false, "state ", static_cast<int>(rank.state));
}

/// The one that waits, else the one that was begun last.
const SeenOperation* telling_operation(const SeenRank& rank) {
    const auto latest = std::ranges::min_element(rank.operations, [](const SeenOperation& a, const SeenOperation& b) {
        return std::tuple(a.operation.sequence == 0, !a.is_under_way, a.seconds) <
               std::tuple(b.operation.sequence == 0, !b.is_under_way, b.seconds);
    });
    return latest == rank.operations.end() ? nullptr : &*latest;
}

std::string line_of(const SeenRank& rank) {
    const SeenOperation* const operation = telling_operation(rank);
    return str("\n  ", rank.member.name(), ", process ", rank.process, ": ", state_text(rank), ", in ", rank.phase,
               ", step ", rank.step, operation != nullptr ? str("; ", operation->describe()) : "");
}

nlohmann::json json_of(const SeenRank& rank) {
    nlohmann::json operations = nlohmann::json::array();
    for (const SeenOperation& seen : rank.operations) {
        operations.push_back({{"purpose", seen.purpose},
                              {"kind", name_of(seen.operation.kind)},
                              {"name", seen.operation.name},
                              {"sequence", seen.operation.sequence},
                              {"bytes", seen.operation.bytes()},
                              {"waits", seen.is_under_way},
                              {"seconds", seen.seconds}});
    }
    return {{"rank", rank.member.world_rank}, {"host", rank.member.host}, {"process", rank.process},
            {"state", state_text(rank)},      {"phase", rank.phase},      {"step", rank.step},
            {"failure", rank.failure},        {"operations", operations}};
}

}  // namespace

bool is_in_trouble(const SeenRank& rank) {
    return rank.is_gone || rank.state == RankState::failed || rank.state == RankState::was_late;
}

StopReport make_stop_report(const std::vector<SeenRank>& ranks) {
    std::vector<const SeenRank*> gone, failed, late, stopped, out_of_reach;
    for (const SeenRank& rank : ranks) {
        if (rank.state == RankState::failed) {
            failed.push_back(&rank);
        } else if (rank.is_gone) {
            gone.push_back(&rank);
        } else if (rank.state == RankState::was_late) {
            late.push_back(&rank);
        } else if (rank.is_stopped) {
            stopped.push_back(&rank);
        }
        if (rank.is_out_of_reach) {
            out_of_reach.push_back(&rank);
        }
    }
    std::ranges::stable_sort(failed, {}, [](const SeenRank* rank) { return rank->failed_at; });
    const std::vector<const SeenRank*> behind = ranks_behind(ranks);
    LOCKSTEP_CHECK(!(gone.empty() && failed.empty() && late.empty()), "a stop report of ranks that are well");

    StopReport report;
    std::vector<std::string> causes;
    report.exit_code = failed.empty() ? base::exit_code::failure : failed.front()->exit_code;
    std::set<std::string> texts;
    for (const SeenRank* const rank : failed) {
        texts.insert(rank->failure);
    }
    if (failed.size() == ranks.size() && texts.size() == 1) {
        // Where all ranks meet the same error (a wrong recipe, a missing file), nothing else is to be said.
        report.text = *texts.begin();
    } else {
        if (!gone.empty()) {
            causes.push_back(str(joined(gone),
                                 gone.size() == 1 ? " died: its process is" : " died: their processes are",
                                 " gone. Where nobody killed it, see the kernel's log for a lack of memory"));
        }
        constexpr std::size_t most_failures = 8;
        for (const SeenRank* const rank : std::span(failed).first(std::min(failed.size(), most_failures))) {
            causes.push_back(str(rank->member.name(), " failed: ", rank->failure));
        }
        if (failed.size() > most_failures) {
            causes.push_back(str(failed.size() - most_failures, " more failed"));
        }
        if (!stopped.empty()) {
            causes.push_back(str(joined(stopped), " stopped by a signal or a debugger"));
        }
        if (!out_of_reach.empty()) {
            causes.push_back(str("nothing is heard of ", joined(out_of_reach), ": see its machine and the network"));
        }
        if (causes.empty() && !behind.empty()) {
            causes.push_back(str("waited in vain for ", joined(behind)));
        }
        if (!late.empty()) {
            causes.push_back(late.front()->failure);
        }
        report.text = str("stop report: ", base::join(causes, "\n  "));
        constexpr std::size_t most_lines = 16;
        for (std::size_t i = 0; i < std::min(ranks.size(), most_lines); ++i) {
            report.text += line_of(ranks[i]);
        }
        if (ranks.size() > most_lines) {
            report.text += str("\n  and ", ranks.size() - most_lines, " more ranks");
        }
    }

    nlohmann::json json{{"exit_code", report.exit_code}, {"cause", causes.empty() ? report.text : causes.front()}};
    json["behind"] = nlohmann::json::array();
    for (const SeenRank* const rank : behind) {
        json["behind"].push_back(rank->member.world_rank);
    }
    for (const SeenRank& rank : ranks) {
        json["ranks"].push_back(json_of(rank));
    }
    report.json = json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    return report;
}

}  // namespace lockstep::comm
