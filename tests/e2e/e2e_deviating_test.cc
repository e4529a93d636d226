/* SPDX-License-Identifier: BSD-2-Clause */
// Drives of other processes that deviate from the specification, or are slow: they cost time or
// speed, or are refused, and no data.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/e2e/content.h"
#include "tests/e2e/served_rig.h"
#include "tests/fusefs/daemon/client.h"
#include "tests/fusefs/daemon/lease/lease_client.h"

namespace
{

constexpr size_t kPiece = 64 << 10;
constexpr size_t kOwn = 256 << 10; // a buffer that has a file, and so a region, of its own
constexpr size_t kPage = 4096;

class Deviating : public Served
{
  protected:
    // The drive is served with these options, mounted, and has a synced file.
    void begin(const std::vector<std::string> &server, const std::string &options,
               bool strict = true)
    {
        serve(server, strict);
        mounted_ = std::make_unique<Mounted>(kImage);
        ASSERT_TRUE(mounted_->mount("executor=cpu," + options)) << mounted_->log();
        fd_ = write_content(mounted_->path("file"), 1);
        ASSERT_EQ(fsync(fd_), 0);
        ASSERT_EQ(connection_open(mounted_->path("").c_str(), &g_), 0) << gpunvme_error();
    }
    void TearDown() override
    {
        if (g_)
            connection_close(g_);
        if (fd_ >= 0)
            close(fd_);
        if (mounted_)
            expect_good_end(mounted_.get());
        Served::TearDown();
    }
    gpunvme_ioc_stats stats() const
    {
        gpunvme_ioc_stats stats = {};
        EXPECT_EQ(gpunvme_stats(connection_fd(g_), &stats), 0) << gpunvme_error();
        return stats;
    }
    // Piece i of the file by the queues of the executor.
    void expect_reads(gpunvme_buffer *b, size_t i, size_t len = kPiece) const
    {
        gpunvme_result result;

        memset(buffer_addr(b), 0, len);
        ASSERT_EQ(transfer_read(b, fd_, 0, i * len % kFile, len, &result), (ssize_t)len)
            << result.why;
        EXPECT_EQ(result.path, (uint32_t)GPUNVME_PATH_GPU) << result.why;
        EXPECT_TRUE(holds(b, i, len)) << i;
    }
    static bool holds(const gpunvme_buffer *b, size_t i, size_t len)
    {
        std::vector<uint8_t> want(len);

        content_fill(1, i * len % kFile, want.data(), len);
        return memcmp(buffer_addr(b), want.data(), len) == 0;
    }
    static void expect_zeros(const gpunvme_buffer *b)
    {
        const auto *bytes = static_cast<const uint8_t *>(buffer_addr(b));
        size_t len = buffer_len(b);

        EXPECT_EQ(std::count(bytes, bytes + len, 0), static_cast<ptrdiff_t>(len));
    }
    void expect_file() const
    {
        posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED);
        EXPECT_TRUE(has_content(mounted_->path("file"), 1));
    }

    std::unique_ptr<Mounted> mounted_;
    connection *g_ = nullptr;
    int fd_ = -1;
};

// A buffer more than the drive keeps regions is registered, too, and its data is staged.
TEST_F(Deviating, AServerWith64RegionsGetsNoFurtherRequests)
{
    std::vector<gpunvme_buffer *> buffers(100);

    begin({"--dma-maps", "64"}, "");
    gpunvme_ioc_stats before = stats();
    EXPECT_EQ(before.dma_region_limit, 64u);
    EXPECT_LE(before.dma_regions, 16u) << "43 queues, rings, lists, bounce memory";
    for (size_t i = 0; i < buffers.size(); i++) {
        ASSERT_EQ(buffer_alloc(g_, kOwn, &buffers[i]), 0) << i << ": " << gpunvme_error();
        expect_reads(buffers[i], i);
    }
    gpunvme_ioc_stats full = stats();
    EXPECT_LE(full.dma_regions, 64u);
    EXPECT_GE(full.dma_regions, 56u);
    EXPECT_GT(full.gpu_staged_read_bytes, 0u);
    EXPECT_LT(full.gpu_staged_read_bytes, full.gpu_read_bytes);
    EXPECT_NE(mounted_->log().find("of 64 DMA regions are in use"), std::string::npos);
    for (auto *b : buffers)
        buffer_unregister(b);
    EXPECT_EQ(stats().dma_regions, before.dma_regions);
    ASSERT_EQ(buffer_alloc(g_, kOwn, &buffers[0]), 0) << gpunvme_error();
    expect_reads(buffers[0], 3);
    EXPECT_EQ(stats().gpu_staged_read_bytes, full.gpu_staged_read_bytes) << "there is room again";
    buffer_unregister(buffers[0]);
}

// The direct path needs a region for its staging, which buffers leave to it: a few times. What it
// takes is given back after an error.
TEST_F(Deviating, AFullTableRefusesTheDirectPathUntilThereIsRoom)
{
    const struct direct_options few = {2, 8, 0};
    std::vector<gpunvme_buffer *> buffers(70);
    std::vector<struct gpunvme_direct *> leases;
    struct gpunvme_direct *d = nullptr;
    struct leased_file *f = nullptr;
    std::vector<uint8_t> want(kPiece);

    begin({"--dma-maps", "64"}, "direct=root");
    for (auto &b : buffers)
        ASSERT_EQ(buffer_alloc(g_, kOwn, &b), 0) << gpunvme_error();
    gpunvme_buffer *staged = buffers.back();
    int err;
    while ((err = direct_open(g_, &few, &d)) == 0)
        leases.push_back(d);
    EXPECT_EQ(err, -ENOTSUP);
    EXPECT_GE(leases.size(), 2u);
    EXPECT_NE(std::string(gpunvme_error()).find("all its DMA regions are in use"),
              std::string::npos)
        << gpunvme_error();
    uint64_t full = stats().dma_regions, held = stats().buffers;
    auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(direct_open(g_, &few, &d), -ENOTSUP);
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
    EXPECT_EQ(stats().dma_regions, full);
    EXPECT_EQ(stats().buffers, held);
    direct_close(leases.back());
    EXPECT_EQ(stats().dma_regions, full - 2) << "its queues and its staging";
    ASSERT_EQ(direct_open(g_, &few, &leases.back()), 0) << gpunvme_error();
    ASSERT_EQ(leased_file_open(leases.back(), fd_, false, &f), 0) << gpunvme_error();
    content_fill(1, kPiece, want.data(), kPiece);
    memset(buffer_addr(staged), 0, kPiece);
    EXPECT_EQ(direct_read_wait(f, buffer_addr(staged), kPiece, kPiece), (ssize_t)kPiece);
    EXPECT_EQ(memcmp(buffer_addr(staged), want.data(), kPiece), 0);
    for (auto *each : leases)
        direct_close(each);
    EXPECT_EQ(stats().dma_regions, full - 2 * leases.size());
    for (auto *b : buffers)
        buffer_unregister(b);
}

// More buffers than the drive keeps regions, in one memfd: none of them is staged.
TEST_F(Deviating, BuffersInOneFileShareARegion)
{
    constexpr size_t kCount = 200, kLen = 4096;
    Fd memory = shared_memory(kCount * kLen);
    ASSERT_GE(memory, 0);
    auto *data = static_cast<unsigned char *>(
        mmap(nullptr, kCount * kLen, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0));
    ASSERT_NE(data, MAP_FAILED);
    std::vector<gpunvme_ioc_register> all(kCount, abi_struct<gpunvme_ioc_register>());
    std::vector<uint8_t> want(kCount * kLen);

    begin({"--dma-maps", "64"}, "");
    uint64_t before = stats().dma_regions;
    content_fill(1, 0, want.data(), want.size());
    for (size_t i = 0; i < kCount; i++) {
        all[i].kind = GPUNVME_MEM_FD;
        all[i].offset = i * kLen;
        all[i].len = kLen;
        all[i].token = token_of(fd_, memory);
        ASSERT_EQ(issue(fd_, GPUNVME_IOC_REGISTER, &all[i]), 0) << i;
        auto rw = abi_struct<gpunvme_ioc_rw>();
        rw.id = all[i].id;
        rw.key = all[i].key;
        rw.file_offset = i * kLen;
        rw.len = kLen;
        ASSERT_EQ(issue(fd_, GPUNVME_IOC_READ, &rw), 0) << i;
        EXPECT_EQ(rw.path, (uint32_t)GPUNVME_PATH_GPU);
    }
    EXPECT_EQ(memcmp(data, want.data(), want.size()), 0);
    EXPECT_EQ(stats().dma_regions, before + 1);
    EXPECT_EQ(stats().gpu_staged_read_bytes, 0u);
    for (auto &reg : all) {
        auto unreg = abi_struct<gpunvme_ioc_unregister>();
        unreg.id = reg.id;
        unreg.key = reg.key;
        EXPECT_EQ(issue(fd_, GPUNVME_IOC_UNREGISTER, &unreg), 0);
    }
    EXPECT_EQ(stats().dma_regions, before);
    munmap(data, kCount * kLen);
}

// They are pieces of a file that the library makes, and used again.
TEST_F(Deviating, SmallBuffersShareARegionWhileTheyChange)
{
    constexpr size_t kCount = 200;
    std::vector<gpunvme_buffer *> buffers(kCount, nullptr);
    std::vector<size_t> holds_piece(kCount);
    std::mt19937 rng(3);

    begin({"--dma-maps", "64"}, "");
    uint64_t before = stats().dma_regions, none = stats().buffers;
    for (size_t i = 0; i < 1000; i++) {
        size_t at = i < kCount ? i : rng() % kCount;
        if (buffers[at]) {
            EXPECT_TRUE(holds(buffers[at], holds_piece[at], kPage)) << at;
            ASSERT_EQ(buffer_unregister(buffers[at]), 0);
        }
        ASSERT_EQ(buffer_alloc(g_, kPage, &buffers[at]), 0) << i << ": " << gpunvme_error();
        expect_zeros(buffers[at]);
        expect_reads(buffers[at], i, kPage);
        holds_piece[at] = i;
    }
    EXPECT_EQ(stats().dma_regions, before + 1);
    EXPECT_EQ(stats().gpu_staged_read_bytes, 0u);
    EXPECT_EQ(stats().buffers, none + kCount);
    std::shuffle(buffers.begin(), buffers.end(), rng);
    for (auto *b : buffers)
        EXPECT_EQ(buffer_unregister(b), 0);
    EXPECT_EQ(stats().dma_regions, before);
    EXPECT_EQ(stats().buffers, none);
}

// 0: a lease of queues reads the file's second page.
int read_by_a_lease(const std::string &mount, const std::string &path)
{
    const struct direct_options few = {2, 8, 0};
    struct gpunvme_direct *d = nullptr;
    struct leased_file *f = nullptr;
    gpunvme_buffer *b = nullptr;
    connection *g = nullptr;
    std::vector<uint8_t> want(kPage);
    Fd fd = open(path.c_str(), O_RDONLY);

    content_fill(1, kPage, want.data(), kPage);
    int err = connection_open(mount.c_str(), &g);
    if (!err)
        err = direct_open(g, &few, &d);
    if (!err)
        err = leased_file_open(d, fd, true, &f);
    if (!err)
        err = buffer_alloc(g, kPage, &b);
    if (!err && direct_read_wait(f, buffer_addr(b), kPage, kPage) != (ssize_t)kPage)
        err = -EIO;
    if (!err && memcmp(buffer_addr(b), want.data(), kPage) != 0)
        err = -EILSEQ;
    if (err)
        fprintf(stderr, "lease: %d: %s\n", err, gpunvme_error());
    connection_close(g);
    return err;
}

// In a process of its own, which then ends; true if its lease read the file.
bool child_reads_by_a_lease(const Mounted &mounted)
{
    int status = -1;
    pid_t pid = fork();

    if (pid == 0)
        _exit(read_by_a_lease(mounted.path(""), mounted.path("file")) ? 1 : 0);
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) &&
           WEXITSTATUS(status) == 0;
}

TEST_F(Deviating, AnotherProcessLeasesQueuesDespiteManySmallBuffers)
{
    std::vector<gpunvme_buffer *> buffers(200);

    begin({"--dma-maps", "64"}, "direct=root");
    for (auto &b : buffers)
        ASSERT_EQ(buffer_alloc(g_, kPage, &b), 0) << gpunvme_error();
    gpunvme_ioc_stats held = stats();
    EXPECT_TRUE(child_reads_by_a_lease(*mounted_));
    for (size_t i = 0; i < buffers.size(); i++)
        expect_reads(buffers[i], i, kPage);
    EXPECT_EQ(stats().dma_regions, held.dma_regions);
    EXPECT_EQ(stats().buffers, held.buffers);
    for (auto *b : buffers)
        buffer_unregister(b);
}

TEST_F(Deviating, AnotherProcessLeasesQueuesWhileBuffersFillTheRegions)
{
    std::vector<gpunvme_buffer *> buffers(70);

    begin({"--dma-maps", "64"}, "direct=root");
    for (auto &b : buffers)
        ASSERT_EQ(buffer_alloc(g_, kOwn, &b), 0) << gpunvme_error();
    uint64_t held = stats().dma_regions;
    EXPECT_TRUE(child_reads_by_a_lease(*mounted_));
    EXPECT_EQ(stats().dma_regions, held);
    for (auto *b : buffers)
        buffer_unregister(b);
}

// The files of the rings of all queues of a lease.
std::set<ino_t> files_of(int fd, const Queues &lease)
{
    std::set<ino_t> files;
    Fd s = connect_mount(fd);

    for (uint64_t i = 0; i < lease.reply().queues; i++) {
        gpunvme_reply reply;
        struct stat st = {};
        std::vector<int> fds =
            request(s, {GPUNVME_ASK_QUEUE, lease.reply().id, lease.reply().key, i}, &reply);
        if (!fds.empty() && fstat(fds[0], &st) == 0)
            files.insert(st.st_ino);
        for (int each : fds)
            close(each);
    }
    return files;
}

// Of 64 regions: a lease takes one, however many queues it has, and of no other lease.
TEST_F(Deviating, TheQueuesOfALeaseShareARegion)
{
    begin({"--dma-maps", "64"}, "direct=root");
    uint64_t before = stats().dma_regions;
    Queues many(fd_, 20), few(fd_, 2);
    ASSERT_EQ(many.error(), 0);
    ASSERT_EQ(few.error(), 0);
    ASSERT_EQ(many.reply().queues, 20u);
    EXPECT_EQ(stats().dma_regions, before + 2);
    for (Queues *lease : {&many, &few}) {
        ASSERT_TRUE(lease->map(fd_));
        for (size_t i = 0; i < lease->reply().queues; i++)
            EXPECT_EQ(lease->run(i, NVME_IO_FLUSH, 0, 1, 0), 0) << i;
    }
    EXPECT_EQ(many.end(fd_), 0);
    EXPECT_EQ(stats().dma_regions, before + 1);
    EXPECT_EQ(few.run(1, NVME_IO_FLUSH, 0, 1, 0), 0);
    EXPECT_EQ(few.end(fd_), 0);
    EXPECT_EQ(stats().dma_regions, before);
}

TEST_F(Deviating, LeasesHaveTheirRingsInSeparateFiles)
{
    begin({}, "direct=root");
    Queues a(fd_, 3), b(fd_, 3);
    ASSERT_EQ(a.error(), 0);
    ASSERT_EQ(b.error(), 0);
    std::set<ino_t> of_a = files_of(fd_, a), of_b = files_of(fd_, b), both;
    ASSERT_FALSE(of_a.empty());
    std::set_intersection(of_a.begin(), of_a.end(), of_b.begin(), of_b.end(),
                          std::inserter(both, both.end()));
    EXPECT_TRUE(both.empty());
    EXPECT_EQ(a.end(fd_), 0);
    EXPECT_EQ(b.end(fd_), 0);
}

// Its limit is lower than any that is known.
TEST_F(Deviating, AServerThatRefusesEarlierServesAllBuffers)
{
    std::vector<gpunvme_buffer *> buffers(40);

    begin({"--dma-maps", "24"}, "", false);
    for (size_t i = 0; i < buffers.size(); i++) {
        ASSERT_EQ(buffer_alloc(g_, kOwn, &buffers[i]), 0) << i << ": " << gpunvme_error();
        expect_reads(buffers[i], i);
    }
    EXPECT_LE(stats().dma_regions, 24u);
    EXPECT_GT(stats().gpu_staged_read_bytes, 0u);
    for (auto *b : buffers)
        buffer_unregister(b);
}

// The pair serves the file system and the executor, which was asked for.
TEST_F(Deviating, TheOnlyQueuePairIsLentToTheExecutor)
{
    gpunvme_buffer *b = nullptr;
    std::atomic<bool> stop{false};

    begin({"--io-queues", "1"}, "");
    EXPECT_EQ(info_of(fd_).tier, 0u);
    ASSERT_EQ(buffer_alloc(g_, kOwn, &b), 0) << gpunvme_error();
    int other = open(mounted_->path("other").c_str(), O_RDWR | O_CREAT, 0644);
    std::thread writer([&] {
        while (!stop && !HasFailure()) {
            EXPECT_EQ(pwrite(other, "x", 1, 0), 1);
            EXPECT_EQ(fsync(other), 0);
        }
    });
    for (size_t i = 0; i < 200 && !HasFailure(); i++)
        expect_reads(b, i);
    stop = true;
    writer.join();
    buffer_unregister(b);
    close(other);
    expect_file();
    EXPECT_EQ(stats().controller_resets, 0u);
}

// Neither is told as a full disk, or as queues under lease.
TEST_F(Deviating, TheLackOfQueuesIsReported)
{
    gpunvme_direct *d = nullptr;

    serve({"--io-queues", "1"});
    mounted_ = std::make_unique<Mounted>(kImage);
    ASSERT_TRUE(mounted_->mount("direct=all")) << mounted_->log();
    EXPECT_NE(mounted_->log().find("does not start: the controller's only I/O queue pair is"),
              std::string::npos)
        << mounted_->log();
    ASSERT_TRUE(mounted_->unmount()) << mounted_->log();
    EXPECT_FALSE(mounted_->mount("executor=cpu,doorbells=direct"));
    EXPECT_NE(mounted_->log().find("doorbells=direct: the executor cannot reach them"),
              std::string::npos)
        << mounted_->log();
    serve({"--io-queues", "2"});
    ASSERT_TRUE(mounted_->mount("executor=cpu,direct=all")) << mounted_->log();
    ASSERT_EQ(connection_open(mounted_->path("").c_str(), &g_), 0) << gpunvme_error();
    EXPECT_EQ(direct_open(g_, nullptr, &d), -EBUSY);
    EXPECT_STREQ(gpunvme_error(),
                 "the mount leaves no queues of the drive for leases (-o queues=)");
}

// Four pairs are the kernel's, two the executor's, one is the bounce engine's.
TEST_F(Deviating, EightPairsOfQueuesLeaveOneToLease)
{
    begin({"--io-queues", "8"}, "direct=all");
    ASSERT_EQ(info_of(fd_).lease_queues, 1u);
    Buffer bounced(fd_, kPiece, GPUNVME_REGISTER_BOUNCE);
    ASSERT_EQ(bounced.error(), 0);
    Queues leased(fd_, 1);
    EXPECT_EQ(leased.error(), 0);
    EXPECT_EQ(leased.reply().queues, 1u);
}

// A registration and its end that the server answers after their deadline: both calls return, and
// afterwards there is neither a region more nor a controller less.
TEST_F(Deviating, BuffersOfAPausedServerHarmNoOthers)
{
    gpunvme_buffer *before, *after, *none;

    begin({}, "deadline=500");
    unsigned regions = stats().dma_regions;
    for (bool unmaps : {false, true}) {
        ASSERT_EQ(buffer_alloc(g_, 4 * kPiece, &before), 0) << gpunvme_error();
        expect_reads(before, 1);
        server_->pause();
        auto start = std::chrono::steady_clock::now();
        if (unmaps)
            buffer_unregister(before);
        EXPECT_NE(buffer_alloc(g_, 4 * kPiece, &none), 0);
        EXPECT_NE(buffer_alloc(g_, 4 * kPiece, &none), 0);
        std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
        EXPECT_LT(took.count(), 20);
        server_->go_on();
        // On a busy machine the server may need more than one deadline to go on, and calls are
        // refused at once until it has.
        int err = -ETIMEDOUT;
        for (int i = 0; i < 300 && err == -ETIMEDOUT; i++) {
            std::this_thread::sleep_for(std::chrono::milliseconds(i ? 100 : 0));
            err = buffer_alloc(g_, 4 * kPiece, &after);
        }
        ASSERT_EQ(err, 0) << gpunvme_error();
        expect_reads(after, 2);
        if (!unmaps)
            buffer_unregister(before);
        // What a late reply mapped is unmapped afterwards.
        for (int i = 0; i < 100 && stats().dma_regions != regions + 1; i++)
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        EXPECT_EQ(stats().dma_regions, regions + 1) << unmaps;
        buffer_unregister(after);
    }
    EXPECT_EQ(stats().dma_regions, regions);
    EXPECT_EQ(stats().controller_resets, 0u);
    expect_file();
}

TEST_F(Deviating, ErrorsTimeoutsAndResetsAreCounted)
{
    // A read of data that fails once, a write that is lost, and a fatal status at a flush; mkfs and
    // the mount itself read metadata, write and flush before.
    begin({"--fault", "status,op=read,status=0x281,lba=2048+20000,skip=20,times=2", "--fault",
           "lose,op=write,skip=400,times=1", "--fault", "fatal,op=flush,skip=24,times=1",
           "--keeps-queues"},
          "deadline=3000"); // missed by no other command on a busy machine
    for (unsigned i = 0; i < 60 && stats().controller_resets == 0; i++) {
        expect_file();
        Fd fd = write_content(mounted_->path("other"), i);
        ASSERT_EQ(fsync(fd), 0);
    }
    gpunvme_ioc_stats now = stats();
    EXPECT_EQ(now.errors, 2u) << "both tries that failed";
    EXPECT_EQ(now.timeouts, 1u);
    EXPECT_EQ(now.aborts + now.queue_recreations, 1u) << "the lost write";
    EXPECT_EQ(now.controller_resets, 1u);
    EXPECT_EQ(mounted_->log().find("kernel log"), std::string::npos) << mounted_->log();
}

} // namespace
