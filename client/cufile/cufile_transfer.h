/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Ends every transfer. Counts and logs the transfer, and converts its result to
 * a cuFile result.
 */
#ifndef CLIENT_CUFILE_CUFILE_TRANSFER_H
#define CLIENT_CUFILE_CUFILE_TRANSFER_H

#include "client/cufile/cufile_driver.h"

struct cufile_transfer {
    struct cufile_handle *handle;
    bool write;
    uint64_t file_offset;
    size_t size;
    uint64_t begun_ns; /* now_ns() */
};

/*
 * `bytes` is a byte count or -errno. Returns the count, -1 (with errno set) for
 * errors of the file system, or a negative error of cuFile.
 */
ssize_t cufile_transfer_end(const struct cufile_transfer *t, ssize_t bytes,
                            const struct gpunvme_result *result);

#endif
