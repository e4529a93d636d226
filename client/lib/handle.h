/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * What the files behind gpunvme.h share. A file calls those above it only: handle_process.c,
 * regions.c, file_direct.c, file.c, file_transfer.c, submit.c, handle.c.
 */
#ifndef CLIENT_LIB_HANDLE_H
#define CLIENT_LIB_HANDLE_H

#include "client/lib/client_internal.h"
#include "client/lib/regions.h"

/* A mount in use, or the connection without a mount that serves all other files. */
struct handle_mount {
    struct handle_mount *next;
    dev_t dev;
    struct connection *connection;
    struct file_queues *queues; /* leased for direct files, or NULL: gpunvme.lock */
};

struct submitter;

struct gpunvme {
    struct gpunvme_options options;
    unsigned forks;       /* handle_forks() of the process that opened it */
    pthread_mutex_t lock; /* protects mounts, the order of files, and cuda (set once) */
    struct handle_mount *local;
    struct handle_mount *mounts;
    struct gpunvme_file *files;
    struct cuda_driver *_Atomic cuda;
    unsigned long long loads; /* of libraries, when the driver was last looked for */
    struct regions *regions;
    struct submitter *submitter;
};

struct gpunvme_file {
    struct gpunvme *g;
    struct gpunvme_file *next, **link;
    struct handle_mount *mount;
    _Atomic unsigned users; /* transfers, and the open handle; the last one frees the file */
    int fd;                 /* a duplicate of the caller's, so that it stays this file's */
    _Atomic int cached_fd;  /* the file without O_DIRECT; -1 until file_cached() */
    bool o_direct;          /* fd was open with O_DIRECT */
    bool regular;
    struct file_queues *queues; /* of a direct file; else NULL */
    struct leased_file *leased; /* of a direct file; else NULL */
    char why[160];              /* no mount serves it; "": one does */
};

/* Returns the driver, or NULL if this process does not use CUDA: no address can be a GPU's. */
struct cuda_driver *handle_cuda(struct gpunvme *g);
/* Counts the forks between the first process that used the library and this one. */
unsigned handle_forks(void);
/*
 * Returns 0 in the process that opened g, else -EPERM with a sentence. Its child has neither the
 * threads nor the mappings of the parent, and locks may be held there for ever.
 */
int handle_check_process(const struct gpunvme *g);

/* Takes the leases of a direct file, whose mount is known. After an error file_direct_end(). */
int file_direct_begin(struct gpunvme_file *f);
/* Ends the leases, if the file has any. No read may be in flight. */
void file_direct_end(struct gpunvme_file *f);
/* Reads into the memory of u, which is at addr, and waits: bytes or -errno. */
ssize_t file_direct_read(struct gpunvme_file *f, const struct region_use *u, void *addr, size_t len,
                         uint64_t file_offset);
/* Launches the read or the list of t in the stream, into the memory of u at addr. */
int file_direct_launch(struct gpunvme_file *f, const struct region_use *u, void *addr,
                       const struct gpunvme_stream_transfer *t, void *stream);

/* Counts a transfer as a user of the file. The caller's handle is open. */
void file_get(struct gpunvme_file *f);
/* The last user ends the leases, closes the descriptors and frees the file. */
void file_put(struct gpunvme_file *f);
/*
 * Returns a descriptor of the file, with the access mode of f->fd, that goes through the page
 * cache; or -errno if the file cannot be opened again. It belongs to the file. The flags of the
 * description that the caller shares are never written: other threads and processes use it.
 */
int file_cached(struct gpunvme_file *f);
/*
 * Finds the buffer of memory at the file's mount, or else (unless only the GPU path will do) of the
 * connection without a mount. It stays until regions_release().
 */
int file_use(struct gpunvme_file *f, void *addr, size_t len, struct region_use *out);

/* Transfers of threads and streams. Freeing waits for them; NULL does nothing. */
int submit_new(struct submitter **out);
void submit_free(struct submitter *a);

#endif
