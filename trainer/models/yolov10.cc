#include "trainer/models/yolov10.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "trainer/models/model_state.h"

namespace lockstep::trainer {

namespace {

struct Scaling {
    double depth;
    double width;
    std::int64_t max_channels;

    std::int64_t channels(std::int64_t base) const {
        return static_cast<std::int64_t>(std::ceil(static_cast<double>(std::min(base, max_channels)) * width / 8)) * 8;
    }
    std::int64_t repeats(std::int64_t base) const {
        return std::max<std::int64_t>(std::lround(static_cast<double>(base) * depth), 1);
    }
};

Scaling scaling_of(Yolov10Variant variant) {
    switch (variant) {
        case Yolov10Variant::n:
            return {0.33, 0.25, 1024};
        case Yolov10Variant::s:
            return {0.33, 0.50, 1024};
        case Yolov10Variant::m:
            return {0.67, 0.75, 768};
        case Yolov10Variant::b:
            return {0.67, 1.00, 512};
        case Yolov10Variant::l:
            return {1.00, 1.00, 512};
        case Yolov10Variant::x:
            return {1.00, 1.25, 512};
    }
    LOCKSTEP_CHECK(false, "variant ", static_cast<int>(variant));
}

std::shared_ptr<ConvBN> downsample3x3(std::int64_t in_channels, std::int64_t out_channels) {
    return std::make_shared<ConvBN>(in_channels, out_channels, ConvolutionOptions{.kernel = 3, .stride = 2});
}

at::Tensor upsample_twice(const at::Tensor& x) {
    return at::upsample_nearest2d(x, {2 * x.size(2), 2 * x.size(3)});
}

at::Tensor concatenate(const at::Tensor& a, const at::Tensor& b) {
    return at::cat({a, b}, 1);
}

/// The published checkpoints keep the distances' bins 0, 1, ... as a convolution's weight. Decoding doesn't need it.
class DistributionBins : public torch::nn::Module {
  public:
    DistributionBins() {
        const auto conv = register_module("conv", std::make_shared<torch::nn::Module>());
        conv->register_parameter("weight", at::arange(distance_bins, at::kFloat).view({1, distance_bins, 1, 1}),
                                 /*requires_grad=*/false);
    }
};

Conv2d& last_convolution(Layer& branch) {
    auto* last = dynamic_cast<Conv2d*>(dynamic_cast<Sequence&>(branch).layers().back().get());
    LOCKSTEP_CHECK(last != nullptr);
    return *last;
}

}  // namespace

Yolov10Head::Yolov10Head(const std::vector<std::int64_t>& channels, std::int64_t classes) : classes_(classes) {
    one_to_many_ = make_branches(channels, "cv2", "cv3");
    register_module("dfl", std::make_shared<DistributionBins>());
    one_to_one_ = make_branches(channels, "one2one_cv2", "one2one_cv3");
}

Yolov10Head::Branches Yolov10Head::make_branches(const std::vector<std::int64_t>& channels, const std::string& box_name,
                                                 const std::string& class_name) {
    const std::int64_t box_width = std::max({std::int64_t{16}, channels[0] / 4, distance_channels});
    const std::int64_t class_width = std::max(channels[0], std::min(classes_, std::int64_t{100}));
    const auto conv = [](std::int64_t in_channels, std::int64_t out_channels, std::int64_t kernel,
                         std::int64_t groups = 1) {
        return std::make_shared<ConvBN>(in_channels, out_channels,
                                        ConvolutionOptions{.kernel = kernel, .groups = groups});
    };
    const auto separable = [&](std::int64_t in_channels, std::int64_t out_channels) {
        return std::make_shared<Sequence>(std::vector<std::shared_ptr<Layer>>{
            conv(in_channels, in_channels, 3, in_channels), conv(in_channels, out_channels, 1)});
    };
    const auto last = [](std::int64_t in_channels, std::int64_t out_channels) {
        return std::make_shared<Conv2d>(in_channels, out_channels, ConvolutionOptions{}, /*with_bias=*/true);
    };
    std::vector<std::shared_ptr<Layer>> box, classes;
    for (const std::int64_t width : channels) {
        box.push_back(std::make_shared<Sequence>(std::vector<std::shared_ptr<Layer>>{
            conv(width, box_width, 3), conv(box_width, box_width, 3), last(box_width, distance_channels)}));
        classes.push_back(std::make_shared<Sequence>(std::vector<std::shared_ptr<Layer>>{
            separable(width, class_width), separable(class_width, class_width), last(class_width, classes_)}));
    }
    return {register_module(box_name, std::make_shared<LayerList>(std::move(box))),
            register_module(class_name, std::make_shared<LayerList>(std::move(classes)))};
}

std::vector<at::Tensor> Yolov10Head::run(const Branches& branches, const std::vector<at::Tensor>& features) {
    std::vector<at::Tensor> maps;
    for (std::size_t level = 0; level < features.size(); ++level) {
        maps.push_back(concatenate((*branches.box)[level]->forward(features[level]),
                                   (*branches.classes)[level]->forward(features[level])));
    }
    return maps;
}

DetectorOutput Yolov10Head::forward(const std::vector<at::Tensor>& features) {
    DetectorOutput output;
    if (is_training() && one_to_many_.box) {
        output.one_to_many = run(one_to_many_, features);
    }
    std::vector<at::Tensor> detached;
    for (const at::Tensor& feature : features) {
        detached.push_back(feature.detach());
    }
    output.one_to_one = run(one_to_one_, detached);
    return output;
}

void Yolov10Head::initialise(const std::array<std::int64_t, 3>& strides) {
    const at::NoGradGuard no_grad;
    for (std::size_t level = 0; level < strides.size(); ++level) {
        const double cells = std::pow(640.0 / static_cast<double>(strides[level]), 2);
        last_convolution(*(*one_to_many_.box)[level]).bias.fill_(1.0);
        last_convolution(*(*one_to_many_.classes)[level])
            .bias.fill_(std::log(5.0 / static_cast<double>(classes_) / cells));
    }
    copy_state(*one_to_many_.box, *one_to_one_.box);
    copy_state(*one_to_many_.classes, *one_to_one_.classes);
}

void Yolov10Head::remove_one_to_many() {
    if (one_to_many_.box) {
        unregister_module("cv2");
        unregister_module("cv3");
        one_to_many_ = {};
    }
}

Yolov10::Yolov10(Yolov10Variant variant, std::int64_t classes) : classes_(classes) {
    using enum Yolov10Variant;
    const Scaling scaling = scaling_of(variant);
    const std::int64_t c1 = scaling.channels(64), c2 = scaling.channels(128), c3 = scaling.channels(256),
                       c4 = scaling.channels(512), c5 = scaling.channels(1024);
    const std::int64_t three = scaling.repeats(3), six = scaling.repeats(6);
    const bool is_small = variant == n || variant == s;
    const bool is_large = variant == b || variant == l || variant == x;

    const auto model = register_module("model", std::make_shared<torch::nn::Module>());
    const auto add = [&](std::size_t index, std::shared_ptr<Layer> layer) {
        layers_.at(index) = model->register_module(std::to_string(index), std::move(layer));
    };
    const auto c2f = [](std::int64_t in_channels, std::int64_t out_channels, std::int64_t repeats, InnerBlock inner,
                        bool shortcut) {
        return std::make_shared<C2f>(in_channels, out_channels, repeats, inner, shortcut);
    };
    const InnerBlock inverted_8 = variant == s ? InnerBlock::inverted_large_kernel : InnerBlock::inverted;
    const InnerBlock inverted_22 = is_small ? InnerBlock::inverted_large_kernel : InnerBlock::inverted;

    add(0, downsample3x3(3, c1));
    add(1, downsample3x3(c1, c2));
    add(2, c2f(c2, c2, three, InnerBlock::bottleneck, true));
    add(3, downsample3x3(c2, c3));
    add(4, c2f(c3, c3, six, InnerBlock::bottleneck, true));
    add(5, std::make_shared<SCDown>(c3, c4));
    add(6, c2f(c4, c4, six, variant == x ? InnerBlock::inverted : InnerBlock::bottleneck, true));
    add(7, std::make_shared<SCDown>(c4, c5));
    add(8, c2f(c5, c5, three, variant == n ? InnerBlock::bottleneck : inverted_8, true));
    add(9, std::make_shared<SPPF>(c5));
    add(10, std::make_shared<PSA>(c5));
    add(13, c2f(c5 + c4, c4, three, is_large ? InnerBlock::inverted : InnerBlock::bottleneck, is_large));
    add(16, c2f(c4 + c3, c3, three, InnerBlock::bottleneck, false));
    add(17, downsample3x3(c3, c3));
    add(19, c2f(c3 + c4, c4, three, is_small ? InnerBlock::bottleneck : InnerBlock::inverted, !is_small));
    add(20, std::make_shared<SCDown>(c4, c4));
    add(22, c2f(c4 + c5, c5, three, inverted_22, true));
    head_ = model->register_module("23", std::make_shared<Yolov10Head>(std::vector<std::int64_t>{c3, c4, c5}, classes));
}

void Yolov10::initialise(std::uint64_t seed) {
    trainer::initialise(*this, seed, ConvolutionInitialisation::kaiming_uniform);
    head_->initialise(strides);
}

DetectorOutput Yolov10::forward(const at::Tensor& images) {
    LOCKSTEP_CHECK(images.dim() == 4 && images.size(2) % strides.back() == 0 && images.size(3) % strides.back() == 0,
                   "images of ", images.size(-2), "x", images.size(-1));
    at::Tensor x = images.contiguous(at::MemoryFormat::ChannelsLast);
    const auto run = [&](std::size_t first, std::size_t last) {
        for (std::size_t i = first; i <= last; ++i) {
            x = run_layer(i, x);
        }
        return x;
    };
    const at::Tensor backbone3 = run(0, 4);
    const at::Tensor backbone4 = run(5, 6);
    const at::Tensor backbone5 = run(7, 10);
    const at::Tensor neck4 = run_layer(13, concatenate(upsample_twice(backbone5), backbone4));
    const at::Tensor neck3 = run_layer(16, concatenate(upsample_twice(neck4), backbone3));
    const at::Tensor out4 = run_layer(19, concatenate(run_layer(17, neck3), neck4));
    const at::Tensor out5 = run_layer(22, concatenate(run_layer(20, out4), backbone5));
    const std::size_t head_unit = unit_of_layer(layers_.size());
    hooks_.before_forward(head_unit);
    DetectorOutput output = head_->forward({neck3, out4, out5});
    hooks_.after_forward(head_unit, {});  // the last one: what follows is its backward pass
    return output;
}

at::Tensor Yolov10::run_layer(std::size_t number, const at::Tensor& x) const {
    return run_unit(unit_of_layer(number), [&] { return layers_[number]->forward(x); });
}

std::size_t Yolov10::unit_of_layer(std::size_t number) const {
    return static_cast<std::size_t>(std::count_if(layers_.begin(),
                                                  layers_.begin() + static_cast<std::ptrdiff_t>(number),
                                                  [](const auto& layer) { return layer != nullptr; }));
}

std::vector<std::vector<std::string>> Yolov10::unit_prefixes() const {
    std::vector<std::vector<std::string>> prefixes;
    for (std::size_t number = 0; number <= layers_.size(); ++number) {
        if (number == layers_.size() || layers_[number]) {
            prefixes.push_back({"model." + std::to_string(number) + "."});
        }
    }
    return prefixes;
}

void Yolov10::remove_one_to_many() {
    head_->remove_one_to_many();
}

void Yolov10::fuse_for_deployment() {
    eval();
    remove_one_to_many();
    apply([](torch::nn::Module& module) {
        if (auto* depthwise = dynamic_cast<RepVggDepthwise*>(&module)) {
            depthwise->fuse();
        } else if (auto* conv = dynamic_cast<ConvBN*>(&module)) {
            conv->fuse();
        }
    });
}

}  // namespace lockstep::trainer
