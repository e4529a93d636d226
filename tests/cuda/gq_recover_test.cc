/* The recovery ladder, rung by rung, with one small queue. */
#include "tests/cuda/gq_recover_rig.h"

namespace
{

class GqRecover : public GqTest
{
};

class GqRecoverSlow : public GqTest
{
};

TEST_P(GqRecover, LostCommandIsAborted)
{
    Small s(GetParam());

    s.open();
    for (unsigned round = 1; round <= 2; round++) {
        s.lose_one();
        EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
        s.expect_rungs(round, 0, 0);
        s.expect_in_step();
    }
}

TEST_P(GqRecover, SeveralLostCommandsAreAborted)
{
    Small s(GetParam());

    s.open();
    EXPECT_EQ(s.lose(4), -ETIMEDOUT);
    EXPECT_EQ(s.rig.result.bytes, 0u);
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    s.expect_rungs(4, 0, 0);
    s.expect_in_step();
}

TEST_P(GqRecover, QueueIsCreatedAgainWhereAbortDoesNotHelp)
{
    Small s(GetParam());

    s.rig.cfg.no_abort = true;
    s.open();
    for (unsigned round = 1; round <= 2; round++) {
        s.lose_one();
        EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
        s.expect_rungs(0, round, 0);
        s.expect_in_step();
    }
}

TEST_P(GqRecover, LostDeletionLeadsToAReset)
{
    Small s(GetParam());

    s.rig.cfg.no_abort = true;
    s.rig.driver.admin_timeout_ms = kLostAdminMs;
    s.open();
    s.lose_one();
    s.rig.fault(lost_admin(NVME_ADMIN_DELETE_SQ));
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    s.expect_rungs(0, 0, 1);
    s.expect_in_step();
}

TEST_P(GqRecover, LostAbortLeadsToAReset)
{
    Small s(GetParam());

    s.rig.driver.admin_timeout_ms = kLostAdminMs;
    s.open();
    s.lose_one();
    s.rig.fault(lost_admin(NVME_ADMIN_ABORT));
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    s.expect_rungs(0, 0, 1);
    s.expect_in_step();
}

TEST_P(GqRecoverSlow, QueueThatIsRefusedAfterAResetCostsAnother)
{
    Small s(GetParam());
    sim_fault refuse = lost_admin(NVME_ADMIN_CREATE_SQ);

    s.rig.cfg.no_abort = true;
    s.rig.driver.admin_timeout_ms = kLostAdminMs;
    s.open();
    s.lose_one();
    refuse.times = 2; /* in the second rung, and after the first reset */
    s.rig.fault(refuse);
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    s.expect_rungs(0, 0, 2);
    s.expect_in_step();
}

/* What completes between the deadline and the Abort is taken; nothing is asked twice. */
TEST_P(GqRecover, LateCompletionsAreHarvestedByTheHost)
{
    Small s(GetParam());
    sim_fault late = once(SIM_FAULT_LATE);

    late.times = 3;
    late.delay_ns = 250000000;
    s.rig.cfg.no_abort = true;
    s.open();
    s.rig.fault(late);
    EXPECT_EQ(s.read(0, 20, 100), -ETIMEDOUT);
    std::this_thread::sleep_for(milliseconds(300));
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    EXPECT_EQ(s.rig.stats().resets, 0u);
    s.expect_in_step();
}

/* The judge counts what a command does to memory that was taken from it. */
TEST_P(GqRecoverSlow, LateCommandDoesNotReachABufferThatHasEnded)
{
    for (bool no_abort : {false, true}) {
        Small s(GetParam());
        sim_fault late = once(SIM_FAULT_LATE);

        late.delay_ns = 250000000;
        s.rig.cfg.no_abort = no_abort;
        s.open();
        s.rig.fault(late);
        EXPECT_EQ(s.read(0, 1, 100), -ETIMEDOUT);
        gq_buffer_unregister(s.buffer);
        s.memory.fill(0x77);
        std::this_thread::sleep_for(milliseconds(300));
        EXPECT_TRUE(s.memory.read(0, 512) == Bytes(512, 0x77));
        EXPECT_EQ(sim_violations(s.rig.s), 0u);
        s.buffer = s.rig.add(s.memory, 0, 64u << 10);
        s.expect_in_step();
    }
}

/* Every rung may be tried and fail, and the whole keeps the bound that gq.h states. */
TEST_P(GqRecoverSlow, RecoveryKeepsItsBound)
{
    Small s(GetParam());
    sim_fault lose_all = once(SIM_FAULT_LOSE);

    s.rig.driver.admin_timeout_ms = kLostAdminMs;
    s.open();
    s.lose_one();
    lose_all.admin = true;
    lose_all.times = 0;
    s.rig.fault(lose_all);
    auto start = Clock::now();
    EXPECT_EQ(gq_engine_recover(s.rig.e), -EIO);
    EXPECT_LT(Clock::now() - start, milliseconds(GQ_ABORT_MS + 2 * s.rig.driver.admin_timeout_ms +
                                                 nvme_ctrlr_reset_ms(s.rig.c) + kSlackMs));
    sim_clear_faults(s.rig.s);
}

/* A user who keeps a reset from ending until it is told. */
struct SlowUser : nvme_user {
    std::atomic<bool> resuming{false}, go{false};

    SlowUser() : nvme_user{stop_it, resume_it, nullptr}
    {
    }

    static void stop_it(nvme_user *)
    {
    }

    static void resume_it(nvme_user *u, int)
    {
        SlowUser *self = static_cast<SlowUser *>(u);

        self->resuming = true;
        while (!self->go)
            std::this_thread::sleep_for(milliseconds(1));
    }
};

/* The last user that was added resumes first: the engine is still stopped then. */
TEST_P(GqRecover, TransferWaitsForAResetUnlessItIsEnded)
{
    Small s(GetParam());
    uint32_t cancel = 1;
    SlowUser slow;

    s.open();
    nvme_ctrlr_add_user(s.rig.c, &slow);
    std::thread resetter([&] { EXPECT_EQ(nvme_ctrlr_reset(s.rig.c, 0), 0); });
    while (!slow.resuming)
        std::this_thread::yield();
    EXPECT_EQ(s.read(0, 1, 20), -ETIMEDOUT);
    s.rig.req.cancel = &cancel;
    EXPECT_EQ(s.read(0, 1), -ECANCELED);
    EXPECT_EQ(s.rig.result.commands, 0u);
    s.rig.req.cancel = nullptr;
    std::thread opener([&] {
        std::this_thread::sleep_for(milliseconds(100));
        slow.go = true;
    });
    EXPECT_EQ(s.read(0, 1), 0);
    opener.join();
    resetter.join();
    nvme_ctrlr_remove_user(s.rig.c, &slow);
    s.expect_in_step();
}

/* Losses and delays at random, each recovered; in the end every byte is right. */
TEST_P(GqRecover, RandomLossesAreRecoveredFrom)
{
    Small s(GetParam());
    sim_fault lose = {}, late = {};
    unsigned troubles = 0;

    lose.kind = SIM_FAULT_LOSE;
    lose.one_in = 200;
    late.kind = SIM_FAULT_LATE;
    late.one_in = 200;
    late.delay_ns = 60000000;
    s.rig.cfg.reorder = true;
    s.open();
    s.rig.fault(lose);
    s.rig.fault(late);
    for (uint64_t i = 0; i < 40; i++) {
        uint64_t lba = i * 53 % 384;
        int err = s.read(lba, 60, 50);

        if (err) {
            ASSERT_EQ(err, -ETIMEDOUT);
            ASSERT_EQ(gq_engine_recover(s.rig.e), 0);
            troubles++;
            continue;
        }
        Bytes got = s.memory.read(0, 60 * 512);
        ASSERT_TRUE(std::equal(got.begin(), got.end(), s.rig.media.begin() + (ptrdiff_t)lba * 512));
    }
    EXPECT_GE(troubles, 1u);
    EXPECT_EQ(s.rig.stats().resets, 0u);
    sim_clear_faults(s.rig.s);
    s.expect_in_step();
}

GQ_FOR_EXECUTORS(GqRecover);
GQ_FOR_SOME_EXECUTORS(GqRecoverSlow, kForBusy);

} // namespace
