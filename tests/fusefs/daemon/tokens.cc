/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/fusefs/daemon/tokens.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "support/fd_message.h"

int connect_silently(const std::string &name)
{
    sockaddr_un addr = {};
    addr.sun_family = AF_UNIX;
    memcpy(addr.sun_path + 1, name.c_str() + 1, name.size() - 1);
    socklen_t len = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    timeval limit = {20, 0};
    setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(s, reinterpret_cast<sockaddr *>(&addr), len) == 0)
        return s;
    close(s);
    return -1;
}

int connect_to(const std::string &name, uint64_t cookie)
{
    int s = connect_silently(name);
    if (s >= 0)
        send(s, &cookie, sizeof(cookie), MSG_NOSIGNAL);
    return s;
}

bool send_word(int s, int fd, uint64_t word)
{
    return fd_message_send(s, &word, sizeof(word), &fd, fd >= 0, 0) ==
           static_cast<ssize_t>(sizeof(word));
}

uint64_t token_for(const std::string &name, uint64_t cookie, int fd, uint64_t word)
{
    uint64_t token = 0;
    int s = connect_to(name, cookie);
    if (s < 0)
        return 0;
    if (!send_word(s, fd, word) ||
        recv(s, &token, sizeof(token), MSG_WAITALL) != static_cast<ssize_t>(sizeof(token)))
        token = 0;
    close(s);
    return token;
}
