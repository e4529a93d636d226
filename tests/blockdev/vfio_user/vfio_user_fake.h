/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * A vfio-user server in a thread, that answers as a test says: well by default, and as badly as
 * wanted. It has memory for registers, and no controller behind them.
 */
#ifndef TESTS_BLOCKDEV_VFIO_USER_VFIO_USER_FAKE_H
#define TESTS_BLOCKDEV_VFIO_USER_VFIO_USER_FAKE_H

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "blockdev/nvme/nvme_spec.h"
#include "blockdev/vfio_user/vfio_user_spec.h"
#include "support/fd_message.h"

namespace vfio_user_fake
{

using Bytes = std::vector<uint8_t>;

template <typename T> Bytes bytes_of(const T &value)
{
    auto *p = reinterpret_cast<const uint8_t *>(&value);

    return Bytes(p, p + sizeof(value));
}

/* Not by insert(): gcc 12 warns at -O3 that it frees memory it did not allocate. */
inline Bytes operator+(const Bytes &a, const Bytes &b)
{
    Bytes both(a.size() + b.size());

    std::copy(b.begin(), b.end(), std::copy(a.begin(), a.end(), both.begin()));
    return both;
}

template <typename T> T first(const Bytes &b)
{
    T value{};
    memcpy(&value, b.data(), std::min(sizeof(value), b.size()));
    return value;
}

struct Message {
    vfio_user_header h{};
    Bytes payload;
    std::vector<int> fds; /* closed when the message has been handled */
};

inline bool send_raw(int fd, const Bytes &bytes, const std::vector<int> &fds = {})
{
    return fd_message_send(fd, bytes.data(), bytes.size(), fds.data(), fds.size(), 0) ==
           static_cast<ssize_t>(bytes.size());
}

/* One recvmsg(): the descriptors come with the first byte. */
inline bool recv_raw(int fd, void *to, size_t len, std::vector<int> *fds)
{
    size_t have = 0;

    while (have < len) {
        fd_message in = {};
        ssize_t n = fd_message_receive(fd, static_cast<char *>(to) + have, len - have, &in, 16, 0);
        if (n <= 0)
            return false;
        fds->insert(fds->end(), in.fd, in.fd + in.n);
        have += static_cast<size_t>(n);
    }
    return true;
}

class Server
{
  public:
    /* Answers a message itself (true), or leaves it to the server. Runs in the server's thread. */
    using Hook = std::function<bool(Server &, const Message &)>;

    static constexpr size_t BAR0 = 0x4000;

    Server()
    {
        doorbells = memfd_create("doorbells", MFD_CLOEXEC);
        EXPECT_EQ(ftruncate(doorbells, BAR0), 0);
        uint32_t class_rev = 0x010802u << 8;
        memcpy(&config[8], &class_rev, 4);
    }

    ~Server()
    {
        stop();
        close(doorbells);
    }

    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;

    /* The client's end of a connection to the server, which runs from now on. */
    int connect()
    {
        int pair[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        serve(pair[1]);
        return pair[0];
    }

    void serve(int connected)
    {
        fd = connected;
        thread = std::thread([this] {
            run();
            shutdown(fd, SHUT_RDWR);
        });
    }

    /* Ends the connection, as a server does that is killed. */
    void stop()
    {
        if (fd < 0)
            return;
        shutdown(fd, SHUT_RDWR);
        thread.join();
        close(fd);
        fd = -1;
    }

    void reply(const Message &m, const Bytes &payload, const std::vector<int> &fds = {}) const
    {
        vfio_user_header h = m.h;
        h.flags = VFIO_USER_TYPE_REPLY;
        h.size = static_cast<uint32_t>(sizeof(h) + payload.size());
        send_raw(fd, bytes_of(h) + payload, fds);
    }

    void refuse(const Message &m, uint32_t err) const
    {
        vfio_user_header h = m.h;
        h.flags = VFIO_USER_TYPE_REPLY | VFIO_USER_ERROR;
        h.size = sizeof(h);
        h.error = err;
        send_raw(fd, bytes_of(h));
    }

    /* The payload of a good reply. */
    Bytes answer(const Message &m)
    {
        switch (m.h.command) {
        case VFIO_USER_VERSION:
            return bytes_of(vfio_user_version{0, 1}) +
                   Bytes(version_data.begin(), version_data.end());
        case VFIO_USER_DEVICE_GET_INFO:
            return bytes_of(device);
        case VFIO_USER_DEVICE_GET_REGION_INFO:
            return region_info(first<vfio_region_info>(m.payload).index);
        case VFIO_USER_REGION_READ:
        case VFIO_USER_REGION_WRITE:
            return access(m);
        case VFIO_USER_DMA_UNMAP:
            return m.payload;
        default:
            return {};
        }
    }

    std::vector<int> answer_fds(const Message &m)
    {
        bool bar0 = m.h.command == VFIO_USER_DEVICE_GET_REGION_INFO &&
                    first<vfio_region_info>(m.payload).index == 0;
        return bar0 ? std::vector<int>{doorbells} : std::vector<int>{};
    }

    std::vector<Message> seen()
    {
        std::lock_guard<std::mutex> guard(lock);
        return log;
    }

    std::vector<Message> seen(uint16_t command)
    {
        std::vector<Message> found;
        for (auto &m : seen())
            if (m.h.command == command)
                found.push_back(m);
        return found;
    }

    template <typename T> T &reg(uint32_t offset)
    {
        return *reinterpret_cast<T *>(&registers[offset]);
    }

    /* What a test may change before it connects. */
    Hook hook;
    std::string version_data{"{\"capabilities\":{\"max_msg_fds\":8}}\0", 34};
    vfio_user_device_info device{16, VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET, 9, 5};
    std::vector<vfio_region_sparse_mmap_area> areas{{0x1000, 0x1000}};
    vfio_region_info bar0{0,
                          VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE |
                              VFIO_REGION_INFO_FLAG_MMAP | VFIO_REGION_INFO_FLAG_CAPS,
                          0,
                          32,
                          BAR0,
                          0};
    alignas(8) uint8_t registers[0x1000] = {};
    uint8_t config[256] = {};

    int doorbells; /* a file of BAR0's size */
    int fd = -1;

  private:
    Bytes region_info(uint32_t index)
    {
        if (index == VFIO_PCI_CONFIG_REGION_INDEX)
            return bytes_of(vfio_region_info{
                32, VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE, index, 0, 256, 0});
        vfio_region_info_cap_sparse_mmap head{
            {VFIO_REGION_INFO_CAP_SPARSE_MMAP, 1, 0}, static_cast<uint32_t>(areas.size()), 0};
        Bytes list;
        for (auto &a : areas)
            list = list + bytes_of(a);
        vfio_region_info info = bar0;
        info.argsz = static_cast<uint32_t>(sizeof(info) + sizeof(head) + list.size());
        return bytes_of(info) + bytes_of(head) + list;
    }

    Bytes access(const Message &m)
    {
        auto a = first<vfio_user_region_access>(m.payload);
        uint8_t *at = (a.region == VFIO_PCI_CONFIG_REGION_INDEX ? config : registers) + a.offset;
        if (m.h.command == VFIO_USER_REGION_READ)
            return bytes_of(a) + Bytes(at, at + a.count);
        memcpy(at, &m.payload[sizeof(a)], a.count);
        return bytes_of(a);
    }

    void run()
    {
        for (;;) {
            Message m;
            if (!recv_raw(fd, &m.h, sizeof(m.h), &m.fds))
                return;
            m.payload.resize(m.h.size - sizeof(m.h));
            if (!m.payload.empty() && !recv_raw(fd, m.payload.data(), m.payload.size(), &m.fds))
                return;
            {
                std::lock_guard<std::mutex> guard(lock);
                log.push_back(m);
            }
            if (!(hook && hook(*this, m)) &&
                (m.h.flags & VFIO_USER_TYPE_MASK) == VFIO_USER_TYPE_COMMAND)
                reply(m, answer(m), answer_fds(m));
            for (int f : m.fds)
                close(f);
        }
    }

    std::thread thread;
    std::mutex lock; /* the next */
    std::vector<Message> log;
};

} // namespace vfio_user_fake

#endif
