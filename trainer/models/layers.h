#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "trainer/models/channel_kernels.h"
#include "trainer/models/fused_batch_norm.h"

namespace lockstep::trainer {

/// A module from one tensor to one tensor. Feature maps are B x C x H x W and stay channels_last throughout.
class Layer : public torch::nn::Module {
  public:
    virtual at::Tensor forward(const at::Tensor& x) = 0;
};

/// Layers registered as "0", "1", ...
class LayerList : public torch::nn::Module {
  public:
    explicit LayerList(std::vector<std::shared_ptr<Layer>> layers);
    const std::shared_ptr<Layer>& operator[](std::size_t i) const { return layers_[i]; }
    auto begin() const { return layers_.begin(); }
    auto end() const { return layers_.end(); }

  private:
    std::vector<std::shared_ptr<Layer>> layers_;
};

/// Layers applied one after the other, registered as "0", "1", ...
class Sequence : public Layer {
  public:
    explicit Sequence(std::vector<std::shared_ptr<Layer>> layers);
    at::Tensor forward(const at::Tensor& x) override;
    const std::vector<std::shared_ptr<Layer>>& layers() const { return layers_; }

  private:
    std::vector<std::shared_ptr<Layer>> layers_;
};

/// A layer with weights of its own. It remembers the shape of what it last gave, for the cost report.
class WeightedLayer : public Layer {
  public:
    /// Empty before the first forward pass and after forget_output_shape().
    const std::vector<std::int64_t>& output_shape() const { return output_shape_; }
    void forget_output_shape() { output_shape_.clear(); }

  protected:
    at::Tensor remember_shape(at::Tensor output) {
        output_shape_.assign(output.sizes().begin(), output.sizes().end());
        return output;
    }

  private:
    std::vector<std::int64_t> output_shape_;
};

struct ConvolutionOptions {
    std::int64_t kernel = 1;  ///< padding is kernel / 2
    std::int64_t stride = 1;
    std::int64_t groups = 1;
};

/// Square two-dimensional convolution; its weight lies in channels_last. Values are undefined until initialised.
class Conv2d : public WeightedLayer {
  public:
    Conv2d(std::int64_t in_channels, std::int64_t out_channels, ConvolutionOptions options, bool with_bias);
    /// On the meta device only the shape is worked out.
    at::Tensor forward(const at::Tensor& x) override;

    const ConvolutionOptions& options() const { return options_; }

    /// Takes these values, which may have another kernel size (padding follows).
    void replace(const at::Tensor& new_weight, const at::Tensor& new_bias);

    at::Tensor weight;  ///< out x in / groups x kernel x kernel
    at::Tensor bias;    ///< out, or undefined

  private:
    ConvolutionOptions options_;
};

/// y = x W^T + b on B x in.
class Linear : public WeightedLayer {
  public:
    Linear(std::int64_t in_features, std::int64_t out_features);
    at::Tensor forward(const at::Tensor& x) override;

    at::Tensor weight;  ///< out x in
    at::Tensor bias;    ///< out
};

/// Which statistics a training pass normalises by. Evaluation always uses the running ones.
enum class BatchNormMode {
    local,   ///< those of this rank's micro-batch, which also move the running ones
    sync,    ///< those of all ranks' micro-batches, which also move the running ones
    frozen,  ///< the running ones, which stay; weight and bias still train
};

struct BatchNormOptions {
    double epsilon;
    double momentum;  ///< running = (1 - momentum) * running + momentum * batch
};

class BatchNorm2d : public WeightedLayer {
  public:
    BatchNorm2d(std::int64_t channels, BatchNormOptions options);
    at::Tensor forward(const at::Tensor& x) override { return forward(x, Activation::none); }
    at::Tensor forward(const at::Tensor& x, Activation activation);
    /// `sum` is for BatchNormMode::sync alone.
    void set_mode(BatchNormMode mode, SumOverRanks sum = {});

    /// Evaluation as y = scale * x + shift, per channel.
    std::pair<at::Tensor, at::Tensor> scale_and_shift() const;

    at::Tensor weight;
    at::Tensor bias;
    at::Tensor running_mean;
    at::Tensor running_var;
    at::Tensor num_batches_tracked;  ///< scalar, int64

  private:
    BatchNormOptions options_;
    BatchNormMode mode_ = BatchNormMode::local;
    SumOverRanks sum_over_ranks_;
};

/// Applies to every batch norm in the tree.
void set_batch_norm_mode(torch::nn::Module& model, BatchNormMode mode);

/// Every batch norm in the tree normalises by the statistics of all ranks' micro-batches, added by `sum`, which also
/// gets the layer's name. A rank without images then takes part with maps of no images.
void synchronise_batch_norms(
    torch::nn::Module& model,
    const std::function<void(std::span<double>, const std::string& layer, BatchNormPass)>& sum);

/// Convolution without bias, batch norm, activation: `conv`, `bn`.
class ConvBN : public Layer {
  public:
    ConvBN(std::int64_t in_channels, std::int64_t out_channels, ConvolutionOptions options = {},
           Activation activation = Activation::silu);
    at::Tensor forward(const at::Tensor& x) override;

    /// Folds the batch norm's evaluation into the convolution, for good; again: no effect.
    void fuse();
    Conv2d& convolution() { return *conv_; }

  private:
    std::shared_ptr<Conv2d> conv_;
    std::shared_ptr<BatchNorm2d> bn_;  ///< empty once fused
    Activation activation_;
};

/// In place where no graph is recorded.
at::Tensor activate(at::Tensor x, Activation activation);

/// How convolution weights are drawn; biases and Linear follow PyTorch's default in both.
enum class ConvolutionInitialisation {
    kaiming_uniform,         ///< U(-b, b), b = 1 / sqrt(fan_in): PyTorch's default (a = sqrt 5)
    kaiming_normal_fan_out,  ///< N(0, 2 / fan_out)
};

/// Draws every Conv2d and Linear of the tree from base::Random, a pure function of (seed, place in the tree, element):
/// ranks and machines agree. Batch norms are constructed at their initial values.
void initialise(torch::nn::Module& model, std::uint64_t seed, ConvolutionInitialisation convolutions);

}  // namespace lockstep::trainer
