#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "comm/communicator.h"

namespace lockstep::comm {

/// Something that all ranks must have alike: a setting, a tensor's shape, a parameter's values.
struct AgreementItem {
    std::string name;
    std::uint64_t hash = 0;  ///< of all that must be alike
    std::string text;        ///< shown where it differs
};

/// An item that is alike where the text is.
AgreementItem agreement_item(std::string name, std::string text);

/// Compares all ranks' items, of which each brings the same list, by one small reduction. Where they differ, *all*
/// ranks throw the same base::Error: `occasion` ("before the first step"), who differs from the most in the first item
/// that differs, both texts, and `remedy`, a sentence. Collective.
void require_agreement(Communicator& ranks, std::span<const AgreementItem> items, std::string_view occasion,
                       std::string_view remedy);

}  // namespace lockstep::comm
