#include "trainer/models/channel_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "trainer/models/loop_version.h"

// Vectors are passed between functions that are always inlined, so that their calling convention doesn't matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#define LOCKSTEP_INLINE [[gnu::always_inline]] inline

namespace lockstep::trainer {

namespace {

enum class Kind { statistics, affine, activation_backward, affine_backward };

/// What one of the loops reads and writes; each kind uses a part of it.
template <typename Element>
struct Pass {
    using Compute = ComputeType<Element>;

    Kind kind;
    ChannelRows<const Element> x;
    ChannelAffine<Compute> affine{};
    ChannelRows<const Element> grad_y{};
    const Compute* mean_d = nullptr;
    const Compute* slope = nullptr;
    ChannelRows<Element> out{};
};

constexpr bool sums(Kind kind) {
    return kind == Kind::statistics || kind == Kind::activation_backward;
}

constexpr std::int64_t window = 7;  ///< of the wide depthwise convolutions

namespace any_cpu {
#define LOCKSTEP_VECTOR_BYTES 16
#include "trainer/models/channel_loops.h"
#undef LOCKSTEP_VECTOR_BYTES
}  // namespace any_cpu

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace x86_64_v3 {
#define LOCKSTEP_VECTOR_BYTES 32
#include "trainer/models/channel_loops.h"
#undef LOCKSTEP_VECTOR_BYTES
}  // namespace x86_64_v3
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
namespace x86_64_v4 {
#define LOCKSTEP_VECTOR_BYTES 64
#include "trainer/models/channel_loops.h"
#undef LOCKSTEP_VECTOR_BYTES
}  // namespace x86_64_v4
#pragma GCC pop_options
#endif

LoopVersion& version_in_use() {
    static LoopVersion version = runnable_loops().back();
    return version;
}

template <typename Element>
struct Loops {
    void (*run)(const Pass<Element>&, std::int64_t, std::int64_t, double*);
    void (*run_depthwise)(const ChannelsLastMap<Element>&, const ChannelsLastMap<Element>&, std::int64_t,
                          ComputeType<Element>*);
};

template <typename Element>
Loops<Element> loops_in_use() {
    switch (version_in_use()) {
#if defined(__x86_64__)
        case LoopVersion::x86_64_v4:
            return {x86_64_v4::run<Element>, x86_64_v4::run_depthwise<Element>};
        case LoopVersion::x86_64_v3:
            return {x86_64_v3::run<Element>, x86_64_v3::run_depthwise<Element>};
#endif
        default:
            return {any_cpu::run<Element>, any_cpu::run_depthwise<Element>};
    }
}

/// Calls for [0, count) from ATen's threads. at::parallel_for itself is only parallel where it is compiled with OpenMP,
/// which ours is not (see the design's traps); TensorIterator's loop is compiled inside LibTorch.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& call) {
    if (at::get_num_threads() == 1 || count < 2) {
        for (std::int64_t i = 0; i < count; ++i) {
            call(i);
        }
        return;
    }
    at::Tensor places = at::empty({count}, at::kByte);
    const auto* base = reinterpret_cast<const char*>(places.const_data_ptr());
    at::TensorIterator iterator = at::TensorIterator::nullary_op(places);
    iterator.for_each(
        [&](char** data, const std::int64_t* strides, std::int64_t size0, std::int64_t size1) {
            for (std::int64_t j = 0; j < size1; ++j) {
                for (std::int64_t i = 0; i < size0; ++i) {
                    call(data[0] + j * strides[1] + i * strides[0] - base);
                }
            }
        },
        /*grain_size=*/1);
}

/// Runs the pass over all rows, in chunks whose borders depend on the shape only; returns the sums of the kinds that
/// sum.
template <typename Element>
std::vector<double> run_all(const Pass<Element>& pass) {
    constexpr std::int64_t chunk_elements =
        16384;  // 64 KiB: stays in the cache while the blocks of channels pass over it
    const std::int64_t rows_per_chunk = std::clamp<std::int64_t>(chunk_elements / pass.x.channels, 16, 512);
    const std::int64_t chunks = (pass.x.rows + rows_per_chunk - 1) / rows_per_chunk;
    const std::int64_t width = sums(pass.kind) ? 2 * pass.x.channels : 0;
    std::vector<double> of_chunks(static_cast<std::size_t>(width * chunks));
    const Loops<Element> loops = loops_in_use<Element>();
    parallel_for(chunks, [&](std::int64_t chunk) {
        const std::int64_t begin = chunk * rows_per_chunk;
        loops.run(pass, begin, std::min(begin + rows_per_chunk, pass.x.rows), of_chunks.data() + chunk * width);
    });
    std::vector<double> totals(static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < of_chunks.size(); ++i) {
        totals[i % totals.size()] += of_chunks[i];
    }
    return totals;
}

}  // namespace

std::vector<LoopVersion> runnable_loops() {
    std::vector<LoopVersion> versions = {LoopVersion::any_cpu};
#if defined(__x86_64__)
    if (__builtin_cpu_supports("x86-64-v3")) {
        versions.push_back(LoopVersion::x86_64_v3);
    }
    if (__builtin_cpu_supports("x86-64-v4")) {
        versions.push_back(LoopVersion::x86_64_v4);
    }
#endif
    return versions;
}

void use_loops(LoopVersion version) {
    const std::vector<LoopVersion> runnable = runnable_loops();
    LOCKSTEP_CHECK(std::find(runnable.begin(), runnable.end(), version) != runnable.end(), "loops ",
                   static_cast<int>(version), " on this CPU");
    version_in_use() = version;
}

template <typename Element>
void channel_statistics(const ChannelRows<const Element>& x, std::span<double> mean, std::span<double> variance) {
    const std::vector<double> sums = run_all(Pass<Element>{.kind = Kind::statistics, .x = x});
    const auto rows = static_cast<double>(x.rows);
    for (std::size_t c = 0; c < mean.size(); ++c) {
        const double offset = sums[c] / rows;  // from the first row
        mean[c] = static_cast<double>(x.data[c]) + offset;
        variance[c] = std::max(sums[mean.size() + c] / rows - offset * offset, 0.0);
    }
}

template <typename Element>
void affine_activation(const ChannelRows<const Element>& x, const ChannelAffine<ComputeType<Element>>& affine,
                       const ChannelRows<Element>& y) {
    run_all(Pass<Element>{.kind = Kind::affine, .x = x, .affine = affine, .out = y});
}

template <typename Element>
void activation_backward(const ChannelRows<const Element>& x, const ChannelAffine<ComputeType<Element>>& affine,
                         const ChannelRows<const Element>& grad_y, const ChannelRows<Element>& d, std::span<double> sum,
                         std::span<double> centred_sum) {
    const std::vector<double> totals =
        run_all(Pass<Element>{.kind = Kind::activation_backward, .x = x, .affine = affine, .grad_y = grad_y, .out = d});
    std::copy_n(totals.begin(), sum.size(), sum.begin());
    std::copy_n(totals.begin() + static_cast<std::ptrdiff_t>(sum.size()), sum.size(), centred_sum.begin());
}

template <typename Element>
void affine_backward(const ChannelRows<const Element>& x, const ChannelAffine<ComputeType<Element>>& affine,
                     const ComputeType<Element>* mean_d, const ComputeType<Element>* slope,
                     const ChannelRows<Element>& d) {
    run_all(Pass<Element>{
        .kind = Kind::affine_backward, .x = x, .affine = affine, .mean_d = mean_d, .slope = slope, .out = d});
}

template <typename Element>
void depthwise7x7_weight_gradient(const ChannelsLastMap<Element>& padded, const ChannelsLastMap<Element>& grad_y,
                                  std::span<ComputeType<Element>> gradient) {
    const Loops<Element> loops = loops_in_use<Element>();
    parallel_for(window, [&](std::int64_t row) {
        loops.run_depthwise(padded, grad_y, row, gradient.data() + row * window * grad_y.channels);
    });
}

#define LOCKSTEP_INSTANTIATE(Element)                                                                                \
    template void channel_statistics(const ChannelRows<const Element>&, std::span<double>, std::span<double>);       \
    template void affine_activation(const ChannelRows<const Element>&, const ChannelAffine<ComputeType<Element>>&,   \
                                    const ChannelRows<Element>&);                                                    \
    template void activation_backward(const ChannelRows<const Element>&, const ChannelAffine<ComputeType<Element>>&, \
                                      const ChannelRows<const Element>&, const ChannelRows<Element>&,                \
                                      std::span<double>, std::span<double>);                                         \
    template void affine_backward(const ChannelRows<const Element>&, const ChannelAffine<ComputeType<Element>>&,     \
                                  const ComputeType<Element>*, const ComputeType<Element>*,                          \
                                  const ChannelRows<Element>&);                                                      \
    template void depthwise7x7_weight_gradient(const ChannelsLastMap<Element>&, const ChannelsLastMap<Element>&,     \
                                               std::span<ComputeType<Element>>);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(c10::BFloat16)

}  // namespace lockstep::trainer
