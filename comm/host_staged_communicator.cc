#include "comm/host_staged_communicator.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "base/error.h"

namespace lockstep::comm {

namespace {

/// No operations of its own in the log: the inner communicator's are there.
CommunicatorIdentity without_log(CommunicatorIdentity identity) {
    identity.log = nullptr;
    return identity;
}

class HostStagedCommunicator final : public Communicator {
  public:
    HostStagedCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<DeviceMemory> device,
                           std::size_t piece_bytes)
        : Communicator(without_log(inner->identity())),
          inner_(std::move(inner)),
          device_(std::move(device)),
          piece_bytes_(piece_bytes) {
        LOCKSTEP_CHECK_GE(piece_bytes_, size_of(DataType::f64), "an element of every type fits into a piece");
    }

    SentData sent() const override { return inner_->sent(); }

    std::shared_ptr<std::byte> allocate(std::size_t bytes, std::string_view /*name*/) override {
        return device_->allocate(bytes);
    }

  private:
    void do_all_reduce(const Buffer& buffer, ReduceOp op) override {
        for_each_piece(buffer, [&](const Buffer& staged, const Slice& piece) {
            to_host(staged, buffer, piece, piece);
            inner_->all_reduce(staged, op, operation().name);
            to_device(staged, buffer, piece, piece);
        });
    }

    void do_reduce_scatter(const Buffer& buffer, std::span<const Slice> slices, ReduceOp op) override {
        for_each_piece(buffer, [&](const Buffer& staged, const Slice& piece) {
            to_host(staged, buffer, piece, piece);
            inner_->reduce_scatter(staged, within(slices, piece), op, operation().name);
            to_device(staged, buffer, piece, common(slices[self()], piece));
        });
    }

    void do_all_gather(const Buffer& buffer, std::span<const Slice> slices) override {
        for_each_piece(buffer, [&](const Buffer& staged, const Slice& piece) {
            to_host(staged, buffer, piece, common(slices[self()], piece));
            inner_->all_gather(staged, within(slices, piece), operation().name);
            for (const Slice& slice : slices) {
                to_device(staged, buffer, piece, common(slice, piece));
            }
        });
    }

    void do_broadcast(const Buffer& buffer, Rank root) override {
        for_each_piece(buffer, [&](const Buffer& staged, const Slice& piece) {
            if (rank() == root) {
                to_host(staged, buffer, piece, piece);
            }
            inner_->broadcast(staged, root, operation().name);
            to_device(staged, buffer, piece, piece);
        });
    }

    void do_barrier() override { inner_->barrier(operation().name); }

    std::vector<std::vector<std::byte>> do_all_gather_bytes(std::span<const std::byte> mine) override {
        return inner_->all_gather_bytes(mine, operation().name);
    }

    /// visit(page-locked memory of the piece's size, the piece), in order; pieces are the same on every rank.
    template <typename Visit>
    void for_each_piece(const Buffer& buffer, Visit visit) {
        const std::size_t most = piece_bytes_ / size_of(buffer.type);
        for (std::size_t begin = 0; begin < buffer.count; begin += most) {
            const Slice piece{begin, std::min(begin + most, buffer.count)};
            Buffer staged{nullptr, piece.count(), buffer.type};
            staged.data = staging_of(staged.bytes());
            visit(staged, piece);
        }
    }

    /// Collective, as allocate() of the inner communicator is: operations have the same size on all ranks.
    std::byte* staging_of(std::size_t bytes) {
        if (staging_bytes_ < bytes) {
            pinned_ = nullptr;
            staging_bytes_ = std::max(std::bit_ceil(bytes), least_staging_bytes);
            staging_ = inner_->allocate(staging_bytes_, "staging of device memory");
            pinned_ = device_->pin({staging_.get(), staging_bytes_});
        }
        return staging_.get();
    }

    /// Elements `part` of the buffer, from or to where they lie in the staged piece.
    void to_host(const Buffer& staged, const Buffer& buffer, const Slice& piece, const Slice& part) {
        device_->copy(at(staged, part.begin - piece.begin), at(buffer, part.begin), part.count() * size_of(buffer.type),
                      operation().deadline);
    }
    void to_device(const Buffer& staged, const Buffer& buffer, const Slice& piece, const Slice& part) {
        device_->copy(at(buffer, part.begin), at(staged, part.begin - piece.begin), part.count() * size_of(buffer.type),
                      operation().deadline);
    }

    static std::byte* at(const Buffer& buffer, std::size_t element) {
        return static_cast<std::byte*>(buffer.data) + element * size_of(buffer.type);
    }

    /// What a slice and a piece have in common; empty at the piece's begin where that is nothing.
    static Slice common(const Slice& slice, const Slice& piece) {
        const Slice both{std::max(slice.begin, piece.begin), std::min(slice.end, piece.end)};
        return both.begin < both.end ? both : Slice{piece.begin, piece.begin};
    }

    /// The slices' parts in a piece, counted from its begin.
    static std::vector<Slice> within(std::span<const Slice> slices, const Slice& piece) {
        std::vector<Slice> parts;
        parts.reserve(slices.size());
        for (const Slice& slice : slices) {
            const Slice part = common(slice, piece);
            parts.push_back({part.begin - piece.begin, part.end - piece.begin});
        }
        return parts;
    }

    std::size_t self() const { return static_cast<std::size_t>(index_of(rank())); }

    static constexpr std::size_t least_staging_bytes = 64 << 10;

    std::unique_ptr<Communicator> inner_;
    std::shared_ptr<DeviceMemory> device_;
    std::size_t piece_bytes_;
    std::shared_ptr<std::byte> staging_;
    std::shared_ptr<void> pinned_;  ///< goes before the memory
    std::size_t staging_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_host_staged_communicator(std::unique_ptr<Communicator> inner,
                                                            std::shared_ptr<DeviceMemory> device,
                                                            std::size_t piece_bytes) {
    return std::make_unique<HostStagedCommunicator>(std::move(inner), std::move(device), piece_bytes);
}

}  // namespace lockstep::comm
