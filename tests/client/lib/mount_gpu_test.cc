/* SPDX-License-Identifier: BSD-2-Clause */
// Tests which GPU of a mount a program's allocations and leases use. The test stands in for the
// GPUs of the mount and of the process; a UUID is 16 times one byte.
#include <cerrno>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/client/lib/internal.h"

namespace
{

struct Choice {
    const char *name;
    const char *mount;   // UUID byte of each GPU that the mount serves
    const char *lost;    // those of them that are lost
    const char *process; // UUID byte of each device that the process sees, by ordinal
    int current;         // device of the current context, or -1
    bool cpu;            // the mount has the CPU executor
    int device;          // the choice: a device, -1 for no CUDA device, or -errno
    uint32_t lease_tier;
};

const Choice *choice;

class MountGpuChoice : public ::testing::TestWithParam<Choice>
{
};

TEST_P(MountGpuChoice, IsMadeByUuid)
{
    connection g = {};
    mount_gpu gpu;

    choice = &GetParam();
    g.info.executor = choice->cpu ? GPUNVME_EXECUTOR_CPU : GPUNVME_EXECUTOR_CUDA;
    g.info.lease_tier = 7;
    int err = mount_gpu_choose(&g, &gpu);
    EXPECT_EQ(err ? err : gpu.device, choice->device);
    if (!err) {
        EXPECT_EQ(gpu.lease_tier, choice->lease_tier);
    }
}

INSTANTIATE_TEST_SUITE_P(
    All, MountGpuChoice,
    ::testing::Values(Choice{"current_context", "ab", "", "ab", 1, false, 1, 1},
                      Choice{"other_order", "ab", "", "ba", 0, false, 0, 1},
                      Choice{"no_context", "ab", "", "ba", -1, false, 1, 0},
                      Choice{"first_is_hidden", "ab", "", "b", -1, false, 0, 1},
                      Choice{"current_is_not_served", "ab", "", "cab", 0, false, 1, 0},
                      Choice{"first_is_lost", "ab", "a", "ab", -1, false, 1, 1},
                      Choice{"current_is_lost", "ab", "b", "ab", 1, false, 1, 1},
                      Choice{"none_is_visible", "ab", "", "c", 0, false, -ENODEV, 0},
                      Choice{"cpu_executor", "a", "", "ab", 1, true, -1, 7}),
    [](const auto &info) { return info.param.name; });

} // namespace

int gpunvme_cuda(struct connection *, struct cuda_driver **out)
{
    *out = nullptr;
    return 0;
}

// The lease tier of a GPU is its place in the list.
int gpunvme_ioctl(int, unsigned long request, void *arg, uint32_t size)
{
    auto *out = static_cast<gpunvme_ioc_gpus *>(arg);

    if (request != GPUNVME_IOC_GPUS || size != sizeof(*out))
        return -ENOTTY;
    *out = {};
    out->count = static_cast<uint32_t>(strlen(choice->mount));
    for (uint32_t i = 0; i < out->count; i++) {
        memset(out->gpus[i].uuid, choice->mount[i], 16);
        out->gpus[i].state =
            strchr(choice->lost, choice->mount[i]) ? GPUNVME_GPU_LOST : GPUNVME_GPU_CLOSED;
        out->gpus[i].lease_tier = i;
    }
    return 0;
}

int cuda_driver_current(struct cuda_driver *)
{
    return choice->current;
}

int cuda_driver_uuid(struct cuda_driver *, int device, uint8_t uuid[16])
{
    memset(uuid, choice->process[device], 16);
    return 0;
}

int cuda_driver_find(struct cuda_driver *, const uint8_t uuid[16], int *device)
{
    const char *at = strchr(choice->process, uuid[0]);

    if (!at)
        return -ENODEV;
    *device = static_cast<int>(at - choice->process);
    return 0;
}
