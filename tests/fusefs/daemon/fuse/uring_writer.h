/* SPDX-License-Identifier: BSD-2-Clause */
// Writes of a whole file through io_uring, all parts in flight at once.
#ifndef TESTS_FUSEFS_DAEMON_FUSE_URING_WRITER_H
#define TESTS_FUSEFS_DAEMON_FUSE_URING_WRITER_H

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

class UringWriter
{
  public:
    UringWriter(const std::string &path, size_t part, unsigned parts)
        : fd_(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC)), part_(part), parts_(parts),
          data_(static_cast<char *>(mmap(nullptr, part * parts, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)))
    {
        error_ = fd_ < 0 ? errno : -io_uring_queue_init(parts, &ring_, 0);
    }
    ~UringWriter()
    {
        if (!error_)
            io_uring_queue_exit(&ring_);
        munmap(data_, part_ * parts_);
        close(fd_);
    }
    UringWriter(const UringWriter &) = delete;
    UringWriter &operator=(const UringWriter &) = delete;

    // ENOSYS or EPERM: not on this machine.
    int error() const { return error_; }
    // Fills the file and waits for the completions; 0 or an errno.
    int write_all(char fill)
    {
        memset(data_, fill, part_ * parts_);
        for (unsigned i = 0; i < parts_; i++) {
            io_uring_sqe *sqe = io_uring_get_sqe(&ring_);
            if (!sqe)
                return EBUSY;
            io_uring_prep_write(sqe, fd_, data_ + i * part_, static_cast<unsigned>(part_),
                                i * part_);
        }
        int n = io_uring_submit(&ring_);
        return n == static_cast<int>(parts_) ? collect() : EIO;
    }

  private:
    int collect()
    {
        __kernel_timespec bound = {30, 0};
        int err = 0;
        for (unsigned i = 0; i < parts_; i++) {
            io_uring_cqe *cqe;
            if (io_uring_wait_cqe_timeout(&ring_, &cqe, &bound) != 0)
                return ETIMEDOUT;
            if (cqe->res != static_cast<int>(part_))
                err = cqe->res < 0 ? -cqe->res : EIO;
            io_uring_cqe_seen(&ring_, cqe);
        }
        return err;
    }

    int fd_, error_ = 0;
    size_t part_;
    unsigned parts_;
    char *data_;
    io_uring ring_ = {};
};

#endif
