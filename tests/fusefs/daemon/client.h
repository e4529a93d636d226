/* SPDX-License-Identifier: BSD-2-Clause */
// The ioctls of a mount, with valid and invalid arguments.
#ifndef TESTS_DAEMON_CLIENT_H
#define TESTS_DAEMON_CLIENT_H

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "gpunvme/gpunvme_ioctl.h"

// A struct with its abi header filled in.
template <typename T> T abi_struct()
{
    T s = {};

    s.abi.size = sizeof(s);
    s.abi.version = GPUNVME_ABI_VERSION;
    return s;
}

// 0 or -errno.
int issue(int fd, unsigned long request, void *arg);

// Shared memory registered as a buffer of the open file `fd`.
class Buffer
{
  public:
    // GPUNVME_REGISTER_LIST; the last byte of the GPU's UUID, which is the number of a CPU executor
    Buffer(int fd, size_t len, uint32_t flags = 0, uint8_t gpu = 0);
    ~Buffer();
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;

    int error() const // of the registration
    {
        return error_;
    }
    unsigned char *data() const { return data_; }
    size_t size() const { return len_; }
    uint64_t id() const { return reg_.id; }
    uint64_t key() const { return reg_.key; }
    int unregister(int fd) const;
    gpunvme_ioc_rw request(uint64_t file_offset, uint64_t buffer_offset, uint64_t len) const;
    // Bytes moved, or -errno; rw (may be NULL) receives the struct.
    ssize_t read(int fd, uint64_t file_offset, uint64_t buffer_offset, uint64_t len,
                 gpunvme_ioc_rw *rw = nullptr) const;
    ssize_t write(int fd, uint64_t file_offset, uint64_t buffer_offset, uint64_t len,
                  gpunvme_ioc_rw *rw = nullptr) const;

    // READV of `count` pieces of the list from the first on.
    gpunvme_ioc_readv batch(const Buffer &list, uint64_t count) const;
    gpunvme_piece *pieces() const { return reinterpret_cast<gpunvme_piece *>(data_); }

  private:
    ssize_t move(int fd, unsigned long request, gpunvme_ioc_rw rw, gpunvme_ioc_rw *out) const;

    size_t len_;
    int error_ = 0;
    unsigned char *data_ = nullptr;
    gpunvme_ioc_register reg_;
};

gpunvme_ioc_stats stats_of(int fd);
// The token of a descriptor, sent to the mount's socket.
uint64_t token_of(int fd, int sent);
// A memfd of len bytes, with or without sealing.
int shared_memory(size_t len, bool sealable = true);
// Opens the file or aborts; the caller closes.
int open_on(const std::string &path, int flags);

#endif
