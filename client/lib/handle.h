/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares structures and functions that the files behind gpunvme.h share. Each
 * file calls only functions of the files before it in the order
 * handle_process.c, regions.c, file_direct.c, file.c, submit.c, handle.c.
 */
#ifndef CLIENT_LIB_HANDLE_H
#define CLIENT_LIB_HANDLE_H

#include "client/lib/client_internal.h"
#include "client/lib/regions.h"

struct submitter;

struct gpunvme {
    struct gpunvme_options options;
    unsigned forks;           /* value of handle_forks() when it was opened */
    pthread_mutex_t lock;     /* protects mounts, the order of files, and cuda, which is set once */
    struct connection *local; /* has no mount and serves all other files */
    struct connection *mounts; /* in use */
    LIST_HEAD(, gpunvme_file) files;
    struct cuda_driver *_Atomic cuda;
    unsigned long long loads; /* number of loaded libraries at the last search for the driver */
    struct regions *regions;
    struct submitter *submitter;
};

struct gpunvme_file {
    struct gpunvme *g;
    LIST_ENTRY(gpunvme_file) entry; /* in g->files */
    struct connection *mount;
    _Atomic unsigned users; /* transfers, and 1 while open; the last one frees the file */
    int fd; /* duplicate of the caller's descriptor, so that it refers to the same file */
    _Atomic int cached_fd; /* the same file without O_DIRECT; -1 until file_cached() */
    bool o_direct;         /* fd was open with O_DIRECT */
    bool regular;
    struct file_queues *queues; /* of a direct file; otherwise NULL */
    struct leased_file *leased; /* of a direct file; otherwise NULL */
    char why[160];              /* why no mount serves the file; "" if one does */
};

/*
 * Returns the driver, or NULL if this process does not use CUDA, so that no address can be a GPU's.
 */
struct cuda_driver *handle_cuda(struct gpunvme *g);
/* Returns the number of forks between the first process that used the library and this one. */
unsigned handle_forks(void);
/*
 * Returns 0 in the process that opened g, otherwise -EPERM with gpunvme_error() set. A child has
 * neither the threads nor the mappings of its parent, and may have locks that nobody unlocks.
 */
int handle_check_process(const struct gpunvme *g);

/*
 * Takes the leases of a direct file whose mount is known. After an error the caller calls
 * file_direct_end().
 */
int file_direct_begin(struct gpunvme_file *f);
/* Ends the leases of the file, if it has any. No read may be in flight. */
void file_direct_end(struct gpunvme_file *f);
/* Returns the CUDA device of a direct file, or CUDA_NO_DEVICE. */
int file_direct_device(const struct gpunvme_file *f);
/* Reads into the memory of u, which is at addr, and waits. Returns bytes or -errno. */
ssize_t file_direct_read(struct gpunvme_file *f, const struct region_use *u, void *addr, size_t len,
                         uint64_t file_offset);
/* Launches the read or the list of t in the stream, into the memory of u at addr. */
int file_direct_launch(struct gpunvme_file *f, const struct region_use *u, void *addr,
                       const struct gpunvme_stream_transfer *t, void *stream);

/* Counts a transfer as a user of the file. The caller's handle is open. */
void file_get(struct gpunvme_file *f);
/* Ends a use. The last user ends the leases, closes the descriptors and frees the file. */
void file_put(struct gpunvme_file *f);
/*
 * Returns a descriptor of the file that uses the page cache and has the access mode of f->fd, or
 * -errno if the file cannot be opened again. The descriptor belongs to the file. The flags of the
 * description that the caller shares are never written, because other threads and processes use it.
 */
int file_cached(struct gpunvme_file *f);
/*
 * Finds the buffer of memory at the file's mount. If there is none, finds that of the connection
 * without a mount, unless only the GPU path is allowed. It exists until regions_release().
 */
int file_use(struct gpunvme_file *f, void *addr, size_t len, struct region_use *out);

/*
 * Creates the threads and streams of transfers. submit_stop() waits for all
 * transfers and ends the threads. It returns false if a stream does not get to a
 * transfer: the object is then never freed. submit_free() frees a stopped one.
 */
int submit_new(struct submitter **out);
bool submit_stop(struct submitter *a);
void submit_free(struct submitter *a);

#endif
