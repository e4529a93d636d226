/* SPDX-License-Identifier: BSD-2-Clause */
// The block that stays, with a controller behind its queues, for the suites of its commands.
#ifndef TESTS_CLIENT_LIB_SERVICE_BLOCK_H
#define TESTS_CLIENT_LIB_SERVICE_BLOCK_H

#include <thread>

#include <gtest/gtest.h>

#include "tests/client/lib/direct_stack.h"

extern "C" {
#include "tests/client/lib/service_rig.h"
}

namespace service_block
{

using direct_stack::kLba;
using direct_stack::kPage;
using direct_stack::kPages;
using direct_stack::Stack;

constexpr uint32_t kDepth = 4;
constexpr uint32_t kFree = 0;
constexpr uint64_t kMs = 1000000, kHold = 10 * kMs, kServe = 100 * kMs;
constexpr int64_t kWhole = kPage;

// Goes before the queues that it drives.
class Block
{
  public:
    Block()
    {
        EXPECT_EQ(service_rig_open(10000 * kMs, &rig_), 0);
    }
    ~Block()
    {
        rig_->stopped_ns = 0;
        service_rig_close(rig_);
    }
    // To page `page` of the stack's memory.
    int64_t read(Stack &s, size_t page, uint64_t offset)
    {
        return read(s, s.file, page, offset);
    }
    int64_t read(Stack &s, const gpunvme_device_file &file, size_t page, uint64_t offset,
                 uint64_t len = kPage)
    {
        gd_buffer b = s.buffer();
        return service_rig_command(&file, &b, page * kPage - 64, len, offset);
    }
    // To byte `at` of the stack's memory.
    int64_t read_at(Stack &s, size_t at, uint64_t len, uint64_t offset)
    {
        gd_buffer b = s.buffer();
        return service_rig_command(&s.file, &b, at - 64, len, offset);
    }
    // A request that is no command is served from its own fields.
    int64_t read_otherwise(uint64_t len, uint64_t offset)
    {
        return service_rig_read(len, offset);
    }
    unsigned others() const
    {
        return rig_->reads;
    }
    // A block whose clock stands never leaves.
    void stop_clock(uint64_t later_ns = 0)
    {
        service_rig_stop_clock(rig_, later_ns);
    }
    void await_look_at_clock() const
    {
        unsigned polls = rig_->clock_polls;
        while (rig_->clock_polls < polls + 2) // one may have begun before
            std::this_thread::yield();
    }
    bool has_left() const
    {
        return service_rig_has_left();
    }
    void await_leaving() const
    {
        while (!has_left())
            std::this_thread::yield();
    }
    void leave()
    {
        rig_->stopped_ns = 0;
        await_leaving();
    }
    unsigned launches() const
    {
        return rig_->launches;
    }

  private:
    struct service_rig *rig_ = nullptr;
};

// The pages of the file's first two extents: no hole.
inline uint64_t page_of(unsigned i)
{
    return i % 5 * kPage;
}

} // namespace service_block

#endif
