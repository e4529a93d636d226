/* SPDX-License-Identifier: BSD-2-Clause */
/* Waiting for a run, without a device: what CUDA answers, and kernels store, is made up here. */
#include <cuda_runtime_api.h>
#include <functional>
#include <gtest/gtest.h>
#include <memory>

extern "C" {
#include "cuda/exec_cuda/gq_cuda_int.h"
}

namespace
{

std::function<cudaError_t()> query;
unsigned queries;

} // namespace

extern "C" cudaError_t __wrap_cudaStreamQuery(cudaStream_t)
{
    queries++;
    return query();
}

namespace
{

class GqCudaWait : public testing::Test
{
  protected:
    GqCudaWait()
    {
        queries = 0;
        cu->gate = &gate;
        cu->runs[0].flags = &flags;
        l.states = &state;
        l.run.n_queues = 1;
        l.run.command_ns = 60000000000u;
    }

    int wait() { return gq_cuda_wait_run(cu.get(), &l); }

    gq_gate gate = {};
    std::unique_ptr<gq_cuda> cu = std::make_unique<gq_cuda>();
    uint32_t flags = 0;
    gq_state state = {};
    gq_launch l = {};
};

TEST_F(GqCudaWait, EndsWithTheQueuesOfTheRun)
{
    for (bool persistent : {false, true}) {
        l.persistent = persistent;
        state.outcome = GQ_OUT_DONE;
        query = [] { return cudaErrorNotReady; };
        EXPECT_EQ(wait(), 0);
        EXPECT_EQ(queries, 0u) << "CUDA is not asked";
    }
}

/* The kernel was not launched, or has ended between the two looks. */
TEST_F(GqCudaWait, EndsWhenTheStreamIsEmpty)
{
    query = [] { return queries < 3 ? cudaErrorNotReady : cudaSuccess; };
    EXPECT_EQ(wait(), 0);
    EXPECT_EQ(queries, 3u);
}

TEST_F(GqCudaWait, ReportsAFaultedKernel)
{
    query = [] { return cudaErrorLaunchFailure; };
    EXPECT_EQ(wait(), -EIO);
}

} // namespace
