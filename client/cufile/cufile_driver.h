/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the state of the library. The state is opened by cuFileDriverOpen(),
 * or by the first call that needs an open driver.
 */
#ifndef CLIENT_CUFILE_CUFILE_DRIVER_H
#define CLIENT_CUFILE_CUFILE_DRIVER_H

#include "client/cufile/cufile_abi.h"
#include "gpunvme/gpunvme.h"

/*
 * A program holds an id, which consists of the slot in the table plus one, in
 * the lowest CUFILE_SLOT_BITS, and a serial number above. An id that was
 * deregistered therefore finds no handle.
 */
#define CUFILE_SLOT_BITS 20u

struct cufile_handle {
    uintptr_t id;
    unsigned users;      /* transfers and the table; under the driver's lock */
    unsigned generation; /* opening of the driver to which `file` belongs */
    struct gpunvme_file *file;
    int fd;        /* the caller's number, for the log */
    unsigned said; /* atomic: one bit for each path that was logged */
};

/*
 * Adds a new handle to the table, which is its first user. Sets id and file.
 * Opens the driver if necessary, which stays open while there are handles.
 */
int cufile_handle_add(struct cufile_handle *h);
/* Removes a handle. Returns false if this id is not registered. */
bool cufile_handle_remove(CUfileHandle_t id);
/*
 * Returns the handle with one more user. Returns NULL if it is not registered,
 * or if the child of a fork(2) cannot open its file again.
 */
struct cufile_handle *cufile_handle_get(CUfileHandle_t id);
/* Removes a user. The last one closes the file and frees the handle. */
void cufile_handle_put(struct cufile_handle *h);
/* Acts like cufile_handle_put() on a thread of the library, which must not close the driver. */
void cufile_handle_put_inside(struct cufile_handle *h);
int cufile_buffer_add(void *addr, size_t len);
int cufile_buffer_remove(void *addr);
bool cufile_driver_is_open(void);
/* Returns a number that differs in a child of fork(2) of a process with an open driver. */
unsigned cufile_forks(void);

static inline CUfileError_t cufile_status(int err)
{
    return (CUfileError_t){.err = err};
}

/* Returns cuFile's error for a -errno of the library. */
int cufile_error_of(int err);

#endif
