/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads into GPU memory that belongs to another process. */
#include <cerrno>

#include "tests/cuda/gq_child.h"
#include "tests/cuda/gq_rig.h"

namespace
{

class GqIpc : public GqTest
{
  protected:
    static gq_mem memory(const Bytes &handle, uint64_t offset, uint64_t len)
    {
        gq_mem m = {};

        m.kind = GQ_MEM_CUDA_IPC;
        m.fd = -1;
        m.offset = offset;
        m.len = len;
        std::copy(handle.begin(), handle.end(), m.ipc);
        return m;
    }
};

constexpr size_t kLen = 1u << 20;

TEST_P(GqIpc, FillsExactlyTheBufferInTheOtherProcess)
{
    OpenRig rig(GetParam(), 512);
    Child child("gq_ipc_child", {std::to_string(kLen)});
    Bytes handle = child.read(64);
    ASSERT_EQ(handle.size(), 64u);
    gq_mem mem = memory(handle, 70001, 900000);
    gq_buffer *b = nullptr;
    ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b), 0);
    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{16, kLen}}, 3, 900000), 0);
    gq_buffer_unregister(b);
    Bytes want(kLen, 0xa5);
    std::copy_n(rig.media.begin() + 16 * 512 + 3, 900000, want.begin() + 70001);
    child.go();
    EXPECT_TRUE(child.read(kLen) == want);
}

/* Two buffers of one allocation: the handle is opened twice, and closed twice. */
TEST_P(GqIpc, SharesOneAllocationBetweenBuffers)
{
    OpenRig rig(GetParam(), 4096);
    gq_buffer *b[2] = {};

    Child child("gq_ipc_child", {std::to_string(kLen)});
    Bytes handle = child.read(64);
    ASSERT_EQ(handle.size(), 64u);
    for (unsigned i = 0; i < 2; i++) {
        gq_mem mem = memory(handle, i * kLen / 2, kLen / 2);
        ASSERT_EQ(gq_buffer_register(rig.e, &mem, &b[i]), 0);
    }
    EXPECT_EQ(rig.move(GQ_READ, b[0], 0, {{0, kLen / 2}}, 0, kLen / 2), 0);
    gq_buffer_unregister(b[0]);
    EXPECT_EQ(rig.move(GQ_READ, b[1], 0, {{128, kLen / 2}}, 0, kLen / 2), 0);
    gq_buffer_unregister(b[1]);
    child.go();
    EXPECT_TRUE(child.read(kLen) == Bytes(rig.media.begin(), rig.media.begin() + kLen));
}

TEST_P(GqIpc, RefusesHandlesAndRangesThatCannotBe)
{
    OpenRig rig(GetParam(), 4096);
    gq_buffer *b = nullptr;

    Child child("gq_ipc_child", {std::to_string(kLen)});
    Bytes handle = child.read(64);
    ASSERT_EQ(handle.size(), 64u);
    for (auto [offset, len] : {std::pair<uint64_t, uint64_t>{64u << 20, 4096},
                               {0, 1ull << 40},
                               {UINT64_MAX - 100, 4096},
                               {4096, UINT64_MAX - 100}}) {
        gq_mem mem = memory(handle, offset, len);
        EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << offset << " " << len;
    }
    gq_mem mem = memory(Bytes(64, 0x77), 0, 4096);
    EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EINVAL) << "no handle at all";
    EXPECT_EQ(rig.stats().buffers, 0u);
}

INSTANTIATE_TEST_SUITE_P(Executors, GqIpc, testing::Values(kExecutors[2]),
                         [](const testing::TestParamInfo<Executor> &i) {
                             return std::string(i.param.name);
                         });

} // namespace
