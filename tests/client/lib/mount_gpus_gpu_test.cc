/* SPDX-License-Identifier: BSD-2-Clause */
// Tests a mount that serves two GPUs. On a machine with one GPU the mount uses
// it as two executors, of which each new buffer gets the one with fewer users.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/client/lib/fault_kernel.h"
#include "tests/client/lib/gpu_mount.h"
#include "tests/e2e/content.h"

extern char **environ;

namespace
{

constexpr size_t kFile = 64u << 20, kPiece = 4096, kPieces = 2000;
constexpr uint64_t kSeed = 44;
constexpr int kGpus = 2;
// These variables are set in processes that the test starts. They have the
// mount point, and "once", "forever", or "fault" for a process whose kernel
// faults after its first reads.
constexpr const char *kMount = "MOUNT_GPUS_MOUNT", *kReads = "MOUNT_GPUS_READS";

// A connection to the mount and memory of a GPU that is registered there.
class Gpu
{
  public:
    Gpu() = default;
    Gpu(const Gpu &) = delete;
    Gpu &operator=(const Gpu &) = delete;
    ~Gpu()
    {
        connection_close(g);
        cudaFree(memory);
    }
    void open(const std::string &mountpoint, int ordinal)
    {
        gpunvme_options options = {};
        options.path = GPUNVME_PATH_GPU;
        file.resize(kFile);
        content_fill(kSeed, 0, file.data(), kFile);
        device = ordinal;
        use();
        ASSERT_EQ(connection_open(mountpoint.c_str(), &g), 0) << gpunvme_error();
        ASSERT_EQ(bounce_set_options(g, &options), 0) << gpunvme_error();
        ASSERT_EQ(cudaMalloc(&memory, kFile), cudaSuccess);
        ASSERT_EQ(buffer_register(g, memory, kFile, true, &b), 0) << gpunvme_error();
    }
    // Makes the context of its device current for this thread.
    void use() const
    {
        ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
        ASSERT_EQ(cudaFree(nullptr), cudaSuccess);
    }
    void poison()
    {
        use();
        ASSERT_EQ(cudaMemset(memory, 0x5a, kFile), cudaSuccess);
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    }
    bool holds(size_t at, size_t n)
    {
        std::vector<unsigned char> bytes(n);

        EXPECT_EQ(cudaMemcpy(bytes.data(), static_cast<char *>(memory) + at, n, cudaMemcpyDefault),
                  cudaSuccess);
        return std::equal(bytes.begin(), bytes.end(), file.begin() + static_cast<ptrdiff_t>(at));
    }
    void read(int fd)
    {
        gpunvme_result result;

        poison();
        ASSERT_EQ(transfer_read(b, fd, 0, 0, kFile, &result), static_cast<ssize_t>(kFile))
            << gpunvme_error();
        ASSERT_EQ(result.path, GPUNVME_PATH_GPU) << result.why;
        ASSERT_TRUE(holds(0, kFile));
    }
    void read_list(int fd)
    {
        std::vector<gpunvme_piece> pieces(kPieces);
        gpunvme_result result;

        poison();
        for (size_t i = 0; i < kPieces; i++) {
            uint64_t at = i * 7919 % (kFile / kPiece) * kPiece;
            pieces[i] = {at, at, kPiece, 0};
        }
        ASSERT_EQ(readv_buffer(b, fd, pieces.data(), kPieces, &result), 0) << gpunvme_error();
        ASSERT_EQ(result.path, GPUNVME_PATH_GPU) << result.why;
        for (const gpunvme_piece &p : pieces) {
            ASSERT_EQ(p.result, static_cast<int32_t>(kPiece));
            ASSERT_TRUE(holds(p.buffer_offset, kPiece)) << p.buffer_offset;
        }
    }
    // Reads by leased queues.
    void read_direct(int fd)
    {
        gpunvme_direct *d = nullptr;
        leased_file *f = nullptr;

        poison();
        ASSERT_EQ(direct_open(g, nullptr, &d), 0) << gpunvme_error();
        EXPECT_EQ(leased_file_open(d, fd, false, &f), 0) << gpunvme_error();
        EXPECT_EQ(direct_read_wait(f, memory, kFile, 0), static_cast<ssize_t>(kFile))
            << gpunvme_error();
        EXPECT_TRUE(holds(0, kFile));
        leased_file_close(f);
        EXPECT_TRUE(direct_close(d));
    }

    connection *g = nullptr;
    gpunvme_buffer *b = nullptr;
    void *memory = nullptr;
    int device = 0;
    std::vector<unsigned char> file;
};

class MountGpusTest : public GpuMountedTest
{
  protected:
    void set_up() override
    {
        ASSERT_EQ(cudaGetDeviceCount(&devices_), cudaSuccess);
        const std::string gpus = devices_ > 1 ? "0:1" : "0:0";
        ASSERT_NO_FATAL_FAILURE(mount("gpu=require,direct=all,gpus=" + gpus, 512u << 20));
        std::vector<unsigned char> file(kFile);
        content_fill(kSeed, 0, file.data(), kFile);
        create_file("file", file.data(), kFile);
    }
    void let_go() override
    {
        for (auto &gpu : gpus_)
            gpu.reset();
    }
    int device(int gpu) const { return devices_ > 1 ? gpu : 0; }
    void open_both()
    {
        for (int i = 0; i < kGpus; i++) {
            gpus_[i] = std::make_unique<Gpu>();
            ASSERT_NO_FATAL_FAILURE(gpus_[i]->open(mounted_->mountpoint(), device(i)));
        }
    }
    gpunvme_ioc_gpus status()
    {
        gpunvme_ioc_gpus gpus = {};

        EXPECT_EQ(gpunvme_gpus(fd_, &gpus), 0) << gpunvme_error();
        return gpus;
    }
    // Starts a process that reads into memory of its first device.
    pid_t reader(const std::string &reads, const std::string &visible)
    {
        std::vector<std::string> set = {std::string(kMount) + "=" + mounted_->mountpoint(),
                                        std::string(kReads) + "=" + reads};
        if (!visible.empty())
            set.push_back("CUDA_VISIBLE_DEVICES=" + visible);
        std::vector<char *> env;
        for (std::string &s : set)
            env.push_back(&s[0]);
        for (char **e = environ; *e; e++)
            env.push_back(*e);
        env.push_back(nullptr);
        std::string program = "/proc/self/exe", filter = "--gtest_filter=MountGpusReader.*";
        char *argv[] = {&program[0], &filter[0], nullptr};
        pid_t pid = -1;
        EXPECT_EQ(posix_spawn(&pid, argv[0], nullptr, nullptr, argv, env.data()), 0);
        return pid;
    }

    int devices_ = 0;
    std::unique_ptr<Gpu> gpus_[kGpus];
};

// This test runs only in processes that the tests below start.
TEST(MountGpusReader, ReadsIntoItsFirstDevice)
{
    const char *mountpoint = getenv(kMount), *reads = getenv(kReads);
    if (!mountpoint || !reads)
        GTEST_SKIP() << "for processes of other tests";
    Gpu gpu;
    ASSERT_NO_FATAL_FAILURE(gpu.open(mountpoint, 0));
    Fd fd = open((std::string(mountpoint) + "/file").c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    do {
        ASSERT_NO_FATAL_FAILURE(gpu.read(fd));
        ASSERT_NO_FATAL_FAILURE(gpu.read_list(fd));
    } while (std::string(reads) == "forever");
    if (std::string(reads) == "fault")
        _exit(fault_kernel_run() != 0 ? 0 : 1); // CUDA fails from now on
    ASSERT_NO_FATAL_FAILURE(gpu.read_direct(fd));
}

TEST_F(MountGpusTest, BuffersOfBothAreOnTheGpuPath)
{
    ASSERT_NO_FATAL_FAILURE(open_both());
    for (auto &gpu : gpus_) {
        ASSERT_NO_FATAL_FAILURE(gpu->read(fd_));
        ASSERT_NO_FATAL_FAILURE(gpu->read_list(fd_));
    }
    gpunvme_ioc_gpus gpus = status();
    ASSERT_EQ(gpus.count, static_cast<uint32_t>(kGpus));
    for (int i = 0; i < kGpus; i++) {
        EXPECT_EQ(gpus.gpus[i].state, GPUNVME_GPU_OPEN);
        EXPECT_EQ(gpus.gpus[i].read_bytes, kFile + kPieces * kPiece);
        EXPECT_EQ(gpus.gpus[i].queues, gpus.gpus[0].queues);
        EXPECT_GT(gpus.gpus[i].tier, 0u) << "its kernels ring the doorbells";
    }
}

TEST_F(MountGpusTest, BothWrite)
{
    std::vector<unsigned char> bytes(kFile);

    ASSERT_NO_FATAL_FAILURE(open_both());
    for (auto &gpu : gpus_) {
        gpunvme_result result;
        ASSERT_NO_FATAL_FAILURE(gpu->read(fd_));
        ASSERT_EQ(ftruncate(fd_, 0), 0);
        ASSERT_EQ(transfer_write(gpu->b, fd_, 0, 0, kFile, &result), static_cast<ssize_t>(kFile));
        EXPECT_EQ(result.path, GPUNVME_PATH_GPU) << result.why;
        ASSERT_EQ(pread(fd_, bytes.data(), kFile, 0), static_cast<ssize_t>(kFile));
        EXPECT_EQ(bytes, gpu->file);
    }
}

TEST_F(MountGpusTest, BothReadByLeasedQueuesOfTheirOwn)
{
    ASSERT_NO_FATAL_FAILURE(open_both());
    for (auto &gpu : gpus_)
        ASSERT_NO_FATAL_FAILURE(gpu->read_direct(fd_));
}

// Registrations wait for runs, of which each must be able to end.
TEST_F(MountGpusTest, BothReadAtOnceWhileBuffersComeAndGo)
{
    constexpr int kRounds = 8;
    std::atomic<int> ended{0};
    std::thread threads[kGpus];

    ASSERT_NO_FATAL_FAILURE(open_both());
    for (int i = 0; i < kGpus; i++) {
        threads[i] = std::thread([this, i, &ended] {
            for (int n = 0; n < kRounds && !HasFailure(); n++) {
                gpus_[i]->read(fd_);
                gpus_[i]->read_list(fd_);
            }
            ended++;
        });
    }
    while (ended < kGpus && !HasFailure()) {
        for (auto &gpu : gpus_) {
            gpunvme_buffer *host = nullptr;
            EXPECT_EQ(buffer_alloc_host(gpu->g, kFile / 16, &host), 0) << gpunvme_error();
            EXPECT_TRUE(!host || buffer_unregister(host) == 0);
        }
    }
    for (std::thread &t : threads)
        t.join();
}

TEST_F(MountGpusTest, AKilledProcessFailsNoTransferOfTheOtherGpu)
{
    constexpr int kReadsMore = 20;

    ASSERT_NO_FATAL_FAILURE(open_both());
    gpus_[1].reset();
    uint64_t before = status().gpus[1].read_bytes;
    pid_t pid = reader("forever", devices_ > 1 ? "1" : "");
    while (status().gpus[1].read_bytes < before + kFile && waitpid(pid, nullptr, WNOHANG) == 0)
        gpus_[0]->read(fd_);
    ASSERT_EQ(kill(pid, SIGKILL), 0);
    for (int i = 0; i < kReadsMore; i++)
        ASSERT_NO_FATAL_FAILURE(gpus_[0]->read(fd_));
    ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
}

// The program loses its context, and the mount serves the next one.
TEST_F(MountGpusTest, AFaultOfAProgramFailsNoTransferOfTheOtherGpu)
{
    constexpr int kReadsMore = 20, kFaults = 3;
    const std::string visible = devices_ > 1 ? "1" : "";

    ASSERT_NO_FATAL_FAILURE(open_both());
    gpus_[1].reset();
    for (int i = 0; i < kFaults; i++) {
        int status = -1;
        pid_t pid = reader("fault", visible);
        do
            ASSERT_NO_FATAL_FAILURE(gpus_[0]->read(fd_));
        while (waitpid(pid, &status, WNOHANG) == 0);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    for (int i = 0; i < kReadsMore; i++)
        ASSERT_NO_FATAL_FAILURE(gpus_[0]->read(fd_));
    int status = -1;
    pid_t pid = reader("once", visible);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// The first device of the process is another one of the mount's.
TEST_F(MountGpusTest, ProcessesAndTheMountAgreeByUuid)
{
    std::vector<std::string> sets = {"0"};

    if (devices_ > 1)
        sets = {"1", "1,0", "0,1"};
    for (const std::string &visible : sets) {
        int status = -1;
        pid_t pid = reader("once", visible);
        ASSERT_EQ(waitpid(pid, &status, 0), pid);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << visible;
    }
    if (devices_ > 1) {
        EXPECT_EQ(this->status().gpus[1].read_bytes, 2 * (kFile + kPieces * kPiece));
    }
}

} // namespace
