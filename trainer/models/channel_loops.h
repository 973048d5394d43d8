// The loops of channel_kernels.cc. No #pragma once: included once for each kind of CPU, inside a namespace and a
// `#pragma GCC target` of its own, with LOCKSTEP_VECTOR_BYTES as the width of that CPU's vectors. Vectors wider than
// the CPU's would be taken apart before inlining, and badly (GCC 12).

template <typename Compute>
struct VectorOf {
    static constexpr std::int64_t lanes = LOCKSTEP_VECTOR_BYTES / sizeof(Compute);
    using Type __attribute__((vector_size(LOCKSTEP_VECTOR_BYTES))) = Compute;
};
template <typename Compute>
using Vector = typename VectorOf<Compute>::Type;
using Bits __attribute__((vector_size(LOCKSTEP_VECTOR_BYTES))) = std::uint32_t;
using HalfBits __attribute__((vector_size(LOCKSTEP_VECTOR_BYTES / 2))) = std::uint16_t;

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
            return __builtin_bit_cast(Vector<float>, __builtin_convertvector(bits, Bits) << 16);
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
            const Bits wide = __builtin_bit_cast(Bits, values);
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

template <typename Element, typename Visit>
LOCKSTEP_INLINE void for_each_block(std::int64_t channels, const Visit& visit) {
    std::int64_t channel = 0;
    for (; channel + 2 * lanes<Element> <= channels; channel += 2 * lanes<Element>) {
        visit(Block<2, false>{channel, 2 * lanes<Element>});
    }
    for (; channel + lanes<Element> <= channels; channel += lanes<Element>) {
        visit(Block<1, false>{channel, lanes<Element>});
    }
    if (channel < channels) {
        visit(Block<1, true>{channel, channels - channel});
    }
}

/// 1 / (1 + e^-z), within 4 units in the last place for |z| <= 16; NaN stays NaN.
LOCKSTEP_INLINE Vector<float> sigmoid(Vector<float> z) {
    z = z < -87.0F ? Vector<float>{} - 87.0F : z;
    z = z > 87.0F ? Vector<float>{} + 87.0F : z;
    // e^-z = 2^n 2^f with -z / ln 2 = n + f. Adding 1.5 * 2^23 rounds to the integer n and leaves it in the low bits,
    // from where it is added to the exponent of 2^f = e^(f ln 2), a series: the term left out is below 1.3e-7 for |f|
    // <= 1/2.
    constexpr float per_e = -1.44269504F;
    constexpr float shift = 12582912.0F;
    const Vector<float> shifted = z * per_e + shift;
    const Vector<float> f = z * per_e - (shifted - shift);
    Vector<float> power = f * 1.54035304e-4F + 1.33335581e-3F;
    power = power * f + 9.61812911e-3F;
    power = power * f + 5.55041087e-2F;
    power = power * f + 2.40226507e-1F;
    power = power * f + 6.93147181e-1F;
    power = power * f + 1.0F;
    const auto exponential =
        __builtin_bit_cast(Vector<float>, __builtin_bit_cast(Bits, power) + (__builtin_bit_cast(Bits, shifted) << 23));
    // The reciprocal from a guess by the exponent (12 % off at most), bettered twice to the third power of its error:
    // half the time of a division.
    const Vector<float> sum = exponential + 1.0F;
    auto reciprocal = __builtin_bit_cast(Vector<float>, 0x7ef311c7 - __builtin_bit_cast(Bits, sum));
    for (int i = 0; i < 2; ++i) {
        const Vector<float> error = 1.0F - sum * reciprocal;
        reciprocal += reciprocal * (error + error * error);
    }
    return reciprocal;
}

LOCKSTEP_INLINE Vector<double> sigmoid(Vector<double> z) {
    for (std::size_t lane = 0; lane < lanes<double>; ++lane) {
        z[lane] = 1.0 / (1.0 + std::exp(-z[lane]));
    }
    return z;
}

template <typename Compute>
LOCKSTEP_INLINE Vector<Compute> activate(Vector<Compute> z, Activation activation) {
    switch (activation) {
        case Activation::none:
            return z;
        case Activation::relu:
            return z < Compute{0} ? Vector<Compute>{} : z;  // NaN stays
        case Activation::silu:
            return z * sigmoid(z);
    }
    __builtin_unreachable();
}

template <typename Compute>
LOCKSTEP_INLINE Vector<Compute> activation_slope(Vector<Compute> z, Activation activation) {
    const Vector<Compute> ones = Vector<Compute>{} + Compute{1};
    switch (activation) {
        case Activation::none:
            return ones;
        case Activation::relu:
            return z <= Compute{0} ? Vector<Compute>{} : ones;
        case Activation::silu: {
            const Vector<Compute> probability = sigmoid(z);
            return probability * (ones + z * (ones - probability));
        }
    }
    __builtin_unreachable();
}

/// Rows [begin, end). Kinds that sum add two numbers per channel to `totals`, first all of the first sort.
template <typename Element, Kind kind, Activation activation>
LOCKSTEP_INLINE void run_rows(const Pass<Element>& pass, std::int64_t begin, std::int64_t end, double* totals) {
    using Compute = ComputeType<Element>;
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
            if constexpr (kind == Kind::affine_backward) {
                mean_d[v] = block.load(pass.mean_d, v);
                slope[v] = block.load(pass.slope, v);
            }
        }
        for (std::int64_t row = begin; row < end; ++row) {
#pragma GCC unroll 2
            for (int v = 0; v < vectors; ++v) {
                const Vector<Compute> centred = block.load(pass.x.data + row * pass.x.stride, v) - mean[v];
                Element* out = pass.out.data + row * pass.out.stride;
                if constexpr (kind == Kind::statistics) {
                    first[v] += centred;
                    second[v] += centred * centred;
                } else if constexpr (kind == Kind::affine) {
                    block.store(out, v, activate<Compute>(scale[v] * centred + bias[v], activation));
                } else if constexpr (kind == Kind::activation_backward) {
                    const Vector<Compute> d = block.load(pass.grad_y.data + row * pass.grad_y.stride, v) *
                                              activation_slope<Compute>(scale[v] * centred + bias[v], activation);
                    first[v] += d;
                    second[v] += d * centred;
                    block.store(out, v, d);
                } else {
                    block.store(out, v, scale[v] * (block.load(out, v) - mean_d[v] - centred * slope[v]));
                }
            }
        }
        if constexpr (sums(kind)) {
            for (int v = 0; v < vectors; ++v) {
                block.add_to(totals, v, first[v]);
                block.add_to(totals + pass.x.channels, v, second[v]);
            }
        }
    };
    for_each_block<Element>(pass.x.channels, run_block);
}

template <typename Element, Kind kind>
LOCKSTEP_INLINE void run_activation(const Pass<Element>& pass, std::int64_t begin, std::int64_t end, double* totals) {
    switch (pass.affine.activation) {
        case Activation::none:
            return run_rows<Element, kind, Activation::none>(pass, begin, end, totals);
        case Activation::relu:
            return run_rows<Element, kind, Activation::relu>(pass, begin, end, totals);
        case Activation::silu:
            return run_rows<Element, kind, Activation::silu>(pass, begin, end, totals);
    }
}

template <typename Element>
LOCKSTEP_INLINE void run_kind(const Pass<Element>& pass, std::int64_t begin, std::int64_t end, double* totals) {
    switch (pass.kind) {
        case Kind::statistics:
            return run_rows<Element, Kind::statistics, Activation::none>(pass, begin, end, totals);
        case Kind::affine:
            return run_activation<Element, Kind::affine>(pass, begin, end, totals);
        case Kind::activation_backward:
            return run_activation<Element, Kind::activation_backward>(pass, begin, end, totals);
        case Kind::affine_backward:
            return run_rows<Element, Kind::affine_backward, Activation::none>(pass, begin, end, totals);
    }
}

/// The seven places of one row of the window.
template <typename Element>
LOCKSTEP_INLINE void depthwise_row(const ChannelsLastMap<Element>& padded, const ChannelsLastMap<Element>& grad_y,
                                   std::int64_t window_row, ComputeType<Element>* gradient) {
    using Compute = ComputeType<Element>;
    const auto run_block = [&](const auto& block) __attribute__((always_inline)) {
        constexpr int vectors = std::remove_cvref_t<decltype(block)>::vectors;
        for (int v = 0; v < vectors; ++v) {
            Vector<Compute> sums[window] = {};
            for (std::int64_t row = 0; row < grad_y.batch * grad_y.height; ++row) {
                const std::int64_t padded_row = row / grad_y.height * padded.height + row % grad_y.height + window_row;
                const Element* d_row = grad_y.data + row * grad_y.width * grad_y.channels;
                const Element* x_row = padded.data + padded_row * padded.width * padded.channels;
                for (std::int64_t column = 0; column < grad_y.width; ++column) {
                    const Vector<Compute> d = block.load(d_row + column * grad_y.channels, v);
#pragma GCC unroll 7
                    for (std::int64_t place = 0; place < window; ++place) {
                        sums[place] += d * block.load(x_row + (column + place) * padded.channels, v);
                    }
                }
            }
            for (std::int64_t place = 0; place < window; ++place) {
                block.store(gradient + place * grad_y.channels, v, sums[place]);
            }
        }
    };
    for_each_block<Element>(grad_y.channels, run_block);
}

template <typename Element>
void run(const Pass<Element>& pass, std::int64_t begin, std::int64_t end, double* totals) {
    run_kind(pass, begin, end, totals);
}

template <typename Element>
void run_depthwise(const ChannelsLastMap<Element>& padded, const ChannelsLastMap<Element>& grad_y,
                   std::int64_t window_row, ComputeType<Element>* gradient) {
    depthwise_row(padded, grad_y, window_row, gradient);
}
