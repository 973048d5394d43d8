#include "trainer/start_table.h"

#include "base/text.h"

namespace lockstep::trainer {
namespace {

using base::str;

std::string row(const std::string& name, const std::string& value) {
    constexpr std::size_t column = 32;
    const std::string gap(name.size() < column ? column - name.size() : 1, ' ');
    return str("  ", name, gap, value, "\n");
}

std::string memory_text(const comm::TrainingBytes& bytes) {
    const auto human = [](std::uint64_t count) { return base::human_bytes(static_cast<double>(count)); };
    return str(human(bytes.all()), " = parameters ", human(bytes.parameters), " + gradients ", human(bytes.gradients),
               " + optimizer state ", human(bytes.state), " + average ", human(bytes.average));
}

}  // namespace

std::string start_table(const Recipe& recipe, const StartFacts& facts) {
    std::string table = "settings\n";
    for (const auto& field : describe(recipe)) {
        table += row(field.key, field.value);
    }
    table += "derived\n";
    table += row("ranks", str(facts.ranks, " on ", facts.nodes, " node(s), ", facts.cores_per_rank, " core(s) each"));
    table += row("training data",
                 str(facts.training_images, " images, ", facts.training_boxes, " boxes, ", facts.classes, " classes"));
    const std::string shape = recipe.data.order == "block"
                                  ? str(" of ", recipe.data.block, " samples, ", recipe.data.window, " in a window")
                                  : std::string();
    table += row("order of samples", str(recipe.data.order, shape, ", shuffle quality ",
                                         base::fixed(facts.shuffle_quality, 2), " (1: neighbours are strangers)"));
    if (!facts.decoded_images.empty()) {
        table += row("decoded images in memory", facts.decoded_images);
    }
    if (is_detector(recipe)) {
        table += row("boxes of an image", str("room for ", facts.room_for_boxes, " after augmentation"));
    }
    table += row("validation data", facts.validation_images
                                        ? str(*facts.validation_images, " images, ", facts.validation_boxes, " boxes")
                                        : "none");
    table += row("steps", str(facts.steps_per_epoch, " an epoch, ", facts.total_steps, " in all, ", facts.warmup_steps,
                              " of them warm-up"));
    if (!facts.shapes.empty()) {
        table += row("shapes of batches", facts.shapes);
    }
    if (facts.images_of_average_step) {
        table += row("effective batch",
                     str("up to ", recipe.scaling.pixel_budget, " megapixels and ", recipe.batch, " images, ",
                         base::fixed(*facts.images_of_average_step, 1), " images on average, in ", recipe.accumulate,
                         " micro-step(s) on ", facts.ranks, " rank(s)"));
    } else {
        table += row("effective batch", str(recipe.batch, " images = ", recipe.accumulate, " micro-step(s) x ",
                                            facts.ranks, " rank(s) x about ",
                                            recipe.batch / recipe.accumulate / static_cast<std::int64_t>(facts.ranks)));
    }
    table +=
        row("gradient",
            str("sum over ranks and micro-steps, divided once by ",
                loss_is_sum(recipe) ? "(target score sum / images): the mean over targets times the images of the batch"
                : facts.images_of_average_step
                    ? "(count of targets x images of an average step / images): an image weighs the same in each batch"
                    : "the global count of targets"));
    table += row("learning rate", str(recipe.optimizer.learning_rate, " by rule \"",
                                      recipe.optimizer.learning_rate_rule, "\" -> peak ", facts.peak_rate));
    table += row("trainable parameters", str(facts.parameters));
    table +=
        row("memory of this rank",
            memory_text(facts.bytes) + str(" (ZeRO stage ", facts.zero_stage, "; predicted ",
                                           base::human_bytes(static_cast<double>(facts.predicted_bytes.all())), ")"));
    if (facts.zero_stage >= 2 && recipe.accumulate > 1) {
        table +=
            row("gradient traffic", str("in each of the ", recipe.accumulate,
                                        " micro-steps, since gradients are sharded; in one of them up to stage 1"));
    }
    const Progress& progress = facts.progress;
    if (progress.optimizer_steps > 0) {
        table += row("resumed", str("at epoch ", progress.epoch + 1, ", step ", progress.step_in_epoch, " of ",
                                    facts.steps_per_epoch, " (", progress.optimizer_steps, " steps done)"));
    }
    return table;
}

}  // namespace lockstep::trainer
