/* SPDX-License-Identifier: BSD-2-Clause */
// Descriptors become tokens, and tokens become descriptors once, for one user.
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/gq.h"
#include "fusefs/daemon/ioctl/fdsocket.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "support/fd_message.h"
#include "tests/fd.h"
#include "tests/fusefs/daemon/tcp_ends.h"
#include "tests/fusefs/daemon/tokens.h"

// Seconds by which every clock is ahead.
static std::atomic<time_t> ahead{0};

extern "C" int __real_clock_gettime(clockid_t clock, struct timespec *ts);
extern "C" int __wrap_clock_gettime(clockid_t clock, struct timespec *ts)
{
    int rc = __real_clock_gettime(clock, ts);
    ts->tv_sec += ahead;
    return rc;
}

namespace
{

class FdSocket : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        fdsocket_handler answers = {answer, this};
        ASSERT_EQ(fdsocket_open(fdsocket_listen(), &answers, &socket_), 0);
        memory_ = memfd_create("fdsocket", MFD_CLOEXEC);
        ASSERT_GE(memory_, 0);
    }
    void TearDown() override
    {
        fdsocket_close(socket_);
        close(memory_);
    }
    uint64_t token(int fd)
    {
        return token_for(fdsocket_name(socket_), fdsocket_cookie(socket_), fd);
    }

    // Serves lease 7 with the memory as page, queue and doorbells.
    static int answer(void *context, const gpunvme_request *request, uid_t uid,
                      gpunvme_reply *reply, int fds[2])
    {
        auto *self = static_cast<FdSocket *>(context);
        std::lock_guard<std::mutex> waits(self->gate_);
        if (request->id != 7 || uid != self->holder_)
            return -ENOENT;
        *reply = {request->index, 0, 0, 0, 0, 0};
        fds[0] = dup(self->memory_);
        fds[1] = request->what == GPUNVME_ASK_QUEUE ? dup(self->memory_) : -1;
        return request->what == GPUNVME_ASK_QUEUE ? 2 : 1;
    }

    fdsocket *socket_ = nullptr;
    int memory_ = -1;
    uid_t holder_ = getuid(); // of lease 7
    std::mutex gate_;         // blocks the serving thread
};

// Receives a reply and closes its descriptors; -1: the connection ended.
int reply_fds(int s, gpunvme_reply *reply)
{
    fd_message in = {};
    if (fd_message_receive(s, reply, sizeof(*reply), &in, 4, 0) !=
        static_cast<ssize_t>(sizeof(*reply)))
        return -1;
    auto n = static_cast<int>(in.n);
    fd_message_close(&in);
    return n;
}

int asked(int s, uint64_t what, uint64_t id, uint64_t index)
{
    gpunvme_request request = {what, id, 0, index};
    gpunvme_reply reply = {};
    if (send(s, &request, sizeof(request), MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(request)))
        return -1;
    int n = reply_fds(s, &reply);
    EXPECT_TRUE(n < 0 || reply.len == index);
    return n;
}

TEST_F(FdSocket, TokenNamesTheDescriptorOnce)
{
    int fd = -1;
    uint64_t t = token(memory_);
    ASSERT_NE(t, 0u);
    ASSERT_EQ(fdsocket_take(socket_, t, getuid(), &fd), 0);
    struct stat sent, got;
    ASSERT_EQ(fstat(memory_, &sent), 0);
    ASSERT_EQ(fstat(fd, &got), 0);
    EXPECT_EQ(sent.st_ino, got.st_ino);
    EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    close(fd);
    EXPECT_EQ(fdsocket_take(socket_, t, getuid(), &fd), -ENOENT);
}

TEST_F(FdSocket, AnotherUserCannotUseAToken)
{
    int fd = -1;
    uint64_t t = token(memory_);
    EXPECT_EQ(fdsocket_take(socket_, t, getuid() + 1, &fd), -EACCES);
    ASSERT_EQ(fdsocket_take(socket_, t, getuid(), &fd), 0);
    close(fd);
}

TEST_F(FdSocket, MessagesOfAnotherFormAreRefused)
{
    int fd = -1;
    EXPECT_EQ(token_for(fdsocket_name(socket_), fdsocket_cookie(socket_), memory_, 1), 0u)
        << "not zero bytes";
    EXPECT_EQ(token_for(fdsocket_name(socket_), fdsocket_cookie(socket_), -1), 0u)
        << "no descriptor";
    EXPECT_EQ(fdsocket_take(socket_, 0, getuid(), &fd), -ENOENT);
}

/* Sends the memory n times in one message. Returns the token, or 0. */
uint64_t token_for_several(struct fdsocket *socket, int memory, size_t n)
{
    std::vector<int> fds(n, memory);
    uint64_t zero = 0, token = 0;
    Fd s = connect_to(fdsocket_name(socket), fdsocket_cookie(socket));

    if (fd_message_send(s, &zero, sizeof(zero), fds.data(), n, 0) != (ssize_t)sizeof(zero) ||
        recv(s, &token, sizeof(token), 0) != (ssize_t)sizeof(token))
        token = 0;
    return token;
}

TEST_F(FdSocket, ATokenStandsForAllDescriptorsOfItsMessage)
{
    fd_message fds;
    int fd = -1;
    uint64_t all = token_for_several(socket_, memory_, 5),
             first = token_for_several(socket_, memory_, 3);

    ASSERT_EQ(fdsocket_take_all(socket_, all, getuid(), &fds), 0);
    ASSERT_EQ(fds.n, 5u);
    fd_message_close(&fds);
    ASSERT_EQ(fdsocket_take(socket_, first, getuid(), &fd), 0);
    close(fd);
}

int table_of(const std::vector<gpunvme_memory_segment> &entries, size_t bytes)
{
    int fd = memfd_create("table", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    EXPECT_EQ(write(fd, entries.data(), bytes), (ssize_t)bytes);
    return fd;
}

int read_segments(const std::vector<gpunvme_memory_segment> &entries, size_t n_fds, gq_segment *out,
                  size_t bytes = 0)
{
    fd_message fds = {};
    Fd table = table_of(entries, bytes ? bytes : entries.size() * sizeof(entries[0]));

    fds.fd[fds.n++] = table;
    for (; fds.n < n_fds; fds.n++)
        fds.fd[fds.n] = 1000 + (int)fds.n;
    int n = fdsocket_segments(&fds, out);
    return n;
}

TEST(Segments, HaveTheDescriptorsOfTheirTable)
{
    gq_segment out[GQ_SEGMENTS];

    ASSERT_EQ(read_segments({{0, 8192, GPUNVME_MEMORY_EXPORTED, 0}, {4096, 12288, 0, 0}}, 4, out),
              2);
    EXPECT_EQ(out[0].fd, 1001);
    EXPECT_EQ(out[0].exported, 1002);
    EXPECT_EQ(out[1].fd, 1003);
    EXPECT_EQ(out[1].exported, -1);
    EXPECT_EQ(out[1].offset, 4096u);
    EXPECT_EQ(out[1].len, 12288u);
}

TEST(Segments, OfAnotherFormAreRefused)
{
    gq_segment out[GQ_SEGMENTS];
    const gpunvme_memory_segment plain = {0, 4096, 0, 0};
    std::vector<gpunvme_memory_segment> many(GPUNVME_MEMORY_SEGMENTS_MAX + 1, plain);
    fd_message none = {}, no_table = {};

    EXPECT_EQ(fdsocket_segments(&none, out), -EINVAL);
    no_table.n = 2;
    EXPECT_EQ(fdsocket_segments(&no_table, out), -EINVAL) << "standard input is no memfd";
    EXPECT_EQ(read_segments({plain}, 1, out), -EINVAL) << "too few descriptors";
    EXPECT_EQ(read_segments({plain}, 3, out), -EINVAL) << "too many";
    EXPECT_EQ(read_segments({{0, 4096, 2, 0}}, 2, out), -EINVAL) << "unknown flag";
    EXPECT_EQ(read_segments({{0, 4096, 0, 1}}, 2, out), -EINVAL) << "reserved";
    EXPECT_EQ(read_segments({plain}, 2, out, 23), -EINVAL) << "a part of an element";
    EXPECT_EQ(read_segments(many, 128, out), -EINVAL);
    many.pop_back();
    EXPECT_EQ(read_segments(many, 127, out), (int)GPUNVME_MEMORY_SEGMENTS_MAX);
}

TEST_F(FdSocket, ATokenExpiresAfterSomeSeconds)
{
    int fd = -1;
    uint64_t used = token(memory_), late = token(memory_);
    ahead = 5;
    ASSERT_EQ(fdsocket_take(socket_, used, getuid(), &fd), 0);
    close(fd);
    ahead = 20;
    EXPECT_EQ(fdsocket_take(socket_, late, getuid(), &fd), -ENOENT);
    ahead = 0;
}

TEST_F(FdSocket, ConnectionsAreLimited)
{
    std::vector<int> idle;
    for (int i = 0; i < 65; i++)
        idle.push_back(connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_)));
    char byte;
    EXPECT_EQ(recv(idle.back(), &byte, 1, 0), 0) << "the last one was not turned away";
    EXPECT_EQ(asked(idle.front(), GPUNVME_ASK_PAGE, 7, 0), 1);
    for (int s : idle)
        close(s);
}

// Calls act as another user in a child process, which exits with its result.
template <typename Act> int as_user(uid_t uid, Act act)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(setuid(uid) == 0 ? act() : 255);
    int status = -1;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// Makes as many tokens as the user may have, each with n descriptors.
int tokens_of(uid_t uid, struct fdsocket *socket, int memory, size_t n)
{
    return as_user(uid, [=] {
        int made = 0;
        while (made < 250 && token_for_several(socket, memory, n) != 0)
            made++;
        return made;
    });
}

TEST_F(FdSocket, UsersLeaveTokensToOthers)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root, to act as other users";
    for (int left = 224, i = 0; i < 5; i++) {
        int share = left - left / 2;
        EXPECT_EQ(tokens_of(4001 + i, socket_, memory_, 1), share);
        left -= share;
    }
    EXPECT_NE(token(memory_), 0u) << "root's";
    ahead = 11;
    EXPECT_EQ(tokens_of(4010, socket_, memory_, 1), 112) << "the others have expired";
    ahead = 0;
}

constexpr size_t MANY = 64; // descriptors of a message

TEST_F(FdSocket, UsersLeaveDescriptorsOfTokensToOthers)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root, to act as other users";
    struct rlimit limit;
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    uint64_t all = std::min<uint64_t>(16384, limit.rlim_cur / 2), left = all - all / 4;
    for (int i = 0; i < 3; i++) {
        int share = static_cast<int>((left - left / 2) / MANY);
        EXPECT_EQ(tokens_of(4001 + i, socket_, memory_, MANY), share);
        left -= static_cast<uint64_t>(share) * MANY;
    }
    EXPECT_NE(token_for_several(socket_, memory_, MANY), 0u) << "root's";
}

// A token that was used no longer charges its user for descriptors.
TEST_F(FdSocket, AUsedTokenIsNoLongerCharged)
{
    fd_message fds;
    for (int i = 0; i < 600; i++) {
        uint64_t used = token_for_several(socket_, memory_, MANY);
        ASSERT_EQ(fdsocket_take_all(socket_, used, getuid(), &fds), 0) << i;
        fd_message_close(&fds);
    }
}

// Four users without the cookie, each with more connections than there are entries for them.
TEST_F(FdSocket, PeersWithoutTheCookieHoldNoPlace)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root, to act as other users";
    int ready[2], done[2];
    ASSERT_EQ(pipe(ready), 0);
    ASSERT_EQ(pipe(done), 0);
    std::vector<pid_t> users;
    for (uid_t uid = 4001; uid <= 4004; uid++) {
        users.push_back(fork());
        if (users.back() != 0)
            continue;
        close(done[1]);
        bool ok = setuid(uid) == 0;
        for (int i = 0; i < 40; i++)
            ok &= connect_silently(fdsocket_name(socket_)) >= 0;
        char byte = ok;
        if (write(ready[1], &byte, 1) == 1 && read(done[0], &byte, 1) == 0)
            _exit(0);
        _exit(1);
    }
    for (size_t i = 0; i < users.size(); i++) {
        char byte = 0;
        ASSERT_EQ(read(ready[0], &byte, 1), 1);
        EXPECT_EQ(byte, 1);
    }
    EXPECT_EQ(as_user(4005,
                      [this] {
                          int served = 0;
                          for (int i = 0; i < 20; i++)
                              served += token(memory_) != 0;
                          return served;
                      }),
              20);
    close(done[1]);
    for (pid_t pid : users)
        waitpid(pid, nullptr, 0);
    for (int fd : {ready[0], ready[1], done[0]})
        close(fd);
}

// A peer that is slow to send its cookie keeps its connection beside those of another user.
TEST_F(FdSocket, OneUsersSilentConnectionsDoNotEndAnothers)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root, to act as another user";
    Fd slow = connect_silently(fdsocket_name(socket_));
    EXPECT_EQ(as_user(4001,
                      [this] {
                          for (int i = 0; i < 100; i++)
                              connect_silently(fdsocket_name(socket_));
                          return token(memory_) != 0;
                      }),
              1);
    EXPECT_TRUE(send_word(slow, -1, fdsocket_cookie(socket_)));
    EXPECT_EQ(asked(slow, GPUNVME_ASK_PAGE, 7, 0), 1);
}

TEST_F(FdSocket, AUserLeavesConnectionsToOthers)
{
    if (geteuid() != 0)
        GTEST_SKIP() << "needs root, to act as another user";
    {
        std::lock_guard<std::mutex> waits(gate_);
        holder_ = 4001;
    }
    EXPECT_EQ(as_user(holder_,
                      [this] {
                          std::vector<int> idle;
                          for (int i = 0; i < 64; i++)
                              idle.push_back(
                                  connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_)));
                          int kept = 0;
                          for (int s : idle)
                              kept += asked(s, GPUNVME_ASK_PAGE, 7, 0) == 1;
                          return kept;
                      }),
              28)
        << "half of the 56 that are not root's";
}

TEST_F(FdSocket, OnlyMemoryFilesAreAccepted)
{
    int file = open("/dev/null", O_RDWR | O_CLOEXEC);
    EXPECT_EQ(token(file), 0u);
    close(file);
    EXPECT_NE(token(memory_), 0u);
    Fd bar = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
    if (bar < 0)
        GTEST_SKIP() << "no file of sysfs, of which kind BARs are";
    EXPECT_NE(token(bar), 0u) << "the executor decides which";
}

// A FUSE server that never replies. It ends with the test.
class SilentFuse
{
  public:
    SilentFuse()
        : folder_(testing::TempDir() + "silent-" + std::to_string(getpid())),
          server_(open("/dev/fuse", O_RDWR | O_CLOEXEC))
    {
        std::string options =
            "fd=" + std::to_string(server_) + ",rootmode=40000,user_id=0,group_id=0";

        mkdir(folder_.c_str(), 0700);
        mounted_ = mount("silent", folder_.c_str(), "fuse", 0, options.c_str()) == 0;
        root_ = mounted_ ? open(folder_.c_str(), O_PATH | O_CLOEXEC) : -1;
    }
    ~SilentFuse()
    {
        end();
        close(root_);
        if (mounted_)
            umount2(folder_.c_str(), MNT_DETACH);
        rmdir(folder_.c_str());
    }
    // Every request that waits fails.
    void end()
    {
        close(server_);
        server_ = -1;
    }
    int root() const { return root_; }

  private:
    std::string folder_;
    int server_;
    int root_ = -1;
    bool mounted_ = false;
};

TEST_F(FdSocket, AFileSystemThatDoesNotReplyIsNotCalled)
{
    SilentFuse fuse;
    if (fuse.root() < 0)
        GTEST_SKIP() << "needs root and FUSE";
    auto sent = std::async(std::launch::async, [&] { return token(fuse.root()); });
    EXPECT_EQ(sent.wait_for(std::chrono::seconds(5)), std::future_status::ready);
    fuse.end();
    EXPECT_EQ(sent.get(), 0u);
    EXPECT_NE(token(memory_), 0u);
}

// close(2) of such a socket blocks until the peer has read the data or has
// exited. The last reference must be the daemon's, so the test occupies the
// socket's thread until its own is closed.
TEST_F(FdSocket, ADescriptorThatClosesSlowlyBlocksNothing)
{
    int peer, slow = slow_socket(&peer);
    gpunvme_request request = {GPUNVME_ASK_PAGE, 7, 0, 0};
    gpunvme_reply reply;
    std::unique_lock<std::mutex> busy(gate_);
    int before = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_));
    ASSERT_GT(send(before, &request, sizeof(request), 0), 0);
    int s = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_));
    EXPECT_TRUE(send_word(s, slow, 0));
    close(slow);
    busy.unlock();
    EXPECT_EQ(reply_fds(before, &reply), 1);
    close(before);
    char byte;
    EXPECT_EQ(recv(s, &byte, 1, 0), 0) << "kept waiting, or taken";
    EXPECT_NE(token(memory_), 0u);
    close(s);
    close(peer);
}

// Sends `n` times the same descriptor with a word, and closes it.
void send_and_close(int s, int fd, unsigned n, uint64_t word)
{
    std::vector<int> fds(n, fd);
    EXPECT_EQ(fd_message_send(s, &word, sizeof(word), fds.data(), n, 0),
              static_cast<ssize_t>(sizeof(word)));
    close(fd);
}

// The last reference to a slow socket is in a message with more descriptors than
// a client sends.
TEST_F(FdSocket, ManySlowDescriptorsOfAMessageBlockNothing)
{
    int peer;
    Fd s = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_));
    send_and_close(s, slow_socket(&peer), 8, 0);
    char byte;
    EXPECT_EQ(recv(s, &byte, 1, 0), 0) << "only memory is taken";
    EXPECT_NE(token(memory_), 0u);
    close(peer);
}

// It is in a message that the server does not receive: of a connection over
// quota, or without the cookie, or behind a message that ends the connection.
// The server is busy until all is in the queues.
TEST_F(FdSocket, SlowDescriptorsOfUnreadMessagesBlockNothing)
{
    std::vector<int> connections, peers;
    gpunvme_request request = {GPUNVME_ASK_PAGE, 7, 0, 0};
    gpunvme_reply reply;
    std::unique_lock<std::mutex> busy(gate_);
    int before = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_));
    ASSERT_GT(send(before, &request, sizeof(request), 0), 0);
    for (int i = 0; i < 40; i++) {
        int peer;
        int s = i % 2 ? connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_))
                      : connect_silently(fdsocket_name(socket_));
        if (i % 2)
            send_word(s, -1, 17);
        send_and_close(s, slow_socket(&peer), 1, 0);
        connections.push_back(s);
        peers.push_back(peer);
    }
    busy.unlock();
    EXPECT_EQ(reply_fds(before, &reply), 1);
    close(before);
    for (int s : connections)
        close(s);
    // Until the server has seen these ends, this user is over its quota.
    uint64_t taken = token(memory_);
    for (int i = 0; i < 200 && taken == 0; i++) {
        usleep(10000);
        taken = token(memory_);
    }
    EXPECT_NE(taken, 0u);
    for (int peer : peers)
        close(peer);
}

TEST_F(FdSocket, APeerWithoutTheCookieIsNotServed)
{
    gpunvme_reply reply;
    int s = connect_silently(fdsocket_name(socket_));
    EXPECT_EQ(asked(s, GPUNVME_ASK_PAGE, 7, 1), -1);
    close(s);
    EXPECT_EQ(token_for(fdsocket_name(socket_), fdsocket_cookie(socket_) + 1, memory_), 0u);
    s = connect_silently(fdsocket_name(socket_));
    EXPECT_TRUE(send_word(s, memory_, fdsocket_cookie(socket_))) << "with a descriptor";
    EXPECT_EQ(reply_fds(s, &reply), -1);
    close(s);
}

TEST_F(FdSocket, AConnectionServesManyRequests)
{
    Fd s = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_));
    for (uint64_t i = 0; i < 100; i++) {
        EXPECT_EQ(asked(s, GPUNVME_ASK_PAGE, 7, i), 1);
        EXPECT_EQ(asked(s, GPUNVME_ASK_QUEUE, 7, i), 2);
    }
    uint64_t token;
    EXPECT_TRUE(send_word(s, memory_, 0)) << "tokens too";
    EXPECT_EQ(recv(s, &token, sizeof(token), MSG_WAITALL), 8);
    EXPECT_EQ(asked(s, GPUNVME_ASK_PAGE, 7, 1), 1);
    EXPECT_EQ(asked(s, GPUNVME_ASK_PAGE, 8, 1), -1) << "nobody's lease";
    EXPECT_EQ(asked(s, GPUNVME_ASK_PAGE, 7, 1), -1) << "closed by then";
}

TEST_F(FdSocket, RequestsSentTogetherAreAnsweredInOrder)
{
    gpunvme_request asks[3] = {};
    gpunvme_reply reply;
    for (uint64_t i = 0; i < 3; i++)
        asks[i] = {GPUNVME_ASK_PAGE, 7, 0, i};
    Fd s = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_));
    ASSERT_EQ(send(s, asks, sizeof(asks), 0), static_cast<ssize_t>(sizeof(asks)));
    for (uint64_t i = 0; i < 3; i++) {
        EXPECT_EQ(reply_fds(s, &reply), 1);
        EXPECT_EQ(reply.len, i);
    }
}

TEST_F(FdSocket, UnreadRepliesEndTheConnection)
{
    gpunvme_request request = {GPUNVME_ASK_QUEUE, 7, 0, 1};
    gpunvme_reply reply;
    int s = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_)), asks = 0, answers = 0;
    while (asks < 1000 && send(s, &request, sizeof(request), MSG_NOSIGNAL) > 0)
        asks++;
    while (reply_fds(s, &reply) == 2)
        answers++;
    EXPECT_GE(answers, 3);
    EXPECT_LT(answers, 30) << "descriptors pile up";
    close(s);
    EXPECT_NE(token(memory_), 0u);
}

// Messages of every length except a request's, with and without a descriptor.
TEST_F(FdSocket, RequestsOfAnotherFormEndTheConnection)
{
    char bytes[200] = {};
    gpunvme_request good = {GPUNVME_ASK_PAGE, 7, 0, 0};
    gpunvme_reply reply;
    memcpy(bytes, &good, sizeof(good));
    for (size_t len : {1, 7, 8, 9, 16, 31, 33, 40}) {
        Fd s = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_));
        ASSERT_EQ(send(s, bytes, len, MSG_NOSIGNAL), static_cast<ssize_t>(len));
        while (reply_fds(s, &reply) > 0)
            EXPECT_GE(len, sizeof(good));
        EXPECT_EQ(recv(s, bytes + 100, 1, 0), 0) << len;
    }
    int s = connect_to(fdsocket_name(socket_), fdsocket_cookie(socket_));
    ASSERT_GT(fd_message_send(s, &good, sizeof(good), &memory_, 1, 0), 0);
    EXPECT_EQ(reply_fds(s, &reply), -1) << "a question brings no descriptor";
    close(s);
    EXPECT_NE(token(memory_), 0u);
}

} // namespace
