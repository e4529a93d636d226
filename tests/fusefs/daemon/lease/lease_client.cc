/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/fusefs/daemon/lease/lease_client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "support/fd_message.h"
#include "tests/fusefs/daemon/tokens.h"

std::vector<int> request(int s, const gpunvme_request &question, gpunvme_reply *reply)
{
    fd_message in = {};
    if (send(s, &question, sizeof(question), MSG_NOSIGNAL) !=
            static_cast<ssize_t>(sizeof(question)) ||
        fd_message_receive(s, reply, sizeof(*reply), &in, 4, 0) !=
            static_cast<ssize_t>(sizeof(*reply)))
        return {};
    return {in.fd, in.fd + in.n};
}

Shared::Shared(int fd, size_t len, bool writable) : len_(len)
{
    void *at = mmap(nullptr, len, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
    at_ = at == MAP_FAILED ? nullptr : at;
    close(fd);
}

Shared::~Shared()
{
    if (at_)
        munmap(at_, len_);
}

Shared::Shared(Shared &&other) noexcept : at_(std::exchange(other.at_, nullptr)), len_(other.len_)
{
}

Shared &Shared::operator=(Shared &&other) noexcept
{
    std::swap(at_, other.at_);
    std::swap(len_, other.len_);
    return *this;
}

gpunvme_ioc_info info_of(int fd)
{
    auto info = abi_struct<gpunvme_ioc_info>();
    if (issue(fd, GPUNVME_IOC_INFO, &info) != 0)
        perror("INFO");
    return info;
}

gpunvme_ioc_buffer_iova iova_of(int fd, const Buffer &buffer, int *error)
{
    auto iova = abi_struct<gpunvme_ioc_buffer_iova>();
    iova.id = buffer.id();
    iova.key = buffer.key();
    *error = issue(fd, GPUNVME_IOC_BUFFER_IOVA, &iova);
    return iova;
}

namespace
{

bool map_page(int s, uint64_t id, uint64_t key, Shared *out)
{
    gpunvme_reply reply;
    std::vector<int> fds = request(s, {GPUNVME_ASK_PAGE, id, key, 0}, &reply);
    if (fds.size() != 1)
        return false;
    *out = Shared(fds[0], reply.len, false);
    return out->good();
}

int end_lease(int fd, uint64_t id, uint64_t key)
{
    auto end = abi_struct<gpunvme_ioc_lease_end>();
    end.id = id;
    end.key = key;
    return issue(fd, GPUNVME_IOC_LEASE_END, &end);
}

std::string name_of(int fd)
{
    char name[64] = "";
    std::string link = "/proc/self/fd/" + std::to_string(fd);
    return readlink(link.c_str(), name, sizeof(name) - 1) < 0 ? "" : name;
}

uint32_t state_of(const Shared &page)
{
    return __atomic_load_n(&page.as<gpunvme_lease_page>()->state, __ATOMIC_ACQUIRE);
}

} // namespace

int connect_mount(int fd)
{
    gpunvme_ioc_info info = info_of(fd);
    uint64_t cookie;
    memcpy(&cookie, info.cookie, sizeof(cookie));
    return connect_to(info.socket, cookie);
}

Queues::Queues(int fd, uint32_t queues, uint32_t depth)
    : reply_(abi_struct<gpunvme_ioc_queue_lease>())
{
    reply_.queues = queues;
    reply_.depth = depth;
    error_ = issue(fd, GPUNVME_IOC_QUEUE_LEASE, &reply_);
}

bool Queues::map(int fd)
{
    int s = connect_mount(fd);
    bool good = s >= 0 && map_page(s, reply_.id, reply_.key, &page_);
    for (uint64_t i = 0; i < reply_.queues && good; i++) {
        gpunvme_reply reply;
        std::vector<int> fds = request(s, {GPUNVME_ASK_QUEUE, reply_.id, reply_.key, i}, &reply);
        good = fds.size() == 2;
        if (!good)
            break;
        doorbells_ = name_of(fds[1]);
        memory_.emplace_back(fds[0], reply.len, true);
        memory_.emplace_back(fds[1], reply.doorbells_len, true);
        const Shared &rings = memory_[2 * i], &bells = memory_[2 * i + 1];
        good = rings.good() && bells.good();
        if (good)
            rings_.push_back({rings.as<nvme_sqe>(reply.sq_offset),
                              rings.as<nvme_cqe>(reply.cq_offset),
                              bells.as<uint32_t>(reply.sq_doorbell),
                              bells.as<uint32_t>(reply.cq_doorbell), reply_.depth, 0, 0, 1});
    }
    close(s);
    return good;
}

int Queues::end(int fd) const
{
    return end_lease(fd, reply_.id, reply_.key);
}

uint32_t Queues::state() const
{
    return state_of(page_);
}

int Queues::run(size_t i, uint8_t opcode, uint64_t lba, uint32_t lbas, uint64_t prp1, uint64_t prp2)
{
    nvme_ring *r = &rings_[i];
    nvme_sqe sqe = {};
    nvme_cqe cqe;
    sqe.opcode = opcode;
    sqe.nsid = reply_.nsid;
    sqe.prp1 = prp1;
    sqe.prp2 = prp2;
    sqe.cdw10 = static_cast<uint32_t>(lba);
    sqe.cdw11 = static_cast<uint32_t>(lba >> 32);
    sqe.cdw12 = lbas - 1;
    nvme_ring_post(r, &sqe);
    nvme_ring_doorbell(r);
    for (int tries = 0; tries < 100000; tries++) {
        if (nvme_ring_poll(r, &cqe)) {
            nvme_ring_release(r);
            return cqe.status >> 1;
        }
        if (state() != GPUNVME_LEASE_VALID)
            return -ESTALE;
        usleep(100);
    }
    return -ETIMEDOUT;
}

Extents::Extents(int fd) : reply_(abi_struct<gpunvme_ioc_extent_lease>())
{
    error_ = issue(fd, GPUNVME_IOC_EXTENT_LEASE, &reply_);
}

bool Extents::map(int fd)
{
    int s = connect_mount(fd);
    bool good = s >= 0 && map_page(s, reply_.id, reply_.key, &page_);
    close(s);
    return good;
}

int Extents::end(int fd) const
{
    return end_lease(fd, reply_.id, reply_.key);
}

uint32_t Extents::state() const
{
    return state_of(page_);
}

uint64_t Extents::generation() const
{
    return __atomic_load_n(&page_.as<gpunvme_lease_page>()->generation, __ATOMIC_ACQUIRE);
}

uint64_t Extents::lba(uint64_t offset, uint32_t lba_size) const
{
    auto *e = page_.as<gpunvme_lease_extent>(GPUNVME_LEASE_EXTENTS_AT);
    uint64_t i = 0;
    while (i + 1 < reply_.count && e[i + 1].offset <= offset)
        i++;
    return e[i].lba == UINT64_MAX ? UINT64_MAX : e[i].lba + (offset - e[i].offset) / lba_size;
}
