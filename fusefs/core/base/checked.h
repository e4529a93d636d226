/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Translates logical addresses (FORMAT.md 2.3) to blocks of the device, and
 * reads metadata blocks there. A block that fails its check is read again. If it
 * still fails and has a second place, that is read and the first one is written
 * from it. Otherwise, if one flipped bit explains the failure, the bit is
 * corrected in memory and on the device (FORMAT.md 2). The header is private to
 * the storage half.
 */
#ifndef FUSEFS_CORE_BASE_CHECKED_H
#define FUSEFS_CORE_BASE_CHECKED_H

#include "fusefs/core/storage.h"

#define FFS_PLACES 2u /* that a block may have */

/* The number of damaged blocks of which repeated reads are neither logged nor counted. */
#define FFS_DAMAGED_MAX 64u

struct ffs_checked {
    pthread_mutex_t lock; /* protects the next two fields; a leaf lock */
    uint64_t damaged_at[FFS_DAMAGED_MAX];
    uint64_t damaged; /* number of damaged blocks; the last ones are in damaged_at */
    bool may_write;   /* the mount has begun to write; does not change afterwards */
    _Atomic uint64_t reread, corrected;
    _Atomic uint64_t copied;     /* places that were written from the other one */
    _Atomic uint64_t unwritten;  /* writes of one of two places that failed */
    _Atomic uint64_t lost_place; /* the last one that could not be written, logged once */
    _Atomic bool copy_used;      /* a place was wrong */
    _Atomic bool any_damaged;    /* the superblock is to ask for a run of fsck */
};

/*
 * Stores the blocks of the device that hold the metadata of a logical address,
 * and returns how many there are: at most FFS_PLACES. Returns 0 if the file
 * system has no such address, or its segment is not mapped. The caller holds
 * ffs.meta.
 */
unsigned ffs_places_of(const struct ffs *fs, uint64_t addr, uint64_t places[FFS_PLACES]);
/*
 * Acts like ffs_places_of() for a block that has an image in ffs.home. A chunk keeps its
 * place until the transaction that unmaps it is committed and its images are
 * dropped. The caller holds journal.commit_lock, and ffs.meta is not needed.
 */
unsigned ffs_homes_of(const struct ffs *fs, uint64_t addr, uint64_t places[FFS_PLACES]);
/*
 * Reads a block from the first of its places that is right. The block must have
 * the age *age; if age is NULL, its age is not known. Age 0 means a new block,
 * for which the device is not read. The caller holds ffs.meta, and no image of
 * the block waits for a checkpoint, so nobody else writes to its places.
 * Returns 0, -EIO, or -EUCLEAN with *why if the block stays damaged.
 */
int ffs_checked_read(struct ffs *fs, uint64_t addr, const uint32_t *age, void *data,
                     const struct lay_expect *want, const char **why);
/*
 * Checks a block of which the bytes at its place are in `data`, and which was
 * read without ffs.meta. Reads it once more if it fails. Does not write, and
 * neither logs nor counts a correction, since the cache corrects the block when
 * it is used.
 */
int ffs_checked_there(struct ffs *fs, uint64_t addr, const uint32_t *age, void *data,
                      const struct lay_expect *want, const char **why);
/* Describes what a scrub found in one place of a metadata block. */
struct ffs_scrubbed {
    uint64_t place; /* block of the device */
    bool wrong;     /* when it was first read */
    bool unreadable;
    bool corrected; /* one flipped bit was corrected, or another read was right */
    bool copied;    /* was written from the other place */
};
/*
 * Reads all places of a block, which has the age `age` there, and corrects them
 * as ffs_checked_read() does, or from each other. Counts the block as damaged if
 * none is right. Fills `found` for each place and returns how many there are.
 * `data` is memory for a block. The caller holds ffs.meta, and also commit_lock
 * for labels and superblock; no image of the block waits for a checkpoint.
 */
unsigned ffs_checked_scrub(struct ffs *fs, uint64_t addr, uint32_t age, void *data,
                           struct ffs_scrubbed found[FFS_PLACES]);
/*
 * Corrects one flipped bit of a data block with the checksum entry `sum` in
 * `data` and on the device. The caller excludes writers of the file. Returns
 * -EUCLEAN if no single flip explains the difference, or the device's error.
 */
int ffs_checked_correct_data(struct ffs *fs, uint64_t block, uint32_t sum, void *data);
/*
 * Logs and counts a block that stays bad, and lets the superblock ask for a run
 * of fsck. The file system remains writable, because no operation changes what
 * it cannot read. Returns -EUCLEAN.
 */
int ffs_checked_damaged(struct ffs *fs, uint64_t addr, uint64_t ino, const char *why);
/*
 * Writes `data`, which the other place has, durably to a place of a block, and
 * counts that. Returns 0, the error of the device, or -EUCLEAN if the mount does
 * not write: the place stays damaged.
 */
int ffs_checked_write_copy(struct ffs *fs, uint64_t place, const void *data);
/*
 * Logs and counts a place that cannot be written, of a block whose other place
 * has been written.
 */
void ffs_checked_lose_place(struct ffs *fs, uint64_t place);
/* Stores the address of the n-th damaged block. Returns false if there is none yet. */
bool ffs_checked_nth_damaged(struct ffs *fs, uint64_t n, uint64_t *addr);

#endif
