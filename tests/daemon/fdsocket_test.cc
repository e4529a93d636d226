// Descriptors become tokens, and tokens become descriptors once, for one user.
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "fusefs/daemon/fdsocket.h"
#include "tests/daemon/tokens.h"

namespace
{

class FdSocket : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(fdsocket_open(nullptr, &socket_), 0);
        memory_ = memfd_create("fdsocket", MFD_CLOEXEC);
        ASSERT_GE(memory_, 0);
    }
    void TearDown() override
    {
        close(memory_);
        fdsocket_close(socket_);
    }
    uint64_t token(int fd)
    {
        return token_for(fdsocket_name(socket_), fd);
    }

    fdsocket *socket_ = nullptr;
    int memory_ = -1;
};

// Both ends of a TCP connection over the loopback.
void connected(int ends[2])
{
    sockaddr_in addr = {};
    socklen_t len = sizeof(addr);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    addr.sin_family = AF_INET;
    addr.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&addr), len), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr *>(&addr), &len), 0);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(ends[0], reinterpret_cast<sockaddr *>(&addr), len), 0);
    ends[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(ends[1], 0);
    close(listener);
}

TEST_F(FdSocket, TokenStandsForTheDescriptorOnce)
{
    int fd = -1;
    uint64_t t = token(memory_);
    ASSERT_NE(t, 0u);
    ASSERT_EQ(fdsocket_take(socket_, t, getuid(), &fd), 0);
    struct stat sent, got;
    ASSERT_EQ(fstat(memory_, &sent), 0);
    ASSERT_EQ(fstat(fd, &got), 0);
    EXPECT_EQ(sent.st_ino, got.st_ino);
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    close(fd);
    EXPECT_EQ(fdsocket_take(socket_, t, getuid(), &fd), -ENOENT);
}

TEST_F(FdSocket, TokenIsOfNoUseToAnotherUser)
{
    int fd = -1;
    uint64_t t = token(memory_);
    EXPECT_EQ(fdsocket_take(socket_, t, getuid() + 1, &fd), -EACCES);
    ASSERT_EQ(fdsocket_take(socket_, t, getuid(), &fd), 0);
    close(fd);
}

TEST_F(FdSocket, MessagesOfAnotherShapeAreRefused)
{
    int fd = -1;
    EXPECT_EQ(token_for(fdsocket_name(socket_), memory_, 1), 0u) << "not zero bytes";
    EXPECT_EQ(token_for(fdsocket_name(socket_), -1), 0u) << "no descriptor";
    EXPECT_EQ(fdsocket_take(socket_, 0, getuid(), &fd), -ENOENT);
}

TEST_F(FdSocket, WaitingTokensAreBounded)
{
    int made = 0;
    while (made < 1000 && token(memory_) != 0)
        made++;
    EXPECT_GT(made, 10);
    EXPECT_LT(made, 1000);
}

TEST_F(FdSocket, SilentConnectionsDoNotKeepOthersOut)
{
    int idle[8];
    for (int &s : idle)
        s = connect_to(fdsocket_name(socket_));
    EXPECT_NE(token(memory_), 0u);
    for (int s : idle)
        close(s);
}

TEST_F(FdSocket, OneUserCannotTakeEveryConnection)
{
    std::vector<int> idle;
    for (int i = 0; i < 64; i++)
        idle.push_back(connect_to(fdsocket_name(socket_)));
    char byte;
    EXPECT_EQ(recv(idle.back(), &byte, 1, 0), 0) << "the last one was not turned away";
    for (int s : idle)
        close(s);
}

TEST_F(FdSocket, OnlyMemoryIsTaken)
{
    int file = open("/dev/null", O_RDWR | O_CLOEXEC);
    EXPECT_EQ(token(file), 0u);
    close(file);
    EXPECT_NE(token(memory_), 0u);
}

// close(2) of such a socket waits until the peer has read all of it, or is gone.
TEST_F(FdSocket, DescriptorThatClosesSlowlyKeepsNobodyWaiting)
{
    int ends[2];
    char block[65536] = {};
    linger slow = {1, 60};
    ASSERT_NO_FATAL_FAILURE(connected(ends));
    while (send(ends[0], block, sizeof(block), MSG_DONTWAIT) > 0)
        ;
    ASSERT_EQ(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &slow, sizeof(slow)), 0);
    int s = connect_to(fdsocket_name(socket_));
    EXPECT_TRUE(send_word(s, ends[0], 0));
    close(ends[0]);
    char byte;
    EXPECT_EQ(recv(s, &byte, 1, 0), 0) << "kept waiting, or taken";
    EXPECT_NE(token(memory_), 0u);
    close(s);
    close(ends[1]);
}

} // namespace
