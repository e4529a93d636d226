/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The effect of a reset on the drive that comes back, the admin queue, existing queue pairs and
 * their users.
 */

#include "tests/blockdev/nvme/nvme_recovery_rig.h"
#include "tests/threads.h"

namespace
{

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
