/* SPDX-License-Identifier: BSD-2-Clause */
// The ring of the trace: what remains of many records, and what their readers are told.

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "support/trace.h"
}

namespace
{

constexpr unsigned kRecords = 65536; // that the ring keeps

// Each record says the same in all its fields, so that one of two halves is seen.
void add(uint64_t n)
{
    trace(TRACE_OP, static_cast<uint32_t>(n), n, n, n, static_cast<int>(n));
}

bool is_whole(const trace_record &r)
{
    return r.kind == TRACE_OP && r.a == r.b && r.id == static_cast<uint32_t>(r.a) &&
           r.len == r.id && r.result == static_cast<int>(r.id);
}

// All records from number `next` on.
std::vector<trace_record> read_from(uint64_t next, uint64_t *lost)
{
    std::vector<trace_record> all, page(400);
    *lost = 0;
    for (unsigned n = 1; n != 0;) {
        n = trace_read(&next, page.data(), static_cast<unsigned>(page.size()), lost);
        all.insert(all.end(), page.begin(), page.begin() + n);
    }
    return all;
}

TEST(Trace, IsOffUntilItIsOpened)
{
    uint64_t next = 0, lost = 0;
    trace_record record;
    if (trace_ring)
        GTEST_SKIP() << "an earlier test has opened it";
    add(1);
    EXPECT_EQ(trace_end(), 1u);
    EXPECT_EQ(trace_read(&next, &record, 1, &lost), 0u);
}

TEST(Trace, KeepsTheLatestAndCountsWhatAReaderMissed)
{
    uint64_t lost;
    ASSERT_EQ(trace_open(), 0);
    uint64_t first = trace_end();
    for (uint64_t n = 0; n < kRecords + 1000; n++)
        add(n);
    auto records = read_from(first, &lost);
    ASSERT_EQ(records.size(), kRecords);
    EXPECT_EQ(lost, 1000u);
    EXPECT_EQ(records.front().a, 1000u);
    EXPECT_EQ(records.back().a, kRecords + 999u);
    EXPECT_EQ(read_from(0, &lost).size(), kRecords) << "0 is the oldest that there is";
    EXPECT_EQ(lost, 0u);
    EXPECT_TRUE(read_from(trace_end(), &lost).empty());
}

TEST(Trace, ReadersSeeWholeRecordsWhileThreadsAddThem)
{
    ASSERT_EQ(trace_open(), 0);
    std::atomic<bool> stop{false};
    std::vector<std::thread> writers;
    for (uint64_t t = 0; t < 3; t++) {
        writers.emplace_back([t, &stop] {
            for (uint64_t n = t; !stop; n += 3)
                add(n);
        });
    }
    size_t seen = 0, broken = 0;
    for (int round = 0; round < 20; round++) {
        uint64_t lost;
        for (const auto &r : read_from(trace_end() > 5000 ? trace_end() - 5000 : 1, &lost)) {
            seen++;
            broken += !is_whole(r);
        }
    }
    stop = true;
    for (auto &w : writers)
        w.join();
    EXPECT_EQ(broken, 0u);
    EXPECT_GT(seen, 0u);
}

} // namespace
