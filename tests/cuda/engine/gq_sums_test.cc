/* SPDX-License-Identifier: BSD-2-Clause */
// Checksums by the executor, against the definition.
#include <errno.h>

#include "tests/cuda/crc32c.h"
#include "tests/cuda/gq_file.h"
#include "tests/cuda/gq_rig.h"
#include "tests/rounds.h"

namespace
{

using GqSums = GqTest;

TEST(Crc, TheDefinitionOfTheTestIsRfc3720s)
{
    EXPECT_EQ(crc32c(reinterpret_cast<const uint8_t *>("123456789"), 9), 0xe3069283u);
}

TEST_P(GqSums, AreThoseOfTheBytes)
{
    constexpr size_t kRoom = 3u << 20, kMany = 70000; // more than a launch takes
    OpenRig rig(GetParam());
    Memory m(rig.x.kind, kRoom);
    Bytes data = random_bytes(kRoom, 5);
    m.write(0, data);
    for (size_t start : {size_t{0}, size_t{4096}, size_t{12}, size_t{4097}}) {
        gq_buffer *b = rig.add(m, start, kRoom - start);
        ASSERT_TRUE(b);
        std::vector<uint64_t> at(kMany);
        std::vector<uint32_t> sums(kMany);
        for (size_t i = 0; i < kMany; i++)
            at[i] = i * 4096 % (kRoom - start - 4096) + i / 1000;
        at.back() = kRoom - start - GQ_SUM_BYTES;
        ASSERT_EQ(gq_buffer_sums(b, at.data(), kMany, sums.data()), 0);
        for (size_t i = 0; i < kMany; i += i % 1000 < 5 || i > kMany - 5 ? 1 : 95)
            ASSERT_EQ(sums[i], crc32c(&data[start + at[i]], GQ_SUM_BYTES))
                << i << " from " << start;
        size_t whole = (kRoom - start) / GQ_SUM_BYTES;
        ASSERT_EQ(gq_buffer_range_sums(b, 0, whole, sums.data()), 0);
        for (size_t i = 0; i < whole; i += 5)
            ASSERT_EQ(sums[i], crc32c(&data[start + i * GQ_SUM_BYTES], GQ_SUM_BYTES)) << i;
        ASSERT_EQ(gq_buffer_range_sums(b, 77, 3, sums.data()), 0);
        EXPECT_EQ(sums[2], crc32c(&data[start + 77 + 2 * GQ_SUM_BYTES], GQ_SUM_BYTES));
        EXPECT_EQ(gq_buffer_range_sums(b, 0, whole + 1, sums.data()), -EINVAL);
        EXPECT_EQ(gq_buffer_range_sums(b, kRoom - start, 1, sums.data()), -EINVAL);
        EXPECT_EQ(gq_buffer_range_sums(b, 0, SIZE_MAX / 2, sums.data()), -EINVAL);
        at[7] = kRoom - start - GQ_SUM_BYTES + 1;
        EXPECT_EQ(gq_buffer_sums(b, at.data(), kMany, sums.data()), -EINVAL);
        gq_buffer_unregister(b);
    }
}

// A file of whole blocks and a hole, which ends within a block.
class PartSums : public GqTest
{
  protected:
    static constexpr uint64_t kBlock = 4096, kBlocks = 14, kEnd = kBlocks * kBlock - 700;

    void open(uint32_t lba_size)
    {
        rig_ = std::make_unique<Rig>(GetParam(), lba_size);
        rig_->cfg.reorder = true;
        rig_->open();
        uint64_t block = kBlock / lba_size;
        file_ = std::make_unique<File>(*rig_,
                                       std::vector<gq_file_extent>{{0, 40 * block},
                                                                   {6 * kBlock, GQ_LBA_ZERO},
                                                                   {9 * kBlock, 20 * block}},
                                       kEnd);
        for (uint64_t i = 0; i < kBlocks; i++) {
            uint64_t at = i < 6 ? 40 + i : 20 + i - 9;
            bool hole = i >= 6 && i < 9;
            words_[i] = hole ? 0 : crc32c(&rig_->media[at * kBlock], kBlock);
        }
    }
    void expect_words(const gq_read &r, const uint32_t *words) const
    {
        uint64_t end = std::min(r.file_offset + r.len, kEnd), first = r.file_offset / kBlock;
        bool begins = r.file_offset % kBlock != 0, ends = end % kBlock != 0;
        if (begins && ends && end / kBlock == first)
            ends = false;
        EXPECT_EQ(words[0], begins ? words_[first] : 0) << r.file_offset << "+" << r.len;
        EXPECT_EQ(words[1], ends ? words_[end / kBlock] : 0) << r.file_offset << "+" << r.len;
    }
    void read_and_compare(size_t n, uint64_t most, bool enabled = true)
    {
        std::mt19937 rng(static_cast<unsigned>(n));
        std::vector<gq_read> reads;
        for (size_t i = 0; i < n; i++) {
            uint64_t len = 1 + rng() % most, offset = rng() % kEnd;
            if (i % 5 == 0)
                offset -= offset % kBlock;
            reads.push_back({offset, rng() % (kRoom - len), len});
        }
        Memory m(rig_->x.kind, kRoom);
        gq_buffer *b = rig_->add(m, 0, kRoom);
        std::vector<uint32_t> words(2 * n, 0);
        Batch batch(b, *file_, reads);
        batch.part_sums = words.data();
        ASSERT_EQ(batch.run(*rig_), 0);
        gq_buffer_unregister(b);
        for (size_t i = 0; i < n; i++) {
            ASSERT_TRUE(batch.is_good(i)) << i;
            if (enabled && !GetParam().staged)
                ASSERT_NO_FATAL_FAILURE(expect_words(reads[i], &words[2 * i]));
            else
                ASSERT_EQ(words[2 * i] | words[2 * i + 1], 0u);
        }
    }

    static constexpr uint64_t kRoom = 1u << 20;
    std::unique_ptr<Rig> rig_;
    std::unique_ptr<File> file_;
    uint32_t words_[kBlocks] = {}; // of the blocks on the drive, also behind the end of the file
};

TEST_P(PartSums, AreThoseOfBlocksThatPiecesHaveInPart)
{
    const size_t pieces = test_rounds(200, 1000);
    for (uint32_t lba_size : {512u, 4096u}) {
        open(lba_size);
        ASSERT_EQ(gq_engine_sum_parts(rig_->e), 0);
        ASSERT_EQ(gq_engine_sum_parts(rig_->e), 0) << "again";
        for (uint64_t most : {1, 512, 4096, 9000, 30000})
            ASSERT_NO_FATAL_FAILURE(read_and_compare(pieces, most)) << most;
    }
}

TEST_P(PartSums, AreNotComputedUnlessTheEngineWasTold)
{
    open(512);
    ASSERT_NO_FATAL_FAILURE(read_and_compare(100, 700, false));
}

TEST_P(PartSums, OfLongListsAreTakenSliceBySlice)
{
    if (GetParam().lanes == 32)
        GTEST_SKIP() << "a host thread that plays 32 lanes takes too long";
    open(512);
    ASSERT_EQ(gq_engine_sum_parts(rig_->e), 0);
    ASSERT_NO_FATAL_FAILURE(read_and_compare((1u << 17) + 500, 20));
}

GQ_FOR_EXECUTORS(GqSums);
GQ_FOR_EXECUTORS(PartSums);

} // namespace
