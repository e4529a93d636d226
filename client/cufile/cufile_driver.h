/* SPDX-License-Identifier: BSD-2-Clause */
/* The state of the library: opened by the first call that needs it, or by cuFileDriverOpen(). */
#ifndef CLIENT_CUFILE_CUFILE_DRIVER_H
#define CLIENT_CUFILE_CUFILE_DRIVER_H

#include "client/cufile/cufile_abi.h"
#include "gpunvme/gpunvme_io.h"

#define CUFILE_HANDLE_MAGIC 0x63754669u

struct cufile_handle {
    uint32_t magic;                     /* 0 once deregistered */
    unsigned generation;                /* of the driver: which opening `file` belongs to */
    struct cufile_handle *next, **link; /* of all handles: the driver's lock */
    struct gpunvme_io_file *file;
    int fd;
    unsigned said; /* bit for each way whose use the log has told: atomic */
};

/* 0 or an error of cuFile; the driver stays open while there are handles. */
int cufile_io(struct gpunvme_io **out);
/* NULL: not a handle that is registered, or its file cannot be used any more. */
struct gpunvme_io_file *cufile_file(struct cufile_handle *h);
/* Under the driver's lock: what registers must not meet what closes. */
int cufile_handle_add(struct cufile_handle *h);
void cufile_handle_remove(struct cufile_handle *h);
int cufile_buffer_add(void *addr, size_t len);
int cufile_buffer_remove(void *addr);
bool cufile_driver_is_open(void);

static inline CUfileError_t cufile_status(int err)
{
    return (CUfileError_t){.err = err};
}

/* cuFile's error for a -errno of the library. */
int cufile_error_of(int err);

#endif
