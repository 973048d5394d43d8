// The few calls of the CUDA runtime that the plugin makes, over the host's memory, with streams that really run beside
// the caller. Not a copy of CUDA: only what is promised in its documentation.
#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "tests/fake_nccl/fake_device.h"

/// Streams may still wait for it when it is destroyed.
struct EventState {
    std::mutex mutex;
    std::condition_variable reached;
    std::uint64_t recorded = 0, done = 0;
};
struct CUevent_st {
    std::shared_ptr<EventState> state = std::make_shared<EventState>();
};

struct CUstream_st {
    CUstream_st() : worker([this] { run(); }) {}
    ~CUstream_st() {
        {
            const std::lock_guard lock(mutex);
            is_closing = true;
        }
        changed.notify_all();
        worker.join();
    }

    void push(std::function<void()> task) {
        {
            const std::lock_guard lock(mutex);
            tasks.push_back(std::move(task));
        }
        changed.notify_all();
    }

    void run() {
        std::unique_lock lock(mutex);
        while (true) {
            changed.wait(lock, [&] { return !tasks.empty() || is_closing; });
            if (tasks.empty()) {
                return;
            }
            const std::function<void()> task = std::move(tasks.front());
            tasks.pop_front();
            lock.unlock();
            task();
            lock.lock();
        }
    }

    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool is_closing = false;
    std::thread worker;  // last: it uses the others
};

namespace lockstep::fake {

namespace {

/// Mapped twice: where the program sees it, it can't be touched.
struct Memory {
    std::byte* alias;
    std::size_t bytes;
};

struct State {
    std::mutex mutex;
    std::vector<Fault> faults;
    std::map<int, std::vector<std::string>> calls;
    std::map<const std::byte*, Memory> memories;
    std::map<const void*, std::size_t> pinned;
    std::map<int, std::unique_ptr<CUstream_st>> default_streams;
    int streams = 0, events = 0;
};

/// The library's own, as the real one has some: its functions have no place for it.
State& state() {
    static State* const state = new State;  // never destroyed: threads of streams may outlive main
    return *state;
}

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

int device_count() {
    const char* const text = std::getenv("FAKE_CUDA_DEVICES");
    return text != nullptr ? std::atoi(text) : 8;
}

cudaError_t remembered(cudaError_t code) {
    last_error = code != cudaSuccess ? code : last_error;
    return code;
}

/// For the first line of a call.
cudaError_t fault_of(const char* call) {
    const Fault fault = noted(call, current_device);
    return remembered(fault.kind == Fault::Kind::error ? static_cast<cudaError_t>(fault.code) : cudaSuccess);
}

CUstream_st& stream_of(cudaStream_t stream) {
    if (stream != nullptr) {
        return *stream;
    }
    const std::lock_guard lock(state().mutex);
    auto& of_device = state().default_streams[current_device];
    if (!of_device) {
        of_device = std::make_unique<CUstream_st>();
    }
    return *of_device;
}

}  // namespace

void set_faults(std::vector<Fault> faults) {
    const std::lock_guard lock(state().mutex);
    state().faults = std::move(faults);
    state().calls.clear();
}

Fault noted(const char* call, int device) {
    const std::lock_guard lock(state().mutex);
    state().calls[device].emplace_back(call);
    for (const Fault& fault : state().faults) {
        if (fault.call == call && fault.device == device) {
            return fault;
        }
    }
    return {};
}

std::vector<std::string> calls_on(int device) {
    const std::lock_guard lock(state().mutex);
    return state().calls[device];
}

void queue_on_stream(void* stream, std::function<void()> task) {
    stream_of(static_cast<cudaStream_t>(stream)).push(std::move(task));
}

void queue_on_default_stream(int device, std::function<void()> task) {
    const int before = std::exchange(current_device, device);
    stream_of(nullptr).push(std::move(task));
    current_device = before;
}

std::byte* seen_by_device(const void* pointer) {
    auto* const address = static_cast<const std::byte*>(pointer);
    const std::lock_guard lock(state().mutex);
    auto found = state().memories.upper_bound(address);
    if (found != state().memories.begin()) {
        --found;
        if (address < found->first + found->second.bytes) {
            return found->second.alias + (address - found->first);
        }
    }
    return const_cast<std::byte*>(address);
}

bool is_device_memory(const void* pointer) {
    return seen_by_device(pointer) != pointer;
}

std::string still_there() {
    const std::lock_guard lock(state().mutex);
    std::string text;
    for (const auto& [count, name] : {std::pair(static_cast<std::size_t>(state().streams), "streams"),
                                      std::pair(static_cast<std::size_t>(state().events), "events"),
                                      std::pair(state().memories.size(), "pieces of memory"),
                                      std::pair(state().pinned.size(), "page-locked ranges")}) {
        text += count > 0 ? std::to_string(count) + " " + name + " " : "";
    }
    return text;
}

}  // namespace lockstep::fake

using namespace lockstep::fake;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
    *count = device_count();
    return remembered(*count > 0 ? fault_of("cudaGetDeviceCount") : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= device_count()) {
        return remembered(cudaErrorInvalidDevice);
    }
    current_device = device;
    return fault_of("cudaSetDevice");
}

cudaError_t cudaGetDevice(int* device) {
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    std::memset(properties, 0, sizeof(*properties));
    std::memset(properties->uuid.bytes, 0xa0 + device, sizeof(properties->uuid.bytes));
    return fault_of("cudaGetDeviceProperties");
}

cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", 0x10 + device);
    return fault_of("cudaDeviceGetPCIBusId");
}

cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

const char* cudaGetErrorName(cudaError_t code) {
    switch (code) {
        case cudaErrorNoDevice:
            return "cudaErrorNoDevice";
        case cudaErrorInvalidDevice:
            return "cudaErrorInvalidDevice";
        case cudaErrorMemoryAllocation:
            return "cudaErrorMemoryAllocation";
        case cudaErrorIllegalAddress:
            return "cudaErrorIllegalAddress";
        case cudaErrorLaunchFailure:
            return "cudaErrorLaunchFailure";
        default:
            return "another error of the fake CUDA";
    }
}

const char* cudaGetErrorString(cudaError_t /*code*/) {
    return "text of the fake CUDA";
}

cudaError_t cudaGetLastError() {
    return std::exchange(last_error, cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    if (flags != cudaStreamNonBlocking) {
        return remembered(cudaErrorInvalidValue);  // the fake's default stream waits for no other one
    }
    if (const cudaError_t code = fault_of("cudaStreamCreateWithFlags"); code != cudaSuccess) {
        return code;
    }
    *stream = new CUstream_st;
    const std::lock_guard lock(state().mutex);
    ++state().streams;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream;
    const std::lock_guard lock(state().mutex);
    --state().streams;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
    if (const cudaError_t code = fault_of("cudaEventCreateWithFlags"); code != cudaSuccess) {
        return code;
    }
    *event = new CUevent_st;
    const std::lock_guard lock(state().mutex);
    ++state().events;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    const std::lock_guard lock(state().mutex);
    --state().events;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    if (const cudaError_t code = fault_of("cudaEventRecord"); code != cudaSuccess) {
        return code;
    }
    std::uint64_t version = 0;
    {
        const std::lock_guard lock(event->state->mutex);
        version = ++event->state->recorded;
    }
    stream_of(stream).push([of_event = event->state, version] {
        const std::lock_guard lock(of_event->mutex);
        of_event->done = version;
        of_event->reached.notify_all();
    });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (const cudaError_t code = fault_of("cudaEventQuery"); code != cudaSuccess) {
        return code;
    }
    const std::lock_guard lock(event->state->mutex);
    return remembered(event->state->done == event->state->recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned /*flags*/) {
    if (const cudaError_t code = fault_of("cudaStreamWaitEvent"); code != cudaSuccess) {
        return code;
    }
    std::uint64_t version = 0;
    {
        const std::lock_guard lock(event->state->mutex);
        version = event->state->recorded;
    }
    stream_of(stream).push([of_event = event->state, version] {
        std::unique_lock lock(of_event->mutex);
        of_event->reached.wait(lock, [&] { return of_event->done >= version; });
    });
    return cudaSuccess;
}

cudaError_t cudaMalloc(void** pointer, std::size_t bytes) {
    if (const cudaError_t code = fault_of("cudaMalloc"); code != cudaSuccess) {
        return code;
    }
    const std::size_t rounded = (bytes + 4095) / 4096 * 4096;
    const int file = memfd_create("device memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(rounded)) != 0) {
        return remembered(cudaErrorMemoryAllocation);
    }
    void* const seen = mmap(nullptr, rounded, PROT_NONE, MAP_SHARED, file, 0);
    void* const alias = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (seen == MAP_FAILED || alias == MAP_FAILED) {
        return remembered(cudaErrorMemoryAllocation);
    }
    std::memset(alias, 0x5a, rounded);  // nobody promises zeros
    const std::lock_guard lock(state().mutex);
    state().memories[static_cast<std::byte*>(seen)] = {static_cast<std::byte*>(alias), rounded};
    *pointer = seen;
    return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().memories.find(static_cast<std::byte*>(pointer));
    if (found == state().memories.end()) {
        return remembered(pointer == nullptr ? cudaSuccess : cudaErrorInvalidValue);
    }
    munmap(found->second.alias, found->second.bytes);
    munmap(pointer, found->second.bytes);
    state().memories.erase(found);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t bytes, cudaStream_t stream) {
    if (const cudaError_t code = fault_of("cudaMemsetAsync"); code != cudaSuccess) {
        return code;
    }
    stream_of(stream).push([=] { std::memset(seen_by_device(pointer), value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
    if (const cudaError_t code = fault_of("cudaMemcpyAsync"); code != cudaSuccess) {
        return code;
    }
    if (kind != cudaMemcpyDefault) {
        return remembered(cudaErrorInvalidValue);
    }
    stream_of(stream).push([=] { std::memcpy(seen_by_device(to), seen_by_device(from), bytes); });
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void* pointer, std::size_t bytes, unsigned /*flags*/) {
    if (const cudaError_t code = fault_of("cudaHostRegister"); code != cudaSuccess) {
        return code;
    }
    const std::lock_guard lock(state().mutex);
    return state().pinned.try_emplace(pointer, bytes).second ? cudaSuccess
                                                             : remembered(cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void* pointer) {
    const std::lock_guard lock(state().mutex);
    return state().pinned.erase(pointer) == 1 ? cudaSuccess : remembered(cudaErrorHostMemoryNotRegistered);
}

}  // extern "C"
