#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <type_traits>
#include <variant>
#include <vector>

namespace lockstep::sharding {

/// Calls produce(i) for i in 0 .. count-1 on `threads` threads, and consume(i, result) on the calling thread in the
/// order of i, so that the outcome is the same for every number of threads. At most a few results per thread are held.
/// The first exception in that order is rethrown, after the threads have ended.
template <typename Produce, typename Consume>
void ordered_parallel(std::uint64_t count, unsigned threads, const Produce& produce, const Consume& consume) {
    using Result = std::invoke_result_t<Produce, std::uint64_t>;
    threads = static_cast<unsigned>(std::clamp<std::uint64_t>(count, 1, std::max(threads, 1u)));
    const std::uint64_t ahead = 4 * std::uint64_t{threads};

    std::mutex mutex;
    std::condition_variable room, arrival;
    std::uint64_t next = 0, consumed = 0;
    bool stop = false;
    std::map<std::uint64_t, std::variant<Result, std::exception_ptr>> results;

    const auto work = [&] {
        for (std::unique_lock lock(mutex);;) {
            room.wait(lock, [&] { return stop || next == count || next < consumed + ahead; });
            if (stop || next == count) {
                return;
            }
            const std::uint64_t index = next++;
            lock.unlock();
            std::variant<Result, std::exception_ptr> result;
            try {
                result = produce(index);
            } catch (...) {
                result = std::current_exception();
            }
            lock.lock();
            results.emplace(index, std::move(result));
            arrival.notify_one();
        }
    };
    struct Workers {
        std::mutex& mutex;
        std::condition_variable& room;
        bool& stop;
        std::vector<std::jthread> threads = {};
        ~Workers() {
            {
                const std::lock_guard lock(mutex);
                stop = true;
            }
            room.notify_all();
        }
    } workers{mutex, room, stop};
    for (unsigned t = 0; t < threads; ++t) {
        workers.threads.emplace_back(work);
    }

    for (std::uint64_t index = 0; index < count; ++index) {
        std::unique_lock lock(mutex);
        arrival.wait(lock, [&] { return results.contains(index); });
        auto result = std::move(results.extract(index).mapped());
        lock.unlock();
        if (const auto* error = std::get_if<std::exception_ptr>(&result)) {
            std::rethrow_exception(*error);
        }
        consume(index, std::move(std::get<Result>(result)));
        lock.lock();
        ++consumed;
        lock.unlock();
        room.notify_all();
    }
}

}  // namespace lockstep::sharding
