/* SPDX-License-Identifier: BSD-2-Clause */
// cuFile's functions, as programs call them: files and memory of every kind, and the counters.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <thread>

#include "client/cufile/cufile_abi.h"
#include "tests/client/cufile/places.h"

using namespace places;

namespace
{

constexpr size_t kFile = (2u << 20) + 777, kRoom = 3u << 20;

class Handle
{
  public:
    Handle(const std::string &path, int flags)
    {
        fd_ = open(path.c_str(), flags | O_CLOEXEC, 0600);
        CUfileDescr_t descr = {};
        descr.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
        descr.handle.fd = fd_;
        err_ = cuFileHandleRegister(&fh_, &descr).err;
    }
    ~Handle()
    {
        if (!err_)
            cuFileHandleDeregister(fh_);
        close(fd_);
    }
    Handle(const Handle &) = delete;
    Handle &operator=(const Handle &) = delete;
    operator CUfileHandle_t() const { return fh_; }
    int err() const { return err_; }

  private:
    CUfileHandle_t fh_ = nullptr;
    int fd_ = -1, err_ = -1;
};

struct Way {
    const char *name;
    Where where;
    Kind kind;
    bool opens;     // cuFileDriverOpen()
    bool registers; // cuFileBufRegister()
    int flags;
};

class CuFile : public InFolder<Way>
{
  protected:
    void SetUp() override
    {
        if (!begin(bytes_))
            return;
        if (GetParam().opens) {
            ASSERT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
        }
        cuFileSetStatsLevel(3);
        cuFileStatsReset();
        fh_ = std::make_unique<Handle>(folder_->path("file"), O_RDWR | GetParam().flags);
        ASSERT_EQ(fh_->err(), CU_FILE_SUCCESS);
        memory_ = std::make_unique<Memory>(GetParam().kind, kRoom);
        if (GetParam().registers) {
            ASSERT_EQ(cuFileBufRegister(memory_->at(), kRoom, 0).err, CU_FILE_SUCCESS);
        }
    }

    void TearDown() override
    {
        if (memory_ && GetParam().registers) {
            EXPECT_EQ(cuFileBufDeregister(memory_->at()).err, CU_FILE_SUCCESS);
        }
        bool used = fh_ != nullptr;
        fh_.reset();
        if (used) {
            EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
        }
        if (folder_) {
            EXPECT_TRUE(folder_->end());
        }
    }

    bool holds(size_t at, size_t n, size_t offset)
    {
        auto from = bytes_.begin() + static_cast<long>(offset);
        return memory_->get(at, n) == std::vector<char>(from, from + static_cast<long>(n));
    }

    CUfileIOParams_t entry(int32_t opcode, size_t at, size_t n, off_t offset, void *cookie)
    {
        CUfileIOParams_t p = {};
        p.mode = CUFILE_BATCH;
        p.batch = {memory_->at(), offset, static_cast<off_t>(at), n};
        p.fh = *fh_;
        p.opcode = opcode;
        p.cookie = cookie;
        return p;
    }

    std::vector<char> bytes_ = some_bytes(kFile, 11);
    std::unique_ptr<Memory> memory_;
    std::unique_ptr<Handle> fh_;
};

TEST_P(CuFile, ReadsAndWrites)
{
    EXPECT_EQ(cuFileRead(*fh_, memory_->at(), kFile, 0, 0), static_cast<ssize_t>(kFile));
    EXPECT_TRUE(holds(0, kFile, 0));
    EXPECT_EQ(cuFileRead(*fh_, memory_->at(), 5000, 1234, 17), 5000);
    EXPECT_TRUE(holds(17, 5000, 1234));
    EXPECT_EQ(cuFileRead(*fh_, memory_->at(), kRoom, kFile - 10, 0), 10);
    auto fresh = some_bytes(100001, 12);
    memory_->put(1000, fresh);
    EXPECT_EQ(cuFileWrite(*fh_, memory_->at(), fresh.size(), 333, 1000), 100001);
    std::copy(fresh.begin(), fresh.end(), bytes_.begin() + 333);
    EXPECT_TRUE(file_bytes(folder_->path("file")) == bytes_);
}

TEST_P(CuFile, CountsTheTransfersOfEachPath)
{
    ASSERT_EQ(cuFileRead(*fh_, memory_->at(), 8192, 0, 0), 8192);
    ASSERT_EQ(cuFileRead(*fh_, memory_->at(), 100, 1, 0), 100);
    ASSERT_EQ(cuFileWrite(*fh_, memory_->at(), 4096, 0, 0), 4096);
    CUfileStatsLevel3_t stats;
    ASSERT_EQ(cuFileGetStatsL3(&stats).err, CU_FILE_SUCCESS);
    const CUfileStatsLevel1_t &basic = stats.detailed.basic;
    EXPECT_EQ(basic.read_ops.ok, 2u);
    EXPECT_EQ(basic.read_bytes, 8292u);
    EXPECT_EQ(basic.write_ops.ok, 1u);
    EXPECT_EQ(basic.hdl_register_ops.ok, 1u);
    EXPECT_EQ(basic.buf_register_ops.ok, GetParam().registers ? 1u : 0u);
    EXPECT_EQ(stats.detailed.read_size_kb_hist[0], 1u);
    EXPECT_EQ(stats.detailed.read_size_kb_hist[4], 1u);
    // Without a GPU no memory of a program is within a mount's reach.
    EXPECT_EQ(stats.per_gpu_stats[0].n_posix_reads, 2u);
    EXPECT_EQ(stats.per_gpu_stats[0].n_p2p_reads, 0u);
    EXPECT_EQ(stats.per_gpu_stats[0].n_unaligned_reads, 1u);
    cuFileSetStatsLevel(1);
    EXPECT_EQ(cuFileGetStatsL2(&stats.detailed).err, CU_FILE_INVALID_VALUE);
}

TEST_P(CuFile, VectorsAreReadAndWrittenInOrder)
{
    CUfileIOVec_t parts[] = {
        {memory_->at(0), 1000}, {memory_->at(5000), 0}, {memory_->at(9000), 77}};
    EXPECT_EQ(cuFileReadv(*fh_, parts, 3, 4321, 0), 1077);
    EXPECT_TRUE(holds(0, 1000, 4321));
    EXPECT_TRUE(holds(9000, 77, 5321));
    EXPECT_EQ(cuFileWritev(*fh_, parts, 3, 10, 0), 1077);
    std::copy_n(std::vector<char>(bytes_).begin() + 4321, 1077, bytes_.begin() + 10);
    EXPECT_TRUE(file_bytes(folder_->path("file")) == bytes_);
    EXPECT_EQ(cuFileReadv(*fh_, parts, 3, kFile - 500, 0), 500);
    CUfileStatsLevel1_t stats;
    ASSERT_EQ(cuFileGetStatsL1(&stats).err, CU_FILE_SUCCESS);
    EXPECT_EQ(stats.readv_ops.ok, 2u);
    EXPECT_EQ(stats.readv_bytes, 1577u);
    EXPECT_EQ(stats.writev_bytes, 1077u);
    EXPECT_EQ(cuFileReadv(*fh_, parts, 3, 0, 1), -CU_FILE_INVALID_VALUE);
}

TEST_P(CuFile, StreamsReadAndWriteInOrder)
{
    fake_stream stream;
    ASSERT_EQ(cuda().stream_create(&stream, 0), 0);
    ASSERT_EQ(cuFileStreamRegister(stream, 15).err, CU_FILE_SUCCESS);
    size_t size = 60000;
    off_t from = 100, to = 200000, offset = 8;
    ssize_t got = 0, put = 0;
    EXPECT_EQ(cuFileReadAsync(*fh_, memory_->at(), &size, &from, &offset, &got, stream).err, 0);
    EXPECT_EQ(cuFileWriteAsync(*fh_, memory_->at(), &size, &to, &offset, &put, stream).err, 0);
    cuda().stream_synchronize(stream);
    EXPECT_EQ(got, 60000);
    EXPECT_EQ(put, 60000);
    std::copy_n(std::vector<char>(bytes_).begin() + 100, size, bytes_.begin() + 200000);
    EXPECT_TRUE(file_bytes(folder_->path("file")) == bytes_);
    EXPECT_EQ(cuFileStreamDeregister(stream).err, CU_FILE_SUCCESS);
    cuda().stream_destroy(stream);
}

TEST_P(CuFile, BatchesEndEntryByEntry)
{
    constexpr unsigned kEntries = 32;
    CUfileBatchHandle_t batch;
    ASSERT_EQ(cuFileBatchIOSetUp(&batch, kEntries).err, CU_FILE_SUCCESS);
    std::vector<CUfileIOParams_t> params;
    std::vector<char> cookies(kEntries);
    for (unsigned i = 0; i < kEntries; i++)
        params.push_back(entry(CUFILE_READ, i * 20000, 10000 + i, i * 50000, &cookies[i]));
    for (int round = 0; round < 3; round++) {
        ASSERT_EQ(cuFileBatchIOSubmit(batch, kEntries, params.data(), 0).err, CU_FILE_SUCCESS);
        EXPECT_EQ(cuFileBatchIOSubmit(batch, 1, params.data(), 0).err, CU_FILE_BATCH_FULL);
        for (unsigned done = 0; done < kEntries;) {
            CUfileIOEvents_t events[5];
            unsigned n = 5;
            struct timespec patience = {60, 0};
            ASSERT_EQ(cuFileBatchIOGetStatus(batch, 1, &n, events, &patience).err, 0);
            ASSERT_GE(n, 1u);
            for (unsigned e = 0; e < n; e++) {
                long i = static_cast<char *>(events[e].cookie) - cookies.data();
                EXPECT_EQ(events[e].status, CUFILE_COMPLETE);
                EXPECT_EQ(events[e].ret, 10000u + static_cast<size_t>(i));
            }
            done += n;
        }
        for (unsigned i = 0; i < kEntries; i++)
            EXPECT_TRUE(holds(i * 20000, 10000 + i, i * 50000)) << i;
    }
    EXPECT_EQ(cuFileBatchIOCancel(batch).err, CU_FILE_SUCCESS);
    cuFileBatchIODestroy(batch);
}

// Entries that are under way when the handle is deregistered end with the right bytes.
TEST_P(CuFile, AHandleMayBeDeregisteredUnderABatch)
{
    constexpr unsigned kEntries = 16;
    CUfileBatchHandle_t batch;
    CUfileIOEvents_t events[kEntries] = {};
    struct timespec patience = {LONG_MAX, 0};
    ASSERT_EQ(cuFileBatchIOSetUp(&batch, kEntries).err, CU_FILE_SUCCESS);
    for (int round = 0; round < 20; round++) {
        Handle other(folder_->path("file"), O_RDONLY | GetParam().flags);
        std::vector<CUfileIOParams_t> params;
        for (unsigned i = 0; i < kEntries; i++) {
            params.push_back(entry(CUFILE_READ, i * 100000, 100000, i * 1000, nullptr));
            params.back().fh = other;
        }
        ASSERT_EQ(cuFileBatchIOSubmit(batch, kEntries, params.data(), 0).err, CU_FILE_SUCCESS);
        CUfileHandle_t stale = other;
        cuFileHandleDeregister(other);
        char byte;
        EXPECT_EQ(cuFileRead(stale, &byte, 1, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
        unsigned n = kEntries;
        ASSERT_EQ(cuFileBatchIOGetStatus(batch, kEntries, &n, events, &patience).err, 0);
        ASSERT_EQ(n, kEntries);
        for (unsigned i = 0; i < kEntries; i++) {
            EXPECT_EQ(events[i].ret, 100000u);
            EXPECT_TRUE(holds(i * 100000, 100000, i * 1000)) << i;
        }
    }
    cuFileBatchIODestroy(batch);
}

INSTANTIATE_TEST_SUITE_P(
    Ways, CuFile,
    ::testing::Values(Way{"mount_host", Where::kMount, Kind::kHost, true, true, 0},
                      Way{"mount_device", Where::kMount, Kind::kDevice, false, true, O_DIRECT},
                      Way{"mount_vmm", Where::kMount, Kind::kVmm, false, false, 0},
                      Way{"tmpfs_host", Where::kTmpfs, Kind::kHost, false, false, 0},
                      Way{"tmpfs_device", Where::kTmpfs, Kind::kDevice, true, true, 0},
                      Way{"disk_device", Where::kDisk, Kind::kDevice, false, false, O_DIRECT}),
    [](const auto &info) { return info.param.name; });

class CuFileOnce : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        std::string why;
        folder_ = std::make_unique<Folder>(Where::kTmpfs, &why);
        ASSERT_EQ(why, "");
        ASSERT_TRUE(make_file(folder_->path("file"), bytes_));
    }
    void TearDown() override
    {
        cuFileDriverClose(); // what a call has opened by itself
    }
    std::string path() const { return folder_->path("file"); }
    std::unique_ptr<Folder> folder_;
    std::vector<char> bytes_ = some_bytes(100000, 13);
};

TEST_F(CuFileOnce, TheDriverOpensByItselfAndClosesWithTheLastHandle)
{
    char byte;
    EXPECT_EQ(cuFileUseCount(), 0);
    EXPECT_EQ(cuFileDriverClose_v2().err, CU_FILE_DRIVER_NOT_INITIALIZED);
    {
        Handle fh(path(), O_RDONLY);
        ASSERT_EQ(fh.err(), CU_FILE_SUCCESS);
        EXPECT_EQ(cuFileUseCount(), 0);
        EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
        EXPECT_EQ(cuFileDriverOpen().err, CU_FILE_SUCCESS);
        EXPECT_EQ(cuFileUseCount(), 2);
        EXPECT_EQ(cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, 16).err,
                  CU_FILE_DRIVER_ALREADY_OPEN);
        EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
        EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
        EXPECT_EQ(cuFileRead(fh, &byte, 1, 0, 0), 1);
    }
    EXPECT_EQ(cuFileDriverClose().err, CU_FILE_DRIVER_NOT_INITIALIZED);
}

TEST_F(CuFileOnce, MistakesAreReported)
{
    CUfileHandle_t fh = nullptr;
    CUfileDescr_t descr = {};
    char byte = 0;
    EXPECT_EQ(cuFileHandleRegister(nullptr, &descr).err, CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileHandleRegister(&fh, nullptr).err, CU_FILE_INVALID_VALUE);
    descr.type = 2;
    EXPECT_EQ(cuFileHandleRegister(&fh, &descr).err, CU_FILE_IO_NOT_SUPPORTED);
    descr.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
    descr.handle.fd = -1;
    EXPECT_EQ(cuFileHandleRegister(&fh, &descr).err, CU_FILE_INVALID_VALUE);
    EXPECT_EQ(Handle("/", O_RDONLY | O_DIRECTORY).err(), CU_FILE_INVALID_FILE_TYPE);
    EXPECT_EQ(cuFileRead(nullptr, &byte, 1, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
    EXPECT_EQ(cuFileBufDeregister(&byte).err, CU_FILE_MEMORY_NOT_REGISTERED);
    EXPECT_EQ(cuFileBufRegister(&byte, 0, 0).err, CU_FILE_INVALID_VALUE);
    Handle reads(path(), O_RDONLY);
    EXPECT_EQ(cuFileRead(reads, nullptr, 1, 0, 0), -CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileRead(reads, &byte, 1, -1, 0), -CU_FILE_INVALID_VALUE);
    errno = 0;
    EXPECT_EQ(cuFileWrite(reads, &byte, 1, 0, 0), -1);
    EXPECT_EQ(errno, EBADF);
    ASSERT_EQ(cuFileBufRegister(&byte, 1, 0).err, CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileBufRegister(&byte, 1, 0).err, CU_FILE_MEMORY_ALREADY_REGISTERED);
    EXPECT_EQ(cuFileBufDeregister(&byte).err, CU_FILE_SUCCESS);
    EXPECT_EQ(cuFileStreamRegister(nullptr, 16).err, CU_FILE_INVALID_VALUE);
}

TEST_F(CuFileOnce, InvalidHandlesAreRefusedWithoutAnAccess)
{
    char byte = 0, memory[256] = {};
    Handle fh(path(), O_RDONLY);
    ASSERT_EQ(fh.err(), CU_FILE_SUCCESS);
    for (CUfileHandle_t wrong : {static_cast<CUfileHandle_t>(memory), reinterpret_cast<void *>(8),
                                 reinterpret_cast<void *>(UINTPTR_MAX)}) {
        EXPECT_EQ(cuFileRead(wrong, &byte, 1, 0, 0), -CU_FILE_HANDLE_NOT_REGISTERED);
        cuFileHandleDeregister(wrong);
    }
    EXPECT_EQ(cuFileRead(fh, &byte, 1, 0, 0), 1);
}

// A batch has no errno of its own for each entry, so the event says what failed.
TEST_F(CuFileOnce, AnEventHasTheErrorOfItsTransfer)
{
    char byte = 0;
    CUfileBatchHandle_t batch;
    CUfileIOEvents_t event = {};
    unsigned n = 1;
    Handle fh(path(), O_RDONLY);
    CUfileIOParams_t p = {};
    p.mode = CUFILE_BATCH;
    p.batch = {&byte, 0, 0, 1};
    p.fh = fh;
    p.opcode = CUFILE_WRITE;
    ASSERT_EQ(cuFileBatchIOSetUp(&batch, 1).err, CU_FILE_SUCCESS);
    ASSERT_EQ(cuFileBatchIOSubmit(batch, 1, &p, 0).err, CU_FILE_SUCCESS);
    ASSERT_EQ(cuFileBatchIOGetStatus(batch, 1, &n, &event, nullptr).err, CU_FILE_SUCCESS);
    EXPECT_EQ(event.status, CUFILE_FAILED);
    EXPECT_EQ(static_cast<ssize_t>(event.ret), -EBADF);
    cuFileBatchIODestroy(batch);
}

// Reads of 2 GiB take longer than the timeout, whose seconds are 0.
TEST_F(CuFileOnce, AStatusIsAwaitedForTheNanosecondsOfATimeout)
{
    constexpr unsigned kEntries = 64;
    constexpr size_t kLen = 32u << 20;
    constexpr long kNs = 50000000;
    std::vector<char> memory(kLen);
    std::vector<CUfileIOParams_t> params(kEntries);
    CUfileBatchHandle_t batch;
    CUfileIOEvents_t events[kEntries];
    unsigned n = kEntries;
    struct timespec timeout = {0, kNs};
    ASSERT_EQ(truncate(path().c_str(), kLen), 0);
    Handle fh(path(), O_RDONLY);
    for (CUfileIOParams_t &p : params) {
        p.mode = CUFILE_BATCH;
        p.batch = {memory.data(), 0, 0, kLen};
        p.fh = fh;
        p.opcode = CUFILE_READ;
    }
    ASSERT_EQ(cuFileBatchIOSetUp(&batch, kEntries).err, CU_FILE_SUCCESS);
    ASSERT_EQ(cuFileBatchIOSubmit(batch, kEntries, params.data(), 0).err, CU_FILE_SUCCESS);
    auto begin = std::chrono::steady_clock::now();
    ASSERT_EQ(cuFileBatchIOGetStatus(batch, kEntries, &n, events, &timeout).err, CU_FILE_SUCCESS);
    auto took = std::chrono::steady_clock::now() - begin;
    EXPECT_TRUE(n == kEntries || took >= std::chrono::nanoseconds(kNs)) << n;
    cuFileBatchIODestroy(batch);
}

// The configuration is read only once, so a new process reads it.
TEST_F(CuFileOnce, ANegativeSizeOfCufileJsonIsIgnored)
{
    std::string json = folder_->path("cufile.json");
    std::ofstream(json) << R"({"properties": {"io_batchsize": -1, "max_direct_io_size_kb": 77}})";
    setenv("CUFILE_ENV_PATH_JSON", json.c_str(), 0);
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    EXPECT_EXIT(
        {
            size_t batch = 0;
            size_t direct = 0;
            cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &batch);
            cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, &direct);
            folder_.reset(); // the new process has made one of its own
            exit(batch == 128 && direct == 77 ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
    unsetenv("CUFILE_ENV_PATH_JSON");
}

TEST_F(CuFileOnce, WithoutCompatibilityModeOtherFilesAreRefused)
{
    ASSERT_EQ(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, false).err, 0);
    EXPECT_EQ(Handle(path(), O_RDONLY).err(), CU_FILE_IO_NOT_SUPPORTED);
    cuFileDriverClose();
    ASSERT_EQ(cuFileSetParameterBool(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, true).err, 0);
    EXPECT_EQ(Handle(path(), O_RDONLY).err(), CU_FILE_SUCCESS);
    cuFileDriverClose();
}

TEST_F(CuFileOnce, ParametersAreKeptWithinTheirBounds)
{
    size_t value = 0, min = 9, max = 0;
    bool on = true;
    char level[16];
    int version = 0;
    EXPECT_EQ(cuFileGetParameterSizeT(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE, &value).err, 0);
    EXPECT_EQ(value, 128u);
    EXPECT_EQ(cuFileSetParameterSizeT(CUFILE_PARAM_PROFILE_STATS, 4).err, CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileSetParameterSizeT(CUFILE_SIZE_PARAMS, 1).err, CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileGetParameterMinMaxValue(CUFILE_PARAM_PROFILE_STATS, &min, &max).err, 0);
    EXPECT_EQ(min, 0u);
    EXPECT_EQ(max, 3u);
    EXPECT_EQ(cuFileGetParameterBool(CUFILE_PARAM_FORCE_COMPAT_MODE, &on).err, 0);
    EXPECT_FALSE(on);
    EXPECT_EQ(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, level, 16).err, 0);
    EXPECT_STREQ(level, "ERROR");
    EXPECT_EQ(cuFileGetParameterString(CUFILE_PARAM_LOGGING_LEVEL, level, 5).err,
              CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileGetVersion(&version).err, 0);
    EXPECT_EQ(version, CUFILE_VERSION);
}

TEST_F(CuFileOnce, PropertiesAreThoseOfTheParameters)
{
    CUfileDrvProps_t props;
    int flags = -1;
    ASSERT_EQ(cuFileDriverSetMaxDirectIOSize(1024).err, 0);
    ASSERT_EQ(cuFileDriverSetPollMode(true, 8).err, 0);
    ASSERT_EQ(cuFileDriverGetProperties(&props).err, 0);
    EXPECT_NE(props.nvfs.major_version, 0u); // KvikIO: is_gds_available
    EXPECT_EQ(props.nvfs.max_direct_io_size, 1024u);
    EXPECT_EQ(props.nvfs.poll_thresh_size, 8u);
    EXPECT_EQ(props.nvfs.dcontrolflags, 3u);
    EXPECT_EQ(props.fflags, 14u);
    EXPECT_EQ(props.max_batch_io_size, 128u);
    EXPECT_EQ(cuFileDriverGetProperties(nullptr).err, CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileDriverGetP2PFlags(CU_FILE_NVME_SUPPORTED, &flags).err, 0);
    EXPECT_EQ(flags, 0);
    EXPECT_EQ(cuFileDriverSetP2PFlags(CU_FILE_NVME_SUPPORTED, 1).err,
              CU_FILE_PLATFORM_NOT_SUPPORTED);
}

TEST_F(CuFileOnce, ABatchThatIsWrongBeginsNothing)
{
    Handle fh(path(), O_RDONLY);
    CUfileBatchHandle_t batch;
    char memory[16];
    EXPECT_EQ(cuFileBatchIOSetUp(&batch, 0).err, CU_FILE_INVALID_VALUE);
    EXPECT_EQ(cuFileBatchIOSetUp(&batch, 100000).err, CU_FILE_INVALID_VALUE);
    ASSERT_EQ(cuFileBatchIOSetUp(&batch, 4).err, 0);
    CUfileIOParams_t params[2] = {};
    for (auto &p : params) {
        p.mode = CUFILE_BATCH;
        p.batch = {memory, 0, 0, 16};
        p.fh = fh;
    }
    params[1].fh = nullptr;
    EXPECT_EQ(cuFileBatchIOSubmit(batch, 2, params, 0).err, CU_FILE_HANDLE_NOT_REGISTERED);
    params[1].fh = fh;
    params[1].opcode = CUFILE_WRITE; // of a file that is open for reading
    EXPECT_EQ(cuFileBatchIOSubmit(batch, 2, params, 0).err, 0);
    CUfileIOEvents_t events[4];
    unsigned n = 4;
    EXPECT_EQ(cuFileBatchIOGetStatus(batch, 4, &n, events, nullptr).err, 0);
    ASSERT_EQ(n, 2u);
    int failed = (events[0].status == CUFILE_FAILED) + (events[1].status == CUFILE_FAILED);
    EXPECT_EQ(failed, 1);
    cuFileBatchIODestroy(batch);
}

TEST_F(CuFileOnce, AChildOpensTheDriverAnew)
{
    Handle fh(path(), O_RDONLY);
    std::vector<char> memory(bytes_.size());
    ASSERT_EQ(cuFileRead(fh, memory.data(), memory.size(), 0, 0), 100000);
    pid_t child = fork();
    if (child == 0) {
        std::fill(memory.begin(), memory.end(), 0);
        bool ok = cuFileRead(fh, memory.data(), memory.size(), 0, 0) == 100000;
        _exit(ok && memory == bytes_ ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(cuFileRead(fh, memory.data(), 10, 0, 0), 10);
    cuFileDriverClose();
}

TEST_F(CuFileOnce, CallsThatConfigureNvidiasDriverAreNotSupported)
{
    size_t sizes[] = {4, 64}, counts[] = {2, 3}, kib;
    for (CUfileError_t status :
         {cuFileExportPCIeTopology(folder_->path("topology.json").c_str()),
          cuFileGetBARSizeInKB(0, &kib), cuFileSetParameterPosixPoolSlabArray(sizes, counts, 2),
          cuFileGetParameterGpuBounceBufferSlabArray(sizes, counts, 2)})
        EXPECT_EQ(status.err, CU_FILE_PLATFORM_NOT_SUPPORTED);
    EXPECT_EQ(cuFileGetBARSizeInKB(-1, &kib).err, CU_FILE_INVALID_VALUE);
}

} // namespace
