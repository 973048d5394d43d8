#include "comm/job_watch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/exit_code.h"
#include "base/file.h"
#include "base/log.h"
#include "base/resources.h"
#include "comm/mpi.h"
#include "comm/mpi_check.h"
#include "comm/node_link.h"
#include "comm/segment_exchange.h"
#include "comm/stop_report.h"
#include "comm/topology.h"

namespace lockstep::comm {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Deadline of the few operations with which the watch is set up.
constexpr auto set_up_timeout = 2min;
/// Between two looks. mpirun ends the other ranks about a second after one died.
constexpr auto pause_between_looks = 100ms;
/// From the first sign of trouble to the report: others may be about to fail, and say more.
constexpr auto grace_after_death = 200ms;
constexpr auto grace_after_failure = 1s;
/// The first rank of a machine is to write the report; where it can't, another one does.
constexpr auto grace_of_next_rank = 200ms;
/// Of one who claimed to write the report.
constexpr auto longest_writing = 5s;
constexpr unsigned longest_abort_seconds = 5;
/// Of a rank that failed, until it ends the job by itself.
constexpr auto longest_wait_for_report = 10s;
/// Between machines: how often they tell of themselves, how long a report may be awaited that would tell of all
/// machines, and from when on a silent one counts as out of reach.
constexpr auto pause_between_tellings = 500ms;
constexpr auto grace_of_other_machines = 2s;
constexpr auto longest_silence = 3s;
constexpr auto patience_of_connecting = 2s;

/// What the ranks of a machine agree on when the job ends.
struct Verdict {
    std::atomic<std::int32_t> is_claimed;
    std::atomic<std::int32_t> exit_code;  ///< not 0: end
};

/// One rank's part of the shared memory. The first one's verdict is in force.
struct BoardEntry {
    Verdict verdict;
    RankStatus status;
};

constexpr std::size_t page = 4096;
constexpr std::size_t entry_bytes = (sizeof(BoardEntry) + page - 1) / page * page;

BoardEntry& entry_of(std::byte* memory, std::size_t rank) {
    return *reinterpret_cast<BoardEntry*>(memory + rank * entry_bytes);
}

}  // namespace

struct JobWatch::State {
    std::size_t own = 0;          ///< this rank's place among `members`
    std::vector<Member> members;  ///< the ranks of this machine
    std::shared_ptr<std::byte> memory;
    std::shared_ptr<RankLog> log;
    std::int32_t world_rank = 0;

    bool has_other_machines = false;
    std::string invitation;                ///< to the link between machines
    std::optional<NodeLinkServer> server;  ///< of the first rank of the job
    std::optional<NodeLinkClient> client;  ///< of the first rank of each other machine

    std::mutex mutex;  ///< guards `directory`, and lets the thread sleep
    std::condition_variable_any woken;
    std::filesystem::path directory;
    std::optional<std::jthread> thread;

    void make_board() {
        if (!mpi_is_running()) {
            make_own_memory();
            members = {{0, base::host_name()}};
            return;
        }
        const auto world = make_mpi_communicator("watch", set_up_timeout);
        world_rank = index_of(world->rank());
        const Topology machines = detect_topology(*world);
        const std::vector<Rank>& mine = machines.ranks_of_node(machines.node_of(world->rank()));
        for (const Rank rank : mine) {
            members.push_back({index_of(rank), machines.host_of(rank)});
        }
        own = static_cast<std::size_t>(std::ranges::find(mine, world->rank()) - mine.begin());
        has_other_machines = machines.nodes() > 1;
        if (has_other_machines) {
            invite(*world);
        }
        try {
            memory = exchange_over(make_mpi_communicator("watch, inside a node", set_up_timeout, mine))
                         ->share(entry_bytes)
                         .owner();
        } catch (const PeerError&) {
            throw;
        } catch (const base::Error& error) {
            if (own == 0) {
                base::log_warning(base::str("each rank will report for itself alone: ", error.what()));
            }
            make_own_memory();
            members = {members[own]};
            own = 0;
        }
    }

    /// Collective. Without a link, machines report by themselves.
    void invite(Communicator& world) {
        std::string mine;
        if (world_rank == 0) {
            try {
                server.emplace();
                mine = server->invitation();
            } catch (const base::Error& error) {
                base::log_warning(base::str("stop reports will tell of one machine only: ", error.what()));
            }
        }
        invitation = world.all_gather_texts(mine, "invitation").front();
    }

    /// On the thread: it may take a while where a firewall swallows packets.
    void connect(const std::stop_token& stop) {
        if (own != 0 || world_rank == 0 || invitation.empty()) {
            return;
        }
        try {
            client.emplace(invitation, patience_of_connecting);
        } catch (const base::Error& error) {
            if (stop.stop_requested()) {
                return;
            }
            base::log_warning(base::str("stop reports will tell of one machine only: ", error.what()));
        }
    }

    void make_own_memory() { memory = make_single_communicator()->allocate(entry_bytes, "the rank's status"); }

    Verdict& verdict() const { return entry_of(memory.get(), 0).verdict; }
    const RankStatus& status(std::size_t rank) const { return entry_of(memory.get(), rank).status; }

    std::vector<SeenRank> see_all() const {
        std::vector<SeenRank> seen;
        for (std::size_t rank = 0; rank < members.size(); ++rank) {
            seen.push_back(see(status(rank), members[rank]));
        }
        return seen;
    }

    /// Of this machine. The first rank looks at every process, each other one at its neighbour alone, which is enough
    /// for one of them to notice, and not too much where there are a hundred.
    bool is_any_in_trouble() const {
        for (std::size_t rank = 0; rank < members.size(); ++rank) {
            const RankState state = status(rank).state.load(std::memory_order_acquire);
            const bool is_looked_at = rank != own && (own == 0 || rank == (own + 1) % members.size());
            if (state == RankState::failed || state == RankState::was_late ||
                (is_looked_at && has_died(status(rank)))) {
                return true;
            }
        }
        return false;
    }

    /// On the thread.
    void watch(const std::stop_token& stop) {
        try {
            look_until(stop);
        } catch (const std::exception& error) {
            // The job itself is well: it must not end for this.
            base::log_warning(base::str("no stop report will tell why a job ended: ", error.what()));
        }
    }

    void look_until(const std::stop_token& stop) {
        connect(stop);
        constexpr Clock::time_point never = Clock::time_point::max();
        Clock::time_point trouble_since = never, claim_seen = never;
        Clock::time_point told{};
        while (!stop.stop_requested()) {
            if (const int code = verdict().exit_code.load(std::memory_order_acquire); code != 0) {
                std::_Exit(code);
            }
            if (verdict().is_claimed.load(std::memory_order_acquire) != 0) {
                claim_seen = std::min(claim_seen, Clock::now());
                if (Clock::now() - claim_seen > longest_writing) {
                    end_machine(base::exit_code::failure);  // who claimed it died, or hangs in a write
                }
            }
            bool is_trouble = is_any_in_trouble();
            if (client) {
                if ((is_trouble && trouble_since == never) || Clock::now() - told >= pause_between_tellings) {
                    client->tell(see_all());
                    told = Clock::now();
                }
                client->look();
                if (client->exit_code() != 0) {
                    end_machine(client->exit_code());
                }
            }
            std::vector<SeenRank> of_others;
            if (server) {
                server->look();
                of_others = server->ranks(longest_silence);
                is_trouble = is_trouble || std::ranges::any_of(of_others, is_in_trouble);
            }
            if (!is_trouble) {
                trouble_since = never;
            } else {
                std::vector<SeenRank> seen = see_all();
                std::ranges::move(of_others, std::back_inserter(seen));
                std::ranges::sort(seen, {}, [](const SeenRank& rank) { return rank.member.world_rank; });
                trouble_since = std::min(trouble_since, Clock::now());
                if (std::ranges::any_of(seen, is_in_trouble) &&
                    Clock::now() - trouble_since >= grace_before_report(seen)) {
                    end_with_report(seen);
                }
            }
            std::unique_lock lock(mutex);
            const auto pause = trouble_since != never ? pause_between_looks / 4 : pause_between_looks;
            woken.wait_for(lock, stop, pause, [] { return false; });
        }
        if (client) {
            client->look();
            client->say_farewell();
        }
    }

    /// Others may be about to say more, and somebody else may be the one to report.
    Clock::duration grace_before_report(const std::vector<SeenRank>& seen) const {
        Clock::duration grace = grace_after_failure;
        if (std::ranges::all_of(seen, is_in_trouble)) {
            grace = Clock::duration::zero();
        } else if (std::ranges::any_of(seen, &SeenRank::is_gone)) {
            grace = grace_after_death;
        }
        const bool is_cut_off = client && client->is_lost();
        if (!seen_ranks_are_all() && !is_cut_off) {
            grace += grace_of_other_machines;
        }
        return grace + (own == 0 ? Clock::duration::zero() : Clock::duration(grace_of_next_rank));
    }

    void end_with_report(const std::vector<SeenRank>& seen) {
        std::int32_t nobody = 0;
        if (!verdict().is_claimed.compare_exchange_strong(nobody, 1)) {
            return;
        }
        const StopReport report = make_stop_report(seen);
        base::log_error(report.text);
        if (server) {
            server->announce_end(report.exit_code);
        }
        write_report(report.json);
        end_machine(report.exit_code);
    }

    void write_report(const std::string& json) {
        const std::scoped_lock lock(mutex);
        if (directory.empty()) {
            return;
        }
        const bool is_for_all = seen_ranks_are_all();
        const std::string name =
            is_for_all ? "stop_report.json" : base::str("stop_report-", members[own].host, ".json");
        try {
            base::write_whole(directory / name, json);
        } catch (const std::exception& error) {
            base::log_error(error.what());
        }
    }

    /// Whether this rank's reports tell of all machines.
    bool seen_ranks_are_all() const { return server.has_value() || !has_other_machines; }

    /// This machine's ranks see the verdict; those that the link doesn't reach are the launcher's.
    [[noreturn]] void end_machine(int exit_code) const {
        verdict().exit_code.store(exit_code, std::memory_order_release);
        std::signal(SIGALRM, SIG_DFL);
        alarm(longest_abort_seconds);  // MPI_Abort talks with the launcher, who may be out of reach
        end_all_ranks(exit_code);
    }

    [[noreturn]] void fail(const char* text, int exit_code, bool is_late) {
        log->failed(text, exit_code, is_late);
        std::this_thread::sleep_for(longest_wait_for_report);
        abort_job(exit_code, text);
    }
};

JobWatch::JobWatch() : state_(std::make_unique<State>()) {
    state_->make_board();
    state_->log = std::make_shared<RankLog>(
        std::shared_ptr<RankStatus>(state_->memory, &entry_of(state_->memory.get(), state_->own).status));
    if (mpi_is_running()) {
        state_->thread.emplace([state = state_.get()](const std::stop_token& stop) { state->watch(stop); });
    }
}

JobWatch::~JobWatch() = default;

const std::shared_ptr<RankLog>& JobWatch::log() const {
    return state_->log;
}

int JobWatch::run(const std::function<int()>& work) {
    if (!mpi_is_running()) {
        return work();
    }
    try {
        return work();
    } catch (const base::UsageError& error) {
        state_->fail(error.what(), base::exit_code::usage, false);
    } catch (const PeerError& error) {
        state_->fail(error.what(), base::exit_code::failure, true);
    } catch (const std::exception& error) {
        state_->fail(error.what(), base::exit_code::failure, false);
    }
}

void JobWatch::keep_in(const std::filesystem::path& directory) {
    if (!mpi_is_running()) {
        return;
    }
    try {
        if (state_->world_rank == 0) {
            std::filesystem::remove(directory / "stop_report.json");  // an earlier attempt's
        }
        std::filesystem::create_directories(directory / "flight");
        state_->log->record_in(directory / "flight" / base::str("rank-", state_->world_rank, ".txt"));
    } catch (const std::exception& error) {
        base::log_warning(base::str("no flight record is kept: ", error.what()));
    }
    const std::scoped_lock lock(state_->mutex);
    state_->directory = directory;
}

void JobWatch::finish() {
    state_->log->finished();
}

int run_ranks(const std::function<int(JobWatch&)>& body) {
    if (!is_launched_by_mpi()) {
        JobWatch watch;
        return body(watch);
    }
    std::optional<MpiGuard> guard;  // outlives the handler, which still needs MPI to end the others
    try {
        guard.emplace();
        JobWatch watch;
        const int code = watch.run([&] { return body(watch); });
        watch.finish();
        return code;
    } catch (const std::exception& error) {
        abort_job(base::exit_code::failure, error.what());
    }
}

int run_ranks(const std::function<int()>& body) {
    return run_ranks([&](JobWatch&) { return body(); });
}

}  // namespace lockstep::comm
