/* SPDX-License-Identifier: BSD-2-Clause */
/* Waiting for a run, without a device: what CUDA answers, and kernels store, is made up here. */
#include <cuda_runtime_api.h>
#include <functional>
#include <gtest/gtest.h>
#include <memory>

extern "C" {
#include "cuda/exec_cuda/gq_cuda_int.h"
}
#include "cuda/exec_cuda/gq_kernels.h"

namespace
{

std::function<cudaError_t()> query;
unsigned queries, moves;

} // namespace

extern "C" cudaError_t __wrap_cudaStreamQuery(cudaStream_t)
{
    queries++;
    return query();
}

extern "C" cudaError_t __wrap_gq_kernel_copies(const gq_copy *, uint32_t, const uint32_t *,
                                               cudaStream_t)
{
    moves++;
    return cudaSuccess;
}

namespace
{

class GqCudaWait : public testing::Test
{
  protected:
    GqCudaWait()
    {
        queries = moves = 0;
        cu->runs[0].flags = &flags;
        l.states = &state;
        l.run.n_queues = 1;
        l.run.command_ns = 60000000000u;
        chunk.n_cmds = chunk.n_copies = 1;
    }

    int wait()
    {
        return gq_cuda_wait_run(cu.get(), &l, &chunk);
    }

    std::unique_ptr<gq_cuda> cu = std::make_unique<gq_cuda>();
    uint32_t flags = 0;
    gq_state state = {};
    gq_launch l = {};
    gq_chunk chunk = {};
};

TEST_F(GqCudaWait, MovesTheCopiesOfAReadWhenItsQueuesHaveEnded)
{
    state.outcome = GQ_OUT_DONE;
    query = [] {
        EXPECT_EQ(moves, 1u);
        return queries < 3 ? cudaErrorNotReady : cudaSuccess;
    };
    EXPECT_EQ(wait(), 0);
    EXPECT_EQ(moves, 1u);
    EXPECT_EQ(queries, 3u) << "the copies are waited for";
}

/* The wait polls the queues, and then queries CUDA: the kernel ends in between. */
TEST_F(GqCudaWait, MovesTheCopiesOfAKernelThatEndsBetweenTwoLooks)
{
    query = [this] {
        state.outcome = GQ_OUT_DONE;
        return cudaSuccess;
    };
    EXPECT_EQ(wait(), 0);
    EXPECT_EQ(moves, 1u);
}

TEST_F(GqCudaWait, MovesNothingBehindKernelsThatWereNotLaunched)
{
    query = [] { return cudaSuccess; };
    EXPECT_EQ(wait(), 0);
    EXPECT_EQ(moves, 0u);
}

TEST_F(GqCudaWait, LeavesTheCopiesOfAWriteInFrontOfItsCommands)
{
    l.is_write = true;
    state.outcome = GQ_OUT_DONE;
    query = [] { return cudaErrorNotReady; };
    EXPECT_EQ(wait(), 0);
    EXPECT_EQ(moves, 0u);
    EXPECT_EQ(queries, 0u);
}

TEST_F(GqCudaWait, LeavesTheCopyOfTheOnlyCommandToThePersistentKernel)
{
    l.persistent = true;
    state.outcome = GQ_OUT_DONE;
    query = [] { return cudaErrorNotReady; };
    EXPECT_EQ(wait(), 0);
    EXPECT_EQ(moves, 0u);
    EXPECT_EQ(queries, 0u);
}

TEST_F(GqCudaWait, TellsOfAKernelThatFaulted)
{
    query = [] { return cudaErrorLaunchFailure; };
    EXPECT_EQ(wait(), -EIO);
    EXPECT_EQ(moves, 0u);
}

} // namespace
