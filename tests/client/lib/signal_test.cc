/* SPDX-License-Identifier: BSD-2-Clause */
// Calls of the mount that signals end: the library's caller does not see them.
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <vector>

#include <gtest/gtest.h>

#include "tests/client/lib/internal.h"

namespace
{

constexpr size_t kStep = 1000; // bytes, or pieces from the first on, that a call reads at most
constexpr size_t kCalls = 7, kLong = kStep * kCalls; // without interrupted calls

// Stands in for a mount whose calls end early by signals. Its file has no end.
struct Mount {
    unsigned interrupted = 0; // of that many calls and one more only the last reads anything
    bool in_place = false;    // pieces are of shared_list_alloc_pieces()
    bool bounces = false;     // short transfers take the bounce pipeline:
    int bounce_err = 0;       // what that ends with
    bool ends_list = false;   // that ends a list, and not only its last piece
    unsigned bounced = 0;     // calls of the pipeline
    unsigned calls = 0;
    unsigned held = 0;        // calls during which SIGUSR1 was blocked
    bool faults_held = false; // SIGSEGV or SIGTERM was, in any

    ssize_t read(size_t len, gpunvme_result *result);
    int readv(std::vector<gpunvme_piece> &pieces, gpunvme_result *result);

  private:
    void start();
};

Mount *rig; // one at a time
connection mount;
gpunvme_buffer buffer;
shared_list shared;

void Mount::start()
{
    rig = this;
    calls = held = bounced = 0;
    faults_held = false;
    buffer.owner = &mount;
    buffer.shared = true;
    mount.options.path = bounces ? 0 : GPUNVME_PATH_GPU;
}

// Returns a file that is open without O_DIRECT.
int cached_file()
{
    static const int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

    return fd;
}

ssize_t Mount::read(size_t len, gpunvme_result *result)
{
    start();
    return transfer_read(&buffer, cached_file(), 0, 0, len, result);
}

int Mount::readv(std::vector<gpunvme_piece> &pieces, gpunvme_result *result)
{
    std::vector<gpunvme_piece> copy(pieces.size());

    start();
    shared.room = pieces.size();
    shared.pieces = in_place ? pieces.data() : copy.data();
    return readv_buffer(&buffer, cached_file(), pieces.data(), pieces.size(), result);
}

void read_some(gpunvme_ioc_rw *rw)
{
    rw->bytes = std::min<uint64_t>(rw->len, kStep);
    rw->path = GPUNVME_PATH_GPU;
    rw->commands = 1;
}

// Behind the first ones every other is read, too, as by an executor with several queues.
int read_some_of_list(gpunvme_ioc_readv *v)
{
    bool whole = true;

    for (uint64_t i = 0; i < v->count; i++) {
        gpunvme_piece *p = &shared.pieces[v->first + i];
        bool read = i < kStep || i % 2;
        p->result = read ? static_cast<int32_t>(p->len) : -ECANCELED;
        whole &= read;
    }
    v->bytes = v->commands = 1;
    v->path = GPUNVME_PATH_GPU;
    return whole ? 0 : -EINTR;
}

void read_nothing_of_list(gpunvme_ioc_readv *v)
{
    for (uint64_t i = 0; i < v->count; i++)
        shared.pieces[v->first + i].result = -ECANCELED;
    v->bytes = 0;
}

void look_at_mask()
{
    sigset_t mask;

    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    rig->held += sigismember(&mask, SIGUSR1) == 1;
    rig->faults_held |= sigismember(&mask, SIGSEGV) == 1 || sigismember(&mask, SIGTERM) == 1;
}

std::vector<gpunvme_piece> pieces()
{
    return std::vector<gpunvme_piece>(kLong, gpunvme_piece{0, 0, 512, 7});
}

void expect_all(const std::vector<gpunvme_piece> &list, int32_t result)
{
    for (size_t i = 0; i < list.size(); i++)
        ASSERT_EQ(list[i].result, result) << i;
}

TEST(Signals, EndNoRead)
{
    Mount r;
    r.interrupted = 3;
    gpunvme_result result = {};
    EXPECT_EQ(r.read(kLong, &result), ssize_t{kLong});
    EXPECT_EQ(r.calls, 4 * kCalls);
    EXPECT_EQ(result.path, GPUNVME_PATH_GPU);
    EXPECT_EQ(result.commands, kCalls);
}

TEST(Signals, EndNoBatch)
{
    for (bool in_place : {false, true}) {
        Mount r;
        r.interrupted = 3;
        r.in_place = in_place;
        auto list = pieces();
        gpunvme_result result = {};
        EXPECT_EQ(r.readv(list, &result), 0);
        EXPECT_LE(r.calls, 4 * kCalls);
        EXPECT_GT(r.calls, kCalls);
        EXPECT_EQ(result.path, GPUNVME_PATH_GPU);
        expect_all(list, 512);
    }
}

// Else one that comes every millisecond would leave no time for a piece that takes longer.
TEST(Signals, WaitForTheCallAfterAnInterruptedOne)
{
    Mount r;
    r.interrupted = 3;
    EXPECT_EQ(r.read(kLong, nullptr), ssize_t{kLong});
    EXPECT_EQ(r.held, 3 * kCalls) << "of four calls the first is like any other";
    auto list = pieces();
    EXPECT_EQ(r.readv(list, nullptr), 0);
    EXPECT_EQ(r.held, r.calls / 4 * 3);
    EXPECT_FALSE(r.faults_held) << "it would be killed without its handler, or not be killed";
    sigset_t mask;
    pthread_sigmask(SIG_BLOCK, nullptr, &mask);
    EXPECT_EQ(sigismember(&mask, SIGUSR1), 0);
}

// A mount that ends answers as if there were nothing but signals.
TEST(Signals, AreNotTheReasonForEver)
{
    Mount r;
    r.interrupted = UINT_MAX;
    EXPECT_EQ(r.read(kLong, nullptr), -EINTR);
    EXPECT_LT(r.calls, 1000u);
    auto list = pieces();
    EXPECT_EQ(r.readv(list, nullptr), -EINTR);
    EXPECT_LT(r.calls, 1000u);
    expect_all(list, -ECANCELED);
}

// The library's choice, which the caller did not ask for, makes nothing fail.
TEST(Retries, WhatThePipelineCannotReadTheMountReads)
{
    Mount r;
    r.bounces = true;
    gpunvme_result result = {};
    EXPECT_EQ(r.read(kStep, &result), ssize_t{kStep});
    EXPECT_EQ(r.bounced, 1u);
    EXPECT_EQ(r.calls, 0u);
    EXPECT_STRNE(result.why, "");
    r.bounce_err = -ENOMEM;
    EXPECT_EQ(r.read(kStep, &result), ssize_t{kStep});
    EXPECT_EQ(r.bounced, 1u);
    EXPECT_EQ(r.calls, 1u);
    EXPECT_EQ(result.path, GPUNVME_PATH_GPU);
    EXPECT_STREQ(result.why, "");
}

TEST(Retries, TheMountReadsABatchOfWhichAPieceFailed)
{
    Mount r;
    r.bounces = true;
    std::vector<gpunvme_piece> list(4, gpunvme_piece{0, 0, 512, 7});
    EXPECT_EQ(r.readv(list, nullptr), 0);
    EXPECT_EQ(r.bounced, 1u);
    EXPECT_EQ(r.calls, 0u);
    expect_all(list, 512);
    r.bounce_err = -ENOMEM;
    for (bool all : {false, true}) {
        r.ends_list = all;
        EXPECT_EQ(r.readv(list, nullptr), 0);
        EXPECT_EQ(r.bounced, 1u);
        EXPECT_GT(r.calls, 0u);
        expect_all(list, 512);
    }
}

} // namespace

int gpunvme_ioctl(int, unsigned long request, void *arg, uint32_t)
{
    bool interrupted = ++rig->calls % (rig->interrupted + 1ull) != 0;

    look_at_mask();
    if (request == GPUNVME_IOC_READV && !interrupted)
        return read_some_of_list(static_cast<gpunvme_ioc_readv *>(arg));
    if (request == GPUNVME_IOC_READV)
        read_nothing_of_list(static_cast<gpunvme_ioc_readv *>(arg));
    else if (!interrupted)
        read_some(static_cast<gpunvme_ioc_rw *>(arg));
    return interrupted ? -EINTR : 0;
}

shared_list *shared_list_of(struct connection *, const gpunvme_piece *, size_t)
{
    return rig->in_place ? &shared : nullptr;
}

int shared_list_get(struct connection *, size_t, shared_list **out)
{
    *out = &shared;
    return 0;
}

void shared_list_put(struct connection *, shared_list *)
{
}

int gpunvme_readv_bounced(gpunvme_buffer *, int, gpunvme_piece *pieces, size_t n, gpunvme_result *)
{
    rig->bounced++;
    for (size_t i = 0; i < n; i++) {
        bool fails = i + 1 == n && rig->bounce_err;
        pieces[i].result = fails ? rig->bounce_err : static_cast<int32_t>(pieces[i].len);
    }
    return rig->ends_list ? rig->bounce_err : 0;
}

size_t gpunvme_transfer_bounced(gpunvme_buffer *, const range *r, gpunvme_result *, int *err)
{
    rig->bounced++;
    *err = rig->bounce_err;
    return *err ? 0 : r->len;
}
