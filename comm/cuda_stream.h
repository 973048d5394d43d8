#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace lockstep::comm {

/// A call of the CUDA runtime failed.
class CudaError : public base::Error {
  public:
    using base::Error::Error;
};

/// Throws CudaError with the call's name, the code's name and CUDA's own text unless `code` is cudaSuccess.
void check_cuda(cudaError_t code, std::string_view call);

/// A stream of our own on a device, beside the caller's. By one thread at a time.
class CudaStream {
  public:
    /// `callers` is the stream (a cudaStream_t) that the caller computes on; null: the device's default stream.
    CudaStream(std::int32_t device, void* callers);

    /// Makes the device current in the calling thread, and lets what is queued from now on wait for what the caller has
    /// queued so far.
    void follow_caller();
    cudaStream_t get() const { return stream_.get(); }

    /// Marks the end of what is queued so far.
    void mark();
    /// Whether the device has come to the mark. Throws CudaError where the device has failed.
    bool has_reached_mark() const;

  private:
    struct Destroy {
        void operator()(cudaStream_t stream) const { cudaStreamDestroy(stream); }
        void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
    };
    using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy>;
    using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy>;

    static Stream make_stream();
    static Event make_event();

    std::int32_t device_;
    cudaStream_t callers_;
    Stream stream_;
    Event callers_work_;
    Event mark_;
};

}  // namespace lockstep::comm
