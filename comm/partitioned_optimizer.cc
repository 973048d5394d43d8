#include "comm/partitioned_optimizer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"
#include "comm/sum_of_squares.h"

namespace lockstep::comm {

namespace {

template <typename T>
std::span<T> elements(const at::Tensor& tensor) {
    return {tensor.mutable_data_ptr<T>(), static_cast<std::size_t>(tensor.numel())};
}

std::int64_t as_signed(std::size_t value) {
    return static_cast<std::int64_t>(value);
}

}  // namespace

PartitionedOptimizer::PartitionedOptimizer(const ShardScope& scope, const FlatLayout& layout,
                                           const Partition& partition, std::span<const at::Tensor> parameters,
                                           const GradientOf& gradient_of, std::unique_ptr<UpdateRule> rule,
                                           PartitionedOptimizerOptions options, GatheredParameters* gathered)
    : scope_(scope),
      layout_(layout),
      partition_(partition),
      rule_(std::move(rule)),
      options_(options),
      gathered_(gathered) {
    LOCKSTEP_CHECK_EQ(gathered_ != nullptr, partition.stage() >= ZeroStage::parameters);
    if (!gathered_) {
        parameters_.emplace(partition.is_cut() ? FlatTensors(layout, scope.shards, "parameters") : FlatTensors(layout));
        parameters_->adopt(parameters);
    }
    if (options_.keep_average) {
        average_.emplace(layout_, partition_, scope_.shards.rank());
    }
    for (std::size_t i = 0; i < rule_->state_names().size(); ++i) {
        state_.emplace_back(layout_, partition_, scope_.shards.rank());
    }
    for (const OwnedRange& range : partition_.ranges_of(scope_.shards.rank())) {
        owned_.push_back(
            {range,
             gathered_ ? gathered_->owned(range)
                       : parameters_->flat(range.entry).narrow(0, as_signed(range.begin), as_signed(range.count)),
             gradient_of(range),
             average_ ? average_->of(range) : at::Tensor(),
             {}});
        for (const Shard& state : state_) {
            owned_.back().state.push_back(state.of(range));
        }
    }
    restart_average();
}

void PartitionedOptimizer::restart_average() {
    if (!average_) {
        return;
    }
    const at::NoGradGuard no_grad;
    for (const Owned& owned : owned_) {
        owned.average.copy_(owned.parameters);
    }
}

template <typename T>
UpdateSpans<T> PartitionedOptimizer::spans_of(const Owned& owned) const {
    UpdateSpans<T> spans{elements<T>(owned.parameters), elements<T>(owned.gradient), {}, {}};
    for (const at::Tensor& state : owned.state) {
        spans.state.push_back(elements<T>(state));
    }
    if (average_) {
        spans.average = elements<T>(owned.average);
    }
    return spans;
}

template <typename Work>
auto PartitionedOptimizer::with_spans(const Owned& owned, Work work) const {
    return owned.parameters.scalar_type() == at::kDouble ? work(spans_of<double>(owned)) : work(spans_of<float>(owned));
}

double PartitionedOptimizer::squared_norm_of_owned(std::span<const UpdateScalars> scalars) const {
    double sum = 0;
    for (const Owned& owned : owned_) {
        const double squares = with_spans(owned, [](const auto& spans) {
            return sum_of_squares(spans.gradients.size(), [&](std::size_t i) { return spans.gradients[i]; });
        });
        const double factor = scalars[owned.range.entry].gradient_factor;
        sum += squares * factor * factor;
    }
    return sum;
}

void PartitionedOptimizer::sum_over_shards(std::span<double> values, const char* name) {
    if (partition_.is_cut()) {
        exchange_seconds_ +=
            base::seconds_of([&] { scope_.shards.all_reduce(Buffer::of(values), ReduceOp::sum, name); });
    }
}

void PartitionedOptimizer::set_trust_ratios(std::span<UpdateScalars> scalars) {
    std::vector<double> squares(2 * scalars.size());  // of parameters and direction, entry by entry
    for (const Owned& owned : owned_) {
        const std::size_t entry = owned.range.entry;
        const SquaredNorms norms =
            with_spans(owned, [&](const auto& spans) { return rule_->squared_norms(spans, scalars[entry]); });
        squares[2 * entry] += norms.parameters;
        squares[2 * entry + 1] += norms.direction;
    }
    sum_over_shards(squares, "norms of tensors");
    for (std::size_t entry = 0; entry < scalars.size(); ++entry) {
        if (scalars[entry].adapts) {
            scalars[entry].trust_ratio =
                rule_->trust_ratio({squares[2 * entry], squares[2 * entry + 1]}, scalars[entry]);
        }
    }
}

double PartitionedOptimizer::step(std::span<const UpdateScalars> given) {
    LOCKSTEP_CHECK_EQ(given.size(), layout_.entries().size());
    const at::NoGradGuard no_grad;
    exchange_seconds_ = 0;
    double squares = squared_norm_of_owned(given);
    sum_over_shards(std::span(&squares, 1), "gradient norm");
    const double norm = std::sqrt(squares);
    if (!std::isfinite(norm)) {
        return norm;
    }
    const double clip = options_.clip_norm > 0 && norm > options_.clip_norm ? options_.clip_norm / norm : 1;
    ++steps_;
    std::vector<UpdateScalars> scalars(given.begin(), given.end());
    for (UpdateScalars& of_entry : scalars) {
        of_entry.gradient_factor *= clip;
        of_entry.step = static_cast<std::int64_t>(steps_);
    }
    if (rule_->adapts_by_tensor()) {
        set_trust_ratios(scalars);
    }
    for (const Owned& owned : owned_) {
        with_spans(owned, [&](const auto& spans) { rule_->update(spans, scalars[owned.range.entry]); });
    }
    exchange_seconds_ += base::seconds_of([&] { gather_parameters(); });
    return norm;
}

std::string PartitionedOptimizer::first_not_finite_gradient() const {
    const auto is_broken = [](const auto& spans) {
        return std::ranges::any_of(spans.gradients, [](auto value) { return !std::isfinite(value); });
    };
    const auto broken = std::ranges::find_if(owned_, [&](const Owned& owned) { return with_spans(owned, is_broken); });
    return broken == owned_.end() ? "" : layout_.entries()[broken->range.entry].name;
}

void PartitionedOptimizer::gather_parameters() {
    if (!partition_.is_cut() || gathered_) {
        return;
    }
    for (std::size_t bucket = 0; bucket < layout_.buckets().size(); ++bucket) {
        scope_.shards.all_gather(parameters_->buffer(layout_.buckets()[bucket]), partition_.slices_of_bucket(bucket),
                                 base::str("parameters of bucket ", bucket));
    }
}

void PartitionedOptimizer::broadcast_parameters() {
    if (gathered_) {
        return;
    }
    for (const at::Tensor& segment : parameters_->segments()) {
        scope_.all.broadcast(buffer_of(segment), Rank{0}, "initial parameters");
    }
}

void PartitionedOptimizer::swap_with_average() {
    LOCKSTEP_CHECK(average_.has_value(), "no average is kept");
    const at::NoGradGuard no_grad;
    for (const Owned& owned : owned_) {
        const at::Tensor kept = owned.parameters.clone();
        owned.parameters.copy_(owned.average);
        owned.average.copy_(kept);
    }
    gather_parameters();
}

std::vector<OwnedPiece> PartitionedOptimizer::owned_pieces() const {
    std::vector<OwnedPiece> pieces;
    const std::vector<std::string> states = rule_->state_names();
    for (const Owned& owned : owned_) {
        const std::string& name = layout_.entries()[owned.range.entry].name;
        const auto add = [&](const std::string& kind, const at::Tensor& values) {
            pieces.push_back({kind + "/" + name, owned.range.entry, owned.range.begin, values});
        };
        add("parameters", owned.parameters);
        if (average_) {
            add("average", owned.average);
        }
        for (std::size_t i = 0; i < states.size(); ++i) {
            add(states[i], owned.state[i]);
        }
    }
    return pieces;
}

TrainingBytes PartitionedOptimizer::bytes() const {
    TrainingBytes bytes;
    bytes.parameters = gathered_ ? gathered_->shard_bytes() : parameters_->bytes();
    for (const Shard& state : state_) {
        bytes.state += state.bytes();
    }
    bytes.average = average_ ? average_->bytes() : 0;
    return bytes;
}

}  // namespace lockstep::comm
