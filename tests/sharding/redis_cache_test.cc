#include "sharding/redis_cache.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/random.h"
#include "base/resources.h"
#include "sharding/dataset_writer.h"
#include "sharding/loader.h"
#include "tests/sharding/scratch.h"

namespace lockstep::sharding {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::error_of;

/// A socket that listens on a free port of the loopback.
class Listener {
  public:
    Listener() : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(address);
        EXPECT_EQ(bind(socket_, reinterpret_cast<const sockaddr*>(&address), length), 0);
        EXPECT_EQ(listen(socket_, 16), 0);
        EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length), 0);
        port_ = ntohs(address.sin_port);
    }
    ~Listener() { close(socket_); }
    Listener(const Listener&) = delete;
    Listener& operator=(const Listener&) = delete;
    int socket_of() const { return socket_; }
    RedisAddress address() const { return {"127.0.0.1", port_, 0}; }

  private:
    int socket_;
    int port_ = 0;
};

/// A server that answers every request with the same bytes, and then does no more. It knows nothing of Redis.
class FixedAnswers {
  public:
    explicit FixedAnswers(std::string answer, std::chrono::milliseconds between_bytes = 0ms)
        : thread_([this, answer = std::move(answer), between_bytes](const std::stop_token& stop) {
              const int client = accept4(listener_.socket_of(), nullptr, nullptr, SOCK_CLOEXEC);
              std::vector<char> request(1 << 20);
              while (client >= 0 && !stop.stop_requested() && read(client, request.data(), request.size()) > 0) {
                  if (between_bytes == 0ms) {
                      send(client, answer.data(), answer.size(), MSG_NOSIGNAL);
                  }
                  for (std::size_t i = 0; between_bytes > 0ms && i < answer.size() && !stop.stop_requested(); ++i) {
                      if (send(client, &answer[i], 1, MSG_NOSIGNAL) != 1) {
                          break;
                      }
                      std::this_thread::sleep_for(between_bytes);
                  }
              }
              close(client);
          }) {}
    ~FixedAnswers() {
        thread_.request_stop();
        shutdown(listener_.socket_of(), SHUT_RDWR);  // ends an accept that nobody answered
    }
    FixedAnswers(const FixedAnswers&) = delete;
    FixedAnswers& operator=(const FixedAnswers&) = delete;
    RedisAddress address() const { return listener_.address(); }

  private:
    Listener listener_;
    std::jthread thread_;
};

std::string bulk(std::string_view value) {
    return base::str("$", value.size(), "\r\n", value, "\r\n");
}

/// A server of one's own on a free port of the loopback, which keeps nothing.
class RedisServer {
  public:
    RedisServer() { start(); }
    ~RedisServer() { stop(); }
    RedisServer(const RedisServer&) = delete;
    RedisServer& operator=(const RedisServer&) = delete;

    bool is_running() const { return process_ > 0; }
    RedisAddress address(int database = 0) const { return {"127.0.0.1", port_, database}; }
    void stop() {
        if (process_ > 0) {
            kill(process_, SIGKILL);
            waitpid(process_, nullptr, 0);
            process_ = -1;
        }
    }
    /// One command without an answer that matters, by Redis's own inline protocol.
    std::string command(const std::string& line) const {
        const int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(static_cast<std::uint16_t>(port_));
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        std::string answer;
        if (connect(client, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0) {
            const std::string request = line + "\r\n";
            answer.resize(1 << 16);
            const bool is_sent =
                send(client, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size());
            const ssize_t got = is_sent ? read(client, answer.data(), answer.size()) : 0;
            answer.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
        }
        close(client);
        return answer;
    }

  private:
    /// The port may be taken by another process before the server has it: then it ends, and another one is tried.
    void start() {
        for (int attempt = 0; attempt < 5 && process_ <= 0; ++attempt) {
            port_ = Listener().address().port;
            const std::string port = std::to_string(port_);
            int failed[2];
            ASSERT_EQ(pipe2(failed, O_CLOEXEC), 0);
            process_ = fork();
            if (process_ == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                const int silence = open("/dev/null", O_WRONLY);
                dup2(silence, STDOUT_FILENO);
                // redis-tools has the server without the service that redis-server would leave running: one program,
                // which goes by the name it is called by.
                execlp("redis-check-rdb", "redis-server", "--port", port.c_str(), "--bind", "127.0.0.1", "--save", "",
                       "--appendonly", "no", "--dir", "/", nullptr);
                const bool told = write(failed[1], "x", 1) == 1;
                _exit(told ? 127 : 126);
            }
            close(failed[1]);
            char byte = 0;
            const bool is_missing = read(failed[0], &byte, 1) == 1;
            close(failed[0]);
            if (is_missing) {
                waitpid(process_, nullptr, 0);
                process_ = -1;
                return;
            }
            while (command("PING") != "+PONG\r\n") {
                if (waitpid(process_, nullptr, WNOHANG) == process_) {
                    process_ = -1;
                    break;
                }
                std::this_thread::sleep_for(5ms);
            }
        }
    }

    pid_t process_ = -1;
    int port_ = 0;
};

class RedisCacheTest : public test::Scratch {
  protected:
    void SetUp() override {
        if (!RedisCache::is_built_in()) {
            GTEST_SKIP() << "this build has no client for Redis (libhiredis-dev)";
        }
    }
};

/// With a server; the tests are skipped where the program is missing.
class RedisServerTest : public RedisCacheTest {
  protected:
    void SetUp() override {
        RedisCacheTest::SetUp();
        if (!IsSkipped() && !server_.is_running()) {
            GTEST_SKIP() << "there is no Redis server here (redis-tools)";
        }
    }
    RedisServer server_;
};

constexpr ImageSize size{7, 5};

std::vector<std::uint8_t> pixels_of(std::uint64_t id) {
    std::vector<std::uint8_t> pixels(std::size_t{size.width} * size.height * 3);
    base::Random random(8, base::RandomPurpose::test, 0, id);
    std::ranges::generate(pixels, [&] { return static_cast<std::uint8_t>(random.next_u32()); });
    return pixels;
}

std::size_t count_of(std::string_view part, std::string_view text) {
    std::size_t count = 0;
    for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) {
        ++count;
    }
    return count;
}

/// What is said on stderr meanwhile.
std::string said_during(const std::function<void()>& action) {
    testing::internal::CaptureStderr();
    action();
    return testing::internal::GetCapturedStderr();
}

TEST(RedisAddress, IsReadFromItsText) {
    const auto text = [](const char* url) { return RedisAddress::parse(url).text(); };
    EXPECT_EQ(text("redis://node1:6379"), "redis://node1:6379/0");
    EXPECT_EQ(text("redis://10.0.0.1:1/12"), "redis://10.0.0.1:1/12");
    EXPECT_EQ(text("redis://[::1]:6379"), "redis://[::1]:6379/0");
    EXPECT_EQ(RedisAddress::parse("redis://[::1]:6379").host, "::1");
    for (const auto& [url, what] : {std::pair{"node1:6379", "redis://"},
                                    {"http://node1:6379", "redis://"},
                                    {"redis://node1", "port"},
                                    {"redis://node1:", "port"},
                                    {"redis://node1:0", "port"},
                                    {"redis://node1:65536", "port"},
                                    {"redis://node1:6379x", "port"},
                                    {"redis://:6379", "host"},
                                    {"redis://node1:6379/", "database"},
                                    {"redis://node1:6379/-1", "database"},
                                    {"redis://node1:6379/one", "database"},
                                    {"redis://::1:6379", "brackets"},
                                    {"redis://user:secret@node1:6379", "password"}}) {
        const std::string message = error_of([&] { RedisAddress::parse(url); });
        EXPECT_TRUE(contains(message, what)) << url;
        EXPECT_TRUE(contains(message, "redis://host:port")) << url;
    }
}

TEST_F(RedisServerTest, GivesBackWhatWasPutAndNothingElse) {
    RedisCache cache(server_.address(), 1), same(server_.address(), 1);
    RedisCache of_other_pixels(server_.address(), 2), of_other_database(server_.address(3), 1);
    Image image;
    EXPECT_FALSE(cache.find(4, size, image));
    cache.put(4, size, pixels_of(4).data());
    for (RedisCache* user : {&cache, &same}) {
        ASSERT_TRUE(user->find(4, size, image));
        EXPECT_EQ(image.pixels, pixels_of(4));
        EXPECT_EQ((ImageSize{image.width, image.height}), size);
        EXPECT_FALSE(user->find(5, size, image));
    }
    EXPECT_FALSE(of_other_pixels.find(4, size, image));
    EXPECT_FALSE(of_other_database.find(4, size, image));
    for (RedisCache* user : {&cache, &same, &of_other_pixels, &of_other_database}) {
        EXPECT_FALSE(user->is_gone());
    }
}

TEST_F(RedisServerTest, ThreadsUseItAtTheSameTime) {
    RedisCache cache(server_.address(), 1);
    std::vector<std::jthread> threads;
    for (std::uint64_t i = 0; i < 4; ++i) {
        threads.emplace_back([&cache, i] {
            Image image;
            for (std::uint64_t id = i; id < i + 40; ++id) {
                cache.put(id, size, pixels_of(id).data());
                EXPECT_TRUE(cache.find(id, size, image));
                EXPECT_EQ(image.pixels, pixels_of(id)) << id;
            }
        });
    }
    threads.clear();
    EXPECT_FALSE(cache.is_gone());
}

TEST_F(RedisServerTest, AConnectionThatTheServerClosedIsMadeAgain) {
    RedisCache cache(server_.address(), 1);
    Image image;
    cache.put(1, size, pixels_of(1).data());
    EXPECT_TRUE(contains(server_.command("CLIENT KILL TYPE normal"), ":"));
    EXPECT_TRUE(cache.find(1, size, image));
    EXPECT_FALSE(cache.is_gone());
}

TEST_F(RedisServerTest, AFullServerStillGivesWhatItHas) {
    RedisCache cache(server_.address(), 1);
    cache.put(1, size, pixels_of(1).data());
    ASSERT_EQ(server_.command("CONFIG SET maxmemory 1"), "+OK\r\n");
    const std::string said = said_during([&] {
        cache.put(2, size, pixels_of(2).data());
        cache.put(3, size, pixels_of(3).data());
    });
    EXPECT_EQ(count_of("is full", said), 1U) << said;
    Image image;
    EXPECT_TRUE(cache.find(1, size, image));
    EXPECT_FALSE(cache.find(2, size, image));
    EXPECT_FALSE(cache.is_gone());
}

TEST_F(RedisServerTest, WhatIsNotWhatWasPutIsAbsentAndSaid) {
    for (const std::string& change :
         {std::string("SETRANGE lockstep:pixels:1:4 40 zzz"), std::string("APPEND lockstep:pixels:1:4 z"),
          std::string("SET lockstep:pixels:1:4 short"), std::string("SETRANGE lockstep:pixels:1:4 0 zzzz")}) {
        RedisCache cache(server_.address(), 1);
        cache.put(4, size, pixels_of(4).data());
        EXPECT_FALSE(server_.command(change).starts_with("-")) << change;
        Image image;
        const std::string said = said_during([&] {
            EXPECT_FALSE(cache.find(4, size, image)) << change;
            EXPECT_FALSE(cache.find(4, size, image)) << change;
        });
        EXPECT_EQ(count_of("lockstep:pixels:1:4", said), 1U) << said;
        EXPECT_FALSE(cache.is_gone());
        cache.put(4, size, pixels_of(4).data());
        EXPECT_TRUE(cache.find(4, size, image)) << change;
    }
}

TEST_F(RedisCacheTest, AServerThatWasNeverThereIsSaidOnce) {
    const RedisAddress nobody = Listener().address();
    RedisCache cache(nobody, 1);
    Image image;
    const std::string said = said_during([&] {
        for (std::uint64_t id = 0; id < 5; ++id) {
            EXPECT_FALSE(cache.find(id, size, image));
            cache.put(id, size, pixels_of(id).data());
        }
    });
    EXPECT_TRUE(cache.is_gone());
    EXPECT_EQ(count_of("given up", said), 1U) << said;
    EXPECT_TRUE(contains(said, nobody.text()));
}

TEST_F(RedisCacheTest, AServerThatSaysNothingOrTrickles) {
    Image image;
    for (const auto& [answer, pause] :
         {std::pair{std::string(), 0ms}, {bulk(std::string(100000, 'x')), 1ms}, {std::string("$1000\r\nabc"), 0ms}}) {
        FixedAnswers server(answer, pause);
        RedisCache cache(server.address(), 1, 200ms);
        double seconds = 0;
        const std::string said = said_during([&] {
            seconds = base::seconds_of([&] { EXPECT_FALSE(cache.find(1, size, image)); });
            EXPECT_FALSE(cache.find(1, size, image));
        });
        EXPECT_TRUE(cache.is_gone());
        EXPECT_EQ(count_of("no answer in time", said), 1U) << said;
        EXPECT_GE(seconds, 0.2) << "given up before its time";
        EXPECT_LT(seconds, 60) << "the trickle would take 100 s";
    }
}

TEST_F(RedisCacheTest, AnswersThatMakeNoSense) {
    Image image;
    for (const std::string& answer :
         {std::string("-NOAUTH Authentication required.\r\n"), std::string("nonsense\r\n"), std::string("*-9\r\n"),
          std::string("$99999999999999999999\r\n"),
          std::string("*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n"), std::string("\0\r\n", 3)}) {
        FixedAnswers server(answer);
        RedisCache cache(server.address(), 1, 300ms);
        const std::string said = said_during([&] { EXPECT_FALSE(cache.find(1, size, image)); });
        EXPECT_TRUE(cache.is_gone()) << answer;
        EXPECT_EQ(count_of("given up", said), 1U) << answer << said;
    }
    for (const std::string& answer : {std::string(":12\r\n"), std::string("+OK\r\n"), bulk(""), bulk("short"),
                                      bulk(std::string(12 + 7 * 5 * 3, 'x')), std::string("*1\r\n:1\r\n")}) {
        FixedAnswers server(answer);
        RedisCache cache(server.address(), 1);
        const std::string said = said_during([&] { EXPECT_FALSE(cache.find(1, size, image)); });
        EXPECT_FALSE(cache.is_gone()) << answer << said;
        EXPECT_TRUE(contains(said, "decoded again")) << answer;
    }
}

constexpr std::uint64_t images = 23;

void write_photos(const std::filesystem::path& directory) {
    write_dataset(directory, {.classes = {"a", "b"}, .source = "test"}, [](DatasetWriter& writer) {
        for (std::uint64_t id = 0; id < images; ++id) {
            base::Random random(3, base::RandomPurpose::test, 0, id);
            Image image = Image::blank(70 + static_cast<std::uint32_t>(id % 7), 50);
            std::ranges::generate(image.pixels, [&] { return static_cast<std::uint8_t>(random.next_u32()); });
            const auto bytes = encode_jpeg(image, 90);
            const Box box{3, 4, 41.5F, 33, 900, 1, 0, 0};
            writer.add({.id = 0,
                        .image_id = static_cast<std::int64_t>(id),
                        .width = image.width,
                        .height = image.height,
                        .label = -1,
                        .bytes = bytes,
                        .boxes = {&box, 1}},
                       "photo");
        }
    });
}

LoaderOptions options_with(const Dataset& set, const RedisAddress& address, DecodeMode decode = DecodeMode::full) {
    LoaderOptions options;
    options.image_size = 32;
    options.effective_batch = 5;
    options.decode = decode;
    options.decoded_cache_bytes = 0;
    options.augmentation.enabled = true;
    options.augmentation.mosaic = 0.5;
    options.augmentation.flip_horizontal = 0.5;
    options.augmentation.hsv_value = 0.4;
    options.shared_cache =
        std::make_shared<RedisCache>(address, decoded_pixels_fingerprint(set, {.image_size = 32, .decode = decode}));
    return options;
}

/// The next batches of both, one by one.
void expect_same(Loader& a, Loader& b, int batches) {
    for (int i = 0; i < batches; ++i) {
        const Batch one = a.next(), other = b.next();
        EXPECT_TRUE(one.micro[0].pixels == other.micro[0].pixels) << "batch " << i;
        EXPECT_TRUE(one.micro[0].boxes == other.micro[0].boxes) << "batch " << i;
        EXPECT_EQ(one.micro[0].sample_ids, other.micro[0].sample_ids) << "batch " << i;
    }
}

TEST_F(RedisServerTest, BatchesAreTheSameAndWhatOneRankDecodedTheOtherFinds) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const EpochOrder order(OrderKind::full, 1, set.size());
    for (const DecodeMode decode : {DecodeMode::full, DecodeMode::scaled}) {
        for (const std::uint64_t in_memory : {0, 20000, 1 << 20}) {
            LoaderOptions with = options_with(set, server_.address(), decode);
            with.decoded_cache_bytes = in_memory;
            LoaderOptions without = with;
            without.shared_cache = nullptr;
            without.decoded_cache_bytes = 0;
            Loader a(set, order, {}, with), b(set, order, {}, without);
            expect_same(a, b, 15);
            EXPECT_GT(a.cache_use().shared, 0U);
            EXPECT_EQ(b.cache_use().shared, 0U);
        }
        // All were put by now: a rank that begins decodes none.
        Loader late(set, order, {}, options_with(set, server_.address(), decode));
        for (int i = 0; i < 5; ++i) {
            late.next();
        }
        EXPECT_EQ(late.cache_use().shared, late.cache_use().samples);
    }
}

/// A request that needs several writes: the second one meets a connection that is reset.
TEST_F(RedisServerTest, AServerThatDiesBeforeALargeRequestIsNoSignal) {
    const ImageSize large{2000, 1500};
    const std::vector<std::uint8_t> pixels(std::size_t{large.width} * large.height * 3, 7);
    RedisCache cache(server_.address(), 1);
    Image image;
    EXPECT_FALSE(cache.find(1, large, image));
    server_.stop();
    const std::string said = said_during([&] { cache.put(1, large, pixels.data()); });
    EXPECT_EQ(count_of("given up", said), 1U) << said;
    EXPECT_TRUE(cache.is_gone());
}

TEST_F(RedisServerTest, WhenItDiesInTheMiddleTrainingGoesOn) {
    write_photos(path("set"));
    const Dataset set = Dataset::open(path("set"));
    const EpochOrder order(OrderKind::full, 1, set.size());
    LoaderOptions with = options_with(set, server_.address());
    LoaderOptions without = with;
    without.shared_cache = nullptr;
    Loader a(set, order, {}, with), b(set, order, {}, without);
    expect_same(a, b, 7);
    EXPECT_GT(a.cache_use().shared, 0U);
    const std::string said = said_during([&] {
        server_.stop();
        expect_same(a, b, 13);
    });
    EXPECT_EQ(count_of("given up", said), 1U) << said;
    EXPECT_TRUE(with.shared_cache->is_gone());
    const std::uint64_t found = a.cache_use().shared;
    expect_same(a, b, 5);
    EXPECT_EQ(a.cache_use().shared, found);
}

}  // namespace
}  // namespace lockstep::sharding
