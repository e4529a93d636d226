/*
 * Copy kernels of applications that lease queues of a simulated drive.
 */
#include "fusefs/daemon/lease_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#include "cuda/gq_peer.h"
#include "fusefs/daemon/buffers.h"
#include "fusefs/daemon/daemon_log.h"

static_assert(COPY_KERNELS_OF_USER * 2 == GQ_PEERS, "one user has at most half");
static_assert(sizeof(struct gpunvme_reply_copy_kernel) == sizeof(struct gpunvme_reply),
              "one size of message");

static void dropped(void *context)
{
    const struct daemon *d = context;
    log_line(LOG_WARNING,
             "%s: an application's copy kernel does not respond, the daemon copies for it, slowly",
             d->opts->device);
}

static int make(struct daemon *d, struct gq_peer **out)
{
    const struct drive *drive = &d->stack.drive;
    const struct gq_peer_options opts = {
        .media = drive->media, .media_len = drive->media_len, .dropped = dropped, .ctx = d};
    if (!drive->media || !d->stack.engine)
        return -ENOTSUP;
    int err = gq_peer_open_on(d->stack.engine, &opts, out);
    return err == -EMFILE ? -EBUSY : err;
}

int lease_copy_reply(struct daemon *d, struct gq_peer **copy_kernel, struct gpunvme_reply *reply,
                     int fds[2])
{
    int err = *copy_kernel ? 0 : make(d, copy_kernel);
    if (err)
        return err;
    const struct gpunvme_reply_copy_kernel full = {.len = gq_peer_len(*copy_kernel),
                                                   .media_len = d->stack.drive.media_len,
                                                   .layout = GPUNVME_COPY_KERNEL_LAYOUT,
                                                   .sets = gq_peer_sets(*copy_kernel),
                                                   .blocks = gq_peer_blocks(*copy_kernel)};
    memcpy(reply, &full, sizeof(full));
    fds[0] = fcntl(gq_peer_fd(*copy_kernel), F_DUPFD_CLOEXEC, 0);
    if (fds[0] < 0)
        return -errno;
    fds[1] = fcntl(d->stack.drive.media_fd, F_DUPFD_CLOEXEC, 0);
    if (fds[1] >= 0)
        return 2;
    err = -errno;
    close(fds[0]);
    return err;
}

int lease_copy_window(struct daemon *d, struct gq_peer *copy_kernel, uid_t uid,
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
    err = b ? gq_buffer_add_window(b, copy_kernel, arg->addr, arg->media) : -ENOTSUP;
    buffer_use_end(d->buffers, &use);
    return err;
}

void lease_copy_end(struct gq_peer *copy_kernel)
{
    if (copy_kernel)
        gq_peer_close(copy_kernel);
}
