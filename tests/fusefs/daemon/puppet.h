/* SPDX-License-Identifier: BSD-2-Clause */
// Commands to a daemon whose drive fails when it is told to (puppet.c).
#ifndef TESTS_DAEMON_PUPPET_H
#define TESTS_DAEMON_PUPPET_H

#include <sys/socket.h>

#include <string>

#include <gtest/gtest.h>

// Over the socket that is the daemon's standard input; a refusal is a fatal failure.
inline void tell_puppet(int control, const std::string &command)
{
    char answer[16] = "";

    std::string line = command + "\n";
    ASSERT_EQ(send(control, line.data(), line.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(line.size()));
    ASSERT_GT(recv(control, answer, sizeof(answer) - 1, 0), 0);
    ASSERT_STREQ(answer, "ok\n") << command;
}

// After `skip` commands of the opcode so many of them meet the fault.
inline void tell_fault(int control, const std::string &kind, int opcode, unsigned skip,
                       unsigned times, unsigned status)
{
    tell_puppet(control, "fault " + kind + " " + std::to_string(opcode) + " 0 " +
                             std::to_string(skip) + " " + std::to_string(times) + " " +
                             std::to_string(status) + " 0");
}

#endif
