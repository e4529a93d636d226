/* The recovery ladder, rung by rung, and resets by others in the middle of transfers. */
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "blockdev/bdev.h"
#include "tests/cuda/gq_rig.h"

namespace
{

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr size_t kMib = 1u << 20;
constexpr unsigned kSlackMs = 10000; /* of a loaded machine with sanitizers, on top of a bound */

class GqRecover : public GqTest
{
};

/* What takes its time: not for every executor. */
class GqBusy : public GqTest
{
};

const Executor kForBusy[] = {kExecutors[0], kExecutors[2], kExecutors[4], kExecutors[5]};

/* What waits for a controller that does not come back. */
class GqStuck : public GqTest
{
};

const Executor kForStuck[] = {kExecutors[2], kExecutors[3]};

sim_fault once(sim_fault_kind kind)
{
    sim_fault f = {};

    f.kind = kind;
    f.times = 1;
    return f;
}

sim_fault lost_admin(uint8_t opcode)
{
    sim_fault f = once(SIM_FAULT_LOSE);

    f.admin = true;
    f.match_opcode = true;
    f.opcode = opcode;
    return f;
}

/*
 * One queue of depth 5 and a buffer: the least that can go wrong. Where a transfer must not end,
 * its own short deadline does it; the others have the engine's long one, for loaded machines.
 */
class Small
{
  public:
    explicit Small(const Executor &x) : rig(x, 512, 256u << 10), memory(x.kind, 64u << 10)
    {
        rig.opts.queues = 1;
        rig.opts.depth = 5;
        rig.opts.max_command = 512;
        rig.driver.admin_timeout_ms = 300;
    }

    void open()
    {
        rig.open();
        buffer = rig.add(memory, 0, 64u << 10);
    }

    ~Small()
    {
        if (buffer)
            gq_buffer_unregister(buffer);
    }

    int read(uint64_t lba, uint64_t lbas, unsigned deadline_ms = 0)
    {
        rig.req.deadline_ms = deadline_ms;
        return rig.move(GQ_READ, buffer, 0, {{lba, lbas * 512}}, 0, lbas * 512);
    }

    /* The first command of a transfer is lost, and its queue with it. */
    void lose_one()
    {
        rig.fault(once(SIM_FAULT_LOSE));
        ASSERT_EQ(read(0, 20, 100), -ETIMEDOUT);
        ASSERT_TRUE(rig.result.unsettled);
        ASSERT_EQ(rig.stats().quarantined, 1u);
    }

    /* Several times round the rings: head, tail and phase are what the controller thinks. */
    void expect_in_step()
    {
        EXPECT_EQ(rig.stats().quarantined, 0u);
        for (uint64_t i = 0; i < 40; i++) {
            uint64_t lba = i * 37 % 384, lbas = 1 + i % 17;
            Bytes want(rig.media.begin() + (ptrdiff_t)(lba * 512),
                       rig.media.begin() + (ptrdiff_t)((lba + lbas) * 512));

            memory.fill(0xee);
            ASSERT_EQ(read(lba, lbas), 0) << "after " << i;
            ASSERT_TRUE(memory.read(0, lbas * 512) == want) << "after " << i;
        }
    }

    void expect_rungs(uint64_t aborts, uint64_t recreates, uint64_t resets)
    {
        gq_stats st = rig.stats();

        EXPECT_EQ(st.aborts, aborts);
        EXPECT_EQ(st.recreates, recreates);
        EXPECT_EQ(st.resets, resets);
    }

    Rig rig;
    Memory memory;
    gq_buffer *buffer = nullptr;
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
    sim_fault f = once(SIM_FAULT_LOSE);

    f.times = 4;
    s.open();
    s.rig.fault(f);
    EXPECT_EQ(s.read(0, 20, 100), -ETIMEDOUT);
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

    s.open();
    s.lose_one();
    s.rig.fault(lost_admin(NVME_ADMIN_ABORT));
    EXPECT_EQ(gq_engine_recover(s.rig.e), 0);
    s.expect_rungs(0, 0, 1);
    s.expect_in_step();
}

TEST_P(GqBusy, QueueThatIsRefusedAfterAResetCostsAnother)
{
    Small s(GetParam());
    sim_fault refuse = lost_admin(NVME_ADMIN_CREATE_SQ);

    s.rig.cfg.no_abort = true;
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
TEST_P(GqBusy, LateCommandDoesNotReachABufferThatHasEnded)
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

/* Threads that write, read back and compare, each a MiB of the namespace of its own. */
class Load
{
  public:
    Load(Rig &rig, unsigned n) : rig_(rig)
    {
        for (unsigned i = 0; i < n; i++)
            memory_.push_back(std::make_unique<Memory>(rig.x.kind, kMib));
    }

    /* Memory is taken and given back while no transfer runs. */
    void start()
    {
        for (unsigned i = 0; i < memory_.size(); i++) {
            buffers_.push_back(rig_.add(*memory_[i], 0, kMib));
            memory_[i]->write(0, random_bytes(kMib, 50 + i));
        }
        for (unsigned i = 0; i < memory_.size(); i++)
            threads_.emplace_back([this, i] { work(i); });
    }

    void wait_rounds(unsigned n)
    {
        for (unsigned until = rounds + n; rounds < until && !failed;)
            std::this_thread::sleep_for(milliseconds(1));
    }

    void join(bool at_once = true)
    {
        stop_ = at_once;
        for (std::thread &t : threads_)
            t.join();
        threads_.clear();
        for (gq_buffer *b : buffers_)
            gq_buffer_unregister(b);
        buffers_.clear();
    }

    void expect_right()
    {
        join();
        EXPECT_EQ(failed, 0u) << "the last: " << strerror(-error);
        for (unsigned i = 0; i < memory_.size(); i++)
            EXPECT_TRUE(rig_.peek(i * kMib, kMib) == random_bytes(kMib, 50 + i)) << i;
    }

    std::atomic<unsigned> rounds{0}, failed{0};
    std::atomic<int> error{0};
    std::atomic<bool> unsettled{false};
    std::atomic<unsigned> deadline_ms{0}; /* of each transfer */

  private:
    int move(gq_op op, unsigned i, uint64_t offset, uint64_t len)
    {
        gq_extent x = {i * kMib / 512, kMib};
        gq_request req = {op, buffers_[i], offset, offset, len, &x, 1, deadline_ms, nullptr};
        gq_result result;
        int err = gq_transfer(rig_.e, &req, &result);

        if (err)
            unsettled = unsettled || result.unsettled;
        return err;
    }

    /* A read puts back what is there, so that the memory is at any time what was written. */
    void work(unsigned i)
    {
        std::mt19937 rng(i);

        while (!stop_) {
            uint64_t at = rng() % 1024 * 512;
            int err = move(GQ_WRITE, i, 0, kMib);

            if (!err)
                err = move(GQ_READ, i, at + rng() % 512, 1 + rng() % (kMib / 2 - 512));
            if (err) {
                error = err;
                failed++;
                return;
            }
            rounds++;
        }
    }

    Rig &rig_;
    std::atomic<bool> stop_{false};
    std::vector<std::unique_ptr<Memory>> memory_;
    std::vector<gq_buffer *> buffers_;
    std::vector<std::thread> threads_;
};

/* Four transfers at a time, many commands each. */
class Busy
{
  public:
    explicit Busy(const Executor &x) : rig(x, 512, 4 * kMib), load(rig, 4)
    {
        rig.opts.queues = 8;
        rig.opts.depth = 16;
        rig.opts.max_command = 8192;
        rig.cfg.latency_ns = 200000;
        rig.cfg.reorder = true;
        rig.driver.admin_timeout_ms = 1000;
    }

    void start()
    {
        rig.open();
        load.start();
        load.wait_rounds(4);
    }

    Rig rig;
    Load load;
};

TEST_P(GqBusy, TransfersGoOnAcrossResetsByOthers)
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
TEST_P(GqBusy, ResetByTheBlockDeviceIsNotSeen)
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

TEST_P(GqBusy, OtherTransfersGoOnWhileAQueueIsRecovered)
{
    for (bool no_abort : {false, true}) {
        Busy b(GetParam());

        b.rig.cfg.no_abort = no_abort;
        b.rig.opts.deadline_ms = 1000;
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

TEST_P(GqBusy, ControllerThatHangsIsReset)
{
    Busy b(GetParam());

    b.load.deadline_ms = 500;
    b.start();
    b.rig.fault(once(SIM_FAULT_HANG));
    b.load.join(false);
    EXPECT_EQ(b.load.failed, 4u);
    EXPECT_EQ(gq_engine_recover(b.rig.e), 0);
    EXPECT_EQ(b.rig.stats().resets, 1u);
    EXPECT_EQ(b.rig.stats().quarantined, 0u);
    b.load.failed = b.load.deadline_ms = 0;
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
void expect_dead(Rig &rig)
{
    Memory m(rig.x.kind, 4096);
    gq_buffer *b = rig.add(m, 0, 4096);

    EXPECT_EQ(rig.move(GQ_READ, b, 0, {{0, 4096}}, 0, 4096), -EIO);
    EXPECT_FALSE(rig.result.unsettled);
    EXPECT_EQ(gq_engine_recover(rig.e), -EIO);
    gq_buffer_unregister(b);
}

TEST_P(GqStuck, StuckControllerThatNothingResetsIsGivenUp)
{
    Busy b(GetParam());

    b.rig.cfg.no_reset = true;
    b.start();
    sim_stick(b.rig.s);
    EXPECT_EQ(nvme_ctrlr_reset(b.rig.c, 0), -EIO);
    auto start = Clock::now();
    b.load.join(false);
    EXPECT_LT(Clock::now() - start, milliseconds(kSlackMs)) << "nothing is waited for any more";
    EXPECT_EQ(b.load.failed, 4u);
    EXPECT_EQ(b.load.error, -EIO);
    EXPECT_EQ(b.load.unsettled, !nvme_ctrlr_settled(b.rig.c));
    expect_dead(b.rig);
}

TEST_P(GqBusy, PulledDriveEndsEverythingInTime)
{
    Busy b(GetParam());

    b.rig.opts.deadline_ms = 1000;
    b.start();
    auto start = Clock::now();
    sim_remove(b.rig.s);
    b.load.join(false);
    /* A command's deadline, and an eighth of it until the kernel looks. */
    EXPECT_LT(Clock::now() - start, milliseconds(1125 + kSlackMs));
    EXPECT_EQ(b.load.failed, 4u);
    start = Clock::now();
    EXPECT_EQ(gq_engine_recover(b.rig.e), -EIO);
    EXPECT_LT(Clock::now() - start, milliseconds(nvme_ctrlr_reset_ms(b.rig.c) + kSlackMs));
    EXPECT_TRUE(nvme_ctrlr_settled(b.rig.c));
    expect_dead(b.rig);
}

/* Every rung may be tried and fail, and the whole keeps the bound that gq.h states. */
TEST_P(GqBusy, RecoveryKeepsItsBound)
{
    Small s(GetParam());
    sim_fault lose_all = once(SIM_FAULT_LOSE);

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
GQ_FOR_SOME_EXECUTORS(GqBusy, kForBusy);
GQ_FOR_SOME_EXECUTORS(GqStuck, kForStuck);

} // namespace
