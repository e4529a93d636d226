/* SPDX-License-Identifier: BSD-2-Clause */
/* Transfers of the library over a mount that a test plays, whose calls signals end early. */
#ifndef TESTS_CLIENT_LIB_SIGNAL_RIG_H
#define TESTS_CLIENT_LIB_SIGNAL_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "client/lib/connection.h"

__BEGIN_DECLS

#define SIGNAL_RIG_STEP 1000u /* bytes, or pieces from the first on, that a call reads at most */

struct signal_rig {
    unsigned interrupted; /* of that many calls and one more only the last reads anything */
    bool in_place;        /* pieces are of shared_list_alloc_pieces() */
    unsigned ends_with;   /* the call during which the buffer is unregistered; 0: none */
    bool ended;           /* it comes when that is done: there is no such buffer */
    bool bounces;         /* short transfers take the bounce pipeline: */
    int bounce_err;       /* what that ends with */
    bool ends_list;       /* that ends a list, and not only its last piece */
    unsigned bounced;     /* out: calls of the pipeline */
    unsigned calls;       /* out */
    unsigned held;        /* out: those of them during which SIGUSR1 was blocked */
    bool faults_held;     /* out: SIGSEGV or SIGTERM was, in any */
};

/* All of a file without an end: as transfer_read() and readv_buffer(). */
ssize_t signal_rig_read(struct signal_rig *r, size_t len, struct gpunvme_result *result);
int signal_rig_readv(struct signal_rig *r, struct gpunvme_piece *pieces, size_t n,
                     struct gpunvme_result *result);

__END_DECLS

#endif
