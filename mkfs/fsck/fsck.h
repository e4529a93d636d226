/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares the parts of fsck.gpunvme.
 *
 * In each round, the passes read the whole file system through the image,
 * report every fault, and mark the objects to be repaired. When every claimed
 * block is known, the repair (fix.c) handles the marks. Rounds repeat until a
 * round finds nothing to repair. Thus faults that a repair reveals are repaired
 * too, and the last round proves the result. Changed blocks are kept in memory
 * (store.h) and reach the device in transactions of the journal.
 *
 * Functions return 0, -ENOMEM or a device error. Findings are not errors. fsck
 * has only one thread.
 */
#ifndef MKFS_FSCK_FSCK_H
#define MKFS_FSCK_FSCK_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "mkfs/image.h"
#include "mkfs/replay.h"
#include "mkfs/walk.h"

enum problem {
#define PROBLEM(name, id, text, safety, remedy) PROBLEM_##name,
#include "mkfs/fsck/problems.def"
#undef PROBLEM
    PROBLEM_COUNT
};

enum fsck_mode {
    FSCK_CHECK, /* change nothing */
    FSCK_PREEN, /* repair safe problems; any other one ends the repair */
    FSCK_ASK,   /* ask before each repair */
    FSCK_YES,
};

/* Holds facts about an inode that are known after the pass over the inode file. */
struct inode_info {
    uint64_t parent;
    uint32_t nlink;
    uint32_t found; /* names found; for a directory: subdirectories found */
    uint16_t flags;
    uint16_t fix; /* FIX_*: pending repairs */
    uint8_t type; /* DT_*; 0 if not in use */
};
#define INODE_UNKNOWN   0x01u /* the block is damaged */
#define INODE_ORPHAN    0x02u /* the fields place the inode on the orphan list */
#define INODE_ON_LIST   0x04u /* found on the orphan list */
#define INODE_NAMED     0x08u /* a directory that its parent names */
#define INODE_REACHED   0x10u /* reachable from the root */
#define INODE_ON_PATH   0x20u /* on the current walk to the root */
#define INODE_HAS_NAMES 0x40u /* a directory with entries */
#define INODE_DOUBTED   0x80u /* out of a block whose checksum failed, or that is stale */

#define FIX_CLEAR  0x001u /* free the inode */
#define FIX_MAP    0x002u /* rebuild map or directory from valid nodes */
#define FIX_XATTR  0x004u /* rebuild the attributes */
#define FIX_COUNTS 0x008u /* correct the counts of blocks and of the tree */
#define FIX_SIZE   0x010u /* derive the size from the last extent or the target */
#define FIX_NLINK  0x020u
#define FIX_PARENT 0x040u
#define FIX_ATTACH 0x080u /* name it in lost+found */
#define FIX_GPU    0x100u /* clear the GPU-bound flag */
#define FIX_LIVE   0x200u /* remove the inode from the orphans */

struct inode_block_info {
    uint64_t addr; /* 0 if none */
    uint64_t next_free;
    bool damaged, has_free, on_list;
    bool reseal; /* the content is kept though its checksum failed */
};

/* Describes a range of a file that occupies blocks of another object. */
struct fsck_conflict {
    uint64_t ino, file_block, block, len;
    bool metadata; /* the range becomes damaged, else it gets a copy */
};

/* A change to one name. */
struct fsck_name_fix {
    uint64_t dir;
    uint64_t key; /* key of an existing name; 0 for a new one */
    uint64_t ino; /* inode of a new name; 0 removes an existing one */
    uint8_t type;
    uint8_t kind; /* kind of a new name: FSCK_NAME_* */
};
#define FSCK_NAME_INODE      0 /* "#INO" */
#define FSCK_NAME_LOST_FOUND 1 /* "lost+found" */
#define FSCK_NAME_JOURNAL    2 /* "journal-TID" */
#define FSCK_NAME_REPORT     3 /* "report-TID" */

/*
 * Describes a name that the child's parent field does not confirm. The name is
 * judged when all names are known.
 */
struct fsck_stray {
    uint64_t dir, key, ino;
};

/*
 * Describes a valid leaf that no node refers to. The tree of its inode is to be
 * rebuilt.
 */
struct fsck_lost_leaf {
    uint64_t ino, addr;
    uint32_t magic;
};

/* Describes a name of an inode. */
struct fsck_name {
    uint64_t ino, dir;
    uint8_t len;
    uint8_t bytes[LAY_NAME_MAX];
};

/*
 * Describes a place of a metadata block where the contents differ from those of
 * the block's other place.
 */
struct fsck_copy {
    uint64_t place, addr;
    bool heal; /* will be written from the other place */
};

/*
 * Describes a block of a log behind the newest commit that cannot be read or
 * written.
 */
struct fsck_ahead {
    uint64_t pos, place; /* in the log, and on the device */
    bool bad;            /* until the repair has written it */
};
/* Maximum number of blocks behind the newest commit that are checked. */
#define FSCK_AHEAD 256u

/*
 * Holds the number of blocks that an inode stated before its fields were
 * corrected.
 */
struct fsck_doubt {
    uint64_t ino, blocks;
};

/*
 * Describes device blocks whose data is in doubt after a repair of checksums.
 */
struct fsck_suspect {
    uint64_t block, len;
    bool unverified; /* the block has no checksum now; otherwise they differ */
};

/* What is lost of a file. The ranges are those that the file system has now. */
enum fsck_loss_kind {
    LOSS_DATA,       /* a damaged extent */
    LOSS_DIFFERS,    /* the data differs from a checksum that was kept */
    LOSS_UNVERIFIED, /* the checksums are gone */
    LOSS_FILE,       /* all of it, and its name */
    LOSS_INODE,      /* a slot of a lost inode block */
    LOSS_NAMES,      /* names in the directory */
    LOSS_XATTRS,
    LOSS_TARGET,
    LOSS_FIELDS, /* the inode comes from a block whose checksum failed */
    LOSS_NAME,   /* its name */
    LOSS_ENTRY,  /* the name comes from a block whose checksum failed */
};
struct fsck_loss {
    uint64_t ino;
    uint64_t first, end; /* bytes, of a range */
    enum fsck_loss_kind kind;
    size_t name; /* LOSS_FILE: number of its name in lost_names, from 1 on; 0: none */
    char *path;  /* in the report; NULL if unknown */
};

/* Describes an extent of a file that is examined for lost data. */
struct fsck_extent {
    uint64_t ino, size; /* of the file, bytes */
    uint64_t file_block, block, len;
    bool damaged;
};

/* Describes a growing array; see fsck_grow(). */
struct fsck_list {
    void *items;
    size_t count;
};

/*
 * Holds the extents (struct lay_extent) of a map to be built, and the nodes
 * (uint64_t) of the old map.
 */
struct fsck_plan {
    uint64_t ino;
    struct fsck_list extents, nodes;
};

/* Returns one more item of the list, zeroed, or NULL without memory. */
void *fsck_grow(struct fsck_list *list, size_t size);
/* Appends a copy of an item. Returns 0 or -ENOMEM. */
int fsck_append(struct fsck_list *list, const void *item, size_t size);
/* Returns true if a list of uint64_t has the value. */
bool fsck_has(const struct fsck_list *list, uint64_t value);
/* Sort items by the uint64_t that they begin with, and return the one with `key`, or NULL. */
void fsck_sort(struct fsck_list *list, size_t size);
void *fsck_find(const struct fsck_list *list, uint64_t key, size_t size);

/* Describes the blocks of a group in bitmaps with one bit for each block. */
#define FSCK_GROUP_WORDS (LAY_GROUP_BLOCKS / 64)
struct fsck_group {
    uint64_t claimed[FSCK_GROUP_WORDS];  /* belong to an object */
    uint64_t metadata[FSCK_GROUP_WORDS]; /* fixed areas and valid metadata blocks */
};

/* Holds blocks of a group that are named by records in blocks with wrong checksums. */
struct fsck_nominees {
    uint64_t once[FSCK_GROUP_WORDS];
    uint64_t twice[FSCK_GROUP_WORDS];
};

struct store;

struct fsck {
    struct image img;
    struct lay_labels labels;   /* as found, then as written */
    struct lay_supers supers;   /* as found */
    struct log log;             /* as found */
    bool log_read;              /* the two before and `recovered` are set */
    struct lay_super recovered; /* the superblock that counts after recovery */
    bool super_lost;            /* `recovered` is not the one that the log names */
    struct lay_super sb;        /* `recovered` with repairs */
    const char *path;
    const char *why;    /* reason of -EUCLEAN of fsck_run() */
    const char *replay; /* file with a log to be applied, or NULL */
    bool verbose, progress;
    bool reclaim; /* block 0 may be anything */
    enum fsck_mode mode;
    /* FSCK_ASK: returns the answer to the question on the terminal. */
    bool (*ask)(struct fsck *f);
    struct store *store;

    struct fsck_group **groups;      /* blocks in use; NULL if none in the group */
    struct fsck_nominees **nominees; /* like groups; NULL if there are none */
    bool no_memory;                  /* allocation of a group failed: the round ends with -ENOMEM */
    struct fsck_list segments;       /* struct fsck_segment: blocks of chunks in use */
    struct inode_block_info *inode_blocks;
    uint64_t inode_block_count;
    struct inode_info *inodes; /* eight per inode block */
    uint64_t inodes_used;
    uint64_t next_tid;     /* tid of the transaction after the log's last whole one */
    uint64_t bitmap_group; /* group of `bitmap`, or UINT64_MAX */
    bool bitmap_sound;
    union lay_block bitmap;         /* that was read last: fsck_bitmap_of() */
    struct fsck_list given_up;      /* uint64_t: inodes that the rest of a damaged log changes */
    struct fsck_list given_names;   /* struct fsck_name: names in that rest */
    struct fsck_list given_bitmaps; /* struct lay_bitmap: bitmaps in that rest */
    struct fsck_list given_entries; /* struct lay_entries: entries in that rest */
    bool incomplete;                /* something was unreadable, so its contents are unknown */
    uint64_t found[PROBLEM_COUNT];  /* counts over all rounds */

    /* The following fields are the state of this round. */
    unsigned round;  /* starts at 1 */
    uint64_t wanted; /* findings to be repaired */
    uint64_t left;   /* all other findings */
    bool agreed;     /* the answer to the last report */
    bool structural; /* maps, directories or names will be repaired, bitmaps later */
    bool fix_free_list, fix_orphans, fix_inode_file;
    bool free_list_cut;  /* the free list is broken; its rest is unknown */
    uint64_t lost_found; /* inode; 0 if none */
    bool lost_found_taken;
    bool no_space; /* not enough space for a repair */
    uint64_t grow; /* additional blocks that the inode file needs */
    struct fsck_list conflicts, name_fixes, strays, lost_leaves;
    struct fsck_list doubts;       /* struct fsck_doubt */
    struct fsck_list ranges;       /* struct fsck_loss */
    struct fsck_list plans;        /* struct fsck_plan, in the order of inodes */
    struct fsck_list corrected;    /* uint64_t: blocks with a flipped bit, reported in this round */
    struct fsck_list copies;       /* struct fsck_copy, sorted; reported in this round */
    struct fsck_list bad_places;   /* uint64_t: places that cannot be written, over all rounds */
    struct fsck_list ahead;        /* struct fsck_ahead: bad blocks of the log, to be repaired */
    bool gave_up;                  /* something that must be in the report */
    bool keep_report, report_kept; /* in lost+found */
    struct fsck_list losses;       /* struct fsck_loss but ranges, over all rounds */
    struct fsck_list lost_names;   /* struct fsck_name, over all rounds */
    struct fsck_list report;       /* struct fsck_loss with paths: fsck_make_report() */
    struct fsck_list suspects;     /* struct fsck_suspect, over all rounds */
    struct fsck_list declined;     /* uint64_t: hashes of declined findings, over all rounds */
    uint64_t alloc_at;             /* start of the next search for free blocks */
    bool alloc_any;                /* only blocks that the bitmaps mark as in use are left */
    size_t meta_at;                /* mapped segment where the next search for a block begins */
    bool meta_any;                 /* only blocks that the entries mark as in use are left */

    bool marked;       /* the superblock had the error mark after recovery */
    bool clear_error;  /* remove the error mark once all is repaired */
    bool unsafe;       /* FSCK_PREEN found a problem that is not safe */
    bool empty_sums;   /* the log is lost, so checksums may be older than the data */
    bool set_aside;    /* the log is to be kept in lost+found */
    bool refused;      /* a repair that all others depend on was declined */
    uint64_t repaired; /* blocks written */
};

/* Returns the number of inode slots. */
static inline uint64_t fsck_inode_limit(const struct fsck *f)
{
    return f->inode_block_count * LAY_INODES_PER_BLOCK;
}

/* Marks an inode; FIX_STRUCTURE changes which blocks are in use. */
#define FIX_STRUCTURE (FIX_CLEAR | FIX_MAP | FIX_XATTR | FIX_ATTACH)
static inline void fsck_mark(struct fsck *f, uint64_t ino, uint16_t fix)
{
    f->inodes[ino].fix |= fix;
    if (fix & FIX_STRUCTURE)
        f->structural = true;
}

/* --- Reports (findings.c) --------------------------------------------------------------------- */

/*
 * Reports a finding in one line: "ID object: text (detail)"; detail may be
 * NULL. Returns true if it is to be repaired. A later round reports it again
 * like a new one.
 */
bool fsck_report(struct fsck *f, enum problem problem, const char *detail, const char *object, ...)
    __attribute__((format(printf, 4, 5)));
/*
 * Returns `yes`, which is the answer to a repair that all others depend on.
 * Records a refusal.
 */
static inline bool fsck_must(struct fsck *f, bool yes)
{
    f->refused |= !yes;
    return yes;
}
/*
 * Holds the open range of blocks with the same finding. One line reports it:
 * "blocks N to M", after `where`.
 */
struct fsck_range {
    struct fsck *f;
    const char *where;
    enum problem problem; /* PROBLEM_COUNT if no range is open */
    uint64_t first;
    bool fix; /* one of them is to be repaired */
};
/*
 * Starts a range at the block if the finding is another one than before, and
 * reports the range that ends there. PROBLEM_COUNT means no finding, and also
 * ends the last range.
 */
void fsck_range_add(struct fsck_range *r, enum problem problem, uint64_t block);
/*
 * Formats a name for a terminal: each byte outside printable ASCII becomes \xNN.
 * `out` has 4 bytes per byte of the name, and one more. Returns out.
 */
char *fsck_printable(const uint8_t *name, unsigned len, char *out);
/* Returns the number of findings so far. */
uint64_t fsck_problems(const struct fsck *f);
/* Prints a line that is no finding. */
void fsck_say(struct fsck *f, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Shows the progress of a pass on a terminal. */
void fsck_progress(struct fsck *f, const char *pass, uint64_t done, uint64_t all);
/* Reports a finding about an inode, which is marked (FIX_*) if it is to be repaired. */
void fsck_want(struct fsck *f, enum problem problem, const char *detail, uint64_t ino,
               uint16_t fix);
/* Copies a name of directory `dir`. */
struct fsck_name fsck_name_of(uint64_t dir, const struct lay_dirent *d);
/* Records a loss that is no range, once. */
void fsck_lose(struct fsck *f, uint64_t ino, enum fsck_loss_kind kind);
/* Records that the inode of a name in directory `dir` is lost. */
void fsck_lose_name(struct fsck *f, uint64_t dir, const struct lay_dirent *d);

/* --- Blocks in use (blocks.c) ----------------------------------------------------------------- */

/* Claims data of a file. Reports overlaps, and records conflicts. */
int fsck_claim_data(struct fsck *f, uint64_t ino, uint64_t file_block, uint64_t block,
                    uint64_t len);
/* Claims blocks of the fixed areas, chunks, and data that a repair must not touch. */
void fsck_claim_fixed(struct fsck *f, uint64_t block, uint64_t len);
/* Forgets all claims but those of the fixed areas. Returns 0 or -ENOMEM. */
int fsck_claim_areas(struct fsck *f);
bool fsck_is_claimed(const struct fsck *f, uint64_t block);
bool fsck_any_claimed(const struct fsck *f, uint64_t block, uint64_t len);
bool fsck_is_metadata(const struct fsck *f, uint64_t block);
/*
 * Nominates blocks for a record that needs proof. A block that two records
 * nominate is contested. Return 0 or -ENOMEM; false without nominations.
 */
int fsck_nominate(struct fsck *f, uint64_t block, uint64_t len);
bool fsck_is_contested(const struct fsck *f, uint64_t block);
void fsck_free_claims(struct fsck *f);
/*
 * Claims up to `want` contiguous free blocks for data. Stores their number in
 * *len and returns the first; 0 means that none is left. Blocks that the bitmaps
 * mark as in use come last.
 */
uint64_t fsck_alloc(struct fsck *f, uint64_t want, uint64_t *len);
/* Claims free space for a chunk. Returns its first block, or 0. */
uint64_t fsck_alloc_chunk(struct fsck *f);

#define FSCK_AGES_BEHIND "later blocks are in place"

/* --- Ages (named_ages.c, age_levels.c) -------------------------------------------------------- */

/*
 * Checks the blocks that have the ages of map, bitmaps and checksums. A damaged
 * one is built from the blocks below it.
 */
int fsck_levels(struct fsck *f);
/*
 * Returns in *age the age that a block has: 0 if it was never written, and any
 * other one if it is damaged. Returns 0, -ENOMEM or a device error.
 */
int fsck_age_of_block(struct fsck *f, uint64_t addr, uint32_t *age);
/*
 * Fills the ages of a block that names some: the present ones, if they are
 * known, otherwise those that the block has, or those of the blocks themselves.
 */
int fsck_fill_ages(struct fsck *f, uint64_t addr, union lay_block *b);
/*
 * If part of the log is lost, enters the ages of blocks in place that are later
 * than the block that names them. *changed says whether there were any. Returns
 * 0, -ENOMEM or a device error.
 */
int fsck_refresh_ages(struct fsck *f, uint64_t addr, union lay_block *b, bool *changed);
/* Acts like fsck_refresh_ages() for the blocks of the map, which is known. */
int fsck_map_ages(struct fsck *f);

/* --- Chunks (find_chunks.c, segments.c) ------------------------------------------------------- */

/* FSCK_AT is a format for an address in a chunk, and FSCK_AT_OF has its arguments. */
#define FSCK_AT          "segment %" PRIu64 " block %u"
#define FSCK_AT_OF(addr) lay_addr_segment(addr), lay_addr_index(addr)

/* Returns the blocks of a chunk. */
static inline uint64_t fsck_chunk_blocks(const struct fsck *f)
{
    return (uint64_t)LAY_SEGMENT_BLOCKS << f->img.geo.chunk_shift;
}
/*
 * Reads and checks the chunk map, finds chunks that it lacks, and claims all of
 * them. Then f->img has the map.
 */
int fsck_load_map(struct fsck *f);
/* Puts a block of the map as f->img has it. */
int fsck_put_map_block(struct fsck *f, uint64_t index);
/* Forgets all claims in chunks but those of the entries. Returns 0 or -ENOMEM. */
int fsck_start_segments(struct fsck *f);
/*
 * Claims a valid block in a chunk for ino. If it belongs to another object,
 * reports that and returns false.
 */
bool fsck_claim(struct fsck *f, uint64_t ino, uint64_t addr);
/* Claims any block in a chunk, so that a repair does not touch it. */
void fsck_keep(struct fsck *f, uint64_t addr);
/*
 * Calls each() for the blocks in chunks that are marked as in use, or may be,
 * and belong to nothing that was found, until it returns an error.
 */
int fsck_each_lost(struct fsck *f, int (*each)(struct fsck *f, uint64_t addr, void *arg),
                   void *arg);
/* Compares the entries of all segments with the claims. */
int fsck_entries(struct fsck *f);
/*
 * Claims a free block in a chunk, which may be a new one; *addr is 0 if none is
 * left. Blocks that the entries mark as in use come last. Returns 0, -ENOMEM or
 * a device error.
 */
int fsck_alloc_meta(struct fsck *f, uint64_t *addr);
/* Sets *left to whether that would find one. */
int fsck_meta_left(struct fsck *f, bool *left);
/* Maps the chunk with the lowest number that is free. -ENOSPC: there is no space for it. */
int fsck_new_chunk(struct fsck *f);

/* --- Losses (report.c) ------------------------------------------------------------------------ */

/* Records what cannot be read of an extent, or has lost its checksum. */
void fsck_look_for_losses(struct fsck *f, const struct fsck_extent *e);
/* Makes f->report of everything recorded. Called like fsck_paths(). */
int fsck_make_report(struct fsck *f);
void fsck_forget_report(struct fsck *f);
/* Prints f->report, a line for each loss. */
void fsck_print_report(const struct fsck *f, FILE *to);
/* Return the word for a kind in JSON, and whether it has a range. */
const char *fsck_loss_id(enum fsck_loss_kind kind);
bool fsck_loss_is_range(enum fsck_loss_kind kind);
/* Puts the report in lost+found, once the rest is repaired. */
int fsck_keep_report(struct fsck *f);
/*
 * Puts the text of a report in lost+found. *kept is true afterwards unless it
 * has to wait for the next round; without space for it, a line says so.
 */
int fsck_keep_text(struct fsck *f, const char *text, size_t len, bool *kept);

/* --- Passes ----------------------------------------------------------------------------------- */

/* Runs the rounds with the repairs of f->mode; fsck_end() follows. */
int fsck_run(struct fsck *f);
/*
 * Called after fsck_run(). Returns true if no fault is left and every place can
 * be written.
 */
bool fsck_all_repaired(const struct fsck *f);
/*
 * Sets *clean to true if labels, superblocks and log agree that the file system
 * is clean.
 */
int fsck_says_clean(struct fsck *f, bool *clean);
/* Frees all memory of a run. */
void fsck_end(struct fsck *f);

/*
 * Reads superblocks and log, once. Returns 0, -EUCLEAN with f->why if no
 * superblock is usable, -ENOMEM or a device error.
 */
int fsck_read_log(struct fsck *f);
/* The passes are declared in order. fsck_inodes() calls fsck_map() for each inode. */
void fsck_labels(struct fsck *f);
int fsck_journal(struct fsck *f);
void fsck_supers(struct fsck *f);
int fsck_inodes(struct fsck *f);
int fsck_map(struct fsck *f, uint64_t ino, const struct lay_inode *inode);
int fsck_directories(struct fsck *f);
int fsck_links(struct fsck *f);
int fsck_bitmaps(struct fsck *f);
/*
 * Returns the bitmap of the block's group, valid until the next call, or NULL
 * if it is damaged, stale or unreadable.
 */
const struct lay_bitmap *fsck_bitmap_of(struct fsck *f, uint64_t block);
/* Returns true if the bitmap of its group marks the block as in use. */
static inline bool fsck_is_marked(const struct lay_bitmap *bm, uint64_t block)
{
    uint64_t bit = block % LAY_GROUP_BLOCKS;

    return bm->bits[bit / 8] >> bit % 8 & 1;
}
/* Returns true if the bitmaps mark all blocks of a range as in use, as far as they are sound. */
bool fsck_in_use(struct fsck *f, uint64_t block, uint64_t len);
int fsck_sums(struct fsck *f);

/* --- Inode blocks (slots.c) ------------------------------------------------------------------- */

/*
 * Turns the block at `addr` into a valid inode block: corrects invalid fields
 * and frees senseless slots. With `report`, it reports each change, and sets
 * *save if one of them is to be written. Inodes that need more repairs are
 * marked in f->inodes.
 */
void fsck_fit_block(struct fsck *f, struct lay_inode_block *ib, uint64_t index, uint64_t addr,
                    bool report, bool *save);
/* Makes a slot free; its generation stays. */
void fsck_free_slot(struct lay_inode_block *ib, unsigned slot);
/* Reads a mapped inode block and makes it valid without reports. */
int fsck_load_block(struct fsck *f, uint64_t index, union lay_block *b);
/*
 * Calls each() for the inodes in use of a type (DT_*; 0 means any) that have one
 * of the repairs `fix` pending (0 means any), until it returns an error. `pass`
 * is for fsck_progress(), or NULL.
 */
typedef int (*fsck_inode_fn)(void *arg, uint64_t ino, const struct lay_inode *inode);
int fsck_each_inode(struct fsck *f, const char *pass, uint8_t type, uint16_t fix,
                    fsck_inode_fn each, void *arg);

/* --- Large values of attributes (large_values.c) ---------------------------------------------- */

/* Adds the record to the list if it is part of a large value. Returns 0 or -ENOMEM. */
int fsck_add_part(struct fsck_list *parts, const struct lay_xattr *x);
/* Judges the values whose parts are in the list, and returns how many lack a part. */
size_t fsck_judge_parts(struct fsck_list *parts);
/* Returns true if the record is part of a value that was found to lack one. */
bool fsck_part_is_broken(const struct fsck_list *parts, const struct lay_xattr *x);

/* --- Repair ----------------------------------------------------------------------------------- */

/* Does the repairs marked in this round. */
int fsck_fix(struct fsck *f);
/* Claims blocks of trees to be rebuilt, so that none is allocated. */
int fsck_reserve(struct fsck *f);
/*
 * Chooses the extents of the maps to be rebuilt, and claims their blocks. Called
 * when everything else is claimed.
 */
int fsck_plan_maps(struct fsck *f);
/* Returns the plan of an inode, or NULL. */
const struct fsck_plan *fsck_find_plan(const struct fsck *f, uint64_t ino);
void fsck_forget_plans(struct fsck *f);
/* Rebuild contents in new blocks; -ENOSPC leaves them unchanged. */
int fsck_rebuild_map(struct fsck *f, uint64_t ino, struct lay_inode *inode);
int fsck_rebuild_dir(struct fsck *f, uint64_t ino, struct lay_inode *inode);
/* Rebuilds the inode file's map; creates missing blocks and f->grow more. */
int fsck_rebuild_inode_file(struct fsck *f);
/* Sorts extents by file block. */
void fsck_sort_extents(struct fsck_list *list);
/* Appends a struct lay_extent, unless len is 0. */
int fsck_add_extent(struct fsck_list *list, uint64_t file_block, uint64_t block, uint64_t len,
                    le16 flags);
/* Appends damaged extents without blocks for a range. Returns 0 or -ENOMEM. */
int fsck_add_damage(struct fsck_list *list, uint64_t file_block, uint64_t len);
/*
 * Makes the list's extents, in order, the map of the inode. `old` lists nodes
 * of its tree (uint64_t) that may be reused if no other block is free.
 */
int fsck_put_map(struct fsck *f, uint64_t ino, struct lay_inode *inode, struct fsck_list *list,
                 const struct fsck_list *old);
/* Reports and marks stored counts that differ from the counted ones. */
void fsck_check_counts(struct fsck *f, uint64_t ino, const struct lay_inode *inode,
                       const struct walk_totals *totals);
/* Sets the counts of an inode whose trees are valid; with `size` also its size. */
int fsck_recount(struct fsck *f, uint64_t ino, struct lay_inode *inode, bool size);
/* Gives every unattached inode a name in lost+found, which is created if missing. */
int fsck_attach(struct fsck *f);
/* Removes the checksums of blocks to which a repair will write data. */
int fsck_forget_sums(struct fsck *f, uint64_t block, uint64_t len);
/*
 * Copies the log to a file in lost+found, and behind it the label and the
 * superblock as of the last whole transaction.
 */
int fsck_keep_log(struct fsck *f);
#define FSCK_KEPT_MORE 2u /* blocks behind the log in the file */
/*
 * Puts the images of a whole log that fsck_keep_log() made, in the file
 * f->replay. Returns 0, -EUCLEAN with f->why, -ENOMEM or an error.
 */
int fsck_apply_kept(struct fsck *f);

/* --- What is lost (paths.c, given_*.c) -------------------------------------------------------- */

/* Collects what the transactions behind the gap of a damaged log change. */
int fsck_find_given_up(struct fsck *f);
/* Returns true if the block is in use after these transactions. */
bool fsck_is_given_up(const struct fsck *f, uint64_t block);
/* Lists the changes, before the first repair. */
int fsck_list_given_up(struct fsck *f);
/*
 * Calls say() for each inode of the list (uint64_t) with its path, or NULL if it
 * has none. Names of `more` (struct fsck_name), which are sorted, serve for
 * inodes without another name; `more` may be NULL. Called after the passes of a
 * round, with f->inodes in memory.
 */
int fsck_paths(struct fsck *f, const struct fsck_list *inos, struct fsck_list *more,
               void (*say)(void *arg, uint64_t ino, const char *path), void *arg);

#endif
