#include "trainer/trainer.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/resources.h"
#include "comm/gathered_parameters.h"
#include "comm/gradient_reducer.h"
#include "comm/partitioned_optimizer.h"
#include "comm/rank_log.h"
#include "sharding/loader.h"
#include "sharding/preprocessed_cache.h"
#include "sharding/redis_cache.h"
#include "trainer/checkpoint_writer.h"
#include "trainer/loader_options.h"
#include "trainer/models/layers.h"
#include "trainer/models/network_of_units.h"
#include "trainer/node_cache.h"
#include "trainer/optimizers/parameter_groups.h"
#include "trainer/optimizers/update_rules.h"
#include "trainer/precision.h"
#include "trainer/rank_cores.h"
#include "trainer/report.h"
#include "trainer/run_agreement.h"
#include "trainer/run_directory.h"
#include "trainer/running_statistics.h"
#include "trainer/schedule.h"
#include "trainer/start_table.h"
#include "trainer/stop_request.h"
#include "trainer/task.h"
#include "trainer/telemetry/metrics_server.h"
#include "trainer/telemetry/step_times.h"
#include "trainer/telemetry/trace_file.h"
#include "trainer/trainable_parameters.h"
#include "trainer/weights_file.h"

namespace lockstep::trainer {
namespace {

namespace fs = std::filesystem;
using base::Error;
using base::fixed;
using base::str;
using nlohmann::json;

constexpr std::size_t report_pictures = 12;
constexpr double resource_reading_seconds = 5;

std::vector<RunningStatistics::NamedBuffer> buffers_of(torch::nn::Module& network) {
    std::vector<RunningStatistics::NamedBuffer> buffers;
    for (const auto& item : network.named_buffers()) {
        buffers.emplace_back(item.key(), item.value());
    }
    return buffers;
}

sharding::EpochOrder order_of(const Recipe& recipe, std::uint64_t size) {
    using enum sharding::OrderKind;
    const std::string& name = recipe.data.order;
    return {name == "full" ? full : (name == "block" ? block : sequential),
            static_cast<std::uint64_t>(recipe.seed),
            size,
            {.block = static_cast<std::uint64_t>(recipe.data.block),
             .window = static_cast<std::uint64_t>(recipe.data.window)}};
}

std::optional<sharding::Dataset> open_validation_data(const Recipe& recipe, const sharding::Dataset& train) {
    if (recipe.data.validation.empty()) {
        return std::nullopt;
    }
    auto data = sharding::Dataset::open(recipe.data.validation, read_path_of(recipe));
    if (data.task() != train.task()) {
        throw Error(str("one of ", recipe.data.validation, " and ", recipe.data.train,
                        " holds boxes, the other labels; take both of the same kind"));
    }
    if (data.classes() != train.classes()) {
        throw Error(str(recipe.data.validation, " has the classes [", base::join(data.classes(), ", "), "], but ",
                        recipe.data.train, " has [", base::join(train.classes(), ", "),
                        "]; import both with the same --classes"));
    }
    return data;
}

NetworkOfUnits& units_of(Task& task) {
    auto* const network = dynamic_cast<NetworkOfUnits*>(&task.network());
    if (network == nullptr) {
        throw base::UsageError("optimizer.zero_stage = 3 needs a network of units (NetworkOfUnits), and this is none");
    }
    return *network;
}

/// None: buckets may mix them.
std::vector<std::vector<std::string>> units_to_gather(const Recipe& recipe, Task& task) {
    return gathers_parameters(recipe) ? units_of(task).unit_prefixes() : std::vector<std::vector<std::string>>{};
}

}  // namespace

struct Trainer::State {
    Recipe recipe;
    Communicators comms;
    comm::Topology topology;
    unsigned cores_per_rank;
    sharding::Dataset train;
    std::optional<sharding::Dataset> validation;
    std::optional<sharding::Dataset> preprocessed;       ///< the training set's samples, from data.disk_cache
    std::shared_ptr<sharding::RedisCache> shared_cache;  ///< data.shared_cache; null: none
    NodeCache node_cache;
    std::unique_ptr<Task> task;
    TrainableParameters parameters;
    comm::GradientReducer reducer;
    std::unique_ptr<comm::GatheredParameters> gathered;  ///< null: they are always whole
    comm::PartitionedOptimizer optimizer;
    RunningStatistics statistics;
    sharding::BatchOrder batches;
    std::uint64_t steps_per_epoch;
    Schedule schedule;
    Progress progress;
    std::uint32_t checkpoint_checksum = 0;  ///< of the one that the run went on from
    sharding::Ledger ledger;
    fs::path run_path;
    std::optional<RunDirectory> run;                ///< on rank 0
    std::unique_ptr<MetricsServer> metrics_server;  ///< there, too; null: telemetry.prometheus asks for none
    CheckpointWriter checkpoints;

    // Sums over the epoch under way, for its line in the metrics.
    struct EpochSums {
        StepTimes times;  ///< of this rank
        double skew = 0;  ///< seconds between the first rank and the last, over steps
        std::uint64_t steps = 0, images = 0;
        double pixels = 0;                ///< that the network was given, padding included
        sharding::CacheUse cache_use;     ///< of this rank
        double saving = 0;                ///< seconds that training stood still for checkpoints and weights
        std::uint64_t skipped = 0;        ///< samples
        std::uint64_t skipped_steps = 0;  ///< not finite
    } epoch_sums;
    StepTimes step_times;           ///< of the step under way
    double batch_norm_seconds = 0;  ///< of the step under way: in batch norm's collectives
    std::uint64_t profiled_steps, steps_of_process = 0;
    comm::SentData sent_before_epoch;
    double training_seconds = 0, training_wait = 0, training_saving = 0, training_pixels = 0;
    std::uint64_t training_images = 0;
    std::uint64_t peak_pss = 0;
    double last_resource_reading = -1e9;
    Evaluation last_evaluation;
    std::optional<std::uint64_t> evaluated_at;  ///< the optimizer step of last_evaluation
    std::string last_step_text;

    State(Recipe the_recipe, const RunStart& start, Communicators communicators, comm::Topology the_topology);

    bool is_first() const { return comm::index_of(comms.control.rank()) == 0; }
    std::uint64_t ranks() const { return static_cast<std::uint64_t>(comms.control.size()); }
    double average_decay() const;
    std::uint64_t skipped_of_ranks(std::uint64_t own);
    void agree_on_start();
    void agree_on_values();
    void broadcast_state();
    void start_metrics_server();
    void start_run_directory(const RunStart& start);
    void log_metrics(const json& line);
    comm::TrainingBytes bytes_of_rank() const;
    comm::SentData sent_so_far() const;
    StartFacts start_facts() const;

    void train_step(const sharding::Batch& batch, double started);
    void report_not_finite(const sharding::Batch& batch, const std::string& what,
                           std::span<const at::Tensor> own_losses) const;
    void take_result(json& line);
    bool is_at_end() const;
    bool has_ended() const;
    bool stopped_early() const;
    std::vector<double> divisors(const comm::Denominators& counts, std::uint64_t images) const;
    bool has_pixel_budget() const { return recipe.scaling.pixel_budget > 0; }
    std::optional<double> images_of_average_step() const;
    std::string shapes_text() const;
    void warn_of_idle_ranks() const;
    void add_pixels(json& line, double pixels, std::uint64_t images) const;
    json loss_parts(const comm::Denominators& counts, double& total) const;
    bool reached_step_limit() const;
    std::string display_text() const;
    bool agree_after_step(const StopRequest& stop);
    template <typename Work>
    void while_standing_still(Work work);
    bool nothing_is_left();
    json epoch_line(std::uint64_t epoch, std::uint64_t steps);
    sharding::CacheUse cache_use_of_ranks();
    void evaluate_into(json& line, std::size_t pictures);
    void finish_epoch();
    void check_ledger();
    sharding::Ledger total_ledger();
    void read_resources();
    /// What the stop report says that this rank was at.
    void enter(std::string_view phase);
    void gather_while_used();
    template <typename Work>
    auto with_whole_parameters(Work work);
    void profile();
    Error out_of_memory(const sharding::Batch& batch, std::string_view why) const;
    template <typename Work>
    void timed(StepPart part, Work work);
    Evaluation evaluate(std::size_t pictures);
    void swap_average();
    void save(bool with_weights);
    void save_at_the_end();
    void save_weights(const char* file);
    void load(const CheckpointContent& content, const fs::path& path);
    std::map<std::string, at::Tensor> named_buffers();
    std::vector<TensorPiece> pieces_to_save() const;
    void close_epoch_sums();
    void finish_run();
    double greatest_of_ranks(double value, const char* name);
};

namespace {

/// The weights come from a checkpoint then.
Recipe without_initial_weights(Recipe recipe) {
    recipe.initial_weights.clear();
    return recipe;
}

/// Collective. First of all, since ranks of different recipes would not even call the same operations.
Recipe agreed(Recipe recipe, comm::Communicator& control) {
    require_same_recipe(control, recipe);
    return recipe;
}

std::string content_text(const sharding::Dataset& data) {
    return str("content hash ", data.content_hash());
}

/// Collective. A node-local copy of a data set may be another one; with other classes, the model would be, too.
std::optional<sharding::Dataset> agreed(std::optional<sharding::Dataset> validation, const sharding::Dataset& train,
                                        comm::Communicator& control) {
    const std::array items{
        comm::agreement_item("training data set", content_text(train)),
        comm::agreement_item("validation data set", validation ? content_text(*validation) : std::string("none"))};
    comm::require_agreement(control, items, "on the data", "All ranks have to read the same data sets");
    return validation;
}

/// Collective. Gathered parameters are told from those of a node's first rank, where each node holds a set of shards.
TrainableParameters alike_on_all_nodes(TrainableParameters parameters, const Communicators& comms) {
    if (comms.parameters && comms.replicas) {
        const at::NoGradGuard no_grad;
        for (std::size_t i = 0; i < parameters.tensors.size(); ++i) {
            comms.gradients.broadcast(comm::buffer_of(parameters.tensors[i]), comm::Rank{0}, parameters.names[i]);
        }
    }
    return parameters;
}

std::shared_ptr<sharding::RedisCache> open_shared_cache(const Recipe& recipe, const sharding::Dataset& train,
                                                        const sharding::LoaderOptions& options) {
    const std::string& url = recipe.data.shared_cache;
    if (url.empty()) {
        return nullptr;
    }
    if (train.encoding() == sharding::Encoding::raw) {
        throw base::UsageError(
            str("data.shared_cache: ", recipe.data.train, " holds decoded images already; leave the key out"));
    }
    try {
        return std::make_shared<sharding::RedisCache>(
            sharding::RedisAddress::parse(url),
            sharding::decoded_pixels_fingerprint(train, {.image_size = options.image_size, .decode = options.decode}));
    } catch (const base::UsageError& error) {
        throw base::UsageError(str("data.shared_cache = ", error.what()));
    }
}

/// LibTorch's allocator on the CPU has no type of error of its own.
bool says_out_of_memory(const c10::Error& error) {
    return std::string_view(error.what_without_backtrace()).find("DefaultCPUAllocator") != std::string_view::npos ||
           dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
}

double ratio(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

}  // namespace

Trainer::State::State(Recipe the_recipe, const RunStart& start, Communicators communicators,
                      comm::Topology the_topology)
    : recipe(agreed(std::move(the_recipe), communicators.control)),
      comms(communicators),
      topology(std::move(the_topology)),
      cores_per_rank(use_cores_of_rank(comms.control, topology)),
      train(sharding::Dataset::open(recipe.data.train, read_path_of(recipe))),
      validation(agreed(open_validation_data(recipe, train), train, comms.control)),
      task(make_task(start.checkpoint ? without_initial_weights(recipe) : recipe, train)),
      parameters(alike_on_all_nodes(TrainableParameters(task->network(), recipe.optimizer.rate_factors), comms)),
      reducer(comms.shard_scope(), parameters.reduced(*task, units_to_gather(recipe, *task)),
              recipe.communication.bucket_mib, static_cast<comm::ZeroStage>(recipe.optimizer.zero_stage)),
      gathered(gathers_parameters(recipe)
                   ? std::make_unique<comm::GatheredParameters>(*comms.parameters, reducer.layout(),
                                                                reducer.partition(), parameters.tensors)
                   : nullptr),
      optimizer(
          comms.shard_scope(), reducer.layout(), reducer.partition(), parameters.tensors,
          [this](const comm::OwnedRange& range) { return reducer.owned_gradient(range); }, make_update_rule(recipe),
          {recipe.clip_norm, recipe.ema.enabled}, gathered.get()),
      statistics(buffers_of(task->network())),
      batches(sharding::batch_order(train, order_of(recipe, train.size()), loader_options(recipe, cores_per_rank))),
      steps_per_epoch(batches.steps_per_epoch()),
      schedule(recipe, steps_per_epoch, images_of_average_step()),
      run_path(start.directory),
      checkpoints(start.directory, recipe.checkpoint.keep, comms.control),
      profiled_steps(start.profiled_steps) {
    check_recipe(recipe, static_cast<std::int64_t>(ranks()));
    require_precision_of_processor(recipe);
    if (gathered && !parameters.frozen.empty()) {
        throw base::UsageError(
            "optimizer.rate_factors that freeze parameters don't go with optimizer.zero_stage = 3; "
            "use stage 2, or a small factor instead of 0");
    }
    auto options = loader_options(recipe, cores_per_rank);
    // Its constructor refuses what it can't do: better here than when a run directory lies there.
    [[maybe_unused]] const sharding::Augmenter probe(options.augmentation, train.task(), options.image_size,
                                                     options.seed, options.closing_epoch, train.size());
    if (!recipe.data.disk_cache.empty()) {
        if (train.encoding() == sharding::Encoding::raw) {
            throw base::UsageError(
                str("data.disk_cache: ", recipe.data.train, " holds decoded images already; leave the key out"));
        }
        preprocessed = sharding::open_preprocessed_cache(
            train, recipe.data.disk_cache,
            {.image_size = options.image_size, .verify_checksums = options.verify_checksums, .decode = options.decode},
            cores_per_rank);
        options.preprocessed = &*preprocessed;
    }
    shared_cache = open_shared_cache(recipe, train, options);
    node_cache = make_node_cache(train, options, comms.node_memory,
                                 topology.ranks_of_node(topology.node_of(comms.control.rank())).size());
    warn_of_idle_ranks();
    if (start.checkpoint) {
        load(load_checkpoint(*start.checkpoint), *start.checkpoint);
    }
    if (recipe.batch_norm == "sync") {
        synchronise_batch_norms(
            task->network(), [this](std::span<double> values, const std::string& layer, BatchNormPass pass) {
                batch_norm_seconds += base::seconds_of([&] {
                    comms.batch_norm.all_reduce(comm::Buffer::of(values), comm::ReduceOp::sum,
                                                str(layer, pass == BatchNormPass::forward ? " forward" : " backward"));
                });
            });
    }
    if (gathered) {
        gather_while_used();
    }
    agree_on_start();
    broadcast_state();
    agree_on_values();
    if (!start.checkpoint) {
        optimizer.restart_average();
    }
    if (is_first()) {
        start_metrics_server();
        start_run_directory(start);
        std::fputs(start_table(recipe, start_facts()).c_str(), stderr);
    }
    sent_before_epoch = sent_so_far();
}

/// Of gradients, and what goes with them.
comm::SentData Trainer::State::sent_so_far() const {
    return comms.replicas ? comms.gradients.sent() + comms.replicas->sent() : comms.gradients.sent();
}

/// Collective. A checkpoint may be seen by some ranks only.
void Trainer::State::agree_on_start() {
    std::vector<comm::AgreementItem> items{comm::agreement_item(
        "checkpoint", str("of step ", progress.optimizer_steps, ", CRC-32C ", checkpoint_checksum))};
    std::ranges::move(agreement_on_layout(parameters, reducer.layout()), std::back_inserter(items));
    comm::require_agreement(comms.control, items, "before the first step", "All ranks have to read the same files");
}

/// Collective. Gathered parameters have one owner each, and nothing to be compared with.
void Trainer::State::agree_on_values() {
    if (gathered) {
        return;
    }
    comm::require_agreement(comms.control, agreement_on_values(parameters),
                            str("after step ", progress.optimizer_steps),
                            "A bit flipped in some memory, or a machine computes wrongly: test it before it goes on");
}

/// Collective. Rank 0's values, so that no machine's arithmetic can set the ranks apart from the start.
void Trainer::State::broadcast_state() {
    optimizer.broadcast_parameters();
    const at::NoGradGuard no_grad;
    for (auto& [name, tensor] : named_buffers()) {
        const at::Tensor plain = tensor.contiguous();
        comms.gradients.broadcast(comm::buffer_of(plain), comm::Rank{0}, name);
        tensor.copy_(plain);
    }
}

double Trainer::State::average_decay() const {
    return recipe.ema.decay * (1 - std::exp(-static_cast<double>(optimizer.steps() + 1) / recipe.ema.tau));
}

void Trainer::State::start_run_directory(const RunStart& start) {
    if (start.checkpoint) {
        remove_checkpoints_after(run_path, progress.optimizer_steps);
        run = RunDirectory::resume(run_path, progress.optimizer_steps, !has_ended());
    } else if (start.may_start_over && holds_run(run_path)) {
        base::log_warning(str(run_path.string(), " holds a run that left no whole checkpoint; it starts over"));
        remove_checkpoints_after(run_path, 0);
        run = RunDirectory::resume(run_path, 0);
    } else {
        run = RunDirectory::create(run_path);
    }
    run->write_recipe(recipe);
    std::vector<std::string> hosts;
    for (std::int32_t rank = 0; rank < topology.ranks(); ++rank) {
        hosts.push_back(topology.host_of(comm::Rank{rank}));
    }
    run->write_environment(hosts);
}

void Trainer::State::start_metrics_server() {
    if (!recipe.telemetry.prometheus.empty()) {
        metrics_server = std::make_unique<MetricsServer>(
            recipe.telemetry.prometheus,
            std::map<std::string, std::string>{
                {"run", run_path.string()}, {"model", recipe.model}, {"ranks", std::to_string(ranks())}});
        base::log_info(str("figures for Prometheus: ", metrics_server->url()));
    }
}

/// On rank 0.
void Trainer::State::log_metrics(const json& line) {
    run->log_metrics(line);
    if (metrics_server) {
        metrics_server->update(line);
    }
}

comm::TrainingBytes Trainer::State::bytes_of_rank() const {
    comm::TrainingBytes bytes = optimizer.bytes();
    bytes.gradients = reducer.gradient_bytes();
    return bytes;
}

StartFacts Trainer::State::start_facts() const {
    return {.ranks = ranks(),
            .nodes = static_cast<std::uint64_t>(topology.nodes()),
            .cores_per_rank = cores_per_rank,
            .training_images = train.size(),
            .training_boxes = train.box_count(),
            .shuffle_quality = batches.samples().shuffle_quality(progress.epoch),
            .classes = train.classes().size(),
            .room_for_boxes = room_for_boxes(recipe, train),
            .validation_images = validation ? std::optional(validation->size()) : std::nullopt,
            .validation_boxes = validation ? validation->box_count() : 0,
            .shapes = shapes_text(),
            .decoded_images = node_cache.describe(),
            .images_of_average_step = images_of_average_step(),
            .steps_per_epoch = steps_per_epoch,
            .total_steps = schedule.total_steps(),
            .warmup_steps = schedule.warmup_steps(),
            .peak_rate = schedule.peak_rate(),
            .parameters = parameters.count(),
            .zero_stage = recipe.optimizer.zero_stage,
            .bytes = bytes_of_rank(),
            .predicted_bytes =
                comm::predicted_bytes(reducer.layout(), comms.shard_scope().shards.size(), reducer.partition().stage(),
                                      optimizer.state_names().size(), recipe.ema.enabled),
            .progress = progress};
}

double Trainer::State::greatest_of_ranks(double value, const char* name) {
    comms.control.all_reduce(comm::Buffer::of(std::span<double>(&value, 1)), comm::ReduceOp::max, name);
    return value;
}

std::vector<double> Trainer::State::divisors(const comm::Denominators& counts, std::uint64_t images) const {
    // Batches filled by pixels hold unlike numbers of images: so that an image weighs the same in each, a mean counts
    // by the images that it is taken over, as a sum does anyway.
    const double weight = loss_is_sum(recipe) ? static_cast<double>(images)
                                              : static_cast<double>(images) /
                                                    images_of_average_step().value_or(static_cast<double>(images));
    std::vector<double> result;
    for (double count : counts.per_head) {
        result.push_back(std::max(count, 1.0) / weight);
    }
    return result;
}

/// Where pixels bound the batch; elsewhere the recipe says it.
std::optional<double> Trainer::State::images_of_average_step() const {
    return has_pixel_budget() ? std::optional(static_cast<double>(train.size()) / static_cast<double>(steps_per_epoch))
                              : std::nullopt;
}

/// Nothing is wrong with a batch of fewer images than ranks, but time is lost.
void Trainer::State::warn_of_idle_ranks() const {
    if (!has_pixel_budget() || !is_first()) {
        return;
    }
    const auto canvases = batches.canvases();
    const sharding::Canvas largest = *std::ranges::max_element(canvases, {}, &sharding::Canvas::pixels);
    const double room =
        std::max(1.0, std::floor(recipe.scaling.pixel_budget * 1e6 / static_cast<double>(largest.pixels())));
    const auto wanted = static_cast<double>(ranks()) * static_cast<double>(recipe.accumulate);
    if (room < wanted) {
        base::log_warning(str("scaling.pixel_budget = ", recipe.scaling.pixel_budget, " leaves room for ", room,
                              " image(s) of ", largest.width, "x", largest.height, ", and ", ranks(), " rank(s) x ",
                              recipe.accumulate, " micro-step(s) need ", wanted,
                              ": some ranks have nothing to do in such steps"));
    }
}

/// For the start table; empty where all images have one size.
std::string Trainer::State::shapes_text() const {
    if (recipe.scaling.rule == "fixed") {
        return {};
    }
    const auto canvases = batches.canvases();
    const auto [least, most] = std::ranges::minmax(canvases, {}, &sharding::Canvas::pixels);
    const auto pixels = static_cast<double>(batches.pixels_of_epoch(progress.epoch));
    json saved;
    add_pixels(saved, pixels, train.size());
    const std::uint32_t side = batches.largest_side();
    return str(canvases.size(), ", from ", least.width, "x", least.height, " to ", most.width, "x", most.height, "; ",
               fixed(saved["megapixels"], 1), " megapixels in the coming epoch, ",
               fixed(100 * saved["compute_saved"].get<double>(), 1), "% less than in squares of ", side);
}

/// What the network is given, and which part less that is than the same images in the largest squares that the rule
/// knows. All but the attention of a convolutional network costs by the pixel.
void Trainer::State::add_pixels(json& line, double pixels, std::uint64_t images) const {
    line["megapixels"] = pixels / 1e6;
    if (recipe.scaling.rule != "fixed") {
        const double side = batches.largest_side();
        line["compute_saved"] = images > 0 ? 1 - pixels / (static_cast<double>(images) * side * side) : 0;
    }
}

json Trainer::State::loss_parts(const comm::Denominators& counts, double& total) const {
    json parts = json::object();
    const auto names = task->part_names();
    total = 0;
    for (std::size_t head = 0; head < names.size(); ++head) {
        for (std::size_t part = 0; part < names[head].size(); ++part) {
            const double value = counts.parts[head][part] / std::max(counts.per_head[head], 1.0);
            parts[names[head][part]] = value;
            total += value;
        }
    }
    return parts;
}

void Trainer::State::train_step(const sharding::Batch& batch, double started) {
    step_times = {};
    step_times[StepPart::data_wait] = batch.wait_seconds;
    batch_norm_seconds = 0;
    reducer.zero();
    if (recipe.on_nan == "skip") {
        statistics.keep();  // a forward pass may carry its NaN into them
    }
    std::uint64_t own_images = 0;
    std::uint64_t skipped_now = 0;
    std::vector<at::Tensor> own_losses;
    for (const sharding::MicroBatch& micro : batch.micro_steps()) {
        comm::LossSums sums;
        enter("forward");
        timed(StepPart::forward, [&] { sums = task->losses(micro); });
        enter("backward");
        timed(StepPart::backward, [&] { reducer.backward(sums, &micro == &batch.micro.back()); });
        own_losses.push_back(at::cat(sums.parts).sum());
        own_images += micro.count;
        for (std::uint64_t id : micro.sample_ids) {
            ledger.enter(id);
        }
        for (const sharding::SkippedSample& skipped : micro.skipped) {
            ledger.enter(skipped.id);
            base::log_warning(str("skipped, by data.on_bad_sample: ", skipped.reason));
        }
        skipped_now += micro.skipped.size();
    }
    comm::Denominators counts;
    enter("waiting for gradients");
    timed(StepPart::rank_wait, [&] { counts = reducer.finish(); });
    const comm::ExposedTime gradients = reducer.exposed();
    step_times[StepPart::rank_wait] = std::max(0.0, step_times[StepPart::rank_wait] - gradients.communication_seconds);
    enter("optimizer");
    skipped_now = skipped_of_ranks(skipped_now);
    epoch_sums.skipped += skipped_now;
    const std::uint64_t images = batch.positions.count() - skipped_now;
    if (images == 0) {
        throw Error(str("epoch ", batch.epoch + 1, ", step ", batch.step + 1,
                        ": every sample of the batch was skipped (", skipped_now,
                        "): the data set is damaged; 'lockstep verify' names what is wrong"));
    }
    StepRates rates = schedule.at(progress.optimizer_steps);
    rates.learning_rate *= progress.plateau_factor;
    rates.bias_learning_rate *= progress.plateau_factor;
    double loss = 0;
    const json parts = loss_parts(counts, loss);
    const double decay = average_decay();
    double norm = std::numeric_limits<double>::quiet_NaN();
    double exchange_seconds = 0;
    if (std::isfinite(loss)) {
        timed(StepPart::optimizer, [&] {
            norm =
                optimizer.step(update_scalars(reducer.layout(), parameters.groups, rates, recipe.optimizer.weight_decay,
                                              divisors(counts, images), decay, parameters.rate_factors));
        });
        exchange_seconds = optimizer.exchange_seconds();
        step_times[StepPart::optimizer] -= exchange_seconds;
    }
    enter("end of a step");
    // The same on all ranks, since both are sums over them.
    const bool has_effect = std::isfinite(norm);
    if (!has_effect) {
        const std::string what = std::isfinite(loss) ? str("the gradient's norm is ", norm)
                                                     : str("the loss is ", loss, ", of the parts ", parts.dump());
        report_not_finite(batch, what, own_losses);
        statistics.put_back();
        ++progress.skipped_steps;
        ++epoch_sums.skipped_steps;
    } else {
        if (recipe.batch_norm == "local") {
            batch_norm_seconds +=
                base::seconds_of([&] { statistics.average_over_ranks(comms.batch_norm, own_images, images); });
        }
        statistics.update_average(decay);
        progress.epoch_loss += loss;
    }
    ++progress.optimizer_steps;
    ++progress.step_in_epoch;

    const double seconds = base::monotonic_seconds() - started;
    const double exposed = gradients.communication_seconds + exchange_seconds + batch_norm_seconds;
    step_times[StepPart::communication] = exposed;
    step_times.fill_up(seconds);
    epoch_sums.times += step_times;
    ++epoch_sums.steps;
    epoch_sums.cache_use += batch.cache_use;
    epoch_sums.skew += gradients.skew_seconds;
    epoch_sums.images += images;
    const sharding::MicroBatch& shape = batch.micro.front();
    const double pixels = static_cast<double>(images) * shape.width * shape.height;
    epoch_sums.pixels += pixels;
    if (is_first()) {
        last_step_text = str("loss ", fixed(loss, 3));
        for (const auto& [name, value] : parts.items()) {
            last_step_text += str(" ", name, " ", fixed(value, 3));
        }
        last_step_text += str(", rate ", rates.learning_rate);
        json line = {{"kind", "step"},
                     {"epoch", batch.epoch + 1},
                     {"step", progress.optimizer_steps},
                     {"loss", loss},
                     {"learning_rate", rates.learning_rate},
                     {"gradient_norm", norm},
                     {"clipped", recipe.clip_norm > 0 && norm > recipe.clip_norm},
                     {"denominators", counts.per_head},
                     {"images", images},
                     {"step_seconds", seconds},
                     {"data_wait_seconds", batch.wait_seconds},
                     {"forward_seconds", step_times[StepPart::forward]},
                     {"backward_seconds", step_times[StepPart::backward]},
                     {"optimizer_seconds", step_times[StepPart::optimizer]},
                     {"exposed_communication_seconds", exposed},
                     {"communication_core_seconds", gradients.core_seconds},
                     {"rank_skew_seconds", gradients.skew_seconds}};
        line.update(parts);
        if (recipe.scaling.rule != "fixed") {
            line["width"] = shape.width;
            line["height"] = shape.height;
        }
        if (!has_effect) {
            line["skipped_step"] = true;
        }
        log_metrics(line);
    }
}

/// Throws, or warns where such steps are skipped. Every rank says what it knows of its own samples, and the stop report
/// brings that together.
void Trainer::State::report_not_finite(const sharding::Batch& batch, const std::string& what,
                                       std::span<const at::Tensor> own_losses) const {
    std::vector<std::string> samples;
    for (std::size_t i = 0; i < own_losses.size(); ++i) {
        if (!std::isfinite(own_losses[i].item<double>())) {
            for (const std::uint64_t id : batch.micro.at(i).sample_ids) {
                samples.push_back(std::to_string(id));
            }
        }
    }
    const std::string tensor = optimizer.first_not_finite_gradient();
    const std::string text =
        str("step ", progress.optimizer_steps + 1, " (epoch ", batch.epoch + 1, "): ", what,
            tensor.empty() ? std::string() : "; the first gradient that isn't finite is " + tensor + "'s",
            samples.empty()
                ? std::string("; the loss of this rank's own samples is finite")
                : "; this rank's loss is not finite in a micro-step of the samples " + base::join(samples, ", "));
    if (recipe.on_nan == "stop") {
        throw Error(
            str(text,
                "; lower optimizer.learning_rate, lengthen schedule.warmup_epochs, use precision = \"fp32\", or "
                "go on without such steps: on_nan = \"skip\". Nothing was saved after step ",
                progress.optimizer_steps));
    }
    if (is_first() || !samples.empty()) {
        base::log_warning(str(text, "; the step is skipped, by on_nan"));
    }
}

bool Trainer::State::reached_step_limit() const {
    return recipe.max_steps > 0 && progress.optimizer_steps >= static_cast<std::uint64_t>(recipe.max_steps);
}

std::string Trainer::State::display_text() const {
    return str("epoch ", progress.epoch + 1, "/", recipe.epochs, ", ", last_step_text, ", ",
               fixed(ratio(static_cast<double>(epoch_sums.images), epoch_sums.times.total()), 1),
               " images/s, data wait ",
               fixed(100 * ratio(epoch_sums.times[StepPart::data_wait], epoch_sums.times.total()), 1), "%, memory ",
               base::human_bytes(static_cast<double>(peak_pss)));
}

/// Collective. Whether a rank was asked to stop. A checkpoint that every rank has written its part of goes on.
bool Trainer::State::agree_after_step(const StopRequest& stop) {
    std::array<std::int32_t, 2> flags = {stop.signal() != 0 ? 1 : 0, checkpoints.is_busy() ? 1 : 0};
    comms.control.all_reduce(comm::Buffer::of(std::span<std::int32_t>(flags)), comm::ReduceOp::max,
                             "agreement after a step");
    if (checkpoints.is_under_way() && flags[1] == 0) {
        while_standing_still([&] { checkpoints.advance(); });
    }
    return flags[0] != 0;
}

/// Work for a checkpoint that training waits for.
template <typename Work>
void Trainer::State::while_standing_still(Work work) {
    epoch_sums.saving += base::seconds_of(work);
}

/// Collective where the recipe lets samples be skipped; elsewhere there are none.
std::uint64_t Trainer::State::skipped_of_ranks(std::uint64_t own) {
    if (recipe.data.on_bad_sample != "skip") {
        return 0;
    }
    auto count = static_cast<std::int64_t>(own);
    comms.control.all_reduce(comm::Buffer::of(std::span<std::int64_t>(&count, 1)), comm::ReduceOp::sum,
                             "skipped samples");
    return static_cast<std::uint64_t>(count);
}

/// Collective. 64-bit wrapping sums, sent as halves that can't overflow.
sharding::Ledger Trainer::State::total_ledger() {
    constexpr std::uint64_t low = 0xffffffff;
    std::array<std::int64_t, 3> halves = {static_cast<std::int64_t>(ledger.count),
                                          static_cast<std::int64_t>(ledger.hash & low),
                                          static_cast<std::int64_t>(ledger.hash >> 32)};
    comms.control.all_reduce(comm::Buffer::of(std::span<std::int64_t>(halves)), comm::ReduceOp::sum,
                             "ledger of samples");
    return {static_cast<std::uint64_t>(halves[0]),
            static_cast<std::uint64_t>(halves[1]) + (static_cast<std::uint64_t>(halves[2]) << 32)};
}

void Trainer::State::enter(std::string_view phase) {
    if (const auto& log = comms.control.identity().log) {
        log->enter(phase, static_cast<std::int64_t>(progress.optimizer_steps));
    }
}

/// What to do where memory ran out, in place of an allocator's message.
Error Trainer::State::out_of_memory(const sharding::Batch& batch, std::string_view why) const {
    const std::uint32_t images = std::ranges::max(batch.micro, {}, &sharding::MicroBatch::count).count;
    std::int64_t finer = 2 * recipe.accumulate;
    while (finer <= recipe.batch && (recipe.batch % finer != 0 || recipe.batch / finer < comms.control.size())) {
        ++finer;
    }
    const std::string remedy =
        finer <= recipe.batch
            ? str("accumulate = ", finer, " keeps the effective batch of ", recipe.batch, " with fewer of them at once")
            : str("no accumulation of batch = ", recipe.batch, " on ", ranks(), " rank(s) is finer; a smaller batch");
    return Error(str("step ", progress.optimizer_steps + 1, ": out of memory with ", images, " images of ",
                     batch.micro.front().width, "x", batch.micro.front().height, " in a micro-step of ",
                     base::process_name(), " (", base::human_bytes(static_cast<double>(base::pss_bytes())),
                     " in use): ", remedy, "; a smaller image_size or fewer ranks a machine need less, too. ", why));
}

/// A part of the step under way; what batch norm's collectives take meanwhile counts as communication.
template <typename Work>
void Trainer::State::timed(StepPart part, Work work) {
    const double in_batch_norm = batch_norm_seconds;
    step_times[part] += base::seconds_of(work);
    step_times[part] -= batch_norm_seconds - in_batch_norm;
}

/// Before each step, and at the end of the run: begins to draw, or is done with it. Collective.
void Trainer::State::profile() {
    constexpr std::uint64_t warm_up = 5;
    const auto& log = comms.control.identity().log;
    if (profiled_steps == 0 || !log) {
        return;
    }
    if (steps_of_process == warm_up && !is_at_end()) {
        log->start_spans();
    } else if (steps_of_process == warm_up + profiled_steps || is_at_end()) {
        const fs::path file = run_path / "trace.json";
        write_trace(file, log->take_spans(), comms.control);
        profiled_steps = 0;
        if (is_first()) {
            base::log_info(str("what the ranks did when: ", file.string(), ", for ui.perfetto.dev"));
        }
    }
}

void Trainer::State::check_ledger() {
    const auto seen = total_ledger();
    const auto expected = sharding::Ledger::whole(train.size());
    if (seen != expected) {
        throw Error(str("epoch ", progress.epoch + 1, ": the ledger of samples is wrong: ", seen.count,
                        " samples seen of ", expected.count,
                        seen.count == expected.count ? ", but not each of them once" : "",
                        "; the data set changed under the run, or this is a bug"));
    }
    ledger = {};
}

void Trainer::State::read_resources() {
    const double now = base::monotonic_seconds();
    if (now - last_resource_reading >= resource_reading_seconds) {
        last_resource_reading = now;
        const std::uint64_t pss = base::pss_bytes();
        peak_pss = std::max(peak_pss, pss);
        if (metrics_server) {
            metrics_server->set_memory(pss);
        }
    }
}

void Trainer::State::swap_average() {
    if (recipe.evaluation.weights != "ema") {
        return;
    }
    optimizer.swap_with_average();
    statistics.swap_with_average();
}

void Trainer::State::gather_while_used() {
    units_of(*task).set_unit_hooks(
        {[this](std::size_t unit) { gathered->before_forward(unit); },
         [this](std::size_t unit, std::span<const at::Tensor> outputs) { gathered->after_forward(unit, outputs); }});
    reducer.report_to(*gathered);
}

/// Collective.
template <typename Work>
auto Trainer::State::with_whole_parameters(Work work) {
    struct Drop {
        void operator()(comm::GatheredParameters* held) const { held->drop_all(); }
    };
    if (gathered) {
        gathered->hold_all();
    }
    const std::unique_ptr<comm::GatheredParameters, Drop> held(gathered.get());
    return work();
}

Evaluation Trainer::State::evaluate(std::size_t pictures) {
    enter("evaluation");
    swap_average();
    const EvaluationOptions options{.image_size = static_cast<std::uint32_t>(recipe.image_size),
                                    .scaling = scaling_options(recipe),
                                    .batch = static_cast<std::uint64_t>(recipe.evaluation.batch),
                                    .threads = cores_per_rank,
                                    .min_score = recipe.evaluation.min_score,
                                    .max_detections = recipe.evaluation.max_detections,
                                    .pictures = is_first() ? pictures : 0};
    Evaluation result = with_whole_parameters([&] { return task->evaluate(*validation, options, comms.control); });
    swap_average();
    evaluated_at = progress.optimizer_steps;
    return result;
}

/// Collective. Of the epoch that is under way.
sharding::CacheUse Trainer::State::cache_use_of_ranks() {
    std::array<std::int64_t, 3> counts = {static_cast<std::int64_t>(epoch_sums.cache_use.samples),
                                          static_cast<std::int64_t>(epoch_sums.cache_use.kept),
                                          static_cast<std::int64_t>(epoch_sums.cache_use.shared)};
    comms.control.all_reduce(comm::Buffer::of(std::span<std::int64_t>(counts)), comm::ReduceOp::sum, "use of caches");
    return {static_cast<std::uint64_t>(counts[0]), static_cast<std::uint64_t>(counts[1]),
            static_cast<std::uint64_t>(counts[2])};
}

/// Collective. What metrics.jsonl says of the epoch that is under way, after `steps` of its steps.
json Trainer::State::epoch_line(std::uint64_t epoch, std::uint64_t steps) {
    json line = {
        {"kind", "epoch"},
        {"epoch", epoch},
        {"step", progress.optimizer_steps},
        {"loss", ratio(progress.epoch_loss, static_cast<double>(steps - epoch_sums.skipped_steps))},
        {"seconds", epoch_sums.times.total()},
        {"images_per_second", ratio(static_cast<double>(epoch_sums.images), epoch_sums.times.total())},
        {"data_wait_fraction", ratio(epoch_sums.times[StepPart::data_wait], epoch_sums.times.total())},
        {"exposed_communication_fraction", ratio(epoch_sums.times[StepPart::communication], epoch_sums.times.total())},
        {"rank_skew_fraction", ratio(epoch_sums.skew, epoch_sums.times.total())},
        {"checkpoint_seconds", epoch_sums.saving}};
    line["step_parts"] = spread_over_ranks(epoch_sums.times, epoch_sums.steps, comms.control);
    add_pixels(line, epoch_sums.pixels, epoch_sums.images);
    const sharding::CacheUse use = cache_use_of_ranks();
    line["memory_cache_hit_rate"] = ratio(static_cast<double>(use.kept), static_cast<double>(use.samples));
    if (shared_cache) {
        line["shared_cache_hit_rate"] =
            ratio(static_cast<double>(use.shared), static_cast<double>(use.samples - use.kept));
    }
    if (preprocessed) {  // it holds every sample, so that what memory doesn't have comes from there
        line["disk_cache_hit_rate"] = 1;
    }
    if (epoch_sums.skipped > 0) {
        line["skipped_samples"] = epoch_sums.skipped;
    }
    if (epoch_sums.skipped_steps > 0) {
        line["skipped_steps"] = epoch_sums.skipped_steps;
    }
    const comm::SentData sent = sent_so_far() - sent_before_epoch;
    if (sent.bytes > 0) {
        line["gradients_sent_mib"] = static_cast<double>(sent.bytes) / (1 << 20);
    }
    if (sent.squared_values > 0) {
        line["wire_error"] = sent.relative_error();
    }
    return line;
}

/// Collective.
void Trainer::State::evaluate_into(json& line, std::size_t pictures) {
    last_evaluation = evaluate(pictures);
    line.update(json(last_evaluation.metrics));
    line["evaluation_seconds"] = last_evaluation.seconds;
    take_result(line);
}

/// What follows from an evaluation, the same on all ranks. Collective.
void Trainer::State::take_result(json& line) {
    const double result = fitness(last_evaluation);
    if (result > progress.best_fitness) {
        progress.best_fitness = result;
        progress.best_step = progress.optimizer_steps;
        progress.evaluations_since_best = 0;
        line["is_best"] = true;
        if (recipe.checkpoint.best) {
            save_weights("best.safetensors");
        }
        return;
    }
    ++progress.evaluations_since_best;
    const auto patience = static_cast<std::uint64_t>(recipe.schedule.patience);
    if (recipe.schedule.name == "plateau" && progress.evaluations_since_best % patience == 0) {
        progress.plateau_factor *= recipe.schedule.step_factor;
        if (is_first()) {
            base::log_info(str("no better result in ", progress.evaluations_since_best,
                               " evaluations: the rate goes to ", progress.plateau_factor, " of its height"));
        }
    }
}

bool Trainer::State::is_at_end() const {
    return progress.epoch >= static_cast<std::uint64_t>(recipe.epochs) || reached_step_limit() || stopped_early();
}

/// And has said so.
bool Trainer::State::has_ended() const {
    return is_at_end() && fs::exists(run_path / "summary.json");
}

bool Trainer::State::stopped_early() const {
    return recipe.evaluation.patience > 0 &&
           progress.evaluations_since_best >= static_cast<std::uint64_t>(recipe.evaluation.patience);
}

void Trainer::State::finish_epoch() {
    check_ledger();
    const std::uint64_t finished = ++progress.epoch;
    progress.step_in_epoch = 0;
    json line = epoch_line(finished, steps_per_epoch);
    progress.epoch_loss = 0;
    const auto epochs = static_cast<std::uint64_t>(recipe.epochs);
    const bool is_last = finished == epochs || reached_step_limit();
    const bool is_due = finished % static_cast<std::uint64_t>(recipe.evaluation.every_epochs) == 0 &&
                        finished >= static_cast<std::uint64_t>(recipe.evaluation.first_epoch);
    if (validation && (is_last || is_due)) {
        evaluate_into(line, is_last ? report_pictures : 0);
        if (is_first()) {
            base::log_info(str("epoch ", finished, "/", recipe.epochs, ": loss ", fixed(line["loss"], 3), ", ",
                               task->headline(), " ", fixed(last_evaluation.metrics.at(task->headline()), 4), ", ",
                               fixed(line["images_per_second"], 1), " images/s, data wait ",
                               fixed(100 * ratio(epoch_sums.times[StepPart::data_wait], epoch_sums.times.total()), 1),
                               "%"));
        }
    }
    if (is_first()) {
        log_metrics(line);
    }
    close_epoch_sums();
    const auto is_multiple = [](std::uint64_t done, std::int64_t every) {
        return every > 0 && done % static_cast<std::uint64_t>(every) == 0;
    };
    const bool is_due_by_epochs = is_multiple(finished, recipe.checkpoint.every_epochs);
    if (!is_last && (is_due_by_epochs || is_multiple(progress.optimizer_steps, recipe.checkpoint.every_steps))) {
        save(is_due_by_epochs);
    }
}

/// Buffers of the network, their moving averages, and parameters that nothing moves: the same on all ranks.
std::map<std::string, at::Tensor> Trainer::State::named_buffers() {
    std::map<std::string, at::Tensor> tensors;
    for (const auto& item : task->network().named_buffers()) {
        tensors["buffers/" + item.key()] = item.value();
    }
    for (const auto& [name, tensor] : statistics.average()) {
        tensors["average-buffers/" + name] = tensor;
    }
    for (const auto& [name, tensor] : parameters.frozen) {
        tensors["parameters/" + name] = tensor;
    }
    return tensors;
}

/// What this rank writes of parameters, averages and optimizer state. Where nothing is cut, rank 0 writes all; where
/// each node holds all shards, the first node does.
std::vector<TensorPiece> Trainer::State::pieces_to_save() const {
    std::vector<TensorPiece> pieces;
    if ((!reducer.partition().is_cut() && !is_first()) || comms.is_replica()) {
        return pieces;
    }
    for (const comm::OwnedPiece& piece : optimizer.owned_pieces()) {
        const at::Tensor& whole = parameters.tensors[piece.entry];
        pieces.push_back({piece.name, whole.sizes().vec(), whole.strides().vec(),
                          static_cast<std::uint64_t>(piece.begin), piece.values});
    }
    return pieces;
}

/// Begins to save; the checkpoint is there some steps later. Collective.
void Trainer::State::save(bool with_weights) {
    enter("saving a checkpoint");
    while_standing_still([&] {
        agree_on_values();  // what drifted apart must not become what all go on from
        const auto seen = total_ledger();
        const CheckpointContent content{.model = recipe.model,
                                        .classes = train.classes(),
                                        .progress = progress,
                                        .training_hash = training_hash(recipe),
                                        .data_hash = train.content_hash(),
                                        .ledger_count = seen.count,
                                        .ledger_hash = seen.hash,
                                        .recipe = to_toml(recipe),
                                        .tensors = named_buffers()};
        checkpoints.begin(content, pieces_to_save());
        if (with_weights) {
            save_weights("weights.safetensors");
        }
    });
}

/// Saves, with weights, and waits for it. Collective.
void Trainer::State::save_at_the_end() {
    save(true);
    while_standing_still([&] { checkpoints.finish(); });
}

/// Collective.
void Trainer::State::save_weights(const char* file) {
    swap_average();
    with_whole_parameters([&] {
        if (is_first()) {
            save_network(
                run_path / file, task->network(),
                {recipe.model, train.classes(), recipe.image_size, recipe.small_images, scaling_options(recipe)});
        }
    });
    swap_average();
}

void Trainer::State::load(const CheckpointContent& content, const fs::path& path) {
    if (content.model != recipe.model || content.classes != train.classes()) {
        throw Error(str(path.string(), " holds ", content.model, " for the classes [",
                        base::join(content.classes, ", "), "], but the recipe trains ", recipe.model, " for [",
                        base::join(train.classes(), ", "), "]"));
    }
    if (content.data_hash != train.content_hash()) {
        throw Error(str(path.string(), " was made on other training data than ", recipe.data.train,
                        " (the content hashes differ)"));
    }
    if (content.training_hash != training_hash(recipe)) {
        const auto differences = training_differences(recipe, parse_recipe(content.recipe, path.string()));
        throw base::UsageError(str(path.string(), " was made with another recipe, which this one differs from in: ",
                                   base::join(differences, ", "), ". The checkpoint's resolved recipe lies in ",
                                   (run_path / "recipe.resolved.toml").string(),
                                   ". To train on from its weights with new settings, start a new run with ",
                                   "initial_weights = \"", (run_path / "weights.safetensors").string(), "\""));
    }
    const auto saved = [&](const std::string& name, const at::Tensor& like) {
        const auto found = content.tensors.find(name);
        if (found == content.tensors.end()) {
            throw Error(str(path.string(), ": has no tensor ", name));
        }
        if (found->second.numel() != like.numel() || found->second.scalar_type() != like.scalar_type()) {
            throw Error(str(path.string(), ": tensor ", name, " has another size or type than the network's"));
        }
        return found->second.reshape(like.sizes());
    };
    const at::NoGradGuard no_grad;
    for (auto& [name, tensor] : named_buffers()) {
        tensor.copy_(saved(name, tensor));
    }
    for (std::size_t i = 0; i < parameters.tensors.size() && !gathered; ++i) {
        parameters.tensors[i].copy_(saved("parameters/" + parameters.names[i], parameters.tensors[i]));
    }
    for (const comm::OwnedPiece& piece : optimizer.owned_pieces()) {
        if (piece.name.starts_with("parameters/") && !gathered) {
            continue;  // all of them were read above
        }
        const at::Tensor& like = parameters.tensors[piece.entry];
        at::Tensor in_memory_order = at::empty_strided(like.sizes(), like.strides(), like.options());
        in_memory_order.copy_(saved(piece.name, like));
        piece.values.copy_(in_memory_order.as_strided({like.numel()}, {1})
                               .narrow(0, static_cast<std::int64_t>(piece.begin), piece.values.numel()));
    }
    progress = content.progress;
    checkpoint_checksum = content.checksum;
    optimizer.set_steps(progress.optimizer_steps - progress.skipped_steps);
    if (is_first()) {
        ledger = {content.ledger_count, content.ledger_hash};
    }
}

void Trainer::State::close_epoch_sums() {
    training_seconds += epoch_sums.times.total();
    training_wait += epoch_sums.times[StepPart::data_wait];
    training_saving += epoch_sums.saving;
    training_images += epoch_sums.images;
    training_pixels += epoch_sums.pixels;
    epoch_sums = {};
    sent_before_epoch = sent_so_far();
}

void Trainer::State::finish_run() {
    if (progress.step_in_epoch > 0) {  // max_steps cut this epoch short
        json line = epoch_line(progress.epoch + 1, progress.step_in_epoch);
        line["steps_left_out"] = steps_per_epoch - progress.step_in_epoch;
        close_epoch_sums();
        if (validation) {
            evaluate_into(line, report_pictures);
        }
        if (is_first()) {
            log_metrics(line);
        }
    } else if (validation && (evaluated_at != progress.optimizer_steps || stopped_early())) {  // without pictures
        last_evaluation = evaluate(report_pictures);
    }
    last_resource_reading = 0;
    read_resources();
    const double pss = greatest_of_ranks(static_cast<double>(peak_pss), "peak memory");
    save_at_the_end();
    close_epoch_sums();
    if (!is_first()) {
        return;
    }
    json summary = {{"model", recipe.model},
                    {"ranks", ranks()},
                    {"images_per_second", ratio(static_cast<double>(training_images), training_seconds)},
                    {"seconds_per_epoch",
                     ratio(training_seconds, static_cast<double>(training_images)) * static_cast<double>(train.size())},
                    {"peak_pss_mib", pss / (1 << 20)},
                    {"data_wait_fraction", ratio(training_wait, training_seconds)},
                    {"checkpoint_seconds", training_saving},
                    {"metrics", last_evaluation.metrics},
                    {"epochs", progress.epoch},
                    {"steps", progress.optimizer_steps},
                    {"skipped_steps", progress.skipped_steps},
                    {"best_step", progress.best_step}};
    add_pixels(summary, training_pixels, training_images);
    run->write_summary(summary);
    write_report(run_path, last_evaluation.pictures, train.classes());
    const std::string table =
        str(last_evaluation.table, recipe.model, ", ", progress.epoch, " epochs, ", progress.optimizer_steps,
            " steps, ", ranks(), " rank(s): ", fixed(summary["images_per_second"], 1), " images/s, data wait ",
            fixed(100 * ratio(training_wait, training_seconds), 1), "%, memory ", base::human_bytes(pss), " a rank\n",
            "weights  ", (run_path / "weights.safetensors").string(), "\nreport   ",
            (run_path / "report.html").string(), "\n");
    std::fputs(table.c_str(), stdout);
}

/// Collective. A run that has reached its end and says so is left as it is; one that was killed before it could is
/// finished.
bool Trainer::State::nothing_is_left() {
    std::int32_t nothing = is_first() && has_ended() ? 1 : 0;
    comms.control.broadcast(comm::Buffer::of(std::span<std::int32_t>(&nothing, 1)), comm::Rank{0}, "what is left");
    return nothing != 0;
}

Trainer::Trainer(Recipe recipe, const RunStart& start, Communicators communicators, comm::Topology topology)
    : state_(std::make_unique<State>(std::move(recipe), start, communicators, std::move(topology))) {}

Trainer::~Trainer() = default;

Outcome Trainer::run() {
    State& s = *state_;
    const StopRequest stop;
    if (s.progress.step_in_epoch == s.steps_per_epoch) {
        s.finish_epoch();  // the earlier process was stopped between the epoch's last step and this
    }
    if (s.nothing_is_left()) {
        if (s.is_first()) {
            base::log_info(
                str("nothing is left to train; ", (s.run_path / "summary.json").string(), " says how it ended"));
        }
        return Outcome::finished;
    }
    const sharding::Share share{static_cast<std::uint64_t>(comm::index_of(s.comms.control.rank())), s.ranks()};
    sharding::LoaderOptions options = loader_options(s.recipe, s.cores_per_rank);
    options.preprocessed = s.preprocessed ? &*s.preprocessed : nullptr;
    options.shared_cache = s.shared_cache;
    options.decoded_cache = s.node_cache.shared;
    options.decoded_cache_bytes = s.node_cache.own_bytes;
    sharding::Loader loader(s.train, s.batches, share, options, s.progress.epoch, s.progress.step_in_epoch);
    const std::uint64_t last_step =
        s.recipe.max_steps > 0 ? std::min(static_cast<std::uint64_t>(s.recipe.max_steps), s.schedule.total_steps())
                               : s.schedule.total_steps();
    base::Progress display(s.is_first() ? "training" : "", "steps", last_step, s.progress.optimizer_steps);
    const auto save_every = static_cast<std::uint64_t>(s.recipe.checkpoint.every_steps);
    const auto agree_every = static_cast<std::uint64_t>(s.recipe.communication.agreement_steps);
    while (!s.is_at_end()) {
        s.profile();
        const double started = base::monotonic_seconds();
        s.enter("reading data");
        sharding::Batch batch = loader.next();
        try {
            s.train_step(batch, started);
        } catch (const std::bad_alloc& error) {
            throw s.out_of_memory(batch, error.what());
        } catch (const c10::Error& error) {
            if (!says_out_of_memory(error)) {
                throw;
            }
            throw s.out_of_memory(batch, error.what_without_backtrace());
        }
        ++s.steps_of_process;
        loader.give_back(std::move(batch));
        s.read_resources();
        if (s.is_first()) {
            display.update(s.progress.optimizer_steps, s.display_text());
        }
        if (agree_every > 0 && s.progress.optimizer_steps % agree_every == 0) {
            s.agree_on_values();
        }
        if (s.agree_after_step(stop)) {
            s.save_at_the_end();  // with weights: whoever stops a run wants to look at what it has come to
            return Outcome::stopped_at_checkpoint;
        }
        if (s.progress.step_in_epoch == s.steps_per_epoch) {
            s.finish_epoch();
        } else if (save_every > 0 && s.progress.optimizer_steps % save_every == 0) {
            s.save(false);
        }
    }
    if (s.stopped_early() && s.is_first()) {
        base::log_info(str("no better result in ", s.progress.evaluations_since_best,
                           " evaluations: the run ends, by evaluation.patience"));
    }
    s.profile();
    s.finish_run();
    return Outcome::finished;
}

}  // namespace lockstep::trainer
