/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Pieces of shared_list_alloc_pieces() (client/list.h) without a GPU or a mount: the driver maps
 * memory by arithmetic, and the mount takes all that it is asked to.
 */
#ifndef TESTS_CLIENT_LIB_SHARED_LIST_RIG_H
#define TESTS_CLIENT_LIB_SHARED_LIST_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "client/lib/connection.h"

__BEGIN_DECLS

#define LIST_RIG_GPU 0x5000000000000000u /* what the GPU's addresses are higher by */

struct list_rig;

struct list_rig *list_rig_open(void);
/* All lists with it. */
void list_rig_close(struct list_rig *r);
struct connection *list_rig_handle(struct list_rig *r);

/* What opening the direct path does to lists, on a mount with a GPU or without. */
int list_rig_direct(struct list_rig *r, bool gpu);
/* Where it finds n pieces: as shared_list_locate() returns. */
int list_rig_locate(struct list_rig *r, const struct gpunvme_piece *pieces, size_t n, uint64_t *at);

/* From now on mapping fails, or not. */
void list_rig_fail(bool fail);
/*
 * Successful calls of the driver to map, so far; lists that are mapped now; lists at the mount.
 */
struct list_rig_counts {
    int calls, mapped, registered;
};
struct list_rig_counts list_rig_counts(void);

__END_DECLS

#endif
