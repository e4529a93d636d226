/* SPDX-License-Identifier: BSD-2-Clause */
/* Lists for the persistent kernel, without a device: the test launches, takes lists, and leaves. */
#include <cerrno>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>

extern "C" {
#include "cuda/exec_cuda/gq_persistent.h"
}
#include "tests/cuda/fake_cudart.h"

namespace
{

std::function<cudaError_t(const gq_service_launch &)> launch;

} // namespace

extern "C" {

cudaError_t __wrap_gq_persistent_launch(const struct gq_persistent_launch *l, cudaStream_t)
{
    return launch(l->service);
}
cudaError_t __wrap_cudaMalloc(void **out, size_t len)
{
    return __wrap_cudaHostAlloc(out, len, 0);
}
cudaError_t __wrap_cudaFree(void *p)
{
    return __wrap_cudaFreeHost(p);
}
cudaError_t __wrap_cudaMemset(void *p, int byte, size_t len)
{
    memset(p, byte, len);
    return cudaSuccess;
}
cudaError_t __wrap_cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = *greatest = 0;
    return cudaSuccess;
}
cudaError_t __wrap_cudaStreamCreateWithPriority(cudaStream_t *out, unsigned, int)
{
    *out = nullptr;
    return cudaSuccess;
}
}

namespace
{

// A List is posted by one thread, which waits for its end.
struct List {
    List()
    {
        l.list = &list;
        l.states = &state;
    }
    gq_list list = {};
    gq_state state = {};
    gq_launch l = {};
    int slot = -1;
};

class GqPersistent : public testing::Test
{
  protected:
    void SetUp() override
    {
        launch = [this](const gq_service_launch &l) { return begin(l); };
        ASSERT_EQ(gq_persistent_open(&persistent_), 0);
    }
    void TearDown() override { gq_persistent_close(persistent_); }
    int post(List &list) { return list.slot = gq_persistent_post(persistent_, &list.l, &port_); }
    int keep(const List &list) { return gq_persistent_keep(persistent_, list.slot); }
    // The blocks of a launch begin.
    cudaError_t begin(const gq_service_launch &l)
    {
        memory_ = l.memory;
        number_ = l.number;
        for (uint32_t i = 0; i < l.slots; i++)
            memory_->slots[i].started = l.number;
        return cudaSuccess;
    }
    // The blocks leave without having taken anything.
    void leave() { memory_->ended[0] = number_; }
    bool has_item(int slot) const { return memory_->slots[slot].words[0] >> 32 != 0; }
    // Launches a kernel with two blocks, one for each of the lists, which it does not take.
    void post_two(List &a, List &b)
    {
        ASSERT_EQ(post(a), 0);
        ASSERT_EQ(post(b), -EBUSY);
        leave();
        ASSERT_EQ(keep(a), 0);
        ASSERT_EQ(post(b), 1);
        leave();
    }

    gq_persistent *persistent_ = nullptr;
    gq_port port_ = {};
    gq_service_memory *memory_ = nullptr;
    uint32_t number_ = 0;
};

// The caller of the list reuses its queue and its memory after the error.
TEST_F(GqPersistent, AListWhoseLaunchFailedIsTakenByNoOtherLaunch)
{
    List a, b;
    unsigned begun = 0;
    ASSERT_NO_FATAL_FAILURE(post_two(a, b));
    launch = [](const gq_service_launch &) { return cudaErrorLaunchOutOfResources; };
    EXPECT_EQ(keep(a), -EIO);
    launch = [&](const gq_service_launch &l) {
        EXPECT_FALSE(has_item(a.slot));
        EXPECT_TRUE(has_item(b.slot));
        begun++;
        return begin(l);
    };
    EXPECT_EQ(keep(b), 0);
    EXPECT_EQ(begun, 1u);
    List c;
    EXPECT_EQ(post(c), 0) << "the slot is free";
    gq_persistent_done(persistent_, c.slot);
    gq_persistent_done(persistent_, b.slot);
}

TEST_F(GqPersistent, APostWhoseLaunchFailedLeavesTheSlotFree)
{
    List a;
    for (unsigned i = 0; i < 2; i++) {
        launch = [this](const gq_service_launch &l) {
            memory_ = l.memory;
            return cudaErrorLaunchOutOfResources;
        };
        EXPECT_EQ(post(a), -EIO);
        EXPECT_FALSE(has_item(0));
    }
    launch = [this](const gq_service_launch &l) { return begin(l); };
    EXPECT_EQ(post(a), 0);
    gq_persistent_done(persistent_, a.slot);
}

// Another thread has launched the kernel that served the list, before its own launch fails.
TEST_F(GqPersistent, AListThatHasEndedMeanwhileIsNoError)
{
    List a;
    ASSERT_EQ(post(a), 0);
    leave();
    launch = [&](const gq_service_launch &) {
        a.state.outcome = GQ_OUT_DONE;
        return cudaErrorLaunchOutOfResources;
    };
    EXPECT_EQ(keep(a), 0);
    gq_persistent_done(persistent_, a.slot);
}

} // namespace
