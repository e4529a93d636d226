/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Watches the process for changes that affect a handle. These changes are
 * forks, and the load of the CUDA driver.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>

#include "client/lib/handle.h"

/* --- CUDA ------------------------------------------------------------------------------------ */

/*
 * Held during dl_iterate_phdr() and across fork(2). A child gets the lock of that function in the
 * state in which another thread held it, and its next call of the loader would then never return.
 */
static pthread_mutex_t loads_lock = PTHREAD_MUTEX_INITIALIZER;

static void handle_lock_loads(void)
{
    pthread_mutex_lock(&loads_lock);
}

static void handle_unlock_loads(void)
{
    pthread_mutex_unlock(&loads_lock);
}

static int handle_count_loads(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(unsigned long long *)arg = info->dlpi_adds;
    return 1; /* the first library is enough */
}

/*
 * The caller holds the lock. A process that has not loaded the driver has no addresses of it. The
 * loader is asked for the driver, which makes it search all folders, only after it has loaded
 * something.
 */
static bool handle_has_loaded_cuda(struct gpunvme *g)
{
    unsigned long long loads = 0;

    handle_lock_loads();
    dl_iterate_phdr(handle_count_loads, &loads);
    handle_unlock_loads();
    if (loads == g->loads)
        return false;
    g->loads = loads;
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (library)
        dlclose(library);
    return library != NULL;
}

struct cuda_driver *handle_cuda(struct gpunvme *g)
{
    struct cuda_driver *cu = atomic_load(&g->cuda);

    if (cu)
        return cu;
    pthread_mutex_lock(&g->lock);
    cu = atomic_load(&g->cuda);
    if (!cu && handle_has_loaded_cuda(g) && cuda_driver_open(&cu) == 0)
        atomic_store(&g->cuda, cu);
    pthread_mutex_unlock(&g->lock);
    return cu;
}

/* --- Forks ----------------------------------------------------------------------------------- */

static unsigned handle_fork_count; /* changes only in a child that has one thread */
static pthread_once_t handle_fork_once = PTHREAD_ONCE_INIT;

static void handle_fork_child(void)
{
    handle_fork_count++;
}

static void handle_fork_watch(void)
{
    pthread_atfork(handle_lock_loads, handle_unlock_loads, handle_unlock_loads);
    pthread_atfork(NULL, NULL, handle_fork_child);
}

unsigned handle_forks(void)
{
    pthread_once(&handle_fork_once, handle_fork_watch);
    return handle_fork_count;
}

int handle_check_process(const struct gpunvme *g)
{
    if (g->forks == handle_fork_count)
        return 0;
    return gpunvme_fail(-EPERM, "the handle belongs to the process that called fork(2): a child "
                                "opens files anew");
}
