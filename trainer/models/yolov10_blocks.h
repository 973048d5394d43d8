#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/models/layers.h"

namespace lockstep::trainer {

// The blocks of YOLOv10 (Wang et al., "YOLOv10: Real-Time End-to-End Object Detection", NeurIPS 2024), each under the
// names of the public checkpoints.

/// Two 3x3 ConvBN of equal width, with or without the input added: `cv1`, `cv2`.
class Bottleneck : public Layer {
  public:
    Bottleneck(std::int64_t channels, bool shortcut);
    at::Tensor forward(const at::Tensor& x) override;

  private:
    std::shared_ptr<ConvBN> cv1_, cv2_;
    bool shortcut_;
};

/// SiLU of the sum of a depthwise 7x7 (`conv`) and a depthwise 3x3 (`conv1`) ConvBN.
class RepVggDepthwise : public Layer {
  public:
    explicit RepVggDepthwise(std::int64_t channels);
    at::Tensor forward(const at::Tensor& x) override;
    /// Makes one depthwise 7x7 convolution with bias of the two, for good; again: no effect.
    void fuse();

  private:
    std::shared_ptr<ConvBN> conv_;
    std::shared_ptr<ConvBN> conv1_;  ///< empty once fused
};

/// Compact inverted block: depthwise, pointwise to twice the width, depthwise (3x3 or RepVggDepthwise), pointwise back,
/// depthwise: `cv1` with "0" to "4".
class CompactInvertedBlock : public Layer {
  public:
    CompactInvertedBlock(std::int64_t channels, bool shortcut, bool large_kernel);
    at::Tensor forward(const at::Tensor& x) override;

  private:
    std::shared_ptr<Sequence> cv1_;
    bool shortcut_;
};

enum class InnerBlock { bottleneck, inverted, inverted_large_kernel };

/// Half of `cv1`'s channels go through a chain of blocks `m`; `cv2` mixes both halves and every block's output.
class C2f : public Layer {
  public:
    C2f(std::int64_t in_channels, std::int64_t out_channels, std::int64_t repeats, InnerBlock inner, bool shortcut);
    at::Tensor forward(const at::Tensor& x) override;

  private:
    std::shared_ptr<ConvBN> cv1_;
    std::shared_ptr<LayerList> m_;
    std::shared_ptr<ConvBN> cv2_;
};

/// Halves the size: pointwise `cv1`, then depthwise 3x3 of stride 2 without activation, `cv2`.
class SCDown : public Layer {
  public:
    SCDown(std::int64_t in_channels, std::int64_t out_channels);
    at::Tensor forward(const at::Tensor& x) override;

  private:
    std::shared_ptr<ConvBN> cv1_, cv2_;
};

/// Spatial pyramid pooling by three 5x5 max pools in a row, between `cv1` and `cv2`.
class SPPF : public Layer {
  public:
    explicit SPPF(std::int64_t channels);
    at::Tensor forward(const at::Tensor& x) override;

  private:
    std::shared_ptr<ConvBN> cv1_, cv2_;
};

/// Multi-head self-attention over the cells of a map, with a depthwise 3x3 of the values as position: `qkv`, `pe`,
/// `proj`.
class Attention : public Layer {
  public:
    explicit Attention(std::int64_t channels);
    at::Tensor forward(const at::Tensor& x) override;
    /// 2 * multiply-adds of the two products of the last forward pass, over the batch.
    std::int64_t product_flops() const { return product_flops_; }

  private:
    std::int64_t heads_, key_dim_, value_dim_;
    std::int64_t product_flops_ = 0;
    std::shared_ptr<ConvBN> qkv_, pe_, proj_;
};

/// Partial self-attention: half of `cv1`'s channels pass attention `attn` and a feed-forward pair `ffn`, each residual,
/// before `cv2`.
class PSA : public Layer {
  public:
    explicit PSA(std::int64_t channels);
    at::Tensor forward(const at::Tensor& x) override;

  private:
    std::shared_ptr<ConvBN> cv1_;
    std::shared_ptr<Attention> attn_;
    std::shared_ptr<Sequence> ffn_;
    std::shared_ptr<ConvBN> cv2_;
};

}  // namespace lockstep::trainer
