/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef TESTS_DAEMON_TCP_ENDS_H
#define TESTS_DAEMON_TCP_ENDS_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

// Both ends of a TCP connection over the loopback.
inline void connect_ends(int ends[2])
{
    sockaddr_in at = {};
    socklen_t len = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr *>(&at), len), 0);
    ASSERT_EQ(listen(listener, 1), 0);
    ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr *>(&at), &len), 0);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ASSERT_EQ(connect(ends[0], reinterpret_cast<sockaddr *>(&at), len), 0);
    ends[1] = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    ASSERT_GE(ends[1], 0);
    close(listener);
}

// Returns a TCP socket whose close(2) blocks for a minute, unless the peer reads or exits.
inline int slow_socket(int *peer)
{
    int ends[2] = {-1, -1};
    char block[65536] = {};
    linger slow = {1, 60};

    connect_ends(ends);
    while (send(ends[0], block, sizeof(block), MSG_DONTWAIT) > 0)
        ;
    EXPECT_EQ(setsockopt(ends[0], SOL_SOCKET, SO_LINGER, &slow, sizeof(slow)), 0);
    *peer = ends[1];
    return ends[0];
}

#endif
