/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Counters that programs share with the daemon for what libgpunvme does without
 * it.
 */
#ifndef FUSEFS_DAEMON_STATE_SHARED_CALLS_H
#define FUSEFS_DAEMON_STATE_SHARED_CALLS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "gpunvme/gpunvme_ioctl.h"

/*
 * Limits of descriptions that share counters, in total and per user. Each holds
 * a descriptor.
 */
#define SHARED_CALLS_MAX     1024u
#define SHARED_CALLS_OF_USER 512u

struct daemon;
struct open_file;
struct shared_calls;

/* Protected by daemon.files_lock. */
struct shared_calls_log {
    struct shared_calls *first;
    struct gpunvme_calls ended; /* sum over closed descriptions */
};

/* Implements SHARE_CALLS. The memfd is closed with the file, or on an error. */
int shared_calls_add(struct daemon *d, struct open_file *file, uid_t uid, int fd);
/*
 * Called at RELEASE with the lock held. Describes the file, which shares
 * counters, for the last time.
 */
void shared_calls_end(struct shared_calls_log *log, struct open_file *file);
/* Fills in the counters that the file shares. Called with the lock held. */
void shared_calls_describe(struct shared_calls *c, struct gpunvme_open_file *out);
/* Stores the sum since the mount. */
void shared_calls_sum(struct daemon *d, struct gpunvme_calls *out);

#endif
