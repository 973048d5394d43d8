#include "trainer/losses/classification_loss.h"

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>

#include "base/error.h"

namespace lockstep::trainer {

ClassificationLoss::ClassificationLoss(double label_smoothing) : label_smoothing_(label_smoothing) {
    LOCKSTEP_CHECK(label_smoothing >= 0 && label_smoothing < 1, "label smoothing is ", label_smoothing);
}

comm::LossSums ClassificationLoss::operator()(const at::Tensor& logits, const at::Tensor& labels) const {
    const auto input = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
    const auto sum = at::cross_entropy_loss(input, labels, /*weight=*/{}, at::Reduction::Sum, /*ignore_index=*/-100,
                                            label_smoothing_);
    return {.sums = {sum},
            .denominators = {at::full({}, static_cast<double>(input.size(0)), input.options())},
            .parts = {sum.detach().unsqueeze(0)}};
}

}  // namespace lockstep::trainer
