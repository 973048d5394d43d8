// Trains a module of one's own on as many ranks as mpirun starts: which of two frequencies does a noisy picture hold?
#include <torch/torch.h>

#include "comm/gradient_reducer.h"
#include "comm/job_communicators.h"
#include "comm/job_watch.h"
#include "comm/partitioned_optimizer.h"
#include "trainer/models/layers.h"
#include "trainer/optimizers/update_rules.h"

using namespace lockstep;

struct Net : torch::nn::Module {
    Net() {
        conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 8, 3).padding(1).bias(false)));
        norm = register_module("norm", std::make_shared<trainer::BatchNorm2d>(8, trainer::BatchNormOptions{1e-5, 0.1}));
        out = register_module("out", torch::nn::Linear(8, 2));
    }
    at::Tensor forward(const at::Tensor& x) { return out(torch::relu(norm->forward(conv(x))).mean({2, 3})); }

    torch::nn::Conv2d conv{nullptr};
    std::shared_ptr<trainer::BatchNorm2d> norm;  // sees all ranks' pictures
    torch::nn::Linear out{nullptr};
};

// Picture `id` and its label are the same whichever rank asks.
std::pair<at::Tensor, at::Tensor> batch_of(std::int64_t first, std::int64_t count) {
    std::vector<at::Tensor> pictures, labels;
    for (std::int64_t id = first; id < first + count; ++id) {
        torch::manual_seed(id);
        const at::Tensor wave = torch::sin(torch::arange(16) * (id % 2 == 0 ? 0.7 : 1.4)).expand({1, 16, 16});
        pictures.push_back(wave + 0.5 * torch::randn({1, 16, 16}));
        labels.push_back(torch::tensor(id % 2));
    }
    return {torch::stack(pictures), torch::stack(labels)};
}

int train(comm::JobWatch& watch) {
    const comm::JobCommunicators job({}, watch.log());
    const auto gradients = job.make("gradients", {.beside_compute = true}), statistics = job.make("batch norm");
    const std::int64_t rank = index_of(gradients->rank()), ranks = gradients->size(), batch = 16;

    torch::manual_seed(1);
    const auto net = std::make_shared<Net>();
    trainer::synchronise_batch_norms(*net, [&](std::span<double> sums, const std::string& layer, auto) {
        statistics->all_reduce(comm::Buffer::of(sums), comm::ReduceOp::sum, layer);
    });
    std::vector<comm::ReducedParameter> reduced;
    for (const auto& parameter : net->named_parameters()) {
        reduced.push_back({parameter.key(), parameter.value()});
    }
    // ZeRO stage 2: each rank keeps and updates a part of gradients and momentum, and all get the new parameters.
    comm::GradientReducer reducer(*gradients, reduced, /*bucket_mib=*/1, comm::ZeroStage::gradients);
    comm::PartitionedOptimizer optimizer(*gradients, reducer.layout(), reducer.partition(), net->parameters(),
                                         [&](const comm::OwnedRange& range) { return reducer.owned_gradient(range); },
                                         std::make_unique<trainer::SgdRule>(), {.clip_norm = 10});
    optimizer.broadcast_parameters();

    for (std::int64_t step = 0; step < 60; ++step) {
        // Shares may be uneven: sums are divided once, by the count over all ranks.
        const std::int64_t begin = batch * rank / ranks, end = batch * (rank + 1) / ranks;
        const auto [pictures, labels] = batch_of(step * batch + begin, end - begin);
        const at::Tensor loss = at::cross_entropy_loss(net->forward(pictures), labels, {}, at::Reduction::Sum);
        reducer.zero();
        reducer.backward({{loss}, {torch::tensor(double(end - begin))}, {loss.detach().reshape({1})}}, true);
        const comm::Denominators all = reducer.finish();
        optimizer.step(std::vector<comm::UpdateScalars>(
            reducer.layout().entries().size(),
            {.learning_rate = 0.05, .momentum = 0.9, .gradient_factor = 1 / all.per_head[0], .step = step + 1}));
        if (rank == 0 && step % 20 == 19) {
            std::printf("step %ld, loss %.4f\n", long(step + 1), all.parts[0][0] / all.per_head[0]);
        }
    }
    return 0;
}

int main() {
    return comm::run_ranks(train);
}
