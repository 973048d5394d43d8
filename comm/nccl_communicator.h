#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"

namespace lockstep::comm {

/// NCCL over buffers in the memory of CUDA devices, one device a rank (NCCL refuses ranks that share one). Part of
/// liblockstep_cuda.so: see cuda_plugin.h.
///
/// `meeting` is a communicator of the same ranks over host memory, for this one's use alone: the unique id goes over
/// it, and later barriers and all_gather_bytes do. `device` is this rank's. `callers_stream` is the stream (a
/// cudaStream_t) on which buffers are written and read; null: the device's default stream. An operation begins when
/// what was queued there is done, and is done itself when it returns; it makes the device current in the calling
/// thread. Collective.
///
/// Everything is NCCL's own and in place, non-blocking, and polled under the operation's deadline; a communicator that
/// failed or came too late is aborted, so that nothing is written to the buffer afterwards. Beside what communicator.h
/// says:
/// - NCCL cuts evenly, without a rest. Other slices are a group of its reductions or broadcasts, one for each owner.
/// - 16-bit sums are rounded at each rank that they pass.
/// - Averages of floating-point numbers are sums of values that were divided before: within rounding of the others'.
/// - Where one operand is NaN, minimum and maximum are the other one.
/// - NCCL doesn't say for whom it waits, and doesn't notice ranks that call different operations: the deadline does,
///   and the job's stop report names them (JobWatch).
///
/// Throws base::Error on all ranks where a rank's device can't be used, or NCCL_COMM_BLOCKING would take the deadlines
/// away.
std::unique_ptr<Communicator> make_nccl_communicator(CommunicatorIdentity identity,
                                                     std::unique_ptr<Communicator> meeting, std::int32_t device,
                                                     void* callers_stream = nullptr);

}  // namespace lockstep::comm
