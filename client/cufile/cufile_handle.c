/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements handles, which are open files, and buffers. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "client/cufile/cufile_config.h"
#include "client/cufile/cufile_driver.h"
#include "client/cufile/cufile_log.h"
#include "client/cufile/cufile_stats.h"

static void log_handle(const struct cufile_handle *h, int err)
{
    char link[32], path[PATH_MAX] = "?";

    if (!cufile_logs(err ? CUFILE_LOG_ERROR : CUFILE_LOG_INFO))
        return;
    snprintf(link, sizeof(link), "/proc/self/fd/%d", h->fd);
    ssize_t n = readlink(link, path, sizeof(path) - 1);
    if (n >= 0)
        path[n] = '\0';
    const char *why = err ? gpunvme_error() : gpunvme_file_why(h->file);
    if (err)
        cufile_log(CUFILE_LOG_ERROR, "handle of %s: %s (%d)", path, why, err);
    else
        cufile_log(CUFILE_LOG_INFO, "handle of %s: %s", path, why ? why : "on a gpunvmefs mount");
}

/* Without compatibility mode, only files served by a mount are accepted. */
static int check_compat(const struct cufile_handle *h)
{
    const struct cufile_config *c = cufile_config();
    bool allowed = c->bools[CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE] ||
                   c->bools[CUFILE_PARAM_FORCE_COMPAT_MODE];

    return allowed || !gpunvme_file_why(h->file) ? CU_FILE_SUCCESS : CU_FILE_IO_NOT_SUPPORTED;
}

static int register_handle(int fd, CUfileHandle_t *out)
{
    struct cufile_handle *h = calloc(1, sizeof(*h));

    if (!h)
        return CU_FILE_NOMEM_ERROR;
    h->fd = fd;
    int err = cufile_handle_add(h);
    if (!err) {
        err = check_compat(h);
        log_handle(h, err);
        if (err)
            cufile_handle_remove((CUfileHandle_t)h->id);
        else
            *out = (CUfileHandle_t)h->id;
        return err;
    }
    log_handle(h, err);
    free(h);
    return err;
}

CUfileError_t cuFileHandleRegister(CUfileHandle_t *fh, CUfileDescr_t *descr)
{
    CUfileHandle_t h = NULL;

    if (!fh || !descr)
        return cufile_status(CU_FILE_INVALID_VALUE);
    int err = descr->type == CU_FILE_HANDLE_TYPE_OPAQUE_FD ? register_handle(descr->handle.fd, &h)
                                                           : CU_FILE_IO_NOT_SUPPORTED;
    cufile_stats_count(CUFILE_STAT(hdl_register), err);
    if (!err)
        *fh = h;
    return cufile_status(err);
}

void cuFileHandleDeregister(CUfileHandle_t fh)
{
    bool known = cufile_handle_remove(fh);

    cufile_stats_count(CUFILE_STAT(hdl_deregister), !known);
}

CUfileError_t cuFileBufRegister(const void *base, size_t length, int flags)
{
    (void)flags; /* flags concern RDMA only */
    int err = cufile_buffer_add((void *)(uintptr_t)base, length);
    cufile_stats_buffer(length, err);
    cufile_log(err ? CUFILE_LOG_ERROR : CUFILE_LOG_INFO, "buffer of %zu bytes at %p: %s", length,
               base, err ? gpunvme_error() : "registered");
    return cufile_status(err);
}

CUfileError_t cuFileBufDeregister(const void *base)
{
    int err = cufile_buffer_remove((void *)(uintptr_t)base);

    cufile_stats_count(CUFILE_STAT(buf_deregister), err);
    return cufile_status(err);
}
