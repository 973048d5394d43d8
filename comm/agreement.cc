#include "comm/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/text.h"

namespace lockstep::comm {

namespace {

std::uint64_t hash_of(const AgreementItem& item) {
    return base::Hash64().add(item.name).add(item.hash).value();
}

/// By rank. A rank that has no such item has a value of its own.
std::vector<std::uint64_t> values_of_item(const std::vector<std::vector<std::uint64_t>>& hashes, std::size_t item) {
    std::vector<std::uint64_t> values;
    values.reserve(hashes.size());
    for (const auto& of_rank : hashes) {
        values.push_back(item < of_rank.size() ? of_rank[item] : 0);
    }
    return values;
}

/// The value that most ranks have; of two, the one that comes first.
std::uint64_t prevailing(const std::vector<std::uint64_t>& values) {
    std::map<std::uint64_t, std::ptrdiff_t> counts;
    for (const std::uint64_t value : values) {
        ++counts[value];
    }
    return *std::ranges::max_element(values, {}, [&](std::uint64_t value) { return counts[value]; });
}

/// Every rank's hashes, item by item.
std::vector<std::vector<std::uint64_t>> gather_hashes(Communicator& ranks, std::span<const AgreementItem> items) {
    std::vector<std::uint64_t> mine;
    std::ranges::transform(items, std::back_inserter(mine), hash_of);
    std::vector<std::vector<std::uint64_t>> all;
    for (const auto& bytes : ranks.all_gather_bytes(std::as_bytes(std::span(mine)), "what differs")) {
        all.emplace_back(bytes.size() / sizeof(std::uint64_t));
        std::memcpy(all.back().data(), bytes.data(), bytes.size());
    }
    return all;
}

}  // namespace

AgreementItem agreement_item(std::string name, std::string text) {
    const std::uint64_t hash = base::Hash64().add(text).value();
    return {std::move(name), hash, std::move(text)};
}

void require_agreement(Communicator& ranks, std::span<const AgreementItem> items, std::string_view occasion,
                       std::string_view remedy) {
    base::Hash64 whole;
    for (const AgreementItem& item : items) {
        whole.add(hash_of(item));
    }
    // The least hash, and the complement of the greatest one.
    std::array<std::int64_t, 2> bounds{static_cast<std::int64_t>(whole.value()),
                                       ~static_cast<std::int64_t>(whole.value())};
    ranks.all_reduce(Buffer::of(std::span<std::int64_t>(bounds)), ReduceOp::min, base::str("agreement ", occasion));
    if (bounds[0] == ~bounds[1]) {
        return;
    }
    // All ranks come here: what they saw is the same.
    const auto hashes = gather_hashes(ranks, items);
    const std::size_t most_items = std::ranges::max(hashes, {}, &std::vector<std::uint64_t>::size).size();
    std::size_t item = 0;
    std::vector<std::uint64_t> values;
    for (; item < most_items; ++item) {
        values = values_of_item(hashes, item);
        if (std::ranges::find_if(values, [&](std::uint64_t value) { return value != values.front(); }) !=
            values.end()) {
            break;
        }
    }
    LOCKSTEP_CHECK_LT(item, most_items, "ranks differ in no item");
    const std::string mine =
        item < items.size() ? base::str(items[item].name, ": ", items[item].text) : std::string("nothing");
    const std::vector<std::string> texts = ranks.all_gather_texts(mine, "what differs");

    const std::uint64_t usual = prevailing(values);
    const auto first_usual = static_cast<std::size_t>(std::ranges::find(values, usual) - values.begin());
    const auto first_other = static_cast<std::size_t>(
        std::ranges::find_if(values, [&](std::uint64_t value) { return value != usual; }) - values.begin());
    std::vector<std::string> others;  // those that have what the first of them has
    std::ptrdiff_t with_more_values = 0;
    for (std::size_t rank = 0; rank < values.size(); ++rank) {
        if (values[rank] == values[first_other]) {
            others.push_back(ranks.identity().members[rank].name());
        } else if (values[rank] != usual) {
            ++with_more_values;
        }
    }
    constexpr std::size_t most_names = 8;
    if (others.size() > most_names) {
        const std::size_t left_out = others.size() - most_names;
        others.resize(most_names);
        others.push_back(base::str(left_out, " more"));
    }
    throw base::Error(base::str(
        "ranks do not agree ", occasion, ": ", base::join(others, ", "), others.size() == 1 ? " has " : " have ",
        texts[first_other], "; ", ranks.identity().members[first_usual].name(), " has ", texts[first_usual],
        with_more_values > 0 ? base::str("; ", with_more_values, " more have other values") : "", ". ", remedy));
}

}  // namespace lockstep::comm
