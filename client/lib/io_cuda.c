/* SPDX-License-Identifier: BSD-2-Clause */
/* The CUDA driver of a process that uses CUDA. */
#include <dlfcn.h>
#include <link.h>

#include "client/lib/handle.h"

/*
 * Held while dl_iterate_phdr() runs, and across fork(2): glibc gives a child the lock of that
 * function as another thread held it, and the child's next call of the loader would wait for ever.
 */
static pthread_mutex_t loads_lock = PTHREAD_MUTEX_INITIALIZER;

void io_cuda_lock_loads(void)
{
    pthread_mutex_lock(&loads_lock);
}

void io_cuda_unlock_loads(void)
{
    pthread_mutex_unlock(&loads_lock);
}

static int count_loads(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size;
    *(unsigned long long *)arg = info->dlpi_adds;
    return 1; /* the first library tells */
}

/*
 * Under the lock. A process that has not loaded the driver has no addresses of it. The loader is
 * asked for the driver, which takes it a search of all folders, only after it has loaded something.
 */
static bool is_cuda_loaded(struct gpunvme *g)
{
    unsigned long long loads = 0;

    io_cuda_lock_loads();
    dl_iterate_phdr(count_loads, &loads);
    io_cuda_unlock_loads();
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
    if (!cu && is_cuda_loaded(g) && cuda_driver_open(&cu) == 0)
        atomic_store(&g->cuda, cu);
    pthread_mutex_unlock(&g->lock);
    return cu;
}
