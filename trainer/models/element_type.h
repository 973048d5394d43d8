#pragma once

#include <ATen/core/Tensor.h>

#include "base/error.h"
#include "trainer/models/channel_kernels.h"

namespace lockstep::trainer {

/// Calls with a value of the C++ type that the channel kernels are instantiated for.
template <typename Call>
auto with_element_type(at::ScalarType type, const Call& call) {
    switch (type) {
        case at::kFloat:
            return call(float{});
        case at::kDouble:
            return call(double{});
        case at::kBFloat16:
            return call(c10::BFloat16{});
        default:
            LOCKSTEP_CHECK(false, "element type ", type);
    }
}

/// True on a CPU for FP32 and bf16 maps with FP32 weights and for FP64 maps with FP64 weights.
inline bool has_channel_kernels(const at::Tensor& x, at::ScalarType weights) {
    const at::ScalarType type = x.scalar_type();
    return x.is_cpu() && (type == at::kFloat || type == at::kDouble || type == at::kBFloat16) &&
           weights == (type == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace lockstep::trainer
