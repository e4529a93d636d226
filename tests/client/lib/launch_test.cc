/* SPDX-License-Identifier: BSD-2-Clause */
// Tests reads in a stream whose first, second or third launch CUDA refuses. The functions of the
// driver are fakes. The kernels of the only stream run in a thread, one after another, when the
// test lets them. A kernel that reads fills the memory of the reads.
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/internal.h"

namespace
{

constexpr uint64_t kPatient = 20u * 1000000000ull, kHasty = 10u * 1000000ull;
constexpr unsigned kMoreThanSlots = 70, kKernels = 3; // of a read that is compared
constexpr size_t kBytes = 4u << 20, kPieces = 64;     // of the file, and of a list
constexpr CUresult kNoMemory = 2;

struct shape {
    const char *name;
    bool stages, sums, list;
};

struct Kernel {
    const void *function;
    union {
        gd_launch read;
        gd_compare_launch compare;
    } args;
};

struct Counts {
    unsigned launches, under_way; // kernels so far, and those of them that have not ended
    unsigned queries;
    unsigned dirty; // kernels that found words of their check in use
};

class Rig
{
  public:
    // If `stages` is true, the drive does not reach the memory. If `sums` is true, the file has
    // checksums.
    Rig(bool stages, bool sums, uint64_t command_ns);
    ~Rig();
    Rig(const Rig &) = delete;
    Rig &operator=(const Rig &) = delete;

    // These functions launch a read of the file, or of all pieces, and return the error.
    int read() { return direct_read_async(&file_, memory_.data(), kBytes, 0, nullptr, &bytes_); }
    int list()
    {
        return direct_readv_async(&file_, memory_.data(), pieces_.data(), kPieces, nullptr);
    }
    // Waits until the stream is idle. Returns *bytes of the read that ended last.
    int64_t result()
    {
        std::unique_lock guard(lock_);
        changed_.wait(guard, [this] { return ended_ == launched_; });
        return bytes_;
    }

    // Keeps kernels from running after their launch, or lets them run.
    void hold(bool on) { set(hold_, on); }
    // Begins or ends a capture of the stream, in which kernels do not run and a query fails.
    void capture(bool on) { set(captured_, on); }
    // Makes comparisons find a block that differs, or none.
    void differ(bool on) { set(differs_, on); }
    // The nth launch from now on is refused. 1 stands for the next launch.
    void refuse(unsigned nth)
    {
        std::lock_guard guard(lock_);
        refuse_ = nth;
    }
    Counts counts()
    {
        std::lock_guard guard(lock_);
        return {launched_, launched_ - ended_, queries_, dirty_};
    }

    // The fake driver calls these functions.
    CUresult launch(const void *function, void **args);
    CUresult query();
    CUresult is_capturing(int *status);
    // Holds the lock, because kernels use the same memory.
    CUresult copy(CUdeviceptr dst, CUdeviceptr src, size_t len)
    {
        std::lock_guard guard(lock_);
        memcpy(reinterpret_cast<void *>(dst), reinterpret_cast<const void *>(src), len);
        return 0;
    }

  private:
    static constexpr size_t kKernelsMax = 8;

    void open_driver();
    void open_direct(bool stages);
    void set(bool &what, bool on)
    {
        std::lock_guard guard(lock_);
        what = on;
        changed_.notify_all();
    }
    void run(const Kernel &k);
    void run_read(const gd_launch &l);
    void run_kernels();

    cuda_driver cuda_ = {};
    connection g_ = {};
    gpunvme_direct direct_ = {};
    leased_file file_ = {};
    gd_buffer buffer_ = {};
    gq_sum_table table_ = {};
    std::vector<gpunvme_piece> pieces_ = std::vector<gpunvme_piece>(kPieces);
    std::vector<char> memory_ = std::vector<char>(kBytes);
    int64_t bytes_ = 0;
    std::vector<uint32_t> words_ = std::vector<uint32_t>(kBytes / GQ_SUM_BLOCK);

    std::mutex lock_; // protects the rest, and the memory
    std::condition_variable changed_;
    Kernel kernels_[kKernelsMax] = {}; // launched, by their number modulo kKernelsMax
    unsigned launched_ = 0, ended_ = 0, queries_ = 0, dirty_ = 0, refuse_ = 0;
    bool hold_ = false, captured_ = false, differs_ = false, ending_ = false;
    std::thread thread_;
};

Rig *rig; // one at a time: the driver's functions find it here

// The library passes the addresses of these to cuLaunchKernel() as kernels.
char read_kernel, list_kernel, compare_kernel;

// --- Kernels -------------------------------------------------------------------------------------

void Rig::run_read(const gd_launch &l)
{
    if (l.concludes) {
        if (!l.list)
            *l.bytes = l.check->bytes;
        l.check->refused = 0;
        l.check->runs++;
        return;
    }
    dirty_ += l.check && l.check->refused;
    if (l.list) {
        memset(reinterpret_cast<void *>(l.buffer.addr), 1, l.n);
        return;
    }
    memset(reinterpret_cast<void *>(l.addr), 1, l.len);
    (l.check ? l.check->bytes : *l.bytes) = static_cast<int64_t>(l.len);
}

void Rig::run(const Kernel &k)
{
    if (k.function == &compare_kernel)
        k.args.compare.check->refused += differs_;
    else
        run_read(k.args.read);
}

void Rig::run_kernels()
{
    std::unique_lock guard(lock_);
    while (!ending_) {
        if (ended_ == launched_ || hold_ || captured_) {
            changed_.wait(guard);
            continue;
        }
        run(kernels_[ended_ % kKernelsMax]);
        ended_++;
        changed_.notify_all();
    }
}

// --- The driver ----------------------------------------------------------------------------------

// Captured kernels have no place: none of them runs.
CUresult Rig::launch(const void *function, void **args)
{
    std::lock_guard guard(lock_);
    Kernel &k = kernels_[launched_ % kKernelsMax];
    if (refuse_ && --refuse_ == 0)
        return kNoMemory;
    if (captured_) {
        ended_ = ++launched_;
    } else {
        k.function = function;
        memcpy(&k.args, args[0],
               function == &compare_kernel ? sizeof(gd_compare_launch) : sizeof(gd_launch));
        launched_++;
    }
    changed_.notify_all();
    return 0;
}

CUresult Rig::query()
{
    std::lock_guard guard(lock_);
    queries_++;
    return ended_ == launched_ ? 0 : CUDA_ERROR_NOT_READY;
}

CUresult Rig::is_capturing(int *status)
{
    std::lock_guard guard(lock_);
    *status = captured_;
    return 0;
}

void Rig::open_driver()
{
    cuda_.cuLaunchKernel = [](CUfunction function, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, unsigned, CUstream, void **args,
                              void **) { return rig->launch(function, args); };
    cuda_.cuStreamQuery = [](CUstream) { return rig->query(); };
    cuda_.cuStreamIsCapturing = [](CUstream, int *status) { return rig->is_capturing(status); };
    cuda_.cuMemcpyAsync = [](CUdeviceptr dst, CUdeviceptr src, size_t len, CUstream) {
        return rig->copy(dst, src, len);
    };
    // Copies have ended when they are started.
    cuda_.cuStreamSynchronize = [](CUstream) { return 0; };
    cuda_.cuMemAlloc = [](CUdeviceptr *out, size_t len) {
        *out = reinterpret_cast<CUdeviceptr>(malloc(len));
        return *out ? 0 : kNoMemory;
    };
    cuda_.cuMemFree = [](CUdeviceptr addr) {
        free(reinterpret_cast<void *>(addr));
        return 0;
    };
    cuda_.cuCtxPushCurrent = [](CUcontext) { return 0; };
    cuda_.cuCtxPopCurrent = [](CUcontext *) { return 0; };
    cuda_.cuThreadExchangeStreamCaptureMode = [](int *) { return 0; };
    cuda_.cuGetErrorString = [](CUresult, const char **text) {
        *text = "what CUDA says";
        return 0;
    };
    cuda_.contexts[0] = reinterpret_cast<CUcontext>(this);
}

void Rig::open_direct(bool stages)
{
    auto addr = reinterpret_cast<uint64_t>(memory_.data());
    direct_.g = &g_;
    direct_.space.cuda = &cuda_;
    direct_.kernel.function = &read_kernel;
    direct_.list_kernel.function = &list_kernel;
    direct_.compare_kernel.function = &compare_kernel;
    buffer_ = {addr, kBytes, {addr, stages ? GD_UNREACHABLE : 0, 0, 0, kBytes}};
    direct_.buffers = &buffer_;
    direct_.n_buffers = 1;
    EXPECT_EQ(direct_slots_open(&direct_), 0);
}

Rig::Rig(bool stages, bool sums, uint64_t command_ns)
{
    rig = this;
    g_.fd = -1;
    open_driver();
    file_.d = &direct_;
    file_.device.map.end = kBytes;
    file_.device.map.lba_size = 512;
    file_.device.set.n_queues = 16;
    file_.device.set.command_ns = command_ns;
    file_.device.set.max_command = 128u << 10;
    file_.device.set.lane_bytes = 8192;
    file_.device.sums = {sums ? words_.data() : nullptr, &table_};
    open_direct(stages);
    thread_ = std::thread([this] { run_kernels(); });
}

Rig::~Rig()
{
    set(ending_, true);
    thread_.join();
    direct_slots_close(&direct_);
}

// --- Tests ---------------------------------------------------------------------------------------

class Launch : public ::testing::TestWithParam<shape>
{
  protected:
    void start(uint64_t command_ns)
    {
        rig_ = std::make_unique<Rig>(GetParam().stages, GetParam().sums, command_ns);
    }
    int read() { return GetParam().list ? rig_->list() : rig_->read(); }
    // A read that has all its kernels, in the end.
    void expect_whole()
    {
        unsigned before = rig_->counts().launches;
        ASSERT_EQ(read(), 0);
        EXPECT_EQ(rig_->counts().launches, before + kKernels);
        int64_t bytes = rig_->result();
        EXPECT_EQ(bytes, GetParam().list ? 0 : static_cast<int64_t>(kBytes));
    }

    std::unique_ptr<Rig> rig_;
};

TEST_P(Launch, WhatWasLaunchedHasEndedWhenTheCallFails)
{
    start(kPatient);
    for (unsigned nth = 1; nth <= kKernels; nth++) {
        rig_->hold(true);
        rig_->refuse(nth);
        std::thread later([&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            rig_->hold(false);
        });
        EXPECT_EQ(read(), -ENOMEM) << nth;
        EXPECT_EQ(rig_->counts().under_way, 0u) << nth;
        EXPECT_NE(std::string(gpunvme_error()).find("what CUDA says"), std::string::npos);
        later.join();
    }
    expect_whole();
}

TEST_P(Launch, WordsOfReadsThatFailedAreUsedAgain)
{
    start(kPatient);
    rig_->differ(true);
    for (unsigned nth = 1; nth <= kKernels; nth++) {
        for (unsigned i = 0; i < kMoreThanSlots; i++) {
            rig_->refuse(nth);
            ASSERT_EQ(read(), -ENOMEM);
        }
        expect_whole();
    }
    EXPECT_EQ(rig_->counts().dirty, 0u);
}

TEST_P(Launch, AKernelThatDoesNotEndIsTold)
{
    start(kHasty);
    rig_->hold(true);
    rig_->refuse(2);
    EXPECT_EQ(read(), -ETIMEDOUT);
    EXPECT_NE(std::string(gpunvme_error()).find("synchronise the stream"), std::string::npos);
    rig_->hold(false);
    expect_whole();
}

INSTANTIATE_TEST_SUITE_P(Compared, Launch,
                         ::testing::Values(shape{"read", false, true, false},
                                           shape{"staged", true, true, false},
                                           shape{"list", false, true, true}),
                         [](const auto &info) { return std::string(info.param.name); });

// A staged read without checksums is one kernel, also while it is captured.
using LaunchCaptured = Launch;

TEST_P(LaunchCaptured, MakesNeitherWaitsNorQueries)
{
    start(kPatient);
    rig_->capture(true);
    rig_->refuse(1);
    EXPECT_EQ(read(), -ENOMEM);
    EXPECT_EQ(rig_->counts().queries, 0u) << "it would invalidate the capture";
    unsigned before = rig_->counts().launches;
    EXPECT_EQ(read(), 0);
    EXPECT_EQ(rig_->counts().launches, before + 1);
}

INSTANTIATE_TEST_SUITE_P(Staged, LaunchCaptured,
                         ::testing::Values(shape{"staged", true, false, false}),
                         [](const auto &info) { return std::string(info.param.name); });

} // namespace
