/* SPDX-License-Identifier: BSD-2-Clause */
// READ and READV of data with checksums: what the executor reads is compared with them.
#include <errno.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/fusefs/daemon/transfer/readv_rig.h"

namespace
{

// The next lookup of checksums that a READ compares itself waits for a reset.
rig *reset_in_lookup;
std::atomic<bool> reset_was_late;
std::atomic<bool> slow_lookups;
std::atomic<uint64_t> looked_up; // counted while the look-ups are slow

void reset_meanwhile()
{
    rig *of = reset_in_lookup;
    reset_in_lookup = nullptr;
    if (!of)
        return;
    std::promise<int> result;
    std::future<int> ended = result.get_future();
    std::thread([of, r = std::move(result)]() mutable { r.set_value(rig_reset(of)); }).detach();
    reset_was_late = ended.wait_for(std::chrono::seconds(20)) != std::future_status::ready;
}

} // namespace

struct ffs_inode;
extern "C" int __real_ffs_file_sums_now(ffs_inode *inode, uint64_t offset, size_t n,
                                        uint32_t *sums);
extern "C" int __wrap_ffs_file_sums_now(ffs_inode *inode, uint64_t offset, size_t n, uint32_t *sums)
{
    reset_meanwhile();
    if (slow_lookups) {
        usleep(static_cast<useconds_t>(n * 400)); // a block of checksums takes 0.4 s
        looked_up += n;
    }
    return __real_ffs_file_sums_now(inode, offset, n, sums);
}

namespace
{

constexpr uint64_t kBlock = 4096, kWhole = kBytes - kBlock; // without the block in part
constexpr unsigned kBoth = GPUNVME_PATH_GPU | GPUNVME_PATH_BOUNCE;

class Sums : public Readv
{
  protected:
    void SetUp() override
    {
        open(with(&rig_config::data_csum, true));
        memset(buffer_.data, 0xee, kBytes);
    }
    gpunvme_ioc_rw read(uint64_t offset, uint64_t len, int expected = 0, uint32_t flags = 0)
    {
        gpunvme_ioc_rw rw = request_of(buffer_, len, flags);
        rw.file_offset = offset;
        EXPECT_EQ(rig_transfer(rig_, false, 0, &rw), expected);
        return rw;
    }
    bool buffer_is(uint64_t offset, uint64_t len) const
    {
        return memcmp(buffer_.data, &content_[offset], len) == 0;
    }
    // Commands of the executor bring a wrong bit.
    void corrupt(unsigned times) { fail(SIM_FAULT_CORRUPT, 0, 0, times); }
};

TEST_F(Sums, ValidBlocksUseOnlyTheGpuPath)
{
    EXPECT_EQ(read(0, kWhole).path, GPUNVME_PATH_GPU);
    EXPECT_TRUE(buffer_is(0, kWhole));
}

// As the drive may need one to answer the lookup.
TEST_F(Sums, AResetWaitsForNoLookup)
{
    reset_in_lookup = rig_;
    EXPECT_EQ(read(0, kWhole).path, GPUNVME_PATH_GPU);
    EXPECT_FALSE(reset_was_late);
    EXPECT_EQ(reset_in_lookup, nullptr);
    EXPECT_TRUE(buffer_is(0, kWhole));
}

// Which is moved in parts, beside lookups of the next ones.
TEST_F(Sums, AResetWaitsForNoLookupOfALongRead)
{
    const uint64_t len = 80u << 20;
    rig_buffer whole;
    ASSERT_EQ(rig_register(rig_, len, 0, &whole), 0);
    std::vector<unsigned char> bytes(len);
    for (uint64_t i = 0; i < len; i += 8)
        bytes[i + i / kBlock % 8] = static_cast<unsigned char>(i / kBlock + 1);
    ASSERT_EQ(rig_write_file(rig_, 0, bytes.data(), len), 0);
    std::swap(buffer_, whole);
    for (bool resets : {true, false}) {
        memset(buffer_.data, 0xee, len);
        reset_in_lookup = resets ? rig_ : nullptr;
        gpunvme_ioc_rw rw = read(0, len);
        EXPECT_EQ(rw.path, GPUNVME_PATH_GPU);
        EXPECT_EQ(rw.bytes, len);
        EXPECT_FALSE(reset_was_late);
        EXPECT_EQ(reset_in_lookup, nullptr);
        EXPECT_EQ(memcmp(buffer_.data, bytes.data(), len), 0);
    }
    ASSERT_EQ(rig_flip(rig_, len - kBlock + 100), 0);
    EXPECT_EQ(read(0, len, -EIO).bytes, len - kBlock);
    std::swap(buffer_, whole);
    rig_forget(&whole);
}

TEST_F(Sums, AFailedReadWaitsForOneLookup)
{
    const uint64_t len = 80u << 20;
    rig_buffer whole;
    ASSERT_EQ(rig_register(rig_, len, 0, &whole), 0);
    std::vector<unsigned char> bytes(len, 'x');
    ASSERT_EQ(rig_write_file(rig_, 0, bytes.data(), len), 0);
    std::swap(buffer_, whole);
    fail(SIM_FAULT_STATUS, 0x281 | 0x4000, 0, 100000); // unrecovered, do not retry
    slow_lookups = true;
    read(0, len, -EIO, GPUNVME_NO_FALLBACK);
    slow_lookups = false;
    EXPECT_LT(looked_up, len / kBlock / 2);
    std::swap(buffer_, whole);
    rig_forget(&whole);
}

TEST_F(Sums, PartialBlocksAlsoUseTheOrdinaryPath)
{
    for (uint64_t offset : {uint64_t{0}, uint64_t{1}, kBlock - 1, 5 * kBlock + 77})
        for (uint64_t len : {uint64_t{1}, kBlock - 1, kBlock + 1, 3 * kBlock, kBytes / 2}) {
            memset(buffer_.data, 0xee, kBytes);
            gpunvme_ioc_rw rw = read(offset, len);
            EXPECT_EQ(rw.bytes, len);
            EXPECT_TRUE(buffer_is(offset, len)) << offset << "+" << len;
            EXPECT_EQ(buffer_.data[len], 0xee);
        }
    EXPECT_EQ(read(0, kBytes).path, kBoth) << "the file ends within a block";
    EXPECT_TRUE(buffer_is(0, content_.size()));
}

TEST_F(Sums, AWrongBitOfTheGpuPathIsReadAgain)
{
    corrupt(3);
    gpunvme_ioc_rw rw = read(0, kWhole);
    EXPECT_EQ(rw.bytes, kWhole);
    EXPECT_EQ(rw.path, kBoth);
    EXPECT_TRUE(buffer_is(0, kWhole));
    EXPECT_EQ(read(0, kWhole).path, GPUNVME_PATH_GPU);
}

TEST_F(Sums, AControllerThatIsAlwaysWrongDeliversNoWrongData)
{
    corrupt(0);
    EXPECT_EQ(read(0, kWhole).bytes, kWhole);
    EXPECT_TRUE(buffer_is(0, kWhole));
    spread(200, 5000);
    gpunvme_ioc_readv v = request(200);
    EXPECT_EQ(rig_readv(rig_, 0, &v), 0);
    expect_pieces(200);
}

TEST_F(Sums, AWrongBitOnTheDriveIsAnErrorAfterTheBytesBefore)
{
    ASSERT_EQ(rig_flip(rig_, 9 * kBlock + 100), 0);
    for (uint32_t flags : {0u, GPUNVME_NO_FALLBACK}) {
        memset(buffer_.data, 0xee, kBytes);
        gpunvme_ioc_rw rw = read(kBlock, 20 * kBlock, -EIO, flags);
        EXPECT_EQ(rw.bytes, 8 * kBlock);
        EXPECT_TRUE(buffer_is(kBlock, 8 * kBlock));
    }
    ASSERT_EQ(rig_flip(rig_, 9 * kBlock + 100), 0);
    EXPECT_EQ(read(kBlock, 20 * kBlock).bytes, 20 * kBlock);
}

TEST_F(Sums, AWrongBitOnTheDriveIsThePiecesError)
{
    ASSERT_EQ(rig_flip(rig_, 9 * kBlock + 100), 0);
    for (uint64_t i = 0; i < 20; i++)
        pieces()[i] = {i * kBlock, i * kBlock, i % 2 ? 100u : static_cast<uint32_t>(kBlock), 7};
    pieces()[9].len = 50; // of the bad block, which is bad as a whole
    gpunvme_ioc_readv v = request(20);
    ASSERT_EQ(rig_readv(rig_, 0, &v), 0);
    for (uint64_t i = 0; i < 20; i++) {
        const gpunvme_piece &p = pieces()[i];
        EXPECT_EQ(p.result, i == 9 ? -EIO : expected(p)) << i;
        EXPECT_TRUE(i == 9 || holds(p)) << i;
    }
}

TEST_F(Sums, BlocksAndPartsOfBlocksThatDoNotMatchAreReadAgain)
{
    for (bool whole : {true, false}) {
        spread(500, 512);
        for (uint64_t i = 0; whole && i < 500; i++)
            pieces()[i] = {random_() % (kWhole / kBlock) * kBlock, i * kBlock, kBlock, -1};
        corrupt(9);
        for (uint32_t path : {kBoth, unsigned{GPUNVME_PATH_GPU}}) {
            gpunvme_ioc_readv v = read_batch(500);
            EXPECT_EQ(v.bytes, bytes_of(500));
            EXPECT_EQ(v.path, path) << whole;
            expect_pieces(500);
        }
    }
}

TEST_F(Sums, PiecesOfAnyAlignmentUseOnlyTheGpuPath)
{
    for (uint32_t len : {1u, 512u, 700u, 5000u, 20000u}) {
        spread(200, len);
        gpunvme_ioc_readv v = request(200);
        ASSERT_EQ(rig_readv(rig_, 0, &v), 0);
        EXPECT_EQ(v.path, GPUNVME_PATH_GPU) << len;
        expect_pieces(200);
    }
}

// The wrong bit is in the same block, but not in the bytes that were asked for.
TEST_F(Sums, AWrongBitElsewhereInABlockIsAnErrorToo)
{
    ASSERT_EQ(rig_flip(rig_, 9 * kBlock + 100), 0);
    pieces()[0] = {9 * kBlock + 200, 0, 512, 7};
    pieces()[1] = {8 * kBlock + 10, 1000, kBlock, 7}; // its end
    pieces()[2] = {10 * kBlock + 10, 9000, 512, 7};
    gpunvme_ioc_readv v = request(3);
    ASSERT_EQ(rig_readv(rig_, 0, &v), 0);
    EXPECT_EQ(pieces()[0].result, -EIO);
    EXPECT_EQ(pieces()[1].result, -EIO);
    EXPECT_EQ(pieces()[2].result, 512);
}

// Blocks that a WRITE adds to the file.
class WrittenSums : public Sums, public ::testing::WithParamInterface<bool>
{
  protected:
    void SetUp() override
    {
        rig_config config = {};
        config.data_csum = true;
        config.unreachable = GetParam();
        open(config);
        for (uint64_t i = 0; i < kBytes; i++)
            buffer_.data[i] = static_cast<unsigned char>(random_());
    }
    gpunvme_ioc_rw write(uint64_t offset, uint64_t len)
    {
        gpunvme_ioc_rw rw = request_of(buffer_, len);
        rw.file_offset = offset;
        EXPECT_EQ(rig_transfer(rig_, true, 0, &rw), 0);
        EXPECT_EQ(rw.bytes, len);
        return rw;
    }
};

TEST_P(WrittenSums, AreStoredForWholeBlocks)
{
    const uint64_t offset = kBytes + 64 * kBlock - kBytes % kBlock, len = 40 * kBlock;
    EXPECT_EQ(write(offset, len).path, GPUNVME_PATH_GPU);
    std::vector<unsigned char> written(buffer_.data, buffer_.data + len);
    EXPECT_EQ(read(offset, len).bytes, len);
    EXPECT_EQ(memcmp(buffer_.data, written.data(), len), 0);
    for (uint64_t block : {0, 17, 39}) {
        ASSERT_EQ(rig_flip(rig_, offset + block * kBlock + 5), 0);
        EXPECT_EQ(read(offset, len, -EIO).bytes, block * kBlock);
        ASSERT_EQ(rig_flip(rig_, offset + block * kBlock + 5), 0);
    }
    EXPECT_EQ(read(offset, len).bytes, len);
}

// Data that is there already loses its checksums first, and they come back later.
TEST_P(WrittenSums, OverwrittenBlocksAreReadCorrectly)
{
    write(kBlock, 20 * kBlock);
    std::vector<unsigned char> written(buffer_.data, buffer_.data + 20 * kBlock);
    EXPECT_EQ(read(kBlock, 20 * kBlock).bytes, 20 * kBlock);
    EXPECT_EQ(memcmp(buffer_.data, written.data(), written.size()), 0);
    std::vector<unsigned char> got(written.size());
    EXPECT_EQ(rig_read_file(rig_, kBlock, got.data(), got.size()), 0);
    EXPECT_EQ(got, written);
}

// The drive may have had other bytes than those of which the checksum was computed.
TEST_P(WrittenSums, ABufferThatChangesMeanwhileIsNoError)
{
    const uint64_t len = 64 * kBlock, writes = 20;
    std::atomic<bool> stop{false};
    std::thread application([&] {
        auto *data = reinterpret_cast<volatile uint64_t *>(buffer_.data);
        for (uint64_t i = 0; !stop; i++) // no value comes twice
            data[i % 64 * kBlock / sizeof(*data)] = i;
    });
    for (uint64_t i = 0; i < writes; i++)
        write(2 * kBytes + i * len, len);
    stop = true;
    application.join();
    for (uint64_t i = 0; i < writes; i++)
        EXPECT_EQ(read(2 * kBytes + i * len, len).bytes, len);
}

INSTANTIATE_TEST_SUITE_P(Ways, WrittenSums, ::testing::Bool(),
                         [](const auto &info) { return info.param ? "staged" : "reached"; });

} // namespace
