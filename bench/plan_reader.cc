#include <toml++/toml.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "base/error.h"
#include "base/toml_literal.h"
#include "bench/plan.h"
#include "trainer/recipe.h"

// Reading a plan's TOML.
namespace lockstep::bench {
namespace {

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
        return base::toml_literal(node.value_or(std::string()));
    }
    if (node.is_floating_point()) {
        return base::toml_literal(*node.value<double>());
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

/// Names of a table's entries in the order in which they are written, which the waterfall follows; the parser sorts.
std::vector<std::string> names_in_order(const toml::table& table) {
    std::vector<std::pair<toml::source_index, std::string>> order;
    for (const auto& [name, node] : table) {
        order.emplace_back(node.source().begin.line, std::string(name.str()));
    }
    std::ranges::sort(order);
    std::vector<std::string> names;
    std::ranges::transform(order, std::back_inserter(names), [](const auto& entry) { return entry.second; });
    return names;
}

std::vector<Factor> read_factors(const toml::table& table, const std::string& origin) {
    std::vector<Factor> factors;
    for (const std::string& name : names_in_order(table)) {
        const toml::node& node = *table.get(name);
        if (node.as_table() == nullptr) {
            refuse(place(origin, node), str("factors.", name, " must be a table"));
        }
        factors.push_back(read_factor(name, *node.as_table(), origin));
    }
    return factors;
}

void read_combinations(Plan& plan, const toml::table& table, const std::string& origin) {
    Table entries(table, origin, "combinations");
    for (const std::string& name : names_in_order(table)) {
        std::vector<std::size_t> levels(plan.factors.size(), 0);
        const std::string where = place(origin, *table.get(name));
        for (const std::string& part : entries.get_texts(name)) {
            switch_on(plan, part, where, levels);
        }
        if (std::ranges::all_of(levels, [](std::size_t level) { return level == 0; })) {
            refuse(where, str("combinations.", name, " is the baseline; name the factors that it switches on"));
        }
        plan.combinations.emplace_back(name, levels);
    }
}

std::vector<Design> read_designs(const std::vector<std::string>& names, const std::string& origin) {
    static const std::vector<std::pair<std::string, Design>> known = {{"one_at_a_time", Design::one_at_a_time},
                                                                      {"leave_one_out", Design::leave_one_out},
                                                                      {"waterfall", Design::waterfall},
                                                                      {"grid", Design::grid},
                                                                      {"named", Design::named}};
    std::vector<Design> designs;
    for (const std::string& name : names) {
        const auto found = std::ranges::find(known, name, &std::pair<std::string, Design>::first);
        if (found == known.end()) {
            std::vector<std::string> words;
            std::ranges::transform(known, std::back_inserter(words), &std::pair<std::string, Design>::first);
            refuse(origin, str("unknown design ", name, suggestion(name, words)));
        }
        designs.push_back(found->second);
    }
    return designs;
}

std::vector<Missing> read_missing(const toml::table& table, const std::string& origin) {
    const std::set<std::string> keys = recipe_keys();
    Table entries(table, origin, "missing");
    std::vector<Missing> missing;
    for (const auto& [key, node] : table) {
        const std::string name(key.str());
        const auto entry = std::ranges::find(short_names(), name, &ShortName::name);
        if (entry != short_names().end() && (entry->key.empty() || keys.contains(entry->key))) {
            refuse(place(origin, node), str("missing.", name, ": the recipe has ",
                                            entry->key.empty() ? name : entry->key, "; make it a factor instead"));
        }
        missing.push_back({name, entries.get<std::string>(name, "")});
    }
    return missing;
}

void check_arm_names(const Plan& plan, const std::string& origin) {
    std::vector<std::string> names;
    for (const Arm& arm : arms_of(plan)) {
        names.push_back(arm.name);
    }
    for (const Measurement& measurement : plan.measurements) {
        for (const std::string& name : measurement.arms) {
            if (std::ranges::find(names, name) == names.end()) {
                refuse(origin,
                       str(name_of(measurement.kind), ".arms: there is no arm ", name, suggestion(name, names)));
            }
        }
    }
}

/// What the recipe says to each level alone, and whether the blocks are enough.
void check_against_recipe(const Plan& plan, const std::string& origin) {
    Plan alone = plan;
    alone.designs = {Design::one_at_a_time};
    for (const Arm& arm : arms_of(alone)) {
        if (!arm.impossible.empty()) {
            refuse(origin, str("arm ", arm.name, ": ", arm.impossible));
        }
    }
    for (const Measurement& measurement : plan.measurements) {
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

const std::vector<ShortName>& short_names() {
    // Those of keys that the recipe lacks are refused until it has them, and then accepted without a change here.
    static const std::vector<ShortName> names = {{"precision", "precision"},
                                                 {"accumulation", "accumulate"},
                                                 {"batch", "batch"},
                                                 {std::string(ranks_name), ""},
                                                 {"topology", "communication.topology"},
                                                 {"algorithm", "communication.algorithm"},
                                                 {"bucket", "communication.bucket_mib"},
                                                 {"wire", "communication.wire"},
                                                 {"zero", "optimizer.zero_stage"},
                                                 {"zero_scope", "optimizer.zero_scope"},
                                                 {"threads", "data.threads"},
                                                 {"prefetch", "data.prefetch"},
                                                 {"read", "data.read"},
                                                 {"decode", "data.decode"},
                                                 {"order", "data.order"},
                                                 {"cache", "data.cache_mib"},
                                                 {"shared_cache", "data.shared_cache"},
                                                 {"scaling", "scaling.rule"},
                                                 {"graph", "graph"},
                                                 {"fused", "fused"},
                                                 {"batch_norm", "batch_norm"},
                                                 {"warmup", "schedule.warmup_epochs"},
                                                 {"rate_rule", "optimizer.learning_rate_rule"},
                                                 {"quantisation", "quantisation"}};
    return names;
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
        plan.factors = read_factors(*factors, origin);
    }
    if (const toml::table* combinations = table.get_table("combinations")) {
        read_combinations(plan, *combinations, origin);
    }
    plan.designs = read_designs(table.get_texts("designs"), origin);
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
        plan.missing = read_missing(*missing, origin);
    }
    table.close();
    check_arm_names(plan, origin);
    check_against_recipe(plan, origin);
    return plan;
}

}  // namespace lockstep::bench
