/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Fills lost+found. Gives names to inodes that have none, and saves a damaged
 * log in a file.
 */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "mkfs/fsck/store.h"
#include "support/minmax.h"

static int attach_add_name(struct fsck *f, uint64_t dir, uint64_t ino, uint8_t kind)
{
    struct fsck_name_fix *fix = fsck_grow(&f->name_fixes, sizeof(*fix));
    struct inode_info *info = &f->inodes[ino];

    if (!fix)
        return -ENOMEM;
    *fix = (struct fsck_name_fix){.dir = dir, .ino = ino, .type = info->type, .kind = kind};
    fsck_mark(f, dir, FIX_MAP);
    if (info->type == DT_DIR) {
        info->parent = dir;
        f->inodes[dir].found++;
        fsck_mark(f, dir, FIX_NLINK);
        fsck_mark(f, ino, FIX_PARENT | FIX_NLINK);
    } else {
        info->found++;
        fsck_mark(f, ino, FIX_NLINK);
    }
    return 0;
}

/* Returns a free slot for a new inode, or 0 if the inode file must grow first. */
static uint64_t find_slot(const struct fsck *f)
{
    for (uint64_t ino = LAY_INO_ROOT + 1; ino < fsck_inode_limit(f); ino++) {
        const struct inode_block_info *block = &f->inode_blocks[ino / LAY_INODES_PER_BLOCK];
        if (block->addr && !block->damaged && block->has_free && f->inodes[ino].type == 0 &&
            !(f->inodes[ino].flags & INODE_UNKNOWN))
            return ino;
    }
    return 0;
}

static int put_inode(struct fsck *f, uint64_t ino, struct lay_inode *inode)
{
    uint64_t index = ino / LAY_INODES_PER_BLOCK;
    unsigned slot = ino % LAY_INODES_PER_BLOCK;
    union lay_block b;
    int err = fsck_load_block(f, index, &b);

    if (err)
        return err;
    inode->generation = lay_put32(lay_get32(b.inodes.inodes[slot].generation) + 1);
    inode->version = lay_put64(1);
    inode->atime = inode->mtime = inode->ctime = inode->btime = f->sb.mounted;
    b.inodes.inodes[slot] = *inode;
    b.inodes.used = (uint8_t)(b.inodes.used | 1u << slot);
    f->inode_blocks[index].has_free = b.inodes.used != 0xff;
    f->fix_free_list = true;
    f->inodes[ino].type = (uint8_t)(lay_get32(inode->mode) >> 12);
    f->inodes[ino].nlink = lay_get32(inode->nlink);
    f->sb.inodes = lay_put64(lay_get64(f->sb.inodes) + 1);
    return store_put(f, f->inode_blocks[index].addr, &b);
}

static int make_lost_found(struct fsck *f, uint64_t ino)
{
    struct lay_inode inode = {0};

    if (f->lost_found_taken)
        fsck_say(f, "lost+found is no directory, lost+found.1 is used instead");
    inode.mode = lay_put32(S_IFDIR | 0700);
    inode.nlink = lay_put32(2);
    inode.parent = lay_put64(LAY_INO_ROOT);
    inode.map_kind = lay_put16(LAY_MAP_DIR);
    inode.map_height = lay_put16(1);
    /* The root is not a directory node; the tree is built when the marks are followed. */
    inode.map.tree.root = lay_put64(f->inode_blocks[ino / LAY_INODES_PER_BLOCK].addr);
    inode.map.tree.blocks = lay_put64(1);
    inode.size = lay_put64(LAY_BLOCK_SIZE);
    int err = put_inode(f, ino, &inode);
    if (err)
        return err;
    f->lost_found = ino;
    fsck_mark(f, ino, FIX_MAP);
    return attach_add_name(f, LAY_INO_ROOT, ino, FSCK_NAME_LOST_FOUND);
}

/*
 * Finds or creates lost+found. If no block is left for it, the root directory
 * serves instead, whose own blocks can be used again. *there is false if the
 * inode file must grow first; everything that needs lost+found then waits for
 * the next round.
 */
static int need_lost_found(struct fsck *f, bool *there)
{
    uint64_t ino = f->lost_found ? 0 : find_slot(f);
    bool left = true;
    int err = f->lost_found ? 0 : fsck_meta_left(f, &left);

    *there = true;
    if (err || f->lost_found)
        return err;
    if (!left) {
        fsck_say(f, "No block is free for lost+found, the root directory is used instead");
        f->lost_found = LAY_INO_ROOT;
        return 0;
    }
    if (ino)
        return make_lost_found(f, ino);
    *there = false;
    f->grow = 1;
    f->fix_inode_file = true;
    return 0;
}

static bool any_to_attach(const struct fsck *f)
{
    for (uint64_t ino = 0; ino < fsck_inode_limit(f); ino++) {
        if (f->inodes[ino].fix & FIX_ATTACH)
            return true;
    }
    return false;
}

int fsck_attach(struct fsck *f)
{
    bool there;
    int err = any_to_attach(f) ? need_lost_found(f, &there) : 0;

    for (uint64_t ino = 0; ino < fsck_inode_limit(f) && !err && f->lost_found; ino++) {
        if (!(f->inodes[ino].fix & FIX_ATTACH))
            continue;
        fsck_lose(f, ino, LOSS_NAME);
        err = attach_add_name(f, f->lost_found, ino, FSCK_NAME_INODE);
    }
    return err;
}

/* --- Files that are kept ---------------------------------------------------------------------- */

/* Describes a file to be created in lost+found. */
struct attach_file {
    uint8_t name;         /* FSCK_NAME_* */
    uint64_t size;        /* bytes */
    const uint8_t *bytes; /* NULL: the logs, and the label and the superblock of their tail */
    const char *no_space; /* is said if there is no space for it */
};

static int attach_write_log(struct fsck *f, uint64_t at, uint64_t to, uint64_t n)
{
    const struct lay_geometry *geo = &f->img.geo;
    const uint64_t logs = lay_logs(geo) * geo->log_blocks, end = to + n;
    int err = 0;

    for (uint64_t some; at < logs && to < end && !err; at += some, to += some) {
        some = min_u64(end - to, geo->log_blocks - at % geo->log_blocks);
        unsigned log = (unsigned)(at / geo->log_blocks);
        err = store_copy(f, lay_log_block(geo, log, at % geo->log_blocks), to, some, true);
    }
    for (; to < end && !err; at++, to++)
        err = store_put_data(
            f, to, at == logs ? (const void *)lay_labels_newest(&f->labels) : &f->recovered);
    return err;
}

static int attach_write_bytes(struct fsck *f, const struct attach_file *file, uint64_t at,
                              uint64_t to, uint64_t n)
{
    int err = 0;

    for (uint64_t i = 0; i < n && !err; i++) {
        uint64_t from = (at + i) << LAY_BLOCK_SHIFT;
        union lay_block b = {0};
        memcpy(&b, file->bytes + from, min_u64(file->size - from, sizeof(b)));
        err = store_put_data(f, to + i, &b);
    }
    return err;
}

/* Writes the file to new blocks. *whole is false if there was no space. */
static int attach_write(struct fsck *f, const struct attach_file *file, struct lay_inode *inode,
                        bool *whole)
{
    uint64_t blocks = (file->size + LAY_BLOCK_SIZE - 1) / LAY_BLOCK_SIZE, done = 0, n;
    unsigned count = 0;
    int err = 0;

    for (; done < blocks && count < LAY_INLINE_EXTENTS && !err; done += n) {
        uint64_t to = fsck_alloc(f, blocks - done, &n);
        if (n == 0)
            break;
        err = file->bytes ? attach_write_bytes(f, file, done, to, n)
                          : attach_write_log(f, done, to, n);
        if (!err)
            err = fsck_forget_sums(f, to, n);
        struct lay_extent *e = &inode->map.extents[count++];
        e->file_block = lay_put64(done);
        e->block = lay_put64(to);
        e->len = lay_put32((uint32_t)n);
    }
    *whole = done == blocks;
    inode->map_count = lay_put16((uint16_t)count);
    inode->size = lay_put64(file->size);
    inode->blocks = lay_put64(done);
    return err;
}

/* Makes the file. *tried is false if it has to wait for the next round. */
static int attach_make(struct fsck *f, const struct attach_file *file, bool *tried, bool *whole)
{
    struct lay_inode inode = {.mode = lay_put32(S_IFREG | 0400),
                              .nlink = lay_put32(1),
                              .map_kind = lay_put16(LAY_MAP_INLINE)};
    bool there = true;
    int err = need_lost_found(f, &there);
    uint64_t ino = err || !there ? 0 : find_slot(f);

    *tried = ino != 0;
    *whole = false;
    if (!err && there && ino == 0) {
        f->grow = 1;
        f->fix_inode_file = true;
    }
    if (ino == 0)
        return err;
    if (file->name == FSCK_NAME_JOURNAL)
        f->set_aside = false;
    /* A report is not worth a name in the root directory. */
    if (file->name != FSCK_NAME_REPORT || f->lost_found != LAY_INO_ROOT)
        err = attach_write(f, file, &inode, whole);
    if (!err && !*whole)
        fsck_say(f, "%s", file->no_space);
    if (err || !*whole)
        return err;
    err = put_inode(f, ino, &inode);
    return err ? err : attach_add_name(f, f->lost_found, ino, file->name);
}

int fsck_keep_log(struct fsck *f)
{
    const struct attach_file file = {
        .name = FSCK_NAME_JOURNAL,
        .size = (lay_logs(&f->img.geo) * f->img.geo.log_blocks + FSCK_KEPT_MORE) << LAY_BLOCK_SHIFT,
        .no_space = "The damaged log is not kept: no space for a copy"};
    bool tried, whole;

    /* The free blocks are unknown until everything has been read. */
    if (!f->set_aside || f->incomplete)
        return 0;
    int err = attach_make(f, &file, &tried, &whole);
    if (!err && whole)
        fsck_say(f, "The damaged log is kept: lost+found/journal-%" PRIu64, f->next_tid);
    return err;
}

int fsck_keep_text(struct fsck *f, const char *text, size_t len, bool *kept)
{
    const struct attach_file file = {.name = FSCK_NAME_REPORT,
                                     .size = len,
                                     .bytes = (const uint8_t *)text,
                                     .no_space = "The report is not kept in lost+found: no space"};
    bool whole;

    return attach_make(f, &file, kept, &whole);
}
