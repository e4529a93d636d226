/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path of the library over a mount that a test plays: its ioctls, and its socket. */
#ifndef TESTS_CLIENT_LIB_HOSTILE_RIG_H
#define TESTS_CLIENT_LIB_HOSTILE_RIG_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "client/lib/connection.h"

__BEGIN_DECLS

/* What the mount answers. A zero in `fail` is success. */
struct hostile_mount {
    struct gpunvme_ioc_info info;
    struct gpunvme_ioc_queue_lease queues;
    struct gpunvme_ioc_extent_lease extents;
    int fail_register, fail_iova, fail_queues, fail_extents; /* 0 or -errno */
    unsigned lease_ends;                                     /* that it was asked for */
    unsigned unregistered;
};

/* A handle of it, without connecting; m and dev_fd, a file of "the mount", stay the caller's. */
struct connection *hostile_open(struct hostile_mount *m, int dev_fd);
void hostile_close(struct connection *g);
/*
 * Releases memory at g whose buffer a copy still uses, although no thread waits
 * for the copy. Returns true if other memory can be registered in the meantime.
 */
bool hostile_registers_during_release(struct connection *g);
/* Opens a table of a file of the mount, which must refuse it, and returns the error. */
int hostile_open_table(struct connection *g);

__END_DECLS

#endif
