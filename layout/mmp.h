/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Protects a device against simultaneous mounts by means of block 1 (rule R3 of
 * FORMAT.md). The functions use the device and the time only through callbacks.
 *
 * A holder of the block may send writes to the device until the time `until`,
 * which is twice the interval after its last write of the block. The holder
 * renews the block before that time. A program that wants to take a block in
 * use waits until the block has not changed for three times its interval. The
 * right of a holder that no longer renews the block thus ends one interval
 * before another program begins to write. By then all writes of the old holder
 * have taken effect.
 */
#ifndef LAYOUT_MMP_H
#define LAYOUT_MMP_H

#include <sys/cdefs.h>

#include "layout/layout.h"

__BEGIN_DECLS

/*
 * A program takes a free block by reading it and writing it within PROMPT. The
 * program then waits for SETTLE and reads the block back. If two programs found
 * the block free, the one that wrote first thus sees the block of the other.
 */
#define LAY_MMP_PROMPT_NS 100000000ull
#define LAY_MMP_SETTLE_NS 200000000ull

/* Gives access to the device and the time. */
struct lay_mmp_io {
    /* These functions transfer block 1 and return 0 or -errno. */
    int (*read)(void *arg, struct lay_mmp *block);
    int (*write)(void *arg, const struct lay_mmp *block, bool durable);
    /* Returns ns of a clock that also runs while the host is suspended. */
    uint64_t (*now)(void *arg);
    /* Waits for ns nanoseconds. Returns 0, or -EINTR if the caller has to stop. */
    int (*wait)(void *arg, uint64_t ns);
    /* Returns the time of day for lay_mmp.time. */
    struct lay_time (*date)(void *arg);
    void *arg;
};

/* Describes a program that takes or holds the block. The caller fills the first part. */
struct lay_mmp_hold {
    struct lay_mmp_io io;
    struct lay_geometry geo; /* of the label */
    uint8_t boot_id[16];     /* zero: unknown */
    uint8_t holder[16];      /* random */
    /*
     * Identifies the lock that excludes other users of the opened device on this
     * host, such as the inode of a locked file; 0 if there is none.
     */
    uint64_t lock;
    uint32_t state; /* LAY_MMP_MOUNTED or LAY_MMP_CHECKED */
    char host[LAY_MMP_HOST];

    uint64_t until;       /* end of the right to write, in ns of now() */
    uint32_t interval;    /* ms, of the file system */
    uint64_t sequence;    /* of the last block written */
    struct lay_mmp other; /* after -EBUSY: the block of the other holder */
};

/*
 * Reads the block once. Returns 1 if another holder may be alive, and describes
 * it in h->other. Returns 0 if not, or the error of the device. A damaged block
 * counts as in use, with zeros in h->other.
 */
int lay_mmp_look(struct lay_mmp_hold *h);
/*
 * Takes the block. Waits while a block in use may belong to a living holder: at
 * most three times its interval, or LAY_MMP_INTERVAL_MAX if it is damaged.
 * Returns -EBUSY if there is another holder, -EINTR, -ETIMEDOUT if the device is
 * too slow for the protocol, or the error of the device.
 */
int lay_mmp_take(struct lay_mmp_hold *h);
/*
 * Writes the block again, and extends h->until. Called every h->interval ms. A
 * call later than h->until takes the block again unless another program has
 * taken it. Returns -EBUSY if there is another holder. After other errors the
 * right is unchanged.
 */
int lay_mmp_renew(struct lay_mmp_hold *h);
/*
 * Frees the block. Returns -EBUSY if there is another holder. Returns
 * -ETIMEDOUT if the right has ended, because another holder may exist then.
 */
int lay_mmp_release(struct lay_mmp_hold *h);
/* Describes the holder in words for a message; the result has no quotes. */
void lay_mmp_text(const struct lay_mmp *block, char *text, size_t len);
#define LAY_MMP_TEXT 160u

__END_DECLS

#endif
