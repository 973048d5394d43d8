#include "trainer/trainable_parameters.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "base/error.h"
#include "base/text.h"

namespace lockstep::trainer {

namespace {

std::size_t unit_of(const std::string& name, const std::vector<std::vector<std::string>>& units) {
    const auto unit = std::ranges::find_if(units, [&](const std::vector<std::string>& prefixes) {
        return std::ranges::any_of(prefixes, [&](const std::string& prefix) { return name.starts_with(prefix); });
    });
    if (unit == units.end()) {
        throw base::Error(base::str("parameter ", name, " belongs to no unit of the network, so it can't be gathered"));
    }
    return static_cast<std::size_t>(unit - units.begin());
}

/// By the beginning of names, which ends where a part of the name does.
using RateFactors = std::map<std::string, double>;

RateFactors parse_rate_factors(const std::string& text) {
    RateFactors factors;
    for (const std::string& word : base::split(text, ' ')) {
        if (word.empty()) {
            continue;
        }
        const auto equals = word.find('=');
        double factor = -1;
        if (equals != std::string::npos) {
            const char* const end = word.data() + word.size();
            const auto [rest, error] = std::from_chars(word.data() + equals + 1, end, factor);
            factor = error == std::errc() && rest == end ? factor : -1;
        }
        if (equals == 0 || !(factor >= 0) || !std::isfinite(factor)) {
            throw base::UsageError(base::str("optimizer.rate_factors: \"", word,
                                             "\" is not NAME=FACTOR with a factor of at least 0, such as model.0=0.1"));
        }
        factors[word.substr(0, equals)] = factor;
    }
    return factors;
}

bool begins(const std::string& beginning, const std::string& name) {
    return name.starts_with(beginning) && (name.size() == beginning.size() || name[beginning.size()] == '.');
}

void require_known_names(const RateFactors& factors, const torch::OrderedDict<std::string, at::Tensor>& parameters) {
    for (const auto& [beginning, factor] : factors) {
        if (std::ranges::none_of(parameters.keys(), [&](const auto& name) { return begins(beginning, name); })) {
            throw base::UsageError(base::str("optimizer.rate_factors: no parameter's name begins with \"", beginning,
                                             "\"; they go from ", parameters.keys().front(), " to ",
                                             parameters.keys().back(), " ('lockstep model NAME' lists them)"));
        }
    }
}

/// Of the longest beginning; 1 where none fits.
double factor_of(const std::string& name, const RateFactors& factors) {
    double factor = 1;
    std::size_t longest = 0;
    for (const auto& [beginning, value] : factors) {
        if (begins(beginning, name) && beginning.size() > longest) {
            longest = beginning.size();
            factor = value;
        }
    }
    return factor;
}

}  // namespace

TrainableParameters::TrainableParameters(torch::nn::Module& network, const std::string& rate_factors_text) {
    const RateFactors factors = parse_rate_factors(rate_factors_text);
    const auto parameters = network.named_parameters();
    require_known_names(factors, parameters);
    for (const auto& item : parameters) {
        if (!item.value().requires_grad()) {
            continue;
        }
        const double factor = factor_of(item.key(), factors);
        if (factor == 0) {
            item.value().requires_grad_(false);
            frozen.emplace_back(item.key(), item.value());
            continue;
        }
        rate_factors.push_back(factor);
        const bool is_bias = item.key().ends_with("bias");
        names.push_back(item.key());
        tensors.push_back(item.value());
        groups.push_back(is_bias                  ? ParameterGroup::bias
                         : item.value().dim() > 1 ? ParameterGroup::weight
                                                  : ParameterGroup::norm);
    }
    if (names.empty()) {
        throw base::UsageError("optimizer.rate_factors freezes every parameter; nothing is left to train");
    }
}

std::uint64_t TrainableParameters::count() const {
    std::uint64_t scalars = 0;
    for (const auto& tensor : tensors) {
        scalars += static_cast<std::uint64_t>(tensor.numel());
    }
    return scalars;
}

std::vector<comm::ReducedParameter> TrainableParameters::reduced(
    const Task& task, const std::vector<std::vector<std::string>>& units) const {
    std::vector<comm::ReducedParameter> reduced;
    for (std::size_t i = 0; i < names.size(); ++i) {
        reduced.push_back({names[i], tensors[i], task.head_of(names[i]), units.empty() ? 0 : unit_of(names[i], units)});
    }
    return reduced;
}

}  // namespace lockstep::trainer
