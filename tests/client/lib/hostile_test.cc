/* SPDX-License-Identifier: BSD-2-Clause */
// The direct path over a mount that answers wrongly, too late, or not at all: an error with a
// sentence, nothing that is left behind, and no touch of memory that is not there.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "support/fd_message.h"
#include "tests/client/lib/internal.h"

namespace
{

constexpr uint64_t kId = 7, kPage = 4096;

// Holds the answers of the mount's ioctls. A zero in `fail` stands for success.
struct Mount {
    gpunvme_ioc_info info = {};
    gpunvme_ioc_queue_lease queues = {};
    gpunvme_ioc_extent_lease extents = {};
    int fail_register = 0, fail_iova = 0, fail_queues = 0; // 0 or -errno
    std::atomic<unsigned> lease_ends{0};                   // that it was asked for
    std::atomic<unsigned> unregistered{0};
    std::atomic<bool> waits{false}; // UNREGISTER does not return meanwhile
};

Mount *mount; // one at a time

// Returns a handle of the mount, without connecting. dev_fd is a file of "the mount".
connection *open_handle(Mount &m, int dev_fd)
{
    auto *g = static_cast<connection *>(calloc(1, sizeof(connection)));
    struct stat st;
    EXPECT_EQ(fstat(dev_fd, &st), 0);
    mount = &m;
    g->fd = dev_fd;
    g->dev = st.st_dev;
    g->info = m.info;
    return g;
}

void close_handle(connection *g)
{
    while (!LIST_EMPTY(&g->directs))
        direct_close(LIST_FIRST(&g->directs));
    while (!LIST_EMPTY(&g->buffers))
        buffer_unregister(LIST_FIRST(&g->buffers));
    free(g);
}

size_t open_descriptors()
{
    size_t n = 0;
    for (const auto &entry : std::filesystem::directory_iterator("/proc/self/fd"))
        n += entry.exists() || true;
    return n;
}

int memory(uint64_t len)
{
    int fd = memfd_create("hostile", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(len)), 0);
    return fd;
}

// An answer, with descriptors of files that are so long; a length below 0: of a pipe.
struct Answer {
    struct gpunvme_reply reply = {};
    std::vector<int64_t> files;
    bool closes = false;
    size_t bytes = sizeof(struct gpunvme_reply);
};

// The mount's socket: replies to memory with a token, and to any other request as the test sets.
class Server
{
  public:
    Server()
    {
        name_ = "@gpunvme-hostile-" + std::to_string(getpid());
        addr_.sun_family = AF_UNIX;
        memcpy(addr_.sun_path, name_.data(), name_.size());
        addr_.sun_path[0] = '\0';
        size_ = static_cast<socklen_t>(offsetof(struct sockaddr_un, sun_path) + name_.size());
        listener_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        EXPECT_EQ(bind(listener_, address(), size_), 0);
        EXPECT_EQ(listen(listener_, 8), 0);
        thread_ = std::thread([this] { run(); });
    }
    ~Server()
    {
        shutdown(listener_, SHUT_RDWR);
        thread_.join();
        close(listener_);
    }
    const std::string &name() const { return name_; }
    // A client that says nothing; -1 with EAGAIN: there is no room for one more.
    int connected() const
    {
        int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (connect(s, address(), size_) == 0)
            return s;
        int err = errno;
        close(s);
        errno = err;
        return -1;
    }
    bool is_busy() const { return busy_; }
    // After an answer: until its descriptors are closed here.
    void settle() const
    {
        while (busy_)
            std::this_thread::yield();
    }
    Answer page, queue, extents; // extents: the page of that lease
    std::vector<struct gpunvme_lease_extent> list;
    std::atomic<bool> silent{false};
    std::atomic<unsigned> desc{0}, delay_us{0};

  private:
    const struct sockaddr *address() const
    {
        return reinterpret_cast<const struct sockaddr *>(&addr_);
    }

    void run()
    {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, nullptr); // they are for the library's callers
        int s;
        while ((s = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0) {
            busy_ = true;
            serve(s);
            close(s);
            busy_ = false;
        }
    }

    void serve(int s)
    {
        struct gpunvme_request request = {};
        uint64_t cookie, token = 1;
        if (silent) {
            char byte;
            while (recv(s, &byte, 1, 0) > 0)
                ;
            return;
        }
        recv(s, &cookie, sizeof(cookie), MSG_WAITALL);
        ssize_t n =
            recv(s, &request, sizeof(request), 0); // a descriptor that comes with it is dropped
        usleep(delay_us);
        if (n == sizeof(token))
            send(s, &token, sizeof(token), MSG_NOSIGNAL);
        else if (n == sizeof(request))
            answer(s, request);
    }

    void answer(int s, const struct gpunvme_request &request)
    {
        desc++;
        if (request.what == GPUNVME_ASK_QUEUE)
            tell(s, queue, nullptr);
        else if (request.id == kId)
            tell(s, page, nullptr);
        else
            tell(s, extents, &list);
    }

    static int make_file(int64_t len, const std::vector<struct gpunvme_lease_extent> *content)
    {
        int ends[2];
        if (len < 0) {
            EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
            close(ends[1]);
            return ends[0];
        }
        int fd = memory(static_cast<uint64_t>(len));
        uint32_t state = GPUNVME_LEASE_VALID;
        EXPECT_EQ(pwrite(fd, &state, len < 4 ? 0 : 4, 0), len < 4 ? 0 : 4);
        for (size_t i = 0; content && i < content->size(); i++)
            EXPECT_GT(pwrite(fd, &(*content)[i], sizeof((*content)[i]),
                             static_cast<off_t>(GPUNVME_LEASE_EXTENTS_AT + 16 * i)),
                      0);
        return fd;
    }

    static void tell(int s, const Answer &a,
                     const std::vector<struct gpunvme_lease_extent> *content)
    {
        if (a.closes)
            return;
        std::vector<int> fds;
        for (int64_t len : a.files)
            fds.push_back(make_file(len, content));
        fd_message_send(s, &a.reply, a.bytes, fds.data(), fds.size(), 0);
        for (int fd : fds)
            close(fd);
    }

    std::string name_;
    struct sockaddr_un addr_ = {};
    socklen_t size_ = 0;
    std::atomic<bool> busy_{false};
    int listener_;
    std::thread thread_;
};

class Hostile : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        m_.info.executor = GPUNVME_EXECUTOR_CPU;
        m_.info.direct = 1;
        m_.info.lba_size = 512;
        m_.info.max_buffers = 8;
        snprintf(m_.info.socket, sizeof(m_.info.socket), "%s", server_.name().c_str());
        m_.queues.queues = 2;
        m_.queues.depth = 4;
        m_.queues.lba_size = 512;
        m_.queues.max_command = 65536;
        m_.queues.deadline_ms = 50;
        m_.queues.id = kId;
        server_.page.reply.len = kPage;
        server_.page.files = {kPage};
        server_.queue.reply = {kPage, 0, 2048, kPage, 4096 - 8, 4096 - 4};
        server_.queue.files = {kPage, kPage};
        m_.extents.id = kId + 1;
        m_.extents.size = 10000;
        m_.extents.count = 1;
        server_.extents.reply.len = kPage;
        server_.extents.files = {kPage};
        server_.list = {{0, 100}};
        file_ = memory(10000);
    }

    void TearDown() override
    {
        if (g_)
            close_handle(g_);
        close(file_);
    }

    int open_direct(struct gpunvme_direct **out)
    {
        struct direct_options o = {2, 4, 0};
        if (!g_)
            g_ = open_handle(m_, file_);
        return direct_open(g_, &o, out);
    }

    // Fails as told, says why, and leaves no descriptor, lease or buffer behind.
    void refuses(int want, const std::string &says, bool leased = true)
    {
        server_.settle();
        size_t before = open_descriptors();
        unsigned leases = m_.lease_ends;
        struct gpunvme_direct *d = nullptr;
        EXPECT_EQ(open_direct(&d), want);
        EXPECT_NE(std::string(gpunvme_error()).find(says), std::string::npos) << gpunvme_error();
        server_.settle();
        EXPECT_EQ(open_descriptors(), before);
        EXPECT_EQ(m_.lease_ends, leases + (leased ? 1 : 0));
    }

    void refuses_file(int want, const std::string &says)
    {
        struct gpunvme_direct *d = nullptr;
        struct leased_file *f = nullptr;
        ASSERT_EQ(open_direct(&d), 0) << gpunvme_error();
        server_.settle();
        size_t before = open_descriptors();
        EXPECT_EQ(leased_file_open(d, file_, true, &f), want);
        EXPECT_NE(std::string(gpunvme_error()).find(says), std::string::npos) << gpunvme_error();
        server_.settle();
        EXPECT_EQ(open_descriptors(), before);
        direct_close(d);
    }

    Server server_;
    Mount m_;
    struct connection *g_ = nullptr;
    int file_ = -1;
};

TEST_F(Hostile, TheSimulatedMountIsValidByDefault)
{
    struct gpunvme_direct *d;
    struct leased_file *f;
    ASSERT_EQ(open_direct(&d), 0) << gpunvme_error();
    ASSERT_EQ(leased_file_open(d, file_, true, &f), 0) << gpunvme_error();
    EXPECT_EQ(leased_file_size(f), 10000u);
    EXPECT_EQ(leased_file_refresh(f), 0);
    direct_close(d);
    EXPECT_EQ(m_.lease_ends, 2u);
    EXPECT_EQ(m_.unregistered, 1u);
}

TEST_F(Hostile, RefusalsAreSaidInWords)
{
    for (auto [err, says] : std::vector<std::pair<int, std::string>>{{-EPERM, "direct="},
                                                                     {-EBUSY, "queues"},
                                                                     {-EAGAIN, "reset"},
                                                                     {-ENOTCONN, "connected"}}) {
        m_.fail_queues = err;
        refuses(err, says, false);
    }
    m_.fail_queues = -ENOTTY;
    refuses(-ENOTSUP, "no drive", false);
    m_.fail_iova = -ENOTSUP;
    refuses(-ENOTSUP, "does not reach", false);
    m_.fail_register = -EMFILE;
    refuses(-EMFILE, "limit", false);
}

TEST_F(Hostile, AMountThatDrivesNoQueuesSaysWhy)
{
    m_.info.executor = GPUNVME_EXECUTOR_NONE;
    snprintf(m_.info.fallback, sizeof(m_.info.fallback), "gpu=off");
    refuses(-ENOTSUP, "gpu=off", false);
}

TEST_F(Hostile, LeasesOfNoUseAreGivenBack)
{
    const struct gpunvme_ioc_queue_lease good = m_.queues;
    auto bad = [&](const std::function<void(struct gpunvme_ioc_queue_lease *)> &spoil) {
        m_.queues = good;
        spoil(&m_.queues);
        refuses(-EPROTO, "the mount leased");
    };
    bad([](auto *l) { l->queues = 0; });
    bad([](auto *l) { l->queues = 3; });
    bad([](auto *l) { l->queues = UINT32_MAX; });
    bad([](auto *l) { l->depth = 0; });
    bad([](auto *l) { l->depth = 1; });
    bad([](auto *l) { l->depth = 65537; });
    bad([](auto *l) { l->depth = UINT32_MAX; });
    bad([](auto *l) { l->lba_size = 0; });
    bad([](auto *l) { l->lba_size = 4096; });
    bad([](auto *l) { l->max_command = 0; });
    bad([](auto *l) { l->max_command = 511; });
    bad([](auto *l) { l->max_command = 4096; }); // no MDTS is less than two pages
}

TEST_F(Hostile, RingsAndDoorbellsLieInTheirMemory)
{
    const Answer good = server_.queue;
    auto bad = [&](const std::string &says, const std::function<void(Answer *)> &spoil) {
        server_.queue = good;
        spoil(&server_.queue);
        refuses(-EPROTO, says);
    };
    for (uint64_t at : {uint64_t{4096}, uint64_t{4096 - 192}, uint64_t{32}, UINT64_MAX - 63}) {
        bad("rings", [at](Answer *a) { a->reply.sq_offset = at; });
        bad("rings", [at](Answer *a) { a->reply.cq_offset = at + 8; });
    }
    bad("rings", [](Answer *a) { a->reply.len = 0; });
    for (uint64_t at : {uint64_t{4096}, uint64_t{2}, UINT64_MAX - 3, UINT64_MAX}) {
        bad("doorbells", [at](Answer *a) { a->reply.sq_doorbell = at; });
        bad("doorbells", [at](Answer *a) { a->reply.cq_doorbell = at; });
    }
    bad("doorbells", [](Answer *a) { a->reply.doorbells_len = 0; });
    bad("ends too early", [](Answer *a) { a->reply.len = 1u << 20; });
    bad("shares memory", [](Answer *a) { a->reply.len = UINT64_MAX; });
    bad("ends too early", [](Answer *a) { a->files = {0, 4096}; });
    bad("ends too early", [](Answer *a) { a->files = {4096, 0}; });
}

// As an image may, whose size is no multiple of a page.
TEST_F(Hostile, MemoryMayEndWithinAPage)
{
    struct gpunvme_direct *d;
    server_.queue.files = {kPage - 1, kPage};
    EXPECT_EQ(open_direct(&d), 0) << gpunvme_error();
}

TEST_F(Hostile, DescriptorsAreCountedAndMapped)
{
    const std::vector<std::vector<int64_t>> wrong = {{}, {4096}, {4096, 4096, 4096}};
    for (const auto &files : wrong) {
        server_.queue.files = files;
        refuses(-EPROTO, "nonsense");
    }
    server_.queue.files = {-1, 4096};
    refuses(-EACCES, "memory shared by the mount");
    server_.queue.files = {4096, 4096};
    server_.queue.bytes = 47;
    refuses(-EPROTO, "nonsense");
    server_.queue.bytes = 48;
    server_.queue.closes = true;
    refuses(-ENOENT, "closed");
    server_.page.reply.len = 15;
    refuses(-EPROTO, "too short");
}

TEST_F(Hostile, ExtentsAreCounted)
{
    m_.extents.count = 0;
    refuses_file(-EPROTO, "without extents");
    m_.extents.count = uint64_t{UINT32_MAX} + 1;
    refuses_file(-EFBIG, "more extents");
    m_.extents.count = UINT64_MAX;
    refuses_file(-EFBIG, "more extents");
    m_.extents.count = 253; // one more than there is room for
    refuses_file(-EPROTO, "too short");
    server_.extents.reply.len = 1u << 20;
    refuses_file(-EPROTO, "ends too early");
}

TEST_F(Hostile, ChecksumsAreInThePage)
{
    m_.extents.flags = GPUNVME_LEASE_SUMS;
    m_.extents.size = uint64_t{INT64_MAX} + 1;
    refuses_file(-EPROTO, "a file of");
    m_.extents.size = uint64_t{1} << 40; // a gigabyte of them
    refuses_file(-EPROTO, "too short");
}

TEST_F(Hostile, ExtentsAreInOrder)
{
    m_.extents.count = 3;
    for (const auto &list :
         std::vector<std::vector<struct gpunvme_lease_extent>>{{{512, 1}, {1024, 2}, {2048, 3}},
                                                               {{0, 1}, {0, 2}, {512, 3}},
                                                               {{0, 1}, {1024, 2}, {512, 3}}}) {
        server_.list = list;
        refuses_file(-EPROTO, "out of order");
    }
}

// No GPU, no drive: state left by a failure must not be used by later calls.
TEST_F(Hostile, AfterARenewalThatFailedFilesHaveNoQueues)
{
    struct gpunvme_direct *d;
    struct leased_file *f, *later;
    struct gpunvme_buffer *b;
    int64_t bytes;
    ASSERT_EQ(open_direct(&d), 0) << gpunvme_error();
    ASSERT_EQ(leased_file_open(d, file_, true, &f), 0) << gpunvme_error();
    ASSERT_EQ(buffer_alloc(g_, kPage, &b), 0) << gpunvme_error();
    void *to = buffer_addr(b);
    m_.fail_queues = -EBUSY;
    EXPECT_EQ(direct_renew(d), -EBUSY);
    EXPECT_EQ(direct_read_async(f, to, 512, 0, nullptr, &bytes), -ESTALE);
    m_.extents.generation++; // the page says 0: to be taken anew at once
    EXPECT_EQ(leased_file_open(d, file_, true, &later), 0) << gpunvme_error();
    EXPECT_EQ(leased_file_refresh(later), 1) << gpunvme_error();
    EXPECT_EQ(direct_read_async(later, to, 512, 0, nullptr, &bytes), -ESTALE);
    m_.fail_queues = 0;
    EXPECT_EQ(direct_renew(d), 0) << gpunvme_error();
    // No controller drives these queues: the command is lost.
    EXPECT_EQ(direct_read_async(later, to, 512, 0, nullptr, &bytes), 0) << gpunvme_error();
    EXPECT_EQ(bytes, -ETIMEDOUT);
}

// A kernel that reads all the same finds the words that it loads next.
TEST_F(Hostile, UntilFilesAreRenewedOnlyTheNumberOfTheirQueuesChanges)
{
    struct gpunvme_direct *d;
    struct leased_file *f;
    ASSERT_EQ(open_direct(&d), 0) << gpunvme_error();
    ASSERT_EQ(leased_file_open(d, file_, true, &f), 0) << gpunvme_error();
    struct gpunvme_device_file before = *leased_file_device(f), after;
    ASSERT_NE(before.set.n_queues, 0u);
    m_.fail_queues = -EBUSY;
    EXPECT_EQ(direct_renew(d), -EBUSY);
    after = *leased_file_device(f);
    EXPECT_EQ(after.set.n_queues, 0u);
    after.set.n_queues = before.set.n_queues;
    EXPECT_EQ(memcmp(&after, &before, sizeof(before)), 0);
    leased_file_close(f);
}

TEST_F(Hostile, FilesComeAndGoWhileLeasesAreRenewed)
{
    struct gpunvme_direct *d;
    std::atomic<bool> stop{false};
    std::atomic<int> failed{0};
    ASSERT_EQ(open_direct(&d), 0) << gpunvme_error();
    std::thread files([&] {
        while (!stop) {
            struct leased_file *f;
            if (leased_file_open(d, file_, true, &f) || leased_file_refresh(f) < 0)
                failed++;
            else
                leased_file_close(f);
        }
    });
    for (int i = 0; i < 20; i++)
        EXPECT_EQ(direct_renew(d), 0) << gpunvme_error();
    stop = true;
    files.join();
    EXPECT_EQ(failed, 0);
}

// While a signal comes every 2 ms.
void with_signals(const std::function<void()> &work)
{
    struct sigaction action = {}, before;
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {};
    action.sa_handler = [](int) {};
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &often, nullptr);
    work();
    setitimer(ITIMER_REAL, &never, nullptr);
    sigaction(SIGALRM, &before, nullptr);
}

TEST_F(Hostile, SignalsDoNotKeepTheLibraryFromAnswers)
{
    struct gpunvme_direct *d;
    server_.delay_us = 20000;
    with_signals([&] { EXPECT_EQ(open_direct(&d), 0) << gpunvme_error(); });
}

// The socket's backlog is full.
TEST_F(Hostile, SignalsDoNotKeepTheLibraryFromWaitingForItsTurn)
{
    std::vector<int> others = {server_.connected()};
    while (!server_.is_busy())
        std::this_thread::yield();
    while (others.back() >= 0)
        others.push_back(server_.connected());
    EXPECT_EQ(errno, EAGAIN);
    others.pop_back();
    std::thread leaving([&] {
        usleep(50000);
        for (int s : others)
            close(s);
    });
    struct gpunvme_direct *d;
    with_signals([&] { EXPECT_EQ(open_direct(&d), 0) << gpunvme_error(); });
    leaving.join();
}

// Before the mount ends a buffer, the mount waits for the commands that use its memory.
TEST_F(Hostile, MemoryIsRegisteredWhileTheMountEndsOtherMemory)
{
    regions *rs;
    region_use use;
    char memory[kPage], other[kPage];
    std::atomic<bool> added{false};
    g_ = open_handle(m_, file_);
    ASSERT_EQ(regions_new(&rs), 0);
    ASSERT_EQ(regions_use(rs, nullptr, g_, memory, kPage, &use), 0);
    use.buffer->shared = true; // so that the mount is told of its end
    m_.waits = true;
    std::thread releasing([&] { regions_release(rs, &use); });
    while (m_.unregistered == 0)
        usleep(100);
    std::thread adding(
        [&] { added = regions_add(rs, nullptr, other, sizeof(other), nullptr) == 0; });
    for (int i = 0; i < 5000 && !added; i++)
        usleep(1000);
    EXPECT_TRUE(added);
    m_.waits = false;
    releasing.join();
    adding.join();
    regions_free(rs);
}

TEST_F(Hostile, AReportHasNoMoreEntriesThanItsRoom)
{
    static struct gpunvme_ioc_open_files files;
    static struct gpunvme_ioc_queues queues;
    static struct gpunvme_ioc_gpus gpus;

    EXPECT_EQ(gpunvme_open_files(file_, 0, &files), 0);
    EXPECT_EQ(gpunvme_queues(file_, &queues), 0);
    EXPECT_EQ(gpunvme_gpus(file_, &gpus), 0);
    EXPECT_EQ(files.count, GPUNVME_OPEN_FILES_MAX);
    EXPECT_EQ(queues.count, GPUNVME_QUEUES_MAX);
    ASSERT_EQ(gpus.count, GPUNVME_GPUS_MAX);
    for (const struct gpunvme_gpu &g : gpus.gpus)
        EXPECT_EQ(strnlen(g.name, sizeof(g.name)), sizeof(g.name) - 1);
}

TEST_F(Hostile, TablesRefuseLbasThatNoDriveHas)
{
    for (uint32_t size : {1000u, 1u << 17, (1u << 31) + 1, UINT32_MAX}) {
        m_.info.lba_size = size;
        connection *g = open_handle(m_, file_);
        gpunvme handle = {};
        gpunvme_file f = {};
        gpunvme_segment rows = {&f, 0, 10};
        gpunvme_table *t;
        handle.forks = handle_forks();
        f.g = &handle;
        f.mount = handle.mounts = g;
        f.users = 1;
        f.fd = f.cached_fd = -1;
        EXPECT_EQ(gpunvme_table_open(&rows, 1, 16, 10, nullptr, &t), -EINVAL);
        EXPECT_NE(std::string(gpunvme_error()).find("LBAs of"), std::string::npos)
            << gpunvme_error();
        close_handle(g);
    }
}

TEST_F(Hostile, ASilentSocketIsGivenUp)
{
    struct gpunvme_buffer *b;
    struct gpunvme_direct *d;
    ASSERT_EQ(open_direct(&d), 0) << gpunvme_error();
    server_.silent = true;
    EXPECT_EQ(buffer_alloc(g_, kPage, &b), -ETIMEDOUT);
    EXPECT_NE(std::string(gpunvme_error()).find("timed out"), std::string::npos) << gpunvme_error();
    server_.silent = false;
}

} // namespace

// Replaces the function of client/lib/connect_ioctl.c.
int gpunvme_ioctl(int, unsigned long request, void *arg, uint32_t size)
{
    switch (request) {
    case GPUNVME_IOC_REGISTER:
        return mount->fail_register;
    case GPUNVME_IOC_UNREGISTER:
        mount->unregistered++;
        while (mount->waits)
            usleep(100);
        return 0;
    case GPUNVME_IOC_BUFFER_IOVA:
        return mount->fail_iova;
    case GPUNVME_IOC_QUEUE_LEASE:
        *static_cast<gpunvme_ioc_queue_lease *>(arg) = mount->queues;
        return mount->fail_queues;
    case GPUNVME_IOC_EXTENT_LEASE:
        *static_cast<gpunvme_ioc_extent_lease *>(arg) = mount->extents;
        return 0;
    case GPUNVME_IOC_SHARE_CALLS:
        return -ENOTTY; // as a mount that does not know it
    case GPUNVME_IOC_OPEN_FILES:
    case GPUNVME_IOC_QUEUES:
    case GPUNVME_IOC_GPUS:
        memset(arg, 0xff, size); // more entries than there is room for, and names without an end
        return 0;
    case GPUNVME_IOC_LEASE_END:
        mount->lease_ends++;
        return 0;
    default:
        abort();
    }
}
