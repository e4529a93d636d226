/* SPDX-License-Identifier: BSD-2-Clause */
// Tests which GPU of a mount a program's allocations and leases use.
#include "tests/client/lib/mount_gpu_rig.h"

#include <errno.h>

#include <gtest/gtest.h>

namespace
{

struct Choice {
    const char *name;
    mount_gpu_rig rig;
    int device;
    uint32_t lease_tier;
};

class MountGpuChoice : public ::testing::TestWithParam<Choice>
{
};

TEST_P(MountGpuChoice, IsMadeByUuid)
{
    uint32_t lease_tier = 99;

    EXPECT_EQ(mount_gpu_rig_choose(&GetParam().rig, &lease_tier), GetParam().device);
    if (GetParam().device >= -1) {
        EXPECT_EQ(lease_tier, GetParam().lease_tier);
    }
}

INSTANTIATE_TEST_SUITE_P(
    All, MountGpuChoice,
    ::testing::Values(Choice{"current_context", {"ab", "", "ab", 1, false}, 1, 1},
                      Choice{"other_order", {"ab", "", "ba", 0, false}, 0, 1},
                      Choice{"no_context", {"ab", "", "ba", -1, false}, 1, 0},
                      Choice{"first_is_hidden", {"ab", "", "b", -1, false}, 0, 1},
                      Choice{"current_is_not_served", {"ab", "", "cab", 0, false}, 1, 0},
                      Choice{"first_is_lost", {"ab", "a", "ab", -1, false}, 1, 1},
                      Choice{"current_is_lost", {"ab", "b", "ab", 1, false}, 1, 1},
                      Choice{"none_is_visible", {"ab", "", "c", 0, false}, -ENODEV, 0},
                      Choice{"cpu_executor", {"a", "", "ab", 1, true}, -1, 7}),
    [](const auto &info) { return info.param.name; });

} // namespace
