/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parts of fsck.gpunvme. Each pass reads the device through the image, reports its findings and
 * returns 0, -ENOMEM or a device error; findings are no errors.
 */
#ifndef MKFS_FSCK_H
#define MKFS_FSCK_H

#include <stdbool.h>
#include <stdint.h>

#include "mkfs/image.h"
#include "mkfs/walk.h"

enum problem {
#define PROBLEM(name, id, text) PROBLEM_##name,
#include "mkfs/problems.def"
#undef PROBLEM
    PROBLEM_COUNT
};

/* Facts about an inode after the pass over the inode file. */
struct inode_info {
    uint64_t parent;
    uint32_t nlink;
    uint32_t found; /* names of it; of a directory: directories in it */
    uint8_t type;   /* DT_*; 0: not in use */
    uint8_t flags;
};
#define INODE_UNKNOWN   0x01u /* its block is damaged */
#define INODE_ORPHAN    0x02u /* says it is on the orphan list */
#define INODE_ON_LIST   0x04u /* is on it */
#define INODE_NAMED     0x08u /* a directory that some directory names */
#define INODE_REACHED   0x10u /* from the root */
#define INODE_ON_PATH   0x20u /* of the walk to the root that is under way */
#define INODE_HAS_NAMES 0x40u /* a directory with entries */

struct inode_block_info {
    uint64_t addr; /* on the device */
    uint64_t next_free;
    bool damaged, has_free, on_list;
};

struct fsck {
    struct image img;
    struct image_super super;
    struct lay_super sb; /* as it is after recovery */
    const char *path;
    bool verbose, progress;

    uint64_t *claimed; /* bit per block: belongs to something */
    struct inode_block_info *inode_blocks;
    uint64_t inode_block_count;
    struct inode_info *inodes; /* eight for each inode block */
    uint64_t inodes_used;
    bool has_header;    /* the journal's header is sound: */
    uint64_t super_tid; /* of the superblock in place */
    uint64_t next_tid;  /* of the transaction after the log's last */
    bool replayed;      /* the log held transactions */
    bool incomplete;    /* something could not be read, so what belongs to it is not known */
    uint64_t found[PROBLEM_COUNT];
};

static inline uint64_t fsck_inode_limit(const struct fsck *f)
{
    return f->inode_block_count * LAY_INODES_PER_BLOCK;
}

/* One line: "ID object: text (detail)"; detail may be NULL. */
void fsck_report(struct fsck *f, enum problem problem, const char *detail, const char *object, ...)
    __attribute__((format(printf, 4, 5)));
uint64_t fsck_problems(const struct fsck *f);
/* Says on a terminal how far a pass is. */
void fsck_progress(struct fsck *f, const char *pass, uint64_t done, uint64_t all);

/* Claims blocks for an object; reports those that another object has. False if there were any. */
bool fsck_claim(struct fsck *f, uint64_t ino, uint64_t block, uint64_t len);
bool fsck_is_claimed(const struct fsck *f, uint64_t block);

/* All passes, over an image that was started; their memory is then freed. */
int fsck_passes(struct fsck *f);
void fsck_end(struct fsck *f);

int fsck_journal(struct fsck *f);
int fsck_supers(struct fsck *f);
int fsck_inodes(struct fsck *f);
int fsck_map(struct fsck *f, uint64_t ino, const struct lay_inode *inode);
int fsck_directories(struct fsck *f);
int fsck_links(struct fsck *f);
int fsck_bitmaps(struct fsck *f);

#endif
