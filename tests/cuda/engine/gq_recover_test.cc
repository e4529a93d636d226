/* SPDX-License-Identifier: BSD-2-Clause */
/* Recovery, step by step, with one small queue. */
#include "blockdev/bdev.h"
#include "cuda/engine/gq_internal.h"
#include "tests/cuda/engine/gq_recover_rig.h"

namespace
{

bool moves; /* the next pair that is created again goes to another id */
int moved;  /* result of the call that moves it */

/* As a controller that does not delete the old queues has it done. */
int move_pair(nvme_ctrlr *c, nvme_qpair *qp)
{
    nvme_qpair fresh;
    int err = nvme_qpair_create(c, qp->depth, &fresh);

    if (!err)
        err = nvme_qpair_delete(c, qp);
    *qp = fresh;
    return err ? err : moved;
}

} // namespace

extern "C" int __real_nvme_qpair_recreate(nvme_ctrlr *c, nvme_qpair *qp);
extern "C" int __wrap_nvme_qpair_recreate(nvme_ctrlr *c, nvme_qpair *qp)
{
    if (!moves)
        return __real_nvme_qpair_recreate(c, qp);
    moves = false;
    return move_pair(c, qp);
}

namespace
{

using GqRecover = GqTest;
using GqRecoverWaits = GqTest;
using GqRecoverSlow = GqTest;

TEST_P(GqRecover, LostCommandIsAbortedOrItsQueueCreatedAgain)
{
    for (bool no_abort : {false, true}) {
        Small s(GetParam());

        s.rig.cfg.no_abort = no_abort;
        s.open();
        for (unsigned round = 1; round <= 2; round++) {
            s.lose_one();
            EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
            s.expect_steps(no_abort ? 0 : round, no_abort ? round : 0, 0);
            s.expect_in_step();
        }
    }
}

TEST_P(GqRecover, SeveralLostCommandsAreAborted)
{
    Small s(GetParam());
    /* A lane has one staged command at a time. */
    unsigned n = GetParam().staged && GetParam().lanes == 1 ? 1 : 4;

    s.open();
    EXPECT_EQ(s.lose(n), -ETIMEDOUT);
    EXPECT_EQ(s.rig.result.bytes, 0u);
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    s.expect_steps(n, 0, 0);
    s.expect_in_step();
}

/* The drive loses the creation in the second step, and after the first reset. */
TEST_P(GqRecoverSlow, LostAdminCommandLeadsToAReset)
{
    const struct {
        uint8_t opcode;
        unsigned times;
    } lost[] = {{NVME_ADMIN_ABORT, 1}, {NVME_ADMIN_DELETE_SQ, 1}, {NVME_ADMIN_CREATE_SQ, 2}};

    for (const auto &l : lost) {
        SCOPED_TRACE(l.opcode);
        Small s(GetParam());
        sim_fault f = lost_admin(l.opcode);

        f.times = l.times;
        s.rig.cfg.no_abort = l.opcode != NVME_ADMIN_ABORT;
        s.rig.driver.admin_timeout_ms = kLostAdminMs;
        s.open();
        s.lose_one();
        s.rig.fault(f);
        EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
        s.expect_steps(0, 0, l.times);
        s.expect_in_step();
    }
}

/* Completions between the deadline and the Abort are taken; no command is aborted twice. */
TEST_P(GqRecover, LateCompletionsArePolledByTheHost)
{
    Small s(GetParam());
    sim_fault late = once(SIM_FAULT_LATE);

    late.times = 3;
    late.delay_ns = 600000000;
    s.rig.cfg.no_abort = true;
    s.open();
    s.rig.fault(late);
    EXPECT_EQ(s.read(0, 20, 100), -ETIMEDOUT);
    std::this_thread::sleep_for(milliseconds(650));
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

        late.delay_ns = 600000000;
        s.rig.cfg.no_abort = no_abort;
        s.open();
        s.rig.fault(late);
        EXPECT_EQ(s.read(0, 1, 100), -ETIMEDOUT);
        s.memory->end();
        s.memory->fill(0x77);
        std::this_thread::sleep_for(milliseconds(650));
        EXPECT_TRUE(s.memory->read(0, 512) == Bytes(512, 0x77));
        EXPECT_EQ(sim_violations(s.rig.s), 0u);
        s.memory = std::make_unique<Target>(s.rig, 64u << 10);
        s.expect_in_step();
    }
}

/* Every step may be tried and fail, and the whole keeps the bound that gq.h states. */
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

/* A user that delays the end of a reset until it is released. */
struct SlowUser : nvme_user {
    std::atomic<bool> resuming{false}, go{false};

    SlowUser() : nvme_user{}
    {
        stop = stop_it;
        resume = resume_it;
    }

    static void stop_it(nvme_user *) {}

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
        Bytes got = s.memory->read(0, 60 * 512);
        ASSERT_TRUE(std::equal(got.begin(), got.end(), s.rig.media.begin() + (ptrdiff_t)lba * 512));
    }
    EXPECT_GE(troubles, 1u);
    EXPECT_EQ(s.rig.stats().resets, 0u);
    sim_clear_faults(s.rig.s);
    s.expect_in_step();
}

/* The executor's calls, some of which a test puts its own around. */
const gq_exec_ops *real_ops;
gq_exec_ops test_ops;
unsigned starts, waits;               /* that the test's own have seen */
unsigned failing_start, failing_wait; /* the one of them that fails; 0: none */

void put_around(gq_engine *e, decltype(gq_exec_ops::start) start, decltype(gq_exec_ops::wait) wait)
{
    real_ops = e->exec->ops;
    test_ops = *real_ops;
    test_ops.start = start;
    test_ops.wait = wait;
    e->exec->ops = &test_ops;
    starts = waits = failing_start = failing_wait = 0;
}

/* The first run is asked to leave without a reset. */
int wait_and_leave(gq_exec *x, gq_launch *l)
{
    __atomic_store_n(&x->flags, waits++ ? 0u : GQ_FLAG_LEAVE, __ATOMIC_RELAXED);
    int err = real_ops->wait(x, l);
    __atomic_store_n(&x->flags, 0u, __ATOMIC_RELAXED);
    return err;
}

/* Runs are over before the next begins, also with an executor that would wait with them. */
int start_to_end(gq_exec *x, gq_launch *l)
{
    int err = real_ops->start(x, l);

    return err ? err : real_ops->wait(x, l);
}

int start_or_fail(gq_exec *x, gq_launch *l)
{
    return ++starts == failing_start ? -EIO : real_ops->start(x, l);
}

int wait_or_fail(gq_exec *x, gq_launch *l)
{
    int err = real_ops->wait(x, l);

    return ++waits == failing_wait ? -EIO : err;
}

std::atomic<bool> is_waiting; /* the run, to begin */

/* As at a gate that is not opened before the reset is over. */
int start_after_reset(gq_exec *x, gq_launch *l)
{
    auto end = Clock::now() + milliseconds(kSlackMs);

    if (starts++)
        return real_ops->start(x, l);
    is_waiting = true;
    while (!(__atomic_load_n(&x->flags, __ATOMIC_RELAXED) & GQ_FLAG_LEAVE) && Clock::now() < end)
        std::this_thread::sleep_for(milliseconds(1));
    return -ERESTART;
}

/* One transfer of two lists of 1,024 commands, the second of which is started before the results
 * of the first are taken. */
class TwoLists
{
  public:
    explicit TwoLists(const Executor &x) : rig(x, 512, kMib)
    {
        rig.opts.max_command = 512;
        rig.opts.deadline_ms = 1000; /* missed by no other command on a busy machine */
        rig.opts.part = kMib / 2;
        listener.ended = [](gq_listener *, uint64_t) {};
        rig.req.listener = &listener;
    }

    void open(decltype(gq_exec_ops::start) start, decltype(gq_exec_ops::wait) wait)
    {
        rig.open();
        put_around(rig.e, start, wait);
        memory = std::make_unique<Target>(rig, kMib);
    }

    int read() { return rig.move(GQ_READ, *memory, 0, {{0, kMib}}, 0, kMib); }

    Rig rig;
    gq_listener listener = {};
    std::unique_ptr<Target> memory;
};

/* That a run left does not prove that its commands ended; a reset that settles does. */
TEST_P(GqRecover, CommandsOfAReservationStayUnsettledAfterTheNext)
{
    Small s(GetParam());
    sim_fault lose = once(SIM_FAULT_LOSE);

    s.rig.opts.queues = 2;
    s.open();
    put_around(s.rig.e, s.rig.e->exec->ops->start, wait_and_leave);
    lose.qid = s.rig.e->queues[0].qp.qid; /* which may be polled after the other's */
    s.rig.fault(lose);
    EXPECT_EQ(s.read(0, 1), 0) << "by the other queue";
    EXPECT_EQ(s.rig.stats().restarts, 1u);
    EXPECT_EQ(s.rig.stats().quarantined, 1u);
    EXPECT_TRUE(s.rig.result.unsettled);
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    s.expect_in_step();
    EXPECT_FALSE(s.rig.result.unsettled);
}

/* A run that has not begun has nothing in flight: its queues come back, and go on. */
TEST_P(GqRecover, RunThatWaitsToBeginGivesWayToAReset)
{
    Small s(GetParam());

    s.open();
    is_waiting = false;
    put_around(s.rig.e, start_after_reset, s.rig.e->exec->ops->wait);
    std::thread resetter([&] {
        while (!is_waiting)
            std::this_thread::sleep_for(milliseconds(1));
        EXPECT_EQ(nvme_ctrlr_reset(s.rig.c, 0), 0);
    });
    EXPECT_EQ(s.read(0, 1), 0);
    resetter.join();
    EXPECT_FALSE(s.rig.result.unsettled);
    EXPECT_EQ(s.rig.stats().restarts, 1u);
    EXPECT_EQ(s.rig.stats().resets, 1u);
    s.expect_in_step();
}

/* Calls of the executor that move a port, in their order; its runs wait from q to r. */
std::string calls;
unsigned ports_to_refuse;

void note_quiesce(gq_exec *x)
{
    real_ops->quiesce(x);
    calls += 'q';
}

void note_resume(gq_exec *x)
{
    calls += 'r';
    real_ops->resume(x);
}

void note_remove(gq_exec *x, unsigned i)
{
    calls += '-';
    real_ops->port_remove(x, i);
}

int note_add(gq_exec *x, unsigned i, const nvme_qpair *qp)
{
    calls += '+';
    if (!ports_to_refuse)
        return real_ops->port_add(x, i, qp);
    ports_to_refuse--;
    return -ENOMEM;
}

void note_ports(gq_engine *e)
{
    put_around(e, e->exec->ops->start, e->exec->ops->wait);
    test_ops.quiesce = note_quiesce;
    test_ops.resume = note_resume;
    test_ops.port_remove = note_remove;
    test_ops.port_add = note_add;
    calls.clear();
}

/*
 * A pair that has moved is driven by its new rings, whatever fails behind that at first. No run is
 * under way while its port is removed or added. Only the controller's errors lead to a reset.
 */
TEST_P(GqRecover, APairThatHasMovedIsDrivenWhereItIs)
{
    struct {
        unsigned refused;
        int moved, resets;
        const char *calls;
    } const cases[] = {{0, 0, 0, "q-+r"}, {1, 0, 0, "q-+rq+r"}, {0, -EIO, 1, "q-rq+r"}};

    for (const auto &one : cases) {
        Small s(GetParam());

        s.rig.cfg.no_abort = true;
        s.open();
        s.lose_one();
        note_ports(s.rig.e);
        ports_to_refuse = one.refused;
        moves = true;
        moved = one.moved;
        unsigned qid = s.rig.e->queues[0].qp.qid;
        EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
        EXPECT_EQ(calls, one.calls);
        EXPECT_NE(s.rig.e->queues[0].qp.qid, qid);
        EXPECT_EQ(s.rig.stats().resets, (uint64_t)one.resets);
        s.expect_in_step();
    }
}

/* A reset of the controller would end the requests of others, and does not help the executor. */
TEST_P(GqRecover, AnExecutorThatTakesNoPairCausesNoReset)
{
    Small s(GetParam());

    s.rig.cfg.no_abort = true;
    s.open();
    s.lose_one();
    note_ports(s.rig.e);
    moves = true;
    moved = 0;
    ports_to_refuse = 3;
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    EXPECT_EQ(calls, "q-+rq+rq+r");
    EXPECT_EQ(s.rig.stats().quarantined, 1u);
    EXPECT_EQ(s.rig.stats().resets, 0u);
    EXPECT_EQ(s.read(0, 1), -ENODEV);
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0) << "the executor takes it now";
    s.expect_in_step();
}

/* The transfer ends because of the first list, and the second is of no use then. */
TEST_P(GqRecoverWaits, UnsettledCommandsOfAUselessListAreKept)
{
    TwoLists t(GetParam());

    t.open(start_to_end, [](gq_exec *, gq_launch *) { return 0; });
    t.rig.fault(once_at(SIM_FAULT_STATUS, 5, NVME_ERR_UNRECOVERED_READ));
    t.rig.fault(once_at(SIM_FAULT_LOSE, 1500));
    EXPECT_EQ(t.read(), -EIO);
    EXPECT_EQ(t.rig.result.bytes, 5u * 512);
    EXPECT_EQ(t.rig.stats().quarantined, 1u);
    EXPECT_TRUE(t.rig.result.unsettled);
    EXPECT_EQ(gq_engine_recover(t.rig.e), 0);
    EXPECT_EQ(t.rig.stats().quarantined, 0u);
    EXPECT_EQ(t.read(), 0);
    EXPECT_FALSE(t.rig.result.unsettled);
}

/* Nothing is known of the queues of a run that the executor has failed with, whichever it is. */
TEST_P(GqRecover, RunThatTheExecutorFailedWithIsUnsettled)
{
    for (unsigned i = 0; i < 4; i++) {
        TwoLists t(GetParam());

        t.open(start_or_fail, wait_or_fail);
        (i < 2 ? failing_start : failing_wait) = 1 + i % 2;
        EXPECT_LT(t.read(), 0) << i; /* a list beside it may miss its doorbells, and its deadline */
        EXPECT_TRUE(t.rig.result.unsettled) << i;
        EXPECT_GE(t.rig.stats().quarantined, 1u) << i;
        EXPECT_EQ(gq_engine_recover(t.rig.e), 0) << i;
        EXPECT_EQ(t.read(), -ENODEV) << i;
        EXPECT_FALSE(t.rig.result.unsettled) << i;
    }
}

GQ_FOR_EXECUTORS(GqRecover);
GQ_FOR_SOME_EXECUTORS(GqRecoverWaits, kForWaits);
GQ_FOR_SOME_EXECUTORS(GqRecoverSlow, kForBusy);

// --- Controllers that are reset, hang, stick or are pulled while four transfers run --------------

using GqReset = GqTest;

/* What waits for a controller that does not come back. */
using GqStuck = GqTest;

const Executor kForStuck[] = {kExecutors[2], kExecutors[3]};

TEST_P(GqReset, TransfersGoOnAcrossResetsByOthers)
{
    Busy b(GetParam());

    b.start();
    for (unsigned i = 0; i < 8; i++) {
        ASSERT_EQ(nvme_ctrlr_reset(b.rig.c, i), 0);
        b.load.wait_rounds(3);
    }
    b.load.expect_right();
    EXPECT_EQ(b.rig.stats().resets, 8u);
    EXPECT_GE(b.rig.stats().restarts, 1u);
    EXPECT_EQ(b.rig.stats().quarantined, 0u);
    EXPECT_EQ(b.rig.stats().timeouts, 0u);
}

/* The ordinary path meets a command that neither completes nor ends, and resets the drive. */
TEST_P(GqReset, ResetByTheBlockDeviceIsNotSeen)
{
    Busy b(GetParam());
    sim_fault lose = once(SIM_FAULT_LOSE);
    bd_dev *dev = nullptr;

    b.rig.cfg.no_abort = true;
    b.rig.driver.io_timeout_ms = 300;
    b.start();
    ASSERT_EQ(bd_nvme_open(b.rig.c, 1, 1, 16, &dev), 0);
    lose.match_opcode = true;
    lose.opcode = NVME_IO_FLUSH;
    b.rig.fault(lose);
    b.rig.fault(lost_admin(NVME_ADMIN_DELETE_SQ));
    EXPECT_EQ(bd_flush(dev), 0);
    EXPECT_EQ(b.rig.stats().resets, 1u);
    b.load.wait_rounds(4);
    b.load.expect_right();
    bd_close(dev);
}

TEST_P(GqReset, OtherTransfersGoOnWhileAQueueIsRecovered)
{
    for (bool no_abort : {false, true}) {
        Busy b(GetParam());

        b.rig.cfg.no_abort = no_abort;
        b.rig.opts.deadline_ms = 2500; /* no other command misses it on a busy machine */
        b.start();
        b.rig.fault(once(SIM_FAULT_LOSE));
        while (!b.load.failed)
            std::this_thread::sleep_for(milliseconds(1));
        EXPECT_EQ(b.load.error, -ETIMEDOUT);
        EXPECT_EQ(gq_engine_recover(b.rig.e), 0);
        b.load.wait_rounds(3);
        EXPECT_EQ(b.load.failed, 1u);
        EXPECT_EQ(b.rig.stats().restarts, 0u);
        EXPECT_EQ(b.rig.stats().aborts, no_abort ? 0u : 1u);
        EXPECT_EQ(b.rig.stats().recreates, no_abort ? 1u : 0u);
        EXPECT_EQ(b.rig.stats().quarantined, 0u);
        b.load.join();
    }
}

TEST_P(GqReset, ControllerThatHangsIsReset)
{
    Busy b(GetParam());

    b.load.deadline_ms = 500;
    b.start();
    b.rig.fault(once(SIM_FAULT_HANG));
    b.load.join(false);
    EXPECT_EQ(b.load.failed, 4u);
    EXPECT_GE(b.load.unsettled, 1u);
    EXPECT_EQ(gq_engine_recover(b.rig.e), 0);
    EXPECT_EQ(b.rig.stats().resets, 1u);
    EXPECT_EQ(b.rig.stats().quarantined, 0u);
    b.load.failed = b.load.unsettled = b.load.deadline_ms = 0;
    b.load.start();
    b.load.wait_rounds(8);
    b.load.expect_right();
}

TEST_P(GqStuck, StuckControllerIsResetFromOutside)
{
    Busy b(GetParam());

    b.start();
    sim_stick(b.rig.s);
    EXPECT_EQ(nvme_ctrlr_reset(b.rig.c, 0), 0);
    b.load.wait_rounds(4);
    b.load.expect_right();
    EXPECT_EQ(b.rig.stats().resets, 1u);
}

/* From then on everything ends at once, and nothing is left to end. */
// A controller that was not stopped is given no memory, whose IOVA its commands may have.
void expect_dead(Rig &rig)
{
    Memory m(rig.x.kind, 4096);
    gq_mem mem = m.part(0, 4096);
    gq_buffer *b = nullptr;

    if (!nvme_ctrlr_settled(rig.c) && !rig.x.staged) {
        EXPECT_EQ(gq_buffer_register(rig.e, &mem, &b), -EIO);
        EXPECT_EQ(gq_engine_recover(rig.e), -EIO);
        return;
    }
    b = rig.add(m, 0, 4096);
    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{0, 4096}}, 0, 4096), -EIO);
    EXPECT_FALSE(rig.result.unsettled);
    EXPECT_EQ(gq_engine_recover(rig.e), -EIO);
    gq_buffer_unregister(b);
}

unsigned regions(nvme_ctrlr *c)
{
    nvme_dma_budget budget;

    nvme_dma_regions(c, &budget);
    return budget.used;
}

/*
 * The drive may still move data, but not to or from the buffers, and every load is refused.
 */
void give_up(Busy &b)
{
    unsigned before = regions(b.rig.c), buffers = (unsigned)b.rig.stats().buffers;

    sim_stick(b.rig.s);
    EXPECT_EQ(nvme_ctrlr_reset(b.rig.c, 0), -EIO);
    EXPECT_FALSE(nvme_ctrlr_settled(b.rig.c));
    EXPECT_GE(buffers, 4u);
    EXPECT_EQ(regions(b.rig.c), before - buffers);
    auto start = Clock::now();
    b.load.join(false);
    EXPECT_LT(Clock::now() - start, milliseconds(kSlackMs)) << "nothing is waited for any more";
    EXPECT_EQ(b.load.failed, 4u);
    EXPECT_EQ(b.load.error, -EIO);
}

/*
 * Two transfers have all queues, full of commands that never end; the other
 * transfers have posted nothing.
 */
TEST_P(GqStuck, TransfersRefusedAfterARestartReportUnsettledCommands)
{
    Busy b(GetParam());
    sim_fault lose = once(SIM_FAULT_LOSE);
    sim_stats before, now;
    uint64_t sent = 0;

    lose.times = 0;
    b.rig.cfg.no_reset = true;
    b.rig.opts.deadline_ms = 600000; /* none is missed before the reset */
    b.rig.open();
    b.rig.fault(lose);
    const uint64_t room = b.rig.opts.queues * (b.rig.opts.depth - 1);
    sim_get_stats(b.rig.s, &before);
    b.load.start();
    auto end = Clock::now() + milliseconds(kSlackMs);
    do {
        std::this_thread::sleep_for(milliseconds(1));
        sim_get_stats(b.rig.s, &now);
    } while (now.commands < before.commands + room && Clock::now() < end);
    give_up(b);
    EXPECT_EQ(b.load.unsettled, 2u);
    for (const gq_result &r : b.load.results) {
        EXPECT_EQ(r.unsettled, r.commands != 0);
        sent += r.commands;
    }
    EXPECT_EQ(sent, room);
    EXPECT_EQ(b.rig.stats().restarts, 2u);
    EXPECT_EQ(b.rig.stats().quarantined, b.rig.opts.queues);
    expect_dead(b.rig);
}

TEST_P(GqReset, PulledDriveEndsEverythingInTime)
{
    Busy b(GetParam());

    b.rig.opts.deadline_ms = 1000;
    b.start();
    auto start = Clock::now();
    sim_remove(b.rig.s);
    b.load.join(false);
    /* A command's deadline, and an eighth of it until the kernel checks. */
    EXPECT_LT(Clock::now() - start, milliseconds(1125 + kSlackMs));
    EXPECT_EQ(b.load.failed, 4u);
    start = Clock::now();
    EXPECT_EQ(gq_engine_recover(b.rig.e), -EIO);
    EXPECT_LT(Clock::now() - start, milliseconds(nvme_ctrlr_reset_ms(b.rig.c) + kSlackMs));
    EXPECT_TRUE(nvme_ctrlr_settled(b.rig.c));
    uint64_t errors = b.rig.stats().errors;
    expect_dead(b.rig);
    EXPECT_GT(b.rig.stats().errors, errors);
}

GQ_FOR_SOME_EXECUTORS(GqReset, kForBusy);
GQ_FOR_SOME_EXECUTORS(GqStuck, kForStuck);

} // namespace
