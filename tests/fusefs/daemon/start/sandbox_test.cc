/* SPDX-License-Identifier: BSD-2-Clause */
// The daemon's sandbox: each part is in force in every thread, and the rest is usable.
#include <dirent.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "fusefs/daemon/base/metrics_server.h"
#include "fusefs/daemon/ioctl/fdsocket.h"
#include "fusefs/daemon/start/sandbox.h"
#include "support/confine.h"
#include "tests/e2e/mounted.h"

namespace
{

constexpr uint64_t kImage = 64u << 20;
constexpr uint64_t kKept = 1ull << CAP_IPC_LOCK | 1ull << CAP_SYS_RESOURCE;

// The value of a line of /proc/PID/status; "": there is none.
std::string field(const std::string &path, const std::string &name)
{
    std::ifstream in(path);
    for (std::string line; std::getline(in, line);) {
        if (line.compare(0, name.size() + 1, name + ":") == 0)
            return line.substr(line.find_first_not_of("\t ", name.size() + 1));
    }
    return "";
}

std::vector<std::string> threads_of(pid_t pid)
{
    std::string tasks = "/proc/" + std::to_string(pid) + "/task";
    std::vector<std::string> out;
    DIR *dir = opendir(tasks.c_str());
    while (const dirent *entry = dir ? readdir(dir) : nullptr) {
        if (entry->d_name[0] != '.')
            out.push_back(tasks + "/" + entry->d_name + "/status");
    }
    if (dir)
        closedir(dir);
    return out;
}

// --- The functions, in a child ------------------------------------------------------------------

// errno of a system call that returned this.
int error_of(long result)
{
    return result < 0 ? errno : 0;
}

int try_open(const std::string &path, int flags)
{
    int fd = open(path.c_str(), flags | O_CLOEXEC, 0600);
    int err = error_of(fd);
    if (fd >= 0)
        close(fd);
    return err;
}

int try_thread()
{
    pthread_t thread;
    auto nothing = [](void *) -> void * { return nullptr; };
    int err = pthread_create(&thread, nullptr, nothing, nullptr);
    return err ? err : pthread_join(thread, nullptr);
}

class Sandbox : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        FILE *made = fopen(image_.c_str(), "w");
        ASSERT_NE(made, nullptr);
        fclose(made);
    }
    void TearDown() override { unlink(image_.c_str()); }
    // The number that body returns in a process inside the sandbox; 1000: the sandbox failed.
    int inside(unsigned level, const std::function<int()> &body)
    {
        int ends[2], result = -1;
        if (pipe(ends) != 0)
            return -1;
        pid_t pid = fork();
        if (pid == 0) {
            struct options opts = {};
            struct reason why = {};
            opts.sandbox = level;
            int number = sandbox_enter(&opts, image_.c_str(), &why) ? 1000 : body();
            ssize_t ignored = write(ends[1], &number, sizeof(number));
            (void)ignored;
            _exit(0);
        }
        close(ends[1]);
        if (read(ends[0], &result, sizeof(result)) != static_cast<ssize_t>(sizeof(result)))
            result = -1;
        close(ends[0]);
        waitpid(pid, nullptr, 0);
        return result;
    }

    std::string image_ = ::testing::TempDir() + "sandbox-image-" + std::to_string(getpid());
};

TEST_F(Sandbox, OfFilesPermitsOnlyTheImage)
{
    EXPECT_EQ(inside(SANDBOX_FILES, [&] { return try_open(image_, O_RDWR); }), 0);
    EXPECT_EQ(inside(SANDBOX_FILES, [&] { return try_open("/dev/null", O_RDWR); }), 0);
    for (const char *path : {"/etc/passwd", "/proc/self/status", "/proc/self/exe", "/dev/zero"}) {
        EXPECT_EQ(inside(SANDBOX_CAPS, [&] { return try_open(path, O_RDONLY); }), 0) << path;
        EXPECT_EQ(inside(SANDBOX_FILES, [&] { return try_open(path, O_RDONLY); }), EACCES) << path;
    }
    std::string other = image_ + "-other";
    EXPECT_EQ(inside(SANDBOX_FILES, [&] { return try_open(other, O_WRONLY | O_CREAT); }), EACCES);
    EXPECT_EQ(inside(SANDBOX_FILES, [&] { return error_of(unlink(image_.c_str())); }), EACCES);
}

// A service's standard error is a socket, and /dev/stderr a link to it.
TEST_F(Sandbox, OfFilesWithCudaDoesNotDependOnStandardError)
{
    auto limit = [&](int fd) {
        struct sandbox_files files = {image_.c_str(), false, true};
        return dup2(fd, STDERR_FILENO) < 0 ? 1000 : -sandbox_limit_files(&files);
    };
    int pair[2], memory = memfd_create("stderr", MFD_CLOEXEC);
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    int usual = inside(SANDBOX_CAPS, [&] { return limit(STDERR_FILENO); });
    for (int fd : {memory, pair[0]})
        EXPECT_EQ(inside(SANDBOX_CAPS, [&] { return limit(fd); }), usual);
    EXPECT_TRUE(usual == 0 || usual == ENOSYS) << strerror(usual);
    for (int fd : {memory, pair[0], pair[1]})
        close(fd);
}

TEST_F(Sandbox, OfCapabilitiesKeepsThoseForMemory)
{
    auto effective = [] {
        uint64_t caps = std::stoull(field("/proc/self/status", "CapEff"), nullptr, 16);
        return (caps & ~kKept) == 0 ? 0 : 1;
    };
    EXPECT_EQ(inside(SANDBOX_CAPS, effective), 0);
    if (geteuid() == 0) {
        EXPECT_EQ(inside(SANDBOX_NONE, effective), 1);
    }
}

// The filter decides about most of these calls by their arguments: it refuses
// some uses and permits the harmless one. SandboxTable has further calls.
TEST_F(Sandbox, OfCallsPermitsThreadsAndLooksAtArguments)
{
    if (CONFINE_SANITIZED)
        GTEST_SKIP() << "a sanitizer makes calls of its own";
    if (inside(SANDBOX_FULL, [] { return 0; }) != 0)
        GTEST_SKIP() << "built without libseccomp";
    const rlimit none = {};
    const auto refused = [&](const std::function<long()> &call) {
        return inside(SANDBOX_FULL, [&] { return error_of(call()); });
    };
    EXPECT_EQ(inside(SANDBOX_FULL, try_thread), 0);
    EXPECT_EQ(refused([] { return memfd_create("m", 0); }), 0);
    EXPECT_EQ(refused([] { return setuid(1); }), EPERM);
    EXPECT_EQ(refused([] { return raise(SIGURG); }), 0);
    EXPECT_EQ(refused([] { return syscall(SYS_tgkill, getppid(), getppid(), SIGURG); }), EPERM);
    EXPECT_EQ(refused([] { return syscall(SYS_tkill, getpid(), SIGURG); }), EPERM);
    EXPECT_EQ(refused([] {
                  rlimit now;
                  return prlimit(getppid(), RLIMIT_FSIZE, nullptr, &now);
              }),
              0);
    EXPECT_EQ(refused([&] { return prlimit(getppid(), RLIMIT_FSIZE, &none, nullptr); }), EPERM);
    EXPECT_EQ(refused([&] { return prlimit(0, RLIMIT_FSIZE, &none, nullptr); }), EPERM);
    EXPECT_EQ(refused([] { return setpriority(PRIO_PROCESS, 0, 19); }), 0);
    EXPECT_EQ(refused([] { return setpriority(PRIO_PROCESS, getppid(), 1); }), EPERM);
    EXPECT_EQ(refused([] { return ioctl(0, TIOCSTI, ""); }), EPERM);
    EXPECT_EQ(refused([] { return ioctl(0, TIOCLINUX, "\x03"); }), EPERM);
    EXPECT_EQ(refused([] { return syscall(SYS_io_uring_setup, 1, nullptr); }), EPERM);
    EXPECT_EQ(refused([] { return sendto(-1, "", 1, 0, nullptr, 0); }), EBADF);
    EXPECT_EQ(refused([] {
                  const sockaddr to = {};
                  return sendto(-1, "", 1, 0, &to, sizeof(to));
              }),
              EPERM);
    for (int number : {SYS_bind, SYS_connect, SYS_listen, SYS_socketpair})
        EXPECT_EQ(refused([=] { return syscall(number, -1, 0, 0, 0); }), EPERM) << number;
}

// --- The unit of systemd ------------------------------------------------------------------------

// Returns the values of a key in all its lines of the unit.
std::string unit_values(const std::string &key)
{
    std::ifstream in(GPUNVME_UNIT);
    std::string values = " ";
    for (std::string line; std::getline(in, line);) {
        if (line.compare(0, key.size() + 1, key + "=") == 0)
            values += line.substr(key.size() + 1) + " ";
    }
    return values;
}

// systemd refuses other address families and addresses with errors that end the
// mount.
TEST(SandboxUnit, PermitsEverySocketOfTheDaemon)
{
    const std::vector<std::string> names = {"127.0.0.1:19", "[::1]:19"};
    const std::map<int, std::string> families = {
        {AF_UNIX, " AF_UNIX "}, {AF_INET, " AF_INET "}, {AF_INET6, " AF_INET6 "}};
    const std::string permitted = unit_values("RestrictAddressFamilies");
    for (const std::string &name : names) {
        struct metrics_address address;
        ASSERT_EQ(metrics_address_parse(name.c_str(), &address), 0) << name;
        EXPECT_NE(permitted.find(families.at(address.at.any.sa_family)), std::string::npos) << name;
    }
    int domain = 0, listener = fdsocket_listen();
    socklen_t len = sizeof(domain);
    ASSERT_EQ(getsockopt(listener, SOL_SOCKET, SO_DOMAIN, &domain, &len), 0);
    EXPECT_NE(permitted.find(families.at(domain)), std::string::npos);
    close(listener);
    EXPECT_EQ(unit_values("IPAddressAllow"), " localhost ");
    EXPECT_NE(unit_values("CapabilityBoundingSet").find("CAP_NET_BIND_SERVICE"), std::string::npos)
        << "for ports below 1024, as here";
}

// --- The daemon ---------------------------------------------------------------------------------

class SandboxMount : public MountingTest
{
  protected:
    void use()
    {
        std::ofstream(m.path("file")) << "content";
        std::ifstream in(m.path("file"));
        EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "content");
    }

    Mounted m{kImage};
};

TEST_F(SandboxMount, HoldsEveryThread)
{
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    use();
    std::string filters = CONFINE_SANITIZED || !GPUNVME_SECCOMP ? "0" : "2";
    std::vector<std::string> threads = threads_of(m.pid());
    EXPECT_GT(threads.size(), 10u);
    for (const std::string &status : threads) {
        std::string caps = field(status, "CapEff");
        if (caps.empty())
            continue; // the thread has ended
        EXPECT_EQ(std::stoull(caps, nullptr, 16) & ~kKept, 0u) << status;
        EXPECT_EQ(field(status, "CapPrm"), caps) << status;
        EXPECT_EQ(field(status, "NoNewPrivs"), "1") << status;
        EXPECT_EQ(field(status, "Seccomp"), filters) << status;
    }
    EXPECT_TRUE(m.unmount()) << m.log();
}

TEST_F(SandboxMount, FollowsItsOption)
{
    std::string status;
    ASSERT_TRUE(m.mount("sandbox=none")) << m.log();
    status = "/proc/" + std::to_string(m.pid()) + "/status";
    EXPECT_NE(std::stoull(field(status, "CapEff"), nullptr, 16) & ~kKept, 0u);
    EXPECT_EQ(field(status, "Seccomp"), "0");
    use();
    ASSERT_TRUE(m.unmount()) << m.log();
    ASSERT_TRUE(m.mount("sandbox=caps")) << m.log();
    status = "/proc/" + std::to_string(m.pid()) + "/status";
    EXPECT_EQ(std::stoull(field(status, "CapEff"), nullptr, 16) & ~kKept, 0u);
    EXPECT_EQ(field(status, "Seccomp"), "0");
    use();
    ASSERT_TRUE(m.unmount()) << m.log();
    if (!CONFINE_SANITIZED) { // which opens files
        ASSERT_TRUE(m.mount("sandbox=files")) << m.log();
        use();
        EXPECT_TRUE(m.unmount()) << m.log();
    }
    EXPECT_FALSE(m.mount("sandbox=much"));
    EXPECT_NE(m.log().find("sandbox=much: unknown value"), std::string::npos) << m.log();
    EXPECT_FALSE(m.mount("sandbox=full,gpu=require"));
    EXPECT_NE(m.log().find("sandbox=full: excludes CUDA"), std::string::npos) << m.log();
}

TEST_F(SandboxMount, OpensAnImageOfAnotherUser)
{
    ASSERT_EQ(chown(m.image().c_str(), 1234, 1234), 0);
    ASSERT_EQ(chmod(m.image().c_str(), 0600), 0);
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    use();
    EXPECT_TRUE(m.unmount()) << m.log();
}

// The daemon mounts by another process, which must not survive it, nor keep its mount alive.
TEST_F(SandboxMount, TheMounterEndsWithAKilledDaemon)
{
    ASSERT_TRUE(m.mount("executor=cpu")) << m.log();
    std::string children =
        "/proc/" + std::to_string(m.pid()) + "/task/" + std::to_string(m.pid()) + "/children";
    pid_t mounter = 0;
    std::ifstream(children) >> mounter;
    ASSERT_GT(mounter, 0);
    EXPECT_EQ(field("/proc/" + std::to_string(mounter) + "/status", "Name"), "gpunvmefs-mount");
    ASSERT_EQ(kill(m.pid(), SIGKILL), 0);
    EXPECT_FALSE(m.ended());
    std::string state;
    for (int i = 0; i < 1000; i++) {
        state = field("/proc/" + std::to_string(mounter) + "/status", "State");
        if (state.empty() || state[0] == 'Z')
            break;
        usleep(10000);
    }
    EXPECT_TRUE(state.empty() || state[0] == 'Z') << state;
    ASSERT_TRUE(m.mount()) << m.log();
    EXPECT_TRUE(m.unmount()) << m.log();
}

} // namespace
