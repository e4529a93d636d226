/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Copy kernels of applications that lease queues of a simulated drive.
 */
#include "fusefs/daemon/lease/lease_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "cuda/gq.h"
#include "fusefs/daemon/base/daemon_log.h"
#include "fusefs/daemon/state/buffers.h"

static_assert(COPY_KERNELS_OF_USER * 2 == GQ_COPIES_PEERS, "one user has at most half");

static void dropped(void *context)
{
    const struct daemon *d = context;

    log_line(LOG_WARNING,
             "%s: an application's copy kernel does not respond, the daemon copies for it, slowly",
             d->opts->device);
}

static int make(struct daemon *d, struct gq_copies_peer **out)
{
    struct gq_copies *copies = d->stack.drive.copies;

    if (!copies || !d->stack.engine)
        return -ENOTSUP;
    return copies->ops->peer_open(copies, dropped, d, out);
}

int lease_copy_reply(struct daemon *d, struct gq_copies_peer **copy_kernel,
                     struct gpunvme_reply *reply, int fds[2])
{
    struct gq_copies_shared shared;
    int err = *copy_kernel ? 0 : make(d, copy_kernel);

    if (err)
        return err;
    d->stack.drive.copies->ops->peer_shared(*copy_kernel, &shared);
    const struct gpunvme_reply_copy_kernel full = {.len = shared.len,
                                                   .media_len = shared.media_len,
                                                   .layout = shared.layout,
                                                   .sets = shared.sets,
                                                   .blocks = shared.blocks};
    memcpy(reply, &full, sizeof(full));
    fds[0] = fcntl(shared.fd, F_DUPFD_CLOEXEC, 0);
    if (fds[0] < 0)
        return -errno;
    fds[1] = fcntl(shared.media_fd, F_DUPFD_CLOEXEC, 0);
    if (fds[1] >= 0)
        return 2;
    err = -errno;
    close(fds[0]);
    return err;
}

int lease_copy_window(struct daemon *d, struct gq_copies_peer *copy_kernel, uid_t uid,
                      const struct gpunvme_ioc_copy_kernel *arg)
{
    _Atomic uint32_t cancel = 0;
    struct buffer_use use;

    if (arg->flags || arg->reserved || arg->addr % 4096 || arg->media % 4096)
        return -EINVAL;
    if (!copy_kernel)
        return -ENOENT;
    int err = buffer_use_begin(d->buffers, arg->id, arg->key, uid, BUFFER_DATA, &cancel, &use);
    if (err)
        return err;
    struct gq_buffer *b = buffer_gq(use.buffer);
    struct gq_copies_window window = {.owner = b, .there = arg->addr, .media_there = arg->media};
    err = b ? gq_buffer_device(b, &window.device, &window.len) : -ENOTSUP;
    if (!err)
        err = d->stack.drive.copies->ops->peer_window(copy_kernel, &window);
    buffer_use_end(d->buffers, &use);
    return err;
}

void lease_copy_end(struct daemon *d, struct gq_copies_peer *copy_kernel)
{
    if (copy_kernel)
        d->stack.drive.copies->ops->peer_close(copy_kernel);
}
