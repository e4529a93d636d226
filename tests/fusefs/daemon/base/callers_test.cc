/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the questions about callers: CAP_SYS_ADMIN of root in this user
// namespace, and groups.
#include <grp.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "fusefs/daemon/base/callers.h"
#include "tests/threads.h"

namespace
{

class Callers : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        ASSERT_EQ(callers_open(&callers_, &server_), 0);
        thread_ = std::thread(callers_serve, server_);
    }
    void TearDown() override
    {
        shutdown(callers_.socket, SHUT_RDWR);
        thread_.join();
        callers_close(&callers_);
        close(server_);
    }
    // Starts a child that runs `prepare`, and asks `question` about it.
    bool ask(const std::function<void()> &prepare, const std::function<bool(pid_t)> &question)
    {
        int ends[2];
        char byte = 0;
        EXPECT_EQ(pipe(ends), 0);
        pid_t pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            prepare();
            if (write(ends[1], &byte, 1) != 1)
                _exit(1);
            for (;;)
                pause();
        }
        EXPECT_EQ(read(ends[0], &byte, 1), 1);
        bool answer = question(pid);
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        close(ends[0]);
        close(ends[1]);
        return answer;
    }
    bool admin(const std::function<void()> &prepare)
    {
        return ask(prepare, [&](pid_t pid) { return callers_is_admin(&callers_, pid); });
    }
    bool member(const std::vector<gid_t> &groups, gid_t group)
    {
        return ask([&] { setgroups(groups.size(), groups.data()); },
                   [&](pid_t pid) { return callers_is_member(&callers_, pid, group); });
    }
    struct callers callers_ = {};
    int server_ = -1;
    std::thread thread_;
};

void drop_admin()
{
    __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    syscall(SYS_capget, &head, data);
    data[0].effective &= ~(1u << CAP_SYS_ADMIN);
    syscall(SYS_capset, &head, data);
}

bool is_root_here()
{
    __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    syscall(SYS_capget, &head, data);
    return geteuid() == 0 && data[0].effective & (1u << CAP_SYS_ADMIN);
}

TEST_F(Callers, AreAdminsWithTheCapabilityOfThisNamespace)
{
    if (!is_root_here())
        GTEST_SKIP() << "CAP_SYS_ADMIN is needed";
    EXPECT_TRUE(admin([] {}));
    EXPECT_FALSE(admin(drop_admin));
    EXPECT_FALSE(admin([] { (void)!setuid(1000); }));
    EXPECT_FALSE(admin([] {
        if (unshare(CLONE_NEWUSER) != 0)
            drop_admin();
    }));
}

// The process of a user answers, which cannot see the namespaces of root's
// processes.
TEST_F(Callers, AreAdminsForTheMounterOfAUser)
{
    struct callers c;
    int server;
    if (!is_root_here())
        GTEST_SKIP() << "CAP_SYS_ADMIN is needed";
    ASSERT_EQ(callers_open(&c, &server), 0);
    pid_t pid = fork();
    if (pid == 0) {
        callers_close(&c);
        if (setuid(1000) != 0)
            _exit(1);
        callers_serve(server);
        _exit(0);
    }
    close(server);
    EXPECT_TRUE(callers_is_admin(&c, getpid()));
    callers_close(&c);
    EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

TEST_F(Callers, HaveSupplementaryGroups)
{
    if (!is_root_here())
        GTEST_SKIP() << "setgroups(2) needs root";
    EXPECT_TRUE(member({1, 70000, 3}, 70000));
    EXPECT_TRUE(member({1, 70000, 3}, 1));
    EXPECT_FALSE(member({1, 70000, 3}, 7000));
    EXPECT_FALSE(member({}, 0));
}

TEST_F(Callers, HaveNoRightsIfTheyAreUnknown)
{
    EXPECT_FALSE(callers_is_admin(&callers_, 0));
    EXPECT_FALSE(callers_is_admin(&callers_, -1));
    EXPECT_FALSE(callers_is_admin(&callers_, 1 << 30));
    EXPECT_FALSE(callers_is_member(&callers_, 1 << 30, 0));
}

TEST_F(Callers, AreAskedAboutByManyThreads)
{
    std::atomic<int> wrong{0};
    in_threads(8, [&](int) {
        for (int k = 0; k < 100; k++) {
            wrong += callers_is_admin(&callers_, getpid()) != is_root_here();
            wrong += callers_is_admin(&callers_, 1 << 30);
        }
    });
    EXPECT_EQ(wrong, 0);
}

// If the mounter does not answer in time, the request is delayed and refused. A
// late answer is not taken as the answer to the next question.
TEST(CallersAlone, HaveNoRightsWithoutAnAnswerInTime)
{
    struct callers c;
    int server;
    ASSERT_EQ(callers_open(&c, &server), 0);
    EXPECT_FALSE(callers_is_admin(&c, 1 << 30));
    std::thread late(callers_serve, server);
    EXPECT_EQ(callers_is_admin(&c, getpid()), is_root_here());
    shutdown(c.socket, SHUT_RDWR);
    late.join();
    close(server);
    EXPECT_FALSE(callers_is_admin(&c, getpid()));
    callers_close(&c);
}

} // namespace
