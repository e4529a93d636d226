/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The rules of format 3 hold in every state that a crash or one failure of a
 * device leaves; each planted mistake is found.
 */
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/model/explorer.h"

namespace model
{
namespace
{

/* Every kind of operation, with the ring of the log filled several times. */
void use(Disks &disks, Plant plant, Oracle &oracle)
{
    FileSystem fs(disks, plant, oracle, 0);

    if (fs.mount(true) != Mount::ok)
        return;
    for (uint8_t t : {1, 2, 3})
        fs.commit(t);
    fs.commit_nothing();
    fs.checkpoint();
    fs.commit_two(5);
    fs.checkpoint();
    fs.commit(7);
    fs.checkpoint(false, 8);
    fs.commit(9);
    fs.begin_move();
    fs.commit(11);
    fs.checkpoint();
    fs.commit(12);
    fs.end_move();
    fs.reuse_space(13);
    fs.checkpoint();
    fs.commit(14);
    fs.checkpoint();
    fs.move_log();
    fs.commit(15);
    fs.unmount();
    FileSystem again(disks, plant, oracle, 0);
    if (again.mount(true) != Mount::ok)
        return;
    again.commit(17);
    again.commit(18);
    /* This mount has a log to replay. */
    FileSystem recovered(disks, plant, oracle, 0);
    if (recovered.mount(true) != Mount::ok || !recovered.writable())
        return;
    recovered.commit(19);
    if (disks.observer)
        disks.observer();
}

Disks made(int members, Oracle &oracle)
{
    Disks disks(members);
    FileSystem fs(disks, Plant::none, oracle, 0);

    fs.format(members);
    for (int m = 0; m < members; m++)
        disks.flush(m);
    disks.trace.clear();
    disks.writes = 0;
    return disks;
}

/* A run without failures; the explorer looks at each moment. */
void run(Explorer &explorer, int members)
{
    Oracle oracle;
    Disks disks = made(members, oracle);

    disks.observer = [&] { explorer.crash(disks, oracle); };
    use(disks, explorer.plant, oracle);
}

/* --- Explorations, each of which returns the number of states or a report --------------------- */

struct Result {
    std::string report;
    unsigned long images = 0;

    void take(const Explorer &explorer)
    {
        images += explorer.images;
        if (report.empty())
            report = explorer.report;
    }
};

Result crashes(Plant plant, int members)
{
    Explorer explorer(plant, {});
    Result result;

    run(explorer, members);
    result.take(explorer);
    return result;
}

/* One device fails to do one write, whichever it is. */
void fail(Result &result, Plant plant, int members, const Fault &fault, const Traced &write)
{
    Demands demands;
    demands.exact = members > 1 || (write.verified && fault.kind != Fault::misdirected);
    demands.before = fault.kind != Fault::misdirected;
    demands.degraded = members > 1;
    demands.data = false;
    demands.few = true;
    demands.recoveries = 0;
    Explorer explorer(plant, demands);
    Oracle oracle;
    Disks disks = made(members, oracle);
    disks.fault = fault;
    disks.observer = [&] {
        if (disks.writes >= fault.number)
            explorer.crash(disks, oracle);
    };
    use(disks, plant, oracle);
    result.take(explorer);
    if (!result.report.empty() && result.report.find("write ") == std::string::npos)
        result.report += "; write " + std::to_string(fault.number) + " to block " +
                         std::to_string(write.at) + " of device " + std::to_string(write.device) +
                         (fault.kind == Fault::lost   ? " lost"
                          : fault.kind == Fault::torn ? " torn"
                                                      : " misdirected to block ") +
                         (fault.kind == Fault::misdirected ? std::to_string(fault.victim) : "");
}

Result failures(Plant plant, int members, std::initializer_list<Fault::Kind> kinds, unsigned stride)
{
    Result result;
    Oracle oracle;
    Disks plain = made(members, oracle);

    use(plain, plant, oracle);
    for (Fault::Kind kind : kinds) {
        for (unsigned n = 1; n <= plain.writes && result.report.empty(); n++) {
            unsigned victims = kind == Fault::misdirected ? (unsigned)DEVICE_BLOCKS : 1;
            for (unsigned victim = n % stride; victim < victims && result.report.empty();
                 victim += stride)
                fail(result, plant, members, {kind, n, victim}, plain.trace[n - 1]);
        }
    }
    return result;
}

/* Damages each state further by `damage`, which calls check(). */
Result damaged(Plant plant, int members, Demands demands,
               const std::function<void(Explorer &, const Disks &, const Oracle &)> &damage)
{
    demands.few = true;
    demands.recoveries = 0;
    Explorer explorer(plant, demands);
    Result result;

    explorer.damage = [&](const Disks &image, const Oracle &oracle) {
        damage(explorer, image, oracle);
    };
    run(explorer, members);
    result.take(explorer);
    return result;
}

Demands with_a_member_less(bool data = true)
{
    Demands demands;

    demands.degraded = true;
    demands.data = data;
    return demands;
}

/* One member may refuse what two must survive; neither believes it. */
Demands of_one_block(int members)
{
    Demands demands = with_a_member_less(false);

    demands.exact = members > 1;
    return demands;
}

/* One bit of one block of metadata. */
Result flips(Plant plant, int members)
{
    return damaged(plant, members, {},
                   [](Explorer &explorer, const Disks &image, const Oracle &oracle) {
                       Disks flipped = image;
                       for (int m = 0; m < image.count; m++) {
                           for (Block &block : flipped.durable[m]) {
                               if (block.kind == Kind::none || block.kind == Kind::data ||
                                   block.state != State::sound)
                                   continue;
                               block.state = State::flipped;
                               explorer.check(flipped, oracle);
                               block.state = State::sound;
                           }
                       }
                   });
}

/* Of two members a quarter of the blocks, which changes from state to state. */
bool is_turn(unsigned long images, int members, unsigned at)
{
    return members == 1 || (at + images) % 4 == 0;
}

/* One block is unreadable, or zeros, as unmapped LBAs are. */
Result rotten(Plant plant, int members)
{
    unsigned long states = 0;

    return damaged(plant, members, of_one_block(members),
                   [&](Explorer &explorer, const Disks &image, const Oracle &oracle) {
                       Disks rotten = image;
                       states++;
                       for (int m = 0; m < image.count; m++) {
                           for (unsigned at = 0; at < DEVICE_BLOCKS; at++) {
                               Block &block = rotten.durable[m][at];
                               const Block saved = block;
                               if (!is_turn(states, members, at))
                                   continue;
                               block.state = State::torn;
                               explorer.check(rotten, oracle);
                               block = {};
                               explorer.check(rotten, oracle);
                               block = saved;
                           }
                       }
                   });
}

/* One block has the content that it had at some time before. */
Result stale(Plant plant, int members)
{
    std::vector<Block> past[MAX_DEVICES][DEVICE_BLOCKS];
    unsigned long states = 0;

    return damaged(plant, members, of_one_block(members),
                   [&](Explorer &explorer, const Disks &image, const Oracle &oracle) {
                       Disks old = image;
                       states++;
                       for (int m = 0; m < image.count; m++) {
                           for (unsigned at = 0; at < DEVICE_BLOCKS; at++) {
                               std::vector<Block> &was = past[m][at];
                               const Block is = image.durable[m][at];
                               for (const Block &block : was) {
                                   if (!is_turn(states, members, at))
                                       break;
                                   old.durable[m][at] = block;
                                   explorer.check(old, oracle);
                               }
                               old.durable[m][at] = is;
                               if (std::find(was.begin(), was.end(), is) == was.end())
                                   was.push_back(is);
                           }
                       }
                   });
}

/* A whole member is gone after the crash. */
Result dead_members(Plant plant)
{
    return damaged(plant, 2, with_a_member_less(),
                   [](Explorer &explorer, const Disks &image, const Oracle &o) {
                       for (int m = 0; m < image.count; m++) {
                           Disks left = image;
                           left.present[m] = false;
                           explorer.check(left, o);
                       }
                   });
}

/* A member dies after the recovery has begun. */
Result dead_in_recovery(Plant plant)
{
    return damaged(plant, 2, with_a_member_less(),
                   [](Explorer &explorer, const Disks &image, const Oracle &o) {
                       Disks disks = image;
                       Oracle inner = o;
                       FileSystem fs(disks, explorer.plant, inner, 1);
                       disks.observer = [&] {
                           for (int m = 0; m < disks.count; m++) {
                               Disks left = disks;
                               left.observer = nullptr;
                               left.present[m] = false;
                               left.pending.clear();
                               explorer.check(left, inner);
                           }
                       };
                       if (fs.mount(false) == Mount::ok)
                           disks.observer();
                   });
}

Result swapped(Plant plant)
{
    return damaged(plant, 3, {}, [](Explorer &explorer, const Disks &image, const Oracle &o) {
        for (auto [a, b] : {std::pair{0, 1}, {0, 2}, {1, 2}}) {
            Disks other = image;
            std::swap(other.durable[a], other.durable[b]);
            explorer.check(other, o);
        }
    });
}

/*
 * One member is as it was some time ago. What an older incarnation wrote is
 * found by the label; within an incarnation metadata is found by its age, and
 * data only by checksums, which the model does not have.
 */
Result rolled_back(Plant plant, int members, bool same_incarnation)
{
    std::vector<std::array<Device, MAX_DEVICES>> past;

    return damaged(plant, members, with_a_member_less(!same_incarnation),
                   [&](Explorer &explorer, const Disks &image, const Oracle &o) {
                       for (const auto &then : past) {
                           for (int m = 0; m < image.count; m++) {
                               const Block &was = then[m][LABEL_PLACE], &is = image.durable[m][0];
                               if (same_incarnation ? was.inc != is.inc
                                                    : was.inc.counter >= o.commit.inc.counter)
                                   continue;
                               Disks old = image;
                               old.durable[m] = then[m];
                               explorer.check(old, o);
                           }
                       }
                       bool known = false;
                       for (const auto &then : past)
                           known = known || then[0][0].inc == image.durable[0][0].inc;
                       if (!known || (same_incarnation && past.size() < 40))
                           past.push_back(image.durable);
                   });
}

/* --- Histories of three members --------------------------------------------------------------- */

struct History {
    Disks disks;
    Oracle oracle;
    Explorer explorer;

    explicit History(Plant plant, int members = 3, bool degraded = false)
        : disks(members), explorer(plant, {})
    {
        explorer.demands.degraded = degraded;
        disks = made(members, oracle);
    }
    /* Mounts, commits transactions up to t, and unmounts or crashes. */
    void session(uint8_t t, uint8_t salt, bool clean = true)
    {
        FileSystem fs(disks, explorer.plant, oracle, salt);
        EXPECT_EQ(fs.mount(true), Mount::ok);
        fs.commit(t);
        if (clean)
            fs.unmount();
    }
    Result result() const
    {
        return {explorer.report, explorer.images};
    }
};

/* A member misses a session, and comes back. */
Result returned(Plant plant)
{
    Result result;

    for (int away = 0; away < 3; away++) {
        for (bool clean : {true, false}) {
            History h(plant, 3, true);
            h.session(1, 0);
            h.disks.present[away] = false;
            h.session(2, 0, clean);
            h.disks.present[away] = true;
            h.explorer.check(h.disks, h.oracle);
            result.take(h.explorer);
        }
    }
    return result;
}

/* Both sides were written without the other. */
Result split(Plant plant)
{
    Result result;

    for (int more = 0; more < 3; more++) {
        History h(plant, 2);
        h.session(1, 0);
        Device other = h.disks.durable[1];
        h.disks.present[1] = false;
        h.session(2, 1);
        std::swap(other, h.disks.durable[1]);
        h.disks.present[1] = true;
        h.disks.present[0] = false;
        for (int i = 0; i < 1 + more; i++)
            h.session(3, 2);
        h.disks.present[0] = true;
        FileSystem fs(h.disks, plant, h.oracle, 3);
        if (fs.mount(true) != Mount::split && result.report.empty())
            result.report = "a split was not refused";
        result.images++;
    }
    return result;
}

/* A newcomer's label was written, and the file system went on without it. */
Result joins(Plant plant)
{
    Result result;

    for (bool complete : {false, true}) {
        History h(plant, 2);
        std::vector<Disks> cut;
        h.disks.count = 3;
        h.disks.present[2] = true;
        FileSystem fs(h.disks, plant, h.oracle, 0);
        EXPECT_EQ(fs.mount(false), Mount::ok);
        h.disks.observer = [&] {
            h.explorer.crash(h.disks, h.oracle);
            cut.push_back(h.disks);
            cut.back().observer = nullptr;
            cut.back().pending.clear();
        };
        fs.join(2, complete);
        fs.commit(1);
        h.disks.observer = nullptr;
        h.explorer.check(h.disks, h.oracle);
        for (Disks &disks : cut) {
            Oracle oracle;
            if (disks.durable[0][0].inc == disks.durable[2][0].inc)
                continue;
            disks.present[2] = false;
            FileSystem without(disks, plant, oracle, 5);
            if (without.mount(false) != Mount::ok)
                continue;
            without.commit(1);
            disks.present[2] = true;
            h.explorer.check(disks, oracle);
        }
        result.take(h.explorer);
    }
    return result;
}

/* Another program has written to block 0; block 2048 is still ours. */
Result reformatted(Plant plant)
{
    History h(plant, 1);
    Result result = {"", 1};

    h.session(1, 0);
    h.disks.durable[0][LABEL_PLACE] = {};
    FileSystem fs(h.disks, plant, h.oracle, 1);
    if (fs.mount(true) != Mount::foreign)
        result.report = "a device of another program was mounted";
    return result;
}

/* Recovery crashes again and again at the same moment, with a full log. */
Result crash_loops(Plant plant)
{
    History h(plant, 1);
    unsigned flushes = 1;

    FileSystem fs(h.disks, plant, h.oracle, 0);
    EXPECT_EQ(fs.mount(false), Mount::ok);
    for (uint8_t t : {1, 2, 3})
        fs.commit(t);
    fs.commit_nothing();
    for (unsigned at = 1; at <= flushes; at++) {
        Disks image = h.disks;
        for (int round = 0; round < 12; round++) {
            Disks disks = image;
            Oracle oracle = h.oracle;
            flushes = 0;
            disks.observer = [&] {
                if (flushes++ != at)
                    return;
                image = disks;
                image.observer = nullptr;
                image.pending.clear();
            };
            FileSystem again(disks, plant, oracle, (uint8_t)(round % 7 + 1));
            again.mount(false);
        }
        h.explorer.check(image, h.oracle);
    }
    return h.result();
}

/* A member leaves, or a log loses its role; crashes at every moment. */
Result leaves(Plant plant)
{
    Result result;

    for (int what = 0; what < 2; what++) {
        History h(plant);
        FileSystem fs(h.disks, plant, h.oracle, 0);
        EXPECT_EQ(fs.mount(false), Mount::ok);
        fs.commit(1);
        h.disks.observer = [&] { h.explorer.crash(h.disks, h.oracle); };
        if (what)
            fs.leave(2);
        else
            fs.drop_log(1);
        fs.commit(2);
        h.disks.observer();
        result.take(h.explorer);
    }
    return result;
}

/* --- Tests ------------------------------------------------------------------------------------ */

struct Exploration {
    const char *name;
    std::function<Result(Plant)> explore;
    std::vector<Plant> finds; /* mistakes for which it is tried first, since others take longer */
};

const Exploration explorations[] = {
    {"split", split, {}},
    {"reformatted", reformatted, {}},
    {"crash loops", crash_loops, {}},
    {"returned", returned, {}},
    {"joins", joins, {}},
    {"leaves", leaves, {}},
    {"crashes of one member",
     [](Plant p) { return crashes(p, 1); },
     {Plant::label_before_new_log, Plant::home_of_running, Plant::reuse_before_tail,
      Plant::map_of_home, Plant::move_to_one_place}},
    {"flips", [](Plant p) { return flips(p, 1); }, {Plant::flip_not_corrected}},
    {"rotten blocks",
     [](Plant p) { return rotten(p, 1); },
     {Plant::clean_note_of_any_incarnation, Plant::gap_ignored}},
    {"stale blocks",
     [](Plant p) { return stale(p, 1); },
     {Plant::clean_note_followed, Plant::age_ignored, Plant::superblock_age_ignored}},
    {"swapped members", swapped, {Plant::new_log_has_new_incarnation, Plant::members_by_order}},
    {"dead members", dead_members, {Plant::ack_on_one_log}},
    {"dead members in recovery", dead_in_recovery, {Plant::logs_left_unequal}},
    {"members rolled back",
     [](Plant p) { return rolled_back(p, 3, false); },
     {Plant::rolled_back_used}},
    {"logs rolled back", [](Plant p) { return rolled_back(p, 2, true); }, {}},
    {"lost and torn writes",
     [](Plant p) {
         return failures(p, 1, {Fault::lost, Fault::torn}, 1);
     },
     {Plant::home_not_read_back, Plant::entries_not_read_back, Plant::tail_before_home,
      Plant::space_reused_at_once}},
    {"misdirected writes",
     [](Plant p) { return failures(p, 1, {Fault::misdirected}, 11); },
     {Plant::misplaced_commit_ignored}},
    {"crashes of two members", [](Plant p) { return crashes(p, 2); }, {}},
    {"lost and torn writes of two members",
     [](Plant p) {
         return failures(p, 2, {Fault::lost, Fault::torn}, 2);
     },
     {}},
    {"misdirected writes of two members",
     [](Plant p) { return failures(p, 2, {Fault::misdirected}, 53); },
     {}},
    {"rotten blocks of two members", [](Plant p) { return rotten(p, 2); }, {}},
    {"stale blocks of two members", [](Plant p) { return stale(p, 2); }, {}},
};

TEST(Model, FindsNothingWrongWithTheRules)
{
    for (const Exploration &e : explorations) {
        Result result = e.explore(Plant::none);
        printf("%10lu states: %s\n", result.images, e.name);
        EXPECT_EQ(result.report, "") << e.name;
        EXPECT_GT(result.images, 0u) << e.name;
    }
}

using Planted = ::testing::TestWithParam<int>;

TEST_P(Planted, MistakeIsFound)
{
    const auto mistake = (Plant)GetParam();
    std::vector<Exploration> order(std::begin(explorations), std::end(explorations));

    std::stable_partition(order.begin(), order.end(), [&](const Exploration &e) {
        return std::count(e.finds.begin(), e.finds.end(), mistake) > 0;
    });
    for (const Exploration &e : order) {
        Result result = e.explore(mistake);
        if (!result.report.empty()) {
            printf("%s: %s\n", e.name, result.report.c_str());
            return;
        }
    }
    ADD_FAILURE() << "the model does not find this mistake";
}

INSTANTIATE_TEST_SUITE_P(Every, Planted, ::testing::Range(1, (int)Plant::count));

} // namespace
} // namespace model
