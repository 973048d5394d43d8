#include "sharding/batch_order.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/hash.h"

namespace lockstep::sharding {
namespace {

void require(bool condition, std::string_view option, double value, std::string_view remedy) {
    if (!condition) {
        throw base::UsageError(base::str("scaling.", option, " = ", value, ": ", remedy));
    }
}

void check(const ScalingOptions& options) {
    require(options.megapixels >= 0 && std::isfinite(options.megapixels), "pixel_budget", options.megapixels,
            "give a number of megapixels, or 0 for batches of so many images");
    if (options.rule == ScalingRule::fixed) {
        require(options.megapixels == 0, "pixel_budget", options.megapixels,
                "images of one fixed size are counted; give batch instead, or another scaling.rule");
        return;
    }
    require(options.multiple > 0, "multiple", options.multiple, "give at least 1");
    require(options.short_side > 0 && options.short_side <= options.long_side, "short_side", options.short_side,
            base::str("give 1 to long_side = ", options.long_side));
    for (const auto& [name, side] : {std::pair{"short_side", options.short_side}, {"long_side", options.long_side}}) {
        require(side % options.multiple == 0, name, side,
                base::str("it is not a multiple of ", options.multiple, " (scaling.multiple)"));
    }
}

/// Samples of one shape.
struct Group {
    Canvas canvas;
    std::uint64_t size = 0;
    std::uint64_t room = 0;        ///< samples of a full batch
    std::uint64_t begin = 0;       ///< position of the first sample in full batches
    std::uint64_t left_begin = 0;  ///< of the first in no full batch

    std::uint64_t in_full_batches() const { return size / room * room; }
    std::uint64_t left() const { return size % room; }
};

/// Counts that add up to `samples`, at least one for each batch, and each nearly the same part of the batch's room.
std::vector<std::uint64_t> shared_out(std::uint64_t samples, const std::vector<std::uint64_t>& rooms) {
    std::uint64_t spare_room = 0;  // beyond the one that each gets
    for (const std::uint64_t room : rooms) {
        spare_room += room - 1;
    }
    const std::uint64_t spare = samples - rooms.size();
    LOCKSTEP_CHECK_LE(spare, spare_room);
    std::vector<std::uint64_t> counts;
    std::uint64_t before = 0;
    std::uint64_t given_before = 0;
    for (const std::uint64_t room : rooms) {
        before += room - 1;
        const std::uint64_t given = spare_room == 0 ? 0 : before * spare / spare_room;
        counts.push_back(1 + given - given_before);
        given_before = given;
    }
    return counts;
}

}  // namespace

struct BatchOrder::State {
    EpochOrder samples;
    BatchOrderOptions options;
    std::uint64_t steps = 0;

    std::vector<Canvas> sides = {};  ///< of ScalingRule::squares

    // Of ScalingRule::published: from the tallest shape to the widest.
    std::vector<Group> groups = {};
    std::vector<std::uint16_t> group_of = {};  ///< by sample
    std::vector<PlannedBatch> of_left = {};    ///< batches of what is left of the groups

    std::uint64_t room_of(const Canvas& canvas) const {
        if (options.scaling.megapixels == 0) {
            return options.effective_batch;
        }
        const auto budget = static_cast<std::uint64_t>(std::llround(options.scaling.megapixels * 1e6));
        return std::clamp<std::uint64_t>(budget / canvas.pixels(), 1, options.effective_batch);
    }

    void plan_squares() {
        for (std::uint32_t side = options.scaling.short_side; side <= options.scaling.long_side;
             side += options.scaling.multiple) {
            sides.push_back(Canvas::square(side));
        }
        // Whole rounds of all sides, then as many more as it takes where the largest ones come next.
        std::uint64_t room_of_round = 0;
        for (const Canvas& side : sides) {
            room_of_round += room_of(side);
        }
        const std::uint64_t rest = samples.size() % room_of_round;
        std::uint64_t most_steps = 0;
        for (std::size_t first = 0; first < sides.size(); ++first) {
            std::uint64_t room = 0;
            std::uint64_t more = 0;
            while (room < rest) {
                room += room_of(sides[(first + more++) % sides.size()]);
            }
            most_steps = std::max(most_steps, more);
        }
        steps = samples.size() / room_of_round * sides.size() + most_steps;
    }

    /// The sides of an epoch's batches, before they are shuffled.
    const Canvas& side_of(std::uint64_t epoch, std::uint64_t index) const {
        return sides[((epoch % sides.size()) * (steps % sides.size()) + index) % sides.size()];
    }

    std::vector<std::uint64_t> square_counts(std::uint64_t epoch) const {
        std::vector<std::uint64_t> rooms;
        for (std::uint64_t index = 0; index < steps; ++index) {
            rooms.push_back(room_of(side_of(epoch, index)));
        }
        return shared_out(samples.size(), rooms);
    }

    void plan_groups(const std::function<ImageSize(std::uint64_t)>& size_of) {
        // Found in the order of ids, then numbered from the tallest to the widest.
        std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint16_t> found;
        for (std::uint64_t id = 0; id < samples.size(); ++id) {
            const Canvas canvas = Canvas::of_sample(size_of(id), options.scaling);
            const auto [entry, is_new] =
                found.try_emplace({canvas.width, canvas.height}, static_cast<std::uint16_t>(groups.size()));
            if (is_new) {
                require(groups.size() < UINT16_MAX, "multiple", options.scaling.multiple,
                        "the samples have more than 65535 shapes; give a greater multiple");
                groups.push_back({.canvas = canvas, .room = room_of(canvas)});
            }
            ++groups[entry->second].size;
            group_of.push_back(entry->second);
        }
        std::vector<std::uint16_t> order(groups.size());
        for (std::size_t i = 0; i < order.size(); ++i) {
            order[i] = static_cast<std::uint16_t>(i);
        }
        std::ranges::sort(order, {}, [&](std::uint16_t i) {
            const Canvas& canvas = groups[i].canvas;
            return std::tuple(static_cast<double>(canvas.width) / canvas.height, canvas.width);
        });
        std::vector<std::uint16_t> number(groups.size());
        std::vector<Group> sorted;
        for (const std::uint16_t i : order) {
            number[i] = static_cast<std::uint16_t>(sorted.size());
            sorted.push_back(groups[i]);
        }
        groups = std::move(sorted);
        for (std::uint16_t& group : group_of) {
            group = number[group];
        }
        place_groups();
    }

    void place_groups() {
        std::uint64_t position = 0;
        for (Group& group : groups) {
            group.begin = position;
            position += group.in_full_batches();
            steps += group.size / group.room;
        }
        PlannedBatch open{.positions = {position, position}, .canvas = {}};
        for (Group& group : groups) {
            group.left_begin = position;
            for (std::uint64_t i = 0; i < group.left(); ++i, ++position) {
                Canvas wider{.width = std::max(open.canvas.width, group.canvas.width),
                             .height = std::max(open.canvas.height, group.canvas.height),
                             .bounds = group.canvas.bounds};
                if (open.positions.count() > 0 && open.positions.count() + 1 > room_of(wider)) {
                    of_left.push_back(open);
                    open.positions = {position, position};
                    wider = group.canvas;
                }
                open.canvas = wider;
                open.positions.end = position + 1;
            }
        }
        if (open.positions.count() > 0) {
            of_left.push_back(open);
        }
        steps += of_left.size();
    }
};

BatchOrder::BatchOrder(EpochOrder order, const BatchOrderOptions& options,
                       const std::function<ImageSize(std::uint64_t id)>& size_of) {
    LOCKSTEP_CHECK(options.image_size > 0 && options.effective_batch > 0);
    check(options.scaling);
    const auto state = std::make_shared<State>(State{.samples = order, .options = options});
    if (options.scaling.rule == ScalingRule::fixed) {
        state->steps = order.steps_per_epoch(options.effective_batch);
    } else {
        LOCKSTEP_CHECK_LE(order.size(), UINT32_MAX);
        if (options.scaling.rule == ScalingRule::squares) {
            state->plan_squares();
        } else {
            state->plan_groups(size_of);
        }
    }
    state_ = state;
}

const EpochOrder& BatchOrder::samples() const {
    return state_->samples;
}

const BatchOrderOptions& BatchOrder::options() const {
    return state_->options;
}

std::uint64_t BatchOrder::steps_per_epoch() const {
    return state_->steps;
}

std::uint64_t BatchOrder::pixels_of_epoch(std::uint64_t epoch) const {
    const State& state = *state_;
    std::uint64_t pixels = 0;
    switch (state.options.scaling.rule) {
        case ScalingRule::fixed:
            pixels = state.samples.size() * Canvas::square(state.options.image_size).pixels();
            break;
        case ScalingRule::squares: {
            const std::vector<std::uint64_t> counts = state.square_counts(epoch);
            for (std::uint64_t index = 0; index < counts.size(); ++index) {
                pixels += counts[index] * state.side_of(epoch, index).pixels();
            }
            break;
        }
        case ScalingRule::published:
            for (const Group& group : state.groups) {
                pixels += group.in_full_batches() * group.canvas.pixels();
            }
            for (const PlannedBatch& batch : state.of_left) {
                pixels += batch.positions.count() * batch.canvas.pixels();
            }
            break;
    }
    return pixels;
}

std::uint32_t BatchOrder::largest_side() const {
    const BatchOrderOptions& options = state_->options;
    return options.scaling.rule == ScalingRule::fixed ? options.image_size : options.scaling.long_side;
}

std::vector<Canvas> BatchOrder::canvases() const {
    const State& state = *state_;
    switch (state.options.scaling.rule) {
        case ScalingRule::fixed:
            return {Canvas::square(state.options.image_size)};
        case ScalingRule::squares:
            return state.sides;
        case ScalingRule::published:
            break;
    }
    std::vector<Canvas> all;
    for (const Group& group : state.groups) {
        if (group.in_full_batches() > 0) {
            all.push_back(group.canvas);
        }
    }
    for (const PlannedBatch& batch : state.of_left) {
        if (std::ranges::find(all, batch.canvas) == all.end()) {
            all.push_back(batch.canvas);
        }
    }
    return all;
}

BatchesOfEpoch::BatchesOfEpoch(const BatchOrder& order, std::uint64_t epoch)
    : order_(order), samples_(order.samples(), epoch) {
    switch (order.options().scaling.rule) {
        case ScalingRule::fixed:
            break;
        case ScalingRule::squares:
            shuffle_squares();
            break;
        case ScalingRule::published:
            group_by_shape();
            break;
    }
}

namespace {

/// Of an epoch's batches among themselves: with keys apart from those of the order of samples.
OrderOfEpoch shuffle_of_batches(const EpochOrder& samples, std::uint64_t steps, std::uint64_t epoch) {
    constexpr std::uint64_t of_batches = 0xba7c4;
    return {EpochOrder(OrderKind::full, base::mix64(samples.seed() ^ of_batches), steps), epoch};
}

}  // namespace

void BatchesOfEpoch::shuffle_squares() {
    const BatchOrder::State& state = *order_.state_;
    const std::vector<std::uint64_t> counts = state.square_counts(epoch());
    const OrderOfEpoch shuffle = shuffle_of_batches(state.samples, state.steps, epoch());
    std::uint64_t begin = 0;
    for (std::uint64_t step = 0; step < state.steps; ++step) {
        const std::uint64_t index = shuffle.sample_at(step);
        batches_.push_back({{begin, begin + counts[index]}, state.side_of(epoch(), index)});
        begin += counts[index];
    }
}

void BatchesOfEpoch::group_by_shape() {
    const BatchOrder::State& state = *order_.state_;
    ids_.resize(state.samples.size());
    std::vector<std::uint64_t> seen(state.groups.size());
    std::vector<PlannedBatch> completed;
    for (std::uint64_t position = 0; position < ids_.size(); ++position) {
        const std::uint64_t id = samples_.sample_at(position);
        const std::uint16_t number = state.group_of[id];
        const Group& group = state.groups[number];
        const std::uint64_t index = seen[number]++;
        if (index >= group.in_full_batches()) {
            ids_[group.left_begin + (index - group.in_full_batches())] = static_cast<std::uint32_t>(id);
            continue;
        }
        ids_[group.begin + index] = static_cast<std::uint32_t>(id);
        if ((index + 1) % group.room == 0) {
            const std::uint64_t end = group.begin + index + 1;
            completed.push_back({{end - group.room, end}, group.canvas});
        }
    }
    completed.insert(completed.end(), state.of_left.begin(), state.of_left.end());
    LOCKSTEP_CHECK_EQ(completed.size(), state.steps);
    if (state.samples.kind() != OrderKind::full) {
        batches_ = std::move(completed);
        return;
    }
    const OrderOfEpoch shuffle = shuffle_of_batches(state.samples, state.steps, epoch());
    for (std::uint64_t step = 0; step < state.steps; ++step) {
        batches_.push_back(completed[shuffle.sample_at(step)]);
    }
}

PlannedBatch BatchesOfEpoch::batch(std::uint64_t step) const {
    LOCKSTEP_CHECK_LT(step, order_.steps_per_epoch());
    if (!batches_.empty()) {
        return batches_[step];
    }
    const BatchOrderOptions& options = order_.options();
    return {order_.samples().effective_batch(step, options.effective_batch), Canvas::square(options.image_size)};
}

std::uint64_t BatchesOfEpoch::sample_at(std::uint64_t position) const {
    return ids_.empty() ? samples_.sample_at(position) : ids_.at(position);
}

}  // namespace lockstep::sharding
