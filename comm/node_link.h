#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/rank_status.h"

namespace lockstep::comm {

/// A descriptor that is closed with its owner.
class Socket {
  public:
    explicit Socket(int descriptor = -1) : descriptor_(descriptor) {}
    ~Socket();
    Socket(Socket&& other) noexcept;
    Socket& operator=(Socket&& other) noexcept;
    Socket(const Socket&) = delete;
    Socket& operator=(const Socket&) = delete;

    int descriptor() const { return descriptor_; }
    bool is_open() const { return descriptor_ >= 0; }
    void close();

  private:
    int descriptor_;
};

/// Lines of text over a TCP connection, without ever waiting.
class LineStream {
  public:
    explicit LineStream(Socket socket = Socket()) : socket_(std::move(socket)) {}

    /// Queues the line and sends what goes.
    void send(const std::string& line);
    /// Sends what is queued, reads what came: the whole lines of it.
    std::vector<std::string> exchange();
    bool is_open() const { return socket_.is_open(); }
    /// Whether lines wait that the network does not take.
    bool is_held_up() const { return !queued_.empty(); }
    /// As its kernel does when the process ends; not because of the network.
    bool was_closed_by_peer() const { return was_closed_by_peer_; }

  private:
    Socket socket_;
    std::string received_, queued_;
    bool was_closed_by_peer_ = false;
};

/// Between the machines of a job, over TCP and without MPI, so that it also works when a rank hangs in a call of MPI.
/// This is the side of rank 0's machine, which hears from the others what their ranks say of themselves. Not
/// thread-safe.
class NodeLinkServer {
  public:
    /// Listens on a free port of all interfaces. Throws base::Error.
    NodeLinkServer();

    /// For NodeLinkClient: a secret of this job, the port, this machine's addresses.
    const std::string& invitation() const { return invitation_; }

    /// Takes new connections and reads what came. Never waits.
    void look();
    /// What the other machines last said. Where one closed the connection without a farewell, the process at its end,
    /// the machine's first rank, is gone, and the others are out of reach. All are where the network broke it, or
    /// nothing was heard for longer than `silence`.
    std::vector<SeenRank> ranks(std::chrono::milliseconds silence) const;
    /// All machines end with this exit code, which is not 0.
    void announce_end(int exit_code);

  private:
    struct Peer {
        LineStream stream;
        std::vector<SeenRank> ranks;
        std::chrono::steady_clock::time_point heard;
        bool is_known = false;  ///< it said the secret
        bool said_farewell = false;
    };

    Socket listener_;
    std::string secret_, invitation_;
    std::vector<Peer> peers_;
};

/// The side of each other machine. Not thread-safe.
class NodeLinkClient {
  public:
    /// Tries each address for up to `patience`, which must suffice for one answer. Throws base::Error when none
    /// answers.
    NodeLinkClient(const std::string& invitation, std::chrono::milliseconds patience);

    void tell(const std::vector<SeenRank>& ranks);
    /// The ranks of this machine are through.
    void say_farewell();
    /// Reads what came. Never waits.
    void look();
    /// Not 0: end with it.
    int exit_code() const { return exit_code_; }
    bool is_lost() const { return !stream_.is_open(); }

  private:
    LineStream stream_;
    std::string secret_;
    int exit_code_ = 0;
};

}  // namespace lockstep::comm
