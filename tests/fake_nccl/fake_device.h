#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// What a test says to the fake CUDA runtime and the fake NCCL, and asks them. Any thread may call.
namespace lockstep::fake {

/// What a call on a device does instead of what it should.
struct Fault {
    enum class Kind : std::uint8_t {
        error,        ///< returns `code`
        hang,         ///< never gets done: a set-up, or an operation on the stream. Until it is aborted
        late_error,   ///< never gets done either, and NCCL's state becomes `code`
        delay_queue,  ///< NCCL puts it on the stream only after `delay`
    };
    std::string call;  ///< "ncclAllReduce"
    int device = 0;    ///< on which it is called
    Kind kind = Kind::error;
    int code = 0;
    std::chrono::milliseconds delay{0};
};

/// From now on, instead of those before. Also forgets the calls so far.
void set_faults(std::vector<Fault> faults);

/// Names of calls, in order, of threads that had this device.
std::vector<std::string> calls_on(int device);

/// A task on a stream (a cudaStream_t), behind what is there, as a kernel would be; and on a device's default stream.
void queue_on_stream(void* stream, std::function<void()> task);
void queue_on_default_stream(int device, std::function<void()> task);

/// What a task on a stream may touch where the pointer is of device memory, which the host can't: reading or writing
/// there ends the program, as on a real device.
std::byte* seen_by_device(const void* pointer);

/// Streams, events, pieces of memory and page-locked ranges that are not given back yet; empty: none.
std::string still_there();

/// Returns what a fault says of this call, having noted it. For the two fakes.
Fault noted(const char* call, int device);
bool is_device_memory(const void* pointer);

}  // namespace lockstep::fake
