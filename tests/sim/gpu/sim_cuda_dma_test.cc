/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The choice between copy kernels and the copy engine, without a device: memory
 * of the device is the host's, the engine is memcpy(), and kernels do nothing.
 */
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <vector>

extern "C" {
#include "sim/gpu/sim_copy_kernel.h"
#include "sim/gpu/sim_cuda_dma.h"
#include "sim/sim_dma_engine.h"
}
#include "tests/cuda/fake_cudart.h"

namespace
{

struct Calls {
    unsigned by_engine, by_gather, to_copy_kernel;
};
Calls calls;

const void *const kOther = &calls;

/* Never looked at: the calls are fakes. */
template <typename T> T some_handle()
{
    return reinterpret_cast<T>(&calls);
}

} // namespace

extern "C" {
/* Memory of two devices: the address says whose. */
cudaError_t __wrap_cudaPointerGetAttributes(cudaPointerAttributes *out, const void *at)
{
    *out = {};
    out->type = cudaMemoryTypeDevice;
    out->device = at == kOther ? 1 : 0;
    return cudaSuccess;
}

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int)
{
    *value = 64;
    return cudaSuccess;
}

cudaError_t __wrap_cudaEventCreateWithFlags(cudaEvent_t *event, unsigned)
{
    *event = some_handle<cudaEvent_t>();
    return cudaSuccess;
}

FAKE_CUDART_SUCCEEDS(cudaEventDestroy, cudaEvent_t)
FAKE_CUDART_SUCCEEDS(cudaEventRecord, cudaEvent_t, cudaStream_t)
FAKE_CUDART_SUCCEEDS(cudaEventQuery, cudaEvent_t)

cudaError_t __wrap_cudaMemcpyAsync(void *dst, const void *src, size_t len, cudaMemcpyKind,
                                   cudaStream_t)
{
    memcpy(dst, src, len);
    calls.by_engine++;
    return cudaSuccess;
}

cudaError_t __wrap_cudaMemcpyBatchAsync(void *const *dsts, const void *const *srcs,
                                        const size_t *lens, size_t n, cudaMemcpyAttributes *,
                                        size_t *, size_t, cudaStream_t)
{
    for (size_t i = 0; i < n; i++)
        memcpy(dsts[i], srcs[i], lens[i]);
    calls.by_engine += (unsigned)n;
    return cudaSuccess;
}

FAKE_CUDART_SUCCEEDS(sim_copy_kernel_load)

cudaError_t __wrap_sim_gather_run(const sim_gather *, uint32_t n, cudaStream_t)
{
    calls.by_gather += n;
    return cudaSuccess;
}

int __wrap_sim_copy_kernel_open(unsigned, sim_copy_kernel **out)
{
    *out = some_handle<sim_copy_kernel *>();
    return 0;
}

void __wrap_sim_copy_kernel_close(sim_copy_kernel *)
{
}

int __wrap_sim_copy_kernel_submit(sim_copy_kernel *, const sim_gather *, unsigned n,
                                  sim_copy_kernel_ticket *)
{
    calls.to_copy_kernel += n;
    return 0;
}

int __wrap_sim_copy_kernel_poll(sim_copy_kernel *, const sim_copy_kernel_ticket *)
{
    return 1;
}
}

namespace
{

using Clock = std::chrono::steady_clock;
using Bytes = std::vector<unsigned char>;

constexpr size_t kPage = 4096, kPages = 64;

class SimCudaDma : public testing::Test
{
  protected:
    SimCudaDma()
    {
        calls = {};
        ops_ = sim_cuda_dma_table(dma_);
        EXPECT_EQ(ops_->ops->open(ops_->ctx, (uint64_t)(uintptr_t)buffer_.data()), 0);
        for (size_t i = 0; i < media_.size(); i++)
            media_[i] = (unsigned char)(i % 251);
    }
    ~SimCudaDma() override { sim_cuda_dma_free(dma_); }
    /* Every second page, none adjacent, to or from the device. */
    int copy(bool to_device)
    {
        std::vector<sim_copy> copies;
        uint64_t ticket = 0;

        for (size_t i = 0; i < kPages; i += 2)
            copies.push_back({media_.data() + i * kPage,
                              (uint64_t)(uintptr_t)(buffer_.data() + i * kPage), kPage, 0});
        int rc = ops_->ops->submit(ops_->ctx, 0, to_device, copies.data(), (unsigned)copies.size(),
                                   &ticket);
        for (auto since = Clock::now(); !rc && Clock::now() - since < std::chrono::seconds(30);)
            rc = ops_->ops->poll(ops_->ctx, 0, ticket);
        return rc;
    }
    void expect_copied() const
    {
        for (size_t i = 0; i < kPages; i += 2)
            ASSERT_EQ(memcmp(&buffer_[i * kPage], &media_[i * kPage], kPage), 0) << i;
    }

    Bytes media_ = Bytes(kPages * kPage), buffer_ = Bytes(kPages * kPage);
    sim_cuda_dma *dma_ = sim_cuda_dma_new();
    const sim_dma_engine *ops_ = nullptr;
};

TEST_F(SimCudaDma, TheCopyKernelMakesSmallCopies)
{
    ASSERT_EQ(copy(true), 1);
    EXPECT_EQ(calls.to_copy_kernel, kPages / 2);
    EXPECT_EQ(calls.by_engine + calls.by_gather, 0u);
}

TEST_F(SimCudaDma, EachDeviceHasChannelsOfItsOwn)
{
    const int other = ops_->ops->open(ops_->ctx, (uint64_t)(uintptr_t)kOther);
    ASSERT_GT(other, 0);
    EXPECT_EQ(ops_->ops->open(ops_->ctx, (uint64_t)(uintptr_t)&media_[0]), 0);
    EXPECT_EQ(ops_->ops->open(ops_->ctx, (uint64_t)(uintptr_t)kOther), other);
    for (unsigned device = 0; device < 2; device++) {
        const sim_copy odd = {media_.data(), (uint64_t)(uintptr_t)&buffer_[1], kPage, 0};
        uint64_t ticket;
        fake_cudart::selected = -1;
        ASSERT_EQ(ops_->ops->submit(ops_->ctx, device * (unsigned)other * ops_->channels, true,
                                    &odd, 1, &ticket),
                  0);
        EXPECT_EQ(fake_cudart::selected, (int)device);
    }
}

/* An executor allocates on the device that its thread has selected before it maps memory. */
TEST_F(SimCudaDma, ThreadsThatMapKeepTheDeviceThatTheyHaveSelected)
{
    for (int device : {1, 0}) {
        fake_cudart::selected = device;
        EXPECT_GE(ops_->ops->open(ops_->ctx, (uint64_t)(uintptr_t)kOther), 0);
        EXPECT_EQ(fake_cudart::selected, device) << "open";
        EXPECT_EQ(ops_->ops->pin(ops_->ctx, media_.data(), media_.size()), 0);
        EXPECT_EQ(fake_cudart::selected, device) << "pin";
        ops_->ops->unpin(ops_->ctx, media_.data());
        EXPECT_EQ(fake_cudart::selected, device) << "unpin";
    }
}

} // namespace
