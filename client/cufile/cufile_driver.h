/* SPDX-License-Identifier: BSD-2-Clause */
/* The state of the library: opened by the first call that needs it, or by cuFileDriverOpen(). */
#ifndef CLIENT_CUFILE_CUFILE_DRIVER_H
#define CLIENT_CUFILE_CUFILE_DRIVER_H

#include "client/cufile/cufile_abi.h"
#include "gpunvme/gpunvme_io.h"

/*
 * What a program holds is an id: the slot of the table, plus one, in the lowest CUFILE_SLOT_BITS,
 * and above them a serial number, so that an id that was deregistered finds nothing.
 */
#define CUFILE_SLOT_BITS 20u

struct cufile_handle {
    uintptr_t id;
    unsigned users;      /* transfers, and the table: the driver's lock */
    unsigned generation; /* of the driver: which opening `file` belongs to */
    struct gpunvme_io_file *file;
    int fd;        /* the caller's number, for the log */
    unsigned said; /* bit for each way whose use the log has told: atomic */
};

/* 0 or an error of cuFile; the driver stays open while there are handles. */
int cufile_io(struct gpunvme_io **out);
/* Puts a new handle into the table, which is its first user, and sets id and file. */
int cufile_handle_add(struct cufile_handle *h);
/* Takes it from the table. Returns false if the id is none of a registered handle. */
bool cufile_handle_remove(CUfileHandle_t id);
/*
 * Returns the handle, with one more user, or NULL: it is not registered, or the file of a child of
 * fork(2) cannot be opened again.
 */
struct cufile_handle *cufile_handle_get(CUfileHandle_t id);
/* The last user closes the file and frees the handle. */
void cufile_handle_put(struct cufile_handle *h);
/* The same on a thread of the library, which cannot close the driver that it belongs to. */
void cufile_handle_put_inside(struct cufile_handle *h);
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
