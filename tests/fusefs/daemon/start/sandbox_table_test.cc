/* SPDX-License-Identifier: BSD-2-Clause */
// Tests the table of SECURITY.md. A thread of the live daemon makes the system
// calls of each cell under ptrace(2). Without a GPU, a process that enters the
// same sandbox replaces the daemon for the column of CUDA.
#include <fcntl.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fusefs/daemon/start/sandbox.h"
#include "support/confine.h"
#include "tests/e2e/mounted.h"

#if defined(__x86_64__)

namespace
{

// --- A process that makes system calls ----------------------------------------------------------

class Caller
{
  public:
    virtual ~Caller() = default;
    // Makes a system call, and returns its result or -errno.
    virtual long call(long number, const std::vector<uint64_t> &arguments) = 0;
    // Copies bytes into the process, and returns their address. The next copy overwrites them.
    virtual uint64_t put(const void *bytes, size_t len) = 0;
    uint64_t put(const std::string &text) { return put(text.c_str(), text.size() + 1); }
};

// Calls made by the test process itself.
class Self : public Caller
{
  public:
    long call(long number, const std::vector<uint64_t> &arguments) override
    {
        std::vector<uint64_t> a(arguments);
        a.resize(6);
        long result = syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
        return result < 0 ? -errno : result;
    }
    uint64_t put(const void *bytes, size_t len) override
    {
        memcpy(room_, bytes, len);
        return reinterpret_cast<uint64_t>(room_);
    }

  private:
    char room_[256] = {};
};

// Calls made by the main thread of another process, which waits in a system
// call. At the end the registers are restored, and the kernel repeats that
// call.
class Traced : public Caller
{
  public:
    explicit Traced(pid_t pid) : pid_(pid)
    {
        int status;
        if (ptrace(PTRACE_SEIZE, pid, 0, 0) != 0 || ptrace(PTRACE_INTERRUPT, pid, 0, 0) != 0 ||
            waitpid(pid, &status, __WALL) != pid)
            return;
        errno = 0;
        if (ptrace(PTRACE_GETREGS, pid, 0, &saved_) != 0)
            return;
        long text = ptrace(PTRACE_PEEKTEXT, pid, saved_.rip - 2, 0);
        stopped_ = !errno && (text & 0xffff) == 0x050f; // the instruction syscall
    }
    ~Traced() override
    {
        if (stopped_)
            ptrace(PTRACE_SETREGS, pid_, 0, &saved_);
        ptrace(PTRACE_DETACH, pid_, 0, 0);
    }
    bool stopped() const { return stopped_; }
    long call(long number, const std::vector<uint64_t> &arguments) override
    {
        std::vector<uint64_t> a(arguments);
        a.resize(6);
        user_regs_struct r = saved_;
        r.rip -= 2;
        r.orig_rax = -1ull; // the kernel must not repeat a call
        r.rax = static_cast<uint64_t>(number);
        r.rdi = a[0];
        r.rsi = a[1];
        r.rdx = a[2];
        r.r10 = a[3];
        r.r8 = a[4];
        r.r9 = a[5];
        int status;
        if (ptrace(PTRACE_SETREGS, pid_, 0, &r) != 0 ||
            ptrace(PTRACE_SINGLESTEP, pid_, 0, 0) != 0 || waitpid(pid_, &status, __WALL) != pid_ ||
            !WIFSTOPPED(status) || ptrace(PTRACE_GETREGS, pid_, 0, &r) != 0)
            return -ESRCH;
        return static_cast<long>(r.rax);
    }
    // The bytes are far below the part of the stack that is in use.
    uint64_t put(const void *bytes, size_t len) override
    {
        uint64_t to = (saved_.rsp - 4096) & ~15ull;
        iovec from = {const_cast<void *>(bytes), len}, there = {reinterpret_cast<void *>(to), len};
        EXPECT_EQ(process_vm_writev(pid_, &from, 1, &there, 1, 0), static_cast<ssize_t>(len));
        return to;
    }

  private:
    pid_t pid_;
    bool stopped_ = false;
    user_regs_struct saved_ = {};
};

// --- The attempts -------------------------------------------------------------------------------

// Objects outside the sandbox that the attempts try to reach.
struct Outside {
    Outside()
    {
        victim = fork();
        if (victim == 0)
            for (;;)
                pause();
        path = ::testing::TempDir() + "sandbox-socket-" + std::to_string(getpid());
        unlink(path.c_str());
        named = listen_on(path);
        abstract = listen_on(std::string(1, '\0') + "sandbox-socket-" + std::to_string(getpid()));
    }
    ~Outside()
    {
        kill(victim, SIGKILL);
        waitpid(victim, nullptr, 0);
        for (int fd : {named, abstract})
            close(fd);
        unlink(path.c_str());
    }
    static sockaddr_un address(const std::string &name)
    {
        sockaddr_un a = {};
        a.sun_family = AF_UNIX;
        memcpy(a.sun_path, name.data(), name.size());
        return a;
    }
    static int listen_on(const std::string &name)
    {
        sockaddr_un a = address(name);
        auto len = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr *>(&a), len), 0);
        EXPECT_EQ(listen(fd, 8), 0);
        return fd;
    }
    pid_t victim;
    std::string path;
    int named, abstract;
};

uint64_t bits(long value)
{
    return static_cast<uint64_t>(value);
}

long open_file(Caller &c, const std::string &path, int flags)
{
    long fd = c.call(SYS_openat, {bits(AT_FDCWD), c.put(path), bits(flags | O_CLOEXEC)});
    if (fd >= 0)
        c.call(SYS_close, {bits(fd)});
    return fd;
}

long connect_to(Caller &c, const std::string &name)
{
    sockaddr_un a = Outside::address(name);
    uint64_t len = offsetof(sockaddr_un, sun_path) + name.size();
    long fd = c.call(SYS_socket, {AF_UNIX, SOCK_STREAM, 0});
    if (fd < 0)
        return fd;
    long result = c.call(SYS_connect, {bits(fd), c.put(&a, sizeof(a)), len});
    c.call(SYS_close, {bits(fd)});
    return result;
}

long network(Caller &c)
{
    for (int family : {AF_INET, AF_INET6, AF_NETLINK, AF_PACKET}) {
        long fd = c.call(SYS_socket, {bits(family), SOCK_DGRAM, 0});
        if (fd >= 0) {
            c.call(SYS_close, {bits(fd)});
            return fd;
        }
    }
    return -EPERM;
}

long make_executable(Caller &c)
{
    constexpr uint64_t kLen = 4096;
    long at = c.call(SYS_mmap,
                     {0, kLen, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, bits(-1), 0});
    if (at < 0)
        return at;
    long result = c.call(SYS_mprotect, {bits(at), kLen, PROT_READ | PROT_EXEC});
    c.call(SYS_munmap, {bits(at), kLen});
    return result;
}

long limit(Caller &c, pid_t pid)
{
    rlimit core = {};
    EXPECT_EQ(prlimit(pid, RLIMIT_CORE, nullptr, &core), 0);
    return c.call(SYS_prlimit64, {bits(pid), RLIMIT_CORE, c.put(&core, sizeof(core)), 0});
}

// The flags are invalid, so no attempt creates a process.
long make_process(Caller &c)
{
    return c.call(SYS_clone, {CLONE_SIGHAND | SIGCHLD, 0, 0, 0, 0});
}

using Attempt = std::function<long(Caller &, const Outside &)>;

// The signal is one that is ignored by default.
constexpr uint64_t kSignal = SIGURG;

const std::map<std::string, Attempt> kAttempts = {
    {"to open the image", nullptr}, // depends on the mount
    {"to open a file that any user can read",
     [](Caller &c, const Outside &) { return open_file(c, "/etc/passwd", O_RDONLY); }},
    {"to open a file that only root can read",
     [](Caller &c, const Outside &) { return open_file(c, "/etc/shadow", O_RDONLY); }},
    {"to start a program",
     [](Caller &c, const Outside &) {
         return c.call(SYS_execve, {c.put("/nowhere"), 0, 0});
     }},
    {"to start a process", [](Caller &c, const Outside &) { return make_process(c); }},
    {"a socket of the network", [](Caller &c, const Outside &) { return network(c); }},
    {"to connect to a UNIX socket with a path",
     [](Caller &c, const Outside &o) { return connect_to(c, o.path); }},
    {"to connect to an abstract UNIX socket",
     [](Caller &c, const Outside &) {
         return connect_to(c, std::string(1, '\0') + "sandbox-socket-" + std::to_string(getpid()));
     }},
    {"to signal another process",
     [](Caller &c, const Outside &o) {
         long killed = c.call(SYS_kill, {bits(o.victim), kSignal});
         long sent = c.call(SYS_tgkill, {bits(o.victim), bits(o.victim), kSignal});
         return killed < 0 ? sent : killed;
     }},
    {"to change limits of another process",
     [](Caller &c, const Outside &o) { return limit(c, o.victim); }},
    {"to trace another process",
     [](Caller &c, const Outside &o) {
         return c.call(SYS_ptrace, {PTRACE_SEIZE, bits(o.victim), 0, 0});
     }},
    {"to mount or unmount",
     [](Caller &c, const Outside &) {
         return c.call(SYS_fsopen, {c.put("tmpfs"), FSOPEN_CLOEXEC});
     }},
    {"executable memory", [](Caller &c, const Outside &) { return make_executable(c); }},
};

// --- The table ----------------------------------------------------------------------------------

using Row = std::map<std::string, std::string>; // column -> cell

std::vector<std::string> cells_of(const std::string &line)
{
    std::vector<std::string> cells;
    std::stringstream in(line.substr(1));
    for (std::string cell; std::getline(in, cell, '|');) {
        size_t first = cell.find_first_not_of(' '), last = cell.find_last_not_of(' ');
        cells.push_back(first == std::string::npos ? "" : cell.substr(first, last - first + 1));
    }
    return cells;
}

// Returns the rows of the table whose head begins with "attempt".
std::map<std::string, Row> read_table()
{
    std::map<std::string, Row> rows;
    std::vector<std::string> head;
    std::ifstream in(GPUNVME_SECURITY_MD);
    for (std::string line; std::getline(in, line);) {
        if (line.empty() || line[0] != '|') {
            head.clear();
            continue;
        }
        std::vector<std::string> cells = cells_of(line);
        if (cells[0] == "attempt")
            head = cells;
        else if (!head.empty() && cells[0][0] != '-')
            for (size_t i = 1; i < cells.size(); i++)
                rows[cells[0]][head[i]] = cells[i];
    }
    return rows;
}

class SandboxTable : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        if (CONFINE_SANITIZED)
            GTEST_SKIP() << "a sanitizer makes calls and opens files of its own";
        if (!GPUNVME_SECCOMP)
            GTEST_SKIP() << "built without libseccomp";
        if (geteuid() != 0)
            GTEST_SKIP() << "the cells are those of root's daemon";
        int rules = confine_files_begin(0);
        if (rules < 0)
            GTEST_SKIP() << "this kernel has no Landlock";
        close(rules);
    }
    // Returns "yes" or "no" like the table. EPERM and EACCES are the errors of
    // a refusal.
    static std::string verdict(long result)
    {
        return result == -EPERM || result == -EACCES ? "no" : "yes";
    }
    void check(Caller &c, const std::string &column, const std::string &image)
    {
        const std::map<std::string, Row> rows = read_table();
        EXPECT_EQ(rows.size(), kAttempts.size());
        for (const auto &[name, row] : rows) {
            auto attempt = kAttempts.find(name);
            ASSERT_NE(attempt, kAttempts.end()) << name;
            ASSERT_TRUE(row.count(column)) << column;
            if (name == "to connect to an abstract UNIX socket" && !scopes())
                continue; // this kernel has no scopes; the document says so
            long result =
                attempt->second ? attempt->second(c, outside_) : open_file(c, image, O_RDWR);
            EXPECT_EQ(verdict(result), row.at(column)) << name << ", " << column << ": " << result;
        }
    }
    // Returns true if this version of Landlock has scopes.
    static bool scopes() { return syscall(SYS_landlock_create_ruleset, nullptr, 0, 1) >= 6; }
    Outside outside_;
};

class SandboxLevels : public SandboxTable, public ::testing::WithParamInterface<const char *>
{
};

TEST_P(SandboxLevels, MatchTheDaemon)
{
    if (!why_no_mount().empty())
        GTEST_SKIP() << why_no_mount();
    Mounted m(64u << 20);
    ASSERT_TRUE(m.mount(std::string("executor=cpu,sandbox=") + GetParam())) << m.log();
    {
        Traced daemon(m.pid());
        ASSERT_TRUE(daemon.stopped());
        ASSERT_EQ(daemon.call(SYS_getpid, {}), m.pid());
        check(daemon, std::string("`") + GetParam() + "`", m.image());
        for (const char *other : {"/", "/proc/self/status"})
            EXPECT_EQ(open_file(daemon, other, O_RDONLY) < 0, GetParam() != std::string("caps"))
                << other;
    }
    std::ofstream(m.path("file")) << "content";
    EXPECT_TRUE(m.unmount()) << m.log();
}

INSTANTIATE_TEST_SUITE_P(Levels, SandboxLevels, ::testing::Values("caps", "files", "full"));

// The process has only the capabilities that the daemon keeps for CUDA, because
// one attempt is ptrace(2).
TEST_F(SandboxTable, MatchesTheDaemonWithCuda)
{
    std::string image = ::testing::TempDir() + "sandbox-cuda-" + std::to_string(getpid());
    std::ofstream(image).put('x');
    pid_t pid = fork();
    if (pid == 0) {
        Self self;
        const struct sandbox_files files = {image.c_str(), false, true};
        const uint64_t kept =
            1ull << CAP_IPC_LOCK | 1ull << CAP_SYS_RESOURCE | 1ull << CAP_SYS_PTRACE;
        if (confine_privileges() || sandbox_limit_files(&files) || confine_capabilities(kept) ||
            confine_calls(false))
            _exit(2);
        check(self, "`files`, CUDA", image);
        _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    unlink(image.c_str());
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
}

} // namespace

#endif
