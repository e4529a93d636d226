/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The parts of fsck.gpunvme.
 *
 * A round reads the whole file system through the image and reports every fault (the passes);
 * findings whose repair is wanted leave marks. The repair after it (fix.c) follows the marks, with
 * every claimed block known. Rounds repeat until one finds nothing to repair, so what a repair
 * brings to light is repaired, too, and the last round is the proof. Changed blocks are kept in
 * memory (store.h) and go to the device in transactions of the journal.
 *
 * Functions return 0, -ENOMEM or a device error; findings are no errors. One thread.
 */
#ifndef MKFS_FSCK_FSCK_H
#define MKFS_FSCK_FSCK_H

#include <stdbool.h>
#include <stdint.h>

#include "mkfs/image.h"
#include "mkfs/walk.h"

enum problem {
#define PROBLEM(name, id, text, safety, remedy) PROBLEM_##name,
#include "mkfs/fsck/problems.def"
#undef PROBLEM
    PROBLEM_COUNT
};

enum fsck_mode {
    FSCK_CHECK, /* change nothing */
    FSCK_PREEN, /* repair safe problems; any other ends the repair */
    FSCK_ASK,   /* ask for each */
    FSCK_YES,
};

/* Facts about an inode after the pass over the inode file. */
struct inode_info {
    uint64_t parent;
    uint32_t nlink;
    uint32_t found; /* names of it; of a directory: directories in it */
    uint16_t flags;
    uint16_t fix; /* FIX_*: repairs that are wanted */
    uint8_t type; /* DT_*; 0: not in use */
};
#define INODE_UNKNOWN   0x01u /* its block is damaged */
#define INODE_ORPHAN    0x02u /* says it is on the orphan list */
#define INODE_ON_LIST   0x04u /* is on it */
#define INODE_NAMED     0x08u /* a directory that its parent names */
#define INODE_REACHED   0x10u /* from the root */
#define INODE_ON_PATH   0x20u /* of the walk to the root that is under way */
#define INODE_HAS_NAMES 0x40u /* a directory with entries */

#define FIX_CLEAR  0x001u /* free the inode */
#define FIX_MAP    0x002u /* build map or directory anew from sound nodes */
#define FIX_XATTR  0x004u /* the same of the attributes */
#define FIX_COUNTS 0x008u /* of the tree, and blocks */
#define FIX_SIZE   0x010u /* end of the last extent, or length of the target */
#define FIX_NLINK  0x020u
#define FIX_PARENT 0x040u
#define FIX_ATTACH 0x080u /* name it in lost+found */
#define FIX_GPU    0x100u /* no longer GPU-bound */
#define FIX_LIVE   0x200u /* no orphan any more */

struct inode_block_info {
    uint64_t addr; /* on the device; 0: none */
    uint64_t next_free;
    bool damaged, has_free, on_list;
};

/* A range of a file that lies on blocks of another object. */
struct fsck_conflict {
    uint64_t ino, file_block, block, len;
    bool metadata; /* zeros take its place; else a copy */
};

/* A change of one name. */
struct fsck_name_fix {
    uint64_t dir;
    uint64_t key; /* of an existing name; 0: a new one */
    uint64_t ino; /* new name: of this inode; existing name: 0 removes it */
    uint8_t type;
    uint8_t kind; /* of a new name: FSCK_NAME_* */
};
#define FSCK_NAME_INODE      0 /* "#INO" */
#define FSCK_NAME_LOST_FOUND 1 /* "lost+found" */
#define FSCK_NAME_JOURNAL    2 /* "journal-TID" */

/* A name that its directory's child does not confirm; decided when all names are known. */
struct fsck_stray {
    uint64_t dir, key, ino;
};

/* A sound leaf that nothing leads to, of an inode whose tree is to be built anew. */
struct fsck_lost_leaf {
    uint64_t ino, block;
    uint32_t magic;
};

/* Arrays that grow: fsck_grow(). */
struct fsck_list {
    void *items;
    size_t count, room;
};

/* Makes room for one more item of the list (list.c) and returns it zeroed, or NULL. */
void *fsck_grow(struct fsck_list *list, size_t size);

/* Blocks of a group, a bit for each. */
#define FSCK_GROUP_WORDS (LAY_GROUP_BLOCKS / 64)
struct fsck_group {
    uint64_t claimed[FSCK_GROUP_WORDS];  /* belong to something */
    uint64_t metadata[FSCK_GROUP_WORDS]; /* to the file system itself or a sound metadata block */
};

struct store;

struct fsck {
    struct image img;
    struct image_super super; /* as found */
    struct lay_super sb;      /* as it is after recovery and repair */
    const char *path;
    bool verbose, progress;
    enum fsck_mode mode;
    /* FSCK_ASK: the answer to the question that is on the terminal. */
    bool (*ask)(struct fsck *f);
    struct store *store;

    struct fsck_group **groups; /* blocks in use; NULL: none of the group */
    bool no_memory;             /* for one of them: the round ends with -ENOMEM */
    bool stolen;                /* metadata lies where data was claimed before */
    struct inode_block_info *inode_blocks;
    uint64_t inode_block_count;
    struct inode_info *inodes; /* eight for each inode block */
    uint64_t inodes_used;
    bool has_header;    /* the journal's header is sound: */
    uint64_t super_tid; /* of the superblock in place */
    uint64_t next_tid;  /* of the transaction after the log's last */
    bool replayed;      /* the log held transactions */
    bool incomplete;    /* something could not be read, so what belongs to it is not known */
    uint64_t found[PROBLEM_COUNT]; /* in all rounds */

    /* Of this round: */
    unsigned round;  /* from 1 on */
    uint64_t wanted; /* findings whose repair is wanted */
    uint64_t left;   /* all other findings */
    bool agreed;     /* the answer to the last report */
    bool structural; /* maps, directories or names are to be repaired: bitmaps come later */
    bool fix_free_list, fix_orphans, fix_inode_file;
    bool free_list_cut;  /* what follows a break in the list is not known */
    uint64_t lost_found; /* inode; 0: none */
    bool lost_found_taken;
    bool no_space; /* for what a repair builds */
    uint64_t grow; /* blocks that the inode file needs besides */
    struct fsck_list conflicts, name_fixes, strays, lost_leaves;
    struct fsck_list
        declined;      /* uint64_t: hashes of the findings that are to stay, of all rounds */
    uint64_t alloc_at; /* where the search for free blocks goes on */
    bool alloc_any;    /* blocks are left only where the bitmaps say otherwise */

    bool marked;       /* after recovery the superblock had the mark of an error */
    bool clear_error;  /* the mark in the superblock goes when all is repaired */
    bool unsafe;       /* FSCK_PREEN met a problem that is not safe */
    bool empty_sums;   /* checksums may be older than the data: the log is lost */
    bool set_aside;    /* the log is to be kept in lost+found */
    bool refused;      /* a repair that all repairs depend on is not wanted */
    uint64_t repaired; /* blocks written */
};

static inline uint64_t fsck_inode_limit(const struct fsck *f)
{
    return f->inode_block_count * LAY_INODES_PER_BLOCK;
}

/* Marks an inode for a repair; FIX_STRUCTURE: which blocks are in use will change. */
#define FIX_STRUCTURE (FIX_CLEAR | FIX_MAP | FIX_XATTR | FIX_ATTACH)
static inline void fsck_mark(struct fsck *f, uint64_t ino, uint16_t fix)
{
    f->inodes[ino].fix |= fix;
    if (fix & FIX_STRUCTURE)
        f->structural = true;
}

/* --- Reports (findings.c) --------------------------------------------------------------------- */

/*
 * One line: "ID object: text (detail)"; detail may be NULL. True: repair it. In a later round a
 * finding is reported like a new one.
 */
bool fsck_report(struct fsck *f, enum problem problem, const char *detail, const char *object, ...)
    __attribute__((format(printf, 4, 5)));
uint64_t fsck_problems(const struct fsck *f);
/* A line that is no finding. */
void fsck_say(struct fsck *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Says on a terminal how far a pass is. */
void fsck_progress(struct fsck *f, const char *pass, uint64_t done, uint64_t all);

/* --- Blocks in use (blocks.c) ----------------------------------------------------------------- */

/* A sound metadata block of ino. False, and reported, when another one was claimed there. */
bool fsck_claim(struct fsck *f, uint64_t ino, uint64_t block);
/* Data of a file; overlaps are reported and, if they are to be repaired, noted as conflicts. */
int fsck_claim_data(struct fsck *f, uint64_t ino, uint64_t file_block, uint64_t block,
                    uint64_t len);
/* The fixed areas. */
void fsck_claim_fixed(struct fsck *f, uint64_t block, uint64_t len);
bool fsck_is_claimed(const struct fsck *f, uint64_t block);
bool fsck_is_metadata(const struct fsck *f, uint64_t block);
/* Forgets all of them. -ENOMEM. */
int fsck_claim_nothing(struct fsck *f);
void fsck_free_claims(struct fsck *f);
/* Finds, and reports, the data that lies on metadata claimed after it. */
int fsck_stolen(struct fsck *f);
/*
 * Claims up to `want` free blocks that follow each other: *len of them, the first returned; 0:
 * none is left. Blocks that the bitmaps mark as in use come last.
 */
uint64_t fsck_alloc(struct fsck *f, uint64_t want, uint64_t *len);

/* --- Passes ----------------------------------------------------------------------------------- */

/*
 * The rounds, over an image that was started, and the repairs that f->mode allows. Memory is freed
 * by fsck_end().
 */
int fsck_run(struct fsck *f);
/* After fsck_run(): was everything that was found repaired, and found sound after that? */
bool fsck_all_repaired(const struct fsck *f);
/* fsck_run() that changes nothing. */
int fsck_passes(struct fsck *f);
/* Is the file system marked clean, and do superblock and journal confirm it? */
int fsck_says_clean(struct fsck *f, bool *clean);
void fsck_end(struct fsck *f);

/* The file system is no longer marked clean: from now on it matters what the log holds. */
int fsck_not_clean(struct fsck *f);
int fsck_journal(struct fsck *f);
int fsck_supers(struct fsck *f);
int fsck_inodes(struct fsck *f);
int fsck_map(struct fsck *f, uint64_t ino, const struct lay_inode *inode);
int fsck_directories(struct fsck *f);
int fsck_links(struct fsck *f);
int fsck_bitmaps(struct fsck *f);
/* The bitmap of a group, not checked; complete where it may be zeros. */
int fsck_read_bitmap(struct fsck *f, uint64_t group, union lay_block *b);
int fsck_sums(struct fsck *f);

/* --- Inode blocks (slots.c) ------------------------------------------------------------------- */

/*
 * Makes the block at `addr` a valid inode block: fields that are not valid are corrected, slots
 * that make no sense freed. With `report`, each change is reported, and *save says whether one of
 * them is to be written; inodes that need more get their marks in f->inodes.
 */
void fsck_fit_block(struct fsck *f, struct lay_inode_block *ib, uint64_t index, uint64_t addr,
                    bool report, bool *save);
/* Reads a mapped inode block and makes it valid, silently. */
int fsck_load_block(struct fsck *f, uint64_t index, union lay_block *b);

/* --- Repair ----------------------------------------------------------------------------------- */

/* Follows the marks of the round. */
int fsck_fix(struct fsck *f);
/* Claims the blocks that the trees to be built anew name, so that fsck_alloc() spares them. */
int fsck_reserve(struct fsck *f);
/*
 * Looks for leaves that no node leads to among all blocks that nothing claims, for the trees to be
 * built anew, and claims them with their data. After all else is claimed.
 */
int fsck_find_leaves(struct fsck *f);
/* Contents anew from sound nodes, in new blocks. -ENOSPC: nothing has changed. */
int fsck_rebuild_map(struct fsck *f, uint64_t ino, struct lay_inode *inode);
int fsck_rebuild_dir(struct fsck *f, uint64_t ino, struct lay_inode *inode);
int fsck_rebuild_xattrs(struct fsck *f, uint64_t ino, struct lay_inode *inode);
/* Maps each block of the inode file; those that are nowhere, and f->grow at its end, are new. */
int fsck_rebuild_inode_file(struct fsck *f);
/* Looks for blocks of the inode file that are not mapped among all that nothing else claims. */
int fsck_adopt_blocks(struct fsck *f);
/* By file block. */
void fsck_sort_extents(struct fsck_list *list);
/* Appends a struct lay_extent; none when len is 0. */
int fsck_add_extent(struct fsck_list *list, uint64_t file_block, uint64_t block, uint64_t len,
                    le16 flags);
/*
 * Makes the extents of the list, in order, the map of the inode. `old`: uint64_t, nodes of its tree
 * that may be used again when no other block is free.
 */
int fsck_put_map(struct fsck *f, uint64_t ino, struct lay_inode *inode,
                 const struct fsck_list *list, const struct fsck_list *old);
/* Reports, and marks, counts of an extent tree or directory other than those of its walk. */
void fsck_check_counts(struct fsck *f, uint64_t ino, const struct lay_inode *inode,
                       const struct walk_totals *totals);
/* Sets the counts of an inode whose trees are sound, and with `size` its size. */
int fsck_recount(struct fsck *f, uint64_t ino, struct lay_inode *inode, bool size);
/* Gives every unattached inode a name: marks lost+found, which it makes when it is missing. */
int fsck_attach(struct fsck *f);
/* Before a repair writes data to blocks: they have no checksums. */
int fsck_forget_sums(struct fsck *f, uint64_t block, uint64_t len);
/* Copies the log to a file in lost+found. */
int fsck_keep_log(struct fsck *f);

#endif
