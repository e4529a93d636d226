/* SPDX-License-Identifier: BSD-2-Clause */
// Fixture for tests of tables on a mount. The test knows every row of the
// files.
#ifndef TESTS_CLIENT_LIB_TABLE_BASE_H
#define TESTS_CLIENT_LIB_TABLE_BASE_H

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <map>
#include <numeric>
#include <random>
#include <thread>

#include "gpunvme/gpunvme.h"
#include "tests/client/cufile/places.h"
#include "tests/fusefs/daemon/puppet.h"

namespace table_base
{

using namespace places;

constexpr size_t kFile = 16u << 20, kBlock = 4096, kRows = 16384;
constexpr uint32_t kRow = 256;

using Ids = std::vector<int64_t>;
using Status = struct gpunvme_table_status;

struct Way {
    const char *name, *options;
    uint32_t flags; // flags for gpunvme_file_open()
};

// A mount that several tests use in turn, and the library's handle of each
// test.
class TableBase : public ::testing::Test
{
  protected:
    static void mount(const Way &way, std::unique_ptr<Mounted> &mount,
                      const std::vector<std::string> &format = {}, int input = -1)
    {
        std::string why = why_no_mount();
        if (!why.empty())
            GTEST_SKIP() << why;
        mount = std::make_unique<Mounted>(96u << 20, format);
        if (input >= 0)
            mount->use_program(puppet_);
        ASSERT_TRUE(mount->mount(way.options, input)) << mount->log();
        ASSERT_TRUE(make_file(mount->path("one"), bytes_));
    }

    // Makes a mount for this test only, served by the daemon puppet_, which
    // takes commands.
    void start(const Way &way, const std::vector<std::string> &format = {})
    {
        int ends[2];
        ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        control_ = ends[0];
        mount(way, own_, format, ends[1]);
        close(ends[1]);
        if (own_)
            use(own_.get(), way.flags);
    }

    void use(Mounted *mount, uint32_t flags)
    {
        mount_ = mount;
        flags_ = flags;
        ASSERT_EQ(gpunvme_open(nullptr, &io_), 0) << gpunvme_error();
        file_ = open_file(path("one"));
    }

    void TearDown() override
    {
        gpunvme_table_close(table_);
        gpunvme_close(io_);
        if (own_ && own_->pid() > 0) {
            EXPECT_TRUE(own_->unmount()) << own_->log();
        }
        if (control_ >= 0)
            close(control_);
    }

    std::string path(const std::string &name) const { return mount_->path(name); }

    struct gpunvme_file *open_file(const std::string &name)
    {
        struct gpunvme_file *f = nullptr;
        int fd = open(name.c_str(), O_RDONLY | O_CLOEXEC);
        EXPECT_EQ(gpunvme_file_open(io_, fd, flags_, &f), 0) << gpunvme_error();
        close(fd);
        return f;
    }

    // Opens a table of all rows of the file from byte `head` on, for gathers of
    // kRows ids.
    void open_table(uint32_t row = kRow, uint64_t head = 0,
                    const struct gpunvme_table_options &o = {})
    {
        struct gpunvme_segment s = {file_, head, (bytes_.size() - head) / row};
        row_ = row;
        head_ = head;
        ASSERT_EQ(gpunvme_table_open(&s, 1, row, kRows, &o, &table_), 0) << gpunvme_error();
        out_.resize(kRows * row);
        EXPECT_EQ(gpunvme_table_rows(table_), s.rows);
    }

    struct gpunvme_gather gather_of(const Ids &ids, Status *status)
    {
        struct gpunvme_gather a = {};
        a.ids = ids.data();
        a.id_bytes = 8;
        a.n = ids.size();
        a.out = out_.data();
        a.status = status;
        return a;
    }

    Status gather(const Ids &ids)
    {
        Status status = {99, 99, 99, 99};
        struct gpunvme_gather a = gather_of(ids, &status);
        std::fill(out_.begin(), out_.end(), 0x5a);
        EXPECT_EQ(gpunvme_table_gather(table_, &a, nullptr), 0) << gpunvme_error();
        return status;
    }

    // Expects that each row is the file's or zeros, and returns the number of
    // zero rows.
    size_t count_zeros(const Ids &ids, const std::vector<char> &out)
    {
        const std::vector<char> none(row_);
        size_t zeros = 0;
        for (size_t i = 0; i < ids.size(); i++) {
            const char *row = &out[i * row_];
            size_t at = head_ + static_cast<size_t>(ids[i]) * row_;
            bool is = static_cast<size_t>(ids[i]) < bytes_.size() && at + row_ <= bytes_.size() &&
                      memcmp(row, &bytes_[at], row_) == 0;
            bool is_zero = memcmp(row, none.data(), row_) == 0;
            EXPECT_TRUE(is || is_zero) << "row " << i;
            zeros += !is;
        }
        return zeros;
    }

    void expect_right(const Ids &ids)
    {
        Status status = gather(ids);
        EXPECT_EQ(status.failed, 0u) << status.error;
        EXPECT_EQ(status.error, 0);
        EXPECT_EQ(count_zeros(ids, out_), 0u);
    }

    // Gathers 500 of the first `rows` rows into memory of its own, for several threads.
    void gather_any(struct gpunvme_table *table, unsigned rows, unsigned seed)
    {
        std::mt19937 rng(seed);
        std::vector<char> out(500 * kRow);
        Ids ids(500);
        Status status;
        for (int64_t &id : ids)
            id = rng() % rows;
        struct gpunvme_gather a = gather_of(ids, &status);
        a.out = out.data();
        ASSERT_EQ(gpunvme_table_gather(table, &a, nullptr), 0) << gpunvme_error();
        ASSERT_EQ(status.failed, 0u) << status.error;
        ASSERT_EQ(count_zeros(ids, out), 0u);
    }

    static Ids all_of(size_t n)
    {
        Ids ids(n);
        std::iota(ids.begin(), ids.end(), 0);
        return ids;
    }

    uint64_t commands() const
    {
        struct gpunvme_table_stats stats;
        EXPECT_EQ(gpunvme_table_stats(table_, &stats, sizeof(stats)), 0);
        return stats.commands;
    }

    bool is_direct() const { return flags_ & GPUNVME_FILE_DIRECT; }

    static inline const std::vector<char> bytes_ = some_bytes(kFile, 3);
    static inline const char *puppet_ = nullptr; // set before start()
    std::vector<char> out_;
    std::unique_ptr<Mounted> own_;
    Mounted *mount_ = nullptr;
    struct gpunvme *io_ = nullptr;
    struct gpunvme_file *file_ = nullptr;
    struct gpunvme_table *table_ = nullptr;
    uint32_t row_ = kRow, flags_ = 0;
    uint64_t head_ = 0;
    int control_ = -1;
};

} // namespace table_base

#endif
