// SPDX-License-Identifier: BSD-2-Clause
// Tests how long the caller waits for child processes.
#include <vector>

#include <gtest/gtest.h>

#include "support/child.h"

namespace
{

int run(std::vector<const char *> argv, unsigned ms)
{
    argv.push_back(nullptr);
    return child_run(const_cast<char *const *>(argv.data()), ms);
}

TEST(Child, ReturnsTheExitStatus)
{
    EXPECT_EQ(run({"sh", "-c", "exit 7"}, 600000), 7);
    EXPECT_EQ(run({"true"}, 600000), 0);
    EXPECT_EQ(run({"sh", "-c", "kill -9 $$"}, 600000), -ECANCELED);
    EXPECT_EQ(run({"/none"}, 600000), -ENOENT);
}

TEST(Child, KillsAProgramThatDoesNotEnd)
{
    int status = 0;

    EXPECT_EQ(run({"sleep", "3600"}, 20), -ETIMEDOUT);
    if (waitpid(-1, &status, 0) < 0)
        EXPECT_EQ(errno, ECHILD); // it had ended when child_run() returned
    else
        EXPECT_EQ(WTERMSIG(status), SIGKILL);
}

} // namespace
