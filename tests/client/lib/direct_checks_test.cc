/* SPDX-License-Identifier: BSD-2-Clause */
// Checks of the leases by groups that share queues: threads stand for warps.
#include <errno.h>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

extern "C" {
#include "tests/client/lib/direct_shared_rig.h"
}

namespace
{

using direct_stack::expect_idle, direct_stack::kPage, direct_stack::Stack;

int64_t read_page(Stack &s)
{
    return shared_read_warp(&s.file, reinterpret_cast<uint64_t>(&s.pages[1]), kPage, 0);
}

// A busy machine may take longer for a try than the last check is good.
TEST(DirectSharedChecks, AreLeftToTheGroupThatMakesOne)
{
    int64_t got = -ESTALE;
    for (unsigned i = 0; i < 1000 && got == -ESTALE; i++) {
        Stack s(1, 8, 20);
        s.lease = GD_LEASE_REVOKED;
        s.set_checked(GD_CHECK_NS, true);
        got = read_page(s);
    }
    EXPECT_EQ(got, static_cast<int64_t>(kPage));
}

TEST(DirectSharedChecks, AreMadeInPlaceOfAGroupThatIsGone)
{
    Stack s(1, 8, 20);
    s.set_checked(GD_CHECK_MOST_NS, true);
    uint64_t before = s.checked();
    EXPECT_EQ(read_page(s), static_cast<int64_t>(kPage));
    EXPECT_GT(s.checked(), before);
    EXPECT_EQ(s.checked() % 2, 0u);
    s.lease = GD_LEASE_REVOKED;
    s.set_checked(GD_CHECK_MOST_NS, true);
    EXPECT_EQ(read_page(s), -ESTALE);
    expect_idle(s);
}

TEST(DirectSharedChecks, OfTimesBeforeTheClockSteppedBackAreRepeated)
{
    for (bool another_checks : {false, true}) {
        Stack s(1, 8, 20);
        s.set_checked(-uint64_t{10000000000u}, another_checks);
        uint64_t before = s.checked();
        EXPECT_EQ(read_page(s), static_cast<int64_t>(kPage));
        EXPECT_LT(s.checked(), before);
        s.set_checked(-uint64_t{10000000000u}, another_checks);
        s.lease = GD_LEASE_REVOKED;
        EXPECT_EQ(read_page(s), -ESTALE);
        expect_idle(s);
    }
}

} // namespace
