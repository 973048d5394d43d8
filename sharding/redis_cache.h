#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sharding/image.h"

namespace lockstep::sharding {

/// A Redis server: "redis://host:port", "redis://host:port/2" for its database 2, "redis://[::1]:6379".
struct RedisAddress {
    std::string host;
    int port = 0;
    int database = 0;

    /// Throws base::UsageError that says what is wrong with it.
    static RedisAddress parse(std::string_view url);
    std::string text() const;
};

/// Decoded samples in a Redis server, for all nodes of all jobs that ask for the same pixels.
///
/// The server is never needed. Where it can't be reached, answers too late or refuses, that is said once and it is not
/// asked again; what it gives that isn't what was put is said once, too, and counts as absent. Thread-safe: each thread
/// that asks at the same time has a connection of its own.
class RedisCache {
  public:
    /// `pixels`: the fingerprint of all that decides them (decoded_pixels_fingerprint), a part of each key. `timeout`:
    /// of one call, with connecting where that is needed. Throws base::UsageError where this build has no client;
    /// connects at the first call only.
    RedisCache(RedisAddress address, std::uint64_t pixels,
               std::chrono::milliseconds timeout = std::chrono::milliseconds(1000));
    ~RedisCache();
    RedisCache(const RedisCache&) = delete;
    RedisCache& operator=(const RedisCache&) = delete;

    /// Whether `image` has become sample `id`, which must have this size.
    bool find(std::uint64_t id, ImageSize size, Image& image);
    /// `pixels`: height x width x 3.
    void put(std::uint64_t id, ImageSize size, const std::uint8_t* pixels);
    /// Whether the server has been given up.
    bool is_gone() const;
    /// Whether this build can talk to a server.
    static bool is_built_in();

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace lockstep::sharding
