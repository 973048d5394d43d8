#include "comm/cuda_stream.h"

#include "base/text.h"

namespace lockstep::comm {

void check_cuda(cudaError_t code, std::string_view call) {
    if (code == cudaSuccess) {
        return;
    }
    const bool lacks_driver = code == cudaErrorInsufficientDriver || code == cudaErrorNoDevice;
    throw CudaError(base::str(call, " failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")",
                              lacks_driver ? ". CUDA 13 needs an NVIDIA device and driver 580 or newer" : ""));
}

CudaStream::CudaStream(std::int32_t device, void* callers)
    : device_(device), callers_(static_cast<cudaStream_t>(callers)) {
    check_cuda(cudaSetDevice(device_), "cudaSetDevice");
    stream_ = make_stream();
    callers_work_ = make_event();
    mark_ = make_event();
}

void CudaStream::follow_caller() {
    check_cuda(cudaSetDevice(device_), "cudaSetDevice");
    check_cuda(cudaEventRecord(callers_work_.get(), callers_), "cudaEventRecord");
    check_cuda(cudaStreamWaitEvent(stream_.get(), callers_work_.get(), 0), "cudaStreamWaitEvent");
}

void CudaStream::mark() {
    check_cuda(cudaEventRecord(mark_.get(), stream_.get()), "cudaEventRecord");
}

bool CudaStream::has_reached_mark() const {
    const cudaError_t code = cudaEventQuery(mark_.get());
    if (code == cudaErrorNotReady) {
        // It stays as the thread's last error, which LibTorch looks at after it starts a kernel.
        static_cast<void>(cudaGetLastError());
        return false;
    }
    check_cuda(code, "cudaEventQuery");
    return true;
}

CudaStream::Stream CudaStream::make_stream() {
    cudaStream_t stream = nullptr;
    // Not blocking: it would wait for the default stream, and that for it, whatever the events say.
    check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return Stream(stream);
}

CudaStream::Event CudaStream::make_event() {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    return Event(event);
}

}  // namespace lockstep::comm
