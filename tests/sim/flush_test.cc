/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * An image file on a disk: durability of writes, and other commands during a
 * slow sync.
 */
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <memory>
#include <mutex>
#include <nvme/types.h>
#include <string>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>
#include <vector>

#include "sim_test_rig.h"

/* The fake disk: a sync waits until it is released. */
static struct {
    std::mutex lock;
    std::condition_variable changed;
    bool held, fails;
    int refuses; /* errno of writes, 0: none */
    bool full;   /* no room for parts of a sparse file, which truncation stands in for */
    unsigned begun;
} disk;
static long file_system = EXT4_SUPER_MAGIC;

extern "C" int __wrap_fdatasync(int fd);
extern "C" int __wrap_fdatasync(int)
{
    std::unique_lock<std::mutex> hold(disk.lock);
    disk.begun++;
    disk.changed.notify_all();
    disk.changed.wait(hold, [] { return !disk.held; });
    errno = EIO;
    return disk.fails ? -1 : 0;
}

extern "C" ssize_t __real_pwrite64(int fd, const void *from, size_t len, off_t at);
extern "C" ssize_t __wrap_pwrite64(int fd, const void *from, size_t len, off_t at);
extern "C" ssize_t __wrap_pwrite64(int fd, const void *from, size_t len, off_t at)
{
    if (!disk.refuses)
        return __real_pwrite64(fd, from, len, at);
    errno = disk.refuses;
    return -1;
}

extern "C" int __real_fstat64(int fd, struct stat *st);
extern "C" int __wrap_fstat64(int fd, struct stat *st);
extern "C" int __wrap_fstat64(int fd, struct stat *st)
{
    int rc = __real_fstat64(fd, st);
    if (rc == 0 && disk.full)
        st->st_size = INT64_MAX;
    return rc;
}

extern "C" int __wrap_fstatfs64(int fd, struct statfs *st);
extern "C" int __wrap_fstatfs64(int, struct statfs *st)
{
    *st = {};
    st->f_type = file_system;
    return 0;
}

namespace
{

struct SyncedImage {
    SyncedImage()
    {
        int fd = mkstemp(path.data());
        EXPECT_EQ(ftruncate(fd, 8 << 20), 0);
        close(fd);
    }
    ~SyncedImage() { unlink(path.c_str()); }
    struct sim_config config() const
    {
        struct sim_config c = small_config();
        c.ns[0].bytes = 0;
        c.ns[0].path = path.c_str();
        c.flush_to_disk = true;
        return c;
    }
    std::string path = ::testing::TempDir() + "gpunvme-flush-XXXXXX";
};

struct Flush : ::testing::Test {
    Flush()
    {
        disk.held = disk.fails = disk.full = false;
        disk.refuses = 0;
        disk.begun = 0;
        start(image.config());
    }
    ~Flush() override
    {
        let_go();
        file_system = EXT4_SUPER_MAGIC;
    }
    void start(const struct sim_config &c)
    {
        buf.reset();
        r.reset();
        r = std::make_unique<Rig>(c);
        q = &r->create(1, 16);
        buf = r->dma(4096);
    }
    void submit(const struct nvme_sqe &s)
    {
        r->put(*q, s);
        r->ring(*q);
    }
    static struct nvme_sqe flush(uint16_t cid)
    {
        struct nvme_sqe s = {};
        s.cid = cid;
        s.nsid = 1;
        return s;
    }
    struct nvme_sqe write(uint16_t cid, bool fua) const
    {
        struct nvme_sqe s = io(NVME_IO_WRITE, 3, 1, buf->iova, 0, cid);
        s.cdw12 |= fua ? NVME_RW_FUA : 0;
        return s;
    }
    struct nvme_sqe read(uint16_t cid) const { return io(NVME_IO_READ, 0, 1, buf->iova, 0, cid); }
    static void hold()
    {
        std::lock_guard<std::mutex> lock(disk.lock);
        disk.held = true;
    }
    static void let_go()
    {
        std::lock_guard<std::mutex> lock(disk.lock);
        disk.held = false;
        disk.changed.notify_all();
    }
    static bool begins(unsigned n)
    {
        std::unique_lock<std::mutex> lock(disk.lock);
        return disk.changed.wait_for(lock, std::chrono::seconds(10),
                                     [n] { return disk.begun >= n; });
    }
    /* Expects the next CQE to have this CID and status. */
    void ends(uint16_t cid, uint16_t status)
    {
        struct nvme_cqe cqe = {};
        ASSERT_TRUE(r->next(*q, &cqe));
        EXPECT_EQ(cqe.cid, cid);
        EXPECT_EQ(NVME_STATUS(cqe.status), status);
    }

    SyncedImage image;
    std::unique_ptr<Rig> r;
    Queue *q;
    std::unique_ptr<Dma> buf;
};

TEST_F(Flush, OtherCommandsContinueDuringASlowSync)
{
    hold();
    submit(flush(1));
    ASSERT_TRUE(begins(1));
    submit(read(2));
    ends(2, NVME_OK);
    submit(write(3, false));
    ends(3, NVME_OK);
    EXPECT_TRUE(r->quiet(*q));
    let_go();
    ends(1, NVME_OK);
}

TEST_F(Flush, AWriteWithFuaIsOnTheDiskWhenItEnds)
{
    hold();
    submit(write(1, true));
    ASSERT_TRUE(begins(1));
    EXPECT_TRUE(r->quiet(*q));
    let_go();
    ends(1, NVME_OK);
    submit(io(NVME_IO_WRITE_ZEROES, 3, 1, 0, 0, 2));
    ends(2, NVME_OK);
    EXPECT_EQ(disk.begun, 1u) << "without FUA";
}

/* A device of one page; copies end at submission. */
struct Device {
    Device()
    {
        ops.max_copies = 8;
        ops.submit = [](void *, unsigned, bool, const struct sim_copy *c, unsigned n, uint64_t *) {
            for (unsigned i = 0; i < n; i++)
                memset(c[i].host, 'd', c[i].len);
            return 0;
        };
        ops.poll = [](void *, unsigned, uint64_t) { return 1; };
        ops.pin = [](void *, void *, size_t) { return 0; };
        ops.unpin = [](void *, void *) {};
        dma_engine.ops = &ops;
        dma_engine.channels = 4;
        mem.device = 0x7000000000;
        mem.len = 4096;
        mem.fd = -1;
    }
    struct sim_dma_engine_ops ops = {};
    struct sim_dma_engine dma_engine = {};
    struct nvme_mem mem = {};
};

TEST_F(Flush, AFuaWriteFromDeviceMemoryIsOnTheDiskWhenItEnds)
{
    Device device;
    uint64_t iova;
    ASSERT_EQ(sim_set_dma_engine(r->sim, &device.dma_engine), 0);
    ASSERT_EQ(r->t->ops->map(r->t, &device.mem, &iova), 0);
    struct nvme_sqe s = io(NVME_IO_WRITE, 3, 1, iova, 0, 1);
    s.cdw12 |= NVME_RW_FUA;
    hold();
    submit(s);
    ASSERT_TRUE(begins(1));
    EXPECT_TRUE(r->quiet(*q));
    let_go();
    ends(1, NVME_OK);
    char byte = 0;
    EXPECT_EQ(sim_peek(r->sim, 1, 3 * 4096, &byte, 1), 0);
    EXPECT_EQ(byte, 'd');
    EXPECT_EQ(r->t->ops->unmap(r->t, iova), 0);
}

TEST_F(Flush, WithoutACacheEveryWriteIsOnTheDiskWhenItEnds)
{
    struct nvme_sqe off = admin_cmd(NVME_ADMIN_SET_FEATURES, NVME_FEAT_VOLATILE_WRITE_CACHE, 0);
    ASSERT_EQ(r->admin(off), 0);
    unsigned before = disk.begun;
    submit(write(1, false));
    ends(1, NVME_OK);
    EXPECT_EQ(disk.begun, before + 1);
}

TEST_F(Flush, ADriveThatNeverHadACacheSyncsEveryWrite)
{
    struct sim_config c = image.config();
    c.no_volatile_cache = true;
    start(c);
    submit(write(1, false));
    ends(1, NVME_OK);
    EXPECT_EQ(disk.begun, 1u);
}

/* Requests during a sync are not part of it. */
TEST_F(Flush, OneSyncServesAllWaitingCommands)
{
    hold();
    submit(flush(1));
    ASSERT_TRUE(begins(1));
    for (uint16_t cid = 2; cid < 8; cid++)
        submit(flush(cid));
    submit(read(8));
    ends(8, NVME_OK);
    let_go();
    for (uint16_t cid = 1; cid < 8; cid++) {
        struct nvme_cqe cqe;
        ASSERT_TRUE(r->next(*q, &cqe));
        EXPECT_EQ(NVME_STATUS(cqe.status), NVME_OK);
    }
    EXPECT_EQ(disk.begun, 2u);
}

TEST_F(Flush, AFailureWhileDisablingTheCacheIsPermanent)
{
    struct nvme_sqe off = admin_cmd(NVME_ADMIN_SET_FEATURES, NVME_FEAT_VOLATILE_WRITE_CACHE, 0);
    disk.fails = true;
    EXPECT_EQ(r->admin(off), NVME_ERR_WRITE_FAULT);
    disk.fails = false;
    submit(flush(1));
    ends(1, NVME_ERR_WRITE_FAULT);
}

TEST_F(Flush, AFailureIsPermanent)
{
    disk.fails = true;
    submit(flush(1));
    ends(1, NVME_ERR_WRITE_FAULT);
    disk.fails = false;
    submit(write(2, true));
    ends(2, NVME_ERR_WRITE_FAULT);
    submit(read(3));
    ends(3, NVME_OK);
}

/*
 * Media that cannot be accessed: a bad sector, or a sparse file on a full disk.
 */
TEST_F(Flush, OnlyUnreadableOrUnwritablePartsFail)
{
    disk.full = true;
    constexpr uint64_t kGone = 512;
    ASSERT_EQ(truncate(image.path.c_str(), 1 << 20), 0);
    submit(io(NVME_IO_READ, kGone, 1, buf->iova, 0, 1));
    ends(1, NVME_ERR_UNRECOVERED_READ);
    for (auto [error, status] : {std::pair<int, uint16_t>{ENOSPC, NVME_ERR_CAPACITY},
                                 {EDQUOT, NVME_ERR_CAPACITY},
                                 {EIO, NVME_ERR_WRITE_FAULT}}) {
        disk.refuses = error;
        submit(io(NVME_IO_WRITE, kGone, 1, buf->iova, 0, 2));
        ends(2, status);
        submit(io(NVME_IO_WRITE_ZEROES, kGone, 1, 0, 0, 3));
        ends(3, status);
    }
    submit(write(4, true));
    ends(4, NVME_OK);
    submit(flush(5));
    ends(5, NVME_OK);
    submit(read(6));
    ends(6, NVME_OK);
    disk.refuses = 0; /* there is room again */
    fill(buf->addr, 4096, 7);
    submit(io(NVME_IO_WRITE, kGone, 1, buf->iova, 0, 7));
    ends(7, NVME_OK);
    memset(buf->addr, 0, 4096);
    submit(io(NVME_IO_READ, kGone, 1, buf->iova, 0, 8));
    ends(8, NVME_OK);
    EXPECT_TRUE(holds(buf->addr, 4096, 7));
}

/* Through bounce memory: the media cannot be pinned. */
TEST_F(Flush, OnlySuchPartsFailForDeviceMemory)
{
    disk.full = true;
    Device device;
    uint64_t iova;
    device.ops.pin = [](void *, void *, size_t len) { return len > 4 << 20 ? -EINVAL : 0; };
    ASSERT_EQ(sim_set_dma_engine(r->sim, &device.dma_engine), 0);
    ASSERT_EQ(r->t->ops->map(r->t, &device.mem, &iova), 0);
    ASSERT_EQ(truncate(image.path.c_str(), 1 << 20), 0);
    disk.refuses = ENOSPC;
    submit(io(NVME_IO_READ, 512, 1, iova, 0, 1));
    ends(1, NVME_ERR_UNRECOVERED_READ);
    submit(io(NVME_IO_WRITE, 512, 1, iova, 0, 2));
    ends(2, NVME_ERR_CAPACITY);
    submit(io(NVME_IO_WRITE, 0, 1, iova, 0, 3));
    ends(3, NVME_OK);
    EXPECT_EQ(r->t->ops->unmap(r->t, iova), 0);
}

/* The former contents must be saved for the cache and cannot be read. */
TEST_F(Flush, OnlySuchPartsFailWithATrackedCache)
{
    disk.full = true;
    struct sim_config c = image.config();
    c.track_cache = true;
    start(c);
    ASSERT_EQ(truncate(image.path.c_str(), 1 << 20), 0);
    submit(io(NVME_IO_WRITE, 512, 1, buf->iova, 0, 1));
    ends(1, NVME_ERR_INTERNAL);
    submit(write(2, false));
    ends(2, NVME_OK);
}

// A write behind the end would extend the file, and the lost part would read as zeros.
TEST_F(Flush, AnImageTruncatedUnderTheDriveIsDetected)
{
    static std::vector<std::string> said;
    struct sim_config c = image.config();
    said.clear();
    c.log = [](int, const char *line) { said.push_back(line); };
    start(c);
    ASSERT_EQ(truncate(image.path.c_str(), 1 << 20), 0);
    submit(io(NVME_IO_WRITE, 512, 1, buf->iova, 0, 1));
    ends(1, NVME_ERR_WRITE_FAULT);
    for (uint16_t cid = 2; cid < 4; cid++) {
        submit(flush(cid));
        ends(cid, NVME_ERR_WRITE_FAULT);
    }
    ASSERT_EQ(said.size(), 1u);
    EXPECT_NE(said[0].find("truncated"), std::string::npos) << said[0];
    struct stat st;
    ASSERT_EQ(stat(image.path.c_str(), &st), 0);
    EXPECT_EQ(st.st_size, 1 << 20) << "not extended";
}

TEST_F(Flush, ABusErrorOutsideACopyKillsTheProcess)
{
    buf.reset();
    r.reset(); /* ends the threads: the death test forks */
    EXPECT_DEATH(
        {
            raise(SIGBUS);
            _exit(0);
        },
        "");
}

TEST_F(Flush, CanBeAborted)
{
    hold();
    submit(flush(1));
    ASSERT_TRUE(begins(1));
    uint32_t result = 9;
    struct nvme_sqe abort = admin_cmd(NVME_ADMIN_ABORT, 1 | 1u << 16, 0);
    abort.cid = 77;
    ASSERT_EQ(r->admin(abort, &result), 0);
    EXPECT_EQ(result, 0u);
    ends(1, NVME_ERR_ABORT_REQUESTED);
    let_go();
    submit(flush(1)); /* the CID is free again; the old sync completes no command with it */
    ends(1, NVME_OK);
    EXPECT_TRUE(r->quiet(*q));
}

TEST_F(Flush, AQueueIsDeletedAndAControllerResetDuringASync)
{
    hold();
    submit(flush(1));
    ASSERT_TRUE(begins(1));
    EXPECT_EQ(r->remove_sq(1), 0);
    EXPECT_EQ(r->remove_cq(1), 0);
    q = &r->create(1, 16);
    submit(flush(2));
    submit(read(3));
    ends(3, NVME_OK);
    r->disable();
    r->queues.clear();
    r->enable();
    q = &r->create(1, 16);
    let_go();
    submit(flush(4));
    ends(4, NVME_OK);
    EXPECT_TRUE(r->quiet(*q));
}

TEST_F(Flush, AnImageInMemoryNeedsNoSync)
{
    EXPECT_GT(r->t->durable_ms, 0u);
    file_system = TMPFS_MAGIC;
    start(image.config());
    EXPECT_EQ(r->t->durable_ms, 0u);
    disk.begun = 0;
    submit(flush(1));
    ends(1, NVME_OK);
    submit(write(2, true));
    ends(2, NVME_OK);
    EXPECT_EQ(disk.begun, 0u);
}

// --- The volatile cache: LBAs that a power cut may lose ------------------------------------------

struct sim_config tracked()
{
    struct sim_config c = small_config();
    c.track_cache = true;
    return c;
}

/* Outcome for a block that was written with one pattern after another. */
enum Fate { KEPT, DROPPED, TORN, OTHER };

Fate fate(Rig &r, uint64_t lba, uint8_t before, uint8_t after)
{
    unsigned char block[4096];
    EXPECT_EQ(sim_peek(r.sim, 1, lba * 4096, block, 4096), 0);
    unsigned olds = 0, news = 0;
    for (int s = 0; s < 8; s++) {
        unsigned char sector[512];
        memset(sector, before, 512);
        olds += memcmp(block + s * 512, sector, 512) == 0;
        memset(sector, after, 512);
        news += memcmp(block + s * 512, sector, 512) == 0;
    }
    if (olds + news != 8)
        return OTHER;
    return news == 8 ? KEPT : olds == 8 ? DROPPED : TORN;
}

struct Cache : ::testing::Test {
    Cache() : r(tracked()), q(&r.create(1, 16)), buf(r.dma(4096)) {}
    void write(uint64_t lba, uint8_t value, bool fua = false)
    {
        memset(buf->addr, value, 4096);
        struct nvme_sqe s = io(NVME_IO_WRITE, lba, 1, buf->iova);
        s.cdw12 |= fua ? NVME_RW_FUA : 0;
        ASSERT_EQ(r.run(*q, s), 0);
    }
    void flush()
    {
        struct nvme_sqe f = {};
        f.nsid = 1;
        ASSERT_EQ(r.run(*q, f), 0);
    }
    void cut(uint64_t seed)
    {
        buf.reset();
        r.power_cut(seed);
    }
    void restart()
    {
        r.attach();
        q = &r.create(1, 16);
        buf = r.dma(4096);
    }
    Rig r;
    Queue *q;
    std::unique_ptr<Dma> buf;
};

TEST_F(Cache, UnflushedWritesHaveEveryOutcomeOverSeeds)
{
    bool seen[4] = {};
    for (uint64_t seed = 0; seed < 5; seed++) {
        for (uint64_t lba = 0; lba < 10; lba++)
            write(lba, 0);
        flush();
        for (uint64_t lba = 0; lba < 10; lba++)
            write(lba, 1);
        cut(seed);
        for (uint64_t lba = 0; lba < 10; lba++)
            seen[fate(r, lba, 0, 1)] = true;
        restart();
    }
    EXPECT_TRUE(seen[KEPT] && seen[DROPPED] && seen[TORN]);
    EXPECT_FALSE(seen[OTHER]);
}

TEST_F(Cache, FlushedDataAndFuaDataAreAlwaysKept)
{
    for (uint64_t seed = 0; seed < 16; seed++) {
        bool fua = seed % 2;
        auto pattern = static_cast<uint8_t>(10 + seed);
        for (uint64_t lba = 0; lba < 10; lba++) {
            write(lba, 1); /* cached, then overwritten */
            write(lba, pattern, fua);
        }
        if (!fua)
            flush();
        cut(seed);
        for (uint64_t lba = 0; lba < 10; lba++)
            EXPECT_EQ(fate(r, lba, 0xee, pattern), KEPT) << seed;
        restart();
    }
}

TEST_F(Cache, ManyWritesBetweenFlushesAreAllTracked)
{
    for (int round = 0; round < 4; round++) {
        for (uint64_t lba = 0; lba < 300; lba += 1 + round)
            write(lba, static_cast<uint8_t>(round + 1), round == 2);
    }
    cut(3);
    for (uint64_t lba = 1; lba < 300; lba += 12) /* written in the first round only */
        EXPECT_NE(fate(r, lba, 0, 1), OTHER);
}

TEST_F(Cache, ShutdownFlushes)
{
    write(3, 7);
    r.write32(NVME_REG_CC, r.read32(NVME_REG_CC) | NVME_CC_SHN_ORDERLY);
    EXPECT_EQ(r.read32(NVME_REG_CSTS) & NVME_CSTS_SHST_BITS, NVME_CSTS_SHST_COMPLETE);
    cut(0);
    EXPECT_EQ(fate(r, 3, 0, 7), KEPT);
}

TEST_F(Cache, TheSameSeedHasTheSameOutcome)
{
    std::string outcomes[2];
    for (auto &outcome : outcomes) {
        for (uint64_t lba = 0; lba < 20; lba++)
            write(lba, 0);
        flush();
        for (uint64_t lba = 20; lba-- > 0;)
            write(lba, 1);
        cut(99);
        for (uint64_t lba = 0; lba < 20; lba++)
            outcome += static_cast<char>('0' + fate(r, lba, 0, 1));
        restart();
    }
    EXPECT_EQ(outcomes[0], outcomes[1]);
}

TEST_F(Cache, RegistersReadAllOnesWithoutPower)
{
    ASSERT_EQ(sim_power_cut(r.sim, 1), 0);
    EXPECT_EQ(r.read32(NVME_REG_CSTS), UINT32_MAX);
    EXPECT_EQ(r.read64(NVME_REG_CAP), UINT64_MAX);
    r.doorbell(1, false, 3);
    EXPECT_TRUE(r.quiet(*q));
}

TEST(CacheOff, PowerCutNeedsTracking)
{
    Rig r(small_config());
    EXPECT_EQ(sim_power_cut(r.sim, 1), -EINVAL);
}

struct Image {
    Image()
    {
        char name[] = "/tmp/sim-image-XXXXXX";
        int fd = mkstemp(name);
        EXPECT_EQ(ftruncate(fd, 1 << 20), 0);
        close(fd);
        path = name;
    }
    ~Image() { unlink(path.c_str()); }
    struct sim_config config()
    {
        struct sim_config c = small_config();
        c.ns[0].path = path.c_str();
        c.ns[0].bytes = 0;
        return c;
    }
    std::string path;
};

TEST(MediaFile, IsLockedExclusively)
{
    Image image;
    Rig r(image.config());
    struct sim_config second = image.config();
    struct sim *s;
    struct nvme_transport *t;
    EXPECT_EQ(sim_create(&second, &s, &t), -EBUSY);
    second.ns[0].read_only = true;
    EXPECT_EQ(sim_create(&second, &s, &t), -EBUSY);
}

TEST(MediaFile, SharedControllersSeeEachOthersWrites)
{
    Image image;
    struct sim_config c = image.config();
    c.ns[0].shared = true;
    Rig a(c), b(c);
    Queue &qa = a.create(1, 8), &qb = b.create(1, 8);
    auto from = a.dma(4096), to = b.dma(4096);
    fill(from->addr, 4096, 5);
    ASSERT_EQ(a.run(qa, io(NVME_IO_WRITE, 9, 1, from->iova)), 0);
    ASSERT_EQ(b.run(qb, io(NVME_IO_READ, 9, 1, to->iova)), 0);
    EXPECT_TRUE(holds(to->addr, 4096, 5));
    struct sim_config alone = image.config();
    struct sim *s;
    struct nvme_transport *t;
    EXPECT_EQ(sim_create(&alone, &s, &t), -EBUSY);
}

TEST(MediaFile, RefusesInvalidConfigurations)
{
    struct sim *s;
    struct nvme_transport *t;
    Image image;
    struct sim_config c = image.config();
    c.ns[0].bytes = 2 << 20; /* larger than the file */
    EXPECT_EQ(sim_create(&c, &s, &t), -EINVAL);
    c = small_config();
    c.ns[0].path = "/nonexistent/image";
    EXPECT_EQ(sim_create(&c, &s, &t), -ENOENT);
    c = small_config();
    c.ns[0].lba_size = 1024;
    EXPECT_EQ(sim_create(&c, &s, &t), -EINVAL);
    c = small_config();
    for (unsigned mdts : {4096u, 3 * 4096u, 16u << 20}) {
        c.mdts = mdts; /* one page would be reported as "no limit" */
        EXPECT_EQ(sim_create(&c, &s, &t), -EINVAL) << mdts;
    }
    c = small_config();
    c.ns[0].bytes = 0;
    EXPECT_EQ(sim_create(&c, &s, &t), -EINVAL);
}

} // namespace
