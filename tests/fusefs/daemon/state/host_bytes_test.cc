/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the shares of users in host memory, which is sparse here.
#include <errno.h>
#include <unistd.h>

#include "tests/fusefs/daemon/rig_test.h"

namespace
{

constexpr uint64_t kList = 4080;

uint64_t half_of_memory()
{
    return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
           static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
}

class HostBytes : public RigTest
{
  protected:
    void SetUp() override { open_rig(); }
    // Registers a sparse memfd, whose bytes count whether they were touched or
    // not.
    int add(uint64_t len, uint32_t uid)
    {
        rig_buffer b = {};
        int err = rig_register(rig_, len, uid, &b);
        rig_forget(&b);
        last_ = err ? last_ : b;
        return err;
    }
    int add_list(uint64_t len, uint32_t uid)
    {
        rig_buffer b = {};
        int err = rig_register_list(rig_, len, uid, &b);
        rig_forget(&b);
        last_ = err ? last_ : b;
        return err;
    }

    const uint64_t half_ = half_of_memory(), users_ = half_ - half_ / 8;
    const uint64_t one_ = users_ - users_ / 2; // limit of one user, if no other has any
    rig_buffer last_ = {};                     // that was registered
};

TEST_F(HostBytes, IsHalfOfTheMachinesMemoryAtMost)
{
    EXPECT_EQ(add(one_, 1), 0);
    uint64_t left = users_ - one_, second = left - left / 2;
    EXPECT_EQ(add(second + 1, 2), -ENOMEM);
    EXPECT_EQ(add(second, 2), 0) << "half of what the first one left";
    rig_buffer of_second = last_;
    EXPECT_EQ(add(left - second, 3), -ENOMEM);
    EXPECT_EQ(add(half_ - one_ - second + 1, 0), -ENOMEM);
    EXPECT_EQ(add(half_ - one_ - second, 0), 0) << "root may take all that is left";
    EXPECT_EQ(add(1, 4), -ENOMEM);
    EXPECT_EQ(add_list(24, 4), -ENOMEM);
    EXPECT_EQ(rig_unregister(rig_, &of_second, 2), 0);
    EXPECT_EQ(add(1, 4), 0);
    EXPECT_EQ(rig_buffers(rig_), 3u);
}

TEST_F(HostBytes, OneUserHasHalfOfThatAtMost)
{
    EXPECT_EQ(add(one_ + 1, 1), -ENOMEM);
    EXPECT_EQ(add_list(kList, 1), 0) << "counts, too";
    EXPECT_EQ(add(one_ - kList + 1, 1), -ENOMEM);
    EXPECT_EQ(add(one_ - kList, 1), 0);
    rig_buffer most = last_;
    EXPECT_EQ(add(1, 1), -ENOMEM);
    EXPECT_EQ(add_list(24, 1), -ENOMEM);
    EXPECT_EQ(add(one_ / 2, 2), 0) << "another's";
    EXPECT_EQ(rig_unregister(rig_, &most, 1), 0);
    EXPECT_EQ(add((users_ - one_ / 2) / 2 - kList, 1), 0) << "half of what the other left";
}

} // namespace
