// Copy kernels on a mount without a GPU: requests are refused, and leases work
// without.
#include <errno.h>
#include <unistd.h>

#include <vector>

#include <gtest/gtest.h>

#include "tests/daemon/lease_rig.h"
#include "tests/daemon/tokens.h"

namespace
{

gpunvme_ioc_copier route(const Queues &queues, const Buffer &buffer)
{
    auto arg = abi_struct<gpunvme_ioc_copier>();
    arg.lease_id = queues.told().id;
    arg.lease_key = queues.told().key;
    arg.id = buffer.id();
    arg.key = buffer.key();
    arg.addr = 4096;
    arg.media = 4096;
    return arg;
}

int call(int fd, gpunvme_ioc_copier arg)
{
    return issue(fd, GPUNVME_IOC_COPIER, &arg);
}

class CopierTest : public LeaseTest
{
};

TEST_F(CopierTest, NoneIsToldWithoutAGpuAndTheLeaseGoesOn)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Buffer buffer(fd_, kFile);
    Queues queues(fd_);
    ASSERT_EQ(queues.error(), 0);
    ASSERT_TRUE(queues.map(fd_));
    for (uint64_t key : {queues.told().key, queues.told().key + 1}) {
        gpunvme_told told;
        gpunvme_ask question = {GPUNVME_ASK_COPIER, queues.told().id, key, 0};
        int s = connect_to(info_of(fd_).socket);
        ASSERT_GE(s, 0);
        EXPECT_TRUE(ask(s, question, &told).empty());
        close(s);
    }
    EXPECT_EQ(call(fd_, route(queues, buffer)), -ENOENT) << "nobody got one";
    Extents extents(fd_);
    ASSERT_TRUE(extents.map(fd_));
    int error;
    gpunvme_ioc_buffer_iova iova = iova_of(fd_, buffer, &error);
    EXPECT_TRUE(reads(&queues, 0, extents, iova.iova, 0, kFile / 4));
}

TEST_F(CopierTest, RoutesAreForTheHolderAndForPages)
{
    ASSERT_NO_FATAL_FAILURE(start());
    Buffer buffer(fd_, kFile);
    Queues queues(fd_);
    gpunvme_ioc_copier arg = route(queues, buffer);
    arg.lease_key++;
    EXPECT_EQ(call(fd_, arg), -EACCES);
    arg = route(queues, buffer);
    arg.lease_id++;
    EXPECT_EQ(call(fd_, arg), -ENOENT);
    for (uint32_t gpunvme_ioc_copier::*field :
         {&gpunvme_ioc_copier::flags, &gpunvme_ioc_copier::reserved}) {
        arg = route(queues, buffer);
        arg.*field = 1;
        EXPECT_EQ(call(fd_, arg), -EINVAL);
    }
    for (uint64_t gpunvme_ioc_copier::*field :
         {&gpunvme_ioc_copier::addr, &gpunvme_ioc_copier::media}) {
        arg = route(queues, buffer);
        arg.*field += 512;
        EXPECT_EQ(call(fd_, arg), -EINVAL);
    }
}

TEST_F(CopierTest, NobodyHasOneWithoutTheOption)
{
    ASSERT_NO_FATAL_FAILURE(start("executor=cpu"));
    auto arg = abi_struct<gpunvme_ioc_copier>();
    EXPECT_EQ(call(fd_, arg), -EPERM);
}

} // namespace
