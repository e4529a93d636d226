/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The daemon's copy kernel without a device: results of CUDA and counts of the
 * kernel are fakes.
 */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "sim/gpu/sim_copy_kernel.h"
#include "tests/cuda/fake_cudart.h"

namespace
{

constexpr unsigned kBlocks = 2, kPolls = 64, kManyPolls = 10000;
constexpr sim_gather kCopy = {uint64_t{1} << 20, uint64_t{1} << 21, 4096};

cudaError_t launch_result, stream_result;
unsigned launches;
uint32_t launched[kBlocks]; /* number of the last launch */

sim_copy_slots &slots()
{
    return *static_cast<sim_copy_slots *>(fake_cudart::allocated);
}

} // namespace

extern "C" {
cudaError_t __wrap_cudaStreamQuery(cudaStream_t)
{
    return stream_result;
}

cudaError_t __wrap_sim_copy_kernel_run(const sim_copy_kernel_launch *l, unsigned blocks,
                                       cudaStream_t)
{
    launches++;
    for (unsigned b = 0; b < blocks && launch_result == cudaSuccess; b++)
        launched[b] = l->launch[b] ? l->launch[b] : launched[b];
    return launch_result;
}
}

namespace
{

class SimCopyKernel : public testing::Test
{
  protected:
    void SetUp() override
    {
        launches = 0;
        launch_result = stream_result = cudaSuccess;
        ASSERT_EQ(sim_copy_kernel_open(kBlocks, &copy_kernel_), 0);
    }
    void TearDown() override { sim_copy_kernel_close(copy_kernel_); }
    int submit() { return sim_copy_kernel_submit(copy_kernel_, &kCopy, 1, &ticket_); }
    // Polls as often as a check of the streams takes. Returns the last result.
    int poll() const
    {
        int rc = 0;
        for (unsigned i = 0; i < kPolls && rc == 0; i++)
            rc = sim_copy_kernel_poll(copy_kernel_, &ticket_);
        return rc;
    }
    // Counts all batches as copied by the kernel.
    void count_all() const { memcpy(slots().done.of, ticket_.need, sizeof(ticket_.need)); }
    // Stores the end of the kernel.
    static void leave() { memcpy(slots().ended.of, launched, sizeof(launched)); }

    sim_copy_kernel *copy_kernel_ = nullptr;
    sim_copy_kernel_ticket ticket_ = {};
};

TEST_F(SimCopyKernel, IsLaunchedForWorkAndAgainAfterItsEnd)
{
    for (unsigned i = 1; i <= 3; i++) {
        ASSERT_EQ(submit(), 0);
        EXPECT_EQ(launches, i);
        EXPECT_EQ(poll(), 0) << "it is not done";
        count_all();
        EXPECT_EQ(poll(), 1);
        leave();
    }
}

TEST_F(SimCopyKernel, AWaitDetectsAnEndWithWorkLeft)
{
    ASSERT_EQ(submit(), 0);
    leave();
    EXPECT_EQ(poll(), 0);
    EXPECT_EQ(launches, 2u);
    count_all();
    EXPECT_EQ(poll(), 1);
}

TEST_F(SimCopyKernel, AFailedLaunchFailsPendingAndLaterCopies)
{
    launch_result = cudaErrorLaunchOutOfResources;
    ASSERT_EQ(submit(), 0) << "a wait reports it";
    EXPECT_EQ(poll(), -EIO);
    launch_result = cudaSuccess;
    EXPECT_EQ(poll(), -EIO);
    EXPECT_EQ(submit(), -EIO);
    EXPECT_EQ(launches, 1u) << "what was posted must not be copied any more";
}

TEST_F(SimCopyKernel, AFailedLaunchKeepsCopiesThatAKernelHasTaken)
{
    sim_copy_kernel_ticket first;

    ASSERT_EQ(submit(), 0);
    first = ticket_;
    slots().ended.of[1] = launched[1]; // block 0 keeps running
    launch_result = cudaErrorLaunchOutOfResources;
    ASSERT_EQ(submit(), 0);
    EXPECT_EQ(poll(), 0) << "some of it may be copied yet";
    slots().done.of[0] = ticket_.need[0];
    EXPECT_EQ(sim_copy_kernel_poll(copy_kernel_, &first), 1);
    EXPECT_EQ(poll(), -EIO);
}

TEST_F(SimCopyKernel, AWaitForCopiesOrRoomDetectsAFault)
{
    int rc;

    do
        rc = submit();
    while (rc == 0);
    EXPECT_EQ(rc, -EAGAIN);
    stream_result = cudaErrorIllegalAddress;
    for (unsigned i = 0; i < kManyPolls && rc == -EAGAIN; i++)
        rc = submit();
    EXPECT_EQ(rc, -EIO);
    EXPECT_EQ(sim_copy_kernel_poll(copy_kernel_, &ticket_), -EIO);
}

} // namespace
