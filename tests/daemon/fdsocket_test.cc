// Descriptors become tokens, and tokens become descriptors once, for one user.
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

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
        ASSERT_EQ(fdsocket_open(&socket_), 0);
    }
    void TearDown() override
    {
        fdsocket_close(socket_);
    }
    uint64_t token(int fd)
    {
        return token_for(fdsocket_name(socket_), fd);
    }

    fdsocket *socket_ = nullptr;
};

TEST_F(FdSocket, TokenStandsForTheDescriptorOnce)
{
    int fd = -1;
    uint64_t t = token(STDERR_FILENO);
    ASSERT_NE(t, 0u);
    ASSERT_EQ(fdsocket_take(socket_, t, getuid(), &fd), 0);
    struct stat sent, got;
    ASSERT_EQ(fstat(STDERR_FILENO, &sent), 0);
    ASSERT_EQ(fstat(fd, &got), 0);
    EXPECT_EQ(sent.st_ino, got.st_ino);
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    close(fd);
    EXPECT_EQ(fdsocket_take(socket_, t, getuid(), &fd), -ENOENT);
}

TEST_F(FdSocket, TokenIsOfNoUseToAnotherUser)
{
    int fd = -1;
    uint64_t t = token(STDERR_FILENO);
    EXPECT_EQ(fdsocket_take(socket_, t, getuid() + 1, &fd), -EACCES);
    ASSERT_EQ(fdsocket_take(socket_, t, getuid(), &fd), 0);
    close(fd);
}

TEST_F(FdSocket, MessagesOfAnotherShapeAreRefused)
{
    int fd = -1;
    EXPECT_EQ(token_for(fdsocket_name(socket_), STDERR_FILENO, 1), 0u) << "not zero bytes";
    EXPECT_EQ(token_for(fdsocket_name(socket_), -1), 0u) << "no descriptor";
    EXPECT_EQ(fdsocket_take(socket_, 0, getuid(), &fd), -ENOENT);
}

TEST_F(FdSocket, WaitingTokensAreBounded)
{
    int made = 0;
    while (made < 1000 && token(STDERR_FILENO) != 0)
        made++;
    EXPECT_GT(made, 10);
    EXPECT_LT(made, 1000);
}

TEST_F(FdSocket, SilentConnectionsDoNotKeepOthersOut)
{
    int idle[8];
    for (int &s : idle)
        s = connect_to(fdsocket_name(socket_));
    EXPECT_NE(token(STDERR_FILENO), 0u);
    for (int s : idle)
        close(s);
}

} // namespace
