/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/e2e/mounted.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

#include "tests/spawn.h"

namespace
{

// The exit status, or -1 after having killed a process that outlived the bound.
int wait_for(pid_t pid, int seconds)
{
    int status = 0;
    for (int i = 0; i < seconds * 100; i++) {
        if (waitpid(pid, &status, WNOHANG) == pid)
            return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        usleep(10000);
    }
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    return -1;
}

// Removes sim=, which is an option for images, and the comma before it.
std::string without_sim(std::string options)
{
    for (size_t at; (at = options.find("sim=")) != std::string::npos;) {
        size_t from = at > 0 ? at - 1 : 0;
        options.erase(from, options.find(',', at) - from);
    }
    return options;
}

std::string read_file(const std::string &name)
{
    std::ifstream in(name);
    std::stringstream all;
    all << in.rdbuf();
    return all.str();
}

std::string temporary_dir()
{
    const char *tmp = getenv("TMPDIR");
    return tmp ? tmp : "/tmp";
}

// /dev/shm if it has enough space, else the directory for temporary files.
std::string scratch_dir(uint64_t bytes)
{
    struct statvfs st;
    bool fits = statvfs("/dev/shm", &st) == 0 && st.f_bavail * st.f_frsize > 2 * bytes;

    return fits ? "/dev/shm" : temporary_dir();
}

/*
 * Returns mount options for tests in which the memory of another device acts as
 * GPU memory. Mounts whose drive reaches buffers have tier 2, and the others
 * have p2p=off.
 */
std::string options_of_peer(const std::string &options, const std::string &address)
{
    const std::string cpu = "executor=cpu", staged = "executor=cpu_staged";
    const std::string peer = cpu + ",cpu_memory=" + address + ",p2p=";
    size_t at = options.find(staged);

    if (at != std::string::npos)
        return std::string(options).replace(at, staged.size(), peer + "off");
    at = options.find(cpu);
    if (at != std::string::npos)
        return std::string(options).replace(at, cpu.size(), peer + "require");
    return options + (options.empty() ? "" : ",") + peer + "require";
}

} // namespace

int run_program(const std::vector<std::string> &argv, std::string *output, int seconds)
{
    int fd = memfd_create("output", MFD_CLOEXEC);
    int status = wait_for(spawn_program(argv, -1, fd, fd), seconds);
    std::string text = take_text(fd);
    if (output)
        *output = text;
    return status;
}

std::string why_no_mount()
{
    if (geteuid() != 0)
        return "mounting needs root here";
    Fd fd = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return std::string("/dev/fuse: ") + strerror(errno);
    return "";
}

Mounted::Mounted(uint64_t bytes, const std::vector<std::string> &format)
{
    const char *device = getenv("GPUNVME_TEST_DEVICE");
    std::string name = (device ? temporary_dir() : scratch_dir(bytes)) + "/gpunvme-e2e-XXXXXX";
    if (mkdtemp(&name[0]))
        dir_ = name;
    own_image_ = !device;
    image_ = device ? device : dir_ + "/image";
    mountpoint_ = dir_ + "/mnt";
    program_ = GPUNVME_DAEMON;
    mkdir(mountpoint_.c_str(), 0755);
    std::vector<std::string> argv = {GPUNVME_MKFS, "-q", "-s", std::to_string(bytes), image_};
    argv.insert(argv.begin() + 1, format.begin(), format.end());
    if (device)
        argv.insert(argv.begin() + 1, "-f");
    if (noiommu_)
        argv.insert(argv.begin() + 1, "--noiommu");
    std::string output;
    if (run_program(argv, &output) != 0)
        fprintf(stderr, "mkfs.gpunvme failed: %s\n", output.c_str());
}

Mounted::~Mounted()
{
    if (daemon_ > 0 && !unmount())
        fprintf(stderr, "the daemon did not end well:\n%s\n", log().c_str());
    umount2(mountpoint_.c_str(), MNT_DETACH); // a killed daemon leaves its mount
    unlink((dir_ + "/log").c_str());
    if (own_image_)
        unlink(image_.c_str());
    rmdir(mountpoint_.c_str());
    rmdir(dir_.c_str());
}

// FORCE_SYNC: the kernel answers stat(2) of a dead daemon's root from its cache.
bool Mounted::serving() const
{
    struct statx above, here;
    return statx(AT_FDCWD, dir_.c_str(), 0, 0, &above) == 0 &&
           statx(AT_FDCWD, mountpoint_.c_str(), AT_STATX_FORCE_SYNC, STATX_TYPE, &here) == 0 &&
           (above.stx_dev_minor != here.stx_dev_minor || above.stx_dev_major != here.stx_dev_major);
}

bool Mounted::mount(const std::string &options, int input)
{
    std::vector<std::string> argv = {program_, image_, mountpoint_, "-f"};
    std::string suited = options;
    if (!own_image_)
        suited = without_sim(suited);
    if (has_peer_memory())
        suited = options_of_peer(suited, getenv("GPUNVME_CPU_MEMORY"));
    if (!suited.empty())
        argv.insert(argv.end(), {"-o", suited});
    if (noiommu_)
        argv.insert(argv.end(), {"-o", "noiommu"});
    int fd = open((dir_ + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    daemon_ = spawn_program(argv, input, fd, fd);
    close(fd);
    for (int i = 0; i < kProgramSeconds * 100; i++) {
        int status;
        if (serving())
            return true;
        if (waitpid(daemon_, &status, WNOHANG) == daemon_) {
            daemon_ = -1;
            status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
            return false;
        }
        usleep(10000);
    }
    return false;
}

// A process that scans all mounts holds this one open for a moment, as does a
// daemon that received one of its own files: EBUSY is retried.
bool Mounted::let_go()
{
    for (int i = 0; i < 1000; i++) {
        if (umount(mountpoint_.c_str()) == 0)
            return true;
        if (errno != EBUSY)
            break;
        usleep(10000);
    }
    perror(("umount " + mountpoint_).c_str());
    return false;
}

bool Mounted::unmount()
{
    bool unmounted = let_go();
    if (!unmounted) { // a test that failed still has files open
        umount2(mountpoint_.c_str(), MNT_DETACH);
        kill(daemon_, SIGTERM);
    }
    return ended() && unmounted;
}

bool Mounted::ended()
{
    status_ = wait_for(daemon_, kProgramSeconds);
    daemon_ = -1;
    return status_ == 0;
}

int Mounted::fsck(std::string *output)
{
    std::vector<std::string> argv = {GPUNVME_FSCK, "-n", image_};
    if (noiommu_)
        argv.insert(argv.begin() + 1, "--noiommu");
    return run_program(argv, output);
}

std::string Mounted::path(const std::string &name) const
{
    return mountpoint_ + "/" + name;
}

std::string Mounted::log() const
{
    return read_file(dir_ + "/log");
}
