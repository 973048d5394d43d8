// Sharded training against whole training on the same ranks, and one step against its arithmetic written out.
#include "comm/partitioned_optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "comm/gradient_reducer.h"
#include "comm/job_communicators.h"
#include "tests/comm/mpi_test_main.h"
#include "trainer/optimizers/parameter_groups.h"
#include "trainer/optimizers/update_rules.h"

namespace lockstep::comm {
namespace {

using trainer::AdamRule;
using trainer::LambRule;
using trainer::LarsRule;
using trainer::ParameterGroup;
using trainer::SgdRule;

at::Tensor wave(at::IntArrayRef shape, double phase, at::ScalarType type) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
        count *= extent;
    }
    return at::arange(count, at::kDouble).mul(0.7).add(phase).sin().reshape(shape).to(type);
}

/// Two heads, four groups of shapes, a parameter that nothing reaches and one without elements.
class Network {
  public:
    explicit Network(at::ScalarType type) : type_(type) {
        const auto add = [&](const char* name, at::IntArrayRef shape, std::int32_t head, ParameterGroup group,
                             std::size_t unit) {
            at::Tensor value = wave(shape, 0.1 * static_cast<double>(tensors.size() + 1), type);
            if (shape.size() == 4) {
                value = value.contiguous(at::MemoryFormat::ChannelsLast);
            }
            tensors.push_back(value.detach().set_requires_grad(true));
            reduced.push_back({name, tensors.back(), head, unit});
            groups.push_back(group);
        };
        add("trunk.weight", {5, 3, 3, 3}, 0, ParameterGroup::weight, 0);
        add("trunk.bias", {5}, 0, ParameterGroup::bias, 0);
        add("first.weight", {2, 5}, 0, ParameterGroup::weight, 1);
        add("unused", {11}, 0, ParameterGroup::norm, 1);
        add("empty", {0}, 0, ParameterGroup::norm, 1);
        add("second.weight", {700, 5}, 1, ParameterGroup::weight, 2);
        add("second.bias", {700}, 1, ParameterGroup::bias, 2);
    }

    /// `gathered`: where parameters are whole only while they are used.
    LossSums losses(std::int64_t images, double phase, GatheredParameters* gathered) const {
        const auto run_unit = [&](std::size_t unit, const auto& forward) {
            if (gathered) {
                gathered->before_forward(unit);
            }
            const at::Tensor output = forward();
            if (gathered) {
                gathered->after_forward(unit, std::span(&output, 1));
            }
            return output;
        };
        const at::Tensor x = wave({images, 3, 4, 4}, phase, type_);
        const at::Tensor features = run_unit(0, [&] {
            return at::silu(at::conv2d(x, tensors[0], tensors[1], 1, 1)).mean({2, 3});
        });
        const at::Tensor first = run_unit(1, [&] { return at::linear(features, tensors[2]).square().sum(); });
        const at::Tensor second =
            run_unit(2, [&] { return at::linear(features.detach(), tensors[5], tensors[6]).square().sum(); });
        const at::Tensor count = at::zeros({}, type_) + static_cast<double>(images);
        return {.sums = {first, second},
                .denominators = {count, count * 2},
                .parts = {first.detach().unsqueeze(0), second.detach().unsqueeze(0)}};
    }

    std::vector<at::Tensor> tensors;
    std::vector<ReducedParameter> reduced;
    std::vector<ParameterGroup> groups;

    /// Of a micro-batch without images, for which no pass is run.
    LossSums no_losses() const {
        const at::Tensor nothing = at::zeros({}, type_);
        return {.sums = {nothing, nothing},
                .denominators = {nothing, nothing},
                .parts = {nothing.unsqueeze(0), nothing.unsqueeze(0)}};
    }

  private:
    at::ScalarType type_;
};

enum class Rule { sgd, adamw, lars, lamb };

struct Settings {
    ZeroStage stage = ZeroStage::none;
    Rule rule = Rule::sgd;
    double clip_norm = 0;
    int micro_steps = 1;
    bool last_rank_is_empty = false;
    at::ScalarType type = at::kFloat;
    std::string topology = "auto";
    bool shards_by_node = false;
};

std::unique_ptr<UpdateRule> make_rule(Rule rule) {
    switch (rule) {
        case Rule::sgd:
            return std::make_unique<SgdRule>();
        case Rule::adamw:
            return std::make_unique<AdamRule>(trainer::Decay::decoupled, 0.99);
        case Rule::lars:
            return std::make_unique<LarsRule>(0.05);
        case Rule::lamb:
            return std::make_unique<LambRule>(0.99);
    }
    return nullptr;
}

/// What a training ends with: whole tensors on every rank.
struct Trained {
    std::vector<at::Tensor> parameters, averages;
    double last_norm = 0;
    TrainingBytes bytes, predicted;
    std::uint64_t most_gathered = 0;
};

JobShape shape_of(const std::string& topology) {
    return {.topology = topology, .timeout = tests::test_timeout};
}

std::unique_ptr<Communicator> make_ranks(const std::string& topology = "auto") {
    return JobCommunicators(shape_of(topology)).make("test", {.beside_compute = true});
}

Trained train(Communicator& ranks, const Settings& settings, int steps) {
    const JobCommunicators job(shape_of(settings.topology));
    std::unique_ptr<Communicator> shards, replicas, parameter_ranks;
    if (settings.shards_by_node) {
        shards = job.make_inside_node("shards");
        replicas = job.make_across_nodes("replicas");
        parameter_ranks = job.make_inside_node("parameters");
    } else {
        parameter_ranks = job.make("parameters", {.beside_compute = true});
    }
    const ShardScope scope = shards ? ShardScope(ranks, *shards, *replicas) : ShardScope(ranks);
    Network network(settings.type);
    constexpr double bucket_mib = 512.0 / (1 << 20);  // several buckets, some of one tensor, some of more
    GradientReducer reducer(scope, network.reduced, bucket_mib, settings.stage);
    std::unique_ptr<GatheredParameters> gathered;
    if (settings.stage >= ZeroStage::parameters) {
        gathered = std::make_unique<GatheredParameters>(*parameter_ranks, reducer.layout(), reducer.partition(),
                                                        network.tensors);
        reducer.report_to(*gathered);
    }
    PartitionedOptimizer optimizer(
        scope, reducer.layout(), reducer.partition(), network.tensors,
        [&](const OwnedRange& range) { return reducer.owned_gradient(range); }, make_rule(settings.rule),
        {.clip_norm = settings.clip_norm, .keep_average = true}, gathered.get());
    optimizer.broadcast_parameters();
    const bool is_empty = settings.last_rank_is_empty && ranks.size() > 1 && index_of(ranks.rank()) == ranks.size() - 1;
    const auto whole_values = [&] {
        const auto memory = [&] {
            return std::accumulate(
                network.tensors.begin(), network.tensors.end(), std::size_t{0},
                [](std::size_t sum, const at::Tensor& tensor) { return sum + tensor.storage().nbytes(); });
        };
        if (gathered) {
            EXPECT_EQ(memory(), 0U) << "between passes";
            gathered->hold_all();
            EXPECT_GT(memory(), 0U);
        }
        std::vector<at::Tensor> values;
        std::ranges::transform(network.tensors, std::back_inserter(values),
                               [](const at::Tensor& tensor) { return tensor.detach().clone(); });
        if (gathered) {
            gathered->drop_all();
        }
        return values;
    };
    Trained trained;
    for (int step = 0; step < steps; ++step) {
        reducer.zero();
        for (int micro = 0; micro < settings.micro_steps; ++micro) {
            const double phase = 10.0 * step + micro + 0.3 * index_of(ranks.rank());
            reducer.backward(
                is_empty ? network.no_losses() : network.losses(1 + index_of(ranks.rank()), phase, gathered.get()),
                micro + 1 == settings.micro_steps);
        }
        const Denominators counts = reducer.finish();
        trained.last_norm = optimizer.step(trainer::update_scalars(
            reducer.layout(), network.groups, {.learning_rate = 0.02, .bias_learning_rate = 0.05, .momentum = 0.9},
            0.01, counts.per_head, 0.8));
    }
    trained.parameters = whole_values();
    optimizer.swap_with_average();
    trained.averages = whole_values();
    optimizer.swap_with_average();
    const std::vector<at::Tensor> after_two_swaps = whole_values();
    for (std::size_t i = 0; i < network.tensors.size(); ++i) {
        EXPECT_TRUE(at::equal(after_two_swaps[i], trained.parameters[i])) << "after swapping twice";
    }
    if (gathered) {
        trained.most_gathered = gathered->most_gathered_bytes();
    }
    trained.bytes = optimizer.bytes();
    trained.bytes.gradients = reducer.gradient_bytes();
    trained.predicted =
        predicted_bytes(reducer.layout(), scope.shards.size(), settings.stage, optimizer.state_names().size(),
                        /*keeps_average=*/true);
    return trained;
}

std::string label(const Settings& settings) {
    return base::str("stage ", static_cast<int>(settings.stage), " rule ", static_cast<int>(settings.rule), " clip ",
                     settings.clip_norm, ", ", settings.micro_steps, " micro-steps, ", settings.type);
}

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
    double largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i].numel() > 0) {
            const double scale = b[i].abs().mean().item<double>() + 1e-12;
            largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>() / scale);
        }
    }
    return largest;
}

constexpr int steps = 20;

TEST(PartitionedOptimizer, ShardsGiveTheUnshardedParametersBitForBit) {
    const auto ranks = make_ranks();
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
        for (const Rule rule : {Rule::sgd, Rule::adamw}) {
            const Trained whole = train(*ranks, {.rule = rule, .type = type}, steps);
            for (const ZeroStage stage : {ZeroStage::state, ZeroStage::gradients, ZeroStage::parameters}) {
                const Settings settings{.stage = stage, .rule = rule, .type = type};
                const Trained sharded = train(*ranks, settings, steps);
                for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
                    EXPECT_TRUE(at::equal(sharded.parameters[i], whole.parameters[i])) << label(settings) << " " << i;
                    EXPECT_TRUE(at::equal(sharded.averages[i], whole.averages[i])) << label(settings) << " " << i;
                }
            }
        }
    }
}

/// Sums go inside the nodes first and then across, as in the hierarchical all-reduce that the whole training takes.
TEST(PartitionedOptimizer, ShardsOfEachNodeGiveTheUnshardedParametersBitForBit) {
    const auto world = make_ranks();
    if (world->size() % 2 != 0 || world->size() < 4) {
        GTEST_SKIP() << world->size() << " ranks are no two nodes of equally many ranks, two or more";
    }
    const std::string topology = base::str("2x", world->size() / 2);
    const auto ranks = make_ranks(topology);
    for (const Rule rule : {Rule::sgd, Rule::adamw}) {
        const Trained whole = train(*ranks, {.rule = rule, .topology = topology}, steps);
        for (const ZeroStage stage : {ZeroStage::state, ZeroStage::gradients, ZeroStage::parameters}) {
            const Settings settings{.stage = stage, .rule = rule, .topology = topology, .shards_by_node = true};
            const Trained sharded = train(*ranks, settings, steps);
            for (std::size_t i = 0; i < whole.parameters.size(); ++i) {
                EXPECT_TRUE(at::equal(sharded.parameters[i], whole.parameters[i])) << label(settings) << " " << i;
                EXPECT_TRUE(at::equal(sharded.averages[i], whole.averages[i])) << label(settings) << " " << i;
            }
            constexpr double lines_of_buckets = 64 * 10 * 4;
            EXPECT_NEAR(static_cast<double>(sharded.bytes.all()), static_cast<double>(sharded.predicted.all()),
                        0.03 * static_cast<double>(sharded.predicted.all()) + lines_of_buckets)
                << label(settings);
            Settings clipped = settings;
            clipped.clip_norm = 0.5;
            const Trained clipped_whole = train(*ranks, {.rule = rule, .clip_norm = 0.5, .topology = topology}, 5);
            EXPECT_LT(largest_difference(train(*ranks, clipped, 5).parameters, clipped_whole.parameters), 1e-4)
                << label(clipped);
        }
    }
}

TEST(JobCommunicators, ShardsOfEachNodeTakeEvenNodesOfSeveralRanks) {
    const auto world = make_ranks();
    if (world->size() > 1) {
        EXPECT_THROW(JobCommunicators(shape_of("flat")).make_inside_node("shards"), base::UsageError);
    }
}

TEST(PartitionedOptimizer, ClippingAccumulationAndNormsOfTensorsDifferByRoundingOnly) {
    const auto ranks = make_ranks();
    for (const Rule rule : {Rule::sgd, Rule::adamw, Rule::lars, Rule::lamb}) {
        for (const int micro_steps : {1, 3}) {
            const Settings base{.rule = rule, .clip_norm = 0.5, .micro_steps = micro_steps, .type = at::kDouble};
            const Trained whole = train(*ranks, base, steps);
            EXPECT_GT(whole.last_norm, base.clip_norm) << "nothing was clipped";
            for (const ZeroStage stage : {ZeroStage::state, ZeroStage::gradients, ZeroStage::parameters}) {
                Settings settings = base;
                settings.stage = stage;
                const Trained sharded = train(*ranks, settings, steps);
                EXPECT_LT(largest_difference(sharded.parameters, whole.parameters), 1e-9) << label(settings);
                EXPECT_LT(largest_difference(sharded.averages, whole.averages), 1e-9) << label(settings);
                EXPECT_NEAR(sharded.last_norm, whole.last_norm, 1e-9 * whole.last_norm) << label(settings);
                settings.type = at::kFloat;
                Settings whole_in_fp32 = base;
                whole_in_fp32.type = at::kFloat;
                EXPECT_LT(largest_difference(train(*ranks, settings, steps).parameters,
                                             train(*ranks, whole_in_fp32, steps).parameters),
                          1e-4)
                    << label(settings);
            }
        }
    }
}

/// Whoever owns the broken gradient, all ranks leave everything as it was.
TEST(PartitionedOptimizer, AStepThatIsNotFiniteChangesNothing) {
    const auto ranks = make_ranks();
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::state, ZeroStage::gradients}) {
        const ShardScope scope(*ranks);
        Network network(at::kFloat);
        GradientReducer reducer(scope, network.reduced, 1, stage);
        PartitionedOptimizer optimizer(scope, reducer.layout(), reducer.partition(), network.tensors,
                                       [&](const OwnedRange& range) { return reducer.owned_gradient(range); },
                                       std::make_unique<AdamRule>(trainer::Decay::decoupled, 0.99),
                                       {.clip_norm = 1, .keep_average = true});
        const auto step = [&](double phase, double factor) {
            reducer.zero();
            LossSums losses = network.losses(2, phase + index_of(ranks->rank()), nullptr);
            if (index_of(ranks->rank()) == ranks->size() - 1) {
                losses.sums[1] = losses.sums[1] * factor;
            }
            reducer.backward(losses, true);
            const Denominators counts = reducer.finish();
            return optimizer.step(trainer::update_scalars(reducer.layout(), network.groups,
                                                          {.learning_rate = 0.02, .momentum = 0.9}, 0.01,
                                                          counts.per_head, 0.8));
        };
        EXPECT_TRUE(std::isfinite(step(0, 1)));
        EXPECT_EQ(optimizer.first_not_finite_gradient(), "");
        const auto values = [&] {
            std::vector<at::Tensor> copies;
            for (const OwnedPiece& piece : optimizer.owned_pieces()) {
                copies.push_back(piece.values.clone());
            }
            return copies;
        };
        const auto before = values();
        EXPECT_FALSE(std::isfinite(step(1, std::numeric_limits<double>::infinity())));
        EXPECT_EQ(optimizer.steps(), 1U);
        const auto after = values();
        for (std::size_t i = 0; i < before.size(); ++i) {
            EXPECT_TRUE(at::equal(before[i], after[i])) << optimizer.owned_pieces()[i].name;
        }
        const std::vector<std::string> named = ranks->all_gather_texts(optimizer.first_not_finite_gradient(), "test");
        EXPECT_TRUE(std::ranges::any_of(named, [](const std::string& name) { return name.starts_with("second."); }));
        EXPECT_TRUE(std::isfinite(step(2, 1)));
    }
}

TEST(PartitionedOptimizer, EveryRankEndsWithTheSameParameters) {
    const auto ranks = make_ranks();
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::state, ZeroStage::gradients, ZeroStage::parameters}) {
        const Trained trained = train(*ranks, {.stage = stage, .rule = Rule::adamw, .clip_norm = 0.5}, 5);
        for (const at::Tensor& tensor : trained.parameters) {
            const at::Tensor plain = tensor.contiguous();
            const auto all = ranks->all_gather_bytes(
                {static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()}, "parameters");
            for (const auto& theirs : all) {
                EXPECT_EQ(theirs, all.front()) << "stage " << static_cast<int>(stage);
            }
        }
    }
}

TEST(PartitionedOptimizer, BytesAreThePredictedOnes) {
    const auto ranks = make_ranks();
    for (const ZeroStage stage : {ZeroStage::none, ZeroStage::state, ZeroStage::gradients, ZeroStage::parameters}) {
        for (const Rule rule : {Rule::sgd, Rule::adamw}) {
            const Trained trained = train(*ranks, {.stage = stage, .rule = rule}, 1);
            // A bucket's cut may give one rank a cache line more.
            constexpr std::uint64_t lines_of_buckets = 64 * 10 * 4;
            for (const auto& [measured, predicted] : {std::pair(trained.bytes.parameters, trained.predicted.parameters),
                                                      std::pair(trained.bytes.gradients, trained.predicted.gradients),
                                                      std::pair(trained.bytes.state, trained.predicted.state),
                                                      std::pair(trained.bytes.average, trained.predicted.average)}) {
                EXPECT_NEAR(static_cast<double>(measured), static_cast<double>(predicted),
                            0.03 * static_cast<double>(predicted) + lines_of_buckets)
                    << "stage " << static_cast<int>(stage);
            }
        }
    }
}

TEST(GatheredParameters, ARankWithoutImagesTakesPartAllTheSame) {
    const auto ranks = make_ranks();
    const Settings base{.rule = Rule::adamw, .micro_steps = 2, .last_rank_is_empty = true, .type = at::kDouble};
    Settings gathered = base;
    gathered.stage = ZeroStage::parameters;
    EXPECT_LT(largest_difference(train(*ranks, gathered, 5).parameters, train(*ranks, base, 5).parameters), 1e-12);
}

/// The largest unit, of 700 x 6 elements, and its neighbour; never all of them.
TEST(GatheredParameters, TakeMemoryOfTwoUnitsAtMost) {
    const auto ranks = make_ranks();
    const Trained trained = train(*ranks, {.stage = ZeroStage::parameters, .micro_steps = 2}, 3);
    EXPECT_GE(trained.most_gathered, 700U * 6 * 4);
    const std::uint64_t smallest_unit = 2 * 5 * 4;
    const std::uint64_t whole = train(*ranks, {.stage = ZeroStage::none}, 1).bytes.parameters;
    EXPECT_LE(trained.most_gathered, whole - smallest_unit);
}

/// One of each group and a second bias, over two heads: whatever is the same for a group differs within a head, and the
/// other way round.
TEST(PartitionedOptimizer, OneStepIsItsArithmetic) {
    const auto single = make_single_communicator();
    struct Tensor {
        const char* name;
        std::vector<std::int64_t> shape;
        std::int32_t head;
        ParameterGroup group;
    };
    const std::array<Tensor, 4> tensors = {{{"conv.weight", {2, 3, 3, 3}, 0, ParameterGroup::weight},
                                            {"bn.weight", {5}, 1, ParameterGroup::norm},
                                            {"bn.bias", {5}, 0, ParameterGroup::bias},
                                            {"last.bias", {3}, 1, ParameterGroup::bias}}};
    constexpr std::array divisors = {4.0, 0.5};
    constexpr double weight_decay = 0.2, average_decay = 0.75, rate = 0.1, bias_rate = 0.7;
    for (const double limit : {0.0, 1.5, 1000.0}) {
        std::vector<FlatTensor> flat;
        std::vector<at::Tensor> parameters, before;
        std::vector<ParameterGroup> groups;
        for (const Tensor& tensor : tensors) {
            parameters.push_back(wave(tensor.shape, 7 + static_cast<double>(parameters.size()), at::kDouble));
            before.push_back(parameters.back().clone());
            groups.push_back(tensor.group);
            flat.push_back({tensor.name, static_cast<std::size_t>(before.back().numel()), tensor.head, DataType::f64});
        }
        const FlatLayout layout(flat, 64);
        const FlatTensors gradients(layout);
        double squares = 0;
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            gradients.flat(i).copy_(wave({before[i].numel()}, 70 + static_cast<double>(i), at::kDouble));
            const double divisor = divisors[static_cast<std::size_t>(tensors[i].head)];
            squares += (gradients.flat(i) / divisor).square().sum().item<double>();
        }
        const Partition partition(layout, 1, ZeroStage::none);
        PartitionedOptimizer optimizer(*single, layout, partition, parameters,
                                       [&](const OwnedRange& range) { return gradients.flat(range.entry); },
                                       std::make_unique<SgdRule>(), {.clip_norm = limit, .keep_average = true});
        const double norm = optimizer.step(trainer::update_scalars(
            layout, groups, {.learning_rate = rate, .bias_learning_rate = bias_rate, .momentum = 0}, weight_decay,
            divisors, average_decay));
        EXPECT_NEAR(norm, std::sqrt(squares), 1e-12) << "after the division, before clipping";
        const double clip = limit > 0 && norm > limit ? limit / norm : 1;
        EXPECT_EQ(clip < 1, limit == 1.5);
        for (std::size_t i = 0; i < tensors.size(); ++i) {
            const double own_rate = tensors[i].group == ParameterGroup::bias ? bias_rate : rate;
            const double decay = tensors[i].group == ParameterGroup::weight ? weight_decay : 0;
            const double divisor = divisors[static_cast<std::size_t>(tensors[i].head)];
            const at::Tensor gradient = gradients.flat(i).view(before[i].sizes()) * (clip / divisor);
            const at::Tensor expected = before[i] - own_rate * (gradient + decay * before[i]);
            EXPECT_LT((parameters[i] - expected).abs().max().item<double>(), 1e-14) << tensors[i].name;
            const at::Tensor average = average_decay * before[i] + (1 - average_decay) * expected;
            optimizer.swap_with_average();
            EXPECT_LT((parameters[i] - average).abs().max().item<double>(), 1e-14) << tensors[i].name;
            optimizer.swap_with_average();
        }
    }
}

/// Notes what it is told.
class RecordingRule final : public UpdateRule {
  public:
    explicit RecordingRule(std::vector<UpdateScalars>& calls) : calls_(calls) {}
    std::vector<std::string> state_names() const override { return {}; }
    void update(const UpdateSpans<float>& /*spans*/, const UpdateScalars& scalars) const override {
        calls_.push_back(scalars);
    }
    void update(const UpdateSpans<double>& /*spans*/, const UpdateScalars& scalars) const override {
        calls_.push_back(scalars);
    }

  private:
    std::vector<UpdateScalars>& calls_;
};

TEST(PartitionedOptimizer, StepsAreCountedFromOneAndGoOnAfterAResume) {
    const auto single = make_single_communicator();
    const FlatLayout layout({{"a", 3, 0, DataType::f32}, {"b", 5, 0, DataType::f64}}, 64);
    const FlatTensors gradients(layout);
    const Partition partition(layout, 1, ZeroStage::none);
    const std::vector<at::Tensor> parameters = {at::zeros({3}, at::kFloat), at::zeros({5}, at::kDouble)};
    std::vector<UpdateScalars> calls;
    PartitionedOptimizer optimizer(*single, layout, partition, parameters,
                                   [&](const OwnedRange& range) { return gradients.flat(range.entry); },
                                   std::make_unique<RecordingRule>(calls), {});
    const std::vector<UpdateScalars> scalars(2, {.momentum = 0.8});
    optimizer.step(scalars);
    optimizer.set_steps(40);
    optimizer.step(scalars);
    EXPECT_EQ(optimizer.steps(), 41U);
    ASSERT_EQ(calls.size(), 4U);
    for (std::size_t i = 0; i < calls.size(); ++i) {
        EXPECT_EQ(calls[i].step, i < 2 ? 1 : 41) << i;
        EXPECT_EQ(calls[i].momentum, 0.8) << i;
    }
}

}  // namespace
}  // namespace lockstep::comm
