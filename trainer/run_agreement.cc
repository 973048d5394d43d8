#include "trainer/run_agreement.h"

#include <cstddef>
#include <span>

#include "base/hash.h"
#include "base/text.h"

namespace lockstep::trainer {

using base::str;
using comm::agreement_item;
using comm::AgreementItem;

void require_same_recipe(comm::Communicator& ranks, const Recipe& recipe) {
    std::vector<AgreementItem> items{
        agreement_item("versions", "Lockstep " LOCKSTEP_VERSION ", LibTorch " LOCKSTEP_TORCH_VERSION)};
    for (const FieldDescription& field : describe(recipe)) {
        items.push_back(agreement_item(field.key, field.value));
    }
    comm::require_agreement(ranks, items, "on the recipe",
                            "All ranks have to read the same file and to run the same build");
}

std::vector<AgreementItem> agreement_on_layout(const TrainableParameters& parameters, const comm::FlatLayout& layout) {
    std::vector<AgreementItem> items;
    for (std::size_t i = 0; i < parameters.names.size(); ++i) {
        const at::Tensor& tensor = parameters.tensors[i];
        std::vector<std::string> sizes;
        for (const std::int64_t size : tensor.sizes()) {
            sizes.push_back(std::to_string(size));
        }
        items.push_back(agreement_item("parameter " + parameters.names[i],
                                       str("[", base::join(sizes, ", "), "] ", c10::toString(tensor.scalar_type()))));
    }
    for (const comm::FlatLayout::Bucket& bucket : layout.buckets()) {
        items.push_back(agreement_item("bucket of gradients",
                                       str("segment ", bucket.segment, ", ", bucket.begin, " to ", bucket.end)));
    }
    return items;
}

std::vector<AgreementItem> agreement_on_values(const TrainableParameters& parameters) {
    std::vector<AgreementItem> items;
    for (std::size_t i = 0; i < parameters.names.size(); ++i) {
        const at::Tensor& tensor = parameters.tensors[i];
        const std::span bytes(static_cast<const std::uint8_t*>(tensor.const_data_ptr()), tensor.nbytes());
        const std::uint32_t checksum = base::crc32c(bytes);
        items.push_back({"values of " + parameters.names[i], checksum, str("CRC-32C ", checksum)});
    }
    return items;
}

}  // namespace lockstep::trainer
