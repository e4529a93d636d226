/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the layers below the FUSE session: controller, block device,
 * executor, and file system.
 */
#ifndef FUSEFS_DAEMON_START_STACK_H
#define FUSEFS_DAEMON_START_STACK_H

#include <stddef.h>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"
#include "cuda/gq.h"
#include "fusefs/core/ffs.h"
#include "fusefs/daemon/start/bounce_engine.h"
#include "fusefs/daemon/start/mount_gpus.h"
#include "fusefs/daemon/start/mount_options.h"
#include "support/reason.h"

/*
 * The device that the device string names: a controller behind a transport, or,
 * if transport is NULL, a block device of the kernel.
 */
struct drive {
    struct nvme_transport *transport;
    struct bd_dev *bdev;
    uint8_t host_id[16];           /* of bdev, bd_reserve.h */
    int (*release)(void *context); /* called after the transport's close, unless NULL */
    void *context;
    /* Memory of devices that stand for GPUs. The end of the stack closes it. */
    int cpu_memories[GQ_CPU_MEMORIES];
    unsigned n_cpu_memories;
};

struct stack {
    struct drive drive;
    struct nvme_ctrlr *ctrlr;    /* NULL without an NVMe controller */
    struct bd_dev *bdev;         /* holds the file system */
    struct gpus *gpus;           /* NULL if every transfer takes the bounce path */
    struct bounce_engine bounce; /* moves the data of the bounce path */
    struct gq_info engine_info;  /* of the first GPU's executor; zero without one */
    struct ffs *fs;
    bool protected;           /* the device takes no writes: the mount is read-only */
    bool data_csum;           /* data has checksums, which READ and READV compare */
    struct reason no_engine;  /* the reason why there is no executor; otherwise empty */
    const char *device;       /* device name for messages */
    struct nvme_user watcher; /* notified of controller resets, if watching */
    bool watching;
    uint32_t reserved_nsid; /* the namespace if it is reserved for this host, or 0 */
};

/*
 * Opens the stack and takes over the drive, even on failure. Returns 0, or
 * -errno with a sentence in why that names the device.
 */
int stack_open(const struct options *opts, const struct drive *drive, struct stack *out,
               struct reason *why);
/*
 * Returns the number of queue pairs of the ordinary path. Precondition: there
 * is a controller.
 */
unsigned stack_cpu_queues(const struct stack *s);
/*
 * Starts the background scrub with so many bytes per second, in place of one
 * that runs, or ends it: with 0, or if the device takes no writes. Returns 0 or
 * -errno.
 */
int stack_scrub(const struct stack *s, uint64_t rate);
/*
 * Precondition: the stack is unused. Returns 0, the error of the file system's
 * last writes, or the result of drive.release().
 */
int stack_close(struct stack *s);

#endif
