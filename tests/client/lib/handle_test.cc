/* SPDX-License-Identifier: BSD-2-Clause */
// Any file and any memory: the same bytes as by pread(2), and the way that was taken.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <future>
#include <thread>

#include "gpunvme/gpunvme.h"
#include "tests/client/cufile/places.h"
#include "tests/rounds.h"
#include "tests/threads.h"

using namespace places;

namespace
{

constexpr size_t kFile = (3u << 20) + 4321, kRoom = 4u << 20;

struct Way {
    const char *name;
    Where where;
    int flags; // of open(2)
    Kind kind;
    bool registers;
};

class Io : public InFolder<Way>
{
  protected:
    void SetUp() override
    {
        if (!begin(bytes_))
            return;
        fd_ = open(folder_->path("file").c_str(), O_RDWR | O_CLOEXEC | GetParam().flags);
        if (fd_ < 0 && errno == EINVAL)
            GTEST_SKIP() << "no O_DIRECT here";
        ASSERT_GE(fd_, 0) << strerror(errno);
        ASSERT_EQ(gpunvme_open(nullptr, &io_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_file_open(io_, fd_, 0, &file_), 0) << gpunvme_error();
        memory_ = std::make_unique<Memory>(GetParam().kind, kRoom);
        if (GetParam().registers) {
            ASSERT_EQ(gpunvme_register(io_, memory_->at(), kRoom), 0) << gpunvme_error();
        }
    }

    void TearDown() override
    {
        gpunvme_close(io_);
        if (fd_ >= 0)
            close(fd_);
        if (folder_) {
            EXPECT_TRUE(folder_->end());
        }
    }

    ssize_t read(size_t at, size_t n, uint64_t offset)
    {
        return gpunvme_read(file_, memory_->at(at), n, offset, &result_);
    }

    bool holds(size_t at, size_t n, size_t offset)
    {
        return memory_->get(at, n) ==
               std::vector<char>(bytes_.begin() + static_cast<long>(offset),
                                 bytes_.begin() + static_cast<long>(offset + n));
    }

    std::vector<char> bytes_ = some_bytes(kFile, 1);
    std::unique_ptr<Memory> memory_;
    struct gpunvme *io_ = nullptr;
    struct gpunvme_file *file_ = nullptr;
    struct gpunvme_result result_ = {};
    int fd_ = -1;
};

TEST_P(Io, ReadsWhatTheFileHolds)
{
    struct {
        size_t at, n, offset;
    } reads[] = {{0, 4096, 0},          {1, 4097, 4095},        {4096, 1u << 20, 8192},
                 {3, 2500000, 511},     {0, kFile, 0},          {77, 1, kFile - 1},
                 {512, 512, kFile / 2}, {0, 1u << 20, 1u << 20}};
    for (auto &r : reads) {
        ASSERT_EQ(read(r.at, r.n, r.offset), static_cast<ssize_t>(r.n)) << gpunvme_error();
        EXPECT_TRUE(holds(r.at, r.n, r.offset)) << r.n << " bytes at " << r.offset;
    }
}

TEST_P(Io, ReadsEndWhereTheFileEnds)
{
    EXPECT_EQ(read(9, kRoom - 9, 100), static_cast<ssize_t>(kFile - 100)) << gpunvme_error();
    EXPECT_TRUE(holds(9, kFile - 100, 100));
    EXPECT_EQ(read(0, 4096, kFile), 0);
    EXPECT_EQ(read(0, 10, kFile + 12345), 0);
    EXPECT_EQ(read(0, 0, 0), 0);
}

TEST_P(Io, WritesWhatTheMemoryHolds)
{
    size_t grown = kFile + 10000;
    auto fresh = some_bytes(kRoom, 2);
    memory_->put(0, fresh);
    struct {
        size_t at, n, offset;
    } writes[] = {{0, 8192, 4096}, {5, 3000001, 333}, {1, 1, 0}, {0, 10000, kFile}};
    bytes_.resize(grown);
    for (auto &w : writes) {
        ASSERT_EQ(gpunvme_write(file_, memory_->at(w.at), w.n, w.offset, &result_),
                  static_cast<ssize_t>(w.n))
            << gpunvme_error();
        std::copy_n(fresh.begin() + static_cast<long>(w.at), w.n,
                    bytes_.begin() + static_cast<long>(w.offset));
    }
    EXPECT_TRUE(file_bytes(folder_->path("file")) == bytes_);
}

TEST_P(Io, ManyReadsOfOneCall)
{
    constexpr size_t kPieces = 100;
    std::vector<struct gpunvme_piece> pieces(kPieces);
    for (size_t i = 0; i < kPieces; i++) {
        pieces[i].file_offset = (i * 7919) % (kFile - 5000);
        pieces[i].buffer_offset = i * 5000;
        pieces[i].len = static_cast<uint32_t>(1 + i * 37);
    }
    pieces[3].buffer_offset = kRoom; // outside
    auto before = pieces;
    ASSERT_EQ(gpunvme_readv(file_, memory_->at(), kRoom, pieces.data(), kPieces, &result_), 0)
        << gpunvme_error();
    for (size_t i = 0; i < kPieces; i++) {
        EXPECT_EQ(pieces[i].buffer_offset, before[i].buffer_offset);
        if (i == 3) {
            EXPECT_EQ(pieces[i].result, -ERANGE);
            continue;
        }
        EXPECT_EQ(pieces[i].result, static_cast<int32_t>(pieces[i].len));
        EXPECT_TRUE(holds(pieces[i].buffer_offset, pieces[i].len, pieces[i].file_offset)) << i;
    }
}

// A request with the means to wait for its end.
struct Request : gpunvme_transfer {
    std::promise<ssize_t> ended;
    static void end(gpunvme_transfer *r) { static_cast<Request *>(r)->ended.set_value(r->bytes); }
};

int submit(struct gpunvme_transfer *t)
{
    ssize_t started = gpunvme_submit(&t, 1);

    return started == 1 ? 0 : static_cast<int>(started);
}

TEST_P(Io, ATransferWithoutDoneIsWaitedFor)
{
    struct gpunvme_transfer transfer = {};
    transfer.file = file_;
    transfer.addr = memory_->at(3);
    transfer.len = 5000;
    transfer.file_offset = 777;
    ASSERT_EQ(submit(&transfer), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_wait(&transfer), 5000);
    EXPECT_TRUE(holds(3, 5000, 777));
    EXPECT_NE(transfer.result.path, 0u);
}

TEST_P(Io, ReadsPiecesBehindTheCaller)
{
    std::vector<struct gpunvme_piece> pieces = {{1, 5000, 777, 0}, {100000, 0, 5000, 0}};
    Request request{};
    request.file = file_;
    request.addr = memory_->at();
    request.len = kRoom;
    request.pieces = pieces.data();
    request.n_pieces = pieces.size();
    request.done = Request::end;
    request.write = 1;
    EXPECT_EQ(submit(&request), -EINVAL);
    request.write = 0;
    ASSERT_EQ(submit(&request), 0) << gpunvme_error();
    EXPECT_EQ(request.ended.get_future().get(), 0);
    for (auto &p : pieces) {
        EXPECT_EQ(p.result, static_cast<int32_t>(p.len));
        EXPECT_TRUE(holds(p.buffer_offset, p.len, p.file_offset));
    }
}

// The process that holds a lock on the file, as another process sees it; 0: none does.
pid_t lock_holder(int fd)
{
    int ends[2];
    pid_t holder = -1;
    if (pipe(ends) != 0)
        return -1;
    pid_t child = fork();
    if (child == 0) {
        struct flock lock = {};
        lock.l_type = F_WRLCK;
        int err = fcntl(fd, F_GETLK, &lock);
        pid_t seen = err ? -1 : lock.l_type == F_UNLCK ? 0 : lock.l_pid;
        _exit(write(ends[1], &seen, sizeof(seen)) != sizeof(seen));
    }
    close(ends[1]);
    if (::read(ends[0], &holder, sizeof(holder)) != sizeof(holder))
        holder = -1;
    close(ends[0]);
    waitpid(child, nullptr, 0);
    return holder;
}

// Closing a handle closes descriptors of the file, which drops the locks; transfers close none.
TEST_P(Io, TransfersKeepThePosixLocksOfTheProcess)
{
    int flags = fcntl(fd_, F_GETFL);
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    ASSERT_EQ(fcntl(fd_, F_SETLK, &lock), 0) << strerror(errno);
    ASSERT_EQ(read(0, 4096, 0), 4096);
    ASSERT_EQ(read(1, 777, 4095), 777);
    ASSERT_EQ(read(0, 70000, 8192), 70000);
    ASSERT_EQ(gpunvme_write(file_, memory_->at(), 100, 10000, nullptr), 100);
    struct gpunvme_file *again;
    ASSERT_EQ(gpunvme_file_open(io_, fd_, 0, &again), 0);
    ASSERT_EQ(gpunvme_read(again, memory_->at(), 100, 1, nullptr), 100);
    EXPECT_EQ(lock_holder(fd_), getpid());
    EXPECT_EQ(fcntl(fd_, F_GETFL), flags);
}

// Other threads change the flags of the description, and append by it, while transfers go on.
TEST_P(Io, TheFlagsOfTheCallersDescriptionAreItsOwn)
{
    std::atomic<bool> stop{false};
    std::thread reader([this, &stop] {
        for (size_t i = 0; !stop; i++) {
            if (gpunvme_read(file_, memory_->at(), 4096 - i % 2, (i % 100) * 4096, nullptr) < 0)
                ADD_FAILURE() << gpunvme_error();
        }
    });
    int flags = fcntl(fd_, F_GETFL), lost = 0;
    for (int i = 0; i < 2000; i++) {
        int want = i % 2 ? flags : flags | O_APPEND;
        fcntl(fd_, F_SETFL, want);
        lost += fcntl(fd_, F_GETFL) != want;
    }
    stop = true;
    reader.join();
    EXPECT_EQ(lost, 0);
}

// The number becomes another file's; the handle goes on with the file that it was opened with.
TEST_P(Io, TheDescriptorMayBeClosedAndUsedAgain)
{
    std::string other = folder_->path("other");
    ASSERT_TRUE(make_file(other, some_bytes(kFile, 9)));
    Fd fd = open(other.c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_EQ(dup2(fd, fd_), fd_);
    ASSERT_EQ(read(0, 100000, 8192), 100000) << gpunvme_error();
    EXPECT_TRUE(holds(0, 100000, 8192));
    ASSERT_EQ(read(1, 777, 4095), 777) << gpunvme_error();
    EXPECT_TRUE(holds(1, 777, 4095));
    auto before = file_bytes(other);
    ASSERT_EQ(gpunvme_write(file_, memory_->at(), 5000, 1, nullptr), 5000) << gpunvme_error();
    EXPECT_TRUE(file_bytes(other) == before);
}

// Transfers under way when the handle is closed end with the right bytes.
TEST_P(Io, AFileMayBeClosedUnderTransfers)
{
    constexpr size_t kReads = 16, kLen = 100000;
    std::vector<Request> requests(kReads);
    for (size_t i = 0; i < kReads; i++) {
        requests[i].file = file_;
        requests[i].addr = memory_->at(i * kLen);
        requests[i].len = kLen;
        requests[i].file_offset = i * 1000;
        requests[i].done = Request::end;
        ASSERT_EQ(submit(&requests[i]), 0) << gpunvme_error();
    }
    gpunvme_file_close(file_);
    for (size_t i = 0; i < kReads; i++) {
        EXPECT_EQ(requests[i].ended.get_future().get(), static_cast<ssize_t>(kLen));
        EXPECT_TRUE(holds(i * kLen, kLen, i * 1000)) << i;
    }
}

// Returns the child's exit status, or -1 if it did not end within a minute.
int status_of(pid_t child)
{
    int status = -1;
    for (int i = 0; i < 6000 && waitpid(child, &status, WNOHANG) == 0; i++)
        usleep(10000);
    if (status == -1) {
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_P(Io, AChildIsRefusedTheHandlesOfItsParent)
{
    std::atomic<bool> stop{false};
    std::thread reader([this, &stop] {
        while (!stop)
            gpunvme_read(file_, memory_->at(), 8192, 4096, nullptr);
    });
    for (int i = test_rounds(5, 20); i-- > 0;) {
        pid_t child = fork();
        if (child == 0) {
            char byte[1] = {};
            bool refused = gpunvme_read(file_, byte, 1, 0, nullptr) == -EPERM &&
                           gpunvme_register(io_, byte, 1) == -EPERM;
            gpunvme_file_close(file_);
            gpunvme_close(io_);
            _exit(refused ? 0 : 1);
        }
        EXPECT_EQ(status_of(child), 0);
    }
    stop = true;
    reader.join();
    ASSERT_EQ(read(0, 4096, 0), 4096) << gpunvme_error();
    EXPECT_TRUE(holds(0, 4096, 0));
}

TEST_P(Io, HandlesOfOneDescriptionReadAtTheSameTime)
{
    int copy = dup(fd_);
    struct gpunvme_file *files[2] = {file_, nullptr};
    ASSERT_EQ(gpunvme_file_open(io_, copy, 0, &files[1]), 0) << gpunvme_error();
    std::vector<int> failures(4);
    in_threads(failures.size(), [&](size_t t) {
        for (size_t i = 0; i < 200; i++) {
            size_t at = t * 100000, n = t < 2 ? 1000 : 8192, offset = i * 4096 + (t < 2);
            ssize_t got = gpunvme_read(files[t % 2], memory_->at(at + (t > 1)), n, offset, nullptr);
            failures[t] += got != static_cast<ssize_t>(n) || !holds(at + (t > 1), n, offset);
        }
    });
    gpunvme_file_close(files[1]);
    close(copy);
    EXPECT_EQ(failures, std::vector<int>(4, 0));
    EXPECT_EQ(fcntl(fd_, F_GETFL) & O_DIRECT, GetParam().flags & O_DIRECT);
}

TEST_P(Io, ReportsThePathAndTheReason)
{
    bool ours = GetParam().where == Where::kMount;
    EXPECT_EQ(gpunvme_file_why(file_) == nullptr, ours);
    ASSERT_EQ(read(0, 65536, 0), 65536);
    EXPECT_EQ(result_.path, GPUNVME_PATH_BOUNCE);
    std::string why = result_.why;
    EXPECT_NE(why.find(ours ? "gpunvme_alloc" : "not on a gpunvmefs mount"), std::string::npos)
        << why;
}

TEST_P(Io, ThreadsReadAtTheSameTime)
{
    std::vector<int> failures(4);
    in_threads(failures.size(), [&](size_t t) {
        for (size_t i = 0; i < 50; i++) {
            size_t at = t * 100000, n = 1 + (i * 1777) % 90000, offset = (i * 54321) % 2000000;
            ssize_t got = gpunvme_read(file_, memory_->at(at), n, offset, nullptr);
            failures[t] += got != static_cast<ssize_t>(n) || !holds(at, n, offset);
        }
    });
    EXPECT_EQ(failures, std::vector<int>(4, 0));
}

TEST_P(Io, StreamsMeetTransfersInTheirOrder)
{
    fake_stream stream;
    ASSERT_EQ(cuda().stream_create(&stream, 0), 0);
    size_t len = 100000;
    int64_t offset = 5, addr_offset = 3, bytes = -1;
    // Arguments are read when the stream reaches the transfer, not when it was requested.
    struct Late {
        int64_t *offset, *bytes;
        int64_t seen;
    } late = {&offset, &bytes, 0};
    cuda().launch(
        stream, [](void *p) { *static_cast<Late *>(p)->offset = 777; }, &late);
    struct gpunvme_stream_transfer what = {0,      memory_->at(), &len,    &offset, &addr_offset,
                                           &bytes, nullptr,       nullptr, nullptr, 0};
    ASSERT_EQ(gpunvme_submit_stream(file_, &what, stream), 0) << gpunvme_error();
    cuda().launch(
        stream, [](void *p) { static_cast<Late *>(p)->seen = *static_cast<Late *>(p)->bytes; },
        &late);
    cuda().stream_synchronize(stream);
    EXPECT_EQ(late.seen, 100000);
    EXPECT_TRUE(holds(3, len, 777));
    cuda().stream_destroy(stream);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Io,
    ::testing::Values(Way{"mount_host", Where::kMount, 0, Kind::kHost, false},
                      Way{"mount_device", Where::kMount, 0, Kind::kDevice, false},
                      Way{"mount_direct_device", Where::kMount, O_DIRECT, Kind::kDevice, true},
                      Way{"tmpfs_host", Where::kTmpfs, 0, Kind::kHost, true},
                      Way{"tmpfs_device", Where::kTmpfs, 0, Kind::kDevice, true},
                      Way{"tmpfs_vmm", Where::kTmpfs, 0, Kind::kVmm, false},
                      Way{"tmpfs_direct_vmm", Where::kTmpfs, O_DIRECT, Kind::kVmm, true},
                      Way{"disk_direct_host", Where::kDisk, O_DIRECT, Kind::kHost, false},
                      Way{"disk_direct_device", Where::kDisk, O_DIRECT, Kind::kDevice, false}),
    [](const auto &info) { return info.param.name; });

// Properties that not every path has.
class IoOnce : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        cuda();
        std::string why;
        folder_ = std::make_unique<Folder>(Where::kTmpfs, &why);
        ASSERT_EQ(why, "");
        ASSERT_TRUE(make_file(folder_->path("file"), bytes_));
        fd_ = open(folder_->path("file").c_str(), O_RDWR | O_CLOEXEC);
        ASSERT_EQ(gpunvme_open(nullptr, &io_), 0) << gpunvme_error();
        ASSERT_EQ(gpunvme_file_open(io_, fd_, 0, &file_), 0) << gpunvme_error();
    }

    void TearDown() override
    {
        gpunvme_close(io_);
        close(fd_);
    }

    std::unique_ptr<Folder> folder_;
    std::vector<char> bytes_ = some_bytes(100000, 3);
    struct gpunvme *io_ = nullptr;
    struct gpunvme_file *file_ = nullptr;
    int fd_ = -1;
};

TEST_F(IoOnce, AnAllocationAtTheAddressOfAnotherIsNotTakenForIt)
{
    unsigned long long first = 0, second = 0;
    ASSERT_EQ(cuda().alloc(&first, 65536), 0);
    char *addr = reinterpret_cast<char *>(first);
    ASSERT_EQ(gpunvme_register(io_, addr, 65536), 0);
    ASSERT_EQ(gpunvme_read(file_, addr, 4096, 0, nullptr), 4096);
    cuda().free(first);
    ASSERT_EQ(cuda().alloc(&second, 65536), 0);
    if (second != first)
        GTEST_SKIP() << "the memory came at another address";
    EXPECT_EQ(gpunvme_read(file_, addr + 5, 4096, 0, nullptr), 4096);
    EXPECT_EQ(gpunvme_register(io_, addr, 65536), 0) << gpunvme_error();
    EXPECT_EQ(gpunvme_unregister(io_, addr), 0);
    cuda().free(second);
}

TEST_F(IoOnce, RegistrationsDoNotOverlap)
{
    std::vector<char> memory(10000);
    ASSERT_EQ(gpunvme_register(io_, memory.data() + 1000, 2000), 0);
    EXPECT_EQ(gpunvme_register(io_, memory.data() + 1000, 2000), -EEXIST);
    EXPECT_EQ(gpunvme_register(io_, memory.data(), 1001), -EEXIST);
    EXPECT_EQ(gpunvme_register(io_, memory.data() + 2999, 10), -EEXIST);
    EXPECT_EQ(gpunvme_register(io_, memory.data() + 3000, 10), 0);
    EXPECT_EQ(gpunvme_register(io_, memory.data(), 1000), 0);
    EXPECT_EQ(gpunvme_unregister(io_, memory.data() + 1500), -ENOENT);
    EXPECT_EQ(gpunvme_unregister(io_, memory.data() + 1000), 0);
    EXPECT_EQ(gpunvme_unregister(io_, memory.data() + 1000), -ENOENT);
    EXPECT_EQ(gpunvme_read(file_, memory.data() + 500, 5000, 0, nullptr), 5000);
}

TEST_F(IoOnce, WhatIsNoFileIsRefused)
{
    struct gpunvme_file *f;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    EXPECT_EQ(gpunvme_file_open(io_, ends[0], 0, &f), -EINVAL);
    EXPECT_EQ(gpunvme_file_open(io_, -1, 0, &f), -EBADF);
    close(ends[0]);
    close(ends[1]);
    Fd dir = open("/", O_RDONLY | O_DIRECTORY);
    EXPECT_EQ(gpunvme_file_open(io_, dir, 0, &f), -EINVAL);
}

TEST_F(IoOnce, OpenModesAreThoseOfTheDescriptor)
{
    char byte = 0;
    struct gpunvme_file *f;
    Fd fd = open(folder_->path("file").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_EQ(gpunvme_file_open(io_, fd, 0, &f), 0);
    EXPECT_EQ(gpunvme_write(f, &byte, 1, 0, nullptr), -EBADF);
    EXPECT_EQ(gpunvme_read(f, &byte, 1, 0, nullptr), 1);
    gpunvme_file_close(f);
}

TEST_F(IoOnce, OnlyTheGpuPathIsAnErrorElsewhere)
{
    struct gpunvme_options gpu = {};
    gpu.path = GPUNVME_PATH_GPU;
    struct gpunvme *io;
    struct gpunvme_file *f;
    char byte;
    ASSERT_EQ(gpunvme_open(&gpu, &io), 0);
    ASSERT_EQ(gpunvme_file_open(io, fd_, 0, &f), 0);
    EXPECT_EQ(gpunvme_read(f, &byte, 1, 0, nullptr), -ENOTSUP);
    EXPECT_NE(std::string(gpunvme_error()).find("not on a gpunvmefs mount"), std::string::npos);
    gpunvme_close(io);
}

TEST_F(IoOnce, TransfersOfOneStreamWaitForEachOther)
{
    Memory memory(Kind::kDevice, 1 << 20);
    fake_stream stream;
    ASSERT_EQ(cuda().stream_create(&stream, 0), 0);
    constexpr size_t kOps = 200;
    size_t len = 4096;
    int64_t zero = 0;
    std::vector<int64_t> offsets(kOps), bytes(kOps, -1);
    for (size_t i = 0; i < kOps; i++) {
        offsets[i] = static_cast<int64_t>(i * 100);
        struct gpunvme_stream_transfer what = {0,         memory.at(), &len,    &offsets[i], &zero,
                                               &bytes[i], nullptr,     nullptr, nullptr,     0};
        ASSERT_EQ(gpunvme_submit_stream(file_, &what, stream), 0) << gpunvme_error();
    }
    cuda().stream_synchronize(stream);
    EXPECT_EQ(bytes, std::vector<int64_t>(kOps, 4096));
    auto last = memory.get(0, 4096);
    EXPECT_TRUE(std::equal(last.begin(), last.end(), bytes_.begin() + (kOps - 1) * 100));
    cuda().stream_destroy(stream);
}

TEST_F(IoOnce, AGpuThatCannotWaitIsWaitedFor)
{
    Memory memory(Kind::kDevice, 65536);
    fake_stream stream;
    ASSERT_EQ(cuda().stream_create(&stream, 0), 0);
    size_t len = 5000;
    int64_t zero = 0, bytes = -1;
    struct gpunvme_stream_transfer what = {0,      memory.at(), &len,    &zero,   &zero,
                                           &bytes, nullptr,     nullptr, nullptr, 0};
    cuda().refuse_waits(1);
    EXPECT_EQ(gpunvme_submit_stream(file_, &what, stream), 0) << gpunvme_error();
    EXPECT_EQ(bytes, 5000);
    cuda().refuse_waits(0);
    cuda().capture(1);
    EXPECT_EQ(gpunvme_submit_stream(file_, &what, stream), -ENOTSUP);
    cuda().capture(0);
    cuda().stream_destroy(stream);
}

// The stream comes to a transfer when the call that submitted it has returned.
TEST_F(IoOnce, ATransferThatFindsNoThreadIsNotSubmitted)
{
    Memory memory(Kind::kDevice, 65536);
    fake_stream stream;
    ASSERT_EQ(cuda().stream_create(&stream, 0), 0);
    size_t len = 5000;
    int64_t zero = 0, bytes = -1;
    bool done = false;
    struct gpunvme_stream_transfer what = {
        0,
        memory.at(),
        &len,
        &zero,
        &zero,
        &bytes,
        [](void *arg, const gpunvme_stream_transfer *, const gpunvme_result *) {
            *static_cast<bool *>(arg) = true;
        },
        &done,
        nullptr,
        0};
    pthread_attr_t before, endless;
    ASSERT_EQ(pthread_getattr_default_np(&before), 0);
    pthread_attr_init(&endless);
    ASSERT_EQ(pthread_attr_setstacksize(&endless, size_t{1} << 47), 0);
    ASSERT_EQ(pthread_setattr_default_np(&endless), 0); // no thread can be made
    EXPECT_LT(gpunvme_submit_stream(file_, &what, stream), 0);
    ASSERT_EQ(pthread_setattr_default_np(&before), 0);
    cuda().stream_synchronize(stream);
    EXPECT_TRUE(bytes == -1 && !done);
    EXPECT_EQ(gpunvme_submit_stream(file_, &what, stream), 0) << gpunvme_error();
    cuda().stream_synchronize(stream);
    EXPECT_TRUE(bytes == 5000 && done);
    cuda().stream_destroy(stream);
}

TEST(IoOnMount, MemoryOfTheMountTakesTheGpuPath)
{
    std::string why;
    Folder folder(Where::kMount, &why);
    if (!why.empty())
        GTEST_SKIP() << why;
    auto bytes = some_bytes(1 << 20, 4);
    ASSERT_TRUE(make_file(folder.path("file"), bytes));
    int fd = open(folder.path("file").c_str(), O_RDONLY | O_CLOEXEC);
    struct gpunvme *io;
    struct gpunvme_file *f;
    struct gpunvme_result result;
    void *memory;
    ASSERT_EQ(gpunvme_open(nullptr, &io), 0);
    ASSERT_EQ(gpunvme_file_open(io, fd, 0, &f), 0);
    EXPECT_EQ(gpunvme_file_why(f), nullptr);
    ASSERT_EQ(gpunvme_alloc_host(f, bytes.size(), &memory), 0) << gpunvme_error();
    char *at = static_cast<char *>(memory);
    EXPECT_EQ(gpunvme_read(f, at + 4096, 500000, 4096, &result), 500000) << gpunvme_error();
    EXPECT_EQ(result.path, GPUNVME_PATH_GPU);
    EXPECT_GT(result.commands, 0u);
    EXPECT_STREQ(result.why, "");
    EXPECT_EQ(memcmp(at + 4096, bytes.data() + 4096, 500000), 0);
    struct gpunvme_piece pieces[2] = {{8192, 0, 4096, 0}, {0, 4096, 4096, 0}};
    EXPECT_EQ(gpunvme_readv(f, at + 12288, 8192, pieces, 2, &result), 0) << gpunvme_error();
    EXPECT_EQ(result.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(memcmp(at + 12288, bytes.data() + 8192, 4096), 0);
    EXPECT_EQ(memcmp(at + 16384, bytes.data(), 4096), 0);
    EXPECT_EQ(gpunvme_unregister(io, memory), 0) << gpunvme_error();
    gpunvme_close(io);
    close(fd);
    EXPECT_TRUE(folder.end());
}

fsblkcnt_t free_blocks(const Folder &folder)
{
    struct statvfs st = {};
    EXPECT_EQ(statvfs(folder.path("").c_str(), &st), 0);
    return st.f_bfree;
}

TEST(IoOnMount, AFileThatIsRemovedIsNotKept)
{
    std::string why;
    Folder folder(Where::kMount, &why);
    if (!why.empty())
        GTEST_SKIP() << why;
    fsblkcnt_t before = free_blocks(folder);
    ASSERT_TRUE(make_file(folder.path("file"), some_bytes(10 << 20, 5)));
    int fd = open(folder.path("file").c_str(), O_RDONLY | O_CLOEXEC);
    fsync(fd);
    EXPECT_LE(free_blocks(folder), before - 2560);
    struct gpunvme *io;
    struct gpunvme_file *f;
    ASSERT_EQ(gpunvme_open(nullptr, &io), 0);
    ASSERT_EQ(gpunvme_file_open(io, fd, 0, &f), 0);
    EXPECT_EQ(gpunvme_file_why(f), nullptr);
    ASSERT_EQ(unlink(folder.path("file").c_str()), 0);
    gpunvme_file_close(f);
    close(fd);
    for (int i = 0; i < 1000 && free_blocks(folder) != before; i++)
        usleep(10000);
    EXPECT_EQ(free_blocks(folder), before);
    gpunvme_close(io);
    EXPECT_TRUE(folder.end());
}

} // namespace
