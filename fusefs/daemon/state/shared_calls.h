/* SPDX-License-Identifier: BSD-2-Clause */
/* Counters that programs share with the daemon: what libgpunvme does without it. */
#ifndef FUSEFS_DAEMON_STATE_SHARED_CALLS_H
#define FUSEFS_DAEMON_STATE_SHARED_CALLS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpunvme/gpunvme_ioctl.h"

/* Descriptions that share, in all and of one user. Each holds a descriptor. */
#define SHARED_CALLS_MAX     1024u
#define SHARED_CALLS_OF_USER 512u

struct daemon;
struct open_file;
struct shared_calls;

/* Protected by daemon.files_lock. */
struct shared_calls_log {
    struct shared_calls *first;
    struct gpunvme_calls ended; /* the sum of those of descriptions that were closed */
};

/* SHARE_CALLS, with the memfd, which is closed when file is, or on an error. */
int shared_calls_add(struct daemon *d, struct open_file *file, uid_t uid, int fd);
/* Called at RELEASE with the lock held: file, which shares some, is described for the last time. */
void shared_calls_end(struct shared_calls_log *log, struct open_file *file);
/* Fills in what moved through file, which shares some. The lock is held. */
void shared_calls_describe(struct shared_calls *c, struct gpunvme_open_file *out);
/* The sum since the mount. */
void shared_calls_sum(struct daemon *d, struct gpunvme_calls *out);

#endif
