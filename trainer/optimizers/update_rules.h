#pragma once

#include <memory>

#include "comm/update_rule.h"
#include "trainer/recipe.h"

namespace lockstep::trainer {

/// Stochastic gradient descent with Nesterov momentum, and weight decay added to the gradient:
/// g = factor * gradient + decay * p;  b = m * b + g;  p -= rate * (g + m * b)  (Sutskever et al. 2013, in PyTorch's
/// form).
class SgdRule final : public comm::UpdateRule {
  public:
    std::vector<std::string> state_names() const override { return {"momentum"}; }
    void update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const override;
    void update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const override;
};

/// AdamW (Loshchilov and Hutter 2019, algorithm 2), decay decoupled from the gradient and scaled by the rate.
class AdamWRule final : public comm::UpdateRule {
  public:
    explicit AdamWRule(double beta2, double epsilon = 1e-8) : beta2_(beta2), epsilon_(epsilon) {}
    std::vector<std::string> state_names() const override { return {"first_moment", "second_moment"}; }
    void update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const override;
    void update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const override;

  private:
    double beta2_;
    double epsilon_;
};

std::unique_ptr<comm::UpdateRule> make_update_rule(const Recipe& recipe);

}  // namespace lockstep::trainer
