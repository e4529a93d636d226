/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Tests each object of cuFile with each event that may end its life. Every use
 * of the object returns all bytes of its file or is refused. It never returns
 * other bytes, crashes or hangs.
 */
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <thread>

#include "client/cufile/cufile_abi.h"
#include "tests/client/cufile/places.h"

using namespace places;

namespace
{

constexpr size_t kFile = 300000;
constexpr unsigned kEntries = 6;
// Environment variable of a program that the test runs; its value is the path
// of the file.
constexpr const char *kInside = "GPUNVME_TEST_EXIT";

// The outcome of a use: all bytes, an error, or anything else.
enum Outcome { kRight, kRefused, kWrong };

const std::vector<char> &content()
{
    // The bytes are never freed, since threads compare with them while the
    // program ends.
    static const std::vector<char> &bytes = *new std::vector<char>(some_bytes(kFile, 17));
    return bytes;
}

class Object
{
  public:
    explicit Object(const std::string &path)
    {
        fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC);
        CUfileDescr_t descr = {};
        descr.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
        descr.handle.fd = fd_;
        EXPECT_EQ(cuFileHandleRegister(&fh_, &descr).err, CU_FILE_SUCCESS);
    }
    virtual ~Object()
    {
        cuFileHandleDeregister(fh_);
        ::close(fd_);
    }
    Object(const Object &) = delete;
    Object &operator=(const Object &) = delete;

    // Returns memory of the calling thread, which is allocated once. A child of
    // fork(2) could wait for ever for memory, because ThreadSanitizer's allocator
    // may be locked by another thread of the parent at the fork.
    static char *memory()
    {
        thread_local std::vector<char> bytes(kFile);
        return bytes.data();
    }
    virtual Outcome use() { return read_into(memory()); }
    virtual void end() { cuFileHandleDeregister(fh_); }
    // Makes the number of the descriptor refer to another file.
    void reuse_descriptor(const std::string &other) const
    {
        int fd = open(other.c_str(), O_RDONLY | O_CLOEXEC);
        dup2(fd, fd_);
        ::close(fd);
    }

  protected:
    Outcome read_into(char *memory)
    {
        ssize_t n = cuFileRead(fh_, memory, kFile, 0, 0);
        if (n < 0)
            return kRefused;
        bool right = n == ssize_t{kFile} && std::equal(memory, memory + kFile, content().data());
        return right ? kRight : kWrong;
    }

    CUfileHandle_t fh_ = nullptr;
    int fd_ = -1;
};

// Memory that is registered until end(); each thread reads into its own part.
class Registered : public Object
{
  public:
    explicit Registered(const std::string &path) : Object(path), memory_(kParts * kFile)
    {
        EXPECT_EQ(cuFileBufRegister(memory_.data(), memory_.size(), 0).err, CU_FILE_SUCCESS);
    }
    ~Registered() override { cuFileBufDeregister(memory_.data()); }
    Outcome use() override
    {
        static std::atomic<unsigned> threads{0};
        thread_local unsigned part = threads++;
        return read_into(memory_.data() + part % kParts * kFile);
    }
    void end() override { cuFileBufDeregister(memory_.data()); }

  private:
    static constexpr size_t kParts = 8;
    std::vector<char> memory_;
};

// A batch for one thread, which end() destroys.
class Batch : public Object
{
  public:
    explicit Batch(const std::string &path) : Object(path), memory_(kEntries * kFile)
    {
        EXPECT_EQ(cuFileBatchIOSetUp(&batch_, kEntries).err, CU_FILE_SUCCESS);
    }
    ~Batch() override { end(); }
    Outcome use() override
    {
        CUfileIOParams_t params[kEntries] = {};
        CUfileIOEvents_t events[kEntries] = {};
        for (unsigned i = 0; i < kEntries; i++) {
            params[i].mode = CUFILE_BATCH;
            params[i].batch = {memory_.data(), 0, static_cast<off_t>(i * kFile), kFile};
            params[i].fh = fh_;
            params[i].opcode = CUFILE_READ;
        }
        unsigned n = kEntries;
        int err = cuFileBatchIOSubmit(batch_, kEntries, params, 0).err;
        int seen = cuFileBatchIOGetStatus(batch_, err ? 0 : n, &n, events, nullptr).err;
        if (err)
            return seen == err ? kRefused : kWrong;
        for (unsigned i = 0; i < kEntries; i++) {
            bool right = events[i].ret == kFile &&
                         std::equal(content().begin(), content().end(), memory_.data() + i * kFile);
            if (!right)
                return kWrong;
        }
        return kRight;
    }
    void end() override
    {
        if (batch_)
            cuFileBatchIODestroy(batch_);
        batch_ = nullptr;
    }

  private:
    CUfileBatchHandle_t batch_ = nullptr;
    std::vector<char> memory_;
};

struct Row {
    const char *name;
    std::function<Object *(const std::string &)> make;
    unsigned threads;    // threads that may use the object at the same time
    Outcome after_close; // expected outcomes of the other uses
    Outcome in_child;
    Where where;
};

class Life : public InFolder<Row>
{
  protected:
    void SetUp() override
    {
        if (const char *path = getenv(kInside)) {
            object_.reset(GetParam().make(path));
            return;
        }
        if (!begin(content()))
            return;
        ASSERT_TRUE(make_file(folder_->path("other"), some_bytes(kFile, 18)));
        object_.reset(GetParam().make(folder_->path("file")));
    }
    void TearDown() override
    {
        bool used = object_ != nullptr;
        object_.reset();
        if (used) {
            EXPECT_EQ(cuFileDriverClose().err, CU_FILE_SUCCESS);
        }
        if (folder_) {
            EXPECT_TRUE(folder_->end());
        }
    }
    // Starts threads that use the object until it refuses or stop() is called.
    void start()
    {
        for (unsigned i = 0; i < GetParam().threads; i++) {
            threads_.emplace_back([this] {
                Outcome seen = kRight;
                while (!leaving_ && seen == kRight) {
                    seen = object_->use();
                    wrong_ += seen == kWrong;
                    right_ += seen == kRight;
                }
            });
        }
        while (right_ + wrong_ == 0)
            usleep(1000);
    }
    void stop()
    {
        leaving_ = true;
        for (std::thread &t : threads_)
            t.join();
        threads_.clear();
        EXPECT_EQ(wrong_, 0u);
        EXPECT_GT(right_, 0u);
    }
    // Returns the outcome of a use in a child of fork(2), or kWrong if the
    // child hangs or crashes.
    Outcome in_child()
    {
        Object::memory();
        pid_t child = fork();
        if (child == 0) {
            Outcome seen = object_->use();
            object_->end();
            _exit(seen);
        }
        int status = -1;
        for (int i = 0; i < 3000 && waitpid(child, &status, WNOHANG) == 0; i++)
            usleep(10000);
        if (status == -1) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            ADD_FAILURE() << "the child hangs";
        }
        return WIFEXITED(status) ? static_cast<Outcome>(WEXITSTATUS(status)) : kWrong;
    }

    std::unique_ptr<Object> object_;
    std::vector<std::thread> threads_;
    std::atomic<bool> leaving_{false};
    std::atomic<unsigned> right_{0}, wrong_{0};
};

TEST_P(Life, ClosedWhileUsed)
{
    if (GetParam().threads == 1) { // a batch ends only when its entries have ended
        EXPECT_EQ(object_->use(), kRight);
        object_->end();
        return;
    }
    start();
    object_->end();
    object_->reuse_descriptor(folder_->path("other"));
    usleep(20000);
    stop();
}

TEST_P(Life, UsedAfterClose)
{
    EXPECT_EQ(object_->use(), kRight);
    object_->end();
    object_->end();
    EXPECT_EQ(object_->use(), GetParam().after_close);
}

TEST_P(Life, ForkIdle)
{
    EXPECT_EQ(object_->use(), kRight);
    EXPECT_EQ(in_child(), GetParam().in_child);
    EXPECT_EQ(object_->use(), kRight);
}

TEST_P(Life, ForkBusy)
{
    start();
    for (int i = 0; i < 10; i++)
        EXPECT_EQ(in_child(), GetParam().in_child);
    stop();
}

TEST_P(Life, DescriptorReused)
{
    object_->reuse_descriptor(folder_->path("other"));
    EXPECT_EQ(object_->use(), kRight);
}

// The test runs its own program again. The main thread of that ends while other
// threads read.
TEST_P(Life, Exit)
{
    if (getenv(kInside)) {
        start();
        std::exit(wrong_ ? 1 : 0);
    }
    pid_t child = fork();
    if (child == 0) {
        std::string filter = "--gtest_filter=*Life.Exit/" + std::string(GetParam().name);
        setenv(kInside, folder_->path("file").c_str(), 1);
        execl("/proc/self/exe", "test", filter.c_str(), nullptr);
        _exit(127);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

template <class T> Object *make(const std::string &path)
{
    return new T(path);
}

INSTANTIATE_TEST_SUITE_P(
    Objects, Life,
    ::testing::Values(Row{"handle_mount", make<Object>, 3, kRefused, kRight, Where::kMount},
                      Row{"handle_tmpfs", make<Object>, 3, kRefused, kRight, Where::kTmpfs},
                      Row{"buffer_mount", make<Registered>, 3, kRight, kRight, Where::kMount},
                      Row{"buffer_tmpfs", make<Registered>, 3, kRight, kRight, Where::kTmpfs},
                      Row{"batch_mount", make<Batch>, 1, kRefused, kRefused, Where::kMount},
                      Row{"batch_tmpfs", make<Batch>, 1, kRefused, kRefused, Where::kTmpfs}),
    [](const auto &info) { return info.param.name; });

} // namespace
