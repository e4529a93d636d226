/* SPDX-License-Identifier: BSD-2-Clause */
#include "serve_rig.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gtest/gtest.h>
#include <nvme/types.h>
#include <sstream>
#include <thread>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/fd_message.h"

using Clock = std::chrono::steady_clock;

static constexpr int PATIENCE_MS = 10000;

static std::string new_directory()
{
    std::string name = ::testing::TempDir() + "gpunvme-sim-XXXXXX";
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    return name;
}

[[noreturn]] static void run_child(std::vector<std::string> args, const std::string &err, int out)
{
    std::vector<char *> argv;
    for (std::string &a : args)
        argv.push_back(a.data());
    argv.push_back(nullptr);
    prctl(PR_SET_PDEATHSIG, SIGKILL); // the server ends with a killed test
    setpgid(0, 0); // a process group with a stopped member is hung up when its shell ends
    dup2(out, STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
}

Server::Server(const std::vector<std::string> &args) : dir(new_directory()), path(dir + "/socket")
{
    std::vector<std::string> all = {GPUNVME_SIM};
    all.insert(all.end(), args.begin(), args.end());
    all.push_back(path);
    int out[2];
    EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
    pid = fork();
    if (pid == 0)
        run_child(all, dir + "/err", out[1]);
    close(out[1]);
    std::string line;
    for (char ch; ::read(out[0], &ch, 1) == 1 && ch != '\n';)
        line += ch;
    close(out[0]);
    EXPECT_EQ(line, "listening on " + path) << err();
}

Server::~Server()
{
    if (pid > 0) {
        EXPECT_EQ(stop(), 0) << err();
    }
    std::filesystem::remove_all(dir);
}

int Server::stop(int sig)
{
    int status = 0;
    kill(pid, sig);
    auto end = Clock::now() + std::chrono::milliseconds(PATIENCE_MS);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (Clock::now() > end) {
            ADD_FAILURE() << "the server does not end";
            kill(pid, SIGKILL);
            end += std::chrono::hours(1);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool Server::alive()
{
    return kill(pid, 0) == 0 && waitpid(pid, nullptr, WNOHANG) == 0;
}

void Server::pause()
{
    siginfo_t info = {};

    kill(pid, SIGSTOP);
    // SIGSTOP is asynchronous: the parent is told when the last thread has stopped.
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED), 0);
    EXPECT_EQ(info.si_code, CLD_STOPPED);
}

void Server::go_on()
{
    kill(pid, SIGCONT);
}

Holdings Server::holdings() const
{
    std::string proc = "/proc/" + std::to_string(pid);
    Holdings h = {};
    for ([[maybe_unused]] const auto &e : std::filesystem::directory_iterator(proc + "/fd"))
        h.fds++;
    std::ifstream maps(proc + "/maps");
    for (std::string line; std::getline(maps, line);)
        h.maps += line.find("memfd:") != std::string::npos;
    return h;
}

std::string Server::err() const
{
    std::ifstream in(dir + "/err");
    std::stringstream s;
    s << in.rdbuf();
    return s.str();
}

int make_memfd(size_t bytes)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
    return fd;
}

Bytes message(uint16_t command, const Bytes &payload, uint16_t id, uint32_t flags)
{
    struct vfio_user_header h = {};
    h.id = id;
    h.command = command;
    h.size = static_cast<uint32_t>(sizeof(h) + payload.size());
    h.flags = flags;
    // Not insert(): gcc 12 warns at -O3 of an access out of bounds.
    const Bytes head = bytes_of(h);
    Bytes all(h.size);
    std::copy(payload.begin(), payload.end(), std::copy(head.begin(), head.end(), all.begin()));
    return all;
}

Client::Client(const std::string &path, bool greet)
    : sock(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0))
{
    struct sockaddr_un sa = {};
    sa.sun_family = AF_UNIX;
    strncpy(sa.sun_path, path.c_str(), sizeof(sa.sun_path) - 1);
    EXPECT_EQ(connect(sock, reinterpret_cast<struct sockaddr *>(&sa), sizeof(sa)), 0);
    if (greet) {
        EXPECT_EQ(version(0, 1, "{\"capabilities\":{\"max_msg_fds\":8}}").error(), 0);
    }
}

Client::~Client()
{
    close(sock);
}

void Client::send(const Bytes &raw, const std::vector<int> &fds)
{
    /* A closed connection is detected by receive(). */
    [[maybe_unused]] ssize_t n =
        fd_message_send(sock, raw.data(), raw.size(), fds.data(), fds.size(), 0);
}

/*
 * Receives len bytes and at most one descriptor; false if the connection ends
 * first.
 */
static bool receive_all(int sock, void *to, size_t len, int *fd)
{
    for (size_t have = 0; have < len;) {
        struct pollfd p = {sock, POLLIN, 0};
        if (poll(&p, 1, PATIENCE_MS) != 1)
            return false;
        fd_message in = {};
        ssize_t n = fd_message_receive(sock, static_cast<char *>(to) + have, len - have, &in, 1, 0);
        if (n <= 0)
            return false;
        if (in.n)
            *fd = in.fd[0];
        have += static_cast<size_t>(n);
    }
    return true;
}

Reply Client::receive()
{
    Reply r;
    r.closed = !receive_all(sock, &r.head, sizeof(r.head), &r.fd) || r.head.size < sizeof(r.head) ||
               r.head.size > 1 << 20;
    if (r.closed)
        return r;
    r.data.resize(r.head.size - sizeof(r.head));
    r.closed = !receive_all(sock, r.data.data(), r.data.size(), &r.fd);
    /* Common to all replies. */
    EXPECT_EQ(r.head.flags & VFIO_USER_TYPE_MASK, VFIO_USER_TYPE_REPLY);
    bool failed = r.head.flags & VFIO_USER_ERROR;
    EXPECT_EQ(failed, r.head.error != 0);
    EXPECT_TRUE(!failed || r.data.empty());
    return r;
}

Reply Client::call(uint16_t command, const Bytes &payload, const std::vector<int> &fds,
                   uint32_t flags)
{
    uint16_t id = next_id++;
    send(message(command, payload, id, flags), fds);
    Reply r = receive();
    if (!r.closed) {
        EXPECT_EQ(r.head.id, id);
        EXPECT_EQ(r.head.command, command);
    }
    return r;
}

Reply Client::version(uint16_t major, uint16_t minor, const std::string &json, bool nul)
{
    struct vfio_user_version v = {major, minor};
    Bytes payload = bytes_of(v);
    payload.insert(payload.end(), json.begin(), json.end());
    if (nul)
        payload.push_back(0);
    return call(VFIO_USER_VERSION, payload);
}

Reply Client::region_info(uint32_t index, uint32_t argsz)
{
    struct vfio_region_info i = {};
    i.argsz = argsz;
    i.index = index;
    return call(VFIO_USER_DEVICE_GET_REGION_INFO, bytes_of(i));
}

Reply Client::read(uint32_t region, uint64_t offset, uint32_t count)
{
    struct vfio_user_region_access a = {offset, region, count};
    return call(VFIO_USER_REGION_READ, bytes_of(a));
}

int Client::write(uint32_t region, uint64_t offset, const Bytes &data)
{
    struct vfio_user_region_access a = {offset, region, static_cast<uint32_t>(data.size())};
    Bytes payload = bytes_of(a);
    payload.insert(payload.end(), data.begin(), data.end());
    return call(VFIO_USER_REGION_WRITE, payload).error();
}

uint32_t Client::read32(uint64_t offset)
{
    return read(VFIO_PCI_BAR0_REGION_INDEX, offset, 4)
        .as<uint32_t>(sizeof(struct vfio_user_region_access));
}

uint64_t Client::read64(uint64_t offset)
{
    return read(VFIO_PCI_BAR0_REGION_INDEX, offset, 8)
        .as<uint64_t>(sizeof(struct vfio_user_region_access));
}

int Client::write32(uint64_t offset, uint32_t v)
{
    return write(VFIO_PCI_BAR0_REGION_INDEX, offset, bytes_of(v));
}

int Client::write64(uint64_t offset, uint64_t v)
{
    return write(VFIO_PCI_BAR0_REGION_INDEX, offset, bytes_of(v));
}

int Client::bus_master(bool on)
{
    uint16_t command = on ? 0x0406 : 0x0402;
    return write(VFIO_PCI_CONFIG_REGION_INDEX, 4, bytes_of(command));
}

int Client::map(uint64_t iova, uint64_t size, int fd, uint64_t offset, uint32_t flags)
{
    struct vfio_user_dma_map m = {sizeof(m), flags, offset, iova, size};
    std::vector<int> fds;
    if (fd >= 0)
        fds.push_back(fd);
    return call(VFIO_USER_DMA_MAP, bytes_of(m), fds).error();
}

int Client::unmap(uint64_t iova, uint64_t size)
{
    struct vfio_user_dma_unmap u = {sizeof(u), 0, iova, size};
    Reply r = call(VFIO_USER_DMA_UNMAP, bytes_of(u));
    EXPECT_EQ(r.data, r.error() ? Bytes() : bytes_of(u)) << "the reply repeats the request";
    return r.error();
}

/* Rings of queue q: the SQ at q * 0x10000, the CQ at q * 0x10000 + 0x8000. */
static constexpr size_t RINGS = 0x10000, CQ = 0x8000;

Driver::Driver(Client &client, bool mapped_doorbells) : c(client), fd(make_memfd(BYTES))
{
    memory = static_cast<unsigned char *>(
        mmap(nullptr, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    EXPECT_NE(memory, MAP_FAILED);
    EXPECT_EQ(c.map(IOVA, BYTES, fd), 0);
    if (!mapped_doorbells)
        return;
    Reply r = c.region_info(VFIO_PCI_BAR0_REGION_INDEX);
    auto info = r.as<struct vfio_region_info>();
    auto area = r.as<struct vfio_region_sparse_mmap_area>(
        info.cap_offset + sizeof(struct vfio_region_info_cap_sparse_mmap));
    void *p = mmap(nullptr, area.size, PROT_READ | PROT_WRITE, MAP_SHARED, r.fd,
                   static_cast<off_t>(info.offset + area.offset));
    EXPECT_NE(p, MAP_FAILED);
    doorbells = static_cast<volatile uint32_t *>(p);
    close(r.fd);
}

Driver::~Driver()
{
    munmap(memory, BYTES);
    close(fd);
    if (doorbells)
        munmap(const_cast<uint32_t *>(doorbells), 4096);
}

static uint32_t wait_ready(Client &c, uint32_t ready)
{
    auto end = Clock::now() + std::chrono::milliseconds(PATIENCE_MS);
    uint32_t csts = c.read32(NVME_REG_CSTS);
    while ((csts & NVME_CSTS_READY) != ready && !(csts & NVME_CSTS_FATAL) && Clock::now() < end)
        csts = c.read32(NVME_REG_CSTS);
    return csts;
}

uint32_t Driver::enable()
{
    memset(memory, 0, 2 * RINGS);
    for (unsigned q = 0; q < 2; q++) {
        tail[q] = head[q] = 0;
        phase[q] = 1;
    }
    c.write32(NVME_REG_AQA, (DEPTH - 1) | (DEPTH - 1) << 16);
    c.write64(NVME_REG_ASQ, IOVA);
    c.write64(NVME_REG_ACQ, IOVA + CQ);
    c.write32(NVME_REG_CC,
              NVME_CC_ENABLE | 6u << NVME_CC_IOSQES_SHIFT | 4u << NVME_CC_IOCQES_SHIFT);
    return wait_ready(c, NVME_CSTS_READY);
}

uint32_t Driver::disable()
{
    c.write32(NVME_REG_CC, 0);
    return wait_ready(c, 0);
}

void Driver::create_io_queue()
{
    struct nvme_sqe s = {};
    s.opcode = NVME_ADMIN_CREATE_CQ;
    s.prp1 = IOVA + RINGS + CQ;
    s.cdw10 = 1 | (DEPTH - 1) << 16;
    s.cdw11 = 1;
    EXPECT_EQ(run(0, s), 0);
    s.opcode = NVME_ADMIN_CREATE_SQ;
    s.prp1 = IOVA + RINGS;
    s.cdw11 = 1 | 1 << 16;
    EXPECT_EQ(run(0, s), 0);
}

void Driver::doorbell(unsigned index, uint32_t v)
{
    /* Release: the SQE is visible, or CQEs are read, before the doorbell. */
    if (doorbells)
        __atomic_store_n(&doorbells[index], v, __ATOMIC_RELEASE);
    else
        c.write32(NVME_REG_DOORBELLS + 4 * index, v);
}

uint16_t Driver::run(unsigned qid, struct nvme_sqe sqe, unsigned wait_ms)
{
    auto *sq = reinterpret_cast<struct nvme_sqe *>(memory + qid * RINGS);
    auto *cq = reinterpret_cast<struct nvme_cqe *>(memory + qid * RINGS + CQ);
    sqe.cid = static_cast<uint16_t>(tail[qid]);
    sq[tail[qid]] = sqe;
    tail[qid] = (tail[qid] + 1) % DEPTH;
    doorbell(2 * qid, tail[qid]);
    auto end = Clock::now() + std::chrono::milliseconds(wait_ms);
    auto *last = &cq[head[qid]].status;
    /* Acquire: data and the rest of the CQE are read after the phase. */
    while ((__atomic_load_n(last, __ATOMIC_ACQUIRE) & 1) != phase[qid]) {
        if (Clock::now() > end)
            return 0xffff;
        std::this_thread::yield();
    }
    uint16_t status = NVME_STATUS(*last);
    head[qid] = (head[qid] + 1) % DEPTH;
    phase[qid] ^= head[qid] == 0;
    doorbell(2 * qid + 1, head[qid]);
    return status;
}

uint16_t Driver::identify(unsigned wait_ms, uint64_t to)
{
    struct nvme_sqe s = {};
    s.opcode = NVME_ADMIN_IDENTIFY;
    s.prp1 = to;
    s.cdw10 = NVME_CNS_CTRL;
    return run(0, s, wait_ms);
}

uint16_t Driver::rw(uint8_t opcode, uint64_t lba, unsigned wait_ms)
{
    struct nvme_sqe s = {};
    s.opcode = opcode;
    s.nsid = 1;
    s.prp1 = IOVA + DATA;
    s.cdw10 = static_cast<uint32_t>(lba);
    return run(1, s, wait_ms);
}

EnabledDriver::EnabledDriver(Client &client) : Driver(client)
{
    EXPECT_EQ(c.bus_master(), 0);
    EXPECT_EQ(enable(), NVME_CSTS_READY);
}
