#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::trainer {

/// What is called around each unit of a network; see comm::GatheredParameters.
struct UnitHooks {
    std::function<void(std::size_t unit)> before_forward = [](std::size_t) {};
    std::function<void(std::size_t unit, std::span<const at::Tensor> outputs)> after_forward =
        [](std::size_t, std::span<const at::Tensor>) {};
};

/// A network whose parameters belong to units, which its forward pass runs in order, once each.
class NetworkOfUnits {
  public:
    virtual ~NetworkOfUnits() = default;
    /// By unit: what the names of its parameters begin with.
    virtual std::vector<std::vector<std::string>> unit_prefixes() const = 0;
    void set_unit_hooks(UnitHooks hooks) { hooks_ = std::move(hooks); }

  protected:
    /// Runs a unit that gives one tensor.
    template <typename Forward>
    at::Tensor run_unit(std::size_t unit, Forward forward) const {
        hooks_.before_forward(unit);
        at::Tensor output = forward();
        hooks_.after_forward(unit, std::span(&output, 1));
        return output;
    }

    UnitHooks hooks_;
};

}  // namespace lockstep::trainer
