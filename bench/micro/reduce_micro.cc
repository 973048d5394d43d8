// The arithmetic of a reduction over the ranks of a node, on one core, beside a plain copy of as many bytes as come
// out.
#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "comm/reduce.h"

namespace lockstep::comm {
namespace {

constexpr std::size_t bytes = 4 << 20;  // of each rank: more than a core's own caches hold

void count_bytes(benchmark::State& state) {
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(bytes));
}

void reduce(benchmark::State& state, DataType type, std::size_t ranks) {
    const std::vector<std::vector<std::byte>> memory(ranks, std::vector<std::byte>(bytes));
    std::vector<const std::byte*> sources;
    for (const auto& of_rank : memory) {
        sources.push_back(of_rank.data());
    }
    std::vector<std::byte> sum(bytes);
    for (auto _ : state) {
        reduce_in_order(sources, sum.data(), bytes / size_of(type), type, ReduceOp::sum);
        benchmark::ClobberMemory();
    }
    count_bytes(state);
}

void copy(benchmark::State& state) {
    const std::vector<std::byte> source(bytes);
    std::vector<std::byte> target(bytes);
    for (auto _ : state) {
        std::memcpy(target.data(), source.data(), bytes);
        benchmark::ClobberMemory();
    }
    count_bytes(state);
}

void add_benchmarks() {
    benchmark::RegisterBenchmark("copy", copy);
    using enum DataType;
    for (const DataType type : {f32, f64, f16, bf16, i32, i64, u8}) {
        for (const std::size_t ranks : {2, 4, 8}) {
            const std::string name = "reduce/" + std::string(name_of(type)) + "/" + std::to_string(ranks) + " ranks";
            benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) { reduce(state, type, ranks); });
        }
    }
}

}  // namespace
}  // namespace lockstep::comm

int main(int count, char** arguments) {
    lockstep::comm::add_benchmarks();
    benchmark::Initialize(&count, arguments);
    if (benchmark::ReportUnrecognizedArguments(count, arguments)) {
        return 2;
    }
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
