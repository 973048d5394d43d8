#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "trainer/models/detector_output.h"
#include "trainer/models/network_of_units.h"
#include "trainer/models/yolov10_blocks.h"

namespace lockstep::trainer {

enum class Yolov10Variant { n, s, m, b, l, x };

/// `model.23`: per level a box branch (`cv2`) and a class branch (`cv3`), and both again as `one2one_cv2`,
/// `one2one_cv3`.
class Yolov10Head : public torch::nn::Module {
  public:
    /// Channels of the three levels.
    Yolov10Head(const std::vector<std::int64_t>& channels, std::int64_t classes);

    DetectorOutput forward(const std::vector<at::Tensor>& features);
    /// Biases of the last convolutions, from `strides`; then the one-to-one branches become copies of the one-to-many
    /// ones.
    void initialise(const std::array<std::int64_t, 3>& strides);
    void remove_one_to_many();

  private:
    struct Branches {
        std::shared_ptr<LayerList> box, classes;  ///< a Sequence for each level; null where removed
    };
    Branches make_branches(const std::vector<std::int64_t>& channels, const std::string& box_name,
                           const std::string& class_name);
    static std::vector<at::Tensor> run(const Branches& branches, const std::vector<at::Tensor>& features);

    std::int64_t classes_;
    Branches one_to_many_, one_to_one_;
};

/// YOLOv10 in all its sizes. Parameters and buffers carry the names of the public checkpoints (`model.<i>....`).
class Yolov10 : public torch::nn::Module, public NetworkOfUnits {
  public:
    static constexpr std::array<std::int64_t, 3> strides = {8, 16, 32};

    /// Weights are undefined until initialise() or until they are loaded.
    Yolov10(Yolov10Variant variant, std::int64_t classes);

    /// The published initialisation; a pure function of the seed.
    void initialise(std::uint64_t seed);

    /// B x 3 x H x W in [0, 1], H and W multiples of 32; channels_last is fastest. The one-to-one branches get detached
    /// features, so their loss trains nothing but themselves. In evaluation, only they run.
    DetectorOutput forward(const at::Tensor& images);

    /// Each entry of the public list that has weights.
    std::vector<std::vector<std::string>> unit_prefixes() const override;

    /// Keeps the one-to-one head only.
    void remove_one_to_many();
    /// Evaluation mode, one-to-one head only, batch norms folded into convolutions and the two kernels of
    /// RepVggDepthwise into one, for good.
    void fuse_for_deployment();

    std::int64_t classes() const { return classes_; }

  private:
    at::Tensor run_layer(std::size_t number, const at::Tensor& x) const;
    std::size_t unit_of_layer(std::size_t number) const;

    std::int64_t classes_;
    std::array<std::shared_ptr<Layer>, 23> layers_;  ///< by their number; null for upsampling and concatenation
    std::shared_ptr<Yolov10Head> head_;
};

}  // namespace lockstep::trainer
