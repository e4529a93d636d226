/* SPDX-License-Identifier: BSD-2-Clause */
// Ends a program whose test does not end: a hang fails within seconds, and says where. Linked into
// suites that wait for answers, in which a fault is often an answer that never comes.
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <string>

#include "tests/rounds.h"

namespace
{

constexpr int kSeconds = kSanitized ? 60 : 10;

std::string name; // of the test that runs

void on_alarm(int)
{
    static const char after[] = ": does not end\n";
    ssize_t ignored = write(STDERR_FILENO, name.data(), name.size());
    ignored += write(STDERR_FILENO, after, strlen(after));
    (void)ignored;
    abort();
}

class Watchdog : public testing::EmptyTestEventListener
{
    void OnTestStart(const testing::TestInfo &info) override
    {
        name = std::string(info.test_suite_name()) + "." + info.name();
        signal(SIGALRM, on_alarm);
        alarm(static_cast<unsigned>(test_rounds(kSeconds, 600)));
    }
    void OnTestEnd(const testing::TestInfo &) override { alarm(0); }
};

const bool kListens = [] {
    testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
    return true;
}();

} // namespace
