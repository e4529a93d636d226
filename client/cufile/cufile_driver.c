/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Implements the handles and the driver of cuFile. The driver is the state of
 * the library.
 */
#include "client/cufile/cufile_driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "client/cufile/cufile_config.h"
#include "client/cufile/cufile_log.h"
#include "client/cufile/cufile_stats.h"

static struct {
    pthread_mutex_t lock; /* protects the rest */
    struct gpunvme *io;
    struct cufile_handle **table; /* registered handles; NULL in a free slot */
    uintptr_t slots;
    uintptr_t serial;    /* of the latest handle */
    unsigned handles;    /* registered, or still in use */
    long uses;           /* calls of cuFileDriverOpen() without a close */
    unsigned generation; /* counts opens of io */
    bool close_later;    /* close after the last handle is removed */
} driver = {.lock = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP, .generation = 1};

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;
static unsigned driver_forks; /* changes only in a child that has one thread */

/*
 * Runs in a child of fork(), which has neither the threads of its parent nor,
 * for the mount, its buffers. The child opens the driver again, and its handles
 * open their files again.
 */
static void forked(void)
{
    driver.lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
    cufile_config_forked();
    cufile_stats_forked();
    driver.io = NULL;
    driver.generation++;
    driver_forks++;
}

unsigned cufile_forks(void)
{
    return driver_forks;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* Logs the totals of programs that never close the driver. */
__attribute__((destructor)) static void log_totals(void)
{
    if (driver.io)
        cufile_stats_log();
}

static struct gpunvme_options options_of(const struct cufile_config *c)
{
    struct gpunvme_options o = {0};
    size_t threads = c->sizes[CUFILE_PARAM_EXECUTION_MAX_IO_THREADS];

    if (c->bools[CUFILE_PARAM_FORCE_COMPAT_MODE])
        o.path = GPUNVME_PATH_BOUNCE;
    else if (!c->bools[CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE])
        o.path = GPUNVME_PATH_GPU;
    o.threads = threads > 64 ? 64 : (uint32_t)threads;
    return o;
}

/* The caller holds the lock. */
static int open_io(void)
{
    if (driver.io)
        return CU_FILE_SUCCESS;
    pthread_once(&watch_once, watch_forks);
    struct gpunvme_options o = options_of(cufile_config());
    int err = gpunvme_open(&o, &driver.io);
    if (err)
        cufile_log(CUFILE_LOG_ERROR, "open: %s", gpunvme_error());
    return cufile_error_of(err);
}

/* The caller holds the lock. */
static void close_io(void)
{
    if (driver.io)
        cufile_stats_log();
    gpunvme_close(driver.io);
    driver.io = NULL;
    driver.generation++;
    driver.close_later = false;
}

bool cufile_driver_is_open(void)
{
    pthread_mutex_lock(&driver.lock);
    bool open = driver.io != NULL;
    pthread_mutex_unlock(&driver.lock);
    return open;
}

int cufile_error_of(int err)
{
    switch (err) {
    case 0:
        return CU_FILE_SUCCESS;
    case -ENOMEM:
    case -EMFILE:
        return CU_FILE_NOMEM_ERROR;
    case -EINVAL:
    case -EBADF:
        return CU_FILE_INVALID_VALUE;
    case -EEXIST:
        return CU_FILE_MEMORY_ALREADY_REGISTERED;
    case -ENOENT:
        return CU_FILE_MEMORY_NOT_REGISTERED;
    case -ENODEV:
        return CU_FILE_DEVICE_NOT_FOUND;
    case -ENOTSUP:
    case -EREMOTEIO:
        return CU_FILE_IO_NOT_SUPPORTED;
    case -EFAULT:
        return CU_FILE_CUDA_POINTER_RANGE_ERROR;
    case -EACCES:
    case -EPERM:
        return CU_FILE_PERMISSION_DENIED;
    default:
        return CU_FILE_INTERNAL_ERROR;
    }
}

/* --- Handles and buffers --------------------------------------------------------------------- */

#define SLOT_MASK (((uintptr_t)1 << CUFILE_SLOT_BITS) - 1)

/* Lock held. Opens the file of fd with the driver of this process. */
static int driver_attach(struct cufile_handle *h, int fd)
{
    int err = open_io();

    if (err)
        return err;
    err = gpunvme_file_open(driver.io, fd, 0, &h->file);
    h->generation = driver.generation;
    if (err)
        h->file = NULL;
    return err == -EINVAL ? CU_FILE_INVALID_FILE_TYPE : cufile_error_of(err);
}

/* Lock held. Finds a free slot, or doubles the table. */
static int driver_find_slot(uintptr_t *out)
{
    uintptr_t slot = 0, len = driver.slots ? 2 * driver.slots : 16;

    while (slot < driver.slots && driver.table[slot])
        slot++;
    *out = slot;
    if (slot < driver.slots)
        return CU_FILE_SUCCESS;
    struct cufile_handle **table =
        len > SLOT_MASK ? NULL : realloc(driver.table, len * sizeof(*table));
    if (!table)
        return CU_FILE_NOMEM_ERROR;
    for (uintptr_t i = driver.slots; i < len; i++)
        table[i] = NULL;
    driver.table = table;
    driver.slots = len;
    return CU_FILE_SUCCESS;
}

int cufile_handle_add(struct cufile_handle *h)
{
    uintptr_t slot;

    pthread_mutex_lock(&driver.lock);
    int err = driver_find_slot(&slot);
    if (!err)
        err = driver_attach(h, h->fd);
    if (!err) {
        h->users = 1;
        h->id = ++driver.serial << CUFILE_SLOT_BITS | (slot + 1);
        driver.table[slot] = h;
        driver.handles++;
    }
    pthread_mutex_unlock(&driver.lock);
    return err;
}

/* The caller holds the lock. Returns the slot of a handle, or NULL. */
static struct cufile_handle **driver_find(CUfileHandle_t id)
{
    uintptr_t slot = ((uintptr_t)id & SLOT_MASK) - 1;
    bool known =
        slot < driver.slots && driver.table[slot] && driver.table[slot]->id == (uintptr_t)id;

    return known ? &driver.table[slot] : NULL;
}

/* Called under the lock. Removes a user. The last user frees the handle. */
static void driver_put(struct cufile_handle *h)
{
    if (--h->users)
        return;
    if (h->generation == driver.generation)
        gpunvme_file_close(h->file);
    driver.handles--;
    free(h);
}

/* The caller holds the lock. */
static void driver_close_if_due(void)
{
    if (!driver.handles && driver.close_later)
        close_io();
}

bool cufile_handle_remove(CUfileHandle_t id)
{
    pthread_mutex_lock(&driver.lock);
    struct cufile_handle **slot = driver_find(id);
    if (slot) {
        driver_put(*slot);
        *slot = NULL;
    }
    driver_close_if_due();
    pthread_mutex_unlock(&driver.lock);
    return slot != NULL;
}

struct cufile_handle *cufile_handle_get(CUfileHandle_t id)
{
    pthread_mutex_lock(&driver.lock);
    struct cufile_handle **slot = driver_find(id), *h = slot ? *slot : NULL;
    if (h && h->generation != driver.generation)
        driver_attach(h, gpunvme_file_fd(h->file));
    if (h && !h->file)
        h = NULL;
    if (h)
        h->users++;
    pthread_mutex_unlock(&driver.lock);
    return h;
}

void cufile_handle_put(struct cufile_handle *h)
{
    pthread_mutex_lock(&driver.lock);
    driver_put(h);
    driver_close_if_due();
    pthread_mutex_unlock(&driver.lock);
}

void cufile_handle_put_inside(struct cufile_handle *h)
{
    pthread_mutex_lock(&driver.lock);
    driver_put(h);
    pthread_mutex_unlock(&driver.lock);
}

int cufile_buffer_add(void *addr, size_t len)
{
    pthread_mutex_lock(&driver.lock);
    int err = open_io();
    if (!err)
        err = cufile_error_of(gpunvme_register(driver.io, addr, len));
    pthread_mutex_unlock(&driver.lock);
    return err;
}

int cufile_buffer_remove(void *addr)
{
    pthread_mutex_lock(&driver.lock);
    int err = driver.io ? gpunvme_unregister(driver.io, addr) : -ENOENT;
    pthread_mutex_unlock(&driver.lock);
    return cufile_error_of(err);
}

/* --- cuFile's -------------------------------------------------------------------------------- */

CUfileError_t cuFileDriverOpen(void)
{
    pthread_mutex_lock(&driver.lock);
    int err = open_io();
    if (!err) {
        driver.uses++;
        driver.close_later = false;
    }
    pthread_mutex_unlock(&driver.lock);
    return cufile_status(err);
}

/* The driver stays open while there are handles or transfers. */
CUfileError_t cuFileDriverClose_v2(void)
{
    pthread_mutex_lock(&driver.lock);
    bool open = driver.io != NULL;
    if (driver.uses)
        driver.uses--;
    driver.close_later = !driver.uses;
    driver_close_if_due();
    pthread_mutex_unlock(&driver.lock);
    return cufile_status(open ? CU_FILE_SUCCESS : CU_FILE_DRIVER_NOT_INITIALIZED);
}

CUfileError_t cuFileDriverClose(void)
{
    return cuFileDriverClose_v2();
}

long cuFileUseCount(void)
{
    pthread_mutex_lock(&driver.lock);
    long uses = driver.uses;
    pthread_mutex_unlock(&driver.lock);
    return uses;
}

CUfileError_t cuFileGetVersion(int *version)
{
    if (!version)
        return cufile_status(CU_FILE_INVALID_VALUE);
    *version = CUFILE_VERSION;
    return cufile_status(CU_FILE_SUCCESS);
}
