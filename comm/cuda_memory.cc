#include "comm/cuda_memory.h"

#include <algorithm>

#include "base/text.h"
#include "comm/backoff.h"
#include "comm/cuda_stream.h"

namespace lockstep::comm {

namespace {

using Clock = std::chrono::steady_clock;

class CudaMemory final : public DeviceMemory {
  public:
    CudaMemory(std::int32_t device, void* callers_stream) : stream_(device, callers_stream) {}

    std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
        stream_.follow_caller();
        const std::size_t at_least_one = std::max<std::size_t>(bytes, 1);
        void* memory = nullptr;
        check_cuda(cudaMalloc(&memory, at_least_one),
                   base::str("cudaMalloc of ", base::human_bytes(static_cast<double>(bytes))));
        std::shared_ptr<std::byte> owner(static_cast<std::byte*>(memory), [](std::byte* gone) { cudaFree(gone); });
        check_cuda(cudaMemsetAsync(memory, 0, at_least_one, stream_.get()), "cudaMemsetAsync");
        wait("cudaMemsetAsync", Clock::now() + std::chrono::minutes(1));
        return owner;
    }

    std::shared_ptr<void> pin(std::span<std::byte> host_memory) override {
        stream_.follow_caller();
        check_cuda(cudaHostRegister(host_memory.data(), host_memory.size(), cudaHostRegisterPortable),
                   base::str("cudaHostRegister of ", base::human_bytes(static_cast<double>(host_memory.size()))));
        return {host_memory.data(), [](void* pinned) { cudaHostUnregister(pinned); }};
    }

    void copy(std::byte* to, const std::byte* from, std::size_t bytes, Clock::time_point deadline) override {
        if (bytes == 0) {
            return;
        }
        stream_.follow_caller();
        // Since all memory has one address space, CUDA sees from the pointers where it lies.
        check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "cudaMemcpyAsync");
        wait("cudaMemcpyAsync", deadline);
    }

  private:
    void wait(std::string_view call, Clock::time_point deadline) {
        stream_.mark();
        Backoff backoff;
        while (!stream_.has_reached_mark()) {
            if (Clock::now() > deadline) {
                throw CudaError(base::str(call, " is not done in time: it waits for what is queued on the device"));
            }
            backoff.pause();
        }
    }

    CudaStream stream_;
};

}  // namespace

std::shared_ptr<DeviceMemory> make_cuda_memory(std::int32_t device, void* callers_stream) {
    return std::make_shared<CudaMemory>(device, callers_stream);
}

}  // namespace lockstep::comm
