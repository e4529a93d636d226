/* SPDX-License-Identifier: BSD-2-Clause */
// Tests lists of reads. The drive has a turn after each round, in which the test chooses its
// completions. Some rounds publish nothing. Other groups deal a list among themselves.
#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

extern "C" {
#include "tests/cuda/queue/gq_reads_rig.h"
}
#include "tests/cuda/queue/host_queue.h"

namespace
{

constexpr uint32_t kLanes = READS_RIG_LANES, kDepth = 128, kReads = 3000, kRounds = 100000;
constexpr uint64_t kLba = 512, kLbas = 2048, kPlace = 1024; // a read's, in the target
constexpr uint32_t kFailed = 0x281;
constexpr uint8_t kUntouched = 0xee;
constexpr size_t kAll = SIZE_MAX;

// Addresses of the controller are those of the process.
gq_target target_of(std::vector<Page> &pages)
{
    uint64_t base = reinterpret_cast<uint64_t>(pages.data());
    return {base, base, 0, 0, pages.size() * sizeof(Page)};
}

class Drive : public reads_rig
{
  public:
    std::function<size_t()> completes = [] { return kAll; }; // commands, after a round
    std::function<void()> before_first_half = [] {};
    std::vector<bool> bad = std::vector<bool>(kLbas);
    // Counted: rounds; those that published nothing; rounds since the last command came; the most
    /* stored by a doorbell, and polled by a round */
    uint32_t rounds = 0, halves = 0, calm = 0, longest_reply = 0, most_taken = 0;
    uint32_t flags = 0;

    // Every so many reads one is staged; 0: none is.
    explicit Drive(uint32_t staged_every) : reads_rig()
    {
        memset(target_.data(), kUntouched, target_.size() * sizeof(Page));
        make_list(staged_every);
        port = q_.port();
        state.phase = 1;
        reads.map = {&extent_, kLbas * kLba, 1, kLba};
        reads.target = target_of(target_);
        reads.staging = target_of(staging_);
        reads.desc = list_.data();
        reads.lane_staging = kLba;
        reads.unit = reads.max_command = 8192;
        run.flags = &flags;
        run.command_ns = 60000000000u;
        run.n_cmds = kReads;
        run.n_queues = run.nsid = 1;
        run.group_shift = 5;
        run.opcode = NVME_IO_READ;
        after = [](reads_rig *rig) { static_cast<Drive *>(rig)->serve(); };
    }
    Drive(const Drive &) = delete;
    Drive &operator=(const Drive &) = delete;

    void go() { reads_rig_run(this, kRounds); }

    // The queue was handed back as the drive knows it.
    void expect_agreement() const
    {
        uint32_t unseen = (q_.tail() + kDepth - state.cq_head) % kDepth;
        EXPECT_EQ(state.sq_tail, q_.sq_doorbell);
        EXPECT_EQ(state.cq_head, q_.cq_doorbell);
        EXPECT_EQ(state.in_flight, held_.size() + unseen);
        EXPECT_EQ(state.sent, q_.posted + held_.size());
    }

    /*
     * A read that succeeded has its bytes, a read that failed has none, and no
     * read has foreign bytes.
     */
    void expect_bytes() const
    {
        for (uint32_t i = 0; i < kReads; i++) {
            const gq_read_desc &read = list_[i];
            const uint8_t *place = target_[0].bytes + i * kPlace;
            std::vector<uint8_t> expected(kPlace, kUntouched);
            if (read.result > 0)
                memcpy(&expected[read.at % kPlace], &media_[read.file_offset], read.len);
            ASSERT_EQ(memcmp(place, expected.data(), kPlace), 0) << i << " result " << read.result;
        }
    }

    void expect_results() const
    {
        for (uint32_t i = 0; i < kReads; i++)
            ASSERT_EQ(list_[i].result,
                      bad[list_[i].file_offset / kLba] ? -EIO : static_cast<int32_t>(list_[i].len))
                << i;
    }

  private:
    void make_list(uint32_t staged_every)
    {
        for (uint64_t i = 0; i < kReads; i++) {
            uint64_t offset = i * 37 % kLbas * kLba, at = i * kPlace;
            if (staged_every && i % staged_every == 0)
                list_.push_back({offset + 5, at + 1, 300, INT32_MIN});
            else
                list_.push_back({offset, at, kLba, INT32_MIN});
        }
    }

    void serve()
    {
        rounds++;
        most_taken = std::max(most_taken, (cq_head + kDepth - seen_) % kDepth);
        seen_ = cq_head;
        fetch();
        std::shuffle(held_.begin(), held_.end(), random_);
        for (size_t n = std::min(completes(), held_.size()); n; n--)
            complete();
        if (holds_back && halves++ == 0)
            before_first_half();
    }

    void fetch()
    {
        longest_reply = std::max(longest_reply, q_.fresh());
        calm = q_.fresh() ? 0 : calm + 1;
        while (q_.fresh()) {
            nvme_sqe &entry = q_.sq[q_.head];
            held_.push_back(q_.fetch());
            EXPECT_EQ(entry.opcode, NVME_IO_READ) << "the doorbell is ahead of the entry";
            entry = {};
        }
    }

    void complete()
    {
        const nvme_sqe sqe = held_.back();
        uint16_t status = bad[sqe.cdw10] ? kFailed : 0;
        held_.pop_back();
        EXPECT_EQ(sqe.cdw12, 0u) << "every read here is of one LBA";
        if (!status)
            memcpy(reinterpret_cast<void *>(sqe.prp1), &media_[sqe.cdw10 * kLba], kLba);
        q_.post(sqe.cid, status);
    }

    std::vector<uint8_t> media_ = host_media(kLbas * kLba);
    std::vector<Page> target_ = std::vector<Page>(kReads * kPlace / sizeof(Page) + 1);
    std::vector<Page> staging_ = std::vector<Page>(GQ_STAGING_LANES * kLba / sizeof(Page));
    std::vector<gq_read_desc> list_;
    gq_file_extent extent_ = {0, 0};
    HostQueue q_{kDepth};
    std::vector<nvme_sqe> held_;
    uint32_t seen_ = 0;
    std::mt19937 random_{1};
};

TEST(GqReadsHalf, TwoRoundsHaveOneDoorbellWhereAllHasEnded)
{
    Drive d(0);

    d.go();
    EXPECT_EQ(d.state.outcome, GQ_OUT_DONE);
    EXPECT_GT(d.halves, 0u);
    EXPECT_GT(d.longest_reply, kLanes);
    EXPECT_LE(d.longest_reply, 2 * kLanes);
    EXPECT_GT(d.most_taken, kLanes) << "as many are loaded as were posted";
    d.expect_agreement();
    d.expect_results();
    d.expect_bytes();
}

// Once the completions that had accumulated are polled: twenty rounds are more than enough.
TEST(GqReadsHalf, NoRoundHoldsBackWhereFewHaveEnded)
{
    constexpr uint32_t kBulk = 20, kFew = 40;
    uint32_t halves_of_bulk = 0;
    Drive d(0);

    d.completes = [&] {
        if (d.rounds <= kFew)
            halves_of_bulk = d.halves + d.holds_back;
        return d.rounds < kBulk ? kAll : 8;
    };
    d.go();
    EXPECT_EQ(d.state.outcome, GQ_OUT_DONE);
    EXPECT_GT(d.rounds, 2 * kFew);
    EXPECT_GT(halves_of_bulk, 0u);
    EXPECT_EQ(d.halves, halves_of_bulk);
    d.expect_agreement();
    d.expect_bytes();
}

// Nothing completes until no commands come any more, then all does for some rounds, in any order: a
// round polls more than one for each lane. Half of the reads being staged, too few commands
// would be in flight for that: a staged one has its lane until it ends.
void read_in_bursts(Drive *d)
{
    uint32_t until = 0;

    d->completes = [&] {
        if (d->calm > 3)
            until = d->rounds + 8;
        return d->rounds < until ? kAll : 0;
    };
    d->go();
    EXPECT_EQ(d->state.outcome, GQ_OUT_DONE);
    EXPECT_GT(d->most_taken, kLanes);
    d->expect_agreement();
    d->expect_results();
    d->expect_bytes();
}

TEST(GqReadsHalf, StagedReadsEndInAnyOrder)
{
    for (uint32_t every : {3u, 4u}) {
        Drive d(every);

        SCOPED_TRACE(every);
        read_in_bursts(&d);
    }
}

TEST(GqReadsHalf, StagedReadsThatFailWriteNothing)
{
    for (uint32_t every : {3u, 4u}) {
        Drive d(every);

        SCOPED_TRACE(every);
        for (uint32_t lba = 0; lba < kLbas; lba += 3)
            d.bad[lba] = true;
        read_in_bursts(&d);
    }
}

/* The next check of the flags is due before a round that does not publish. */
TEST(GqReadsHalf, NothingIsPostedAndNotPublishedWhenTheHostEndsARun)
{
    for (uint32_t flag : {GQ_FLAG_LEAVE, GQ_FLAG_CANCEL}) {
        Drive d(0);

        SCOPED_TRACE(flag);
        d.before_first_half = [&] {
            d.flags = flag;
            usleep(1000);
        };
        d.go();
        EXPECT_EQ(d.state.outcome, flag == GQ_FLAG_LEAVE ? GQ_OUT_LEFT : GQ_OUT_CANCELLED);
        EXPECT_GT(d.halves, 0u);
        d.expect_agreement();
    }
}

TEST(GqReadsHalf, NothingIsPostedAndNotPublishedWhenACommandIsLate)
{
    Drive d(0);

    d.run.command_ns = 100000000;
    d.before_first_half = [&] { usleep(100000); };
    d.go();
    EXPECT_EQ(d.state.outcome, GQ_OUT_TIMED_OUT);
    EXPECT_GT(d.state.in_flight, 0u);
    d.expect_agreement();
}

// --- Lists that groups of different speed deal among themselves ----------------------------------

constexpr uint32_t kGroups = DEALING_RIG_GROUPS;

class Dealing : public dealing_rig
{
  public:
    Dealing(uint32_t n, uint32_t shift, bool by_counter) : dealing_rig(), reads(n)
    {
        run.n_cmds = n;
        run.n_queues = kGroups;
        run.group_shift = (uint16_t)shift;
        run.dealing = by_counter ? &dealing : nullptr;
    }

    // The group's next portion; its number of reads, 0 when there is none.
    uint32_t take(uint32_t rank)
    {
        uint32_t first, end;

        if (!dealing_rig_take(this, rank, &first, &end))
            return 0;
        for (uint32_t i = first; i < end; i++)
            reads.at(i)++;
        return end - first;
    }

    // Group 0 needs `slower` times the time of the other groups for a read. When each group ends.
    std::vector<uint64_t> run_all(uint64_t slower)
    {
        std::vector<uint64_t> time(kGroups), ended(kGroups);
        size_t running = kGroups;

        while (running) {
            size_t next = kGroups;
            for (size_t g = 0; g < kGroups; g++) {
                if (!ended[g] && (next == kGroups || time[g] < time[next]))
                    next = g;
            }
            uint32_t n = take(static_cast<uint32_t>(next));
            time[next] += n * (next ? 1 : slower);
            ended[next] = n ? 0 : std::max<uint64_t>(time[next], 1);
            running -= n == 0;
        }
        return ended;
    }

    std::vector<uint32_t> reads; // times that each was taken
};

using Lists = testing::TestWithParam<std::tuple<uint32_t, uint32_t, bool>>;

TEST_P(Lists, EachReadIsTakenOnce)
{
    auto [n, shift, by_counter] = GetParam();
    Dealing d(n, shift, by_counter);

    d.run_all(3);
    EXPECT_EQ(std::count(d.reads.begin(), d.reads.end(), 1u), n);
}

INSTANTIATE_TEST_SUITE_P(Dealing, Lists,
                         testing::Combine(testing::Values(1u, 7u, 8u, 9u, 1000u, 100001u),
                                          testing::Values(0u, 3u, 5u, 7u), testing::Bool()));

TEST(Dealing, SlowGroupGetsFewerReadsAndAllEndTogether)
{
    Dealing counter(100000, 7, true), in_turn(100000, 7, false);
    auto with = counter.run_all(4), without = in_turn.run_all(4);
    auto spread = [](const std::vector<uint64_t> &t) {
        auto [least, most] = std::minmax_element(t.begin(), t.end());
        return static_cast<double>(*most - *least) / static_cast<double>(*most);
    };

    EXPECT_LT(spread(with), 0.01);
    EXPECT_GT(spread(without), 0.5);
}

TEST(Dealing, GroupsEndTogetherByPortionsOfOneRead)
{
    auto spread = [](uint16_t least) {
        Dealing d(512, 5, true);
        d.run.least_portion = least;
        std::vector<uint64_t> ended = d.run_all(4);
        auto [first, last] = std::minmax_element(ended.begin(), ended.end());
        EXPECT_EQ(std::count(d.reads.begin(), d.reads.end(), 1u), 512);
        return *last - *first;
    };

    EXPECT_LE(spread(1), 4u) << "one read of the slow group";
    EXPECT_GT(spread(0), 8u);
}

TEST(Dealing, LastGroupLearnsWhatNoneHasTakenAndTheWordsAreZero)
{
    Dealing d(10000, 5, true);
    uint32_t rest = 0;

    for (uint32_t g = 0; g < kGroups; g++) {
        d.take(g);
        EXPECT_EQ(dealing_rig_leave(&d, g, &rest), g == kGroups - 1) << g;
    }
    EXPECT_EQ(rest, 32 * kGroups);
    EXPECT_EQ(d.dealing.next, 0u);
    EXPECT_EQ(d.dealing.left, 0u);
}

TEST(Dealing, GroupThatBeginsLateFindsNothing)
{
    Dealing d(1000, 5, true);
    uint32_t rest = 0;

    while (d.take(0))
        ;
    for (uint32_t g = 1; g < kGroups; g++)
        EXPECT_EQ(d.take(g), 0u);
    for (uint32_t g = 0; g < kGroups; g++)
        dealing_rig_leave(&d, g, &rest);
    EXPECT_GE(rest, 1000u);
}

} // namespace
