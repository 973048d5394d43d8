#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "comm/flight_record.h"
#include "comm/rank_status.h"

namespace lockstep::comm {

/// What went on from when to when.
struct Span {
    std::string track;  ///< "phases", or the purpose of a communicator: spans of one track don't overlap
    std::string name;
    double begin = 0, end = 0;  ///< seconds of the machine's monotonic clock
};

/// Where a rank says what it is doing, for those who have to find out why a job stands still: in a RankStatus, which
/// the machine's other ranks can read, and in a flight record once there is a directory for it. Communicators that
/// were given one write to it by themselves. Any thread may call.
class RankLog {
  public:
    /// `status` is zeroed memory. The rank counts as running from here on.
    explicit RankLog(std::shared_ptr<RankStatus> status);

    /// What the rank does between its collectives, such as "training", and where it is.
    void enter(std::string_view phase, std::int64_t step);
    /// `is_late`: the rank did not fail itself, others did not come in time.
    void failed(std::string_view text, int exit_code, bool is_late);
    void finished();

    /// From now on operations are also written to `file`. Call it while no operation is under way.
    void record_in(const std::filesystem::path& file);

    /// From now on phases and operations are kept as spans, until they are taken.
    void start_spans();
    /// The phase under way ends with it, operations under way are left out, and no more are kept.
    std::vector<Span> take_spans();

    /// A place for the operations of a communicator. Where all are taken, its operations are not seen.
    std::size_t open(std::string_view purpose);
    /// Gives the place back, but not after an operation that did not end: others want to see it.
    void close(std::size_t place);
    /// `operation` is about to wait; one at a time in each place.
    void begin(std::size_t place, const Operation& operation);
    void end(std::size_t place);

  private:
    void keep(Span& span, double end);

    static constexpr std::size_t no_place = RankStatus::room_for_operations;

    std::shared_ptr<RankStatus> status_;
    std::unique_ptr<FlightRecord> record_;
    std::mutex opening_;
    std::array<std::uint64_t, RankStatus::room_for_operations> line_of_place_{};

    std::atomic<bool> keeps_spans_{false};
    std::mutex spans_mutex_;  ///< of what follows
    std::vector<Span> spans_;
    Span phase_;                                                       ///< under way
    std::array<Span, RankStatus::room_for_operations> span_of_place_;  ///< under way, where there is a name
};

}  // namespace lockstep::comm
