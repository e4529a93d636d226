/* SPDX-License-Identifier: BSD-2-Clause */
/* The protocol of multi-mount protection, in virtual time. */
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "layout/mmp.h"

namespace
{

constexpr uint64_t MS = 1000000, S = 1000 * MS;
constexpr uint64_t INTERVAL = LAY_MMP_INTERVAL * MS;

lay_geometry geometry()
{
    lay_geometry geo{};
    memset(geo.uuid, 7, sizeof(geo.uuid));
    return geo;
}

lay_mmp free_block()
{
    lay_mmp b{};
    lay_head_init(&b.head, LAY_MAGIC_MMP, geometry().uuid, LAY_ADDR_MMP, 0);
    b.interval = lay_put32(LAY_MMP_INTERVAL);
    lay_seal(&b, 0);
    return b;
}

lay_time no_date(void *)
{
    return lay_time_make(1700000000, 0);
}

void fill(lay_mmp_hold &h, const std::string &host, uint8_t boot, uint64_t lock)
{
    h.geo = geometry();
    memset(h.boot_id, boot, sizeof(h.boot_id));
    static uint32_t holders;
    holders++;
    memcpy(h.holder, &holders, sizeof(holders));
    h.lock = lock;
    h.state = LAY_MMP_MOUNTED;
    strncpy(h.host, host.c_str(), sizeof(h.host) - 1);
    h.io.date = no_date;
}

/* One block, whose transfers take no time, and what happens while a holder waits. */
struct World {
    lay_mmp block = free_block();
    uint64_t now = 1000 * S;
    int read_error = 0, write_error = 0;
    bool interrupted = false;
    uint64_t late = 0; /* time that the next write takes */
    std::function<void()> meanwhile = [] {};
};

struct Holder {
    Holder(World &world, const std::string &host, uint8_t boot = 1, uint64_t lock = 0)
    {
        fill(h, host, boot, lock);
        h.io.arg = &world;
        h.io.read = [](void *arg, lay_mmp *b) {
            *b = of(arg).block;
            return of(arg).read_error;
        };
        h.io.write = [](void *arg, const lay_mmp *b, bool) {
            of(arg).now += of(arg).late;
            of(arg).late = 0;
            if (!of(arg).write_error)
                of(arg).block = *b;
            return of(arg).write_error;
        };
        h.io.now = [](void *arg) { return of(arg).now; };
        h.io.wait = [](void *arg, uint64_t ns) {
            of(arg).now += ns;
            auto happens = of(arg).meanwhile; /* which may replace itself */
            happens();
            return of(arg).interrupted ? -EINTR : 0;
        };
    }
    static World &of(void *arg) { return *static_cast<World *>(arg); }

    lay_mmp_hold h{};
};

class Mmp : public ::testing::Test
{
  protected:
    /* Returns the time in ms that a() takes. */
    uint64_t takes(const std::function<void()> &a)
    {
        uint64_t begin = w.now;
        a();
        return (w.now - begin) / MS;
    }

    World w;
};

TEST_F(Mmp, AFreeBlockIsTakenAtOnce)
{
    Holder a(w, "alpha", 1, 77);
    EXPECT_EQ(takes([&] { EXPECT_EQ(lay_mmp_take(&a.h), 0); }), LAY_MMP_SETTLE_NS / MS);
    EXPECT_EQ(lay_check_mmp(&a.h.geo, &w.block, nullptr), 0);
    EXPECT_EQ(lay_get32(w.block.state), LAY_MMP_MOUNTED);
    EXPECT_STREQ(w.block.host, "alpha");
    EXPECT_EQ(lay_get64(w.block.lock), 77u);
    EXPECT_GT(a.h.until, w.now + INTERVAL);
    EXPECT_LE(a.h.until, w.now + 2 * INTERVAL);
}

TEST_F(Mmp, ALivingHolderIsFoundWithinAnInterval)
{
    Holder a(w, "alpha"), b(w, "beta", 2);
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    uint64_t due = w.now + INTERVAL;
    w.meanwhile = [&] {
        if (w.now < due)
            return;
        EXPECT_EQ(lay_mmp_renew(&a.h), 0);
        due += INTERVAL;
    };
    EXPECT_LE(takes([&] { EXPECT_EQ(lay_mmp_take(&b.h), -EBUSY); }), 1250 + INTERVAL / MS);
    EXPECT_STREQ(b.h.other.host, "alpha");
    EXPECT_EQ(lay_mmp_renew(&a.h), 0);
}

TEST_F(Mmp, ADeadHolderIsReplacedAfterThreeIntervals)
{
    Holder a(w, "alpha"), b(w, "beta", 2);
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    uint64_t ms = takes([&] { EXPECT_EQ(lay_mmp_take(&b.h), 0); });
    EXPECT_GE(ms, 3 * INTERVAL / MS);
    EXPECT_LE(ms, 3 * INTERVAL / MS + 2000);
    EXPECT_GE(w.now, a.h.until + INTERVAL) << "both could write";
    EXPECT_EQ(lay_mmp_renew(&a.h), -EBUSY);
    EXPECT_STREQ(a.h.other.host, "beta");
    EXPECT_EQ(lay_mmp_release(&a.h), -EBUSY);
    EXPECT_EQ(lay_mmp_renew(&b.h), 0);
}

TEST_F(Mmp, TheSameLockOnTheSameHostProvesDeath)
{
    Holder a(w, "alpha", 1, 77), b(w, "alpha", 1, 77);
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    EXPECT_EQ(lay_mmp_look(&b.h), 0);
    EXPECT_EQ(takes([&] { EXPECT_EQ(lay_mmp_take(&b.h), 0); }), LAY_MMP_SETTLE_NS / MS);
}

TEST_F(Mmp, NothingElseProvesDeath)
{
    Holder a(w, "alpha", 1, 77);
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    Holder controller(w, "alpha", 1, 78), boot(w, "alpha", 2, 77), none(w, "alpha", 1, 0);
    for (Holder *b : {&controller, &boot, &none})
        EXPECT_EQ(lay_mmp_look(&b->h), 1);
    Holder unknown(w, "alpha", 0, 77);
    ASSERT_EQ(lay_mmp_take(&unknown.h), 0);
    Holder unknown_too(w, "alpha", 0, 77);
    EXPECT_EQ(lay_mmp_look(&unknown_too.h), 1);
    Holder unlocked(w, "alpha", 1, 0), unlocked_too(w, "alpha", 1, 0);
    ASSERT_EQ(lay_mmp_take(&unlocked.h), 0);
    EXPECT_EQ(lay_mmp_look(&unlocked_too.h), 1);
}

TEST_F(Mmp, AReleasedBlockIsFree)
{
    Holder a(w, "alpha"), b(w, "beta", 2);
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    EXPECT_EQ(lay_mmp_release(&a.h), 0);
    EXPECT_EQ(lay_mmp_look(&b.h), 0);
    EXPECT_EQ(takes([&] { EXPECT_EQ(lay_mmp_take(&b.h), 0); }), LAY_MMP_SETTLE_NS / MS);
}

TEST_F(Mmp, AReleaseEndsTheWait)
{
    Holder a(w, "alpha"), b(w, "beta", 2);
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    w.meanwhile = [&] {
        w.meanwhile = [] {};
        EXPECT_EQ(lay_mmp_release(&a.h), 0);
    };
    EXPECT_LT(takes([&] { EXPECT_EQ(lay_mmp_take(&b.h), 0); }), INTERVAL / MS);
}

TEST_F(Mmp, ADamagedBlockIsInUseForTheLongestTime)
{
    Holder a(w, "alpha");
    reinterpret_cast<uint8_t *>(&w.block)[200] ^= 3;
    EXPECT_EQ(lay_mmp_look(&a.h), 1);
    EXPECT_GE(takes([&] { EXPECT_EQ(lay_mmp_take(&a.h), 0); }), 3 * LAY_MMP_INTERVAL_MAX);
    EXPECT_EQ(lay_check_mmp(&a.h.geo, &w.block, nullptr), 0);
}

TEST_F(Mmp, ABlockOfAnotherIntervalKeepsIt)
{
    Holder a(w, "alpha");
    w.block.interval = lay_put32(1000);
    lay_seal(&w.block, 0);
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    EXPECT_EQ(lay_get32(w.block.interval), 1000u);
    EXPECT_LE(a.h.until, w.now + 2 * S);
    w.now = a.h.until;
    Holder b(w, "beta", 2);
    EXPECT_LE(takes([&] { EXPECT_EQ(lay_mmp_take(&b.h), 0); }), 4000u);
}

/* Another one writes while this one waits for its block to settle. */
TEST_F(Mmp, TheFirstOfTwoWritersLoses)
{
    Holder a(w, "alpha"), b(w, "beta", 2);
    lay_mmp free = w.block;
    w.meanwhile = [&] {
        w.meanwhile = [] {};
        lay_mmp first = w.block;
        w.block = free; /* as the other one has read it before */
        EXPECT_EQ(lay_mmp_take(&b.h), 0);
        EXPECT_NE(memcmp(&first, &w.block, sizeof(first)), 0);
    };
    EXPECT_EQ(lay_mmp_take(&a.h), -EBUSY);
    EXPECT_STREQ(a.h.other.host, "beta");
}

TEST_F(Mmp, ALateWriterWaitsUntilAHolderHasNoticed)
{
    Holder a(w, "alpha");
    w.late = LAY_MMP_PROMPT_NS + 1;
    EXPECT_GE(takes([&] { EXPECT_EQ(lay_mmp_take(&a.h), 0); }), 3 * INTERVAL / MS);
    EXPECT_GT(a.h.until, w.now);
}

TEST_F(Mmp, RenewalsExtendTheRight)
{
    Holder a(w, "alpha");
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    for (int i = 0; i < 10; i++) {
        uint64_t before = lay_get64(w.block.sequence);
        w.now += INTERVAL;
        EXPECT_EQ(takes([&] { EXPECT_EQ(lay_mmp_renew(&a.h), 0); }), 0u);
        EXPECT_EQ(lay_get64(w.block.sequence), before + 1);
        EXPECT_EQ(a.h.until, w.now + 2 * INTERVAL);
    }
}

TEST_F(Mmp, AnErrorOfTheDeviceLeavesTheRightAsItIs)
{
    Holder a(w, "alpha");
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    uint64_t until = a.h.until;
    w.now += INTERVAL;
    w.write_error = -EIO;
    EXPECT_EQ(lay_mmp_renew(&a.h), -EIO);
    EXPECT_EQ(a.h.until, until);
    w.write_error = 0;
    EXPECT_EQ(lay_mmp_renew(&a.h), 0);
    EXPECT_EQ(a.h.until, w.now + 2 * INTERVAL);
}

/* As after a long silence of the device. */
TEST_F(Mmp, ALateRenewalTakesTheBlockAgain)
{
    Holder a(w, "alpha");
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    w.now += 5 * INTERVAL;
    EXPECT_EQ(takes([&] { EXPECT_EQ(lay_mmp_renew(&a.h), 0); }), LAY_MMP_SETTLE_NS / MS);
    EXPECT_GT(a.h.until, w.now);
    w.now += 5 * INTERVAL;
    w.late = S;
    EXPECT_GE(takes([&] { EXPECT_EQ(lay_mmp_renew(&a.h), 0); }), 3 * INTERVAL / MS);
    EXPECT_GT(a.h.until, w.now);
}

TEST_F(Mmp, AnInterruptedWaitTakesNothing)
{
    Holder a(w, "alpha"), b(w, "beta", 2);
    ASSERT_EQ(lay_mmp_take(&a.h), 0);
    lay_mmp before = w.block;
    w.interrupted = true;
    EXPECT_EQ(lay_mmp_take(&b.h), -EINTR);
    EXPECT_EQ(memcmp(&before, &w.block, sizeof(before)), 0);
    w.now += 5 * INTERVAL;
    uint64_t until = a.h.until;
    EXPECT_EQ(lay_mmp_renew(&a.h), -EINTR);
    EXPECT_EQ(a.h.until, until) << "the right came back without a check";
}

TEST_F(Mmp, TheTextIsPrintable)
{
    char text[LAY_MMP_TEXT];
    lay_mmp b = free_block();
    memset(b.host, '\n', sizeof(b.host));
    lay_mmp_text(&b, text, sizeof(text));
    for (const char *c = text; *c; c++)
        EXPECT_GE(*c, ' ');
    EXPECT_LT(strlen(text), sizeof(text) - 1);
    lay_mmp damaged{};
    lay_mmp_text(&damaged, text, sizeof(text));
    EXPECT_NE(strstr(text, "damaged"), nullptr);
}

/* --- Many holders, in an order that a seed draws -------------------------------------------- */

/*
 * Runs threads one at a time in virtual time: the one whose time comes first runs until it sleeps.
 */
class Schedule
{
  public:
    explicit Schedule(uint64_t seed) : random(seed) {}
    unsigned add()
    {
        wake.push_back(0);
        return (unsigned)wake.size() - 1;
    }
    void begin(unsigned id)
    {
        std::unique_lock lock(mutex);
        turn.wait(lock, [&] { return running == id; });
    }
    void sleep(unsigned id, uint64_t ns)
    {
        std::unique_lock lock(mutex);
        wake[id] = now + ns;
        pass();
        turn.wait(lock, [&] { return running == id; });
        now = wake[id];
    }
    void end(unsigned id)
    {
        std::unique_lock lock(mutex);
        wake[id] = UINT64_MAX;
        pass();
    }
    void start()
    {
        std::unique_lock lock(mutex);
        pass();
    }
    uint64_t draw(uint64_t below) { return random() % below; }
    /* Most transfers and threads are quick; some are late by more than the protocol permits. */
    uint64_t delay()
    {
        unsigned kind = (unsigned)draw(40);
        return kind == 0 ? draw(3 * INTERVAL) : kind < 4 ? draw(300 * MS) : draw(5 * MS);
    }

    uint64_t now = S;

  private:
    void pass()
    {
        running = 0;
        for (unsigned i = 1; i < wake.size(); i++) {
            if (wake[i] < wake[running] || (wake[i] == wake[running] && draw(2)))
                running = i;
        }
        turn.notify_all();
    }

    std::mutex mutex;
    std::condition_variable turn;
    std::vector<uint64_t> wake;
    unsigned running = UINT32_MAX;
    std::mt19937_64 random;
};

struct Arena {
    explicit Arena(uint64_t seed) : schedule(seed) {}
    Schedule schedule;
    lay_mmp block = free_block();
    std::vector<std::unique_ptr<struct Player>> players;
    unsigned taken = 0, both = 0;
};

/* Takes the block, keeps it for a while, and releases it or stops without a word. */
struct Player {
    Player(Arena &arena, uint8_t boot) : a(arena), id(arena.schedule.add())
    {
        fill(h, "host", boot, 0);
        h.io.arg = this;
        h.io.read = [](void *arg, lay_mmp *b) { return self(arg).read(b); };
        h.io.write = [](void *arg, const lay_mmp *b, bool) { return self(arg).write(b); };
        h.io.now = [](void *arg) { return self(arg).a.schedule.now; };
        h.io.wait = [](void *arg, uint64_t ns) {
            self(arg).a.schedule.sleep(self(arg).id, ns + self(arg).a.schedule.delay());
            return 0;
        };
    }
    static Player &self(void *arg) { return *static_cast<Player *>(arg); }
    int read(lay_mmp *b)
    {
        a.schedule.sleep(id, a.schedule.delay());
        *b = a.block;
        a.schedule.sleep(id, a.schedule.delay());
        return 0;
    }
    int write(const lay_mmp *b)
    {
        lay_mmp copy = *b;
        a.schedule.sleep(id, a.schedule.delay() % INTERVAL);
        a.block = copy;
        a.schedule.sleep(id, a.schedule.delay());
        return 0;
    }
    /* What it sends until the end of its right takes effect within an interval. */
    void gained()
    {
        if (h.until <= a.schedule.now)
            return;
        quiet = h.until + INTERVAL;
        a.taken++;
        for (auto &p : a.players)
            a.both += p.get() != this && p->quiet > a.schedule.now;
    }
    void live()
    {
        fill(h, "host", h.boot_id[0], 0);
        if (lay_mmp_take(&h) != 0)
            return;
        gained();
        for (uint64_t n = a.schedule.draw(6); n > 0; n--) {
            a.schedule.sleep(id, INTERVAL + a.schedule.delay());
            if (lay_mmp_renew(&h) != 0) {
                quiet = std::min(quiet, a.schedule.now + INTERVAL);
                return;
            }
            gained();
        }
        if (a.schedule.draw(2) == 0) {
            quiet = 0; /* everything is written */
            (void)lay_mmp_release(&h);
        }
    }
    void run()
    {
        a.schedule.begin(id);
        for (unsigned round = 0; round < 3; round++) {
            a.schedule.sleep(id, a.schedule.draw(4 * INTERVAL));
            live();
            if (quiet > a.schedule.now)
                a.schedule.sleep(id, quiet - a.schedule.now);
        }
        a.schedule.end(id);
    }

    Arena &a;
    unsigned id;
    lay_mmp_hold h{};
    uint64_t quiet = 0; /* from then on it changes nothing */
};

TEST(MmpRandom, NoTwoHoldersMayWriteAtOnce)
{
    unsigned taken = 0;
    for (uint64_t seed = 0; seed < 4000; seed++) {
        Arena arena(seed);
        std::vector<std::thread> threads;
        for (uint8_t i = 0; i < 3; i++)
            arena.players.push_back(std::make_unique<Player>(arena, i + 1));
        for (auto &p : arena.players)
            threads.emplace_back([&p] { p->run(); });
        arena.schedule.start();
        for (auto &t : threads)
            t.join();
        ASSERT_EQ(arena.both, 0u) << "seed " << seed;
        taken += arena.taken;
    }
    EXPECT_GT(taken, 10000u);
}

TEST(MmpBlock, HasExactLimits)
{
    const lay_geometry geo = geometry();
    auto check = [&](uint32_t interval, uint32_t state) {
        lay_mmp b = free_block();
        b.interval = lay_put32(interval);
        b.state = lay_put32(state);
        lay_seal(&b, 0);
        return lay_check_mmp(&geo, &b, nullptr);
    };
    EXPECT_EQ(check(LAY_MMP_INTERVAL_MIN, LAY_MMP_CHECKED), 0);
    EXPECT_EQ(check(LAY_MMP_INTERVAL_MAX, LAY_MMP_CHECKED), 0);
}

} // namespace
