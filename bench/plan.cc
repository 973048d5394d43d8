#include "bench/plan.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "bench/statistics.h"
#include "trainer/recipe.h"

namespace lockstep::bench {
namespace {

namespace fs = std::filesystem;
using base::str;
using base::UsageError;

constexpr std::string_view ranks_name = "ranks";
constexpr std::string_view environment_prefix = "env.";

std::string place(const std::string& origin, const toml::node& node) {
    const auto line = node.source().begin.line;
    return line > 0 ? str(origin, ":", line) : origin;
}

std::string toml_text(const toml::node& node) {
    if (node.is_string()) {
        const std::string text = node.value_or(std::string());
        std::string quoted = "\"";
        for (const char c : text) {
            quoted += c == '"' || c == '\\' ? std::string("\\") + c : std::string(1, c);
        }
        return quoted + '"';
    }
    std::ostringstream text;
    text << toml::node_view<const toml::node>(&node);
    return std::move(text).str();
}

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
    throw UsageError(where + ": " + what);
}

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
    const std::string near = base::nearest_word(word, known);
    return near.empty() ? "; known: " + base::join(known, ", ") : "; did you mean " + near + "?";
}

/// One table of the plan. Each key that is asked for counts as known; close() refuses the others.
class Table {
  public:
    Table(const toml::table& table, std::string origin, std::string name)
        : table_(table), origin_(std::move(origin)), name_(std::move(name)) {}

    const toml::node* find(const std::string& key) {
        known_.push_back(key);
        return table_.get(key);
    }

    template <typename T>
    T get(const std::string& key, T fallback, double low = 0, double high = 0) {
        const toml::node* node = find(key);
        if (node == nullptr) {
            return fallback;
        }
        const auto wrong = [&](const char* wanted) {
            refuse(place(origin_, *node), str(full(key), " must be ", wanted, ", not ", toml_text(*node)));
        };
        if constexpr (std::is_same_v<T, std::string>) {
            if (!node->is_string()) {
                wrong("a string");
            }
            return *node->value<std::string>();
        } else {
            if (!(node->is_integer() || (std::is_same_v<T, double> && node->is_floating_point()))) {
                wrong(std::is_same_v<T, double> ? "a number" : "a whole number");
            }
            const auto value = *node->value<T>();
            if (!(static_cast<double>(value) >= low && static_cast<double>(value) <= high)) {
                refuse(place(origin_, *node),
                       str(full(key), " = ", value, " is out of bounds; allowed: ", low, " to ", high));
            }
            return value;
        }
    }

    std::vector<std::string> get_texts(const std::string& key) {
        const toml::node* node = find(key);
        std::vector<std::string> texts;
        if (node == nullptr) {
            return texts;
        }
        const toml::array* list = node->as_array();
        if (list == nullptr) {
            refuse(place(origin_, *node), full(key) + " must be a list of strings");
        }
        for (const toml::node& item : *list) {
            if (!item.is_string()) {
                refuse(place(origin_, item), full(key) + " must be a list of strings");
            }
            texts.push_back(*item.value<std::string>());
        }
        return texts;
    }

    const toml::table* get_table(const std::string& key) {
        const toml::node* node = find(key);
        if (node != nullptr && node->as_table() == nullptr) {
            refuse(place(origin_, *node), full(key) + " must be a table");
        }
        return node == nullptr ? nullptr : node->as_table();
    }

    void close() const {
        for (const auto& [key, node] : table_) {
            const std::string name(key.str());
            if (std::ranges::find(known_, name) == known_.end()) {
                refuse(place(origin_, node), "unknown key " + full(name) + suggestion(name, known_));
            }
        }
    }

    std::string full(const std::string& key) const { return name_.empty() ? key : name_ + "." + key; }

  private:
    const toml::table& table_;
    std::string origin_, name_;
    std::vector<std::string> known_;
};

/// Dotted keys of every leaf.
void collect(const toml::table& table, const std::string& prefix,
             std::vector<std::pair<std::string, const toml::node*>>& leaves) {
    for (const auto& [name, node] : table) {
        const std::string key = prefix + std::string(name.str());
        if (const auto* inner = node.as_table()) {
            collect(*inner, key + ".", leaves);
        } else {
            leaves.emplace_back(key, &node);
        }
    }
}

std::set<std::string> recipe_keys() {
    std::set<std::string> keys;
    for (const auto& field : trainer::describe(trainer::Recipe{})) {
        keys.insert(field.key);
    }
    return keys;
}

/// The recipe key that a plan's key means. Throws for one that is unknown or not there yet.
std::string recipe_key(const std::string& name, const std::string& where) {
    static const std::set<std::string> keys = recipe_keys();
    if (keys.contains(name)) {
        return name;
    }
    std::vector<std::string> known(keys.begin(), keys.end());
    for (const ShortName& entry : short_names()) {
        if (entry.name == name) {
            if (!keys.contains(entry.key)) {
                refuse(where, str(name, " stands for the recipe key ", entry.key,
                                  ", which this version doesn't have yet; list it under [missing] with the reason"));
            }
            return entry.key;
        }
        known.push_back(entry.name);
    }
    const std::string near = base::nearest_word(name, known);
    refuse(where, "unknown factor key " + name +
                      (near.empty() ? "; a recipe key (docs/recipe.md), a short name (docs/bench.md) or env.NAME"
                                    : "; did you mean " + near + "?"));
}

/// Puts one key's value among the settings; `key` is ranks, env.NAME, a short name or a recipe key.
void add_setting(Settings& settings, const std::string& key, const toml::node& value, const std::string& where) {
    if (key == ranks_name) {
        if (!value.is_integer() || *value.value<std::int64_t>() < 1 || *value.value<std::int64_t>() > 4096) {
            refuse(where, str("ranks must be 1 to 4096, not ", toml_text(value)));
        }
        settings.ranks = static_cast<std::int32_t>(*value.value<std::int64_t>());
    } else if (key.starts_with(environment_prefix)) {
        const std::string text = value.is_string() ? *value.value<std::string>() : toml_text(value);
        settings.environment[key.substr(environment_prefix.size())] = text;
    } else {
        settings.recipe[recipe_key(key, where)] = toml_text(value);
    }
}

std::string level_text(const toml::node& node) {
    return node.is_string() ? *node.value<std::string>() : toml_text(node);
}

Factor read_factor(const std::string& name, const toml::table& table, const std::string& origin) {
    Factor factor{.name = name, .about = {}, .levels = {}};
    std::vector<std::pair<std::string, const toml::node*>> leaves;
    collect(table, "", leaves);
    for (const auto& [key, node] : leaves) {
        const std::string where = place(origin, *node);
        if (key == "about") {
            factor.about = node->value_or(std::string());
            continue;
        }
        const toml::array* values = node->as_array();
        if (values == nullptr || values->size() < 2) {
            refuse(where,
                   str("factors.", name, ".", key, " must be a list of at least two levels, the baseline's first"));
        }
        if (factor.levels.empty()) {
            factor.levels.resize(values->size());
        }
        if (values->size() != factor.levels.size()) {
            refuse(where, str("factors.", name, ".", key, " has ", values->size(), " levels, another key of it ",
                              factor.levels.size(), "; keys of one factor change together"));
        }
        for (std::size_t i = 0; i < values->size(); ++i) {
            const toml::node& value = *values->get(i);
            if (value.is_array() || value.is_table()) {
                refuse(where, str("factors.", name, ".", key, ": a level is a string, a number or a boolean"));
            }
            Level& level = factor.levels[i];
            add_setting(level.settings, key, value, where);
            level.name += (level.name.empty() ? "" : ", ") + level_text(value);
        }
    }
    if (factor.levels.empty()) {
        refuse(place(origin, table),
               str("factors.", name, " switches nothing; give for example precision = [\"fp32\", \"bf16\"]"));
    }
    return factor;
}

std::size_t factor_index(const Plan& plan, const std::string& name, const std::string& where) {
    std::vector<std::string> names;
    for (std::size_t i = 0; i < plan.factors.size(); ++i) {
        if (plan.factors[i].name == name) {
            return i;
        }
        names.push_back(plan.factors[i].name);
    }
    refuse(where, "there is no factor " + name + suggestion(name, names));
}

/// "factor" (its last level) or "factor=level".
void switch_on(const Plan& plan, const std::string& text, const std::string& where, std::vector<std::size_t>& levels) {
    const auto equals = text.find('=');
    const std::size_t index = factor_index(plan, text.substr(0, equals), where);
    const auto& choices = plan.factors[index].levels;
    levels[index] = choices.size() - 1;
    if (equals != std::string::npos) {
        const std::string wanted = text.substr(equals + 1);
        const auto found = std::ranges::find(choices, wanted, &Level::name);
        if (found == choices.end()) {
            std::vector<std::string> names;
            std::ranges::transform(choices, std::back_inserter(names), &Level::name);
            refuse(where,
                   str("factor ", plan.factors[index].name, " has no level ", wanted, suggestion(wanted, names)));
        }
        levels[index] = static_cast<std::size_t>(found - choices.begin());
    }
}

Measurement read_measurement(MeasurementKind kind, const toml::table& given, const std::string& origin) {
    const bool is_speed = kind == MeasurementKind::speed;
    Table table(given, origin, std::string(name_of(kind)));
    Measurement measurement;
    measurement.kind = kind;
    measurement.blocks = table.get<std::int64_t>("blocks", is_speed ? default_blocks : 3, 2, 1000);
    if (is_speed) {
        measurement.steps = table.get<std::int64_t>("steps", 40, 8, 1e6);
    }
    measurement.launch_seconds = table.get<double>("launch_seconds", 0, 0.1, 1e7);
    measurement.timeout_seconds = table.get<double>("timeout_seconds", is_speed ? 600 : 86400, 1, 1e7);
    measurement.arms = table.get_texts("arms");
    if (const toml::table* set = table.get_table("set")) {
        std::vector<std::pair<std::string, const toml::node*>> leaves;
        collect(*set, "", leaves);
        for (const auto& [key, node] : leaves) {
            measurement.set[recipe_key(key, place(origin, *node))] = toml_text(*node);
        }
    }
    table.close();
    return measurement;
}

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

const std::vector<std::pair<std::string, Design>> design_names = {{"one_at_a_time", Design::one_at_a_time},
                                                                  {"leave_one_out", Design::leave_one_out},
                                                                  {"waterfall", Design::waterfall},
                                                                  {"grid", Design::grid},
                                                                  {"named", Design::named}};

std::string refusal_of(const Plan& plan, const Measurement& measurement, const Arm& arm) {
    try {
        resolved_recipe(plan, measurement, arm, 1);
    } catch (const UsageError& error) {
        return error.what();
    }
    return {};
}

/// What the recipe says to each level alone, and whether the blocks are enough.
void check_against_recipe(const Plan& plan, const std::string& origin) {
    for (const Measurement& measurement : plan.measurements) {
        const std::vector<std::size_t> none(plan.factors.size(), 0);
        std::vector<std::vector<std::size_t>> sets = level_sets(plan, Design::one_at_a_time);
        sets.insert(sets.begin(), none);
        for (const auto& levels : sets) {
            const Arm arm = make_arm(plan, levels);
            if (const std::string refusal = refusal_of(plan, measurement, arm); !refusal.empty()) {
                refuse(origin, str("arm ", arm.name, ": ", refusal));
            }
        }
        const std::size_t comparisons = arms_of(plan, measurement).size() - 2;
        if (measurement.kind == MeasurementKind::speed && measurement.blocks < least_blocks(comparisons)) {
            refuse(origin, str("speed.blocks = ", measurement.blocks, " can't tell any of ", comparisons,
                               " arms from the baseline, however different it is: the smallest p-value of ",
                               measurement.blocks, " blocks is 2/2^", measurement.blocks, "; give at least ",
                               least_blocks(comparisons), ", or fewer arms"));
        }
    }
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

const std::vector<ShortName>& short_names() {
    static const std::vector<ShortName> names = {{"precision", "precision"},
                                                 {"accumulation", "accumulate"},
                                                 {"batch", "batch"},
                                                 {std::string(ranks_name), ""},
                                                 {"topology", "communication.topology"},
                                                 {"algorithm", "communication.algorithm"},
                                                 {"bucket", "communication.bucket_mib"},
                                                 {"wire", "communication.wire"},
                                                 {"zero", "optimizer.zero_stage"},
                                                 {"threads", "data.threads"},
                                                 {"prefetch", "data.prefetch"},
                                                 {"cache", "data.cache_mib"},
                                                 {"read", "data.read"},
                                                 {"encoding", "data.encoding"},
                                                 {"shared_cache", "data.shared_cache"},
                                                 {"scaling", "data.scaling"},
                                                 {"graph", "graph"},
                                                 {"fused", "fused"},
                                                 {"batch_norm", "batch_norm"},
                                                 {"warmup", "schedule.warmup_epochs"},
                                                 {"rate_rule", "optimizer.learning_rate_rule"},
                                                 {"quantisation", "quantisation"}};
    return names;
}

Plan load_plan(const fs::path& path) {
    return parse_plan(base::read_text(path), path.string());
}

Plan parse_plan(const std::string& text, const std::string& origin) {
    toml::table root;
    try {
        root = toml::parse(text, origin);
    } catch (const toml::parse_error& error) {
        refuse(str(origin, ":", error.source().begin.line), "not valid TOML: " + std::string(error.description()));
    }
    Plan plan;
    Table table(root, origin, "");
    plan.title = table.get<std::string>("title", "");
    plan.about = table.get<std::string>("about", "");
    plan.recipe = table.get<std::string>("recipe", "");
    plan.seed = static_cast<std::uint64_t>(table.get<std::int64_t>("seed", 1, 0, 9e15));
    plan.budget_minutes = table.get<double>("budget_minutes", 0, 0.1, 1e6);
    plan.attempts = table.get<std::int64_t>("attempts", 2, 1, 10);
    if (plan.title.empty()) {
        refuse(origin, "no title; give for example title = \"What mixed precision is worth\"");
    }
    if (plan.recipe.empty()) {
        refuse(origin, "no recipe; give for example recipe = \"recipes/composed.toml\"");
    }
    if (const toml::node* node = table.find("ranks")) {
        add_setting(plan.all_arms, std::string(ranks_name), *node, place(origin, *node));
    }
    if (const toml::table* set = table.get_table("set")) {
        std::vector<std::pair<std::string, const toml::node*>> leaves;
        collect(*set, "", leaves);
        for (const auto& [key, node] : leaves) {
            add_setting(plan.all_arms, key, *node, place(origin, *node));
        }
    }
    if (const toml::table* factors = table.get_table("factors")) {
        // In the order in which they are written: the waterfall follows it. The parser sorts by name.
        std::vector<std::pair<toml::source_index, std::string>> order;
        for (const auto& [name, node] : *factors) {
            if (node.as_table() == nullptr) {
                refuse(place(origin, node), str("factors.", std::string(name.str()), " must be a table"));
            }
            order.emplace_back(node.source().begin.line, std::string(name.str()));
        }
        std::ranges::sort(order);
        for (const auto& [line, name] : order) {
            plan.factors.push_back(read_factor(name, *factors->get(name)->as_table(), origin));
        }
    }
    if (const toml::table* combinations = table.get_table("combinations")) {
        std::vector<std::pair<toml::source_index, std::string>> order;
        for (const auto& [name, node] : *combinations) {
            order.emplace_back(node.source().begin.line, std::string(name.str()));
        }
        std::ranges::sort(order);
        Table entries(*combinations, origin, "combinations");
        for (const auto& [line, name] : order) {
            std::vector<std::size_t> levels(plan.factors.size(), 0);
            const std::string where = place(origin, *combinations->get(name));
            for (const std::string& part : entries.get_texts(name)) {
                switch_on(plan, part, where, levels);
            }
            if (std::ranges::all_of(levels, [](std::size_t level) { return level == 0; })) {
                refuse(where, str("combinations.", name, " is the baseline; name the factors that it switches on"));
            }
            plan.combinations.emplace_back(name, levels);
        }
    }
    for (const std::string& name : table.get_texts("designs")) {
        const auto found = std::ranges::find(design_names, name, &std::pair<std::string, Design>::first);
        if (found == design_names.end()) {
            std::vector<std::string> known;
            std::ranges::transform(design_names, std::back_inserter(known), &std::pair<std::string, Design>::first);
            refuse(origin, str("unknown design ", name, suggestion(name, known)));
        }
        plan.designs.push_back(found->second);
    }
    if (plan.designs.empty() && !plan.factors.empty()) {
        plan.designs.push_back(Design::one_at_a_time);
    }
    for (const MeasurementKind kind : {MeasurementKind::speed, MeasurementKind::accuracy}) {
        if (const toml::table* given = table.get_table(std::string(name_of(kind)))) {
            plan.measurements.push_back(read_measurement(kind, *given, origin));
        }
    }
    if (plan.measurements.empty()) {
        refuse(origin, "nothing is measured; add [speed] (short launches) or [accuracy] (whole trainings)");
    }
    if (const toml::table* missing = table.get_table("missing")) {
        const std::set<std::string> keys = recipe_keys();
        Table entries(*missing, origin, "missing");
        for (const auto& [key, node] : *missing) {
            const std::string name(key.str());
            const auto entry = std::ranges::find(short_names(), name, &ShortName::name);
            if (entry != short_names().end() && (entry->key.empty() || keys.contains(entry->key))) {
                refuse(place(origin, node), str("missing.", name, ": the recipe has ",
                                                entry->key.empty() ? name : entry->key, "; make it a factor instead"));
            }
            plan.missing.push_back({name, entries.get<std::string>(name, "")});
        }
    }
    table.close();
    const std::vector<Arm> arms = arms_of(plan);
    for (const Measurement& measurement : plan.measurements) {
        std::vector<std::string> names;
        std::ranges::transform(arms, std::back_inserter(names), &Arm::name);
        for (const std::string& name : measurement.arms) {
            if (std::ranges::find(names, name) == names.end()) {
                refuse(origin,
                       str(name_of(measurement.kind), ".arms: there is no arm ", name, suggestion(name, names)));
            }
        }
    }
    check_against_recipe(plan, origin);
    return plan;
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

std::vector<std::string> launch_settings(const Plan& plan, const Measurement& measurement, const Arm& arm,
                                         std::int64_t block) {
    (void)plan;
    std::map<std::string, std::string> keys = arm.settings.recipe;
    for (const auto& [key, value] : measurement.set) {
        keys[key] = value;
    }
    if (measurement.kind == MeasurementKind::speed) {
        keys["max_steps"] = str(measurement.steps);
        keys["data.validation"] = "\"\"";
        keys["checkpoint.every_steps"] = "0";
        keys["checkpoint.every_epochs"] = "0";
    } else {
        keys["seed"] = str(block);
        keys["checkpoint.keep"] = "1";
    }
    std::vector<std::string> settings;
    for (const auto& [key, value] : keys) {
        settings.push_back(key + "=" + value);
    }
    return settings;
}

std::string resolved_recipe(const Plan& plan, const Measurement& measurement, const Arm& arm, std::int64_t block) {
    std::vector<trainer::Override> overrides;
    for (const std::string& setting : launch_settings(plan, measurement, arm, block)) {
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
