#include "bench/plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "bench/statistics.h"
#include "trainer/recipe.h"

namespace lockstep::bench {
namespace {

using base::str;

std::string on_name(const Plan& plan, std::size_t factor, std::size_t level) {
    const Factor& f = plan.factors[factor];
    return f.levels.size() == 2 ? f.name : str(f.name, "=", f.levels[level].name);
}

std::string arm_name(const Plan& plan, const std::vector<std::size_t>& levels) {
    for (const auto& [name, combination] : plan.combinations) {
        if (combination == levels) {
            return name;
        }
    }
    std::vector<std::string> on;
    std::size_t last_levels = 0;
    std::string off;
    for (std::size_t i = 0; i < levels.size(); ++i) {
        const bool is_last = levels[i] + 1 == plan.factors[i].levels.size();
        last_levels += is_last ? 1 : 0;
        if (levels[i] > 0) {
            on.push_back(on_name(plan, i, levels[i]));
        } else {
            off = plan.factors[i].name;
        }
    }
    if (on.empty()) {
        return "baseline";
    }
    if (levels.size() > 2 && last_levels == levels.size()) {
        return "all";
    }
    const bool leaves_one_out = std::ranges::find(plan.designs, Design::leave_one_out) != plan.designs.end();
    if (leaves_one_out && levels.size() > 2 && last_levels + 1 == levels.size() && on.size() + 1 == levels.size()) {
        return "all without " + off;
    }
    return base::join(on, " + ");
}

Arm make_arm(const Plan& plan, const std::vector<std::size_t>& levels) {
    Arm arm{.name = arm_name(plan, levels), .levels = levels, .settings = plan.all_arms, .impossible = {}};
    for (std::size_t i = 0; i < levels.size(); ++i) {
        arm.settings.overlay(plan.factors[i].levels[levels[i]].settings);
    }
    return arm;
}

std::vector<std::vector<std::size_t>> level_sets(const Plan& plan, Design design) {
    const std::size_t factors = plan.factors.size();
    const std::vector<std::size_t> none(factors, 0);
    std::vector<std::size_t> all(factors);
    for (std::size_t i = 0; i < factors; ++i) {
        all[i] = plan.factors[i].levels.size() - 1;
    }
    std::vector<std::vector<std::size_t>> sets;
    switch (design) {
        case Design::one_at_a_time:
            for (std::size_t i = 0; i < factors; ++i) {
                for (std::size_t level = 1; level <= all[i]; ++level) {
                    sets.push_back(none);
                    sets.back()[i] = level;
                }
            }
            break;
        case Design::leave_one_out:
            sets.push_back(all);
            for (std::size_t i = 0; i < factors; ++i) {
                sets.push_back(all);
                sets.back()[i] = 0;
            }
            break;
        case Design::waterfall: {
            std::vector<std::size_t> levels = none;
            for (std::size_t i = 0; i < factors; ++i) {
                levels[i] = all[i];
                sets.push_back(levels);
            }
            break;
        }
        case Design::grid: {
            std::vector<std::size_t> levels = none;
            for (bool more = factors > 0; more;) {
                sets.push_back(levels);
                std::size_t i = 0;
                while (i < factors && levels[i] == all[i]) {
                    levels[i++] = 0;
                }
                more = i < factors;
                if (more) {
                    ++levels[i];
                }
            }
            break;
        }
        case Design::named:
            for (const auto& [name, levels] : plan.combinations) {
                sets.push_back(levels);
            }
            break;
    }
    return sets;
}

std::string refusal_of(const Plan& plan, const Measurement& measurement, const Arm& arm) {
    try {
        resolved_recipe(plan, measurement, arm, 1);
    } catch (const base::UsageError& error) {
        return error.what();
    }
    return {};
}

}  // namespace

void Settings::overlay(const Settings& over) {
    for (const auto& [key, value] : over.recipe) {
        recipe[key] = value;
    }
    for (const auto& [name, value] : over.environment) {
        environment[name] = value;
    }
    if (over.ranks) {
        ranks = over.ranks;
    }
}

std::string_view name_of(MeasurementKind kind) {
    return kind == MeasurementKind::speed ? "speed" : "accuracy";
}

std::vector<Arm> arms_of(const Plan& plan) {
    std::vector<std::vector<std::size_t>> sets = {std::vector<std::size_t>(plan.factors.size(), 0)};
    for (const Design design : plan.designs) {
        for (auto& levels : level_sets(plan, design)) {
            if (std::ranges::find(sets, levels) == sets.end()) {
                sets.push_back(std::move(levels));
            }
        }
    }
    std::vector<Arm> arms;
    for (const auto& levels : sets) {
        arms.push_back(make_arm(plan, levels));
        if (arms.size() == 1) {
            arms.push_back(arms.front());
            arms.back().name = "again";
            arms.back().is_control = true;
        }
    }
    for (Arm& arm : arms) {
        for (const Measurement& measurement : plan.measurements) {
            if (arm.impossible.empty()) {
                arm.impossible = refusal_of(plan, measurement, arm);
            }
        }
    }
    return arms;
}

std::vector<Arm> arms_of(const Plan& plan, const Measurement& measurement) {
    std::vector<Arm> arms = arms_of(plan);
    if (!measurement.arms.empty()) {
        std::erase_if(arms, [&, index = 0](const Arm& arm) mutable {
            return index++ >= 2 && std::ranges::find(measurement.arms, arm.name) == measurement.arms.end();
        });
    }
    return arms;
}

std::vector<std::string> launch_settings(const Measurement& measurement, const Arm& arm, std::int64_t block) {
    std::map<std::string, std::string> keys = arm.settings.recipe;
    for (const auto& [key, value] : measurement.set) {
        keys[key] = value;
    }
    const bool is_speed = measurement.kind == MeasurementKind::speed;
    const std::map<std::string, std::string> of_kind =
        is_speed ? std::map<std::string, std::string>{{"max_steps", str(measurement.steps)},
                                                      {"data.validation", R"("")"},
                                                      {"checkpoint.every_steps", "0"},
                                                      {"checkpoint.every_epochs", "0"}}
                 : std::map<std::string, std::string>{{"seed", str(block)}, {"checkpoint.keep", "1"}};
    for (const auto& [key, value] : of_kind) {
        keys[key] = value;
    }
    std::vector<std::string> settings;
    for (const auto& [key, value] : keys) {
        settings.push_back(key + "=" + value);
    }
    return settings;
}

std::string resolved_recipe(const Plan& plan, const Measurement& measurement, const Arm& arm, std::int64_t block) {
    std::vector<trainer::Override> overrides;
    for (const std::string& setting : launch_settings(measurement, arm, block)) {
        overrides.push_back(trainer::parse_override(setting));
    }
    const trainer::Recipe recipe = trainer::load_recipe(plan.recipe, overrides);
    trainer::check_recipe(recipe, ranks_of(arm));
    return trainer::to_toml(recipe);
}

std::int32_t ranks_of(const Arm& arm) {
    return arm.settings.ranks.value_or(1);
}

bool simulates_nodes(const Arm& arm) {
    const auto topology = arm.settings.recipe.find("communication.topology");
    return topology != arm.settings.recipe.end() && topology->second != "\"auto\"" && topology->second != "'auto'";
}

std::vector<PlannedLaunch> launch_order(const Plan& plan) {
    std::vector<PlannedLaunch> order;
    for (std::size_t m = 0; m < plan.measurements.size(); ++m) {
        const std::vector<Arm> arms = arms_of(plan, plan.measurements[m]);
        std::vector<std::size_t> turn;
        for (std::int64_t block = 1; block <= plan.measurements[m].blocks; ++block) {
            if (block % 2 == 1) {
                turn.clear();
                for (std::size_t i = 0; i < arms.size(); ++i) {
                    if (arms[i].impossible.empty()) {
                        turn.push_back(i);
                    }
                }
                base::Random random(plan.seed, base::RandomPurpose::measurement, m, static_cast<std::uint64_t>(block));
                for (std::size_t i = turn.size(); i > 1; --i) {
                    std::swap(turn[i - 1], turn[random.below(i)]);
                }
            } else {
                std::ranges::reverse(turn);
            }
            for (const std::size_t arm : turn) {
                order.push_back({m, block, arm});
            }
        }
    }
    return order;
}

std::int64_t least_blocks(std::size_t comparisons) {
    const double wanted = significance / static_cast<double>(std::max<std::size_t>(comparisons, 1));
    return static_cast<std::int64_t>(std::ceil(1 - std::log2(wanted) - 1e-12));
}

}  // namespace lockstep::bench
