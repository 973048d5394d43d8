#include "sharding/redis_cache.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ios>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"

#ifdef LOCKSTEP_REDIS
#include <hiredis/hiredis.h>
#endif

namespace lockstep::sharding {
namespace {

using Clock = std::chrono::steady_clock;

std::optional<int> number(std::string_view text, int most) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > most) {
        return std::nullopt;
    }
    return value;
}

/// In front of a value's pixels. The checksum is of size and pixels.
struct Head {
    std::uint32_t width, height, crc32c;
};

Head head_of(ImageSize size, std::span<const std::uint8_t> pixels) {
    const std::array words{size.width, size.height};
    const std::span bytes(reinterpret_cast<const std::uint8_t*>(words.data()), sizeof(words));
    return {size.width, size.height, base::crc32c(pixels, base::crc32c(bytes))};
}

}  // namespace

RedisAddress RedisAddress::parse(std::string_view url) {
    const auto refuse = [&](std::string_view what) {
        throw base::UsageError(
            base::str("\"", url, "\": ", what, "; wanted \"redis://host:port\" or ", "\"redis://host:port/database\""));
    };
    constexpr std::string_view scheme = "redis://";
    if (!url.starts_with(scheme)) {
        refuse("does not begin with redis://");
    }
    std::string_view rest = url.substr(scheme.size());
    if (rest.find('@') != std::string_view::npos) {
        refuse("a user or password is not supported");
    }
    RedisAddress address;
    constexpr int most_databases = 1 << 20, most_ports = 65535;
    if (const std::size_t slash = rest.find('/'); slash != std::string_view::npos) {
        const auto database = number(rest.substr(slash + 1), most_databases);
        if (!database) {
            refuse("the database is no number");
        }
        address.database = database.value_or(0);
        rest = rest.substr(0, slash);
    }
    const std::size_t colon = rest.rfind(':');
    const auto port = colon == std::string_view::npos ? std::nullopt : number(rest.substr(colon + 1), most_ports);
    if (!port || *port == 0) {
        refuse("has no port from 1 to 65535");
    }
    std::string_view host = rest.substr(0, colon);
    if (host.starts_with('[') && host.ends_with(']')) {
        host = host.substr(1, host.size() - 2);
    } else if (host.find(':') != std::string_view::npos) {
        refuse("an IPv6 address needs brackets");
    }
    if (host.empty()) {
        refuse("has no host");
    }
    address.host = host;
    address.port = port.value_or(0);
    return address;
}

std::string RedisAddress::text() const {
    const bool is_ipv6 = host.find(':') != std::string::npos;
    return base::str("redis://", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", ":", port, "/", database);
}

#ifdef LOCKSTEP_REDIS

namespace {

struct FreeContext {
    void operator()(redisContext* context) const { redisFree(context); }
};
struct FreeReply {
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
struct FreeCommand {
    void operator()(char* command) const { redisFreeCommand(command); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

/// One connection. Each call ends at its deadline, also where a server sends byte after byte; after an error the
/// connection is of no more use.
class Connection {
  public:
    Connection(const RedisAddress& address, Clock::time_point deadline) {
        const auto left = std::chrono::duration_cast<std::chrono::microseconds>(deadline - Clock::now()).count();
        if (left <= 0) {
            throw base::Error("no answer in time");
        }
        constexpr std::int64_t second = 1000000;
        const timeval limit{.tv_sec = left / second, .tv_usec = left % second};
        context_.reset(redisConnectWithTimeout(address.host.c_str(), address.port, limit));
        if (!context_) {
            throw base::Error("no memory for a connection");
        }
        require_no_error();
        const int flags = fcntl(context_->fd, F_GETFL);
        if (flags < 0 || fcntl(context_->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
            throw base::Error(std::strerror(errno));
        }
        context_->flags &= ~REDIS_BLOCK;  // waiting is done here
        if (address.database != 0) {
            const std::string database = std::to_string(address.database);
            require_ok(*call(std::array<std::string_view, 2>{"SELECT", database}, deadline));
        }
    }

    Reply call(std::span<const std::string_view> words, Clock::time_point deadline) {
        std::vector<const char*> begins;
        std::vector<std::size_t> lengths;
        for (const std::string_view word : words) {
            begins.push_back(word.data());
            lengths.push_back(word.size());
        }
        char* request = nullptr;
        const auto size =
            redisFormatCommandArgv(&request, static_cast<int>(words.size()), begins.data(), lengths.data());
        if (size < 0) {
            throw base::Error("no memory for a request");
        }
        const std::unique_ptr<char, FreeCommand> owned(request);
        send_all({request, static_cast<std::size_t>(size)}, deadline);
        while (true) {
            void* raw = nullptr;
            redisGetReplyFromReader(context_.get(), &raw);
            require_no_error();
            if (raw != nullptr) {
                return Reply(static_cast<redisReply*>(raw));
            }
            wait(POLLIN, deadline);
            redisBufferRead(context_.get());
            require_no_error();
        }
    }

    static void require_ok(const redisReply& reply) {
        if (reply.type == REDIS_REPLY_ERROR) {
            throw base::Error(base::str("it says '", std::string_view(reply.str, reply.len), "'"));
        }
    }

  private:
    void require_no_error() const {
        if (context_->err != 0) {
            throw base::Error(context_->errstr);
        }
    }

    /// Not by hiredis, whose write() raises SIGPIPE where the server is gone.
    void send_all(std::string_view bytes, Clock::time_point deadline) const {
        while (!bytes.empty()) {
            wait(POLLOUT, deadline);
            const ssize_t sent = send(context_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
                throw base::Error(std::strerror(errno));
            }
            bytes.remove_prefix(sent > 0 ? static_cast<std::size_t>(sent) : 0);
        }
    }

    void wait(short event, Clock::time_point deadline) const {
        pollfd waited{.fd = context_->fd, .events = event, .revents = 0};
        int got = 0;
        do {
            const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
            got = left > 0 ? poll(&waited, 1, static_cast<int>(left)) : 0;
        } while (got < 0 && errno == EINTR);
        if (got <= 0) {
            throw base::Error(got == 0 ? "no answer in time" : std::strerror(errno));
        }
    }

    std::unique_ptr<redisContext, FreeContext> context_;
};

}  // namespace

struct RedisCache::State {
    RedisAddress address;
    std::string prefix;
    std::chrono::milliseconds timeout;
    std::atomic<bool> is_gone{false};
    std::atomic<bool> is_full{false};
    std::atomic<bool> has_told_of_damage{false};
    std::mutex mutex;
    std::vector<std::unique_ptr<Connection>> idle;

    std::string key_of(std::uint64_t id) const { return base::str(prefix, id); }

    /// Null where there is no server any more.
    Reply call(std::span<const std::string_view> words) {
        if (is_gone) {
            return nullptr;
        }
        const Clock::time_point deadline = Clock::now() + timeout;
        if (std::unique_ptr<Connection> connection = take()) {
            try {
                return call(words, std::move(connection), deadline);
            } catch (const base::Error&) {  // a server may close what nobody used for long
            }
        }
        try {
            return call(words, std::make_unique<Connection>(address, deadline), deadline);
        } catch (const base::Error& error) {
            give_up(error.what());
            return nullptr;
        }
    }

    Reply call(std::span<const std::string_view> words, std::unique_ptr<Connection> connection,
               Clock::time_point deadline) {
        Reply reply = connection->call(words, deadline);
        const std::lock_guard lock(mutex);
        idle.push_back(std::move(connection));
        return reply;
    }

    std::unique_ptr<Connection> take() {
        const std::lock_guard lock(mutex);
        if (idle.empty()) {
            return nullptr;
        }
        std::unique_ptr<Connection> connection = std::move(idle.back());
        idle.pop_back();
        return connection;
    }

    void give_up(std::string_view why) {
        if (!is_gone.exchange(true)) {
            base::log_warning(base::str("the shared cache ", address.text(), " is given up: ", why,
                                        ". Training goes on without it, and decodes what it would have given"));
        }
    }

    void tell_of_damage(std::uint64_t id, std::string_view what) {
        if (!has_told_of_damage.exchange(true)) {
            base::log_warning(base::str("the shared cache ", address.text(), " gives under ", key_of(id), ' ', what,
                                        ". It is decoded again and put anew, as will be others of this kind"));
        }
    }
};

RedisCache::RedisCache(RedisAddress address, std::uint64_t pixels, std::chrono::milliseconds timeout)
    : state_(std::make_unique<State>()) {
    state_->address = std::move(address);
    state_->prefix = base::str("lockstep:pixels:", std::hex, pixels, std::dec, ":");
    state_->timeout = timeout;
}

bool RedisCache::find(std::uint64_t id, ImageSize size, Image& image) {
    const std::string key = state_->key_of(id);
    const Reply reply = state_->call(std::array<std::string_view, 2>{"GET", key});
    if (!reply || reply->type == REDIS_REPLY_NIL) {
        return false;
    }
    if (reply->type == REDIS_REPLY_ERROR) {
        state_->give_up(base::str("it says '", std::string_view(reply->str, reply->len), "'"));
        return false;
    }
    const std::size_t bytes = std::size_t{size.width} * size.height * 3;
    if (reply->type != REDIS_REPLY_STRING || reply->len != sizeof(Head) + bytes) {
        state_->tell_of_damage(id, base::str("no ", size.width, "x", size.height, " pixels"));
        return false;
    }
    Head head{};
    std::memcpy(&head, reply->str, sizeof(head));
    const std::span pixels(reinterpret_cast<const std::uint8_t*>(reply->str) + sizeof(head), bytes);
    const Head expected = head_of(size, pixels);
    if (head.width != size.width || head.height != size.height || head.crc32c != expected.crc32c) {
        state_->tell_of_damage(id, "pixels that don't match their checksum");
        return false;
    }
    image.resize(size.width, size.height);
    std::ranges::copy(pixels, image.pixels.begin());
    return true;
}

void RedisCache::put(std::uint64_t id, ImageSize size, const std::uint8_t* pixels) {
    if (state_->is_gone || state_->is_full) {
        return;
    }
    const std::size_t bytes = std::size_t{size.width} * size.height * 3;
    const Head head = head_of(size, {pixels, bytes});
    std::string value(sizeof(head) + bytes, '\0');
    std::memcpy(value.data(), &head, sizeof(head));
    std::memcpy(value.data() + sizeof(head), pixels, bytes);
    const std::string key = state_->key_of(id);
    const Reply reply = state_->call(std::array<std::string_view, 3>{"SET", key, value});
    if (!reply || reply->type != REDIS_REPLY_ERROR) {
        return;
    }
    const std::string_view text(reply->str, reply->len);
    if (!text.starts_with("OOM")) {
        state_->give_up(base::str("it says '", text, "'"));
    } else if (!state_->is_full.exchange(true)) {
        base::log_warning(base::str("the shared cache ", state_->address.text(), " is full ('", text,
                                    "'): nothing more is put into it. Its maxmemory-policy allkeys-random would make "
                                    "room"));
    }
}

bool RedisCache::is_gone() const {
    return state_->is_gone;
}

bool RedisCache::is_built_in() {
    return true;
}

#else

struct RedisCache::State {};

RedisCache::RedisCache(RedisAddress address, std::uint64_t, std::chrono::milliseconds)
    : state_(std::make_unique<State>()) {
    throw base::UsageError(base::str(address.text(),
                                     ": this build has no client for Redis: install libhiredis-dev and ",
                                     "build again, or leave data.shared_cache out"));
}

bool RedisCache::find(std::uint64_t, ImageSize, Image&) {
    return false;
}

void RedisCache::put(std::uint64_t, ImageSize, const std::uint8_t*) {}

bool RedisCache::is_gone() const {
    return true;
}

bool RedisCache::is_built_in() {
    return false;
}

#endif

RedisCache::~RedisCache() = default;

}  // namespace lockstep::sharding
