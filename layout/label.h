/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads, judges and writes the two copies of the label, and reads those of the
 * superblock (FORMAT.md 4.1 and 4.4). Every program uses only this code for
 * labels and superblocks.
 */
#ifndef LAYOUT_LABEL_H
#define LAYOUT_LABEL_H

#include <sys/cdefs.h>

#include "layout/layout.h"

__BEGIN_DECLS

/*
 * Gives access to the caller's device. Each call transfers one whole block or
 * flushes the device. A call returns 0 or -errno. -EIO from read means that the
 * block cannot be read. write and flush may be NULL if nothing is written.
 */
struct lay_io {
    int (*read)(void *arg, uint64_t block, void *data);
    int (*write)(void *arg, uint64_t block, const void *data);
    int (*flush)(void *arg);
    void *arg;
};

/* Describes one copy of the label. */
struct lay_label_copy {
    struct lay_label label; /* with a flipped bit corrected */
    int error;              /* 0, or -EINVAL, -EUCLEAN, -ENOTSUP, -EIO */
    const char *why;        /* reason of the error */
    bool corrected;         /* the block on the device has a flipped bit */
};

struct lay_labels {
    struct lay_label_copy copies[LAY_LABEL_COPIES]; /* of blocks 0 and 2,048 */
    int newest;        /* index of the copy that counts; valid after success and -ERANGE */
    uint64_t features; /* unknown incompat bits after -ENOTSUP, or 0 */
    const char *why;   /* after an error: a phrase for the user */
};

/*
 * Reads both copies and judges which one counts. Returns 0, or with labels->why
 * set:
 * -EINVAL: block 0 lacks the magic (R1a), so that the device is not ours.
 * `reclaim` lifts this rule.
 * -ENOTSUP: an unknown version or incompat features.
 * -EUCLEAN: no copy is sound, or the two contradict each other.
 * -EIO: neither copy can be read.
 * -ERANGE: the device has fewer blocks than the file system.
 * Another error of io->read is returned as it is, with why = "cannot be read".
 */
int lay_labels_read(const struct lay_io *io, uint64_t device_blocks, bool reclaim,
                    struct lay_labels *labels);

/* Returns the copy that counts. */
static inline const struct lay_label *lay_labels_newest(const struct lay_labels *labels)
{
    return &labels->copies[labels->newest].label;
}

/* Returns true if both copies are sound on the device and equal. */
bool lay_labels_equal(const struct lay_labels *labels);

/*
 * Advances *label to the next incarnation, which gets this random id (not 0).
 * *label is a copy of the label that counts.
 */
void lay_label_next(struct lay_label *label, uint64_t id);

/*
 * R1: seals *label and writes it to both places, the worse copy first. Each is
 * flushed and read back before the other is written. Returns 0, an error of a
 * callback, -EIO if a copy read back differs twice, or -EINVAL, with nothing
 * written, for a label that no reader would accept. *labels describes the copies
 * afterwards.
 */
int lay_labels_write(const struct lay_io *io, struct lay_labels *labels, struct lay_label *label);

/* Describes the copies of the superblock. */
struct lay_supers {
    struct lay_super copies[LAY_SUPER_COPIES]; /* with a flipped bit corrected */
    int errors[LAY_SUPER_COPIES];              /* 0, -EUCLEAN or -EIO */
    const char *why[LAY_SUPER_COPIES];         /* reasons of the errors */
    bool corrected[LAY_SUPER_COPIES];          /* the block on the device has a flipped bit */
};

/* Reads both superblocks. Returns 0 or an error of io->read other than -EIO. */
int lay_supers_read(const struct lay_io *io, const struct lay_geometry *of_label,
                    struct lay_supers *supers);

/* Returns the sound superblock with the highest tid, or NULL. */
const struct lay_super *lay_supers_newest(const struct lay_supers *supers);
/* Returns a sound superblock of this age, or NULL. */
const struct lay_super *lay_supers_of_age(const struct lay_supers *supers, uint32_t age);

__END_DECLS

#endif
