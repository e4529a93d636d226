/* SPDX-License-Identifier: BSD-2-Clause */
// A holder of leases over the raw ioctls and the socket.
#ifndef TESTS_DAEMON_LEASE_CLIENT_H
#define TESTS_DAEMON_LEASE_CLIENT_H

#include <cstdint>
#include <string>
#include <vector>

#include "blockdev/nvme/nvme_queue.h"
#include "gpunvme/gpunvme_ioctl.h"
#include "tests/fusefs/daemon/client.h"

// The descriptors of the socket's reply; none when it closed the connection.
std::vector<int> request(int s, const gpunvme_request &question, gpunvme_reply *reply);

// Maps the memory of a descriptor and closes it.
class Shared
{
  public:
    Shared() = default;
    Shared(int fd, size_t len, bool writable);
    ~Shared();
    Shared(Shared &&other) noexcept;
    Shared &operator=(Shared &&other) noexcept;

    bool good() const { return at_ != nullptr; }
    template <typename T> T *as(uint64_t offset = 0) const
    {
        return reinterpret_cast<T *>(static_cast<char *>(at_) + offset);
    }

  private:
    void *at_ = nullptr;
    size_t len_ = 0;
};

// A lease of queues: the ioctl and the mappings.
class Queues
{
  public:
    explicit Queues(int fd, uint32_t queues = 1, uint32_t depth = 0);

    int error() const { return error_; }
    // Maps page, rings and doorbells; false when the socket refuses.
    bool map(int fd);
    int end(int fd) const;
    uint32_t state() const;
    nvme_ring &ring(size_t i) { return rings_[i]; }
    // One command of `blocks` LBAs; its status, or -ETIMEDOUT.
    int run(size_t i, uint8_t opcode, uint64_t lba, uint32_t lbas, uint64_t prp1,
            uint64_t prp2 = 0);
    // The kernel's name of the doorbells' file.
    const std::string &doorbells() const { return doorbells_; }
    const gpunvme_ioc_queue_lease &reply() const { return reply_; }

  private:
    int error_;
    gpunvme_ioc_queue_lease reply_;
    Shared page_;
    std::vector<Shared> memory_;
    std::string doorbells_;
    std::vector<nvme_ring> rings_;
};

// A lease of a file's extents.
class Extents
{
  public:
    explicit Extents(int fd);

    int error() const { return error_; }
    bool map(int fd);
    int end(int fd) const;
    uint32_t state() const;
    uint64_t generation() const; // as it is now
    const gpunvme_ioc_extent_lease &reply() const { return reply_; }
    // The byte's LBA in units of lba_size; UINT64_MAX: zeros.
    uint64_t lba(uint64_t offset, uint32_t lba_size) const;

  private:
    int error_;
    gpunvme_ioc_extent_lease reply_;
    Shared page_;
};

gpunvme_ioc_info info_of(int fd);
// A connection to the mount's socket, or -1.
int connect_mount(int fd);
gpunvme_ioc_buffer_iova iova_of(int fd, const Buffer &buffer, int *error);

#endif
