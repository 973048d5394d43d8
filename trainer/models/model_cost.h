#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep::trainer {

class Yolov10;
class ResNet;

/// One layer, or one attention, in a forward pass on one image.
struct LayerCost {
    std::string name;                        ///< of the module
    std::vector<std::int64_t> output_shape;  ///< B = 1 included
    std::int64_t parameters;                 ///< of the layer itself
    std::int64_t flops;                      ///< 2 * multiply-adds; biases, batch norm and activations don't count
};

struct ModelCost {
    std::vector<LayerCost> layers;  ///< those with weights that run, batch norms included, in the order of the modules
    std::vector<LayerCost> attention;  ///< the two products of each attention, which published tables leave out

    std::int64_t flops() const;            ///< of `layers`
    std::int64_t attention_flops() const;  ///< of `attention`
};

/// Worked out from shapes alone (meta tensors), in a moment. Counts what runs in the model's present mode: in training
/// both heads of a detector, in evaluation the one-to-one head.
ModelCost cost_of(Yolov10& model, std::int64_t image_size);
ModelCost cost_of(ResNet& model, std::int64_t image_size);

}  // namespace lockstep::trainer
