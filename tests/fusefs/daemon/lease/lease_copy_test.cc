/* SPDX-License-Identifier: BSD-2-Clause */
// Copy kernels on a mount without a GPU: requests are refused, and leases work
// without.
#include <errno.h>
#include <unistd.h>

#include <vector>

#include <gtest/gtest.h>

#include "sim/gpu/sim_copy_ioctl.h"
#include "tests/fusefs/daemon/lease/lease_rig.h"
#include "tests/fusefs/daemon/tokens.h"

namespace
{

gpunvme_ioc_copy_kernel window(const Queues &queues, const Buffer &buffer)
{
    auto arg = abi_struct<gpunvme_ioc_copy_kernel>();
    arg.lease_id = queues.reply().id;
    arg.lease_key = queues.reply().key;
    arg.id = buffer.id();
    arg.key = buffer.key();
    arg.addr = 4096;
    arg.media = 4096;
    return arg;
}

int call(int fd, gpunvme_ioc_copy_kernel arg)
{
    return issue(fd, GPUNVME_IOC_COPY_KERNEL, &arg);
}

class CopyKernelTest : public LeaseTest
{
};

TEST_F(CopyKernelTest, NoneIsToldWithoutAGpuAndTheLeaseGoesOn)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Buffer buffer(fd_, kFile);
    Queues queues(fd_);
    ASSERT_EQ(queues.error(), 0);
    ASSERT_TRUE(queues.map(fd_));
    for (uint64_t key : {queues.reply().key, queues.reply().key + 1}) {
        gpunvme_reply reply;
        gpunvme_request question = {GPUNVME_ASK_COPY_KERNEL, queues.reply().id, key, 0};
        int s = connect_mount(fd_);
        ASSERT_GE(s, 0);
        EXPECT_TRUE(request(s, question, &reply).empty());
        close(s);
    }
    EXPECT_EQ(call(fd_, window(queues, buffer)), -ENOENT) << "no copy kernel was opened";
    Extents extents(fd_);
    ASSERT_TRUE(extents.map(fd_));
    int error;
    gpunvme_ioc_buffer_iova iova = iova_of(fd_, buffer, &error);
    EXPECT_TRUE(reads(&queues, 0, extents, iova.iova, 0, kFile / 4));
}

TEST_F(CopyKernelTest, RoutesAreForTheHolderAndForPages)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Buffer buffer(fd_, kFile);
    Queues queues(fd_);
    gpunvme_ioc_copy_kernel arg = window(queues, buffer);
    arg.lease_key++;
    EXPECT_EQ(call(fd_, arg), -EACCES);
    arg = window(queues, buffer);
    arg.lease_id++;
    EXPECT_EQ(call(fd_, arg), -ENOENT);
    for (uint32_t gpunvme_ioc_copy_kernel::*field :
         {&gpunvme_ioc_copy_kernel::flags, &gpunvme_ioc_copy_kernel::reserved}) {
        arg = window(queues, buffer);
        arg.*field = 1;
        EXPECT_EQ(call(fd_, arg), -EINVAL);
    }
    for (uint64_t gpunvme_ioc_copy_kernel::*field :
         {&gpunvme_ioc_copy_kernel::addr, &gpunvme_ioc_copy_kernel::media}) {
        arg = window(queues, buffer);
        arg.*field += 512;
        EXPECT_EQ(call(fd_, arg), -EINVAL);
    }
}

TEST_F(CopyKernelTest, NobodyHasOneWithoutTheOption)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu"));
    auto arg = abi_struct<gpunvme_ioc_copy_kernel>();
    EXPECT_EQ(call(fd_, arg), -EPERM);
}

} // namespace
