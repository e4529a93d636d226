/* SPDX-License-Identifier: BSD-2-Clause */
/* Opens, describes and closes connections to a mount. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/call_stats.h"
#include "client/lib/client_internal.h"
#include "client/lib/pipeline.h"
#include "client/lib/shared_list.h"

static int connect_read_info(int fd, const char *path, struct gpunvme_ioc_info *info)
{
    memset(info, 0, sizeof(*info));
    int err = gpunvme_ioctl(fd, GPUNVME_IOC_INFO, info, sizeof(*info));
    if (err == -ENOTTY || err == -ENOSYS || err == -EINVAL || err == -EOPNOTSUPP)
        return gpunvme_fail(-ENOTTY, "%s: not on a gpunvmefs mount", path);
    if (err == -EPROTO)
        return gpunvme_fail(err, "%s: the mount speaks another version of the interface", path);
    return err ? gpunvme_fail(err, "%s: %s", path, strerror(-err)) : 0;
}

static int read_dev(struct connection *g, const char *path)
{
    struct stat st;

    if (fstat(g->fd, &st) != 0)
        return gpunvme_fail(-errno, "%s: %s", path, strerror(errno));
    g->dev = st.st_dev;
    return 0;
}

/*
 * Devices and FIFOs are opened with O_NONBLOCK, so that the open never blocks. The reply to INFO
 * then shows that they are no files of a mount.
 */
static int connect_open_path(struct connection *g, const char *path)
{
    g->fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    return g->fd >= 0 ? 0 : gpunvme_fail(-errno, "%s: %s", path, strerror(errno));
}

int connection_local(struct connection **out)
{
    struct connection *g = calloc(1, sizeof(*g));

    if (!g)
        return gpunvme_fail(-ENOMEM, "out of memory");
    g->fd = -1;
    pthread_mutex_init(&g->lock, NULL);
    slabs_init(&g->slabs);
    bounce_set_options(g, &(struct gpunvme_options){0});
    *out = g;
    return 0;
}

int connection_open(const char *path, struct connection **out)
{
    struct connection *g = NULL;
    int err = connection_local(&g);

    if (!err)
        err = connect_open_path(g, path);
    if (!err)
        err = connect_read_info(g->fd, path, &g->info);
    if (!err)
        err = read_dev(g, path);
    if (err)
        connection_close(g);
    else
        *out = g;
    return err;
}

void connection_close(struct connection *g)
{
    if (!g)
        return;
    while (!LIST_EMPTY(&g->directs))
        direct_close(LIST_FIRST(&g->directs));
    if (g->abandoned) { /* the mount ends the buffers with their owner */
        if (g->fd >= 0)
            close(g->fd);
        return;
    }
    pipeline_free(g->pipeline); /* its staging consists of buffers */
    shared_lists_free(g);
    while (!LIST_EMPTY(&g->buffers))
        buffer_unregister(LIST_FIRST(&g->buffers));
    slabs_destroy(&g->slabs);
    cuda_driver_close(g->cuda);
    call_stats_end(g);
    if (g->fd >= 0)
        close(g->fd);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

int connection_fd(const struct connection *g)
{
    return g->fd;
}

/* --- What a mount reports -------------------------------------------------------------------- */

static int connection_report(int fd, unsigned long request, void *out, uint32_t size,
                             const char *name)
{
    int err = gpunvme_ioctl(fd, request, out, size);

    if (err == -ENOTTY || err == -ENOSYS)
        return gpunvme_fail(-ENOTTY, "%s: not on a gpunvmefs mount", name);
    return err ? gpunvme_fail(err, "%s: %s", name, strerror(-err)) : 0;
}

/* The server of a mount may be that of any user. */
static uint32_t connection_bounded(uint32_t count, uint32_t most)
{
    return count < most ? count : most;
}

int gpunvme_info(int fd, struct gpunvme_ioc_info *out)
{
    memset(out, 0, sizeof(*out));
    return connection_report(fd, GPUNVME_IOC_INFO, out, sizeof(*out), "INFO");
}

int gpunvme_stats(int fd, struct gpunvme_ioc_stats *out)
{
    memset(out, 0, sizeof(*out));
    return connection_report(fd, GPUNVME_IOC_STATS, out, sizeof(*out), "STATS");
}

int gpunvme_open_files(int fd, uint64_t below, struct gpunvme_ioc_open_files *out)
{
    memset(out, 0, sizeof(*out));
    out->below = below;
    int err = connection_report(fd, GPUNVME_IOC_OPEN_FILES, out, sizeof(*out), "OPEN_FILES");
    out->count = connection_bounded(out->count, GPUNVME_OPEN_FILES_MAX);
    return err;
}

int gpunvme_queues(int fd, struct gpunvme_ioc_queues *out)
{
    memset(out, 0, sizeof(*out));
    int err = connection_report(fd, GPUNVME_IOC_QUEUES, out, sizeof(*out), "QUEUES");
    out->count = connection_bounded(out->count, GPUNVME_QUEUES_MAX);
    return err;
}

int gpunvme_gpus(int fd, struct gpunvme_ioc_gpus *out)
{
    memset(out, 0, sizeof(*out));
    int err = connection_report(fd, GPUNVME_IOC_GPUS, out, sizeof(*out), "GPUS");
    out->count = connection_bounded(out->count, GPUNVME_GPUS_MAX);
    for (uint32_t i = 0; i < out->count; i++)
        out->gpus[i].name[sizeof(out->gpus[i].name) - 1] = '\0';
    return err;
}

int gpunvme_trace(int fd, uint64_t next, struct gpunvme_ioc_trace *out)
{
    memset(out, 0, sizeof(*out));
    out->next = next;
    int err = connection_report(fd, GPUNVME_IOC_TRACE, out, sizeof(*out), "TRACE");
    if (err == -ENODATA)
        return gpunvme_fail(err, "the mount keeps no trace: mount with -o trace");
    return err;
}
