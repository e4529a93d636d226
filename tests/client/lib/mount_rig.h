/* SPDX-License-Identifier: BSD-2-Clause */
// Mounts with the library connected to them, and a file of which every byte is known.
#ifndef TESTS_CLIENT_LIB_MOUNT_RIG_H
#define TESTS_CLIENT_LIB_MOUNT_RIG_H

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "client/lib/connection.h"
#include "tests/e2e/mounted.h"

namespace mount_rig
{

constexpr size_t kPage = 4096, kFile = (6u << 20) + 4321; // a quarter of it in one piece:
constexpr size_t kWhole = kFile / 4 / kPage * kPage, kRoom = (8u << 20) + 123;
constexpr char kGuard = 0x5a;
constexpr int kRead = 2, kAny = -1;              // opcodes for fault()
constexpr auto kLong = std::chrono::seconds(60); // a bound, not an expectation

struct Way {
    const char *name, *options;
    uint32_t queues, depth; // to lease; 0: the library's defaults
};

// A mount, the library's handle of it, and leases of its queues and of a file.
class Connection : public ::testing::Test
{
  protected:
    void open_direct(uint32_t queues, uint32_t depth);
    void TearDown() override;

    // From then on the mount ends; later, by the library first, it has ended well.
    void end_the_mount();
    void expect_ended();

    std::vector<std::string> format_; // arguments of mkfs.gpunvme
    uint32_t flags_ = 0;              // GPUNVME_DIRECT_*
    std::unique_ptr<Mounted> mount_;
    struct connection *g_ = nullptr;
    struct gpunvme_buffer *buffer_ = nullptr;
    struct gpunvme_direct *d_ = nullptr;
    struct leased_file *f_ = nullptr;
    int fd_ = -1;
};

// With a buffer in host memory that reads go to, and a file with pieces of all lengths.
class MountRig : public Connection
{
  protected:
    // A fatal failure, or a skip, ends it early.
    void start(const std::string &options);
    // Over a drive that fails when it is told to, served by that program; leases open. A device
    // that the environment names (Mounted) has no faults and is served by gpunvmefs.
    void start(const Way &way, const char *puppet);
    // Of kRoom bytes: 0 or -errno.
    virtual int alloc(struct gpunvme_buffer **out) { return buffer_alloc(g_, kRoom, out); }
    void TearDown() override;

    // The next commands of the opcode, so many of them after `skip`, meet this fault
    // (tests/fusefs/daemon/puppet.c).
    void fault(const std::string &kind, int opcode, unsigned times, unsigned status = 0,
               unsigned skip = 0);
    // Has the daemon use the drive: it finds out what state that is in.
    void write_another_file();
    // What a read of a drive or a mount that is gone may say.
    static void expect_gone(int64_t result);

    // What `read` says first that is not 0; 0 when the time is up.
    static int64_t until_it_fails(const std::function<int64_t()> &read);
    // Work of several threads at a time: each gets its number, and returns what went wrong.
    static void in_threads(size_t n, const std::function<std::string(size_t)> &work);

    // n bytes at `at` of the buffer are those of the file at offset.
    ::testing::AssertionResult holds(size_t at, size_t n, uint64_t offset) const;
    // Bytes that a read has: fewer at the file's end.
    static size_t bytes_of(size_t n, uint64_t offset);
    void poison();
    ::testing::AssertionResult is_poisoned() const;
    /*
     * `rounds` reads from any offset to any address, of fewer bytes than `most` in turn: checks the
     * result of `read`, the bytes, and that no other byte has changed.
     */
    using Read = std::function<int64_t(size_t at, size_t n, uint64_t offset)>;
    void expect_reads(int rounds, const std::vector<size_t> &most, const Read &read);

    char *memory_ = nullptr;
    std::vector<char> file_ = std::vector<char>(kFile);

  private:
    void mount(const std::string &options, const char *puppet);
    void connect();
    void make_file();
    int control_ = -1;
};

} // namespace mount_rig

#endif
