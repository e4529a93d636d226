/* SPDX-License-Identifier: BSD-2-Clause */
/* Tests where device memory is mapped. This test replaces device_mem.c, by ordinary memory. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>

#include "blockdev/nvme/nvme_iova.h"
#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio/device_mem.h"
#include "blockdev/vfio/vfio_internal.h"

static int memories; // mapped now

extern "C" {

int __wrap_device_mem_map(const struct nvme_mem *mem, int, struct device_mem **out, struct reason *)
{
    *out = static_cast<struct device_mem *>(calloc(1, sizeof(**out)));
    (*out)->len = mem->len;
    memories++;
    return 0;
}

void __wrap_device_mem_unmap(struct device_mem *m)
{
    free(m);
    memories--;
}
}

namespace
{

int map_result;
uint64_t mapped_at;

int map(struct vfio *, void *, size_t, uint64_t iova)
{
    mapped_at = iova;
    return map_result;
}

class DeviceMap : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        static struct vfio_api api;
        api.map = map;
        map_result = memories = 0;
        v.api = &api;
        v.device_memory = true;
        v.group = -1;
        nvme_iova_init(&v.iova);
    }
    ~DeviceMap() override
    {
        for (size_t i = 0; i < v.iova.n_places; i++)
            free(v.iova.used[i].owner);
        nvme_iova_destroy(&v.iova);
    }
    int map_bytes(size_t len)
    {
        struct nvme_mem mem {
        };
        mem.len = len;
        mem.fd = -1;
        iova = 0;
        return vfio_device_mem_map(&v, &mem, &iova);
    }

    struct vfio v {
    };
    uint64_t iova = 0;
};

TEST_F(DeviceMap, AlignsLargeRangesToLargePages)
{
    ASSERT_EQ(nvme_iova_allow(&v.iova, NVME_PAGE_SIZE, 64 << 20), 0);
    ASSERT_EQ(map_bytes(NVME_LARGE_PAGE - NVME_PAGE_SIZE), 0);
    EXPECT_EQ(iova, NVME_PAGE_SIZE);
    EXPECT_EQ(iova, mapped_at);
    ASSERT_EQ(map_bytes(NVME_LARGE_PAGE), 0);
    EXPECT_EQ(iova % NVME_LARGE_PAGE, 0u);
    EXPECT_NE(iova, 0u);
    EXPECT_EQ(memories, 2);
}

TEST_F(DeviceMap, IsRefusedWithoutAFreeRange)
{
    ASSERT_EQ(nvme_iova_allow(&v.iova, NVME_PAGE_SIZE, 2 * NVME_PAGE_SIZE - 1), 0);
    mapped_at = 0;
    EXPECT_EQ(map_bytes(2 * NVME_PAGE_SIZE), -ENOSPC);
    EXPECT_EQ(mapped_at, 0u);
    EXPECT_EQ(memories, 0);
    EXPECT_EQ(v.iova.n_used, 0u);
}

TEST_F(DeviceMap, GivesTheRangeBackIfTheIommuRefusesIt)
{
    ASSERT_EQ(nvme_iova_allow(&v.iova, NVME_PAGE_SIZE, 64 << 20), 0);
    map_result = -EINVAL;
    EXPECT_EQ(map_bytes(NVME_PAGE_SIZE), -EFAULT);
    EXPECT_STRNE(v.t.device_memory, "");
    EXPECT_EQ(memories, 0);
    EXPECT_EQ(v.iova.n_used, 0u);
    map_result = -ENOSPC;
    EXPECT_EQ(map_bytes(NVME_PAGE_SIZE), -ENOSPC);
}

} // namespace
