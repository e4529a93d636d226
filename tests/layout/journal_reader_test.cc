/* SPDX-License-Identifier: BSD-2-Clause */
/* The reader of the log: which transactions count, and which images and revokes the caller gets. */
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <vector>

#include "layout/journal_reader.h"
#include "tests/layout/objects.h"

namespace
{

constexpr uint64_t RING = 16; // blocks of the journal, the header's included
constexpr uint64_t HOME = 5000;

struct Found {
    uint64_t home, at;
    bool operator==(const Found &o) const
    {
        return home == o.home && at == o.at;
    }
};

/* A log in memory: a writer that makes transactions, and the calls of a reader. */
struct Ring {
    lay_geometry geo;
    std::vector<lay_block> blocks = std::vector<lay_block>(RING);
    uint64_t pos = 1, first = 1, tid = OBJECT_TID;
    uint32_t chain = 0;
    lay_log log;
    std::vector<Found> images;
    std::vector<uint64_t> revokes;
    uint64_t reads = 0, unreadable = 0, missing = 0; // positions; 0: none
    int image_error = 0, revoke_error = 0;

    Ring()
    {
        object_geometry(&geo);
        geo.journal_blocks = RING;
    }

    lay_block &at(uint64_t p)
    {
        return blocks[p];
    }

    uint64_t address(uint64_t p) const
    {
        return geo.journal_start + p;
    }

    lay_block &start(uint32_t magic)
    {
        lay_block &b = at(pos);
        memset(&b, 0, sizeof(b));
        lay_head_init(&b.head, magic, geo.uuid, address(pos), 0);
        return b;
    }

    void step()
    {
        pos = lay_journal_next(&geo, pos);
    }

    /* A descriptor with n images, of the blocks from `home` on. */
    void put_images(uint64_t home, uint32_t n)
    {
        lay_block &d = start(LAY_MAGIC_JDESC);
        d.desc.count = lay_put32(n);
        uint64_t p = pos;
        for (uint32_t i = 0; i < n; i++) {
            p = lay_journal_next(&geo, p);
            memset(&at(p), 0, LAY_BLOCK_SIZE);
            lay_head_init(&at(p).head, LAY_MAGIC_EXTENTS, geo.uuid, home + i, OBJECT_OWNER);
            lay_seal(&at(p), tid);
            d.desc.tags[i].block = lay_put64(home + i);
            d.desc.tags[i].crc = lay_put32(lay_block_crc(geo.uuid, address(p), &at(p)));
        }
        lay_seal(&d, tid);
        chain = lay_journal_chain(chain, &d);
        pos = lay_journal_next(&geo, p);
    }

    void put_revokes(uint64_t home, uint32_t n)
    {
        lay_block &r = start(LAY_MAGIC_JREVOKE);
        r.revoke.count = lay_put32(n);
        for (uint32_t i = 0; i < n; i++)
            r.revoke.blocks[i] = lay_put64(home + i);
        lay_seal(&r, tid);
        chain = lay_journal_chain(chain, &r);
        step();
    }

    void put_commit()
    {
        lay_block &c = start(LAY_MAGIC_JCOMMIT);
        uint64_t n = (pos + RING - 1 - first) % (RING - 1) + 1;
        c.commit.blocks = lay_put32(static_cast<uint32_t>(n));
        c.commit.crc = lay_put32(chain);
        c.commit.time = lay_time_make(77, 0);
        lay_seal(&c, tid);
        step();
        first = pos;
        chain = 0;
        tid++;
    }

    void begin(uint64_t tail = 1, uint64_t tail_tid = OBJECT_TID)
    {
        static const lay_log_calls calls = {read, image, revoke};
        lay_journal header = {};
        header.tail_tid = lay_put64(tail_tid);
        header.tail_pos = lay_put64(tail);
        lay_log_begin(&log, &geo, &header, &calls, this);
    }

    static int read(void *arg, uint64_t p, const void **block)
    {
        auto *r = static_cast<Ring *>(arg);
        r->reads++;
        EXPECT_GE(p, 1u);
        EXPECT_LT(p, RING);
        *block = p == r->missing ? nullptr : &r->at(p);
        return p == r->unreadable ? -EIO : 0;
    }

    static int image(void *arg, uint64_t home, uint64_t at, const void *data)
    {
        auto *r = static_cast<Ring *>(arg);
        EXPECT_EQ(data, &r->at(at - r->geo.journal_start));
        r->images.push_back({home, at});
        return r->image_error;
    }

    static int revoke(void *arg, uint64_t home)
    {
        auto *r = static_cast<Ring *>(arg);
        r->revokes.push_back(home);
        return r->revoke_error;
    }
};

TEST(JournalReader, EndsWhereNothingWasWritten)
{
    Ring r;
    lay_log_tx tx;
    r.begin(3, 9);
    EXPECT_EQ(lay_log_next(&r.log, &tx), 0);
    EXPECT_EQ(r.log.tid, 9u);
    EXPECT_EQ(r.log.pos, 3u);
    EXPECT_EQ(r.reads, 1u);
}

TEST(JournalReader, PassesOnImagesAndRevokesOfCompleteTransactions)
{
    Ring r;
    lay_log_tx tx;
    r.put_revokes(HOME + 50, 2);
    r.put_images(HOME, 2);
    r.put_images(HOME + 9, 1);
    r.put_commit();
    r.put_images(HOME + 20, 1);
    r.put_commit();

    r.begin();
    ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
    EXPECT_EQ(tx.tid, OBJECT_TID);
    EXPECT_EQ(tx.pos, 1u);
    EXPECT_EQ(tx.blocks, 7u);
    EXPECT_EQ(tx.images, 3u);
    EXPECT_EQ(tx.revokes, 2u);
    EXPECT_EQ(lay_time_sec(tx.time), 77);
    EXPECT_EQ(r.images,
              (std::vector<Found>{
                  {HOME, r.address(3)}, {HOME + 1, r.address(4)}, {HOME + 9, r.address(6)}}));
    EXPECT_EQ(r.revokes, (std::vector<uint64_t>{HOME + 50, HOME + 51}));

    ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
    EXPECT_EQ(tx.tid, OBJECT_TID + 1);
    EXPECT_EQ(tx.pos, 8u);
    EXPECT_EQ(tx.blocks, 3u);
    EXPECT_EQ(lay_log_next(&r.log, &tx), 0);
    EXPECT_EQ(r.log.tid, OBJECT_TID + 2);
    EXPECT_EQ(r.log.pos, 11u);
}

TEST(JournalReader, WrapsAtTheEndOfTheLog)
{
    Ring r;
    lay_log_tx tx;
    r.pos = r.first = RING - 2;
    r.put_images(HOME, 3);
    r.put_commit();
    r.begin(RING - 2);
    ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
    EXPECT_EQ(tx.blocks, 5u);
    EXPECT_EQ(r.images, (std::vector<Found>{{HOME, r.address(RING - 1)},
                                            {HOME + 1, r.address(1)},
                                            {HOME + 2, r.address(2)}}));
    EXPECT_EQ(r.log.pos, 4u);
}

TEST(JournalReader, ReadsATransactionThatFillsTheLog)
{
    Ring r;
    lay_log_tx tx;
    r.put_images(HOME, RING - 3);
    r.put_commit();
    r.begin();
    ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
    EXPECT_EQ(tx.blocks, RING - 1);
    EXPECT_EQ(r.log.pos, 1u);
    EXPECT_EQ(lay_log_next(&r.log, &tx), 0);
}

/* Where a damaged second transaction begins: a revoke block, a descriptor, two images, a commit. */
constexpr uint64_t SECOND = 4;

struct Damage {
    const char *name;
    std::function<void(Ring &)> apply;
};

/* Seals a block again after a change of a field. */
void reseal(Ring &r, uint64_t pos)
{
    lay_seal(&r.at(pos), OBJECT_TID + 1);
}

const Damage DAMAGES[] = {
    {"revoke block", [](Ring &r) { r.at(SECOND).bytes[4000] ^= 1; }},
    {"descriptor", [](Ring &r) { r.at(SECOND + 1).bytes[4000] ^= 1; }},
    {"image", [](Ring &r) { r.at(SECOND + 3).bytes[4000] ^= 1; }},
    {"image of another transaction",
     [](Ring &r) {
         lay_block &image = r.at(SECOND + 2);
         lay_seal(&image, OBJECT_TID);
         r.at(SECOND + 1).desc.tags[0].crc =
             lay_put32(lay_block_crc(r.geo.uuid, r.address(SECOND + 2), &image));
         reseal(r, SECOND + 1);
     }},
    {"commit block", [](Ring &r) { r.at(SECOND + 4).bytes[4000] ^= 1; }},
    {"no commit block", [](Ring &r) { memset(&r.at(SECOND + 4), 0, LAY_BLOCK_SIZE); }},
    {"chain of the commit block",
     [](Ring &r) {
         r.at(SECOND + 4).commit.crc.le ^= 1;
         reseal(r, SECOND + 4);
     }},
    {"length in the commit block",
     [](Ring &r) {
         r.at(SECOND + 4).commit.blocks = lay_put32(6);
         reseal(r, SECOND + 4);
     }},
    {"number of the commit block", [](Ring &r) { lay_seal(&r.at(SECOND + 4), OBJECT_TID + 2); }},
    {"sound revoke block of other contents",
     [](Ring &r) {
         r.at(SECOND).revoke.blocks[0] = lay_put64(HOME + 1);
         reseal(r, SECOND);
     }},
};

TEST(JournalReader, EndsAtTheFirstIncompleteTransaction)
{
    for (const Damage &damage : DAMAGES) {
        SCOPED_TRACE(damage.name);
        Ring r;
        lay_log_tx tx;
        r.put_images(HOME, 1);
        r.put_commit();
        r.put_revokes(HOME, 1);
        r.put_images(HOME + 1, 2);
        r.put_commit();
        r.put_images(HOME + 5, 1);
        r.put_commit();
        damage.apply(r);
        r.begin();
        ASSERT_EQ(lay_log_next(&r.log, &tx), 1);
        EXPECT_EQ(lay_log_next(&r.log, &tx), 0);
        EXPECT_EQ(tx.tid, OBJECT_TID);
        EXPECT_EQ(r.log.tid, OBJECT_TID + 1);
        EXPECT_EQ(r.log.pos, SECOND);
    }
}

TEST(JournalReader, ReturnsTheErrorOfACall)
{
    lay_log_tx tx;
    auto read = [&tx](const std::function<void(Ring &)> &change) {
        Ring r;
        r.put_revokes(HOME, 1);
        r.put_images(HOME, 1);
        r.put_commit();
        change(r);
        r.begin();
        int result = lay_log_next(&r.log, &tx);
        EXPECT_EQ(r.log.tid, OBJECT_TID);
        EXPECT_EQ(r.log.pos, 1u);
        return result;
    };
    EXPECT_EQ(read([](Ring &r) { r.unreadable = 1; }), -EIO);
    EXPECT_EQ(read([](Ring &r) { r.unreadable = 3; }), -EIO);
    EXPECT_EQ(read([](Ring &r) { r.unreadable = 4; }), -EIO);
    EXPECT_EQ(read([](Ring &r) { r.image_error = -ENOMEM; }), -ENOMEM);
    EXPECT_EQ(read([](Ring &r) { r.revoke_error = -ENOMEM; }), -ENOMEM);
}

TEST(JournalReader, EndsWhenATransactionIsLongerThanTheLog)
{
    Ring r;
    lay_log_tx tx;
    for (uint64_t i = 1; i < RING; i++)
        r.put_revokes(HOME, 1);
    r.begin();
    EXPECT_EQ(lay_log_next(&r.log, &tx), 0);
    EXPECT_LE(r.reads, RING);
}

/* A device that always returns the block that the reader would accept next. */
struct Endless {
    Ring ring;
    bool commit = false;

    static int read(void *arg, uint64_t p, const void **block)
    {
        auto *e = static_cast<Endless *>(arg);
        e->ring.pos = p;
        if (e->commit) {
            e->ring.first = p == 1 ? RING - 1 : p - 1;
            e->ring.put_commit();
        } else {
            e->ring.put_revokes(HOME, 1);
        }
        e->commit = !e->commit;
        e->ring.reads++;
        *block = &e->ring.at(p);
        return 0;
    }

    static int revoke(void *, uint64_t)
    {
        return 0;
    }
};

TEST(JournalReader, EndsWhenTransactionsAreLongerThanTheLogTogether)
{
    Endless e;
    lay_log_tx tx;
    const lay_log_calls calls = {Endless::read, Ring::image, Endless::revoke};
    e.ring.begin();
    e.ring.log.calls = &calls;
    e.ring.log.arg = &e;
    uint64_t blocks = 0;
    while (blocks < 2 * RING && lay_log_next(&e.ring.log, &tx) == 1)
        blocks += tx.blocks;
    EXPECT_EQ(blocks, RING - 2); // two for each transaction
}

TEST(JournalReader, FindsTheNewestCommitBlockAnywhere)
{
    Ring r;
    uint64_t newest = 1;
    r.begin();
    EXPECT_EQ(lay_log_newest(&r.log, &newest), 0);
    EXPECT_EQ(newest, 0u);

    r.pos = r.first = 9;
    r.tid = 40;
    r.put_revokes(HOME, 1);
    r.put_commit(); // at 10
    r.pos = r.first = 2;
    r.tid = 30;
    r.put_revokes(HOME, 1);
    r.put_commit(); // at 3
    r.pos = r.first = RING - 2;
    r.tid = 35;
    r.put_revokes(HOME, 1);
    r.put_commit(); // at RING - 1
    EXPECT_EQ(lay_log_newest(&r.log, &newest), 0);
    EXPECT_EQ(newest, 40u);

    r.at(10).bytes[4000] ^= 1;
    EXPECT_EQ(lay_log_newest(&r.log, &newest), 0);
    EXPECT_EQ(newest, 35u);
    r.missing = RING - 1;
    EXPECT_EQ(lay_log_newest(&r.log, &newest), 0);
    EXPECT_EQ(newest, 30u);
    r.unreadable = 5;
    EXPECT_EQ(lay_log_newest(&r.log, &newest), -EIO);
}

} // namespace
