#include "trainer/models/model_cost.h"

#include <ATen/Functions.h>

#include "trainer/models/model_state.h"
#include "trainer/models/resnet.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {

namespace {

std::int64_t flops_of(const WeightedLayer& layer) {
    const std::vector<std::int64_t>& shape = layer.output_shape();
    if (const auto* convolution = dynamic_cast<const Conv2d*>(&layer)) {
        return 2 * shape[2] * shape[3] * convolution->weight.numel();
    }
    const auto* linear = dynamic_cast<const Linear*>(&layer);
    return linear != nullptr ? 2 * linear->weight.numel() : 0;
}

template <typename Model>
ModelCost measure(Model& model, std::int64_t image_size) {
    const at::NoGradGuard no_grad;
    model.apply([](torch::nn::Module& module) {
        if (auto* layer = dynamic_cast<WeightedLayer*>(&module)) {
            layer->forget_output_shape();
        }
    });
    model.forward(at::empty({1, 3, image_size, image_size}, at::device(at::kMeta)));

    ModelCost cost;
    model.apply([&](const std::string& name, const torch::nn::Module& module) {
        const auto* layer = dynamic_cast<const WeightedLayer*>(&module);
        if (layer != nullptr && !layer->output_shape().empty()) {
            cost.layers.push_back({name, layer->output_shape(), parameter_count(module), flops_of(*layer)});
        } else if (const auto* attention = dynamic_cast<const Attention*>(&module)) {
            cost.attention.push_back({name, {}, 0, attention->product_flops()});
        }
    });
    return cost;
}

std::int64_t sum_of_flops(const std::vector<LayerCost>& layers) {
    std::int64_t sum = 0;
    for (const LayerCost& layer : layers) {
        sum += layer.flops;
    }
    return sum;
}

}  // namespace

std::int64_t ModelCost::flops() const {
    return sum_of_flops(layers);
}

std::int64_t ModelCost::attention_flops() const {
    return sum_of_flops(attention);
}

ModelCost cost_of(Yolov10& model, std::int64_t image_size) {
    return measure(model, image_size);
}

ModelCost cost_of(ResNet& model, std::int64_t image_size) {
    return measure(model, image_size);
}

}  // namespace lockstep::trainer
