#include "trainer/precision.h"

#include <ATen/core/ivalue.h>
#include <ATen/cpu/Utils.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/ones.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "base/resources.h"

namespace lockstep::trainer {
namespace {

/// Of a convolution as deep layers have them: the quickest of a few.
double seconds_of_convolution(at::ScalarType type) {
    constexpr int repetitions = 5;
    const at::NoGradGuard no_grad;
    const at::Tensor images = at::ones({8, 64, 40, 40}).to(type).to(at::MemoryFormat::ChannelsLast);
    const at::Tensor weights = at::ones({64, 64, 3, 3}).to(type).to(at::MemoryFormat::ChannelsLast);
    std::array<double, repetitions> seconds{};
    std::ranges::generate(seconds, [&] { return base::seconds_of([&] { at::conv2d(images, weights); }); });
    return *std::ranges::min_element(seconds);
}

bool processor_has(const char* unit) {
    const auto capabilities = at::cpu::get_cpu_capabilities();
    const auto found = capabilities.find(unit);
    return found != capabilities.end() && found->second.isBool() && found->second.toBool();
}

}  // namespace

void require_precision_of_processor(const Recipe& recipe) {
    if (recipe.precision != "bf16" || recipe.force_precision || processor_has("avx512_bf16") ||
        processor_has("amx_bf16")) {
        return;
    }
    const double half = seconds_of_convolution(at::kBFloat16), single = seconds_of_convolution(at::kFloat);
    throw base::UsageError(base::str("precision = \"bf16\": the processor of ", base::process_name(), " (",
                                     base::cpu_model(), ") has neither AVX512-BF16 nor AMX; a convolution takes ",
                                     base::fixed(half * 1e3, 1), " ms in bf16 and ", base::fixed(single * 1e3, 1),
                                     " ms in FP32 there. Use \"fp32\", or force it: force_precision = true"));
}

}  // namespace lockstep::trainer
