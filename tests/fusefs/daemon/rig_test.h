/* SPDX-License-Identifier: BSD-2-Clause */
// Opens the rig of daemon_rig.h for each test.
#ifndef TESTS_DAEMON_RIG_TEST_H
#define TESTS_DAEMON_RIG_TEST_H

#include <chrono>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/e2e/content.h"
#include "tests/fusefs/daemon/daemon_rig.h"

constexpr uint8_t kRead = 2, kWrite = 1;                                            // opcodes
constexpr uint16_t kUnrecoveredRead = 0x281, kWriteFault = 0x280, kNotReady = 0x82; // statuses

// Returns the defaults, or another configuration, with one field changed.
template <typename T, typename V>
rig_config with(T rig_config::*field, V value, rig_config config = {})
{
    config.*field = static_cast<T>(value);
    return config;
}

class RigTest : public ::testing::Test
{
  protected:
    void open_rig(const rig_config &config = {}) { ASSERT_EQ(rig_open(&config, &rig_), 0); }
    void TearDown() override
    {
        rig_forget(&buffer_);
        if (rig_) {
            EXPECT_EQ(rig_close(rig_), 0);
        }
    }
    // Fills the file with bytes that the test knows.
    void write_content(uint64_t bytes)
    {
        content_.resize(bytes);
        content_fill(31, 0, content_.data(), bytes);
        ASSERT_EQ(rig_write_file(rig_, 0, content_.data(), bytes), 0);
    }
    // Returns how many reads the drive has served.
    uint64_t reads()
    {
        sim_stats now = {};
        sim_get_stats(rig_sim(rig_), &now);
        return now.reads;
    }
    // Waits until the drive has served more reads than that.
    void await_read(uint64_t before)
    {
        for (int i = 0; i < 20000 && reads() <= before; i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // Returns a transfer of the first bytes of the file and of the buffer.
    static gpunvme_ioc_rw request_of(const rig_buffer &b, uint64_t len, uint32_t flags = 0)
    {
        gpunvme_ioc_rw rw = {};
        rw.flags = flags;
        rw.id = b.id;
        rw.key = b.key;
        rw.len = len;
        return rw;
    }
    // Returns a READV of the first `count` pieces of a list.
    static gpunvme_ioc_readv list_of(const rig_buffer &b, const rig_buffer &list, uint64_t count,
                                     uint32_t flags = 0)
    {
        gpunvme_ioc_readv v = {};
        v.flags = flags;
        v.id = b.id;
        v.key = b.key;
        v.list_id = list.id;
        v.list_key = list.key;
        v.count = count;
        return v;
    }

    rig *rig_ = nullptr;
    rig_buffer buffer_ = {};
    std::vector<unsigned char> content_;
};

#endif
