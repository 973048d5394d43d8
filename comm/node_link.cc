#include "comm/node_link.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/resources.h"
#include "base/text.h"

namespace lockstep::comm {

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

/// A line longer than this is no message of ours.
constexpr std::size_t longest_line = std::size_t{16} << 20;

/// Of a connection on which nobody said the secret.
constexpr std::chrono::seconds patience_with_strangers{5};

/// Times go as ages: machines have clocks of their own.
Json to_json(const SeenRank& rank) {
    Json operations = Json::array();
    for (const SeenOperation& seen : rank.operations) {
        operations.push_back({seen.purpose, static_cast<int>(seen.operation.kind), static_cast<int>(seen.operation.op),
                              static_cast<int>(seen.operation.type), seen.operation.count, seen.operation.name,
                              seen.operation.sequence, seen.is_under_way, seen.seconds});
    }
    return {{"rank", rank.member.world_rank},
            {"host", rank.member.host},
            {"state", static_cast<int>(rank.state)},
            {"is_gone", rank.is_gone},
            {"is_stopped", rank.is_stopped},
            {"process", rank.process},
            {"exit_code", rank.exit_code},
            {"failure_age", base::monotonic_seconds() - rank.failed_at},
            {"failure", rank.failure},
            {"phase", rank.phase},
            {"step", rank.step},
            {"operations", operations}};
}

SeenRank from_json(const Json& json) {
    SeenRank rank;
    rank.member = {json.at("rank"), json.at("host")};
    rank.state = static_cast<RankState>(json.at("state").get<std::uint32_t>());
    rank.is_gone = json.at("is_gone");
    rank.is_stopped = json.at("is_stopped");
    rank.process = json.at("process");
    rank.exit_code = json.at("exit_code");
    rank.failed_at = base::monotonic_seconds() - json.at("failure_age").get<double>();
    rank.failure = json.at("failure");
    rank.phase = json.at("phase");
    rank.step = json.at("step");
    for (const Json& fields : json.at("operations")) {
        SeenOperation seen;
        seen.purpose = fields.at(0);
        seen.operation.kind = static_cast<OperationKind>(fields.at(1).get<int>());
        seen.operation.op = static_cast<ReduceOp>(fields.at(2).get<int>());
        seen.operation.type = static_cast<DataType>(fields.at(3).get<int>());
        seen.operation.count = fields.at(4);
        seen.operation.name = fields.at(5);
        seen.operation.sequence = fields.at(6);
        seen.is_under_way = fields.at(7);
        seen.seconds = fields.at(8);
        rank.operations.push_back(std::move(seen));
    }
    return rank;
}

std::string line_of(const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

[[noreturn]] void fail(std::string_view what) {
    const int code = errno;
    throw base::Error(
        base::str(base::process_name(), ": the link between machines: ", what, ": ", std::strerror(code)));
}

std::string random_secret() {
    std::array<std::uint8_t, 16> bytes{};
    if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
        fail("no random number");
    }
    constexpr std::string_view digits = "0123456789abcdef";
    std::string text;
    for (const std::uint8_t byte : bytes) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

/// Of the interfaces that are up; the loopback, which every machine has, only where there is no other.
std::vector<std::string> own_addresses() {
    ifaddrs* first = nullptr;
    if (getifaddrs(&first) != 0) {
        fail("no list of interfaces");
    }
    const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(first, freeifaddrs);
    std::vector<std::string> addresses;
    for (const ifaddrs* interface = first; interface != nullptr; interface = interface->ifa_next) {
        if (interface->ifa_addr == nullptr || interface->ifa_addr->sa_family != AF_INET ||
            (interface->ifa_flags & IFF_UP) == 0) {
            continue;
        }
        std::array<char, INET_ADDRSTRLEN> text{};
        const auto* address = reinterpret_cast<const sockaddr_in*>(interface->ifa_addr);
        inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
        addresses.emplace_back(text.data());
    }
    const auto is_loopback = [](const std::string& text) { return text.starts_with("127."); };
    if (!std::ranges::all_of(addresses, is_loopback)) {
        std::erase_if(addresses, is_loopback);
    }
    return addresses;
}

/// Not open where nobody answers within `patience`.
Socket connect_to(const std::string& address, std::uint16_t port, std::chrono::milliseconds patience) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    if (inet_pton(AF_INET, address.c_str(), &to.sin_addr) != 1) {
        return Socket();
    }
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!socket.is_open()) {
        fail("no socket");
    }
    if (connect(socket.descriptor(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0) {
        if (errno != EINPROGRESS) {
            return Socket();
        }
        pollfd wait{socket.descriptor(), POLLOUT, 0};
        int problem = 0;
        socklen_t length = sizeof problem;
        if (poll(&wait, 1, static_cast<int>(patience.count())) <= 0 ||
            getsockopt(socket.descriptor(), SOL_SOCKET, SO_ERROR, &problem, &length) != 0 || problem != 0) {
            return Socket();
        }
    }
    const int on = 1;
    setsockopt(socket.descriptor(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return socket;
}

}  // namespace

Socket::~Socket() {
    close();
}

Socket::Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

Socket& Socket::operator=(Socket&& other) noexcept {
    if (this != &other) {
        close();
        descriptor_ = std::exchange(other.descriptor_, -1);
    }
    return *this;
}

void Socket::close() {
    if (descriptor_ >= 0) {
        ::close(std::exchange(descriptor_, -1));
    }
}

void LineStream::send(const std::string& line) {
    if (!is_open()) {
        return;
    }
    queued_ += line;
    while (!queued_.empty()) {
        const ssize_t sent = ::send(socket_.descriptor(), queued_.data(), queued_.size(), MSG_NOSIGNAL);
        if (sent < 0) {
            const bool is_passing = errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM;
            if (!is_passing) {
                socket_.close();
            }
            return;
        }
        queued_.erase(0, static_cast<std::size_t>(sent));
    }
}

std::vector<std::string> LineStream::exchange() {
    send("");
    std::array<char, 65536> buffer{};
    while (is_open() && received_.size() <= longest_line) {
        const ssize_t length = recv(socket_.descriptor(), buffer.data(), buffer.size(), 0);
        if (length > 0) {
            received_.append(buffer.data(), static_cast<std::size_t>(length));
        } else if (length < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ENOMEM)) {
            break;
        } else {
            was_closed_by_peer_ = length == 0;
            socket_.close();
        }
    }
    std::vector<std::string> lines;
    std::size_t end = 0;
    while ((end = received_.find('\n')) != std::string::npos) {
        lines.push_back(received_.substr(0, end));
        received_.erase(0, end + 1);
    }
    if (received_.size() > longest_line) {
        socket_.close();
    }
    return lines;
}

NodeLinkServer::NodeLinkServer()
    : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)), secret_(random_secret()) {
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_ANY);
    socklen_t length = sizeof any;
    if (!listener_.is_open() ||
        bind(listener_.descriptor(), reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
        listen(listener_.descriptor(), SOMAXCONN) != 0 ||
        getsockname(listener_.descriptor(), reinterpret_cast<sockaddr*>(&any), &length) != 0) {
        fail("no port to listen on");
    }
    invitation_ = base::str(secret_, " ", ntohs(any.sin_port), " ", base::join(own_addresses(), " "));
}

void NodeLinkServer::look() {
    while (true) {
        Socket socket(accept4(listener_.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!socket.is_open()) {
            break;
        }
        peers_.push_back({LineStream(std::move(socket)), {}, Clock::now()});
    }
    for (Peer& peer : peers_) {
        for (const std::string& line : peer.stream.exchange()) {
            // Anybody may come to our port and say anything.
            try {
                const Json json = Json::parse(line);
                if (json.at("secret") != Json(secret_)) {
                    peer.stream = LineStream();
                    break;
                }
                std::vector<SeenRank> ranks;
                for (const Json& rank : json.at("ranks")) {
                    ranks.push_back(from_json(rank));
                }
                peer.ranks = std::move(ranks);
                peer.is_known = true;
                peer.said_farewell = json.contains("farewell");
                peer.heard = Clock::now();
            } catch (const Json::exception&) {
                peer.stream = LineStream();
                break;
            }
        }
    }
    std::erase_if(peers_, [](const Peer& peer) {
        const bool is_over = !peer.stream.is_open() || Clock::now() - peer.heard > patience_with_strangers;
        return !peer.is_known && is_over;
    });
}

std::vector<SeenRank> NodeLinkServer::ranks(std::chrono::milliseconds silence) const {
    std::vector<SeenRank> all;
    for (const Peer& peer : peers_) {
        const bool is_silent = !peer.stream.is_open() || Clock::now() - peer.heard > silence;
        for (std::size_t i = 0; i < peer.ranks.size(); ++i) {
            SeenRank rank = peer.ranks[i];
            if (peer.said_farewell) {
                rank.state = RankState::finished;
            } else if (i == 0 && peer.stream.was_closed_by_peer()) {
                rank.is_gone = true;
            } else {
                rank.is_out_of_reach = is_silent;
            }
            all.push_back(std::move(rank));
        }
    }
    return all;
}

void NodeLinkServer::announce_end(int exit_code) {
    for (Peer& peer : peers_) {
        peer.stream.send(line_of({{"secret", secret_}, {"exit_code", exit_code}}));
    }
}

NodeLinkClient::NodeLinkClient(const std::string& invitation, std::chrono::milliseconds patience) {
    std::istringstream words(invitation);
    std::uint16_t port = 0;
    words >> secret_ >> port;
    std::vector<std::string> tried;
    for (std::string address; words >> address && !stream_.is_open();) {
        stream_ = LineStream(connect_to(address, port, patience));
        tried.push_back(address);
    }
    if (!stream_.is_open()) {
        throw base::Error(base::str(base::process_name(), ": no TCP connection to the machine of rank 0 at ",
                                    base::join(tried, ", "), ", port ", port));
    }
}

void NodeLinkClient::tell(const std::vector<SeenRank>& ranks) {
    if (stream_.is_held_up()) {
        stream_.send("");
        return;
    }
    Json json{{"secret", secret_}, {"ranks", Json::array()}};
    std::ranges::transform(ranks, std::back_inserter(json["ranks"]), to_json);
    stream_.send(line_of(json));
}

void NodeLinkClient::say_farewell() {
    stream_.send(line_of({{"secret", secret_}, {"ranks", Json::array()}, {"farewell", true}}));
}

void NodeLinkClient::look() {
    for (const std::string& line : stream_.exchange()) {
        try {
            const Json json = Json::parse(line);
            if (json.at("secret") == Json(secret_)) {
                exit_code_ = json.at("exit_code");
            }
        } catch (const Json::exception&) {
            continue;  // not from our server, or cut by its end
        }
    }
}

}  // namespace lockstep::comm
