/* SPDX-License-Identifier: BSD-2-Clause */
// The responder for Prometheus: which addresses it takes, and clients that behave badly.
#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "fusefs/daemon/base/metrics_server.h"

namespace
{

TEST(MetricsAddress, OnlyLoopbackIsAccepted)
{
    struct metrics_address a = {};
    EXPECT_EQ(metrics_address_parse("9567", &a), 0);
    EXPECT_EQ(ntohs(a.at.v4.sin_port), 9567);
    EXPECT_EQ(ntohl(a.at.v4.sin_addr.s_addr), INADDR_LOOPBACK);
    EXPECT_EQ(metrics_address_parse("127.1.2.3:1", &a), 0);
    EXPECT_EQ(metrics_address_parse("[::1]:65535", &a), 0);
    EXPECT_EQ(a.at.any.sa_family, AF_INET6);
    for (auto other : {"0.0.0.0:80", "192.168.1.1:80", "[::]:80", "[fe80::1]:80", "128.0.0.1:80"})
        EXPECT_EQ(metrics_address_parse(other, &a), -EPERM) << other;
    for (auto bad : {"", ":", "0", "65536", "-1", "+1", " 1", "1 ", "localhost:80", "127.0.0.1",
                     "127.0.0.1:", "::1:80", "[::1:80", "[]:80", "[::1]:80x", "127.0.0.1:0",
                     "99999999999999999999", "127.0.0.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1.1:1"})
        EXPECT_EQ(metrics_address_parse(bad, &a), -EINVAL) << bad;
}

class Metrics : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        struct metrics_address a = {};
        ASSERT_EQ(metrics_address_parse("1", &a), 0);
        a.at.v4.sin_port = 0; // any that is free
        int listener = metrics_listen(&a);
        ASSERT_GE(listener, 0) << strerror(-listener);
        socklen_t len = sizeof(at_);
        ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr *>(&at_), &len), 0);
        ASSERT_EQ(metrics_server_open(listener, print, this, &server_), 0);
    }

    void TearDown() override
    {
        metrics_server_close(server_);
        for (int fd : fds_)
            close(fd);
    }

    static void print(void *context, FILE *to)
    {
        auto *self = static_cast<Metrics *>(context);
        std::this_thread::sleep_for(self->print_takes_);
        fputs(self->body_.c_str(), to);
    }

    int client()
    {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        fds_.push_back(fd);
        EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr *>(&at_), sizeof(at_)), 0);
        return fd;
    }

    static bool put(int fd, const std::string &text)
    {
        return send(fd, text.data(), text.size(), MSG_NOSIGNAL) ==
               static_cast<ssize_t>(text.size());
    }

    // All until the server closes; "timeout" if it does not.
    static std::string all(int fd)
    {
        std::string out;
        char part[4096];
        struct pollfd p = {fd, POLLIN, 0};
        while (poll(&p, 1, 120000) == 1) { // a bound, not an expectation
            ssize_t n = recv(fd, part, sizeof(part), 0);
            if (n <= 0)
                return out;
            out.append(part, static_cast<size_t>(n));
        }
        return "timeout";
    }

    std::string get(const std::string &request)
    {
        int fd = client();
        EXPECT_TRUE(put(fd, request));
        return all(fd);
    }

    std::string body_ = "gpunvme_test 1\n";
    std::chrono::milliseconds print_takes_{0};
    struct sockaddr_in at_ = {};
    struct metrics_server *server_ = nullptr;
    std::vector<int> fds_;
};

TEST_F(Metrics, AnswersWithTheWholeText)
{
    body_.assign(3u << 20, 'x');
    for (auto path : {"/metrics", "/"}) {
        std::string got = get(std::string("GET ") + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n");
        EXPECT_EQ(got.substr(0, 17), "HTTP/1.0 200 OK\r\n");
        EXPECT_NE(got.find("Content-Length: 3145728\r\n"), std::string::npos);
        EXPECT_EQ(got.substr(got.find("\r\n\r\n") + 4), body_);
    }
}

TEST_F(Metrics, HeadIsAnsweredAsGetWithoutTheText)
{
    std::string got = get("HEAD /metrics HTTP/1.0\r\n\r\n");
    EXPECT_EQ(got.substr(0, 17), "HTTP/1.0 200 OK\r\n");
    EXPECT_NE(got.find("Content-Length: " + std::to_string(body_.size()) + "\r\n"),
              std::string::npos);
    EXPECT_EQ(got.find("\r\n\r\n") + 4, got.size());
    EXPECT_EQ(get("HEAD /none HTTP/1.0\r\n\r\n").substr(0, 13), "HTTP/1.0 404 ");
}

TEST_F(Metrics, RefusesOtherRequests)
{
    EXPECT_EQ(get("GET /etc/passwd HTTP/1.0\r\n\r\n").substr(0, 13), "HTTP/1.0 404 ");
    EXPECT_EQ(get("GET /metricsx HTTP/1.0\n\n").substr(0, 13), "HTTP/1.0 404 ");
    EXPECT_EQ(get("POST / HTTP/1.0\r\n\r\n").substr(0, 13), "HTTP/1.0 405 ");
    EXPECT_EQ(get("\r\n\r\n").substr(0, 13), "HTTP/1.0 405 ");
    EXPECT_EQ(get(std::string("\0\0\0\n\n", 5)), "") << "a NUL ends the request";
}

TEST_F(Metrics, RequestsInPartsAreAnswered)
{
    int fd = client();
    for (char c : std::string("GET / HTTP/1.0\r\n\r\n"))
        ASSERT_TRUE(put(fd, std::string(1, c)));
    EXPECT_EQ(all(fd).substr(0, 15), "HTTP/1.0 200 OK");
}

TEST_F(Metrics, EndlessHeadersEndTheConnection)
{
    int fd = client();
    put(fd, "GET / HTTP/1.0\r\n" + std::string(100000, 'a'));
    EXPECT_EQ(all(fd), "");
    EXPECT_NE(get("GET / HTTP/1.0\r\n\r\n"), "");
}

TEST_F(Metrics, SilentClientsAreDisconnectedForOthers)
{
    std::vector<int> silent;
    for (int i = 0; i < 8; i++)
        silent.push_back(client());
    EXPECT_EQ(get("GET / HTTP/1.0\r\n\r\n").substr(0, 15), "HTTP/1.0 200 OK");
    for (int fd : silent)
        EXPECT_EQ(all(fd), "");
}

// Printing takes longer than the 2 s that the server waits for a client, as on a busy machine.
TEST_F(Metrics, ATextThatTakesLongIsAnswered)
{
    print_takes_ = std::chrono::milliseconds(2200);
    EXPECT_EQ(get("GET / HTTP/1.0\r\n\r\n").substr(0, 15), "HTTP/1.0 200 OK");
}

TEST_F(Metrics, ClientsThatDoNotReadAreDisconnectedForOthers)
{
    body_.assign(16u << 20, 'x'); // more than sockets buffer
    size_t complete = 8;
    // Connections last two seconds; on a busy machine the server notices their end late.
    for (int seconds : {4, 16, 64}) {
        std::vector<int> deaf;
        for (int i = 0; i < 8; i++) {
            deaf.push_back(client());
            ASSERT_TRUE(put(deaf.back(), "GET / HTTP/1.0\r\n\r\n"));
        }
        auto ended = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
        EXPECT_EQ(get("GET / HTTP/1.0\r\n\r\n").substr(0, 15), "HTTP/1.0 200 OK");
        std::this_thread::sleep_until(ended);
        complete = 0;
        for (int fd : deaf)
            complete += all(fd).size() >= body_.size();
        if (!complete)
            break;
    }
    EXPECT_EQ(complete, 0u);
}

TEST_F(Metrics, ClientsThatLeaveDoNoHarm)
{
    for (int i = 0; i < 100; i++) {
        int fd = client();
        if (i % 2)
            put(fd, i % 4 == 1 ? "GET / HTTP/1.0\r\n\r\n" : "GET");
        struct linger now = {1, 0};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, i % 3 ? sizeof(now) : 0);
        close(fd);
        fds_.pop_back();
    }
    EXPECT_EQ(get("GET / HTTP/1.0\r\n\r\n").substr(0, 15), "HTTP/1.0 200 OK");
}

TEST_F(Metrics, TheEndDoesNotWaitForClients)
{
    client();
    metrics_server_close(server_);
    server_ = nullptr;
    EXPECT_EQ(all(fds_[0]), "");
}

} // namespace
