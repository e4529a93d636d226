/* SPDX-License-Identifier: BSD-2-Clause */
/* Transfers of every shape against a model: the bytes of the extents laid end to end. */
#include <cerrno>

#include "tests/cuda/crc32c.h"
#include "tests/cuda/gq_file.h"
#include "tests/cuda/gq_rig.h"
#include "tests/rounds.h"

namespace
{

using GqTransfer = GqTest;

void stream_of(const Rig &rig, const std::vector<Extent> &extents, Bytes *out)
{
    out->clear();
    for (const Extent &x : extents) {
        if (x.lba == GQ_LBA_ZERO) {
            out->insert(out->end(), x.bytes, 0);
            continue;
        }
        auto from = rig.media.begin() + (ptrdiff_t)(x.lba * rig.cfg.ns[0].lba_size);
        out->insert(out->end(), from, from + (ptrdiff_t)x.bytes);
    }
}

std::vector<Extent> random_extents(Rig &rig, std::mt19937 &rng, size_t n)
{
    uint64_t lbas = rig.media.size() / rig.cfg.ns[0].lba_size;
    std::vector<Extent> out;

    for (size_t i = 0; i < n; i++) {
        uint64_t len = 1 + rng() % std::min<uint64_t>(lbas / 8, 300);
        uint64_t lba = rng() % 5 == 0 ? GQ_LBA_ZERO : rng() % (lbas - len);

        out.push_back({lba, len * rig.cfg.ns[0].lba_size});
    }
    return out;
}

/* Reads random parts into random places; nothing outside the wanted bytes may change. */
void read_at_random(Rig &rig, unsigned rounds, uint32_t seed)
{
    const size_t room = 3u << 20;
    Memory m(rig.x.kind, room);
    Bytes want(room, 0xa5), stream;
    std::mt19937 rng(seed);

    for (unsigned i = 0; i < rounds; i++) {
        auto extents = random_extents(rig, rng, 1 + rng() % 6);
        stream_of(rig, extents, &stream);
        size_t skip = rng() % stream.size();
        size_t len = 1 + rng() % std::min<size_t>(stream.size() - skip, 1u << 20);
        size_t start = rng() % 9000, inside = rng() % 5000;

        m.fill(0xa5);
        gq_buffer *b = rig.add(m, start, inside + len);
        ASSERT_EQ(rig.move(GQ_READ, b, inside, extents, skip, len), 0) << "round " << i;
        gq_buffer_unregister(b);
        EXPECT_EQ(rig.result.bytes, len);
        std::copy_n(stream.begin() + (ptrdiff_t)skip, len,
                    want.begin() + (ptrdiff_t)(start + inside));
        ASSERT_TRUE(m.holds(0, want)) << "round " << i << " skip " << skip << " len " << len;
        std::fill_n(want.begin() + (ptrdiff_t)(start + inside), len, 0xa5);
    }
}

TEST_P(GqTransfer, ReadsAnyOffsetLengthAndAlignment)
{
    for (uint32_t lba_size : {512u, 4096u}) {
        OpenRig rig(GetParam(), lba_size);
        SCOPED_TRACE(lba_size);
        read_at_random(rig, 60, lba_size);
    }
}

TEST_P(GqTransfer, ReadsWithEveryTransferLimit)
{
    for (unsigned bytes : {512, 4096, 8192, 65536, 1 << 20}) {
        Rig rig(GetParam(), 512);

        /* A controller cannot say 4096 or less: there the engine's own limit is meant. */
        rig.cfg.mdts = std::max(bytes, 8192u);
        rig.opts.max_command = bytes;
        rig.cfg.reorder = true;
        rig.open();
        read_at_random(rig, 12, bytes);
    }
}

/*
 * Up to the longest command, from pages around the ends of the table's pages: no list is chained.
 */
TEST_P(GqTransfer, ListsStayInOnePageOfTheTable)
{
    Rig rig(GetParam(), 4096, 16u << 20);

    rig.cfg.mdts = 4u << 20;
    rig.open();
    Target m(rig, 9u << 20);
    for (size_t page : {0, 1, 2, 3, 255, 509, 510, 511, 512, 513, 1021, 1022}) {
        for (size_t pages : {1, 2, 3, 4, 510, 511, 512, 513, 1024}) {
            ASSERT_EQ(rig.move(GQ_READ, m, page * 4096, {{16, pages * 4096}}, 0, pages * 4096), 0);
            ASSERT_TRUE(m.holds(page * 4096, &rig.media[65536], pages * 4096))
                << "page " << page << ", " << pages << " pages";
        }
    }
}

/* Starting inside a page, a list that would leave the table's page is cut by LBAs. */
TEST_P(GqTransfer, ListsFromInsideAPageStayInOnePageOfTheTable)
{
    Rig rig(GetParam(), 512, 16u << 20);

    rig.cfg.mdts = 4u << 20;
    rig.open();
    Target m(rig, 9u << 20);
    for (size_t off : {512, 4, 4092, 2048 + 4096 * 509, 3584 + 4096 * 2}) {
        for (size_t len : {4096 * 509, 4096 * 510, 4096 * 511, 4096 * 1022, 4096 * 1022 + 512}) {
            ASSERT_EQ(rig.move(GQ_READ, m, off, {{8, len}}, 0, len), 0);
            ASSERT_TRUE(m.holds(off, &rig.media[4096], len)) << off << " " << len;
        }
    }
}

TEST_P(GqTransfer, WritesFromAnyAlignment)
{
    OpenRig rig(GetParam(), 512);
    std::mt19937 rng(3);

    Memory m(rig.x.kind, 2u << 20);
    m.write(0, random_bytes(2u << 20, 5));
    Bytes model = rig.media;
    for (unsigned i = 0; i < 40; i++) {
        uint64_t len = 512 * (1 + rng() % 1500), lba = rng() % (16384 - len / 512);
        size_t start = rng() % 5000;
        gq_buffer *b = rig.add(m, start, len);

        ASSERT_EQ(rig.move(GQ_WRITE, b, 0, {{lba, len}}, 0, len), 0);
        gq_buffer_unregister(b);
        Bytes data = m.read(start, len);
        std::copy(data.begin(), data.end(), model.begin() + (ptrdiff_t)(lba * 512));
    }
    EXPECT_TRUE(rig.peek(0, model.size()) == model);
}

TEST_P(GqTransfer, SpansThousandsOfExtents)
{
    OpenRig rig(GetParam(), 512);
    std::vector<Extent> extents;

    for (uint64_t i = 0; i < 10000; i++)
        extents.push_back({i % 3 == 2 ? GQ_LBA_ZERO : (i * 7919) % 16384, 512});
    Target m(rig, 10000 * 512);
    ASSERT_EQ(rig.move(GQ_READ, m, 0, extents, 0, 10000 * 512), 0);
    Bytes want;
    stream_of(rig, extents, &want);
    EXPECT_TRUE(m.holds(0, want));
    EXPECT_EQ(rig.result.commands, 6667u);
}

TEST_P(GqTransfer, ZeroExtentsSendNoCommand)
{
    OpenRig rig(GetParam());
    Memory m(rig.x.kind, 4u << 20);
    gq_buffer *b = rig.add(m, 1, (4u << 20) - 2);
    ASSERT_EQ(rig.move(GQ_READ, b, 0, {{GQ_LBA_ZERO, 4u << 20}}, 5, 3u << 20), 0);
    EXPECT_EQ(rig.result.commands, 0u);
    EXPECT_TRUE(m.read(1, 3u << 20) == Bytes(3u << 20, 0));
    EXPECT_EQ(m.read(0, 1)[0], 0xa5);
    EXPECT_EQ(m.read(1 + (3u << 20), 1)[0], 0xa5);
    gq_buffer_unregister(b);
}

TEST_P(GqTransfer, AlignedReadNeedsNoStagingAndFewCommands)
{
    OpenRig rig(GetParam(), 4096);
    Target m(rig, 4u << 20);
    ASSERT_EQ(rig.move(GQ_READ, m, 0, {{0, 4u << 20}}, 0, 4u << 20), 0);
    /* Staged, commands are cut as staging has room. */
    EXPECT_LE(rig.result.commands, rig.x.staged ? (4u << 20) / 4096 : 7u);
    EXPECT_EQ(rig.result.staged, rig.x.staged);
    EXPECT_EQ(rig.stats().staged_read, rig.x.staged ? 4u << 20 : 0u);
    EXPECT_TRUE(m.holds(0, rig.media.data(), 4u << 20));
}

/* Where it is staged, too; extents and the file's offset are not multiples of a command. */
TEST_P(GqTransfer, ALongOneHasFewCommands)
{
    constexpr size_t kSkip = 4096, kLen = 16u << 20;
    Rig rig(GetParam(), 512, 32u << 20);
    std::vector<Extent> extents = {
        {0, 3u << 20}, {20000, 5120 * 512}, {10000, 512}, {26048, 12u << 20}};
    Bytes data = random_bytes(kLen, 21), want(rig.media);

    rig.open();
    Target m(rig, kLen);
    m.write(0, data);
    ASSERT_EQ(rig.move(GQ_WRITE, m, 0, extents, kSkip, kLen), 0);
    EXPECT_EQ(rig.result.bytes, kLen);
    EXPECT_LE(rig.result.commands, kLen / (64u << 10) + 2 * extents.size());
    size_t done = 0, skip = kSkip;
    for (const Extent &x : extents) {
        size_t n = std::min<size_t>(x.bytes - skip, kLen - done);

        std::copy_n(data.begin() + (ptrdiff_t)done, n,
                    want.begin() + (ptrdiff_t)(x.lba * 512 + skip));
        done += n;
        skip = 0;
    }
    EXPECT_EQ(done, kLen);
    EXPECT_TRUE(rig.peek(0, want.size()) == want) << "and nothing beside it";
    m.fill(0);
    ASSERT_EQ(rig.move(GQ_READ, m, 0, extents, kSkip, kLen), 0);
    EXPECT_LE(rig.result.commands, kLen / (64u << 10) + 2 * extents.size());
    EXPECT_TRUE(m.holds(0, data));
}

TEST_P(GqTransfer, RefusesWhatCannotBe)
{
    OpenRig rig(GetParam());
    Target m(rig, 8192);
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 1000}}, 0, 512), -EINVAL) << "not whole LBAs";
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 0}}, 0, 0), -EINVAL) << "empty extent";
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{16384, 512}}, 0, 512), -EINVAL) << "past the end";
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{UINT64_MAX - 1, 512}}, 0, 512), -EINVAL) << "LBA overflow";
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 8192}}, 512, 8192), -EINVAL) << "past the extents";
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {{0, 4096}, {8, UINT64_MAX - 511}}, 0, 512), -EINVAL)
        << "not ascending";
    gq_file_extent second = {4096, 8};
    gq_request before = {GQ_READ, m, 0, 0, 512, &second, 1, 8192, 0, nullptr, nullptr};
    EXPECT_EQ(gq_transfer(rig.e, &before, &rig.result), -EINVAL) << "before the extents";
    gq_file_extent odd = {100, 8};
    gq_request inside = {GQ_WRITE, m, 0, 612, 512, &odd, 1, 8292, 0, nullptr, nullptr};
    EXPECT_EQ(gq_transfer(rig.e, &inside, &rig.result), -EINVAL) << "units are cut at file offsets";
    EXPECT_EQ(rig.move(GQ_READ, m, 1, {{0, 8192}}, 0, 8192), -EINVAL) << "past the buffer";
    EXPECT_EQ(rig.move(GQ_READ, m, UINT64_MAX, {{0, 8192}}, 0, 8192), -EINVAL) << "overflow";
    EXPECT_EQ(rig.move(GQ_WRITE, m, 0, {{0, 8192}}, 0, 100), -EINVAL) << "part of an LBA";
    EXPECT_EQ(rig.move(GQ_WRITE, m, 0, {{GQ_LBA_ZERO, 512}}, 0, 512), -EINVAL) << "hole";
    EXPECT_EQ(rig.move(GQ_READ, m, 0, {}, 0, 0), 0) << "nothing is nothing";
    EXPECT_EQ(rig.stats().commands, 0u);
}

TEST_P(GqTransfer, PutAndGetStayInsideTheBuffer)
{
    OpenRig rig(GetParam());
    Bytes data = random_bytes(3000, 9), back(3000);

    Memory m(rig.x.kind, 16384);
    gq_buffer *b = rig.add(m, 4000, 5001);
    EXPECT_EQ(gq_buffer_put(b, 1500, data.data(), data.size()), 0);
    EXPECT_EQ(gq_buffer_get(b, 1500, back.data(), back.size()), 0);
    EXPECT_TRUE(back == data);
    EXPECT_EQ(m.read(5499, 1)[0], 0xa5);
    EXPECT_EQ(m.read(8500, 1)[0], 0xa5);
    EXPECT_EQ(gq_buffer_put(b, 2002, data.data(), 3000), -EINVAL);
    EXPECT_EQ(gq_buffer_get(b, UINT64_MAX, back.data(), 2), -EINVAL);
    gq_buffer_unregister(b);
}

GQ_FOR_EXECUTORS(GqTransfer);

// --- Checksums by the executor, against the definition -------------------------------------------

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
