/* SPDX-License-Identifier: BSD-2-Clause */
/* The driver of cuFile, which is the state of the library, and its handles. */
#include "client/cufile/cufile_driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "client/cufile/cufile_config.h"
#include "client/cufile/cufile_log.h"
#include "client/cufile/cufile_stats.h"

static struct {
    pthread_mutex_t lock; /* protects the rest */
    struct gpunvme_io *io;
    struct cufile_handle *handles;
    long uses;              /* by cuFileDriverOpen() */
    atomic_uint generation; /* of io; changes under the lock */
    bool close_later;       /* when the last handle is gone */
} driver = {.lock = PTHREAD_MUTEX_INITIALIZER, .generation = 1};

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

/*
 * A child has neither the threads nor, to the mount, the buffers of its parent: it opens the driver
 * anew, and its handles their files.
 */
static void forked(void)
{
    pthread_mutex_init(&driver.lock, NULL);
    cufile_config_forked();
    driver.io = NULL;
    driver.generation++;
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forked);
}

/* Programs that never close the driver have their totals too. */
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

/* Under the lock. */
static int open_io(void)
{
    if (driver.io)
        return CU_FILE_SUCCESS;
    pthread_once(&watch_once, watch_forks);
    struct gpunvme_options o = options_of(cufile_config());
    int err = gpunvme_io_open(&o, &driver.io);
    if (err)
        cufile_log(CUFILE_LOG_ERROR, "open: %s", gpunvme_error());
    return cufile_error_of(err);
}

/* Under the lock. */
static void close_io(void)
{
    if (driver.io)
        cufile_stats_log();
    gpunvme_io_close(driver.io);
    driver.io = NULL;
    driver.generation++;
    driver.close_later = false;
}

int cufile_io(struct gpunvme_io **out)
{
    pthread_mutex_lock(&driver.lock);
    int err = open_io();
    *out = driver.io;
    pthread_mutex_unlock(&driver.lock);
    return err;
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

/* Under the lock. */
static int attach(struct cufile_handle *h)
{
    int err = open_io();

    if (err)
        return err;
    err = gpunvme_io_file_open(driver.io, h->fd, &h->file);
    h->generation = driver.generation;
    if (err)
        h->file = NULL;
    return err == -EINVAL ? CU_FILE_INVALID_FILE_TYPE : cufile_error_of(err);
}

int cufile_handle_add(struct cufile_handle *h)
{
    pthread_mutex_lock(&driver.lock);
    int err = attach(h);
    if (!err) {
        h->next = driver.handles;
        h->link = &driver.handles;
        if (h->next)
            h->next->link = &h->next;
        driver.handles = h;
        h->magic = CUFILE_HANDLE_MAGIC;
    }
    pthread_mutex_unlock(&driver.lock);
    return err;
}

void cufile_handle_remove(struct cufile_handle *h)
{
    pthread_mutex_lock(&driver.lock);
    h->magic = 0;
    *h->link = h->next;
    if (h->next)
        h->next->link = h->link;
    if (h->generation == driver.generation)
        gpunvme_io_file_close(h->file);
    if (!driver.handles && driver.close_later)
        close_io();
    pthread_mutex_unlock(&driver.lock);
}

struct gpunvme_io_file *cufile_file(struct cufile_handle *h)
{
    if (!h || h->magic != CUFILE_HANDLE_MAGIC)
        return NULL;
    if (h->generation == atomic_load_explicit(&driver.generation, memory_order_acquire))
        return h->file;
    pthread_mutex_lock(&driver.lock);
    if (h->generation != driver.generation)
        attach(h);
    pthread_mutex_unlock(&driver.lock);
    return h->file;
}

int cufile_buffer_add(void *addr, size_t len)
{
    pthread_mutex_lock(&driver.lock);
    int err = open_io();
    if (!err)
        err = cufile_error_of(gpunvme_io_register(driver.io, addr, len));
    pthread_mutex_unlock(&driver.lock);
    return err;
}

int cufile_buffer_remove(void *addr)
{
    pthread_mutex_lock(&driver.lock);
    int err = driver.io ? gpunvme_io_unregister(driver.io, addr) : -ENOENT;
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

/* With handles that are registered yet, which threads may be using, the driver waits for them. */
CUfileError_t cuFileDriverClose_v2(void)
{
    pthread_mutex_lock(&driver.lock);
    bool open = driver.io != NULL;
    if (driver.uses)
        driver.uses--;
    driver.close_later = !driver.uses && driver.handles;
    if (!driver.uses && !driver.handles)
        close_io();
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
