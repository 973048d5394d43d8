#include "comm/wire_communicator.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "comm/reduce.h"

namespace lockstep::comm {

namespace {

/// No operations of its own in the log: the inner communicator's are there.
CommunicatorIdentity without_log(CommunicatorIdentity identity) {
    identity.log = nullptr;
    return identity;
}

class WireCommunicator final : public Communicator {
  public:
    WireCommunicator(std::unique_ptr<Communicator> inner, DataType wire)
        : Communicator(without_log(inner->identity())), inner_(std::move(inner)), wire_(wire) {
        LOCKSTEP_CHECK(wire == DataType::bf16 || wire == DataType::f16, "wire type ", name_of(wire));
    }

    SentData sent() const override {
        SentData sent = inner_->sent();
        sent.squared_error += rounding_.squared_error;
        sent.squared_values += rounding_.squared_values;
        return sent;
    }

    std::shared_ptr<std::byte> allocate(std::size_t bytes, std::string_view name) override {
        return inner_->allocate(bytes, name);
    }

  private:
    void do_all_reduce(const Buffer& buffer, ReduceOp op) override {
        if (buffer.type != DataType::f32) {
            return inner_->all_reduce(buffer, op, operation().name);
        }
        const Slice whole{0, buffer.count};
        const float scale = agreed_scale(buffer);
        inner_->all_reduce(narrowed(buffer, scale), op, operation().name);
        widen(buffer, whole, scale);
    }

    void do_reduce_scatter(const Buffer& buffer, std::span<const Slice> slices, ReduceOp op) override {
        if (buffer.type != DataType::f32) {
            return inner_->reduce_scatter(buffer, slices, op, operation().name);
        }
        const float scale = agreed_scale(buffer);
        inner_->reduce_scatter(narrowed(buffer, scale), slices, op, operation().name);
        widen(buffer, slices[static_cast<std::size_t>(index_of(rank()))], scale);
    }

    void do_all_gather(const Buffer& buffer, std::span<const Slice> slices) override {
        inner_->all_gather(buffer, slices, operation().name);
    }
    void do_broadcast(const Buffer& buffer, Rank root) override { inner_->broadcast(buffer, root, operation().name); }
    void do_barrier() override { inner_->barrier(operation().name); }
    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        return inner_->all_gather_bytes(mine, operation().name);
    }

    /// A power of two that brings the largest possible sum below 2^15. 1 where values are infinite or NaN: they stay.
    float agreed_scale(const Buffer& buffer) {
        if (wire_ != DataType::f16) {
            return 1;
        }
        float largest = 0;
        for (const float value : floats_of(buffer)) {
            const float magnitude = std::abs(value);
            largest = magnitude > largest || std::isnan(magnitude) ? magnitude : largest;
        }
        inner_->all_reduce(Buffer::of(std::span(&largest, 1)), ReduceOp::max, operation().name + ", largest value");
        if (largest == 0 || !std::isfinite(largest)) {
            return 1;
        }
        constexpr int f16_exponent = 15, f32_exponent = 126;
        const int ranks_exponent = std::bit_width(static_cast<unsigned>(size()));
        const int exponent = f16_exponent - ranks_exponent - std::ilogb(largest) - 1;
        return std::ldexp(1.0F, std::clamp(exponent, -f32_exponent, f32_exponent));
    }

    /// The buffer's values as 16 bits; valid until the next one.
    Buffer narrowed(const Buffer& buffer, float scale) {
        narrow_.resize(std::max(narrow_.size(), buffer.count));
        if (wire_ == DataType::bf16) {
            narrow_by(buffer, scale, float_to_bf16, bf16_to_float);
        } else {
            narrow_by(buffer, scale, float_to_f16, f16_to_float);
        }
        return {narrow_.data(), buffer.count, wire_};
    }

    template <typename Narrow, typename Widen>
    void narrow_by(const Buffer& buffer, float scale, Narrow narrow, Widen widen_one) {
        constexpr std::size_t lanes = 8;  // sums that fill the vector unit
        std::array<double, lanes> squared_error{}, squared_values{};
        const std::span<const float> values = floats_of(buffer);
        const double back = 1.0 / scale;
        for (std::size_t begin = 0; begin < values.size(); begin += lanes) {
            const std::size_t length = std::min(lanes, values.size() - begin);
            for (std::size_t i = 0; i < length; ++i) {
                const double value = values[begin + i];
                narrow_[begin + i] = narrow(values[begin + i] * scale);
                const double error = widen_one(narrow_[begin + i]) * back - value;
                squared_error[i] += error * error;
                squared_values[i] += value * value;
            }
        }
        const double error = std::reduce(squared_error.begin(), squared_error.end());
        if (std::isfinite(error)) {
            rounding_.squared_error += error;
            rounding_.squared_values += std::reduce(squared_values.begin(), squared_values.end());
        }
    }

    void widen(const Buffer& buffer, const Slice& slice, float scale) const {
        const std::span<float> values = floats_of(buffer);
        const float back = 1 / scale;  // exact, as it is a power of two
        const auto widen_by = [&](auto widen_one) {
            for (std::size_t i = slice.begin; i < slice.end; ++i) {
                values[i] = widen_one(narrow_[i]) * back;
            }
        };
        if (wire_ == DataType::bf16) {
            widen_by(bf16_to_float);
        } else {
            widen_by(f16_to_float);
        }
    }

    static std::span<float> floats_of(const Buffer& buffer) { return {static_cast<float*>(buffer.data), buffer.count}; }

    std::unique_ptr<Communicator> inner_;
    DataType wire_;
    std::vector<std::uint16_t> narrow_;
    SentData rounding_;
};

}  // namespace

DataType wire_type_of(std::string_view name) {
    if (name == "fp32") {
        return DataType::f32;
    }
    if (name == "bf16") {
        return DataType::bf16;
    }
    if (name == "fp16") {
        return DataType::f16;
    }
    throw base::UsageError(base::str("unknown wire type \"", name, "\"; there are fp32, bf16, fp16"));
}

std::unique_ptr<Communicator> make_wire_communicator(std::unique_ptr<Communicator> inner, DataType wire) {
    return std::make_unique<WireCommunicator>(std::move(inner), wire);
}

}  // namespace lockstep::comm
