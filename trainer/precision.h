#pragma once

#include <ATen/autocast_mode.h>

namespace lockstep::trainer {

/// bf16 autocast on the CPU for the life of the object, where asked for: weights stay FP32, convolutions and matrix
/// products run in bf16, and casts of weights are cached until the end.
class AutocastScope {
  public:
    explicit AutocastScope(bool enabled) : enabled_(enabled), earlier_(at::autocast::is_autocast_enabled(at::kCPU)) {
        if (enabled_) {
            at::autocast::set_autocast_enabled(at::kCPU, true);
            at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
            at::autocast::increment_nesting();
        }
    }
    ~AutocastScope() {
        if (enabled_) {
            if (at::autocast::decrement_nesting() == 0) {
                at::autocast::clear_cache();
            }
            at::autocast::set_autocast_enabled(at::kCPU, earlier_);
        }
    }
    AutocastScope(const AutocastScope&) = delete;
    AutocastScope& operator=(const AutocastScope&) = delete;

  private:
    bool enabled_;
    bool earlier_;
};

}  // namespace lockstep::trainer
