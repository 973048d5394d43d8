#pragma once

#include <c10/util/BFloat16.h>

#include <cstdint>
#include <span>
#include <type_traits>

namespace lockstep::trainer {

// Loops over the cells of channels_last maps on a CPU, vectorised across channels for the machine they run on. Results
// don't depend on the number of threads.

/// A B x C x H x W map in channels_last as B*H*W rows of C channels; rows may lie apart, as in a slice of wider maps.
template <typename Element>
struct ChannelRows {
    Element* data;
    std::int64_t rows;
    std::int64_t channels;
    std::int64_t stride;  ///< elements from one row to the next
};

/// The type that a map's elements are computed in, and that its batch norm's weights have.
template <typename Element>
using ComputeType = std::conditional_t<std::is_same_v<Element, double>, double, float>;

enum class Activation { none, relu, silu };

/// A batch norm's pass as y = activation(scale * (x - mean) + bias), one number a channel each.
template <typename Compute>
struct ChannelAffine {
    const Compute* mean;
    const Compute* scale;  ///< weight / sqrt(variance + epsilon)
    const Compute* bias;
    Activation activation;
};

/// Per channel the mean and the biased variance over the rows, of which there is at least one.
template <typename Element>
void channel_statistics(const ChannelRows<const Element>& x, std::span<double> mean, std::span<double> variance);

template <typename Element>
void affine_activation(const ChannelRows<const Element>& x, const ChannelAffine<ComputeType<Element>>& affine,
                       const ChannelRows<Element>& y);

/// Writes d, the gradient before the activation; per channel the sums of d and of d * (x - mean).
template <typename Element>
void activation_backward(const ChannelRows<const Element>& x, const ChannelAffine<ComputeType<Element>>& affine,
                         const ChannelRows<const Element>& grad_y, const ChannelRows<Element>& d, std::span<double> sum,
                         std::span<double> centred_sum);

/// d becomes scale * (d - mean_d - (x - mean) * slope), per channel: the gradient of x.
template <typename Element>
void affine_backward(const ChannelRows<const Element>& x, const ChannelAffine<ComputeType<Element>>& affine,
                     const ComputeType<Element>* mean_d, const ComputeType<Element>* slope,
                     const ChannelRows<Element>& d);

/// A B x C x H x W map in channels_last, dense.
template <typename Element>
struct ChannelsLastMap {
    const Element* data;
    std::int64_t batch, height, width, channels;
};

/// The weight gradient of a depthwise 7x7 convolution of stride 1: for each of the 49 places in the window, row by row,
/// and each channel the sum over all cells of grad_y times the cell of x at that place. `padded`: x with 3 zeros on
/// each side.
template <typename Element>
void depthwise7x7_weight_gradient(const ChannelsLastMap<Element>& padded, const ChannelsLastMap<Element>& grad_y,
                                  std::span<ComputeType<Element>> gradient);

}  // namespace lockstep::trainer
