// NCCL's calls that the leaf makes, over memory that the ranks map: they may be threads or processes. As the real one,
// it is non-blocking: a call says ncclInProgress, and only later puts its work on the stream. Arithmetic as NCCL's:
// averages divide first, 16-bit sums are rounded at each rank, minimum and maximum ignore NaN.
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "comm/reduce.h"
#include "tests/fake_nccl/fake_device.h"

namespace {

using lockstep::fake::Fault;

constexpr std::size_t chunk_bytes = 64 << 10;
constexpr std::size_t most_ranks = 16;

/// Shared by the ranks of a communicator; starts as zeros.
struct Room {
    std::atomic<std::int32_t> attached, finalized;
    struct Seat {
        std::atomic<std::uint64_t> phase;
        std::atomic<std::int32_t> device;
        std::array<std::byte, chunk_bytes> data;
    };
    std::array<Seat, most_ranks> seats;
};

struct Operation {
    enum class Kind : std::uint8_t { all_reduce, reduce_scatter, all_gather, reduce, broadcast };
    const char* call;
    Kind kind;
    const void* send;
    void* receive;
    std::size_t count;
    ncclDataType_t type;
    ncclRedOp_t op;
    int root;
    cudaStream_t stream;
    Fault fault{};
};

std::size_t width_of(ncclDataType_t type) {
    switch (type) {
        case ncclUint8:
            return 1;
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclFloat32:
            return 4;
        default:
            return 8;
    }
}

}  // namespace

struct ncclComm {
    int rank = 0, size = 0, device = 0;
    std::string path;
    Room* room = nullptr;
    std::atomic<int> state{ncclInProgress};
    std::atomic<bool> is_aborted{false};
    std::atomic<int> on_stream{0};
    std::uint64_t phase = 0;
    std::thread worker;
    std::string last_error;

    ~ncclComm() {
        if (worker.joinable()) {
            worker.join();
        }
        if (room != nullptr) {
            munmap(room, sizeof(Room));
        }
    }

    /// False when it was aborted before.
    template <typename Condition>
    bool wait(Condition condition) {
        for (int i = 0; !condition(); ++i) {
            if (is_aborted) {
                return false;
            }
            if (i < 100) {
                std::this_thread::yield();
            } else {
                std::this_thread::sleep_for(std::chrono::microseconds(20));
            }
        }
        return true;
    }
    void hang() {
        wait([] { return false; });
    }

    void set_up(const Fault& fault) {
        if (fault.kind == Fault::Kind::hang) {
            hang();
            return;
        }
        const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
        void* const memory =
            file < 0 ? MAP_FAILED : mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        close(file);
        if (memory == MAP_FAILED) {
            last_error = "no room " + path;
            state = ncclSystemError;
            return;
        }
        room = static_cast<Room*>(memory);
        room->seats[static_cast<std::size_t>(rank)].device = device;
        ++room->attached;
        if (!wait([&] { return room->attached == size; })) {
            return;
        }
        std::filesystem::remove(path);
        for (int peer = 0; peer < size; ++peer) {
            if (peer != rank && room->seats[static_cast<std::size_t>(peer)].device == device) {
                last_error = "Duplicate GPU detected";
                state = ncclInvalidUsage;
                return;
            }
        }
        state = ncclSuccess;
    }

    /// All ranks have come here.
    bool pass() {
        ++phase;
        room->seats[static_cast<std::size_t>(rank)].phase = phase;
        return wait([&] {
            for (int peer = 0; peer < size; ++peer) {
                if (room->seats[static_cast<std::size_t>(peer)].phase < phase) {
                    return false;
                }
            }
            return true;
        });
    }

    /// On the stream's thread.
    void perform(const Operation& operation);
    void reduce_into(std::byte* target, std::size_t begin, std::size_t elements, const Operation& operation);
    template <typename Load, typename Store>
    void reduce_as(std::byte* target, std::size_t begin, std::size_t elements, const Operation& operation, Load load,
                   Store store);
};

void ncclComm::perform(const Operation& operation) {
    if (operation.fault.kind == Fault::Kind::hang || operation.fault.kind == Fault::Kind::late_error) {
        hang();
        return;
    }
    using Kind = Operation::Kind;
    const std::size_t width = width_of(operation.type);
    const std::byte* const send = lockstep::fake::seen_by_device(operation.send);
    std::byte* const receive = lockstep::fake::seen_by_device(operation.receive);
    const bool sends = operation.kind != Kind::broadcast || operation.root == rank;
    const std::size_t sent =
        operation.count * width * (operation.kind == Kind::reduce_scatter ? static_cast<std::size_t>(size) : 1);
    const auto seat = [&](int peer) -> std::array<std::byte, chunk_bytes>& {
        return room->seats[static_cast<std::size_t>(peer)].data;
    };
    for (std::size_t done = 0; done < sent; done += chunk_bytes) {
        const std::size_t bytes = std::min(chunk_bytes, sent - done);
        if (sends) {
            std::memcpy(seat(rank).data(), send + done, bytes);
        }
        if (!pass()) {
            return;
        }
        switch (operation.kind) {
            case Kind::all_reduce:
            case Kind::reduce:
                if (operation.kind == Kind::all_reduce || operation.root == rank) {
                    reduce_into(receive + done, 0, bytes / width, operation);
                }
                break;
            case Kind::reduce_scatter: {
                const std::size_t own = static_cast<std::size_t>(rank) * operation.count * width;
                const std::size_t begin = std::max(done, own);
                const std::size_t end = std::min(done + bytes, own + operation.count * width);
                if (begin < end) {
                    reduce_into(receive + (begin - own), (begin - done) / width, (end - begin) / width, operation);
                }
                break;
            }
            case Kind::all_gather:
                for (int peer = 0; peer < size; ++peer) {
                    std::memcpy(receive + static_cast<std::size_t>(peer) * sent + done, seat(peer).data(), bytes);
                }
                break;
            case Kind::broadcast:
                std::memcpy(receive + done, seat(operation.root).data(), bytes);
                break;
        }
        if (!pass()) {
            return;
        }
    }
}

template <typename Load, typename Store>
void ncclComm::reduce_as(std::byte* target, std::size_t begin, std::size_t elements, const Operation& operation,
                         Load load, Store store) {
    using Stored = std::invoke_result_t<Store, decltype(load({}))>;
    using Value = decltype(load(Stored{}));
    const auto value_of = [&](int peer, std::size_t i) {
        Stored stored{};
        std::memcpy(&stored, room->seats[static_cast<std::size_t>(peer)].data.data() + (begin + i) * sizeof(Stored),
                    sizeof(Stored));
        return load(stored);
    };
    const auto rounded = [&](Value value) { return load(store(value)); };
    const bool is_average = operation.op == ncclAvg;
    const auto factor = rounded(static_cast<Value>(1.0 / size));
    for (std::size_t i = 0; i < elements; ++i) {
        Value result{};
        for (int peer = 0; peer < size; ++peer) {
            Value value = value_of(peer, i);
            if constexpr (std::is_floating_point_v<Value>) {
                value = is_average ? rounded(value * factor) : value;
                result = peer == 0                 ? value
                         : operation.op == ncclMin ? std::fmin(result, value)
                         : operation.op == ncclMax ? std::fmax(result, value)
                                                   : rounded(result + value);
            } else {
                using Wrapping = std::make_unsigned_t<Value>;
                result = peer == 0                 ? value
                         : operation.op == ncclMin ? std::min(result, value)
                         : operation.op == ncclMax
                             ? std::max(result, value)
                             : static_cast<Value>(static_cast<Wrapping>(result) + static_cast<Wrapping>(value));
            }
        }
        if constexpr (!std::is_floating_point_v<Value>) {
            result = is_average ? static_cast<Value>(result / static_cast<Value>(size)) : result;
        }
        const Stored stored = store(result);
        std::memcpy(target + i * sizeof(Stored), &stored, sizeof(Stored));
    }
}

void ncclComm::reduce_into(std::byte* target, std::size_t begin, std::size_t elements, const Operation& operation) {
    using namespace lockstep::comm;
    const auto as_it_is = [&]<typename T>(T) {
        reduce_as(
            target, begin, elements, operation, [](T value) { return value; }, [](T value) { return value; });
    };
    switch (operation.type) {
        case ncclFloat32:
            return as_it_is(float{});
        case ncclFloat64:
            return as_it_is(double{});
        case ncclInt32:
            return as_it_is(std::int32_t{});
        case ncclInt64:
            return as_it_is(std::int64_t{});
        case ncclUint8:
            return as_it_is(std::uint8_t{});
        case ncclFloat16:
            return reduce_as(
                target, begin, elements, operation, [](std::uint16_t bits) { return f16_to_float(bits); },
                [](float value) { return float_to_f16(value); });
        case ncclBfloat16:
            return reduce_as(
                target, begin, elements, operation, [](std::uint16_t bits) { return bf16_to_float(bits); },
                [](float value) { return float_to_bf16(value); });
        default:
            std::abort();  // the leaf has no other type
    }
}

namespace {

/// Of the calling thread.
struct Group {
    int depth = 0;
    ncclComm* comm = nullptr;
    std::vector<Operation> operations;
};
thread_local Group group;

ncclResult_t launch() {
    ncclComm* const comm = std::exchange(group.comm, nullptr);
    std::vector<Operation> operations = std::move(group.operations);
    group.operations.clear();
    if (comm == nullptr) {
        return ncclSuccess;
    }
    if (comm->worker.joinable()) {
        comm->worker.join();
    }
    comm->state = ncclInProgress;
    comm->worker = std::thread([comm, operations = std::move(operations)] {
        int final_state = ncclSuccess;
        for (const Operation& operation : operations) {
            std::this_thread::sleep_for(operation.fault.delay);
            ++comm->on_stream;
            cudaStream_t stream = operation.stream;
            // A task of the stream's, as a kernel is.
            lockstep::fake::queue_on_stream(stream, [comm, operation] {
                comm->perform(operation);
                --comm->on_stream;
            });
            if (operation.fault.kind == Fault::Kind::late_error) {
                final_state = operation.fault.code;
                comm->last_error = "detail of the fake NCCL";
            }
        }
        comm->state = final_state;
    });
    return ncclInProgress;
}

ncclResult_t enqueue(ncclComm_t comm, Operation operation) {
    operation.fault = lockstep::fake::noted(operation.call, comm->device);
    if (operation.fault.kind == Fault::Kind::error && operation.fault.code != 0) {
        return static_cast<ncclResult_t>(operation.fault.code);
    }
    if (comm->state != ncclSuccess || !lockstep::fake::is_device_memory(operation.send) ||
        !lockstep::fake::is_device_memory(operation.receive)) {
        comm->last_error = "not ready, or no device memory";
        return ncclInvalidArgument;
    }
    group.comm = comm;
    group.operations.push_back(operation);
    return group.depth == 0 ? launch() : ncclSuccess;
}

/// The error that a test wants, or success.
ncclResult_t fault_of(const char* call, const ncclComm* comm) {
    int device = 0;
    cudaGetDevice(&device);
    const Fault fault = lockstep::fake::noted(call, comm != nullptr ? comm->device : device);
    return fault.kind == Fault::Kind::error ? static_cast<ncclResult_t>(fault.code) : ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
    if (const ncclResult_t code = fault_of("ncclGetUniqueId", nullptr); code != ncclSuccess) {
        return code;
    }
    std::string path = (std::filesystem::temp_directory_path() / "lockstep-fake-nccl-XXXXXX").string();
    const int file = mkstemp(path.data());
    if (file < 0 || ftruncate(file, sizeof(Room)) != 0 || path.size() >= sizeof(id->internal)) {
        return ncclSystemError;
    }
    close(file);
    std::memset(id->internal, 0, sizeof(id->internal));
    std::memcpy(id->internal, path.data(), path.size());
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
    int device = 0;
    cudaGetDevice(&device);
    const Fault fault = lockstep::fake::noted("ncclCommInitRankConfig", device);
    const ncclConfig_t initial = NCCL_CONFIG_INITIALIZER;
    if (config->magic != initial.magic || config->blocking != 0) {
        return ncclInvalidArgument;  // this one knows no waiting
    }
    if (fault.kind == Fault::Kind::error && fault.code != 0) {
        return static_cast<ncclResult_t>(fault.code);
    }
    auto* const made = new ncclComm;
    made->rank = rank;
    made->size = size;
    made->device = device;
    made->path = id.internal;
    *comm = made;
    made->worker = std::thread([made, fault] { made->set_up(fault); });
    return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
    if (const ncclResult_t code = fault_of("ncclCommGetAsyncError", comm); code != ncclSuccess) {
        return code;
    }
    *state = static_cast<ncclResult_t>(comm->state.load());
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    if (const ncclResult_t code = fault_of("ncclCommFinalize", comm); code != ncclSuccess) {
        return code;
    }
    if (comm->worker.joinable()) {
        comm->worker.join();
    }
    comm->state = ncclInProgress;
    comm->worker = std::thread([comm] {
        ++comm->room->finalized;
        if (comm->wait([&] { return comm->on_stream == 0 && comm->room->finalized == comm->size; })) {
            comm->state = ncclSuccess;
        }
    });
    return ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    const ncclResult_t code = fault_of("ncclCommDestroy", comm);
    delete comm;
    return code;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    const ncclResult_t code = fault_of("ncclCommAbort", comm);
    if (group.depth > 0) {
        return ncclInvalidUsage;  // an open group would put it off
    }
    comm->is_aborted = true;
    if (comm->worker.joinable()) {
        comm->worker.join();
    }
    while (comm->on_stream != 0) {
        std::this_thread::yield();
    }
    std::filesystem::remove(comm->path);
    delete comm;
    return code;
}

const char* ncclGetErrorString(ncclResult_t /*code*/) {
    return "text of the fake NCCL";
}

const char* ncclGetLastError(ncclComm_t comm) {
    return comm != nullptr ? comm->last_error.c_str() : "";
}

ncclResult_t ncclGroupStart() {
    if (const ncclResult_t code = fault_of("ncclGroupStart", nullptr); code != ncclSuccess) {
        return code;
    }
    ++group.depth;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
    --group.depth;
    if (const ncclResult_t code = fault_of("ncclGroupEnd", nullptr); code != ncclSuccess) {
        group.operations.clear();
        group.comm = nullptr;
        return code;
    }
    return group.depth == 0 ? launch() : ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
    return enqueue(comm, {"ncclAllReduce", Operation::Kind::all_reduce, send, receive, count, type, op, 0, stream});
}

ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
    return enqueue(comm,
                   {"ncclReduceScatter", Operation::Kind::reduce_scatter, send, receive, count, type, op, 0, stream});
}

ncclResult_t ncclAllGather(const void* send, void* receive, size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
    return enqueue(comm,
                   {"ncclAllGather", Operation::Kind::all_gather, send, receive, count, type, ncclSum, 0, stream});
}

ncclResult_t ncclReduce(const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
    return enqueue(comm, {"ncclReduce", Operation::Kind::reduce, send, receive, count, type, op, root, stream});
}

ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
    return enqueue(comm,
                   {"ncclBroadcast", Operation::Kind::broadcast, send, receive, count, type, ncclSum, root, stream});
}

}  // extern "C"
