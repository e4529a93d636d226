/* SPDX-License-Identifier: BSD-2-Clause */
// Requests that are given at once, over a mount: one READV where that can be.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <future>

#include "gpunvme/gpunvme.h"
#include "tests/client/cufile/places.h"

using namespace places;

namespace
{

struct Request : gpunvme_transfer {
    std::promise<ssize_t> ended;
    static void end(gpunvme_transfer *r) { static_cast<Request *>(r)->ended.set_value(r->bytes); }
};

// Entry i reads 4096 + i bytes from file byte 5000 * i to memory + 8192 * i, unless a test says
// else.
struct Entries {
    Entries(struct gpunvme_file *f, char *memory, size_t n) : requests(n)
    {
        for (size_t i = 0; i < n; i++) {
            Request &r = requests[i];
            r.file = f;
            r.addr = memory + 8192 * i;
            r.len = 4096 + i;
            r.file_offset = 5000 * i;
            r.done = Request::end;
            list.push_back(&r);
        }
    }

    ssize_t start() { return gpunvme_submit(list.data(), list.size()); }
    ssize_t end(size_t i) { return requests[i].ended.get_future().get(); }

    std::vector<Request> requests;
    std::vector<struct gpunvme_transfer *> list;
};

// Memory of the mount, or the program's own.
class IoLists : public ::testing::TestWithParam<bool>
{
  protected:
    void SetUp() override
    {
        std::string why;
        folder_ = std::make_unique<Folder>(Where::kMount, &why);
        if (!why.empty())
            GTEST_SKIP() << why;
        ASSERT_TRUE(make_file(folder_->path("file"), bytes_));
        fd_ = open(folder_->path("file").c_str(), O_RDONLY | O_CLOEXEC);
        ASSERT_EQ(gpunvme_open(nullptr, &io_), 0);
        ASSERT_EQ(gpunvme_file_open(io_, fd_, 0, &file_), 0);
        if (GetParam()) {
            void *at;
            ASSERT_EQ(gpunvme_alloc_host(file_, kMemory, &at), 0) << gpunvme_error();
            memory_ = static_cast<char *>(at);
        } else {
            memory_ = own_.data();
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

    bool holds(const struct gpunvme_transfer &r)
    {
        return memcmp(r.addr, bytes_.data() + r.file_offset, r.len) == 0;
    }

    static constexpr size_t kMemory = 1 << 20;
    std::vector<char> bytes_ = some_bytes(1 << 20, 6), own_ = std::vector<char>(kMemory);
    std::unique_ptr<Folder> folder_;
    struct gpunvme *io_ = nullptr;
    struct gpunvme_file *file_ = nullptr;
    char *memory_ = nullptr;
    int fd_ = -1;
};

TEST_P(IoLists, EachEntryHasItsResult)
{
    constexpr size_t kEntries = 100;
    Entries e(file_, memory_, kEntries);
    e.requests[17].file_offset = bytes_.size() - 100; // ends early
    e.requests[40].file_offset = bytes_.size() + 1;
    ASSERT_EQ(e.start(), kEntries) << gpunvme_error();
    uint64_t with_commands = 0;
    for (size_t i = 0; i < kEntries; i++) {
        auto &r = e.requests[i];
        EXPECT_EQ(e.end(i), i == 17 ? 100 : i == 40 ? 0 : static_cast<ssize_t>(r.len));
        EXPECT_TRUE(i == 17 || i == 40 || holds(r)) << i;
        with_commands += r.result.commands > 0;
    }
    EXPECT_EQ(e.requests[1].result.path, GetParam() ? GPUNVME_PATH_GPU : GPUNVME_PATH_BOUNCE);
    EXPECT_EQ(with_commands, 1u); // one READV for all
}

TEST_P(IoLists, ReadsBesideAWriteAreTheirOwnTransfers)
{
    Entries e(file_, memory_, 9);
    e.requests[4].write = 1; // the descriptor is open for reading
    ASSERT_EQ(e.start(), 9);
    for (size_t i = 0; i < 9; i++)
        EXPECT_EQ(e.end(i), i == 4 ? -EBADF : static_cast<ssize_t>(e.requests[i].len));
    for (size_t i = 0; GetParam() && i < 9; i++)
        EXPECT_EQ(e.requests[i].result.commands > 0, i == 0 || i == 5) << i;
}

TEST_P(IoLists, MemoryOfTwoRegistrationsIsReadSingly)
{
    std::vector<char> other(8192);
    Entries e(file_, memory_, 5);
    e.requests[3].addr = other.data();
    ASSERT_EQ(e.start(), 5);
    for (size_t i = 0; i < 5; i++) {
        EXPECT_EQ(e.end(i), static_cast<ssize_t>(e.requests[i].len));
        EXPECT_TRUE(holds(e.requests[i])) << i;
    }
}

TEST_P(IoLists, AnErrorOfTheFileIsThatOfEachEntry)
{
    Fd writes = open(folder_->path("file").c_str(), O_WRONLY | O_CLOEXEC);
    struct gpunvme_file *f;
    ASSERT_EQ(gpunvme_file_open(io_, writes, 0, &f), 0);
    Entries e(f, memory_, 5);
    ASSERT_EQ(e.start(), 5);
    for (size_t i = 0; i < 5; i++)
        EXPECT_EQ(e.end(i), -EBADF);
    gpunvme_file_close(f);
}

INSTANTIATE_TEST_SUITE_P(Memory, IoLists, ::testing::Bool(), [](const auto &info) {
    return info.param ? "of_the_mount" : "of_the_program";
});

} // namespace
