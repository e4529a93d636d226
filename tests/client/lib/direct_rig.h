/* SPDX-License-Identifier: BSD-2-Clause */
/* The direct path as warps execute it, by a host thread that plays their lanes. */
#ifndef TESTS_CLIENT_LIB_DIRECT_RIG_H
#define TESTS_CLIENT_LIB_DIRECT_RIG_H

#include <stdbool.h>
#include <sys/cdefs.h>

#include "client/device/gd_launch.h"
#include "client/device/gd_table_launch.h"
#include "client/device/gd_types.h"

__BEGIN_DECLS

/*
 * The rank-th of `groups` shares of n pieces, to the one buffer of the file's set from dst on.
 * parts: NULL, or the words by which the groups deal the list.
 */
int direct_list_read(const struct gpunvme_device_file *f, uint64_t dst, struct gq_read_desc *list,
                     uint32_t n, uint32_t rank, uint32_t groups, struct gd_parts *parts);

/* Call gd_parts_of() and gd_leave_parts() as one of the groups of a launch. */
struct gd_parts *parts_rig_take(const struct gpunvme_device_file *f, struct gd_parts_table *table,
                                uint64_t number);
bool parts_rig_leave(struct gd_parts_table *table, struct gd_parts *parts, uint32_t groups,
                     int *err);

/* A read to the one buffer of the file's set; the rest is as for gd_share_read(). */
struct direct_staged_rig {
    const struct gpunvme_device_file *file;
    uint64_t dst, len, offset;
    struct gd_parts *parts;
    const uint32_t *cancel;
    uint32_t groups, unit;
};

/* The rank-th group. True: it was the last one, and *err is the read's. */
bool direct_staged_rig_read(const struct direct_staged_rig *r, uint32_t rank, int *err);

/* A check of a read, or of pieces that count from dst, to the one buffer of the file's set. */
struct compare_rig {
    const struct gpunvme_device_file *f;
    uint64_t dst;
    struct gq_read read;       /* at: 0 */
    struct gq_read_desc *list; /* NULL: the read */
    uint32_t n;                /* 1 of a read */
    struct gd_check *check;
};

/* Reads, by one group of the kernel. */
void compare_rig_read(const struct compare_rig *r);
/* All that `groups` groups compare. */
void compare_rig_compare(const struct compare_rig *r, uint32_t groups);
/* Concludes, of a list by the given number of groups. A read's result, else 0. */
int64_t compare_rig_conclude(const struct compare_rig *r, uint32_t groups);

/* --- Shared queues --------------------------------------------------------------------------- */

#define SHARED_LANES 32u

struct shared_read {
    uint64_t dst, len, offset;
    int64_t result;
};

/* Read like gpunvme_pread_warp(), gpunvme_preadv_warp(), and 32 threads with gpunvme_pread(). */
int64_t shared_read_warp(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                         uint64_t offset);
int shared_read_list(const struct gpunvme_device_file *f, uint64_t dst, struct gq_read_desc *list,
                     uint32_t n);
/*
 * By the short path (gd_lone.h), if it suits: whether it has ended there, or the result of a
 * command that continued on the general path, in *result.
 */
enum shared_path { SHARED_OTHER, SHARED_HANDED_ON, SHARED_LONE };
enum shared_path shared_read_lone(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                                  uint64_t offset, int *result);
void shared_read_lanes(const struct gpunvme_device_file *f, struct shared_read *reads);

/*
 * CIDs that a group gets for so many lanes by its claim number `tries`, counted from 0, of the
 * queue it begins with; they are given back.
 */
#define SHARED_PATIENCE 256u /* GD_PATIENCE */
uint32_t shared_claim(const struct gpunvme_device_file *f, uint32_t lanes, uint32_t tries);

/* The queue of n shared ones that a seed becomes; *seed: the next one. inverse: as in gd_set. */
uint32_t shared_place(uint32_t n, uint32_t inverse, uint32_t *seed);

/*
 * The word that a leader leaves in the lock after one round, in which the late completion of a LEFT
 * command comes, of two commands in flight. second: it is one more of the command that had its CID
 * before. *released: the CID has been given back.
 */
uint32_t shared_word_after_late_completion(bool second, bool *released);

/*
 * A queue in memory. CIDs below in_flight are of commands in flight, the first `own` of them hidden
 * by the lanes of the leader, which has no other ones. All CIDs are numbered 0 in their upper bits.
 */
#define SHARED_DEPTH 256u
struct shared_queue {
    struct gq_cmd cmds[SHARED_DEPTH - 1];
    uint32_t states[SHARED_DEPTH - 1];
    struct gq_cids cids;
    struct nvme_sqe sq[SHARED_DEPTH];
    struct nvme_cqe cq[SHARED_DEPTH];
    uint32_t doorbells[2];
    uint32_t in_flight, own;
    uint32_t head, ended; /* after the rounds; bits of lanes whose command has ended */
    bool broken;
};
/* Rounds of one leader from entry 0 on. Before each one `before` is called. */
void shared_lead(struct shared_queue *q, unsigned rounds, void (*before)(struct shared_queue *q));

/* As gpunvme_pread_warp_begin() and _end(). */
struct shared_ticket;
struct shared_ticket *shared_begin(const struct gpunvme_device_file *f, uint64_t dst, uint64_t len,
                                   uint64_t offset);
int64_t shared_end(struct shared_ticket *t);

__END_DECLS

#endif
