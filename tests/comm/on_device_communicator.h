#pragma once

#include <memory>
#include <utility>

#include "comm/communicator.h"
#include "comm/device_memory.h"

namespace lockstep::comm::tests {

/// Lets checks that know the host's memory run over a communicator of a device's: each buffer is copied to the device
/// before an operation and back after it.
class OnDeviceCommunicator final : public Communicator {
  public:
    OnDeviceCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<DeviceMemory> device)
        : Communicator(inner->identity()), inner_(std::move(inner)), device_(std::move(device)) {}

  private:
    template <typename Body>
    void on_device(const Buffer& buffer, Body body) {
        if (bytes_ < buffer.bytes()) {
            bytes_ = buffer.bytes();
            memory_ = inner_->allocate(bytes_, "test buffer");
        }
        auto* const host = static_cast<std::byte*>(buffer.data);
        device_->copy(memory_.get(), host, buffer.bytes(), operation().deadline);
        body(Buffer{memory_.get(), buffer.count, buffer.type});
        device_->copy(host, memory_.get(), buffer.bytes(), operation().deadline);
    }

    void do_all_reduce(const Buffer& buffer, ReduceOp op) override {
        on_device(buffer, [&](const Buffer& there) { inner_->all_reduce(there, op, operation().name); });
    }
    void do_reduce_scatter(const Buffer& buffer, std::span<const Slice> slices, ReduceOp op) override {
        on_device(buffer, [&](const Buffer& there) { inner_->reduce_scatter(there, slices, op, operation().name); });
    }
    void do_all_gather(const Buffer& buffer, std::span<const Slice> slices) override {
        on_device(buffer, [&](const Buffer& there) { inner_->all_gather(there, slices, operation().name); });
    }
    void do_broadcast(const Buffer& buffer, Rank root) override {
        on_device(buffer, [&](const Buffer& there) { inner_->broadcast(there, root, operation().name); });
    }
    void do_barrier() override { inner_->barrier(operation().name); }
    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        return inner_->all_gather_bytes(mine, operation().name);
    }

    std::unique_ptr<Communicator> inner_;
    std::shared_ptr<DeviceMemory> device_;
    std::shared_ptr<std::byte> memory_;
    std::size_t bytes_ = 0;
};

}  // namespace lockstep::comm::tests
