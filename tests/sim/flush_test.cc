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
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <memory>
#include <mutex>
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

} // namespace
