/* SPDX-License-Identifier: BSD-2-Clause */
// The memory of a copy that was given up: nothing is read to it, and it is freed when that is safe.
#include <gtest/gtest.h>

#include <cerrno>
#include <climits>

#include "gpunvme/gpunvme.h"
#include "tests/client/lib/doubt_rig.h"

namespace
{

TEST(Doubt, NothingIsReadToTheMemoryUntilItIsSettled)
{
    struct gpunvme_buffer *b = doubt_rig_buffer(0);
    doubt_rig_settle_after(UINT_MAX - 1);
    EXPECT_EQ(gpunvme_read(b, -1, 0, 0, 1, nullptr), -ETIMEDOUT);
    EXPECT_EQ(doubt_rig_read(b, -1), -ETIMEDOUT);
    EXPECT_EQ(gpunvme_copy_in(b, 0, "", 1), -ETIMEDOUT);
    doubt_rig_settle_after(0);
    EXPECT_EQ(doubt_rig_read(b, -1), -EBADF) << "the file's";
    EXPECT_EQ(gpunvme_unregister(b), 0);
}

TEST(Doubt, TheMemoryIsFreedWhenItIsSettled)
{
    struct gpunvme_buffer *b = doubt_rig_buffer(0);
    doubt_rig_settle_after(5);
    EXPECT_EQ(gpunvme_unregister(b), 0);
    EXPECT_EQ(doubt_rig_frees(), 1u);
}

TEST(Doubt, TheMemoryIsNotFreedWhereItIsNot)
{
    struct gpunvme_buffer *b = doubt_rig_buffer(0);
    doubt_rig_settle_after(UINT_MAX - 1);
    EXPECT_EQ(gpunvme_unregister(b), -ETIMEDOUT);
    EXPECT_EQ(doubt_rig_frees(), 0u);
}

// The mount's error would say that the memory may be used again.
TEST(Doubt, ItIsToldAlsoWhereTheMountIsGone)
{
    struct gpunvme_buffer *b = doubt_rig_buffer(0);
    doubt_rig_share(b);
    doubt_rig_settle_after(UINT_MAX - 1);
    EXPECT_EQ(gpunvme_unregister(b), -ETIMEDOUT);
    b = doubt_rig_buffer(0);
    doubt_rig_share(b);
    doubt_rig_settle_after(0);
    EXPECT_EQ(gpunvme_unregister(b), -EBADF);
}

TEST(Doubt, CopiesOfAnotherDeviceDoNotCount)
{
    struct gpunvme_buffer *b = doubt_rig_buffer(1);
    doubt_rig_settle_after(UINT_MAX - 1);
    EXPECT_EQ(doubt_rig_read(b, -1), -EBADF);
    EXPECT_EQ(gpunvme_unregister(b), 0);
    EXPECT_EQ(doubt_rig_frees(), 1u);
}

} // namespace
