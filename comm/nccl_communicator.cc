#include "comm/nccl_communicator.h"

#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/backoff.h"
#include "comm/cuda_memory.h"
#include "comm/cuda_stream.h"

namespace lockstep::comm {

namespace {

using Clock = std::chrono::steady_clock;
/// Calls of NCCL that go out as one group.
using Calls = std::vector<std::function<ncclResult_t()>>;

std::string_view name_of(ncclResult_t code) {
    switch (code) {
        case ncclSuccess:
            return "ncclSuccess";
        case ncclUnhandledCudaError:
            return "ncclUnhandledCudaError";
        case ncclSystemError:
            return "ncclSystemError";
        case ncclInternalError:
            return "ncclInternalError";
        case ncclInvalidArgument:
            return "ncclInvalidArgument";
        case ncclInvalidUsage:
            return "ncclInvalidUsage";
        case ncclRemoteError:
            return "ncclRemoteError";
        case ncclInProgress:
            return "ncclInProgress";
        case ncclNumResults:
            break;
    }
    return "a code that this NCCL's header does not have";
}

ncclDataType_t nccl_type(DataType type) {
    switch (type) {
        case DataType::f32:
            return ncclFloat32;
        case DataType::f64:
            return ncclFloat64;
        case DataType::f16:
            return ncclFloat16;
        case DataType::bf16:
            return ncclBfloat16;
        case DataType::i32:
            return ncclInt32;
        case DataType::i64:
            return ncclInt64;
        case DataType::u8:
            return ncclUint8;
    }
    LOCKSTEP_CHECK(false, "data type ", static_cast<int>(type));
}

ncclRedOp_t nccl_op(ReduceOp op) {
    switch (op) {
        case ReduceOp::sum:
            return ncclSum;
        case ReduceOp::average:
            return ncclAvg;
        case ReduceOp::min:
            return ncclMin;
        case ReduceOp::max:
            return ncclMax;
    }
    LOCKSTEP_CHECK(false, "reduction ", static_cast<int>(op));
}

bool is_failure(ncclResult_t code) {
    return code != ncclSuccess && code != ncclInProgress;
}

void refuse_blocking() {
    const char* const blocking = std::getenv("NCCL_COMM_BLOCKING");
    if (blocking != nullptr && std::string_view(blocking) != "0") {
        throw base::UsageError(base::str("NCCL_COMM_BLOCKING=", blocking,
                                         " makes NCCL wait without a time limit; unset it (NCCL also reads "
                                         "~/.nccl.conf and /etc/nccl.conf)"));
    }
}

class NcclCommunicator final : public Communicator {
  public:
    NcclCommunicator(CommunicatorIdentity identity, std::unique_ptr<Communicator> meeting, std::int32_t device,
                     void* callers_stream)
        : Communicator(std::move(identity)),
          meeting_(std::move(meeting)),
          device_(device),
          callers_stream_(callers_stream) {
        LOCKSTEP_CHECK(meeting_->size() == size() && meeting_->rank() == rank(), "the meeting is of other ranks");
        const OperationScope scope(*this,
                                   {OperationKind::set_up, {}, DataType::u8, 0, "ncclCommInitRankConfig", 0, {}});
        const ncclUniqueId id = agreed_id();
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        config.commName = this->identity().purpose.c_str();
        or_abort([&] {
            check(ncclCommInitRankConfig(&comm_, size(), id, index_of(rank()), &config), "ncclCommInitRankConfig");
            wait_for_nccl("ncclCommInitRankConfig");
        });
    }

    ~NcclCommunicator() override {
        if (!in_operation() && std::uncaught_exceptions() == 0 && comm_ != nullptr) {
            try {
                finalize();
            } catch (const base::Error& error) {
                base::log_warning(base::str(identity().purpose, ": ", error.what()));
            }
        }
        abort();
    }

    std::shared_ptr<std::byte> allocate(std::size_t bytes, std::string_view name) override {
        try {
            return make_cuda_memory(device_, callers_stream_)->allocate(bytes);
        } catch (const CudaError& error) {
            throw base::Error(base::str(identity().purpose, ": no memory for ", name, ": ", error.what()));
        }
    }

  private:
    void do_all_reduce(const Buffer& buffer, ReduceOp op) override {
        run("ncclAllReduce", buffer, {[&] {
                return ncclAllReduce(buffer.data, buffer.data, buffer.count, nccl_type(buffer.type), nccl_op(op), comm_,
                                     stream_->get());
            }});
    }

    void do_reduce_scatter(const Buffer& buffer, std::span<const Slice> slices, ReduceOp op) override {
        if (are_even(buffer, slices)) {
            return run("ncclReduceScatter", buffer, {[&] {
                           return ncclReduceScatter(buffer.data, at(buffer, slices[self()]), slices[self()].count(),
                                                    nccl_type(buffer.type), nccl_op(op), comm_, stream_->get());
                       }});
        }
        Calls calls;
        for (std::int32_t owner = 0; owner < size(); ++owner) {
            const Slice& slice = slices[static_cast<std::size_t>(owner)];
            if (slice.count() > 0) {
                calls.emplace_back([&, owner] {
                    return ncclReduce(at(buffer, slice), at(buffer, slice), slice.count(), nccl_type(buffer.type),
                                      nccl_op(op), owner, comm_, stream_->get());
                });
            }
        }
        run("ncclReduce", buffer, calls);
    }

    void do_all_gather(const Buffer& buffer, std::span<const Slice> slices) override {
        if (are_even(buffer, slices)) {
            return run("ncclAllGather", buffer, {[&] {
                           return ncclAllGather(at(buffer, slices[self()]), buffer.data, slices[self()].count(),
                                                nccl_type(buffer.type), comm_, stream_->get());
                       }});
        }
        Calls calls;
        for (std::int32_t owner = 0; owner < size(); ++owner) {
            const Slice& slice = slices[static_cast<std::size_t>(owner)];
            if (slice.count() > 0) {
                calls.emplace_back([&, owner] {
                    return ncclBroadcast(at(buffer, slice), at(buffer, slice), slice.count(), nccl_type(buffer.type),
                                         owner, comm_, stream_->get());
                });
            }
        }
        run("ncclBroadcast", buffer, calls);
    }

    void do_broadcast(const Buffer& buffer, Rank root) override {
        run("ncclBroadcast", buffer, {[&] {
                return ncclBroadcast(buffer.data, buffer.data, buffer.count, nccl_type(buffer.type), index_of(root),
                                     comm_, stream_->get());
            }});
    }

    void do_barrier() override {
        or_abort([&] {
            stream_->follow_caller();
            wait_for_device("what was queued before the barrier");
            meeting_->barrier(operation().name);
        });
    }

    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        std::vector<std::vector<std::byte>> all;
        or_abort([&] { all = meeting_->all_gather_bytes(mine, operation().name); });
        return all;
    }

    /// Queues the calls behind the caller's work, and returns when the device has done them.
    void run(std::string_view name, const Buffer& buffer, const Calls& calls) {
        if (buffer.count == 0) {
            return;
        }
        or_abort([&] {
            stream_->follow_caller();
            check(ncclGroupStart(), "ncclGroupStart");
            ncclResult_t failure = ncclSuccess;
            for (const auto& call : calls) {
                const ncclResult_t code = call();
                failure = is_failure(failure) ? failure : code;
            }
            const ncclResult_t end = ncclGroupEnd();  // also after a failure: an open group would hold back the abort
            check(failure, name);
            check(end, base::str("ncclGroupEnd of ", name));
            wait_for_nccl(name);  // only then everything is on the stream
            wait_for_device(name);
        });
    }

    void wait_for_nccl(std::string_view name) {
        for (Backoff backoff; poll(name) == ncclInProgress; backoff.pause()) {
        }
    }

    void wait_for_device(std::string_view name) {
        stream_->mark();
        for (Backoff backoff; !stream_->has_reached_mark(); backoff.pause()) {
            poll(name);
        }
    }

    /// NCCL's state. Throws where it is a failure or the deadline has passed.
    ncclResult_t poll(std::string_view name) {
        const ncclResult_t now = state();
        check(now, name);
        if (Clock::now() > operation().deadline) {
            throw PeerError(
                base::str(describe(), ": ", name, " is not done after ",
                          base::human_duration(std::chrono::duration<double>(identity().timeout).count()),
                          "; NCCL does not say for which of ", size(),
                          " ranks it waits. Look in the stop report for the cause; where a rank is only slow, raise "
                          "the communication timeout"));
        }
        return now;
    }

    ncclResult_t state() const {
        ncclResult_t state = ncclSuccess;
        check(ncclCommGetAsyncError(comm_, &state), "ncclCommGetAsyncError");
        return state;
    }

    void check(ncclResult_t code, std::string_view call) const {
        if (!is_failure(code)) {
            return;
        }
        const char* const detail = ncclGetLastError(comm_);
        const std::string text =
            base::str(describe(), ": ", call, " failed: ", name_of(code), " (", ncclGetErrorString(code), ")",
                      detail != nullptr && *detail != '\0' ? ": " : "", detail != nullptr ? detail : "");
        if (code == ncclRemoteError) {
            throw PeerError(text);
        }
        throw base::Error(text);
    }

    /// After a failure nothing more of it may run, nor write to the caller's buffer.
    template <typename Body>
    void or_abort(Body body) {
        try {
            body();
        } catch (const CudaError& error) {
            abort();
            throw base::Error(base::str(describe(), ": ", error.what()));
        } catch (...) {
            abort();
            throw;
        }
    }

    /// All ranks come here, so that each may wait for the others' last operation.
    void finalize() {
        check(ncclCommFinalize(comm_), "ncclCommFinalize");
        const Clock::time_point deadline = Clock::now() + identity().timeout;
        for (Backoff backoff; state() == ncclInProgress; backoff.pause()) {
            if (Clock::now() > deadline) {
                throw PeerError("ncclCommFinalize is not done in time: some rank keeps its communicator");
            }
        }
        check(state(), "ncclCommFinalize");
        check(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
    }

    void abort() {
        if (comm_ != nullptr) {
            const ncclResult_t code = ncclCommAbort(comm_);
            comm_ = nullptr;  // not before: an unfinished set-up still writes to it
            if (is_failure(code)) {
                base::log_warning(base::str(identity().purpose, ": ncclCommAbort failed: ", name_of(code)));
            }
        }
    }

    /// NCCL's name for the group, made by the first rank. A rank whose device can't be used says so here, so that none
    /// waits for it.
    ncclUniqueId agreed_id() {
        ncclUniqueId id{};
        std::string failure;
        try {
            refuse_blocking();
            stream_ = std::make_unique<CudaStream>(device_, callers_stream_);
            if (rank() == Rank{0}) {
                check(ncclGetUniqueId(&id), "ncclGetUniqueId");
            }
            refuse_blocking();  // also where NCCL found it in a file of its own
        } catch (const base::Error& error) {
            failure = error.what();
        }
        const std::vector<std::string> failures = meeting_->all_gather_texts(failure, operation().name);
        for (std::size_t i = 0; i < failures.size(); ++i) {
            if (!failures[i].empty()) {
                throw base::Error(base::str(describe(), ": NCCL can't be used on ",
                                            name_of_member(Rank{static_cast<std::int32_t>(i)}), ": ", failures[i]));
            }
        }
        const std::span<char> bytes(id.internal);
        meeting_->broadcast({bytes.data(), bytes.size(), DataType::u8}, Rank{0}, operation().name);
        return id;
    }

    static void* at(const Buffer& buffer, const Slice& slice) { return part_of(buffer, slice).data; }

    /// The cut that NCCL knows itself.
    bool are_even(const Buffer& buffer, std::span<const Slice> slices) const {
        return buffer.count % slices.size() == 0 && std::ranges::equal(slices, even_slices(buffer.count, size()));
    }

    std::size_t self() const { return static_cast<std::size_t>(index_of(rank())); }

    std::unique_ptr<Communicator> meeting_;
    std::int32_t device_;
    void* callers_stream_;
    std::unique_ptr<CudaStream> stream_;
    ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(CommunicatorIdentity identity,
                                                     std::unique_ptr<Communicator> meeting, std::int32_t device,
                                                     void* callers_stream) {
    return std::make_unique<NcclCommunicator>(std::move(identity), std::move(meeting), device, callers_stream);
}

}  // namespace lockstep::comm
