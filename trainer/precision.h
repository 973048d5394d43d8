#pragma once

#include <ATen/autocast_mode.h>

#include "trainer/recipe.h"

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

/// Throws base::UsageError where the recipe asks for bf16, doesn't force it, and this processor has neither AVX512-BF16
/// nor AMX; the message says what a convolution takes here in bf16 and in FP32, measured now.
void require_precision_of_processor(const Recipe& recipe);

}  // namespace lockstep::trainer
