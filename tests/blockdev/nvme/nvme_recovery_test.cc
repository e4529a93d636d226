/* SPDX-License-Identifier: BSD-2-Clause */
/* Recovery, step by step, against a controller that fails in chosen ways. */
#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "tests/blockdev/nvme/nvme_fake_test.h"
#include "tests/threads.h"

namespace
{

using Bytes = std::vector<uint8_t>;

constexpr unsigned ADMIN_MS = 200, IO_MS = 40;
constexpr unsigned SLACK_MS = 5000; /* of a loaded machine with sanitizers, on top of a bound */

inline uint64_t elapsed_ms(std::chrono::steady_clock::time_point since)
{
    auto d = std::chrono::steady_clock::now() - since;

    return (uint64_t)std::chrono::duration_cast<std::chrono::milliseconds>(d).count();
}

/* A device with one queue of four entries, something read from it already. */
class Recovery : public FakeTest
{
  public:
    void SetUp() override
    {
        auto *words = reinterpret_cast<uint64_t *>(fake.media.get());
        std::generate(words, words + (1 << 17), std::mt19937_64(1)); /* the MiB that is read */
        opts.admin_timeout_ms = ADMIN_MS;
        opts.io_timeout_ms = IO_MS;
        ASSERT_EQ(open(), 0);
        ASSERT_EQ(bd_nvme_open(c, 1, 1, 4, &dev), 0);
        ASSERT_TRUE(reads(0, 8192));
        fake.seen.clear();
        fake.sent.clear();
        fake.enables = 0;
    }

    void TearDown() override
    {
        FakeTest::TearDown();
        EXPECT_TRUE(fake.closed);
    }

    bool reads(uint64_t offset, size_t len)
    {
        Bytes back(len);
        return bd_read(dev, offset, back.data(), len) == 0 &&
               memcmp(back.data(), &fake.media[offset], len) == 0;
    }

    /* Several wraps of both rings, whose entries must be where the controller looks for them. */
    void expect_works()
    {
        for (unsigned i = 0; i < 50; i++)
            ASSERT_TRUE(reads(i * 12288, 12288)) << i;
        Bytes data(65536, 0x5a);
        ASSERT_EQ(bd_write(dev, 1 << 20, data.data(), data.size(), 0), 0);
        EXPECT_EQ(memcmp(&fake.media[1 << 20], data.data(), data.size()), 0);
    }

    struct Steps {
        unsigned aborts, deletions, enables;
    };

    void expect_steps(Steps want)
    {
        EXPECT_EQ(fake.count(NVME_ADMIN_ABORT), want.aborts);
        EXPECT_EQ(fake.count(NVME_ADMIN_DELETE_SQ), want.deletions);
        EXPECT_EQ(fake.count(NVME_ADMIN_DELETE_CQ), want.deletions);
        EXPECT_EQ(fake.enables, want.enables);
    }

    /* A read meets the failure and succeeds, after these steps. */
    void expect_recovery(Steps want)
    {
        EXPECT_TRUE(reads(4096, 4096));
        expect_steps(want);
        expect_works();
    }

    /* Commands complete again. */
    void lose_none()
    {
        fake.loses = [](const nvme_sqe &) { return false; };
    }

    /* Loses the next n commands with this opcode. */
    void lose(int opcode, unsigned n)
    {
        fake.loses = [opcode, n](const nvme_sqe &sqe) mutable {
            return sqe.opcode == opcode && n > 0 && n--;
        };
    }

    void fatal_at(int opcode)
    {
        fake.loses = [this, opcode](const nvme_sqe &sqe) {
            if (sqe.opcode == opcode)
                fake.csts |= NVME_CSTS_FATAL;
            return sqe.opcode == opcode;
        };
    }

    /* Everything ends with an error, soon, and nothing of it is left in the controller. */
    void expect_given_up(bool settled)
    {
        Bytes buf(8192);
        auto start = std::chrono::steady_clock::now();
        EXPECT_EQ(bd_read(dev, 0, buf.data(), buf.size()), -EIO);
        EXPECT_LT(elapsed_ms(start), bd_nvme_command_ms(dev) + SLACK_MS);
        EXPECT_EQ(nvme_ctrlr_settled(c), settled);
        EXPECT_FALSE(nvme_ctrlr_alive(c));
        size_t sent = fake.seen.size() + fake.sent.size();
        start = std::chrono::steady_clock::now();
        EXPECT_EQ(bd_write(dev, 0, buf.data(), 4096, BD_FUA), -EIO);
        EXPECT_EQ(bd_flush(dev), -EIO);
        EXPECT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), -EIO);
        EXPECT_LT(elapsed_ms(start), SLACK_MS);
        EXPECT_EQ(fake.seen.size() + fake.sent.size(), sent) << "something was sent";
    }

    using FakeTest::fake;
};

constexpr unsigned SILENT_READS = 10; /* a tenth of NVME_GONE_MS */

TEST_F(Recovery, NoStepIsTakenWhileCommandsComplete)
{
    expect_works();
    expect_steps({0, 0, 0});
}

TEST_F(Recovery, AnAbortedCommandIsSentAgain)
{
    fake.abort_works = true;
    lose(NVME_IO_READ, 1);
    EXPECT_TRUE(reads(4096, 4096));
    ASSERT_EQ(fake.seen.size(), 1u);
    EXPECT_EQ(fake.seen[0].opcode, NVME_ADMIN_ABORT);
    EXPECT_EQ(fake.seen[0].cdw10, (uint32_t)fake.sent[0].cid << 16 | 1) << "command and queue";
    EXPECT_EQ(fake.sent.size(), 2u);
    expect_steps({1, 0, 0});
    expect_works();
}

TEST_F(Recovery, CommandAbortedEveryTimeTimesOut)
{
    fake.abort_works = true;
    lose(NVME_IO_READ, 4);
    Bytes buf(4096);
    bd_io io{BD_READ, 0, 0, 4096, buf.data(), 0, 0};
    EXPECT_EQ(bd_submit(dev, &io, 1), -ETIMEDOUT);
    EXPECT_EQ(io.nvme_status & 0x7ff, NVME_ERR_ABORT_REQUESTED);
    EXPECT_EQ(fake.sent.size(), 4u);
    expect_steps({4, 0, 0});
    expect_works();
}

// The Abort is not done, for the command has just completed: that settles it.
TEST_F(Recovery, LateCompletionIsAccepted)
{
    lose(NVME_IO_READ, 1);
    fake.on_abort = [this](unsigned qid, unsigned cid) { EXPECT_TRUE(fake.end(qid, cid, 0)); };
    EXPECT_TRUE(reads(4096, 4096));
    EXPECT_EQ(fake.sent.size(), 1u) << "it has completed: not sent again";
    expect_steps({1, 0, 0});
    expect_works();
}

// What a controller says of a command that is not in flight frees no identifier a second time.
TEST_F(Recovery, CompletionOfAnIdleCommandIsDropped)
{
    unsigned extra = 0;
    fake.io_status = [&](const nvme_sqe &sqe) {
        nvme_sqe idle = sqe;
        idle.opcode = NVME_IO_FLUSH;
        idle.cid = (uint16_t)((sqe.cid + 1) % 3);
        fake.complete_io(1, idle, extra++ % 2 ? NVME_ERR_INTERNAL : 0);
        return 0;
    };
    for (unsigned i = 0; i < 20; i++)
        ASSERT_TRUE(reads(i * 4096, 4096)) << i;
    EXPECT_EQ(extra, 20u) << "none was sent again";
    fake.io_status = [](const nvme_sqe &) { return 0; };
    EXPECT_TRUE(reads(0, 1 << 20)) << "as many commands at once as the queue takes";
    expect_works();
    expect_steps({0, 0, 0});
}

// A controller that completes a command again when the next one has been sent, as some do after an
// Abort: the data of the next one has not arrived.
TEST_F(Recovery, ASecondCompletionIsNotTakenForThatOfTheNextCommand)
{
    nvme_sqe last = {};
    bool again = false;

    fake.abort_works = true;
    fake.loses = [&](const nvme_sqe &sqe) {
        again = !again;
        if (!again)
            fake.complete_io(1, last, 0);
        last = sqe;
        last.opcode = NVME_IO_FLUSH; /* it moves no data again */
        return !again;
    };
    for (unsigned i = 0; i < 6; i++)
        ASSERT_TRUE(reads(i * 4096, 4096)) << i;
    lose_none();
    expect_works();
    EXPECT_EQ(fake.enables, 0u);
}

TEST_F(Recovery, AnIdentifierIsNotTheSameTwiceInARowNorReserved)
{
    bd_close(dev);
    ASSERT_EQ(bd_nvme_open(c, 1, 1, 5, &dev), 0)
        << "four trackers, the last of which is used first";
    for (unsigned i = 0; i < 17000; i++) /* all that one tracker has */
        ASSERT_TRUE(reads(0, 4096)) << i;
    for (size_t i = 1; i < fake.sent.size(); i++) {
        ASSERT_NE(fake.sent[i].cid, fake.sent[i - 1].cid) << i;
        ASSERT_NE(fake.sent[i].cid, 0xffff) << i;
    }
}

struct Failure {
    const char *name;
    void (*prepare)(Recovery &);
    Recovery::Steps steps;
};

class RecoverySteps : public Recovery, public ::testing::WithParamInterface<Failure>
{
};

TEST_P(RecoverySteps, EndWithTheFirstThatHelps)
{
    GetParam().prepare(*this);
    expect_recovery(GetParam().steps);
    expect_steps(GetParam().steps);
}

INSTANTIATE_TEST_SUITE_P(
    Failures, RecoverySteps,
    ::testing::Values(
        Failure{"AbortDoesNotHelp", [](Recovery &r) { r.lose(NVME_IO_READ, 1); }, {1, 1, 0}},
        Failure{"ANewQueueDoesNotHelp", [](Recovery &r) { r.lose(NVME_IO_READ, 2); }, {2, 2, 1}},
        Failure{"CreationIsRefused",
                [](Recovery &r) {
                    r.fake.status_of_opcode[NVME_ADMIN_CREATE_CQ] = NVME_ERR_INTERNAL;
                    r.fake.on_enable = [&r] { r.fake.status_of_opcode.clear(); };
                    r.lose(NVME_IO_READ, 1);
                },
                {1, 1, 1}},
        Failure{"AbortIsLost",
                [](Recovery &r) {
                    r.fake.lose_opcode = NVME_ADMIN_ABORT;
                    r.lose(NVME_IO_READ, 1);
                },
                {1, 0, 1}},
        Failure{"FatalStatus",
                [](Recovery &r) {
                    r.fatal_at(NVME_IO_READ);
                    r.fake.on_enable = [&r] { r.lose_none(); };
                },
                {0, 0, 1}},
        // Another process has reset the function: the registers are those of a fresh one.
        Failure{"NotEnabled",
                [](Recovery &r) {
                    r.fake.loses = [&r](const nvme_sqe &) {
                        r.fake.cc = r.fake.csts = 0;
                        r.lose_none();
                        return true;
                    };
                },
                {0, 0, 1}}),
    [](const auto &info) { return info.param.name; });

TEST_F(Recovery, RefusedDeletionLeadsToAReset)
{
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_INTERNAL;
    fake.on_enable = [this] { fake.status_of_opcode.clear(); };
    lose(NVME_IO_READ, 1);
    EXPECT_TRUE(reads(4096, 4096));
    EXPECT_EQ(fake.enables, 1u);
    expect_works();
}

// While another process resets it, its registers read all-ones: the driver waits.
TEST_F(Recovery, ControllerThatAnswersAgainIsReset)
{
    fake.has_reset = true;
    fake.loses = [this](const nvme_sqe &) {
        fake.reset_from_outside(SILENT_READS);
        lose_none();
        return true;
    };
    EXPECT_TRUE(reads(4096, 4096));
    expect_steps({0, 0, 1});
    EXPECT_EQ(fake.device_resets, 0u);
    expect_works();
}

TEST_F(Recovery, AResetFromOutsideDuringAResetRestartsIt)
{
    fake.has_reset = true;
    for (unsigned at = 0; at < 24; at++) {
        unsigned read = 0;
        fake.enables = 0;
        fake.silence = at % 2 ? ~0u : 0;
        fake.on_read = [this, at, &read] {
            if (read++ == at / 2)
                fake.reset_from_outside(2);
        };
        ASSERT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), 0) << at;
        fake.on_read = [] {};
        ASSERT_TRUE(reads(0, 8192)) << at;
        EXPECT_EQ(fake.device_resets, 0u) << at;
        EXPECT_LE(fake.enables, 2u) << at;
    }
    expect_works();
}

TEST_F(Recovery, SeveralResetsFromOutsideInAResetAreSurvived)
{
    unsigned n = 5;
    fake.on_enable = [this, &n] {
        if (n && n--)
            fake.reset_from_outside(SILENT_READS);
    };
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.enables, 6u);
    expect_works();
}

TEST_F(Recovery, AnEnableWithoutAnAnswerIsTriedAgain)
{
    unsigned silent = 1;

    fake.on_enable = [&] { fake.silent = std::exchange(silent, 0); };
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.enables, 2u);
    expect_works();
}

TEST_F(Recovery, EndlessResetsFromOutsideKeepTheTimeLimit)
{
    fake.has_reset = true;
    fake.on_enable = [this] { fake.reset_from_outside(SILENT_READS); };
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), -EIO);
    EXPECT_LT(elapsed_ms(start), nvme_ctrlr_reset_ms(c) + SLACK_MS);
    expect_given_up(true);
}

TEST_F(Recovery, ResetFromOutsideHelpsIfTheRegistersDoNot)
{
    fake.has_reset = true;
    fake.never_disabled = true;
    fatal_at(NVME_IO_READ);
    fake.on_enable = [this] { lose_none(); };
    EXPECT_TRUE(reads(4096, 4096));
    EXPECT_EQ(fake.device_resets, 1u);
    expect_steps({0, 0, 1});
    expect_works();
}

TEST_F(Recovery, ResetFromOutsideHelpsAControllerThatIsNotReadyAgain)
{
    fake.has_reset = true;
    fake.never_ready = true;
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.device_resets, 1u);
    EXPECT_EQ(fake.enables, 2u);
    expect_works();
}

TEST_F(Recovery, APermanentlyLostCommandDoesNotAffectOthers)
{
    fake.loses = [](const nvme_sqe &sqe) { return sqe.cdw10 == 7; };
    Bytes one(4096), two(65536);
    bd_io ios[2] = {{BD_READ, 0, 7 * 4096, 4096, one.data(), 0, 0},
                    {BD_READ, 0, 0x80000, 65536, two.data(), 0, 0}};
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(bd_submit(dev, ios, 2), -ETIMEDOUT);
    EXPECT_LT(elapsed_ms(start), bd_nvme_command_ms(dev) + SLACK_MS);
    EXPECT_EQ(ios[0].error, -ETIMEDOUT);
    EXPECT_EQ(ios[1].error, 0);
    EXPECT_EQ(memcmp(two.data(), &fake.media[0x80000], 65536), 0);
    expect_works();
}

/* 1,000 commands of a millisecond each: the first is lost while the remaining ones complete. */
TEST_F(Recovery, LostCommandIsFoundWhileOthersComplete)
{
    std::vector<bd_io> ios(1000);
    Bytes data(4096, 0x5a);
    bool lost = false;
    fake.loses = [&lost](const nvme_sqe &) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        bool first = !lost;
        lost = true;
        return first;
    };
    fake.abort_works = true;
    for (size_t i = 0; i < ios.size(); i++)
        ios[i] = {BD_WRITE, 0, i * 4096, data.size(), data.data(), 0, 0};
    ASSERT_EQ(bd_submit(dev, ios.data(), ios.size()), 0);
    ASSERT_EQ(fake.count(NVME_ADMIN_ABORT), 1u);
    auto again = std::find_if(fake.sent.begin() + 1, fake.sent.end(),
                              [](const nvme_sqe &sqe) { return sqe.cdw10 == 0; });
    EXPECT_LT(again - fake.sent.begin(), 900) << "looked for only when all else had ended";
}

TEST_F(Recovery, LostFlushIsSentAgainUntilItCompletes)
{
    lose(NVME_IO_FLUSH, 1);
    EXPECT_EQ(bd_flush(dev), 0);
    ASSERT_EQ(fake.sent.size(), 2u);
    EXPECT_EQ(fake.sent[1].opcode, NVME_IO_FLUSH);
}

TEST_F(Recovery, FlushOrFuaThatNeverCompletesIsNeverReportedDone)
{
    Bytes data(4096);
    lose(NVME_IO_FLUSH, 4);
    EXPECT_EQ(bd_flush(dev), -ETIMEDOUT);
    ASSERT_TRUE(reads(0, 4096));
    fake.sent.clear();
    lose(NVME_IO_WRITE, 4);
    EXPECT_EQ(bd_write(dev, 0, data.data(), 4096, BD_FUA), -ETIMEDOUT);
    ASSERT_EQ(fake.sent.size(), 4u);
    for (const auto &sqe : fake.sent)
        EXPECT_TRUE(sqe.cdw12 & NVME_RW_FUA);
}

class IgnoresFua : public Recovery
{
  protected:
    void SetUp() override
    {
        memcpy(&fake.id_ctrl[24], "QEMU NVMe Ctrl                          ", 40);
        Recovery::SetUp();
    }

    int write(uint32_t flags) { return bd_write(dev, 0, page.data(), page.size(), flags); }

    Bytes page = Bytes(4096);
};

TEST_F(Recovery, FuaNeedsNoFlush)
{
    Bytes page(4096);
    EXPECT_EQ(bd_write(dev, 0, page.data(), page.size(), BD_FUA), 0);
    EXPECT_EQ(fake.sent.size(), 1u);
}

TEST_F(IgnoresFua, AFlushFollowsAFuaWrite)
{
    EXPECT_EQ(write(0), 0);
    ASSERT_EQ(fake.sent.size(), 1u);
    EXPECT_EQ(write(BD_FUA), 0);
    ASSERT_EQ(fake.sent.size(), 3u);
    EXPECT_EQ(fake.sent[1].opcode, NVME_IO_WRITE);
    EXPECT_EQ(fake.sent[2].opcode, NVME_IO_FLUSH);
}

TEST_F(IgnoresFua, AWriteFailsIfItsFlushFails)
{
    fake.io_status = [](const nvme_sqe &sqe) -> uint16_t {
        return sqe.opcode == NVME_IO_FLUSH ? NVME_ERR_INTERNAL | NVME_STATUS_DNR : 0;
    };
    EXPECT_EQ(write(0), 0);
    EXPECT_EQ(write(BD_FUA), -EIO);
    lose(NVME_IO_FLUSH, 4);
    EXPECT_EQ(write(BD_FUA), -ETIMEDOUT);
}

class Abandoned : public Recovery, public ::testing::WithParamInterface<Failure>
{
};

TEST_P(Abandoned, AfterAsManyResetsAsMayHelp)
{
    GetParam().prepare(*this);
    fatal_at(NVME_IO_READ);
    expect_given_up(true);
    EXPECT_EQ(fake.enables, GetParam().steps.enables);
}

INSTANTIATE_TEST_SUITE_P(
    Failures, Abandoned,
    ::testing::Values(Failure{"FailsEveryTime", [](Recovery &) {}, {0, 0, NVME_MAX_RESET_RETRIES}},
                      Failure{
                          "NeverReady", [](Recovery &r) { r.fake.never_ready = true; }, {0, 0, 1}},
                      // The driver resets the controller by its registers, and then from outside.
                      Failure{"FatalOnEveryEnable",
                              [](Recovery &r) { r.fake.fatal_on_enable = r.fake.has_reset = true; },
                              {0, 0, 2}},
                      Failure{"LosesIdentify",
                              [](Recovery &r) {
                                  r.fake.on_enable = [&r] {
                                      r.fake.lose_opcode = NVME_ADMIN_IDENTIFY;
                                  };
                              },
                              {0, 0, 1}}),
    [](const auto &info) { return info.param.name; });

TEST_F(Recovery, ResetsWithProgressInBetweenMayBeMany)
{
    for (unsigned i = 0; i < 4 * NVME_MAX_RESET_RETRIES; i++) {
        ASSERT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), 0);
        ASSERT_TRUE(reads(0, 4096));
    }
    for (unsigned i = 0; i < NVME_MAX_RESET_RETRIES; i++)
        EXPECT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), 0);
    EXPECT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), -EIO);
    expect_given_up(true);
}

TEST_F(Recovery, ControllerThatIsRemovedIsAbandoned)
{
    fake.loses = [this](const nvme_sqe &) { return fake.gone = true; };
    auto start = std::chrono::steady_clock::now();
    expect_given_up(true);
    EXPECT_GE(elapsed_ms(start), NVME_GONE_MS) << "it might have come back";
    EXPECT_LT(elapsed_ms(start), NVME_GONE_MS + SLACK_MS);
    expect_steps({0, 0, 0});
}

// It can still write to memory: all that callers may use again is taken from it.
TEST_F(Recovery, ControllerThatCannotBeStoppedLosesItsMemory)
{
    void *buf = bd_dma_alloc(dev, 65536);
    fake.has_reset = fake.reset_fails = true;
    fake.never_disabled = true;
    fatal_at(NVME_IO_READ);
    expect_given_up(false);
    EXPECT_TRUE(fake.maps.empty()) << "lists, bounce buffers and the caller's";
    bd_dma_free(dev, buf, 65536);
}

TEST_F(Recovery, ResetKeepsItsTimeLimit)
{
    fake.has_reset = fake.reset_fails = true;
    fake.never_disabled = true;
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), -EIO);
    uint64_t ms = elapsed_ms(start);
    EXPECT_LT(ms, nvme_ctrlr_reset_ms(c) + SLACK_MS);
    EXPECT_GE(ms, 500u) << "CAP.TO was not waited for";
}

// --- Effects of a reset --------------------------------------------------------------------------

struct Change {
    const char *name;
    void (*make)(Fake &);
};

class ChangedDrive : public Recovery, public ::testing::WithParamInterface<Change>
{
};

TEST_P(ChangedDrive, IsNotTakenForTheOldOne)
{
    fake.on_enable = [this] { GetParam().make(fake); };
    Bytes before = fake.content();
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), -EIO);
    EXPECT_EQ(fake.cc & NVME_CC_ENABLE, 0u) << "left enabled";
    expect_given_up(true);
    EXPECT_EQ(fake.content(), before) << "the stranger was written to";
}

INSTANTIATE_TEST_SUITE_P(
    Recovery, ChangedDrive,
    ::testing::Values(Change{"Serial", [](Fake &f) { f.id_ctrl[6] = 'X'; }},
                      Change{"Model", [](Fake &f) { f.id_ctrl[24] = 'X'; }},
                      Change{"SmallerTransfers", [](Fake &f) { f.id_ctrl[77] = 4; }},
                      Change{"FewerNamespaces", [](Fake &f) { f.id_ctrl[516] = 1; }},
                      Change{"NonsenseForIdentify", [](Fake &f) { f.id_ctrl[512] = 0; }},
                      Change{"NamespaceGone", [](Fake &f) { f.id_ns.clear(); }},
                      Change{"NamespaceShrunk", [](Fake &f) { f.id_ns[1][1] = f.id_ns[1][9] = 8; }},
                      Change{"LbaFormat", [](Fake &f) { f.id_ns[1][130] = 9; }},
                      Change{"Nguid", [](Fake &f) { f.id_ns[1][104] = 1; }},
                      Change{"Eui64", [](Fake &f) { f.id_ns[1][120] = 1; }},
                      Change{"Metadata", [](Fake &f) { f.id_ns[1][128] = 8; }},
                      Change{"FewerQueues", [](Fake &f) { f.queues_result = 0; }}),
    [](const auto &info) { return info.param.name; });

TEST_F(Recovery, ChangedCapabilitiesAreAnotherController)
{
    fake.cap ^= 1ull << 32;
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), -EIO);
    EXPECT_EQ(fake.enables, 0u);
    fake.cap ^= 1ull << 32;
    expect_given_up(true);
}

/* A permit with an answer for each question; the last one stays. */
struct Answers {
    bd_permit base{};
    std::vector<int> answers;

    static int ask(bd_permit *permit, bool wait)
    {
        Answers *a = reinterpret_cast<Answers *>(permit);
        int answer = a->answers.front();

        EXPECT_NE(wait && answer == -EAGAIN, true);
        if (a->answers.size() > 1)
            a->answers.erase(a->answers.begin());
        return answer;
    }
};

class Permitted : public Recovery
{
  protected:
    /* A write that meets a reset, with these answers. */
    int write_across_reset(std::vector<int> answers)
    {
        Bytes data(4096, 0x77);
        permit.base.may_write = Answers::ask;
        permit.answers = std::move(answers);
        dev->permit = &permit.base;
        fatal_at(NVME_IO_WRITE);
        fake.on_enable = [this] {
            fake.csts &= ~(uint32_t)NVME_CSTS_FATAL;
            lose_none();
        };
        return bd_write(dev, 0, data.data(), data.size(), 0);
    }

    Answers permit;
};

TEST_F(Permitted, AWriteIsRepeatedWhenThePermitOpens)
{
    EXPECT_EQ(write_across_reset({0, -EAGAIN, -EAGAIN, 0}), 0);
    EXPECT_EQ(permit.answers.size(), 1u);
    EXPECT_EQ(fake.media[0], 0x77);
    expect_works();
}

TEST_F(Permitted, AWriteIsNotRepeatedWhenThePermitStaysClosed)
{
    Bytes before = fake.content();
    EXPECT_EQ(write_across_reset({0, -EAGAIN, -EIO}), -EIO);
    EXPECT_EQ(fake.content(), before);
    EXPECT_TRUE(reads(0, 8192));
}

TEST_F(Recovery, AGrownNamespaceIsAccepted)
{
    fake.on_enable = [this] { fake.id_ns[1][1] = fake.id_ns[1][9] = 0x20; };
    EXPECT_EQ(nvme_ctrlr_reset(c, 0), 0);
    expect_works();
}

TEST_F(Recovery, AResetRecoversFromALostAdminCommand)
{
    struct nvme_ns_info ns;
    fake.lose_opcode = NVME_ADMIN_IDENTIFY;
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -ETIMEDOUT);
    size_t commands = fake.seen.size();
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -EIO);
    EXPECT_EQ(fake.seen.size(), commands) << "sent although the last one may still be under way";
    fake.lose_opcode = -1;
    EXPECT_TRUE(reads(0, 8192)) << "I/O queues are not concerned";
    ASSERT_EQ(nvme_ctrlr_reset(c, nvme_ctrlr_epoch(c)), 0);
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), 0);
    expect_works();
}

// More admin commands than the admin queue has entries, so that a wrong phase would be seen.
TEST_F(Recovery, AdminQueueRestartsAfterAReset)
{
    struct nvme_ns_info ns;
    for (unsigned i = 0; i < 20; i++)
        ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0);
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    for (unsigned i = 0; i < 100; i++)
        ASSERT_EQ(nvme_ns_info(c, 1, &ns), 0) << i;
}

TEST_F(Recovery, PairsFromBeforeAResetEndWithoutACommand)
{
    nvme_qpair qp;
    ASSERT_EQ(nvme_qpair_create_shared(c, 8, nvme_share_new(c, 1), &qp), 0);
    size_t maps = fake.maps.size();
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    fake.seen.clear();
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
    EXPECT_TRUE(fake.seen.empty());
    EXPECT_EQ(fake.maps.size(), maps - 1);
}

TEST_F(Recovery, PairsFromBeforeAResetAreOnlyCreated)
{
    nvme_qpair qp;
    ASSERT_EQ(nvme_qpair_create(c, 8, &qp), 0);
    memset(qp.cq, 0xff, qp.cq_len);
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    fake.seen.clear();
    ASSERT_EQ(nvme_qpair_recreate(c, &qp), 0);
    EXPECT_EQ(qp.cq[3].status, 0);
    EXPECT_EQ(qp.epoch, 1u);
    EXPECT_EQ(fake.seen.size(), 2u);
    EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
}

TEST_F(Recovery, QueuesAreDeletedBeforeTheControllerIsDisabled)
{
    fake.keeps_queues = true;
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.count(NVME_ADMIN_DELETE_SQ), 1u);
    EXPECT_EQ(fake.count(NVME_ADMIN_CREATE_CQ), 1u) << "not refused";
    expect_works();
}

/* The admin queue is lost, so that the queue outlives the reset and is deleted when it is in the
 * way. */
TEST_F(Recovery, QueuesThatOutliveAResetAreDeletedAfterIt)
{
    struct nvme_ns_info ns;

    fake.keeps_queues = true;
    fake.lose_opcode = NVME_ADMIN_IDENTIFY;
    EXPECT_EQ(nvme_ns_info(c, 1, &ns), -ETIMEDOUT);
    fake.lose_opcode = -1;
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.count(NVME_ADMIN_CREATE_CQ), 2u) << "refused, deleted, created";
    EXPECT_EQ(fake.enables, 1u);
    expect_works();
}

TEST_F(Recovery, AFailedResetIsFollowedByOneFromOutside)
{
    fake.has_reset = true;
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.device_resets, 0u);
    ASSERT_EQ(nvme_ctrlr_reset(c, 1), 0);
    EXPECT_EQ(fake.device_resets, 1u);
    expect_works();
    ASSERT_EQ(nvme_ctrlr_reset(c, 2), 0);
    EXPECT_EQ(fake.device_resets, 1u) << "commands have completed since";
}

TEST_F(Recovery, AbandonedPairsAreUsableAfterAReset)
{
    nvme_qpair qps[3], extra;
    size_t maps = fake.maps.size();
    for (auto &qp : qps)
        ASSERT_EQ(nvme_qpair_create_shared(c, 8, nvme_share_new(c, 1), &qp), 0);
    fake.status_of_opcode[NVME_ADMIN_DELETE_SQ] = NVME_ERR_INTERNAL;
    for (auto &qp : qps)
        EXPECT_EQ(nvme_qpair_delete(c, &qp), -EIO);
    fake.status_of_opcode.clear();
    EXPECT_EQ(nvme_qpair_create(c, 8, &extra), -ENOSPC);
    EXPECT_EQ(fake.maps.size(), maps + 3);
    ASSERT_EQ(nvme_ctrlr_reset(c, 0), 0);
    EXPECT_EQ(fake.maps.size(), maps);
    ASSERT_EQ(nvme_qpair_create(c, 8, &extra), 0);
    EXPECT_EQ(nvme_qpair_delete(c, &extra), 0);
}

/* A second user of queues, like the engine of a GPU. */
struct Other : nvme_user {
    explicit Other(nvme_ctrlr *ctrlr) : c(ctrlr)
    {
        stop = [](nvme_user *u) { static_cast<Other *>(u)->stops++; };
        resume = [](nvme_user *u, int err) {
            auto *o = static_cast<Other *>(u);
            o->resumes++;
            o->err = err;
            o->created = err ? 0 : nvme_qpair_recreate(o->c, &o->qp);
        };
        EXPECT_EQ(nvme_qpair_create(c, 8, &qp), 0);
        nvme_ctrlr_add_user(c, this);
    }
    ~Other()
    {
        nvme_ctrlr_remove_user(c, this);
        EXPECT_EQ(nvme_qpair_delete(c, &qp), 0);
    }
    Other(const Other &) = delete;
    Other &operator=(const Other &) = delete;

    nvme_ctrlr *c;
    nvme_qpair qp{};
    unsigned stops = 0, resumes = 0;
    int err = 0, created = 1;
};

TEST_F(Recovery, EveryUserIsStoppedAndResumed)
{
    Other one(c), two(c);
    lose(NVME_IO_READ, 2);
    EXPECT_TRUE(reads(0, 4096));
    for (const Other *o : {&one, &two}) {
        EXPECT_EQ(o->stops, 1u);
        EXPECT_EQ(o->resumes, 1u);
        EXPECT_EQ(o->err, 0);
        EXPECT_EQ(o->created, 0);
        EXPECT_EQ(o->qp.epoch, nvme_ctrlr_epoch(c));
    }
}

TEST_F(Recovery, EveryUserIsNotifiedOfAPermanentFailure)
{
    Other other(c);
    fatal_at(NVME_IO_READ);
    expect_given_up(true);
    EXPECT_EQ(other.stops, other.resumes);
    EXPECT_EQ(other.err, -EIO);
}

TEST_F(Recovery, ConcurrentRequestsForAResetShareIt)
{
    Other other(c);
    in_threads(8, [&](unsigned) { EXPECT_EQ(nvme_ctrlr_reset(c, 0), 0); });
    EXPECT_EQ(fake.enables, 1u);
    EXPECT_EQ(other.stops, 1u);
    EXPECT_EQ(nvme_ctrlr_epoch(c), 1u);
}

} // namespace
