/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The reader of the log: which commit is the newest, which transactions count, and which images the
 * caller gets.
 */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <vector>

#include "layout/log_reader.h"
#include "tests/layout/objects.h"

namespace
{

constexpr uint64_t RING = 16; // blocks of the log
constexpr uint64_t HOME = LAY_ADDR(LAY_KIND_CHUNK, 5000);
constexpr uint64_t NOWHERE = UINT64_MAX;

struct Found {
    uint64_t addr, pos;
    bool operator==(const Found &o) const { return addr == o.addr && pos == o.pos; }
};

struct Lack {
    uint64_t pos;
    unsigned log;
    bool operator==(const Lack &o) const { return pos == o.pos && log == o.log; }
};

lay_incarnation incarnation(uint64_t counter, uint64_t id = 0x77)
{
    return {lay_put64(counter), lay_put64(id)};
}

/* A log in memory: a writer that makes transactions, and the calls of a reader. */
struct Ring {
    lay_geometry geo;
    std::vector<lay_block> blocks = std::vector<lay_block>(RING);
    std::vector<lay_block> copy; // the second log, if there is one
    uint64_t pos = 0, first = 0, tid = OBJECT_TID;
    uint64_t tail_tid = OBJECT_TID, tail_pos = 0;
    lay_incarnation by = incarnation(3);
    uint32_t chain = 0, super_age = 55;
    lay_log log;
    std::vector<Found> images;
    std::vector<Lack> lacks;
    uint64_t reads = 0, unreadable = NOWHERE, missing = NOWHERE;
    uint64_t missing_after = 0; // so many reads of any block
    int image_error = 0;

    Ring()
    {
        geo = object_geometry();
        geo.log_blocks = RING;
    }

    // From here on there is a second log, equal to the first one.
    void duplicate()
    {
        copy = blocks;
        geo.log_copy = 3000;
    }

    lay_block &at(uint64_t p) { return blocks[p]; }

    lay_block &start(uint32_t magic)
    {
        lay_log_init(&at(pos), magic, &geo, &by, pos);
        return at(pos);
    }

    void step() { pos = lay_log_after(&geo, pos); }

    /* A descriptor with n images, of the blocks from `home` on. */
    void put_images(uint64_t home, uint32_t n)
    {
        lay_block &d = start(LAY_MAGIC_JDESC);
        d.desc.count = lay_put32(n);
        for (uint32_t i = 0; i < n; i++) {
            step();
            memset(&at(pos), 0, LAY_BLOCK_SIZE);
            lay_head_init(&at(pos).head, LAY_MAGIC_EXTENTS, geo.uuid, home + i, OBJECT_OWNER);
            lay_seal(&at(pos), tid);
            d.desc.tags[i].block = lay_put64(home + i);
            d.desc.tags[i].age = lay_put32(lay_age(&at(pos)));
        }
        lay_seal(&d, tid);
        chain = lay_log_chain(chain, &d);
        step();
    }

    void put_commit()
    {
        lay_block &c = start(LAY_MAGIC_JCOMMIT);
        c.commit.blocks = lay_put32(static_cast<uint32_t>((pos + RING - first) % RING + 1));
        c.commit.crc = lay_put32(chain);
        c.commit.tail_tid = lay_put64(tail_tid);
        c.commit.tail_pos = lay_put64(tail_pos);
        c.commit.super_age = lay_put32(super_age);
        c.commit.time = lay_time_make(77, 0);
        lay_seal(&c, tid);
        step();
        first = pos;
        chain = 0;
        tid++;
    }

    /* Everything before the next transaction is in place. */
    void move_tail()
    {
        tail_tid = tid;
        tail_pos = pos;
    }

    int newest(uint64_t label = 3)
    {
        static const lay_log_calls calls = {read, image, lack};
        const lay_incarnation of_label = incarnation(label);
        lay_log_open(&log, &geo, &of_label, &calls, this);
        return lay_log_newest(&log);
    }

    /* Reads all transactions, and returns how many, or the error. */
    int read_all()
    {
        lay_log_tx tx;
        int err = newest(), n = 0;
        while (!err && (err = lay_log_next(&log, &tx)) == 1) {
            err = 0;
            n++;
        }
        return err < 0 ? err : n;
    }

    static int read(void *arg, unsigned log, uint64_t p, const void **block)
    {
        auto *r = static_cast<Ring *>(arg);
        r->reads++;
        EXPECT_LT(p, RING);
        bool missing = p == r->missing && r->reads > r->missing_after;
        *block = missing ? nullptr : log ? &r->copy[p] : &r->at(p);
        return p == r->unreadable ? -EIO : 0;
    }

    static int lack(void *arg, unsigned log, uint64_t pos)
    {
        static_cast<Ring *>(arg)->lacks.push_back({pos, log});
        return 0;
    }

    static int image(void *arg, uint64_t addr, uint64_t pos, const void *data)
    {
        auto *r = static_cast<Ring *>(arg);
        const auto *head = static_cast<const lay_head *>(data);
        EXPECT_EQ(lay_check_head(data, LAY_MAGIC_EXTENTS, r->geo.uuid, addr, OBJECT_OWNER, nullptr),
                  0);
        EXPECT_EQ(lay_get64(head->block), addr);
        r->images.push_back({addr, pos});
        return r->image_error;
    }
};

class LogReader : public ::testing::Test
{
  protected:
    Ring r;
    lay_log_tx tx;
};

using NewestCommit = LogReader;

TEST_F(LogReader, RefusesALogWithoutACommit)
{
    EXPECT_EQ(r.newest(), -EUCLEAN);
    EXPECT_STREQ(r.log.why, "no commit was found");
}

TEST_F(LogReader, PassesOnImagesOfCompleteTransactions)
{
    r.put_images(HOME, 2);
    r.put_images(HOME + 9, 1);
    r.put_commit();
    r.put_images(HOME + 20, 1);
    r.put_commit();

    ASSERT_EQ(r.newest(), 0);
    EXPECT_EQ(r.log.newest.tid, OBJECT_TID + 1);
    EXPECT_EQ(r.log.newest.pos, 8u);
    EXPECT_EQ(r.log.newest.super_age, 55u);
    ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
    EXPECT_EQ(tx.tid, OBJECT_TID);
    EXPECT_EQ(tx.pos, 0u);
    EXPECT_EQ(tx.blocks, 6u);
    EXPECT_EQ(tx.images, 3u);
    EXPECT_EQ(tx.commit.pos, 5u);
    EXPECT_EQ(lay_time_sec(tx.commit.time), 77);
    EXPECT_EQ(r.images, (std::vector<Found>{{HOME, 1}, {HOME + 1, 2}, {HOME + 9, 4}}));

    ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
    EXPECT_EQ(tx.tid, OBJECT_TID + 1);
    EXPECT_EQ(tx.pos, 6u);
    EXPECT_EQ(tx.blocks, 3u);
    EXPECT_EQ(lay_log_next(&r.log, &tx), 0);
    EXPECT_EQ(r.log.tid, OBJECT_TID + 2);
    EXPECT_EQ(r.log.pos, 9u);
    EXPECT_EQ(r.log.corrected, 0u);
}

TEST_F(LogReader, WrapsAtTheEndOfTheLog)
{
    r.pos = r.first = r.tail_pos = RING - 2;
    r.put_images(HOME, 3);
    r.put_commit();
    ASSERT_EQ(r.read_all(), 1);
    EXPECT_EQ(r.images, (std::vector<Found>{{HOME, RING - 1}, {HOME + 1, 0}, {HOME + 2, 1}}));
    EXPECT_EQ(r.log.pos, 3u);
}

TEST_F(LogReader, ReadsATransactionThatFillsTheLog)
{
    r.put_images(HOME, RING - 2);
    r.put_commit();
    EXPECT_EQ(r.read_all(), 1);
    EXPECT_EQ(r.images.size(), RING - 2);
    EXPECT_EQ(r.log.pos, 0u);
}

TEST_F(LogReader, BeginsAtTheTailOfTheNewestCommit)
{
    r.put_images(HOME, 1);
    r.put_commit();
    r.move_tail();
    r.put_images(HOME + 1, 1);
    r.put_commit();
    ASSERT_EQ(r.read_all(), 1);
    EXPECT_EQ(r.images, (std::vector<Found>{{HOME + 1, 4}}));
}

TEST_F(LogReader, TakesTheHighestIncarnationBeforeTheHighestNumber)
{
    r.tid = 90;
    r.pos = r.first = 8;
    r.by = incarnation(2);
    r.put_images(HOME, 1);
    r.put_commit();
    r.tid = r.tail_tid = 80;
    r.pos = r.first = 0;
    r.by = incarnation(3);
    r.put_images(HOME + 1, 1);
    r.put_commit();
    ASSERT_EQ(r.read_all(), 1);
    EXPECT_EQ(r.log.newest.tid, 80u);
}

TEST_F(LogReader, KnowsNoRecordsOfAnotherLog)
{
    r.put_images(HOME, 1);
    r.put_commit();
    r.geo.log_id++;
    EXPECT_EQ(r.newest(), -EUCLEAN);
}

TEST_F(LogReader, ContinuesAcrossIncarnations)
{
    r.by = incarnation(1);
    r.put_images(HOME, 1);
    r.put_commit();
    r.by = incarnation(3);
    r.put_commit();
    ASSERT_EQ(r.read_all(), 2);
    EXPECT_TRUE(r.log.newest.counter == 3);
}

TEST_F(LogReader, RefusesATransactionOfTwoIncarnationsAndOneOlderThanTheOneBefore)
{
    Ring two;
    two.put_images(HOME, 1);
    two.by = incarnation(2);
    two.put_commit();
    two.by = incarnation(3);
    two.put_commit();
    EXPECT_EQ(two.read_all(), -EUCLEAN);

    Ring older;
    older.put_commit();
    older.by = incarnation(2);
    older.put_commit();
    older.by = incarnation(3);
    older.put_commit();
    EXPECT_EQ(older.read_all(), -EUCLEAN);
    EXPECT_EQ(older.log.tid, OBJECT_TID + 1);
}

TEST_F(LogReader, RefusesALogThatIsNewerThanTheLabel)
{
    r.put_commit();
    EXPECT_EQ(r.newest(2), -EUCLEAN);
    r.by = incarnation(3, 0x78); // the same counter by another writer
    r.put_commit();
    EXPECT_EQ(r.newest(3), -EUCLEAN);
    EXPECT_EQ(r.newest(4), 0);
}

/* --- The newest commit ----------------------------------------------------------------------- */

TEST_F(NewestCommit, WithAFlippedBitCounts)
{
    r.put_commit();
    r.put_images(HOME, 1);
    r.put_images(HOME + 1, 2);
    r.put_commit(); // at 6
    for (unsigned bit = 0; bit < 8 * LAY_BLOCK_SIZE; bit += 7) {
        r.at(6).bytes[bit / 8] ^= 1u << bit % 8;
        ASSERT_EQ(r.read_all(), 2) << bit;
        ASSERT_EQ(r.log.corrected, 1u);
        r.at(6).bytes[bit / 8] ^= 1u << bit % 8;
    }
}

// The records were durable before the commit was written, so this is no crash.
TEST_F(NewestCommit, WithAFlippedBitCountsWhateverItsRecordsHave)
{
    for (uint64_t damaged : {1, 2, 3, 4, 5}) {
        Ring r;
        r.put_commit();
        r.put_images(HOME, 1);
        r.put_images(HOME + 1, 2);
        r.put_commit(); // at 6
        r.at(6).bytes[4000] ^= 1;
        r.at(damaged).bytes[4000] ^= 1;
        EXPECT_EQ(r.read_all(), 2) << damaged;
        EXPECT_EQ(r.log.corrected, 2u);
        r.at(damaged).bytes[4000] ^= 2;
        EXPECT_EQ(r.read_all(), -EUCLEAN) << damaged;
        EXPECT_STREQ(r.log.why, "a transaction is not whole");
        EXPECT_EQ(r.log.newest.pos, 6u);
    }
}

TEST_F(NewestCommit, IsFoundInBoundedTimeAmongManyWithAFlippedBit)
{
    Ring ring;
    for (unsigned i = 0; i < RING / 4; i++)
        ring.put_images(HOME + i, 1);
    const uint32_t chain = ring.chain;
    const uint64_t tid = ring.tid;
    while (ring.pos != 0) {
        lay_block &c = ring.at(ring.pos);
        ring.put_commit();
        c.bytes[3000] ^= 1; // each claims all descriptors and the commits before it
        ring.first = 0;
        ring.chain = chain;
        ring.tid = tid;
    }
    EXPECT_EQ(ring.newest(), 0);
    EXPECT_EQ(ring.log.newest.pos, RING / 2);
    EXPECT_EQ(ring.reads, RING);
}

TEST_F(NewestCommit, AtAWrongPositionMeansDamageIfItIsNewer)
{
    r.put_commit();
    r.put_commit(); // at 1
    r.at(9) = r.at(1);
    EXPECT_EQ(r.newest(), 0); // the same one
    r.at(0) = r.at(1);
    EXPECT_EQ(r.newest(), 0);
    memset(&r.at(1), 0, LAY_BLOCK_SIZE);
    EXPECT_EQ(r.newest(), -EUCLEAN) << "no other commit";
    r.pos = r.first = 2;
    r.tid = OBJECT_TID;
    r.put_commit();
    EXPECT_EQ(r.newest(), -EUCLEAN);
    EXPECT_STREQ(r.log.why, "a newer commit was written to a wrong position");
}

TEST_F(NewestCommit, MayBeUnreadable)
{
    r.put_commit();
    r.put_commit();
    r.missing = 1;
    ASSERT_EQ(r.newest(), 0);
    EXPECT_EQ(r.log.newest.pos, 0u);
    r.unreadable = 5;
    EXPECT_EQ(r.newest(), -EIO);
}

/* --- Damage ---------------------------------------------------------------------------------- */

/*
 * Where a damaged second transaction begins: a descriptor with an image, one with two images, a
 * commit.
 */
constexpr uint64_t SECOND = 3;

struct Damage {
    const char *name;
    std::function<void(Ring &)> apply;
};

/* Seals a block again after a change of a field. */
void reseal(Ring &r, uint64_t pos)
{
    lay_seal(&r.at(pos), OBJECT_TID + 1);
}

void flip_two(Ring &r, uint64_t pos)
{
    r.at(pos).bytes[4000] ^= 0x11;
}

const Damage DAMAGES[] = {
    {"descriptor", [](Ring &r) { flip_two(r, SECOND); }},
    {"second descriptor", [](Ring &r) { flip_two(r, SECOND + 2); }},
    {"image", [](Ring &r) { flip_two(r, SECOND + 4); }},
    {"image of another transaction",
     [](Ring &r) {
         lay_block &image = r.at(SECOND + 3);
         lay_seal(&image, OBJECT_TID);
         r.at(SECOND + 2).desc.tags[0].age = lay_put32(lay_age(&image));
         reseal(r, SECOND + 2);
     }},
    {"sound image of another age",
     [](Ring &r) {
         r.at(SECOND + 3).bytes[4000] ^= 1;
         reseal(r, SECOND + 3);
     }},
    {"commit block", [](Ring &r) { flip_two(r, SECOND + 5); }},
    {"no commit block", [](Ring &r) { memset(&r.at(SECOND + 5), 0, LAY_BLOCK_SIZE); }},
    {"unreadable commit block", [](Ring &r) { r.missing = SECOND + 5; }},
    {"chain of the commit block",
     [](Ring &r) {
         r.at(SECOND + 5).commit.crc.le ^= 1;
         reseal(r, SECOND + 5);
     }},
    {"length in the commit block",
     [](Ring &r) {
         r.at(SECOND + 5).commit.blocks = lay_put32(7);
         reseal(r, SECOND + 5);
     }},
    {"sound descriptor and image of another block",
     [](Ring &r) {
         lay_block &image = r.at(SECOND + 1);
         lay_tag &tag = r.at(SECOND).desc.tags[0];
         image.head.block = tag.block = lay_put64(HOME + 40);
         reseal(r, SECOND + 1);
         tag.age = lay_put32(lay_age(&image));
         reseal(r, SECOND);
     }},
};

/* Three transactions, of which the second one is damaged. */
void put_three(Ring &r)
{
    r.put_images(HOME, 1);
    r.put_commit();
    r.put_images(HOME, 1);
    r.put_images(HOME + 1, 2);
    r.put_commit();
    r.put_images(HOME + 5, 1);
    r.put_commit();
}

TEST_F(LogReader, ReportsAGapAndFindsWhatFollows)
{
    for (const Damage &damage : DAMAGES) {
        SCOPED_TRACE(damage.name);
        Ring r;
        lay_log_tx tx;
        put_three(r);
        damage.apply(r);
        ASSERT_EQ(r.newest(), 0);
        ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
        EXPECT_EQ(tx.tid, OBJECT_TID);
        EXPECT_EQ(lay_log_next(&r.log, &tx), -EUCLEAN);
        EXPECT_EQ(r.log.tid, OBJECT_TID + 1);
        EXPECT_EQ(r.log.pos, SECOND);
        ASSERT_EQ(lay_log_skip(&r.log), 1);
        EXPECT_EQ(r.log.tid, OBJECT_TID + 2);
        EXPECT_EQ(r.log.pos, SECOND + 6);
        EXPECT_EQ(lay_log_next(&r.log, &tx), 1);
        EXPECT_EQ(lay_log_next(&r.log, &tx), 0);
    }
}

TEST_F(LogReader, CorrectsOneBitOfEachBlock)
{
    for (unsigned bit : {0, 33, 70, 130, 200, 280, 390, 500, 560, 700, 8 * 4000}) {
        Ring r;
        put_three(r);
        for (uint64_t p = 0; p < 12; p++)
            r.at(p).bytes[bit / 8] ^= 1u << bit % 8;
        r.at(11).bytes[bit / 8] ^= 1u << bit % 8; // the newest commit
        ASSERT_EQ(r.read_all(), 3) << bit;
        EXPECT_EQ(r.log.corrected, 11u);
        EXPECT_EQ(r.images.size(), 5u);
    }
}

TEST_F(LogReader, SkipFindsNothingBehindTheNewestCommit)
{
    r.put_images(HOME, 1);
    r.put_commit();
    flip_two(r, 1);
    ASSERT_EQ(r.newest(), 0);
    EXPECT_EQ(lay_log_next(&r.log, &tx), -EUCLEAN);
    EXPECT_EQ(lay_log_skip(&r.log), 0);
}

TEST_F(LogReader, ReturnsTheErrorOfACall)
{
    auto read = [this](const std::function<void(Ring &)> &change) {
        Ring r;
        r.put_images(HOME, 1);
        r.put_commit();
        EXPECT_EQ(r.newest(), 0);
        change(r);
        int result = lay_log_next(&r.log, &tx);
        EXPECT_EQ(r.log.tid, OBJECT_TID);
        EXPECT_EQ(r.log.pos, 0u);
        return result;
    };
    EXPECT_EQ(read([](Ring &r) { r.unreadable = 0; }), -EIO);
    EXPECT_EQ(read([](Ring &r) { r.unreadable = 1; }), -EIO);
    EXPECT_EQ(read([](Ring &r) { r.unreadable = 2; }), -EIO);
    EXPECT_EQ(read([](Ring &r) { r.image_error = -ENOMEM; }), -ENOMEM);
}

TEST_F(LogReader, EndsWhenATransactionIsLongerThanTheLog)
{
    r.put_commit();
    ASSERT_EQ(r.newest(), 0);
    r.pos = 0;
    r.tid = OBJECT_TID;
    for (uint64_t i = 0; i < RING / 2; i++)
        r.put_images(HOME, 1);
    r.reads = 0;
    EXPECT_EQ(lay_log_next(&r.log, &tx), -EUCLEAN);
    EXPECT_EQ(r.reads, RING + 1);
}

TEST_F(LogReader, EndsWhenTransactionsAreLongerThanTheLogTogether)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < RING; i++)
        r.put_commit();
    ASSERT_EQ(r.newest(), 0);
    r.log.newest.tid = LAY_MAX_TID; // never reached
    while (n < 2 * RING && lay_log_next(&r.log, &tx) == 1) {
        n++;
        r.put_commit(); // the reader always finds the next one
    }
    EXPECT_EQ(n, RING);
}

/* --- Two logs -------------------------------------------------------------------------------- */

struct TwoLogs : Ring {
    TwoLogs()
    {
        put_images(HOME, 2);
        put_commit();
        put_images(HOME + 9, 1);
        put_commit(); // at 6
        duplicate();
    }
    std::vector<lay_block> &of(unsigned i) { return i ? copy : blocks; }
};

// No bit of a block is corrected if the other log has the block.
TEST(TwoLogs, AreReadAsOneIfABlockIsBadOrHasAFlippedBitInEither)
{
    for (unsigned log : {0, 1}) {
        for (uint64_t i = 0; i < 14; i++) {
            TwoLogs r;
            const uint64_t p = i % 7;
            if (i < 7)
                memset(&r.of(log)[p], 0, LAY_BLOCK_SIZE);
            else
                r.of(log)[p].bytes[70] ^= 1;
            ASSERT_EQ(r.read_all(), 2) << i;
            EXPECT_EQ(r.log.corrected, 0u);
            EXPECT_EQ(r.lacks, (std::vector<Lack>{{p, log}}));
            EXPECT_EQ(r.images.size(), 3u);
            EXPECT_EQ(r.log.newest.pos, 6u);
        }
    }
}

TEST(TwoLogs, CorrectABitOfABlockThatBothHaveDamaged)
{
    for (unsigned log : {0, 1}) {
        TwoLogs r;
        r.of(log)[4].bytes[70] ^= 1;
        memset(&r.of(!log)[4], 0, LAY_BLOCK_SIZE);
        ASSERT_EQ(r.read_all(), 2);
        EXPECT_EQ(r.log.corrected, 1u);
        EXPECT_TRUE(r.lacks.empty());
    }
}

TEST(TwoLogs, AreDamagedIfBothLackABlock)
{
    TwoLogs r;
    lay_log_tx tx;
    memset(&r.at(4), 0, LAY_BLOCK_SIZE);
    memset(&r.copy[4], 0, LAY_BLOCK_SIZE);
    ASSERT_EQ(r.newest(), 0);
    EXPECT_EQ(lay_log_next(&r.log, &tx), 1);
    EXPECT_EQ(lay_log_next(&r.log, &tx), -EUCLEAN);
}

TEST(TwoLogs, HaveTheCommitThatOneOfThemHas)
{
    for (unsigned log : {0, 1}) {
        TwoLogs r;
        auto before = r.of(log);
        r.put_images(HOME + 20, 1);
        r.put_commit(); // behind 9
        std::vector<lay_block> after = r.blocks;
        r.of(log) = before;
        r.of(!log) = after;
        ASSERT_EQ(r.read_all(), 3);
        EXPECT_EQ(r.lacks, (std::vector<Lack>{{7, log}, {8, log}, {9, log}}));
    }
}

TEST(TwoLogs, TakeTheHigherIncarnationOfARecordThatBothHave)
{
    for (unsigned log : {0, 1}) {
        TwoLogs r;
        r.put_images(HOME + 20, 1); // not committed
        std::vector<lay_block> before = r.blocks;
        r.tid = OBJECT_TID + 2;
        r.pos = r.first = 7;
        r.by = incarnation(4);
        r.chain = 0;
        r.put_images(HOME + 30, 1);
        r.put_commit();
        std::vector<lay_block> after = r.blocks;
        r.of(log) = before;
        r.of(!log) = after;
        EXPECT_EQ(r.newest(4), 0);
        lay_log_tx tx;
        for (unsigned i = 0; i < 3; i++)
            ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
        EXPECT_EQ(r.images.back(), (Found{HOME + 30, 8}));
        EXPECT_EQ(r.lacks, (std::vector<Lack>{{7, log}, {8, log}, {9, log}}));
    }
}

// A commit that overwrote the newest one of a log is refused, unless the other log proves it.
TEST(TwoLogs, BearAMisdirectedCommitInOneOfThem)
{
    for (unsigned log : {0, 1}) {
        TwoLogs r;
        r.put_commit(); // at 7, for another position
        lay_block stray = r.at(7);
        for (unsigned i : {0, 1})
            memset(&r.of(i)[7], 0, LAY_BLOCK_SIZE);
        r.of(log)[12] = stray;
        EXPECT_EQ(r.read_all(), 2);
        r.of(!log)[13] = stray;
        EXPECT_EQ(r.read_all(), -EUCLEAN);
    }
}

TEST(TwoLogs, CompleteEachOtherAndAreMadeEqual)
{
    TwoLogs r;
    unsigned flushes = 0;
    std::vector<lay_log_lack> lacks;
    for (uint64_t p = 0; p < 7; p++)
        memset(&r.of(p % 2)[p], 0, LAY_BLOCK_SIZE);
    ASSERT_EQ(r.read_all(), 2);
    EXPECT_EQ(r.lacks.size(), 7u);
    EXPECT_EQ(r.images.size(), 3u);
    for (const Lack &l : r.lacks)
        lacks.push_back({l.pos, l.log});
    struct Device {
        TwoLogs &r;
        unsigned &flushes;
        lay_block &at(uint64_t block)
        {
            return block < r.geo.log_copy ? r.at(block - r.geo.log_start)
                                          : r.copy[block - r.geo.log_copy];
        }
    } device = {r, flushes};
    const lay_io io = {[](void *arg, uint64_t block, void *data) {
                           memcpy(data, &static_cast<Device *>(arg)->at(block), LAY_BLOCK_SIZE);
                           return 0;
                       },
                       [](void *arg, uint64_t block, const void *data) {
                           memcpy(&static_cast<Device *>(arg)->at(block), data, LAY_BLOCK_SIZE);
                           return 0;
                       },
                       [](void *arg) {
                           static_cast<Device *>(arg)->flushes++;
                           return 0;
                       },
                       &device};
    auto lost = [](void *, uint64_t, const lay_block *) { return -EIO; };
    EXPECT_EQ(lay_log_mend(&io, &r.geo, lacks.data(), lacks.size(), lost, nullptr), 0);
    EXPECT_EQ(flushes, 1u);
    r.lacks.clear();
    EXPECT_EQ(r.read_all(), 2);
    EXPECT_TRUE(r.lacks.empty());
    EXPECT_EQ(memcmp(r.blocks.data(), r.copy.data(), RING * LAY_BLOCK_SIZE), 0);
}

/* --- Mounts ---------------------------------------------------------------------------------- */

TEST_F(LogReader, ReplacesAnEmptyNewestTransactionThatRepeatsTheTail)
{
    r.put_images(HOME, 1);
    r.put_commit();
    ASSERT_EQ(r.read_all(), 1);
    EXPECT_FALSE(r.log.replace) << "it has content";
    r.put_commit();
    ASSERT_EQ(r.read_all(), 2);
    EXPECT_TRUE(r.log.replace);
    r.move_tail();
    r.put_commit();
    ASSERT_EQ(r.read_all(), 1);
    EXPECT_FALSE(r.log.replace) << "it moves the tail";
    r.put_commit();
    ASSERT_EQ(r.read_all(), 2);
    EXPECT_TRUE(r.log.replace);
}

/* A log whose last commit is that of a clean unmount. */
class CleanLog : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        object_make(OBJECT_SUPER, &super);
        super.super.clean_incarnation = incarnation(3);
        super.super.clean_pos = lay_put64(3);
        super.super.clean_tid = lay_put64(OBJECT_TID + 1);
        lay_seal(&super, OBJECT_TID);
        r.put_images(HOME, 1);
        r.put_commit();
        r.move_tail();
        r.super_age = lay_age(&super);
        r.put_commit(); // at 3
    }

    int clean(uint64_t label = 3)
    {
        (void)r.newest(label);
        r.reads = 0;
        memset(&r.log.newest, 0, sizeof(r.log.newest));
        return lay_log_clean(&r.log, &super.super);
    }

    Ring r;
    lay_block super;
};

TEST_F(CleanLog, IsKnownFromTwoBlocks)
{
    lay_log_tx tx;
    EXPECT_EQ(clean(), 1);
    EXPECT_EQ(r.reads, 2u);
    EXPECT_EQ(r.log.newest.tid, OBJECT_TID + 1);
    EXPECT_EQ(r.log.tid, OBJECT_TID + 2);
    EXPECT_EQ(r.log.pos, 4u);
    EXPECT_EQ(lay_log_next(&r.log, &tx), 0);
}

TEST_F(CleanLog, IsOfTheIncarnationOfTheLabel)
{
    EXPECT_EQ(clean(4), 0);
    super.super.clean_incarnation = incarnation(4);
    EXPECT_EQ(clean(4), 0) << "the commit has another one";
}

TEST_F(CleanLog, NamesTheSuperblock)
{
    super.super.mounts = lay_put64(1);
    lay_seal(&super, OBJECT_TID);
    EXPECT_EQ(clean(), 0);
}

TEST_F(CleanLog, HasItsCommit)
{
    super.super.clean_tid = lay_put64(OBJECT_TID);
    EXPECT_EQ(clean(), 0);
    super.super.clean_tid = lay_put64(OBJECT_TID + 1);
    super.super.clean_pos = lay_put64(RING);
    EXPECT_EQ(clean(), 0);
    super.super.clean_pos = lay_put64(3);
    r.at(3).bytes[99] ^= 1;
    EXPECT_EQ(clean(), 0);
}

TEST_F(CleanLog, IsNoneIfALaterCommitFollows)
{
    r.put_commit();
    EXPECT_EQ(clean(), 0);
    r.at(4).bytes[99] ^= 1;
    EXPECT_EQ(clean(), 0) << "a flipped bit hides no commit";
    r.at(4).bytes[99] ^= 2;
    EXPECT_EQ(clean(), 1);
    r.missing = 4;
    EXPECT_EQ(clean(), 0) << "an unreadable block may be one";
}

TEST_F(CleanLog, IsKnownFromEitherOfTwoLogs)
{
    r.duplicate();
    EXPECT_EQ(clean(), 1);
    EXPECT_EQ(r.lacks.size(), 0u);
    r.copy[3].bytes[99] ^= 1;
    EXPECT_EQ(clean(), 1);
    EXPECT_EQ(r.lacks, (std::vector<Lack>{{3, 1}}));
    r.at(3) = {};
    EXPECT_EQ(clean(), 0);
}

TEST_F(CleanLog, IsNoneIfEitherLogHasALaterCommit)
{
    r.duplicate();
    r.put_commit();
    EXPECT_EQ(clean(), 0);
    std::swap(r.blocks, r.copy);
    EXPECT_EQ(clean(), 0);
}

// What one log has at the place of the commit may be newer than what the other one kept there.
TEST_F(CleanLog, ReportsNothingThatALogLacksIfItIsNone)
{
    r.duplicate();
    r.by = incarnation(4);
    r.pos = r.first = 3;
    r.put_commit();
    r.put_commit();
    EXPECT_EQ(clean(), 0);
    EXPECT_EQ(r.lacks.size(), 0u);
}

TEST_F(CleanLog, IsNoneIfItsCommitCannotBeReadAgain)
{
    r.duplicate();
    r.missing = 3;
    r.missing_after = 4;
    EXPECT_EQ(clean(), 0);
    EXPECT_EQ(r.lacks.size(), 0u);
}

TEST_F(CleanLog, MayBeFollowedByAnOldCommit)
{
    r.tid = r.tail_tid = 2;
    r.put_commit();
    EXPECT_EQ(clean(), 1);
}

} // namespace
