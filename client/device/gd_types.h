/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the library's tables for kernels that read through leased queues. The tables are plain
 * data in C11 and CUDA. They lie in GPU memory, or in memory of the process on mounts without a
 * GPU.
 */
#ifndef CLIENT_DEVICE_GD_TYPES_H
#define CLIENT_DEVICE_GD_TYPES_H

#include "cuda/queue/gq_reads.h"
#include "cuda/queue/gq_work.h"

#define GD_MAX_QUEUES 64u /* as GPUNVME_LEASE_MAX */
#define GD_GROUP      32u /* lanes that drive a queue together, at most */

/* Staging of a shared queue: a part for each of its first GD_STAGED_CIDS CIDs. */
#define GD_STAGED_ALL  8192u /* bytes of a part where all data is staged: the least MDTS */
#define GD_STAGED_ENDS 4096u /* otherwise: for the first and last bytes of reads; a page */
#define GD_STAGED_CIDS 32u   /* one word of gq_cids.taken */

/*
 * Limits the bytes of a command of a long read if all data is staged. A
 * software controller spends a part of a command's time independently of its
 * length. Fewer lanes share the staging of a queue then.
 */
#define GD_STAGED_LONG  65536u
#define GD_STAGED_QUEUE 524288u
/*
 * A read has this many commands before its commands become longer than lane_bytes. The number is
 * one command for each lane of eight queues.
 */
#define GD_STAGED_COMMANDS 256u
/* Bytes of staging of a queue whose lanes have lane_bytes each. */
#define GD_QUEUE_STAGING(lane_bytes) \
    ((lane_bytes) == GD_STAGED_ALL ? GD_STAGED_QUEUE : GD_GROUP * (lane_bytes))

/* Limits the pieces of a list, because the numbers of pieces are below GQ_NO_READ. */
#define GD_MAX_PIECES 0x7fffffffu

/* A long read is divided among queues. */
#define GD_READ_QUEUES    8u /* at most */
#define GD_QUEUE_COMMANDS 4u /* of each queue, at least */

/*
 * Number of copy warps of a block if the controller does not reach the buffer,
 * as GQ_COPY_WARPS.
 */
#define GD_COPY_WARPS 6u

/*
 * A word of gd_set.locks contains the lock of a queue and its ring position (struct gd_position),
 * so that a lane that takes the lock loads nothing more. The words are adjacent, so that a warp
 * loads all words at once. A zero word means a free queue at entry 0 in the first pass of the
 * rings.
 */
#define GD_TAKEN         1u
#define GD_LOST          2u /* commands in flight without a waiter: until queues are leased anew */
#define GD_ODD_PASS      4u /* the second, fourth...: CQEs of phase 0 */
#define GD_CQ_DB_PENDING 8u /* the CQ doorbell is behind this entry */
#define GD_IN_FLIGHT     0xfff0u /* commands that reads share (gd_shared.h) */
#define GD_FLIGHT_SHIFT  4u
#define GD_ENTRY_SHIFT   16u /* entries of rings have 16 bits */
/* Bits that keep a group from leading a queue, and from having it for itself. */
#define GD_LED         (GD_TAKEN | GD_LOST)
#define GD_BUSY        (GD_LED | GD_IN_FLIGHT)
#define GD_LEADS(word) (((word)&GD_LED) == 0)
#define GD_FREE(word)  (((word)&GD_BUSY) == 0)

/*
 * The word in the page of a lease that is valid. Every other value means that
 * the lease has ended.
 */
#define GD_LEASE_VALID   1u
#define GD_LEASE_REVOKED 2u

/*
 * Describes a queue pair and the working state of the owner of its lock. state is stored at the end
 * of a run of several commands; the next run takes the ring position from the lock word instead.
 */
struct gd_queue {
    struct gq_port port;
    struct gq_state state;
};

/*
 * Registered memory. The host writes entries while kernels read them; one of length 0 is unused.
 * Memory that the controller does not reach (tiers 0 and 1) has GD_UNREACHABLE as its IOVA: the
 * data pointers of commands are in staging, from which the group that reads copies.
 */
struct gd_buffer {
    uint64_t addr; /* of its first byte, as the reader addresses it */
    uint64_t len;  /* bytes */
    struct gq_target target;
};
#define GD_UNREACHABLE UINT64_MAX
#define GD_STAGES(b)   ((b)->target.iova == GD_UNREACHABLE)

/*
 * Describes a lease of queues. The lease is constant while a read is in flight, except for the
 * locks and CIDs.
 */
struct gd_set {
    struct gd_queue *queues;
    uint32_t *locks;
    const struct gd_buffer *buffers; /* with GD_GROUP more entries than can be in use */
    const uint32_t *n_buffers;       /* entries in use, or once in use */
    const uint32_t *lease;           /* the state in the lease's page, in host memory */
    struct gq_target staging; /* GD_QUEUE_STAGING(lane_bytes) for each queue, aligned to that */
    uint64_t command_ns;      /* deadline of a command, and bound of every wait */
    uint32_t n_queues;
    uint32_t nsid;
    uint32_t max_command; /* bytes, GD_STAGED_ALL at least */
    uint32_t lane_bytes;  /* of the shortest staged command of a read: a page or two */
    /* Of reads that share queues (gd_shared.h): */
    struct gq_cids *cids;            /* of each queue */
    struct gq_target shared_staging; /* shared_bytes for each of staged_cids CIDs of each queue */
    uint32_t shared_bytes;           /* a page or two */
    uint32_t staged_cids;            /* the first ones of a queue; whole words of gq_cids.taken */
    uint32_t shared_inverse;         /* gd_inverse() of the number of queues that are shared */
    uint32_t number; /* of the lease; successive leases of a connection have different ones */
};

/* Returns the number of shared queues among n. */
GQ_FN uint32_t gd_shared_queues(uint32_t n)
{
    return n - n / 4;
}

/* Returns 2^32 / n for gd_share_place(); n is not 0. */
GQ_FN uint32_t gd_inverse(uint32_t n)
{
    return UINT32_MAX / n;
}

/*
 * Returns the bytes of a command of a long read that is staged, a power of two.
 */
GQ_FN uint32_t gd_staged_unit(const struct gd_set *s, uint64_t len)
{
    uint32_t most = s->max_command < GD_STAGED_LONG ? s->max_command : GD_STAGED_LONG;
    uint32_t unit = s->lane_bytes;

    while (unit > most)
        unit /= 2;
    while (2 * unit <= most && len / (2 * unit) >= GD_STAGED_COMMANDS)
        unit *= 2;
    return unit;
}

/*
 * Age of a check of the leases at which it is repeated, and the greatest one while another group
 * repeats it: far below GPUNVME_LEASE_GRACE_MS.
 */
#define GD_CHECK_NS      1000000u
#define GD_CHECK_MOST_NS (2 * GD_CHECK_NS)

/* Bit of checked_ns, whose times are even: a group repeats the check. */
#define GD_CHECKING 1u

/* Describes a leased file. The struct is opaque in gpunvme_device.h. */
struct gpunvme_device_file {
    struct gq_file_map map;
    struct gd_set set;
    const uint32_t *lease; /* the state in the extents' page, in host memory */
    uint64_t *checked_ns;  /* time of the last check of both states */
    /* Words in the page of the extents, which the daemon changes; the table lies beside extents. */
    struct gq_file_sums sums;
    uint64_t *bad_block; /* 1 + offset in the file of the last block that did not match; 0: none */
};

/*
 * Describes the words by which the blocks of one launch distribute its reads
 * (gd_parts.h). The words are zero while no launch uses them.
 */
struct gd_parts {
    struct gq_dealing dealing;
    uint32_t left;   /* groups that have ended */
    uint32_t errnum; /* the greatest number of an error of any group; 0: none */
};

/*
 * The words of all launches. A launch is found by its number. A GPU executes at most 128 kernels at
 * a time.
 */
#define GD_LAUNCHES 128u
struct gd_parts_table {
    uint64_t number[GD_LAUNCHES]; /* 1 + number of the launch that uses the words; 0: none */
    struct gd_parts parts[GD_LAUNCHES];
    uint32_t lock; /* of a group that looks for unused words */
    uint32_t reserved;
};

/*
 * A long read that is staged has at most GD_STAGED_QUEUES blocks, each with a
 * queue, or GD_STAGED_FEW if it has less than GD_STAGED_MANY bytes. On an H200
 * the greater number makes reads of 32 to 128 MiB 4 to 10 % faster, and reads of
 * 8 MiB, of which several run at a time, up to 10 % slower.
 */
#define GD_STAGED_QUEUES 12u
#define GD_STAGED_FEW    8u
#define GD_STAGED_MANY   (32u << 20)

/*
 * Describes the words of one check of a read or a list. A second kernel
 * compares the data, and a third kernel again reads data that differs
 * (gd_compare.h). When a check begins, all words except `runs` are zero.
 */
#define GD_REFUSED 60u
struct gd_check {
    uint32_t runs;    /* checks that have ended; not reset */
    uint32_t refused; /* blocks of a read, or of pieces, that differ */
    uint32_t left;    /* groups that have concluded */
    uint32_t reserved;
    int64_t bytes;              /* of a read: its result so far */
    uint64_t block[GD_REFUSED]; /* the first ones of a read, by number in the file */
};

#endif
