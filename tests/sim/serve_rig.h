/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * gpunvme-sim as a process, and a client that composes each message byte by
 * byte.
 */
#ifndef TESTS_SIM_SERVE_RIG_H
#define TESTS_SIM_SERVE_RIG_H

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <sys/types.h>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio_user/vfio_user_spec.h"
#include "tests/fd.h"

/* Counts of resources of a process, to detect leaks. */
struct Holdings {
    size_t fds, maps;
};

struct Server {
    explicit Server(const std::vector<std::string> &args = {});
    ~Server();
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;

    /*
     * Sends the signal and waits. Returns the exit status, -1: ended by a
     * signal.
     */
    int stop(int sig = 15);
    bool alive();
    /* SIGSTOP, and waits until no thread of the server runs. */
    void pause();
    void go_on();
    Holdings holdings() const;
    std::string err() const; /* its stderr */

    std::string dir, path;
    pid_t pid;
};

using Bytes = std::vector<unsigned char>;

template <class T> Bytes bytes_of(const T &v)
{
    auto *p = reinterpret_cast<const unsigned char *>(&v);

    return Bytes(p, p + sizeof(v));
}

struct Reply {
    bool closed = false; /* the connection has ended, or no reply came in ten seconds */
    struct vfio_user_header head = {};
    Bytes data;
    int fd = -1;

    template <class T> T as(size_t at = 0) const
    {
        T v = {};
        if (data.size() >= at + sizeof(v))
            memcpy(&v, data.data() + at, sizeof(v));
        return v;
    }
    /* 0, the errno of the reply, or -1: the connection has ended */
    int error() const { return closed ? -1 : static_cast<int>(head.error); }
};

struct Client {
    explicit Client(const std::string &path, bool greet = true);
    ~Client();
    Client(const Client &) = delete;
    Client &operator=(const Client &) = delete;

    void send(const Bytes &raw, const std::vector<int> &fds = {});
    Reply receive();
    Reply call(uint16_t command, const Bytes &payload = {}, const std::vector<int> &fds = {},
               uint32_t flags = 0);
    Reply version(uint16_t major, uint16_t minor, const std::string &json, bool nul = true);
    Reply region_info(uint32_t index, uint32_t argsz = 4096);
    Reply read(uint32_t region, uint64_t offset, uint32_t count);
    int write(uint32_t region, uint64_t offset, const Bytes &data);
    uint32_t read32(uint64_t offset);
    uint64_t read64(uint64_t offset);
    int write32(uint64_t offset, uint32_t v);
    int write64(uint64_t offset, uint64_t v);
    int bus_master(bool on = true);
    int map(uint64_t iova, uint64_t size, int fd, uint64_t offset = 0, uint32_t flags = 3);
    int unmap(uint64_t iova, uint64_t size);

    int sock;
    uint16_t next_id = 100;
};

Bytes message(uint16_t command, const Bytes &payload, uint16_t id = 7, uint32_t flags = 0);

/* A minimal driver: admin queue and one I/O queue in its own memfd. */
struct Driver {
    explicit Driver(Client &client, bool mapped_doorbells = true);
    ~Driver();
    Driver(const Driver &) = delete;
    Driver &operator=(const Driver &) = delete;

    /* Enables the controller. Returns CSTS, ready or failed. */
    uint32_t enable();
    uint32_t disable();
    void create_io_queue();
    /*
     * Runs one command. Returns its status; 0xffff: no completion in wait_ms.
     */
    uint16_t run(unsigned qid, struct nvme_sqe sqe, unsigned wait_ms = 10000);
    uint16_t identify(unsigned wait_ms = 10000, uint64_t to = IOVA + DATA);
    uint16_t rw(uint8_t opcode, uint64_t lba, unsigned wait_ms = 10000);
    void doorbell(unsigned index, uint32_t v);

    static constexpr uint64_t IOVA = 0x10000000;
    static constexpr size_t BYTES = 1 << 20;
    static constexpr size_t DATA = 0x40000; /* offset of the page that commands use */
    static constexpr uint32_t DEPTH = 16;

    Client &c;
    int fd;
    unsigned char *memory;
    volatile uint32_t *doorbells = nullptr; /* nullptr: by message */
    uint32_t tail[2] = {}, head[2] = {};
    uint16_t phase[2] = {1, 1};
};

/* Switches bus mastering on and enables the controller. */
struct EnabledDriver : Driver {
    explicit EnabledDriver(Client &client);
};

int make_memfd(size_t bytes);

#endif
