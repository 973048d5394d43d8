#pragma once

#include <cstdint>
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

/// How weight decay acts: added to the gradient (Adam), or by itself and scaled by the rate (AdamW).
enum class Decay : std::uint8_t { in_gradient, decoupled };

/// Adam (Kingma and Ba 2015, algorithm 1) and AdamW (Loshchilov and Hutter 2019, algorithm 2).
class AdamRule final : public comm::UpdateRule {
  public:
    AdamRule(Decay decay, double beta2, double epsilon = 1e-8) : decay_(decay), beta2_(beta2), epsilon_(epsilon) {}
    std::vector<std::string> state_names() const override { return {"first_moment", "second_moment"}; }
    void update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const override;
    void update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const override;

  private:
    Decay decay_;
    double beta2_;
    double epsilon_;
};

/// LARS (You, Gitman and Ginsburg 2017, algorithm 1): a tensor's rate is coefficient * |p| / (|g| + decay * |p|) times
/// the global one;  b = m * b + rate * (g + decay * p);  p -= b. Where a norm is zero, the global rate is taken.
class LarsRule final : public comm::UpdateRule {
  public:
    explicit LarsRule(double coefficient) : coefficient_(coefficient) {}
    std::vector<std::string> state_names() const override { return {"momentum"}; }
    void update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const override;
    void update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const override;
    bool adapts_by_tensor() const override { return true; }
    comm::SquaredNorms squared_norms(const comm::UpdateSpans<float>& spans,
                                     const comm::UpdateScalars& scalars) const override;
    comm::SquaredNorms squared_norms(const comm::UpdateSpans<double>& spans,
                                     const comm::UpdateScalars& scalars) const override;
    double trust_ratio(const comm::SquaredNorms& whole, const comm::UpdateScalars& scalars) const override;

  private:
    double coefficient_;
};

/// LAMB (You et al. 2020, algorithm 2, with the identity for phi): Adam's quotient r with decay * p added, whose length
/// is made the tensor's own;  p -= rate * |p| / |r| * r. Where a norm is zero, r is taken as it is.
class LambRule final : public comm::UpdateRule {
  public:
    explicit LambRule(double beta2, double epsilon = 1e-6) : beta2_(beta2), epsilon_(epsilon) {}
    std::vector<std::string> state_names() const override { return {"first_moment", "second_moment"}; }
    void update(const comm::UpdateSpans<float>& spans, const comm::UpdateScalars& scalars) const override;
    void update(const comm::UpdateSpans<double>& spans, const comm::UpdateScalars& scalars) const override;
    bool adapts_by_tensor() const override { return true; }
    comm::SquaredNorms squared_norms(const comm::UpdateSpans<float>& spans,
                                     const comm::UpdateScalars& scalars) const override;
    comm::SquaredNorms squared_norms(const comm::UpdateSpans<double>& spans,
                                     const comm::UpdateScalars& scalars) const override;
    double trust_ratio(const comm::SquaredNorms& whole, const comm::UpdateScalars& scalars) const override;

  private:
    double beta2_;
    double epsilon_;
};

std::unique_ptr<comm::UpdateRule> make_update_rule(const Recipe& recipe);

}  // namespace lockstep::trainer
