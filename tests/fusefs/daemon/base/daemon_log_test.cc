/* SPDX-License-Identifier: BSD-2-Clause */
// Tests lines for syslog that a sandboxed daemon sends to its mounter.
#include <sys/socket.h>
#include <syslog.h>
#include <unistd.h>

#include <string>
#include <thread>

#include <gtest/gtest.h>

extern "C" {
#include "fusefs/daemon/base/daemon_log.h"
/* A fortified build calls __syslog_chk(). */
void __wrap_syslog(int level, const char *format, const char *line);
void __wrap___syslog_chk(int level, int flag, const char *format, const char *line);
}

namespace
{

std::string logged; // written by the thread of log_relay(), which the test joins

class DaemonLog : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        logged.clear();
        log_in_background();
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends_), 0);
        log_through(ends_[0]);
    }
    void TearDown() override
    {
        log_through(-1);
        close(ends_[1]);
    }
    int ends_[2] = {-1, -1};
};

TEST_F(DaemonLog, PassesLinesWithTheirLevels)
{
    std::thread relay(log_relay, ends_[1]);
    log_line(LOG_NOTICE, "%s: the line %d", "drive", 1);
    log_line(LOG_DEBUG, "%s", "%s%n");
    log_through(-1); // closes the last copy of the socket, which ends the relay
    relay.join();
    EXPECT_EQ(logged, "5 drive: the line 1\n7 %s%n\n");
    log_line(LOG_INFO, "directly");
    EXPECT_EQ(logged, "5 drive: the line 1\n7 %s%n\n6 directly\n");
}

TEST_F(DaemonLog, CutsALongLine)
{
    std::string line(10000, 'x');
    std::thread relay(log_relay, ends_[1]);
    log_text(LOG_INFO, line.c_str());
    log_through(-1);
    relay.join();
    EXPECT_GT(logged.size(), 2000u);
    EXPECT_LT(logged.size(), 2100u);
}

TEST_F(DaemonLog, LosesLinesWithoutARelay)
{
    shutdown(ends_[1], SHUT_RDWR);
    log_line(LOG_INFO, "to nobody");
    EXPECT_EQ(logged, "");
}

} // namespace

void __wrap_syslog(int level, const char *, const char *line)
{
    logged += std::to_string(level) + " " + line + "\n";
}

void __wrap___syslog_chk(int level, int, const char *format, const char *line)
{
    __wrap_syslog(level, format, line);
}
