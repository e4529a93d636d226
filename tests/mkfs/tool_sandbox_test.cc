/* SPDX-License-Identifier: BSD-2-Clause */
// Tests that the tools are in their sandbox when they read the first byte of an
// image.
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/confine.h"

namespace
{

constexpr uint64_t kKept =
    1ull << CAP_IPC_LOCK | 1ull << CAP_SYS_RESOURCE | 1ull << CAP_DAC_OVERRIDE;

std::string field(pid_t pid, const std::string &name)
{
    std::ifstream in("/proc/" + std::to_string(pid) + "/status");
    for (std::string line; std::getline(in, line);) {
        if (line.compare(0, name.size() + 1, name + ":") == 0)
            return line.substr(line.find_first_not_of("\t ", name.size() + 1));
    }
    return "";
}

bool is_read(uint64_t number)
{
    return number == SYS_read || number == SYS_pread64 || number == SYS_readv ||
           number == SYS_preadv || number == SYS_preadv2;
}

// The reads of the image by a traced program.
struct Seen {
    unsigned reads = 0, outside = 0; // all reads, and those outside a sandbox
    int status = -1;
};

class ToolSandbox : public ::testing::Test
{
  protected:
    void SetUp() override
    {
        image_ = ::testing::TempDir() + "tool-sandbox-" + std::to_string(getpid());
        unlink(image_.c_str());
        ASSERT_EQ(run({MKFS, "-q", "-s", "64M", image_}).status, 0);
    }
    void TearDown() override { unlink(image_.c_str()); }
    bool reads_image(pid_t pid, const __ptrace_syscall_info &call) const
    {
        char to[PATH_MAX];
        std::string link =
            "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(call.entry.args[0]);
        ssize_t n = is_read(call.entry.nr) ? readlink(link.c_str(), to, sizeof(to)) : -1;
        return n > 0 && std::string(to, static_cast<size_t>(n)) == image_;
    }
    static bool is_confined(pid_t pid)
    {
        std::string filters = CONFINE_SANITIZED || !GPUNVME_SECCOMP ? "0" : "2";
        return field(pid, "NoNewPrivs") == "1" && field(pid, "Seccomp") == filters &&
               (std::stoull(field(pid, "CapEff"), nullptr, 16) & ~kKept) == 0;
    }
    Seen run(const std::vector<std::string> &words)
    {
        std::vector<char *> argv;
        for (const std::string &word : words)
            argv.push_back(const_cast<char *>(word.c_str()));
        argv.push_back(nullptr);
        pid_t pid = fork();
        if (pid == 0) {
            if (CONFINE_SANITIZED) // the leak check does not work under ptrace
                setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
            ptrace(PTRACE_TRACEME, 0, 0, 0);
            raise(SIGSTOP);
            dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDOUT_FILENO);
            execv(argv[0], argv.data());
            _exit(127);
        }
        Seen seen;
        int status, signal = 0;
        while (waitpid(pid, &status, 0) == pid && WIFSTOPPED(status)) {
            __ptrace_syscall_info call;
            if (WSTOPSIG(status) == SIGSTOP)
                ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
            else if (WSTOPSIG(status) != (SIGTRAP | 0x80) && WSTOPSIG(status) != SIGTRAP)
                signal = WSTOPSIG(status);
            else if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(call), &call) > 0 &&
                     call.op == PTRACE_SYSCALL_INFO_ENTRY && reads_image(pid, call)) {
                seen.reads++;
                seen.outside += !is_confined(pid);
            }
            ptrace(PTRACE_SYSCALL, pid, 0, signal);
            signal = 0;
        }
        seen.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        return seen;
    }
    void expect_confined(const std::vector<std::string> &words)
    {
        Seen seen = run(words);
        EXPECT_EQ(seen.status, 0) << words[0];
        EXPECT_GT(seen.reads, 0u) << words[0];
        EXPECT_EQ(seen.outside, 0u) << words[0];
    }

    std::string image_;
};

TEST_F(ToolSandbox, IsEnteredBeforeTheImageIsRead)
{
    expect_confined({FSCK, "-n", image_});
    expect_confined({FSCK, "-y", image_});
    expect_confined({DUMP, image_});
    expect_confined({TUNE, "-L", "label", image_});
    expect_confined({MKFS, "-q", "-f", image_});
}

// Options that need a file besides the image work in the sandbox.
TEST_F(ToolSandbox, PermitsWhatTheToolsDo)
{
    std::string report = image_ + "-report";
    expect_confined({TUNE, "-s", "128M", image_});
    expect_confined({TUNE, "-s", "64M", image_});
    expect_confined({MKFS, "-q", "-f", "-s", "256M", image_});
    std::ofstream(report) << std::string(1000, 'x');
    expect_confined({FSCK, "-y", "--report=" + report, image_});
    std::ifstream in(report);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    EXPECT_NE(text.find("\"losses\""), std::string::npos) << text;
    EXPECT_EQ(text.find("xx"), std::string::npos) << "the former contents are gone";
    unlink(report.c_str());
}

} // namespace
