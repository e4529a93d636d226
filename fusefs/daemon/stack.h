/*
 * Everything below the FUSE session: controller, block device, executor, file system.
 */
#ifndef FUSEFS_DAEMON_STACK_H
#define FUSEFS_DAEMON_STACK_H

#include <stddef.h>

#include "blockdev/bdev.h"
#include "blockdev/nvme.h"
#include "cuda/gq.h"
#include "fusefs/core/ffs.h"
#include "fusefs/daemon/mount_options.h"

/*
 * What the device string named: a controller behind a transport, or (transport NULL) a block
 * device that the kernel drives.
 */
struct drive {
    struct nvme_transport *transport;
    struct bd_dev *bdev;
    int (*release)(void *context); /* after the transport has been closed; may be NULL */
    void *context;
    /*
     * Of a drive simulated in this process: what its bytes are mapped from, for applications'
     * copiers (copier.h), and where. NULL: none; the descriptor is closed after release().
     */
    const void *media;
    size_t media_len;
    int media_fd;
};

struct stack {
    struct drive drive;
    struct nvme_ctrlr *ctrlr;   /* NULL: no NVMe controller */
    struct bd_dev *bdev;        /* what the file system lives on */
    struct gq_engine *engine;   /* NULL: every transfer takes the bounce path */
    struct gq_info engine_info; /* zero without an engine */
    struct ffs *fs;
    char no_engine[128];      /* why there is no engine; empty when there is one */
    const char *device;       /* its name, for messages */
    struct nvme_user watcher; /* of the controller's resets, while watching */
    bool watching;
};

/*
 * Builds the stack; the drive is the stack's from then on, also when it fails. 0, or -errno with
 * a sentence that names the device in why.
 */
int stack_open(const struct options *opts, const struct drive *drive, struct stack *out, char *why,
               size_t len);
/* Queue pairs of the ordinary path. There is a controller. */
unsigned stack_cpu_queues(const struct stack *s);
/*
 * Nothing may use the stack any more. 0, the error of the file system's last writes, or what the
 * drive's release said.
 */
int stack_close(struct stack *s);

#endif
