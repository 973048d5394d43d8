#include "comm/node_link.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "base/error.h"
#include "base/resources.h"
#include "comm/stop_report.h"

namespace lockstep::comm {
namespace {

using namespace std::chrono_literals;

SeenRank rank_three() {
    SeenRank rank;
    rank.member = {3, "node1"};
    rank.state = RankState::failed;
    rank.process = 4711;
    rank.exit_code = 2;
    rank.failed_at = base::monotonic_seconds() - 5;
    rank.failure = "no such file: \"\xff\", \n two lines";
    rank.phase = "training";
    rank.step = 12;
    SeenOperation seen;
    seen.purpose = "gradients";
    seen.operation = {OperationKind::reduce_scatter, ReduceOp::max, DataType::f64, 1000, "bucket 3", 40, {}};
    seen.is_under_way = true;
    seen.seconds = 3.25;
    rank.operations = {seen};
    return rank;
}

/// Looks until `is_there` or, after far more time than it can take, gives up.
template <typename Condition>
bool comes(NodeLinkServer& server, Condition is_there) {
    for (int i = 0; i < 1000; ++i) {
        server.look();
        if (is_there()) {
            return true;
        }
        std::this_thread::sleep_for(5ms);
    }
    return false;
}

TEST(NodeLink, RanksArriveAsTheyWereSent) {
    NodeLinkServer server;
    NodeLinkClient client(server.invitation(), 5s);
    const SeenRank sent = rank_three();
    client.tell({sent});
    ASSERT_TRUE(comes(server, [&] { return !server.ranks(1h).empty(); }));
    ASSERT_EQ(server.ranks(1h).size(), 1u);
    const SeenRank got = server.ranks(1h)[0];
    EXPECT_EQ(got.member.world_rank, 3);
    EXPECT_EQ(got.member.host, "node1");
    EXPECT_EQ(got.state, RankState::failed);
    EXPECT_EQ(got.process, 4711);
    EXPECT_EQ(got.exit_code, 2);
    EXPECT_NEAR(got.failed_at, sent.failed_at, 1);
    EXPECT_NE(got.failure.find("no such file"), std::string::npos) << got.failure;
    EXPECT_NE(got.failure.find("\n two lines"), std::string::npos) << got.failure;
    EXPECT_EQ(got.phase, "training");
    EXPECT_EQ(got.step, 12);
    ASSERT_EQ(got.operations.size(), 1u);
    EXPECT_EQ(got.operations[0].describe(), sent.operations[0].describe());
    EXPECT_FALSE(got.is_gone);
}

TEST(NodeLink, MuchMoreThanOnePacketArrivesWhole) {
    NodeLinkServer server;
    NodeLinkClient client(server.invitation(), 5s);
    std::vector<SeenRank> many(2000, rank_three());
    for (SeenRank& rank : many) {
        rank.failure = std::string(1000, 'x');
    }
    client.tell(many);
    ASSERT_TRUE(comes(server, [&] {
        client.look();
        return server.ranks(1h).size() == many.size();
    }));
}

TEST(NodeLink, TheEndIsAnnounced) {
    NodeLinkServer server;
    NodeLinkClient client(server.invitation(), 5s);
    client.tell({rank_three()});
    ASSERT_TRUE(comes(server, [&] { return !server.ranks(1h).empty(); }));
    EXPECT_EQ(client.exit_code(), 0);
    server.announce_end(75);
    ASSERT_TRUE(comes(server, [&] {
        client.look();
        return client.exit_code() == 75;
    }));
}

TEST(NodeLink, RanksOfAMachineThatVanishedAreGoneAndAFarewellIsNoVanishing) {
    NodeLinkServer server;
    std::optional<NodeLinkClient> dying(std::in_place, server.invitation(), 5s);
    std::optional<NodeLinkClient> leaving(std::in_place, server.invitation(), 5s);
    SeenRank neighbour = rank_three();
    neighbour.state = RankState::runs;
    dying->tell({rank_three(), neighbour});
    SeenRank well = rank_three();
    well.state = RankState::runs;
    leaving->tell({well});
    ASSERT_TRUE(comes(server, [&] { return server.ranks(1h).size() == 3; }));
    leaving->say_farewell();
    leaving.reset();
    ASSERT_TRUE(comes(server, [&] { return server.ranks(1h).size() == 2; }));
    dying.reset();
    ASSERT_TRUE(comes(server, [&] { return server.ranks(1h)[0].is_gone; }));
    EXPECT_FALSE(server.ranks(1h)[1].is_gone) << "nothing is known of the machine's other rank";
    EXPECT_TRUE(server.ranks(1h)[1].is_out_of_reach);
}

/// A network error is no death: the job must not end for it.
TEST(NodeLink, ALineThatIsFarTooLongIsCutOffAndNobodyIsGone) {
    NodeLinkServer server;
    NodeLinkClient client(server.invitation(), 5s);
    SeenRank well = rank_three();
    well.state = RankState::runs;
    client.tell({well});
    ASSERT_TRUE(comes(server, [&] { return !server.ranks(1h).empty(); }));
    well.failure = std::string(std::size_t{20} << 20, 'x');
    client.tell({well});
    ASSERT_TRUE(comes(server, [&] {
        client.look();
        return server.ranks(1h).at(0).is_out_of_reach;
    }));
    EXPECT_FALSE(server.ranks(1h)[0].is_gone);
    EXPECT_FALSE(is_in_trouble(server.ranks(1h)[0]));
}

TEST(NodeLink, ASilentMachineIsOutOfReach) {
    NodeLinkServer server;
    NodeLinkClient client(server.invitation(), 5s);
    client.tell({rank_three()});
    ASSERT_TRUE(comes(server, [&] { return !server.ranks(1h).empty(); }));
    EXPECT_FALSE(server.ranks(1h)[0].is_out_of_reach);
    std::this_thread::sleep_for(20ms);
    EXPECT_TRUE(server.ranks(10ms)[0].is_out_of_reach);
}

TEST(NodeLink, AClientNoticesThatTheServerIsGone) {
    std::optional<NodeLinkServer> server(std::in_place);
    NodeLinkClient client(server->invitation(), 5s);
    server->look();
    EXPECT_FALSE(client.is_lost());
    server.reset();
    for (int i = 0; i < 1000 && !client.is_lost(); ++i) {
        client.look();
        std::this_thread::sleep_for(5ms);
    }
    EXPECT_TRUE(client.is_lost());
}

/// What the server thinks of somebody who says `text`: whether it hangs up.
bool is_turned_away(NodeLinkServer& server, const std::string& text) {
    std::istringstream words(server.invitation());
    std::string secret, address;
    std::uint16_t port = 0;
    words >> secret >> port >> address;
    const Socket stranger(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    inet_pton(AF_INET, address.c_str(), &to.sin_addr);
    EXPECT_EQ(connect(stranger.descriptor(), reinterpret_cast<const sockaddr*>(&to), sizeof to), 0);
    EXPECT_EQ(send(stranger.descriptor(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
    return comes(server, [&] {
        char byte = 0;
        return recv(stranger.descriptor(), &byte, 1, MSG_DONTWAIT) == 0 || (errno == ECONNRESET);
    });
}

TEST(NodeLink, StrangersAreTurnedAway) {
    NodeLinkServer server;
    const std::string secret = server.invitation().substr(0, server.invitation().find(' '));
    const std::string rank =
        R"({"rank":3,"host":"a","state":1,"is_gone":true,"is_stopped":false,"process":1,"exit_code":0,"failure_age":0,)"
        R"("failure":"","phase":"","step":0,"operations":[]})";
    for (const std::string& text :
         {std::string("GET / HTTP/1.1\n"), R"({"secret":"guess","ranks":[)" + rank + "]}\n",
          R"({"secret":1,"ranks":[)" + rank + "]}\n", R"({"secret":["x"],"ranks":[)" + rank + "]}\n",
          R"({"ranks":[)" + rank + "]}\n", std::string("[1]\n"), std::string("17\n"), std::string("\n"),
          std::string(100, '\xff') + "\n", R"({"secret":")" + secret + R"(","ranks":[{"rank":"no number"}]})" + "\n",
          R"({"secret":")" + secret + R"(","ranks":7})" + "\n"}) {
        EXPECT_TRUE(is_turned_away(server, text)) << text;
        EXPECT_TRUE(server.ranks(1h).empty()) << text;
    }
    NodeLinkClient friendly(server.invitation(), 5s);
    friendly.tell({rank_three()});
    EXPECT_TRUE(comes(server, [&] { return !server.ranks(1h).empty(); }));
}

TEST(NodeLink, NobodyThereIsAnErrorThatNamesTheAddresses) {
    std::string invitation;
    {
        const NodeLinkServer server;
        invitation = server.invitation();
    }
    try {
        const NodeLinkClient client(invitation, 1s);
        FAIL() << "it connected to " << invitation;
    } catch (const base::Error& error) {
        EXPECT_NE(std::string(error.what()).find("port "), std::string::npos) << error.what();
    }
}

}  // namespace
}  // namespace lockstep::comm
