// N ranks, accumulation and empty ranks against one autograd pass over all samples, on a small network of two heads.
#include "comm/gradient_reducer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/job_communicators.h"
#include "tests/comm/mpi_test_main.h"

namespace lockstep::comm {
namespace {

/// As a training has them: in shared memory, since all ranks are on one machine.
std::unique_ptr<Communicator> make_ranks() {
    return JobCommunicators({.topology = "auto", .timeout = tests::test_timeout})
        .make("test", {.beside_compute = true});
}

/// Fixed, irregular values.
at::Tensor wave(at::IntArrayRef shape, double phase, at::ScalarType type) {
    std::int64_t count = 1;
    for (const std::int64_t extent : shape) {
        count *= extent;
    }
    return at::arange(count, at::kDouble).mul(0.7).add(phase).sin().reshape(shape).to(type);
}

at::Tensor trainable(const at::Tensor& value) {
    return value.detach().clone(at::MemoryFormat::Preserve).set_requires_grad(true);
}

/// Head 0 trains the trunk and its own linear layer; head 1 hears the trunk's features detached.
struct TwoHeads {
    at::Tensor trunk, trunk_bias, first, second, second_bias, unused;

    explicit TwoHeads(at::ScalarType type) {
        trunk = trainable(wave({5, 3, 3, 3}, 0.1, type).contiguous(at::MemoryFormat::ChannelsLast));
        trunk_bias = trainable(wave({5}, 0.2, type));
        first = trainable(wave({2, 5}, 0.3, type));
        second = trainable(wave({7, 5}, 0.4, type));
        second_bias = trainable(wave({7}, 0.5, type));
        unused = trainable(wave({4}, 0.6, type));
    }

    std::vector<ReducedParameter> parameters() const {
        return {{"trunk.weight", trunk, 0},   {"trunk.bias", trunk_bias, 0},   {"first.weight", first, 0},
                {"second.weight", second, 1}, {"second.bias", second_bias, 1}, {"unused", unused, 0}};
    }

    LossSums losses(const at::Tensor& images) const {
        const at::Tensor features = at::silu(at::conv2d(images, trunk, trunk_bias)).mean({2, 3});
        const at::Tensor a = at::linear(features, first);
        const at::Tensor b = at::linear(features.detach(), second, second_bias);
        const at::Tensor count = at::full({}, images.size(0), at::kDouble);
        LossSums losses;
        losses.sums = {a.pow(2).sum() + a.sum(), b.pow(3).sum()};
        losses.denominators = {count, b.detach().abs().sum()};
        losses.parts = {at::stack({a.detach().pow(2).sum(), a.detach().sum()}), losses.sums[1].detach().reshape({1})};
        return losses;
    }
};

/// What N ranks must reproduce: gradients, denominators and parts of all samples at once.
struct Expected {
    std::vector<at::Tensor> gradients;
    Denominators totals;
};

std::vector<double> doubles(const at::Tensor& values) {
    const at::Tensor flat = values.to(at::kDouble).contiguous();
    return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

Expected expected_for(const at::Tensor& images) {
    const TwoHeads model(images.scalar_type());
    std::vector<at::Tensor> inputs;
    for (const ReducedParameter& parameter : model.parameters()) {
        inputs.push_back(parameter.tensor);
    }
    const LossSums losses = model.losses(images);
    Expected expected;
    expected.gradients =
        torch::autograd::grad({losses.sums[0] + losses.sums[1]}, inputs, {}, std::nullopt, false, true);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (!expected.gradients[i].defined()) {
            expected.gradients[i] = at::zeros(inputs[i].sizes(), inputs[i].options());
        }
    }
    for (std::size_t head = 0; head < 2; ++head) {
        expected.totals.per_head.push_back(losses.denominators[head].item<double>());
        expected.totals.parts.push_back(doubles(losses.parts[head]));
    }
    return expected;
}

at::Tensor some_images(std::int64_t count, at::ScalarType type) {
    return wave({count, 3, 6, 6}, 1.0, type);
}

/// This rank's part of micro-step `step` of `steps`: micro-steps cut the batch, ranks cut the micro-step.
at::Tensor part_of(const at::Tensor& images, std::int32_t steps, std::int32_t step, const Communicator& ranks) {
    const auto cut = [](const at::Tensor& all, std::int32_t parts, std::int32_t part) {
        const Slice slice = slice_of(static_cast<std::size_t>(all.size(0)), parts, Rank{part});
        return all.narrow(0, static_cast<std::int64_t>(slice.begin), static_cast<std::int64_t>(slice.count()));
    };
    return cut(cut(images, steps, step), ranks.size(), index_of(ranks.rank()));
}

void expect_near(const std::vector<double>& actual, const std::vector<double>& expected, double tolerance) {
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
        EXPECT_NEAR(actual[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << i;
    }
}

void expect_equal(const Denominators& actual, const Denominators& expected, double tolerance) {
    expect_near(actual.per_head, expected.per_head, tolerance);
    ASSERT_EQ(actual.parts.size(), expected.parts.size());
    for (std::size_t head = 0; head < expected.parts.size(); ++head) {
        expect_near(actual.parts[head], expected.parts[head], tolerance);
    }
}

void expect_gradients(const TwoHeads& model, const Expected& expected, double tolerance) {
    const auto parameters = model.parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(at::allclose(parameters[i].tensor.grad(), expected.gradients[i], tolerance, tolerance))
            << parameters[i].name << " differs by "
            << (parameters[i].tensor.grad() - expected.gradients[i]).abs().max().item<double>();
    }
}

struct Case {
    std::int64_t images;
    std::int32_t micro_steps;
    double bucket_mib;
    at::ScalarType type;
};

class Reducer : public testing::TestWithParam<Case> {
  protected:
    std::unique_ptr<Communicator> ranks = make_ranks();
};

TEST_P(Reducer, EqualsOnePassOverAllSamples) {
    const auto [count, micro_steps, bucket_mib, type] = GetParam();
    const double tolerance = type == at::kDouble ? 1e-12 : 1e-5;
    const TwoHeads model(type);
    GradientReducer reducer(*ranks, model.parameters(), bucket_mib);
    for (int batch = 0; batch < 2; ++batch) {  // the second one shows that nothing of the first is left
        const at::Tensor images = some_images(count, type).add(batch);
        reducer.zero();
        for (std::int32_t step = 0; step < micro_steps; ++step) {
            reducer.backward(model.losses(part_of(images, micro_steps, step, *ranks)), step + 1 == micro_steps);
        }
        const Denominators totals = reducer.finish();
        const Expected expected = expected_for(images);
        expect_equal(totals, expected.totals, tolerance);
        expect_gradients(model, expected, tolerance);
        for (const at::Tensor& segment : reducer.gradients().segments()) {
            const Buffer buffer = buffer_of(segment);
            EXPECT_TRUE(tests::same_on_all_ranks(*ranks, {static_cast<const std::byte*>(buffer.data), buffer.bytes()}));
        }
    }
    EXPECT_GT(reducer.exposed().communication_seconds, 0);
}

TEST(GradientReducer, TellsASlowRankFromSlowCommunication) {
    const auto ranks = make_ranks();
    const TwoHeads model(at::kDouble);
    GradientReducer reducer(*ranks, model.parameters(), 25);
    const LossSums losses = model.losses(some_images(3, at::kDouble));
    constexpr double late_seconds = 1;
    const bool is_late = index_of(ranks->rank()) == ranks->size() - 1;
    ranks->barrier("start");
    if (is_late) {
        std::this_thread::sleep_for(std::chrono::duration<double>(late_seconds));
    }
    reducer.backward(losses, true);
    reducer.finish();
    double skew = reducer.exposed().skew_seconds;
    if (ranks->size() == 1) {
        EXPECT_EQ(skew, 0);
        return;
    }
    EXPECT_GT(skew, late_seconds / 2);
    ranks->broadcast(Buffer::of(std::span(&skew, 1)), Rank{0}, "skew of the first rank");
    EXPECT_EQ(skew, reducer.exposed().skew_seconds);
    // Only the late rank's own wait counts, which no other rank delayed; a busy machine may have.
    EXPECT_LT(reducer.exposed().communication_seconds, skew);
}

// 1 image on several ranks, and 5 in 3 micro-steps, leave ranks with empty micro-batches.
INSTANTIATE_TEST_SUITE_P(Batches, Reducer,
                         testing::Values(Case{8, 1, 25, at::kDouble}, Case{8, 2, 25, at::kDouble},
                                         Case{7, 2, 1e-6, at::kDouble}, Case{5, 3, 1e-4, at::kDouble},
                                         Case{1, 1, 1e-6, at::kDouble}, Case{8, 2, 25, at::kFloat}));

TEST(GradientReducer, ARankWithoutGraphContributesNothing) {
    const auto ranks = make_ranks();
    const TwoHeads model(at::kDouble);
    GradientReducer reducer(*ranks, model.parameters(), 25);
    const at::Tensor images = some_images(3, at::kDouble);
    if (index_of(ranks->rank()) == ranks->size() - 1) {
        reducer.backward(model.losses(images), true);
    } else {
        LossSums nothing;
        nothing.sums = {at::zeros({}, at::kDouble), at::Tensor()};
        nothing.denominators = {at::zeros({}, at::kDouble), at::zeros({}, at::kDouble)};
        nothing.parts = {at::zeros({2}, at::kDouble), at::zeros({1}, at::kDouble)};
        reducer.backward(nothing, true);
    }
    const Denominators totals = reducer.finish();
    const Expected expected = expected_for(images);
    expect_equal(totals, expected.totals, 1e-12);
    expect_gradients(model, expected, 1e-12);
}

TEST(GradientReducer, GradientsAreViewsWithTheParametersStrides) {
    const auto single = make_single_communicator();
    const TwoHeads model(at::kDouble);
    GradientReducer reducer(*single, model.parameters(), 25);
    const std::vector<ReducedParameter> parameters = model.parameters();
    reducer.backward(model.losses(some_images(2, at::kDouble)), true);
    reducer.finish();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor& gradient = parameters[i].tensor.grad();
        EXPECT_EQ(gradient.strides(), parameters[i].tensor.strides()) << parameters[i].name;
        EXPECT_EQ(gradient.data_ptr(), reducer.gradients().flat(i).data_ptr()) << parameters[i].name;
    }
    EXPECT_FALSE(parameters[0].tensor.is_contiguous()) << "the test should cover channels_last";
    reducer.zero();
    EXPECT_TRUE(at::equal(parameters[0].tensor.grad(), at::zeros({5, 3, 3, 3}, at::kDouble)));
}

TEST(GradientReducer, TakesBackGradientsThatWereReplacedOrDropped) {
    const auto ranks = make_ranks();
    const TwoHeads model(at::kDouble);
    GradientReducer reducer(*ranks, model.parameters(), 25);
    const at::Tensor images = some_images(4, at::kDouble);
    const Expected expected = expected_for(images);
    model.trunk.mutable_grad().reset();  // autograd makes a new one
    model.first.mutable_grad() = at::zeros({2, 5}, at::kDouble);
    reducer.gradients().flat(5).fill_(9);  // stale, and dropped
    model.unused.mutable_grad().reset();
    reducer.backward(model.losses(part_of(images, 1, 0, *ranks)), true);
    reducer.finish();
    expect_gradients(model, expected, 1e-12);
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
        EXPECT_EQ(model.parameters()[i].tensor.grad().data_ptr(), reducer.gradients().flat(i).data_ptr()) << i;
    }
}

TEST(GradientReducer, SinglePrecisionPartsAreSummedInDoublePrecision) {
    const auto ranks = make_ranks();
    const at::Tensor weight = trainable(at::full({1}, 1.0, at::kFloat));
    GradientReducer reducer(*ranks, {{"weight", weight, 0}}, 25);
    const int micro_steps = 3;
    for (int step = 0; step < micro_steps; ++step) {
        LossSums losses;
        losses.sums = {weight.sum()};
        losses.denominators = {at::full({}, step == 0 && ranks->rank() == Rank{0} ? 16777216.0 : 1.0, at::kFloat)};
        losses.parts = {at::full({1}, 0.5, at::kFloat)};
        reducer.backward(losses, step + 1 == micro_steps);
    }
    const Denominators totals = reducer.finish();
    EXPECT_EQ(totals.per_head[0], 16777216.0 + micro_steps * ranks->size() - 1);
    EXPECT_EQ(totals.parts[0][0], 0.5 * micro_steps * ranks->size());
    EXPECT_EQ(weight.grad().item<float>(), static_cast<float>(micro_steps * ranks->size()));
}

TEST(GradientReducer, RefusesWhatItCannotReduce) {
    const auto single = make_single_communicator();
    const at::Tensor weight = trainable(at::zeros({3}, at::kFloat));
    const at::Tensor half = trainable(at::zeros({3}, at::kHalf));
    const at::Tensor frozen = at::zeros({3}, at::kFloat);
    const auto make = [&](std::vector<ReducedParameter> parameters) {
        GradientReducer(*single, std::move(parameters), 25);
    };
    EXPECT_THROW(make({{"a", weight, 0}, {"a", trainable(weight), 0}}), base::Error);
    EXPECT_THROW(make({{"a", weight, 0}, {"b", weight, 1}}), base::Error);
    EXPECT_THROW(make({{"half", half, 0}}), base::Error);
    EXPECT_THROW(make({{"frozen", frozen, 0}}), base::Error);
    EXPECT_THROW(make({{"not a leaf", weight * 2, 0}}), base::Error);
}

TEST(GradientReducer, ChecksTheOrderOfCalls) {
    const auto single = make_single_communicator();
    const TwoHeads model(at::kDouble);
    GradientReducer reducer(*single, model.parameters(), 25);
    const at::Tensor images = some_images(2, at::kDouble);
    EXPECT_THROW(reducer.finish(), base::InternalError);
    reducer.backward(model.losses(images), false);
    EXPECT_THROW(reducer.finish(), base::InternalError);
    reducer.backward(model.losses(images), true);
    EXPECT_THROW(reducer.backward(model.losses(images), true), base::InternalError);
    reducer.finish();
}

/// Notes what is asked of it, and reduces nothing.
class Recorder final : public Communicator {
  public:
    explicit Recorder(std::chrono::milliseconds delay = {})
        : Communicator({"recorder", Rank{0}, {{0, "here"}}, std::chrono::minutes(1)}), delay_(delay) {}

    std::vector<std::string> names;
    std::string fails_at;
    std::atomic<int> reductions = 0;

  private:
    void do_all_reduce(const Buffer&, ReduceOp) override {
        std::this_thread::sleep_for(delay_);
        names.push_back(operation().name);
        ++reductions;
        if (operation().name == fails_at) {
            throw base::Error("the link is down");
        }
    }
    void do_reduce_scatter(const Buffer&, std::span<const Slice>, ReduceOp) override {}
    void do_all_gather(const Buffer&, std::span<const Slice>) override {}
    void do_broadcast(const Buffer&, Rank) override {}
    void do_barrier() override {}
    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte>) override { return {{}}; }

    std::chrono::milliseconds delay_;
};

std::vector<std::string> bucket_names(const GradientReducer& reducer) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < reducer.layout().buckets().size(); ++i) {
        names.push_back(base::str("bucket ", i));
    }
    names.emplace_back("denominators");
    return names;
}

/// The layer that the backward pass reaches last is first in the plan here, so that readiness and plan disagree.
TEST(GradientReducer, BucketsLeaveInTheOrderOfThePlanWhateverIsReadyFirst) {
    Recorder recorder(std::chrono::milliseconds(2));
    const TwoHeads model(at::kDouble);
    std::vector<ReducedParameter> backwards = model.parameters();
    std::ranges::reverse(backwards);
    GradientReducer reducer(recorder, backwards, 1e-5);
    ASSERT_GT(reducer.layout().buckets().size(), 3U);
    for (const bool is_empty : {false, true, false}) {
        recorder.names.clear();
        LossSums losses = model.losses(some_images(2, at::kDouble));
        if (is_empty) {
            for (at::Tensor& sum : losses.sums) {
                sum = sum.detach();
            }
        }
        reducer.backward(losses, true);
        reducer.finish();
        EXPECT_EQ(recorder.names, bucket_names(reducer));
    }
}

/// The first layer's gradient comes last. Its hook waits until the other layers' buckets have been reduced: a reducer
/// that begins after the backward pass never gets there.
TEST(GradientReducer, BucketsLeaveDuringTheBackwardPass) {
    Recorder recorder;
    const TwoHeads model(at::kDouble);
    std::vector<ReducedParameter> parameters = model.parameters();
    parameters.pop_back();  // the unused one is complete only when the pass has ended, and is first in the plan
    GradientReducer reducer(recorder, parameters, 1e-5);
    bool has_left = false;
    parameters[0].tensor.register_hook([&](const at::Tensor& gradient) {
        for (int i = 0; i < 3000 && !has_left; ++i) {
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
            has_left = recorder.reductions >= 1;
        }
        return gradient;
    });
    reducer.backward(model.losses(some_images(2, at::kDouble)), true);
    reducer.finish();
    EXPECT_TRUE(has_left);
}

TEST(GradientReducer, InnerMicroStepsHaveNoTraffic) {
    Recorder recorder;
    const TwoHeads model(at::kDouble);
    GradientReducer reducer(recorder, model.parameters(), 1e-5);
    reducer.backward(model.losses(some_images(2, at::kDouble)), false);
    reducer.backward(model.losses(some_images(2, at::kDouble)), false);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_TRUE(recorder.names.empty());
    reducer.backward(model.losses(some_images(2, at::kDouble)), true);
    reducer.finish();
    EXPECT_EQ(recorder.names, bucket_names(reducer));
}

TEST(GradientReducer, AFailureDuringTheBackwardPassComesOutOfFinish) {
    Recorder recorder;
    recorder.fails_at = "bucket 1";
    const TwoHeads model(at::kDouble);
    GradientReducer reducer(recorder, model.parameters(), 1e-5);
    reducer.backward(model.losses(some_images(2, at::kDouble)), true);
    try {
        reducer.finish();
        FAIL() << "finish() returned";
    } catch (const base::Error& error) {
        EXPECT_STREQ(error.what(), "the link is down");
    }
    EXPECT_EQ(recorder.names, (std::vector<std::string>{"bucket 0", "bucket 1"}));
}

/// Without its reducer a parameter trains as any other.
TEST(GradientReducer, LeavesNoHookBehind) {
    const auto single = make_single_communicator();
    const TwoHeads model(at::kDouble);
    { const GradientReducer reducer(*single, model.parameters(), 25); }
    const at::Tensor images = some_images(2, at::kDouble);
    model.trunk.mutable_grad().reset();
    torch::autograd::backward(model.losses(images).sums);
    EXPECT_TRUE(model.trunk.grad().defined());
}

TEST(FlatTensors, AdoptedParametersLiveInFlatMemoryAndStillTrain) {
    const auto single = make_single_communicator();
    const TwoHeads model(at::kDouble);
    GradientReducer reducer(*single, model.parameters(), 25);
    FlatTensors flat(reducer.layout());
    std::vector<at::Tensor> tensors;
    for (const ReducedParameter& parameter : model.parameters()) {
        tensors.push_back(parameter.tensor);
    }
    flat.adopt(tensors);
    const TwoHeads fresh(at::kDouble);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(at::equal(tensors[i], fresh.parameters()[i].tensor)) << model.parameters()[i].name;
        EXPECT_EQ(tensors[i].strides(), fresh.parameters()[i].tensor.strides());
        EXPECT_EQ(tensors[i].data_ptr(), flat.flat(i).data_ptr());
        EXPECT_TRUE(tensors[i].is_leaf() && tensors[i].requires_grad());
    }
    const at::Tensor images = some_images(4, at::kDouble);
    reducer.backward(model.losses(images), true);
    reducer.finish();
    expect_gradients(model, expected_for(images), 1e-12);

    // One step of plain gradient descent over flat memory is, bit for bit, the step of every parameter.
    for (std::size_t i = 0; i < flat.segments().size(); ++i) {
        flat.segment(i).sub_(reducer.gradients().segment(i), 0.1);
    }
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const at::Tensor stepped = fresh.parameters()[i].tensor.detach().sub(tensors[i].grad(), 0.1);
        EXPECT_TRUE(at::equal(tensors[i].detach(), stepped)) << model.parameters()[i].name;
    }
}

TEST(BufferOf, NamesTheTypeItCannotTake) {
    EXPECT_EQ(buffer_of(at::zeros({2, 3}, at::kLong)).bytes(), 48U);
    EXPECT_EQ(buffer_of(at::empty({2, 3, 4, 4}, at::kFloat).contiguous(at::MemoryFormat::ChannelsLast)).count, 96U);
    EXPECT_THROW(buffer_of(at::zeros({2}, at::kBool)), base::Error);
    EXPECT_THROW(buffer_of(at::zeros({4, 4}, at::kFloat).narrow(1, 0, 2)), base::InternalError);
}

}  // namespace
}  // namespace lockstep::comm
