/* SPDX-License-Identifier: BSD-2-Clause */
#include "tests/fusefs/daemon/client.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include <cstring>

#include "tests/fusefs/daemon/tokens.h"

int issue(int fd, unsigned long request, void *arg)
{
    return ioctl(fd, request, arg) == 0 ? 0 : -errno;
}

int shared_memory(size_t len, bool sealable)
{
    int fd = memfd_create("buffer", MFD_CLOEXEC | (sealable ? MFD_ALLOW_SEALING : 0u));
    if (fd >= 0 && ftruncate(fd, static_cast<off_t>(len)) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

int open_on(const std::string &path, int flags)
{
    int fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
    if (fd < 0) {
        perror(path.c_str());
        abort();
    }
    return fd;
}

uint64_t token_of(int fd, int sent)
{
    auto info = abi_struct<gpunvme_ioc_info>();
    uint64_t cookie;
    if (issue(fd, GPUNVME_IOC_INFO, &info) != 0)
        return 0;
    memcpy(&cookie, info.cookie, sizeof(cookie));
    return token_for(info.socket, cookie, sent);
}

gpunvme_ioc_stats stats_of(int fd)
{
    auto stats = abi_struct<gpunvme_ioc_stats>();
    if (issue(fd, GPUNVME_IOC_STATS, &stats) != 0)
        perror("STATS");
    return stats;
}

Buffer::Buffer(int fd, size_t len, uint32_t flags, uint8_t gpu)
    : len_(len), reg_(abi_struct<gpunvme_ioc_register>())
{
    int memory = shared_memory(len);
    void *at = mmap(nullptr, len, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    data_ = at == MAP_FAILED ? nullptr : static_cast<unsigned char *>(at);
    reg_.kind = GPUNVME_MEM_FD;
    reg_.flags = flags;
    reg_.len = len;
    reg_.gpu_uuid[15] = gpu;
    reg_.token = token_of(fd, memory);
    error_ = issue(fd, GPUNVME_IOC_REGISTER, &reg_);
    close(memory);
}

Buffer::~Buffer()
{
    if (data_)
        munmap(data_, len_);
}

int Buffer::unregister(int fd) const
{
    auto u = abi_struct<gpunvme_ioc_unregister>();
    u.id = reg_.id;
    u.key = reg_.key;
    return issue(fd, GPUNVME_IOC_UNREGISTER, &u);
}

gpunvme_ioc_rw Buffer::request(uint64_t file_offset, uint64_t buffer_offset, uint64_t len) const
{
    auto rw = abi_struct<gpunvme_ioc_rw>();
    rw.id = reg_.id;
    rw.key = reg_.key;
    rw.file_offset = file_offset;
    rw.buffer_offset = buffer_offset;
    rw.len = len;
    return rw;
}

gpunvme_ioc_readv Buffer::batch(const Buffer &list, uint64_t count) const
{
    auto v = abi_struct<gpunvme_ioc_readv>();
    v.id = reg_.id;
    v.key = reg_.key;
    v.list_id = list.reg_.id;
    v.list_key = list.reg_.key;
    v.count = count;
    return v;
}

ssize_t Buffer::move(int fd, unsigned long request, gpunvme_ioc_rw rw, gpunvme_ioc_rw *out) const
{
    int err = issue(fd, request, &rw);
    if (out)
        *out = rw;
    return err ? err : static_cast<ssize_t>(rw.bytes);
}

ssize_t Buffer::read(int fd, uint64_t file_offset, uint64_t buffer_offset, uint64_t len,
                     gpunvme_ioc_rw *rw) const
{
    return move(fd, GPUNVME_IOC_READ, request(file_offset, buffer_offset, len), rw);
}

ssize_t Buffer::write(int fd, uint64_t file_offset, uint64_t buffer_offset, uint64_t len,
                      gpunvme_ioc_rw *rw) const
{
    return move(fd, GPUNVME_IOC_WRITE, request(file_offset, buffer_offset, len), rw);
}
