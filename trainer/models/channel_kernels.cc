#include "trainer/models/channel_kernels.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

// Vectors are passed between functions that are always inlined, so that their calling convention doesn't matter.
#pragma GCC diagnostic ignored "-Wpsabi"

#if defined(__x86_64__)
#define LOCKSTEP_FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define LOCKSTEP_FOR_EACH_CPU
#endif
#define LOCKSTEP_INLINE [[gnu::always_inline]] inline

namespace lockstep::trainer {

namespace {

template <typename Compute>
struct VectorOf {
    static constexpr std::int64_t lanes = 64 / sizeof(Compute);
    typedef Compute Type __attribute__((vector_size(64)));
};
template <typename Compute>
using Vector = typename VectorOf<Compute>::Type;
typedef std::uint32_t Bits __attribute__((vector_size(64)));
typedef std::uint16_t HalfBits __attribute__((vector_size(32)));

template <typename Element>
constexpr std::int64_t lanes = VectorOf<ComputeType<Element>>::lanes;

/// Consecutive channels that a loop keeps in registers: whole vectors, or `count` channels of one.
template <int vectors_, bool partial>
struct Block {
    static constexpr int vectors = vectors_;
    std::int64_t channel;
    std::int64_t count;

    template <typename Element>
    LOCKSTEP_INLINE Vector<ComputeType<Element>> load(const Element* row, int v) const {
        const Element* from = row + channel + v * lanes<Element>;
        if constexpr (std::is_same_v<Element, c10::BFloat16>) {
            HalfBits bits{};
            std::memcpy(&bits, from, partial ? static_cast<std::size_t>(count) * sizeof(Element) : sizeof(bits));
            return std::bit_cast<Vector<float>>(__builtin_convertvector(bits, Bits) << 16);
        } else {
            Vector<Element> values{};
            std::memcpy(&values, from, partial ? static_cast<std::size_t>(count) * sizeof(Element) : sizeof(values));
            return values;
        }
    }

    template <typename Element>
    LOCKSTEP_INLINE void store(Element* row, int v, Vector<ComputeType<Element>> values) const {
        Element* to = row + channel + v * lanes<Element>;
        if constexpr (std::is_same_v<Element, c10::BFloat16>) {
            const Bits wide = std::bit_cast<Bits>(values);
            const Bits nearest_even = (wide + 0x7fff + (wide >> 16 & 1)) >> 16;
            const HalfBits bits = __builtin_convertvector(values == values ? nearest_even : Bits{} + 0x7fc0, HalfBits);
            std::memcpy(to, &bits, partial ? static_cast<std::size_t>(count) * sizeof(Element) : sizeof(bits));
        } else {
            std::memcpy(to, &values, partial ? static_cast<std::size_t>(count) * sizeof(Element) : sizeof(values));
        }
    }

    template <typename Values>
    LOCKSTEP_INLINE void add_to(double* sums, int v, Values values) const {
        constexpr std::int64_t width = sizeof(values) / sizeof(values[0]);
        for (std::int64_t lane = 0; lane < (partial ? count : width); ++lane) {
            sums[channel + v * width + lane] += static_cast<double>(values[lane]);
        }
    }
};

/// Within 2 units in the last place; ends are kept finite, and NaN stays NaN.
LOCKSTEP_INLINE Vector<float> exponential(Vector<float> x) {
    x = x < -87.0F ? Vector<float>{} - 87.0F : x;
    x = x > 87.0F ? Vector<float>{} + 87.0F : x;
    // x = n ln 2 + r. Adding 1.5 * 2^23 rounds to the integer n and leaves it in the low bits, from where it is added
    // to the exponent of e^r, which is its series: the term left out is below 1e-8 for |r| <= ln 2 / 2.
    constexpr float shift = 12582912.0F;
    const Vector<float> shifted = x * 1.44269504F + shift;
    const Vector<float> n = shifted - shift;
    const Vector<float> r =
        (x - n * 0.693359375F) + n * 2.12194440e-4F;  // ln 2 in two parts, the first short enough to be exact
    Vector<float> series = r * (1.0F / 5040) + 1.0F / 720;
    series = series * r + 1.0F / 120;
    series = series * r + 1.0F / 24;
    series = series * r + 1.0F / 6;
    series = series * r + 0.5F;
    series = series * r + 1.0F;
    series = series * r + 1.0F;
    return std::bit_cast<Vector<float>>(std::bit_cast<Bits>(series) + (std::bit_cast<Bits>(shifted) << 23));
}

LOCKSTEP_INLINE Vector<double> exponential(Vector<double> x) {
    for (std::size_t lane = 0; lane < lanes<double>; ++lane) {
        x[lane] = std::exp(x[lane]);
    }
    return x;
}

enum class Kind { statistics, affine, sums, backward };

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

/// Rows [begin, end). Kinds that sum add two numbers per channel to `sums`, first all of the first sort.
template <typename Element, Kind kind>
LOCKSTEP_INLINE void run_rows(const Pass<Element>& pass, std::int64_t begin, std::int64_t end, double* sums) {
    using Compute = ComputeType<Element>;
    constexpr bool is_sum = kind == Kind::statistics || kind == Kind::sums;
    const auto run_block = [&](const auto& block) __attribute__((always_inline)) {
        constexpr int vectors = std::remove_cvref_t<decltype(block)>::vectors;
        Vector<Compute> mean[vectors], scale[vectors], bias[vectors], mean_d[vectors], slope[vectors];
        Vector<Compute> first[vectors] = {}, second[vectors] = {};
        for (int v = 0; v < vectors; ++v) {
            if constexpr (kind == Kind::statistics) {
                mean[v] =
                    block.load(pass.x.data, v);  // the first row: near enough to the mean to keep the squares exact
            } else {
                mean[v] = block.load(pass.affine.mean, v);
                scale[v] = block.load(pass.affine.scale, v);
                bias[v] = block.load(pass.affine.bias, v);
            }
            if constexpr (kind == Kind::backward) {
                mean_d[v] = block.load(pass.mean_d, v);
                slope[v] = block.load(pass.slope, v);
            }
        }
        for (std::int64_t row = begin; row < end; ++row) {
            for (int v = 0; v < vectors; ++v) {
                const Vector<Compute> centred = block.load(pass.x.data + row * pass.x.stride, v) - mean[v];
                if constexpr (kind == Kind::statistics) {
                    first[v] += centred;
                    second[v] += centred * centred;
                } else if constexpr (kind == Kind::affine) {
                    const Vector<Compute> z = scale[v] * centred + bias[v];
                    const Vector<Compute> y = pass.affine.silu ? z / (Compute{1} + exponential(-z)) : z;
                    block.store(pass.out.data + row * pass.out.stride, v, y);
                } else {
                    Vector<Compute> d = block.load(pass.grad_y.data + row * pass.grad_y.stride, v);
                    if (pass.affine.silu) {
                        const Vector<Compute> z = scale[v] * centred + bias[v];
                        const Vector<Compute> sigmoid = Compute{1} / (Compute{1} + exponential(-z));
                        d *= sigmoid * (Compute{1} + z * (Compute{1} - sigmoid));
                    }
                    if constexpr (kind == Kind::sums) {
                        first[v] += d;
                        second[v] += d * centred;
                    } else {
                        block.store(pass.out.data + row * pass.out.stride, v,
                                    scale[v] * (d - mean_d[v] - centred * slope[v]));
                    }
                }
            }
        }
        if constexpr (is_sum) {
            for (int v = 0; v < vectors; ++v) {
                block.add_to(sums, v, first[v]);
                block.add_to(sums + pass.x.channels, v, second[v]);
            }
        }
    };
    std::int64_t channel = 0;
    for (; channel + 4 * lanes<Element> <= pass.x.channels; channel += 4 * lanes<Element>) {
        run_block(Block<4, false>{channel, 4 * lanes<Element>});
    }
    for (; channel + lanes<Element> <= pass.x.channels; channel += lanes<Element>) {
        run_block(Block<1, false>{channel, lanes<Element>});
    }
    if (channel < pass.x.channels) {
        run_block(Block<1, true>{channel, pass.x.channels - channel});
    }
}

template <typename Element>
LOCKSTEP_INLINE void run_kind(const Pass<Element>& pass, std::int64_t begin, std::int64_t end, double* sums) {
    switch (pass.kind) {
        case Kind::statistics:
            return run_rows<Element, Kind::statistics>(pass, begin, end, sums);
        case Kind::affine:
            return run_rows<Element, Kind::affine>(pass, begin, end, sums);
        case Kind::sums:
            return run_rows<Element, Kind::sums>(pass, begin, end, sums);
        case Kind::backward:
            return run_rows<Element, Kind::backward>(pass, begin, end, sums);
    }
}

// Templates can't have versions for several CPUs.
LOCKSTEP_FOR_EACH_CPU void run(const Pass<float>& pass, std::int64_t begin, std::int64_t end, double* sums) {
    run_kind(pass, begin, end, sums);
}
LOCKSTEP_FOR_EACH_CPU void run(const Pass<double>& pass, std::int64_t begin, std::int64_t end, double* sums) {
    run_kind(pass, begin, end, sums);
}
LOCKSTEP_FOR_EACH_CPU void run(const Pass<c10::BFloat16>& pass, std::int64_t begin, std::int64_t end, double* sums) {
    run_kind(pass, begin, end, sums);
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
    auto iterator = at::TensorIteratorConfig().add_output(places).build();
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
    const bool is_sum = pass.kind == Kind::statistics || pass.kind == Kind::sums;
    const std::int64_t width = is_sum ? 2 * pass.x.channels : 0;
    std::vector<double> of_chunks(static_cast<std::size_t>(width * chunks));
    parallel_for(chunks, [&](std::int64_t chunk) {
        const std::int64_t begin = chunk * rows_per_chunk;
        run(pass, begin, std::min(begin + rows_per_chunk, pass.x.rows), of_chunks.data() + chunk * width);
    });
    std::vector<double> sums(static_cast<std::size_t>(width));
    for (std::size_t i = 0; i < of_chunks.size(); ++i) {
        sums[i % sums.size()] += of_chunks[i];
    }
    return sums;
}

}  // namespace

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
void affine_activation_sums(const ChannelRows<const Element>& x, const ChannelAffine<ComputeType<Element>>& affine,
                            const ChannelRows<const Element>& grad_y, std::span<double> sum,
                            std::span<double> centred_sum) {
    const std::vector<double> sums =
        run_all(Pass<Element>{.kind = Kind::sums, .x = x, .affine = affine, .grad_y = grad_y});
    std::copy_n(sums.begin(), sum.size(), sum.begin());
    std::copy_n(sums.begin() + static_cast<std::ptrdiff_t>(sum.size()), sum.size(), centred_sum.begin());
}

template <typename Element>
void affine_activation_backward(const ChannelRows<const Element>& x, const ChannelAffine<ComputeType<Element>>& affine,
                                const ChannelRows<const Element>& grad_y, const ComputeType<Element>* mean_d,
                                const ComputeType<Element>* slope, const ChannelRows<Element>& grad_x) {
    run_all(Pass<Element>{.kind = Kind::backward,
                          .x = x,
                          .affine = affine,
                          .grad_y = grad_y,
                          .mean_d = mean_d,
                          .slope = slope,
                          .out = grad_x});
}

#define LOCKSTEP_INSTANTIATE(Element)                                                                              \
    template void channel_statistics(const ChannelRows<const Element>&, std::span<double>, std::span<double>);     \
    template void affine_activation(const ChannelRows<const Element>&, const ChannelAffine<ComputeType<Element>>&, \
                                    const ChannelRows<Element>&);                                                  \
    template void affine_activation_sums(const ChannelRows<const Element>&,                                        \
                                         const ChannelAffine<ComputeType<Element>>&,                               \
                                         const ChannelRows<const Element>&, std::span<double>, std::span<double>); \
    template void affine_activation_backward(const ChannelRows<const Element>&,                                    \
                                             const ChannelAffine<ComputeType<Element>>&,                           \
                                             const ChannelRows<const Element>&, const ComputeType<Element>*,       \
                                             const ComputeType<Element>*, const ChannelRows<Element>&);
LOCKSTEP_INSTANTIATE(float)
LOCKSTEP_INSTANTIATE(double)
LOCKSTEP_INSTANTIATE(c10::BFloat16)

}  // namespace lockstep::trainer
