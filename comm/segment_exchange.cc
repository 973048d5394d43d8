#include "comm/segment_exchange.h"

#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lockstep::comm {

namespace {

class ExchangeOver final : public SegmentExchange {
  public:
    explicit ExchangeOver(std::unique_ptr<Communicator> meeting) : meeting_(std::move(meeting)) {}

    std::size_t ranks() const override { return static_cast<std::size_t>(meeting_->size()); }

    SharedSegment share(std::size_t bytes_per_rank) override {
        const auto rank = static_cast<std::size_t>(index_of(meeting_->rank()));
        const std::size_t bytes = bytes_per_rank * ranks();
        std::optional<SharedSegment> segment;
        SharedSegment::Handle handle{};
        agree("making a shared segment", [&] {
            if (rank == 0) {
                require_memory_for(bytes);
                segment = SharedSegment::create(bytes);
                handle = segment->handle();
            }
        });
        const auto handles = meeting_->all_gather_bytes(std::as_bytes(std::span(&handle, 1)), "segment handle");
        std::memcpy(&handle, handles.front().data(), sizeof(handle));
        // The first rank keeps the segment until this second agreement, so that nobody comes too late to open it.
        agree("opening a shared segment", [&] {
            LOCKSTEP_CHECK_EQ(handle.bytes, bytes, "ranks ask for segments of different sizes");
            if (rank != 0) {
                segment = SharedSegment::open(handle);
            }
            segment->reserve(rank * bytes_per_rank, bytes_per_rank);
        });
        return *std::move(segment);
    }

  private:
    /// Does `work` on every rank; all of them throw if one does.
    void agree(std::string_view name, const std::function<void()>& work) {
        std::string problem;
        try {
            work();
        } catch (const std::exception& error) {
            problem = error.what();
        }
        for (const std::string& theirs : meeting_->all_gather_texts(problem, name)) {
            if (!theirs.empty()) {
                throw base::Error(theirs);
            }
        }
    }

    std::unique_ptr<Communicator> meeting_;
};

}  // namespace

std::unique_ptr<SegmentExchange> exchange_over(std::unique_ptr<Communicator> meeting) {
    return std::make_unique<ExchangeOver>(std::move(meeting));
}

}  // namespace lockstep::comm
