/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the self-test: it names the component at fault for a failed read, finds deviations of
// writes in its scratch area, and restores the content of that area.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "blockdev/data_check.h"
#include "blockdev/nvme/nvme_spec.h"

namespace
{

constexpr size_t kBytes = 2 << 20, kStart = 1 << 20, kCommand = 128 << 10, kArea = 2 * kCommand;
constexpr size_t kPage = PAGE_BYTES;

enum Deviation { kNone, kSwapsWrites, kSwapsBoth, kSkipsLast, kWritesOneMore, kLosesOnePage };

// Returns what a drive holds at first. The bytes are made once, because that
// takes long with a sanitizer.
const std::vector<uint8_t> &content()
{
    static const std::vector<uint8_t> bytes = [] {
        std::vector<uint8_t> random(kBytes);
        uint32_t seed = 1;
        for (auto &b : random)
            b = static_cast<uint8_t>((seed = seed * 1664525 + 1013904223) >> 24);
        return random;
    }();
    return bytes;
}

// Simulates a drive in memory that deviates in commands of more than `pages` pages.
struct Drive {
    bd_dev dev{};
    bd_ops ops{};
    std::vector<uint8_t> bytes = content();
    Deviation deviation = kNone;
    size_t pages = 5;
    // Writes from one on fail, or are lost with success.
    size_t writes = 0, writes_that_work = SIZE_MAX, writes_that_stay = SIZE_MAX, flushes = 0;
    int error = -EIO, flush_error = 0;
    // Reads of so many bytes and more end with an error.
    size_t read_that_fails = SIZE_MAX;
    int read_error = 0;
    uint16_t read_status = 0;

    Drive()
    {
        ops.submit = submit;
        ops.dma_alloc = [](bd_dev *, size_t) -> void * { return nullptr; };
        dev.ops = &ops;
        dev.info.bytes = kBytes;
        dev.info.lba_size = 512;
    }
    void read(bd_io &io)
    {
        if (io.len >= read_that_fails) {
            io.error = read_error;
            io.nvme_status = read_status;
            return;
        }
        auto *to = static_cast<uint8_t *>(io.buf);
        memcpy(to, &bytes[io.offset], io.len);
        if (deviation == kSwapsBoth && io.len > pages * kPage)
            std::swap_ranges(to + 4 * kPage, to + 5 * kPage, to + 5 * kPage);
    }
    void write(const bd_io &io)
    {
        uint8_t *to = &bytes[io.offset];
        bool deviates = io.len > pages * kPage;
        size_t len = io.len - (deviates && deviation == kSkipsLast ? kPage : 0);
        if (deviation == kLosesOnePage && io.len == kPage && io.offset == kStart + 7 * kPage)
            return;
        memcpy(to, io.buf, len);
        if (deviates && (deviation == kSwapsWrites || deviation == kSwapsBoth))
            std::swap_ranges(to + 4 * kPage, to + 5 * kPage, to + 5 * kPage);
        if (deviates && deviation == kWritesOneMore)
            memcpy(to + len, io.buf, kPage);
    }
    int count_and_write(const bd_io &io)
    {
        if (writes++ >= writes_that_work)
            return error;
        if (writes <= writes_that_stay)
            write(io);
        return 0;
    }
    static int submit(bd_dev *dev, bd_io *ios, size_t n)
    {
        auto *d = reinterpret_cast<Drive *>(dev);
        int err = 0;
        for (size_t i = 0; i < n; i++) {
            ios[i].error = 0;
            ios[i].nvme_status = 0;
            if (ios[i].op == BD_READ)
                d->read(ios[i]);
            else if (ios[i].op == BD_WRITE)
                ios[i].error = d->count_and_write(ios[i]);
            else
                ios[i].error = d->flushes++ ? 0 : d->flush_error;
            err = err ? err : ios[i].error;
        }
        return err;
    }
};

class DataCheck : public ::testing::Test
{
  protected:
    int check(uint64_t start = kStart)
    {
        return data_check_scratch(&d_.dev, start, kCommand, interrupted_, &why_);
    }
    int read(size_t that_fails, int error, uint16_t status)
    {
        d_.read_that_fails = that_fails;
        d_.read_error = error;
        d_.read_status = status;
        return data_check_device(&d_.dev, 0, 1 << 20, true, &why_);
    }
    bool says(const char *text) const
    {
        return std::string(why_.text).find(text) != std::string::npos;
    }
    // Returns true if a part, or all, of the device is unchanged.
    bool as_before(size_t from = 0, size_t len = kBytes) const
    {
        return memcmp(&d_.bytes[from], &content()[from], len) == 0;
    }

    Drive d_;
    bool (*interrupted_)() = nullptr;
    reason why_ = {};
};

TEST_F(DataCheck, ADeviceThatReadsCorrectlyPasses)
{
    EXPECT_EQ(read(SIZE_MAX, 0, 0), 0) << why_.text;
}

TEST_F(DataCheck, OnlyARefusalStatusIsTheControllersFault)
{
    const struct {
        int error;
        uint16_t status;
        int result;
        const char *said;
    } cases[] = {
        {-EINVAL, NVME_ERR_INVALID_FIELD, -EPROTO, "is refused by the controller"},
        {-EINVAL, 0, -EINVAL, "fails: Invalid argument"},
        {-EIO, 0x281, -EIO, "fails: "},
    };
    for (const auto &c : cases) {
        for (size_t longest : {PAGE_BYTES, 2 * PAGE_BYTES}) {
            EXPECT_EQ(read(longest, c.error, c.status), c.result) << c.said << longest;
            EXPECT_TRUE(says(c.said)) << why_.text;
        }
    }
}

// An executor has one errno for all statuses.
TEST_F(DataCheck, TheStatusTakesPrecedenceOverTheErrno)
{
    EXPECT_EQ(data_check_error(-EIO, NVME_ERR_INVALID_FIELD), -EPROTO);
    EXPECT_EQ(data_check_error(-EINVAL, 0), -EINVAL);
    EXPECT_EQ(data_check_error(0, 0), 0);
}

using Scratch = DataCheck;

TEST_F(Scratch, ACorrectDrivePassesAndKeepsItsContent)
{
    EXPECT_EQ(check(), 0) << why_.text;
    EXPECT_STREQ(why_.text, "");
    EXPECT_GT(d_.writes, 2 * kArea / kPage);
    EXPECT_EQ(d_.flushes, 1u);
    EXPECT_TRUE(as_before());
}

// The area may not exceed the device, because the longest command would not be
// tried.
TEST_F(Scratch, TheAreaMayEndWithTheDevice)
{
    EXPECT_EQ(check(kBytes - kArea), 0) << why_.text;
    EXPECT_TRUE(as_before());
    EXPECT_EQ(check(kBytes - kArea + kPage), -EINVAL);
}

TEST_F(Scratch, AnInterruptionEndsTheTestAndRestoresTheContent)
{
    interrupted_ = [] { return true; };
    EXPECT_EQ(check(), -EINTR);
    EXPECT_TRUE(says("interrupted")) << why_.text;
    EXPECT_GT(d_.writes, kArea / kPage);
    EXPECT_TRUE(as_before());
}

TEST_F(Scratch, WrongWritesAreFoundAndTheAreaIsRestored)
{
    for (Deviation deviation : {kSwapsWrites, kSkipsLast, kWritesOneMore}) {
        d_.deviation = deviation;
        EXPECT_EQ(check(), -EILSEQ) << deviation;
        EXPECT_TRUE(says("wrong data: after a write of ")) << why_.text;
        EXPECT_TRUE(as_before()) << deviation;
    }
}

// Reads of the same length would not show these swaps.
TEST_F(Scratch, PagesThatChangePlacesTwiceAreFound)
{
    d_.deviation = kSwapsBoth;
    EXPECT_EQ(check(), -EILSEQ);
    EXPECT_TRUE(says("wrong data by commands of the processor: a read of ")) << why_.text;
    EXPECT_TRUE(as_before());
}

TEST_F(Scratch, APageThatCannotBeWrittenIsFound)
{
    d_.deviation = kLosesOnePage;
    EXPECT_EQ(check(), -EILSEQ);
    EXPECT_TRUE(says("than writes of single pages wrote")) << why_.text;
    EXPECT_TRUE(as_before());
}

TEST_F(Scratch, ContentThatCannotBeRestoredIsReported)
{
    d_.writes_that_work = kArea / kPage + 3;
    EXPECT_EQ(check(), -EUCLEAN);
    EXPECT_TRUE(says("64 pages of the scratch area")) << why_.text;
    EXPECT_TRUE(says("Input/output error")) << why_.text;
    EXPECT_FALSE(as_before());
}

TEST_F(Scratch, WritesLostDuringTheRestoreAreFound)
{
    EXPECT_EQ(check(), 0) << why_.text;
    d_.writes_that_stay = d_.writes + (d_.writes - 2); // of the same test once more
    EXPECT_EQ(check(), -EUCLEAN);
    EXPECT_TRUE(says("2 pages of the scratch area")) << why_.text;
    EXPECT_FALSE(as_before());
}

TEST_F(Scratch, ARestoreThatIsNotDurableIsReported)
{
    d_.flush_error = -EIO;
    EXPECT_EQ(check(), -EIO);
    EXPECT_TRUE(says("a flush after writes of single pages at byte 1048576 of the device fails"))
        << why_.text;
    EXPECT_TRUE(as_before());
}

TEST_F(Scratch, NothingIsLostWhereNoWriteIsDone)
{
    d_.writes_that_work = 0;
    EXPECT_EQ(check(), -EIO);
    EXPECT_TRUE(says("a write of single pages at byte 1048576 of the device fails")) << why_.text;
    EXPECT_TRUE(as_before());
}

// Each further command would take the deadline.
TEST_F(Scratch, NoCommandFollowsOneThatTimesOut)
{
    d_.writes_that_work = 0;
    d_.error = -ETIMEDOUT;
    EXPECT_EQ(check(), -ETIMEDOUT);
    EXPECT_LE(d_.writes, kArea / kPage * 2);
    EXPECT_TRUE(as_before());
}

TEST_F(Scratch, NothingIsWrittenWhereThereIsNoArea)
{
    EXPECT_EQ(check(kStart + 512), -EINVAL);
    EXPECT_EQ(check(kBytes), -EINVAL);
    EXPECT_TRUE(says("no scratch area at byte 2097152 of the device")) << why_.text;
    d_.dev.info.read_only = true;
    EXPECT_EQ(check(), -EROFS);
    EXPECT_TRUE(says("write protected")) << why_.text;
    EXPECT_EQ(d_.writes, 0u);
    EXPECT_TRUE(as_before());
}

} // namespace
