#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/models/layers.h"
#include "trainer/models/network_of_units.h"

namespace lockstep::trainer {

struct ResNetOptions {
    std::array<std::int64_t, 4> blocks;  ///< per stage
    bool bottleneck;                     ///< three convolutions a block, the last to 4 times the width; else two
    std::int64_t classes = 1000;
    bool small_images = false;  ///< 3x3 stem of stride 1 without max pool, for images of some 32 pixels
};

/// Depth 18, 34, 50 or 101.
ResNetOptions resnet_options(std::int64_t depth, std::int64_t classes, bool small_images = false);

/// ResNet (He et al., "Deep Residual Learning for Image Recognition", CVPR 2016) in its v1.5 form: a bottleneck's
/// stride lies on the 3x3 convolution. Parameters and buffers carry torchvision's names.
class ResNet : public Layer, public NetworkOfUnits {
  public:
    /// Weights are undefined until initialise() or until they are loaded.
    explicit ResNet(const ResNetOptions& options);

    /// He initialisation (fan out) of the convolutions; a pure function of the seed.
    void initialise(std::uint64_t seed);

    /// B x 3 x H x W to logits, B x classes.
    at::Tensor forward(const at::Tensor& images) override;

    /// The stem, each block, and the last layer.
    std::vector<std::vector<std::string>> unit_prefixes() const override;

  private:
    std::shared_ptr<Conv2d> conv1_;
    std::shared_ptr<BatchNorm2d> bn1_;
    bool small_images_;
    std::vector<std::shared_ptr<Sequence>> stages_;
    std::shared_ptr<Linear> fc_;
};

}  // namespace lockstep::trainer
