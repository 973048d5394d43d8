#include "trainer/models/resnet.h"

#include <ATen/Functions.h>

#include <string>

#include "base/error.h"

namespace lockstep::trainer {

namespace {

std::shared_ptr<Conv2d> convolution(std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel,
                                    std::int64_t stride = 1) {
    return std::make_shared<Conv2d>(in_channels, out_channels, ConvolutionOptions{.kernel = kernel, .stride = stride},
                                    /*with_bias=*/false);
}

std::shared_ptr<BatchNorm2d> batch_norm(std::int64_t channels) {
    return std::make_shared<BatchNorm2d>(channels, BatchNormOptions{.epsilon = 1e-5, .momentum = 0.1});
}

/// `conv1`, `bn1`, ... with ReLU between, plus the input, through `downsample` where the shape changes.
class ResidualBlock : public Layer {
  public:
    ResidualBlock(std::int64_t in_channels, std::int64_t width, std::int64_t stride, bool bottleneck) {
        const std::int64_t out_channels = bottleneck ? 4 * width : width;
        if (bottleneck) {
            add(convolution(in_channels, width, 1), width);
            add(convolution(width, width, 3, stride), width);
            add(convolution(width, out_channels, 1), out_channels);
        } else {
            add(convolution(in_channels, width, 3, stride), width);
            add(convolution(width, width, 3), width);
        }
        if (stride != 1 || in_channels != out_channels) {
            downsample_ = register_module(
                "downsample", std::make_shared<Sequence>(std::vector<std::shared_ptr<Layer>>{
                                  convolution(in_channels, out_channels, 1, stride), batch_norm(out_channels)}));
        }
    }

    at::Tensor forward(const at::Tensor& x) override {
        at::Tensor y = x;
        for (std::size_t i = 0; i < convolutions_.size(); ++i) {
            const bool is_last = i + 1 == convolutions_.size();
            y = batch_norms_[i]->forward(convolutions_[i]->forward(y), is_last ? Activation::none : Activation::relu);
        }
        return y.add_(downsample_ ? downsample_->forward(x) : x).relu_();
    }

  private:
    void add(std::shared_ptr<Conv2d> conv, std::int64_t channels) {
        const std::string number = std::to_string(convolutions_.size() + 1);
        convolutions_.push_back(register_module("conv" + number, std::move(conv)));
        batch_norms_.push_back(register_module("bn" + number, batch_norm(channels)));
    }

    std::vector<std::shared_ptr<Conv2d>> convolutions_;
    std::vector<std::shared_ptr<BatchNorm2d>> batch_norms_;
    std::shared_ptr<Sequence> downsample_;  ///< null where the shape stays
};

}  // namespace

ResNetOptions resnet_options(std::int64_t depth, std::int64_t classes, bool small_images) {
    switch (depth) {
        case 18:
            return {{2, 2, 2, 2}, false, classes, small_images};
        case 34:
            return {{3, 4, 6, 3}, false, classes, small_images};
        case 50:
            return {{3, 4, 6, 3}, true, classes, small_images};
        case 101:
            return {{3, 4, 23, 3}, true, classes, small_images};
        default:
            LOCKSTEP_CHECK(false, "no ResNet of depth ", depth);
    }
}

ResNet::ResNet(const ResNetOptions& options) : small_images_(options.small_images) {
    conv1_ = register_module("conv1", small_images_ ? convolution(3, 64, 3) : convolution(3, 64, 7, 2));
    bn1_ = register_module("bn1", batch_norm(64));
    std::int64_t channels = 64;
    for (std::size_t stage = 0; stage < options.blocks.size(); ++stage) {
        const std::int64_t width = std::int64_t{64} << stage;
        std::vector<std::shared_ptr<Layer>> blocks;
        for (std::int64_t i = 0; i < options.blocks[stage]; ++i) {
            const std::int64_t stride = i == 0 && stage > 0 ? 2 : 1;
            blocks.push_back(std::make_shared<ResidualBlock>(channels, width, stride, options.bottleneck));
            channels = options.bottleneck ? 4 * width : width;
        }
        stages_.push_back(
            register_module("layer" + std::to_string(stage + 1), std::make_shared<Sequence>(std::move(blocks))));
    }
    fc_ = register_module("fc", std::make_shared<Linear>(channels, options.classes));
}

void ResNet::initialise(std::uint64_t seed) {
    trainer::initialise(*this, seed, ConvolutionInitialisation::kaiming_normal_fan_out);
}

at::Tensor ResNet::forward(const at::Tensor& images) {
    std::size_t unit = 0;
    at::Tensor x = run_unit(unit++, [&] {
        return bn1_->forward(conv1_->forward(images.contiguous(at::MemoryFormat::ChannelsLast)), Activation::relu);
    });
    if (!small_images_) {
        x = at::max_pool2d(x, /*kernel_size=*/3, /*stride=*/2, /*padding=*/1);
    }
    for (const auto& stage : stages_) {
        for (const auto& block : stage->layers()) {
            x = run_unit(unit++, [&] { return block->forward(x); });
        }
    }
    return run_unit(unit, [&] { return fc_->forward(x.mean({2, 3})); });
}

std::vector<std::vector<std::string>> ResNet::unit_prefixes() const {
    std::vector<std::vector<std::string>> prefixes{{"conv1.", "bn1."}};
    for (std::size_t stage = 0; stage < stages_.size(); ++stage) {
        for (std::size_t block = 0; block < stages_[stage]->layers().size(); ++block) {
            prefixes.push_back({"layer" + std::to_string(stage + 1) + "." + std::to_string(block) + "."});
        }
    }
    prefixes.push_back({"fc."});
    return prefixes;
}

}  // namespace lockstep::trainer
