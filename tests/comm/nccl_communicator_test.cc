// The whole leaf over a fake NCCL and a fake CUDA, whose device memory the host can't touch. Ranks are threads, each
// with a device of its own, and meet over shared memory.
#include "comm/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/text.h"
#include "comm/cuda_memory.h"
#include "comm/hierarchical_communicator.h"
#include "comm/host_staged_communicator.h"
#include "tests/comm/collective_checks.h"
#include "tests/comm/on_device_communicator.h"
#include "tests/comm/thread_node.h"
#include "tests/fake_nccl/fake_device.h"

namespace lockstep::comm {
namespace {

using fake::Fault;
using tests::Averages;
using tests::error_of;
using tests::Memory;
using tests::OnDeviceCommunicator;
using Milliseconds = std::chrono::milliseconds;

constexpr std::chrono::minutes patient{5};
/// Of operations that are to fail: long enough for the others to come to it first.
constexpr Milliseconds impatient{1500};

void expect_parts(const std::string& text, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) {
        EXPECT_NE(text.find(part), std::string::npos) << "no <" << part << "> in: " << text;
    }
}

std::unique_ptr<Communicator> join(tests::ThreadNode& node, Rank rank, std::int32_t device, Milliseconds timeout) {
    auto meeting = node.join("gradients", rank, timeout);
    CommunicatorIdentity identity = meeting->identity();
    return make_nccl_communicator(std::move(identity), std::move(meeting), device);
}

/// A thread for each rank, which gets its way into the group: it may throw.
using Join = std::function<std::unique_ptr<Communicator>()>;
void on_ranks(std::int32_t size, Milliseconds timeout, const std::function<void(Rank, const Join&)>& body) {
    std::vector<Rank> members;
    for (std::int32_t rank = 0; rank < size; ++rank) {
        members.push_back(Rank{rank + 10});
    }
    tests::ThreadNode node(members);
    tests::on_rank_threads(size,
                           [&](Rank rank) { body(rank, [&] { return join(node, rank, index_of(rank), timeout); }); });
}

class Nccl : public testing::Test {
  protected:
    void SetUp() override { fake::set_faults({}); }
    void TearDown() override {
        EXPECT_EQ(fake::still_there(), "");
        fake::set_faults({});
    }
};

class NcclSizes : public Nccl, public testing::WithParamInterface<std::int32_t> {};

TEST_P(NcclSizes, EveryCollectiveGivesTheClosedForm) {
    on_ranks(GetParam(), patient, [](Rank rank, const Join& join) {
        OnDeviceCommunicator ranks(join(), make_cuda_memory(index_of(rank)));
        for (const DataType type : tests::types_to_check()) {
            for (const std::size_t count : {0, 7, 20011}) {
                tests::expect_closed_forms(ranks, type, count, Memory::any, Averages::of_parts_divided);
            }
        }
        tests::expect_bytes_of_any_length(ranks);
        ranks.barrier("end");
    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclSizes, testing::Values(1, 2, 3, 4));

/// What the caller has queued on its stream comes first, and the result is there on return.
TEST_F(Nccl, WaitsForTheCallersWorkAndIsDoneOnReturn) {
    on_ranks(2, patient, [](Rank rank, const Join& join) {
        const auto ranks = join();
        const auto memory = ranks->allocate(1000 * sizeof(float), "bucket");
        auto* const seen = reinterpret_cast<float*>(fake::seen_by_device(memory.get()));
        EXPECT_EQ(std::count(seen, seen + 1000, 0.0F), 1000) << "allocate gives zeros";
        for (int round = 1; round <= 5; ++round) {
            fake::queue_on_default_stream(index_of(rank), [=] {
                std::this_thread::sleep_for(Milliseconds(20));
                std::fill_n(seen, 1000, static_cast<float>(round * (index_of(rank) + 1)));
            });
            ranks->all_reduce({memory.get(), 1000, DataType::f32}, ReduceOp::sum, "test");
            EXPECT_EQ(std::count(seen, seen + 1000, static_cast<float>(3 * round)), 1000) << seen[0];
        }
        std::atomic<bool> is_done = false;
        fake::queue_on_default_stream(index_of(rank), [&] {
            std::this_thread::sleep_for(Milliseconds(20));
            is_done = true;
        });
        ranks->barrier("test");
        EXPECT_TRUE(is_done) << "a barrier waits for the caller's work, too";
        EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "LibTorch would take it for its own";
    });
}

/// NCCL says ncclInProgress and puts its work on the stream only later.
TEST_F(Nccl, AnEventIsRecordedOnlyWhenTheWorkIsOnTheStream) {
    fake::set_faults({{"ncclAllReduce", 0, Fault::Kind::delay_queue, 0, Milliseconds(100)}});
    on_ranks(2, patient, [](Rank rank, const Join& join) {
        OnDeviceCommunicator ranks(join(), make_cuda_memory(index_of(rank)));
        std::vector<float> values(10, 1.0F);
        ranks.all_reduce(Buffer::of(std::span(values)), ReduceOp::sum, "test");
        EXPECT_EQ(values, std::vector<float>(10, 2.0F));
    });
}

TEST_F(Nccl, CallsItInThisOrder) {
    std::barrier both{2};
    on_ranks(2, patient, [&](Rank rank, const Join& join) {
        const auto ranks = join();
        const auto memory = ranks->allocate(12, "bucket");
        both.arrive_and_wait();
        if (rank == Rank{0}) {
            fake::set_faults({});  // forgets the calls so far
        }
        both.arrive_and_wait();
        ranks->barrier("test");
        const std::vector<Slice> uneven{{0, 1}, {1, 3}};
        ranks->all_reduce({memory.get(), 2, DataType::f32}, ReduceOp::sum, "test");
        ranks->reduce_scatter({memory.get(), 2, DataType::f32}, ReduceOp::sum, "test");
        ranks->reduce_scatter({memory.get(), 3, DataType::f32}, uneven, ReduceOp::sum, "test");
        ranks->all_gather({memory.get(), 2, DataType::f32}, "test");
        ranks->all_gather({memory.get(), 3, DataType::f32}, uneven, "test");
        ranks->broadcast({memory.get(), 3, DataType::f32}, Rank{1}, "test");
        std::vector<std::string> calls = fake::calls_on(index_of(rank));
        std::erase_if(calls, [](const std::string& call) {
            return call == "ncclCommGetAsyncError" || call == "cudaEventQuery";  // as often as it takes
        });
        std::vector<std::string> expected{"cudaSetDevice", "cudaEventRecord", "cudaStreamWaitEvent",
                                          "cudaEventRecord"};  // the barrier
        for (const std::vector<std::string>& of_one : {std::vector<std::string>{"ncclAllReduce"},
                                                       {"ncclReduceScatter"},
                                                       {"ncclReduce", "ncclReduce"},
                                                       {"ncclAllGather"},
                                                       {"ncclBroadcast", "ncclBroadcast"},
                                                       {"ncclBroadcast"}}) {
            expected.insert(expected.end(),
                            {"cudaSetDevice", "cudaEventRecord", "cudaStreamWaitEvent", "ncclGroupStart"});
            expected.insert(expected.end(), of_one.begin(), of_one.end());
            expected.insert(expected.end(), {"ncclGroupEnd", "cudaEventRecord"});
        }
        EXPECT_EQ(calls, expected);
    });
}

bool was_aborted(std::int32_t device) {
    const std::vector<std::string> calls = fake::calls_on(device);
    return std::ranges::count(calls, "ncclCommAbort") == 1;
}

TEST_F(Nccl, ASetUpThatNeverEndsRunsIntoTheDeadline) {
    fake::set_faults({{"ncclCommInitRankConfig", 1, Fault::Kind::hang}});
    on_ranks(2, impatient, [](Rank rank, const Join& join) {
        EXPECT_THROW(
            try { join(); } catch (const PeerError& error) {
                expect_parts(error.what(), {"gradients: set-up \"ncclCommInitRankConfig\", operation 1",
                                            base::str("on rank ", index_of(rank) + 10, " on node7"),
                                            "ncclCommInitRankConfig is not done after 1.5 s", "which of 2 ranks"});
                throw;
            },
            PeerError);
        EXPECT_TRUE(was_aborted(index_of(rank)));
    });
}

TEST_F(Nccl, AnOperationThatHangsRunsIntoTheDeadlineAndIsAborted) {
    fake::set_faults({{"ncclAllReduce", 1, Fault::Kind::hang}});
    on_ranks(2, impatient, [](Rank rank, const Join& join) {
        const auto ranks = join();
        const auto memory = ranks->allocate(4000, "bucket");
        const Buffer buffer{memory.get(), 1000, DataType::f32};
        EXPECT_THROW(
            try { ranks->all_reduce(buffer, ReduceOp::sum, "bucket 3"); } catch (const PeerError& error) {
                expect_parts(error.what(), {"all_reduce (sum of f32) \"bucket 3\", operation 2, 3.9 KiB",
                                            "ncclAllReduce is not done after 1.5 s"});
                throw;
            },
            PeerError);
        EXPECT_TRUE(was_aborted(index_of(rank)));
        expect_parts(error_of([&] { ranks->barrier("next"); }), {"barrier \"next\"", "not possible after"});
    });
}

TEST_F(Nccl, ARankThatDoesNotCallRunsTheOthersIntoTheDeadline) {
    on_ranks(3, impatient, [](Rank rank, const Join& join) {
        const auto ranks = join();
        const auto memory = ranks->allocate(4000, "bucket");
        if (rank != Rank{2}) {
            EXPECT_THROW(ranks->all_reduce({memory.get(), 1000, DataType::f32}, ReduceOp::sum, "bucket 3"), PeerError);
            EXPECT_TRUE(was_aborted(index_of(rank)));
        } else {
            std::this_thread::sleep_for(2 * impatient);
            // Its part of the end does not come about, since the others have aborted.
        }
    });
}

TEST_F(Nccl, ErrorsThatComeLaterAreThrownWithTheirText) {
    for (const auto code : {ncclRemoteError, ncclSystemError}) {
        fake::set_faults({{"ncclBroadcast", 0, Fault::Kind::late_error, code}});
        on_ranks(2, impatient, [code](Rank rank, const Join& join) {
            const auto ranks = join();
            const auto memory = ranks->allocate(16, "bucket");
            const Buffer buffer{memory.get(), 16, DataType::u8};
            if (rank == Rank{1}) {
                EXPECT_THROW(ranks->broadcast(buffer, Rank{0}, "weights"), PeerError);
                return;
            }
            try {
                ranks->broadcast(buffer, Rank{0}, "weights");
                ADD_FAILURE() << "no error";
            } catch (const base::Error& error) {
                expect_parts(error.what(), {"broadcast \"weights\"", "ncclBroadcast failed",
                                            code == ncclRemoteError ? "ncclRemoteError" : "ncclSystemError",
                                            "text of the fake NCCL", "detail of the fake NCCL"});
                EXPECT_EQ(dynamic_cast<const PeerError*>(&error) != nullptr, code == ncclRemoteError)
                    << "a remote error is another rank's";
            }
            EXPECT_TRUE(was_aborted(0));
        });
    }
}

/// Every call that an operation makes, with the code that it is given.
TEST_F(Nccl, EveryCodeIsCheckedAndNamed) {
    const std::vector<std::pair<std::string, int>> failures = {{"cudaSetDevice", cudaErrorInvalidDevice},
                                                               {"cudaEventRecord", cudaErrorIllegalAddress},
                                                               {"cudaStreamWaitEvent", cudaErrorLaunchFailure},
                                                               {"cudaEventQuery", cudaErrorIllegalAddress},
                                                               {"ncclGroupStart", ncclSystemError},
                                                               {"ncclAllReduce", ncclInternalError},
                                                               {"ncclGroupEnd", ncclUnhandledCudaError},
                                                               {"ncclCommGetAsyncError", ncclInvalidArgument}};
    for (const auto& [call, code] : failures) {
        fake::set_faults({});
        on_ranks(1, impatient, [&, call = call, code = code](Rank, const Join& join) {
            const auto ranks = join();
            const auto memory = ranks->allocate(16, "bucket");
            fake::set_faults({{call, 0, Fault::Kind::error, code}});
            const std::string error = error_of([&] {
                ranks->all_reduce({memory.get(), 4, DataType::f32}, ReduceOp::sum, "bucket 3");
            });
            const bool is_cuda = call.starts_with("cuda");
            expect_parts(error, {"gradients: all_reduce (sum of f32) \"bucket 3\"", "rank 10 on node7", call,
                                 is_cuda ? cudaGetErrorName(static_cast<cudaError_t>(code)) : "failed: nccl",
                                 is_cuda ? "text of the fake CUDA" : "text of the fake NCCL"});
            EXPECT_TRUE(was_aborted(0)) << call;
            fake::set_faults({});
        });
    }
}

TEST_F(Nccl, ARankThatCanNotBeginIsNamedOnAllRanks) {
    for (const auto& [call, device, code, name] :
         {std::tuple("ncclGetUniqueId", 0, static_cast<int>(ncclSystemError), "ncclSystemError"),
          std::tuple("cudaSetDevice", 2, static_cast<int>(cudaErrorNoDevice), "driver 580 or newer"),
          std::tuple("cudaStreamCreateWithFlags", 1, static_cast<int>(cudaErrorMemoryAllocation),
                     "cudaErrorMemoryAllocation")}) {
        fake::set_faults({{call, device, Fault::Kind::error, code}});
        on_ranks(3, impatient, [&, call = call, device = device, name = name](Rank, const Join& join) {
            expect_parts(error_of([&] { join(); }), {base::str("can't be used on rank ", device + 10), call, name});
        });
    }
}

TEST_F(Nccl, RefusesASettingThatTakesTheDeadlinesAway) {
    setenv("NCCL_COMM_BLOCKING", "1", 1);
    on_ranks(2, impatient, [](Rank, const Join& join) {
        expect_parts(error_of([&] { join(); }), {"NCCL_COMM_BLOCKING=1", "without a time limit"});
    });
    unsetenv("NCCL_COMM_BLOCKING");
}

TEST_F(Nccl, RefusesRanksThatShareADevice) {
    tests::ThreadNode node({Rank{0}, Rank{1}});
    tests::on_rank_threads(2, [&](Rank rank) {
        expect_parts(error_of([&] { join(node, rank, 3, impatient); }), {"ncclInvalidUsage", "Duplicate GPU"});
    });
}

TEST_F(Nccl, MemoryThatIsNotThereIsAnErrorWithTheBytes) {
    on_ranks(1, impatient, [](Rank, const Join& join) {
        const auto ranks = join();
        fake::set_faults({{"cudaMalloc", 0, Fault::Kind::error, cudaErrorMemoryAllocation}});
        expect_parts(error_of([&] { ranks->allocate(1 << 20, "bucket 5"); }),
                     {"no memory for bucket 5", "cudaMalloc of 1.0 MiB", "cudaErrorMemoryAllocation"});
    });
}

/// NCCL inside nodes; across them NCCL as well, or the host's shared memory, which stands for any leaf of the CPU's.
class Composed : public Nccl, public testing::WithParamInterface<std::tuple<std::vector<std::int32_t>, bool>> {};

TEST_P(Composed, EveryCollectiveGivesTheClosedForm) {
    const auto& [node_of_rank, nccl_across] = GetParam();
    std::vector<std::string> hosts;
    for (const std::int32_t node : node_of_rank) {
        hosts.push_back(base::str("node", node));
    }
    const Topology topology(node_of_rank, hosts);
    std::vector<std::unique_ptr<tests::ThreadNode>> nodes, lanes;
    for (std::int32_t node = 0; node < topology.nodes(); ++node) {
        nodes.push_back(std::make_unique<tests::ThreadNode>(topology.ranks_of_node(node)));
    }
    for (std::int32_t lane = 0; lane < lanes_of(topology); ++lane) {
        lanes.push_back(std::make_unique<tests::ThreadNode>(ranks_of_lane(topology, lane)));
    }
    tests::on_rank_threads(topology.ranks(), [&, across_nccl = nccl_across](Rank rank) {
        const auto node = static_cast<std::size_t>(topology.node_of(rank));
        const std::int32_t local = topology.local_rank_of(rank);
        const auto memory = make_cuda_memory(index_of(rank));
        CommunicatorIdentity identity{"gradients", rank, {}, patient};
        for (std::int32_t member = 0; member < topology.ranks(); ++member) {
            identity.members.push_back({member, topology.host_of(Rank{member})});
        }
        auto inside = join(*nodes[node], Rank{local}, index_of(rank), patient);
        std::unique_ptr<Communicator> across;
        if (local < lanes_of(topology)) {
            tests::ThreadNode& lane = *lanes[static_cast<std::size_t>(local)];
            const Rank place{static_cast<std::int32_t>(node)};
            across = across_nccl ? join(lane, place, index_of(rank), patient)
                                 : make_host_staged_communicator(lane.join("across", place, patient), memory);
        }
        OnDeviceCommunicator ranks(
            make_hierarchical_communicator(std::move(identity), topology, std::move(inside), std::move(across), memory),
            memory);
        for (const DataType type : {DataType::f32, DataType::bf16, DataType::i64}) {
            for (const std::size_t count : {7, 10007}) {
                tests::expect_closed_forms(ranks, type, count, Memory::any);
            }
        }
        tests::expect_bytes_of_any_length(ranks);
        ranks.barrier("end");
    });
}

INSTANTIATE_TEST_SUITE_P(Clusters, Composed,
                         testing::Combine(testing::Values(std::vector{0, 0, 1, 1}, std::vector{0, 1, 0, 0, 1}),
                                          testing::Bool()),
                         [](const auto& info) {
                             std::string name = std::get<1>(info.param) ? "NcclAcrossNodes" : "HostAcrossNodes";
                             for (const std::int32_t node : std::get<0>(info.param)) {
                                 name += std::to_string(node);
                             }
                             return name;
                         });

}  // namespace
}  // namespace lockstep::comm
