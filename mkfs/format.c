/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes and verifies the metadata of an empty file system.
 *
 * Old superblocks are erased first. Then all other blocks are written, flushed
 * and verified. The new superblocks come last, with block 0 at the end. A crash
 * before that leaves a device that no mount accepts.
 */
#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "mkfs/mkfs_core.h"

/*
 * Returns a 64th of the device, within 1024 to 32768 blocks, but at most a 16th
 * and at least LAY_MIN_JOURNAL.
 */
static uint64_t journal_size(uint64_t blocks)
{
    uint64_t journal = blocks / 64;

    if (journal < 1024)
        journal = 1024;
    if (journal > 32768)
        journal = 32768;
    if (journal > blocks / 16)
        journal = blocks / 16;
    return journal < LAY_MIN_JOURNAL ? LAY_MIN_JOURNAL : journal;
}

/* True if every block of the group is free; its bitmap is then a block of zeros. */
static bool mkfs_group_is_free(const struct mkfs_plan *plan, uint64_t group)
{
    uint64_t first = group * LAY_GROUP_BLOCKS, end = first + LAY_GROUP_BLOCKS;

    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++) {
        if (plan->geo.copies[i] >= first && plan->geo.copies[i] < end)
            return false;
    }
    return first > plan->root_node && end <= plan->geo.blocks;
}

/*
 * True if some bitmap can be zero. Without one the feature stays off, so that
 * older programs can read the file system.
 */
static bool has_free_group(const struct mkfs_plan *plan)
{
    uint64_t group = 0, groups = lay_groups(&plan->geo);

    while (group < groups && !mkfs_group_is_free(plan, group))
        group++;
    return group < groups;
}

static void place(const struct mkfs_params *params, struct mkfs_plan *plan)
{
    struct lay_geometry *geo = &plan->geo;

    memcpy(geo->uuid, params->uuid, sizeof(geo->uuid));
    memcpy(geo->hash_seed, params->hash_seed, sizeof(geo->hash_seed));
    if (params->label)
        memcpy(geo->label, params->label, strlen(params->label));
    geo->bitmap_start = 1;
    geo->bitmap_blocks = (geo->blocks + LAY_GROUP_BLOCKS - 1) / LAY_GROUP_BLOCKS;
    geo->journal_start = geo->bitmap_start + geo->bitmap_blocks;
    plan->inode_block = geo->journal_start + geo->journal_blocks;
    if (params->data_csum) {
        geo->incompat |= LAY_INCOMPAT_DATA_CSUM;
        geo->sums_start = plan->inode_block;
        geo->sums_blocks = lay_sums_blocks(geo->blocks);
        plan->inode_block += geo->sums_blocks;
    }
    plan->root_node = plan->inode_block + 1;
    lay_super_places(geo->blocks, geo->copies);
    if (has_free_group(plan))
        geo->incompat |= LAY_INCOMPAT_ZERO_BITMAPS;
    assert(plan->root_node < geo->copies[0]);
    plan->free_blocks = geo->blocks - (plan->root_node + 1) - LAY_SUPER_COPIES;
}

int mkfs_lay_out(const struct mkfs_params *params, uint64_t device_bytes, struct mkfs_plan *plan)
{
    assert(!params->label || lay_label_ok(params->label, strlen(params->label)));
    uint64_t bytes = params->bytes ? params->bytes : device_bytes;
    uint64_t blocks = bytes >> LAY_BLOCK_SHIFT;
    uint64_t journal = params->journal_blocks ? params->journal_blocks : journal_size(blocks);

    if (bytes > device_bytes)
        return -ENOSPC;
    if (blocks < LAY_MIN_BLOCKS || journal < LAY_MIN_JOURNAL || journal > LAY_MAX_JOURNAL ||
        journal > blocks / 4)
        return -EINVAL;
    if (blocks > LAY_MAX_BLOCKS)
        return -EFBIG;
    memset(plan, 0, sizeof(*plan));
    plan->geo.blocks = blocks;
    plan->geo.journal_blocks = journal;
    place(params, plan);
    return 0;
}

#define CHUNK_BLOCKS  256u   /* per transfer: 1 MiB */
#define ZERO_BLOCKS   16384u /* zeroed by one command: 64 MiB */
#define SINGLE_BLOCKS 64u    /* read at once by one command each; less than CHUNK_BLOCKS */

/* State shared by the steps of one format. */
struct format {
    struct bd_dev *dev;
    const struct mkfs_params *params;
    const struct mkfs_plan *plan;
    uint8_t *buf; /* CHUNK_BLOCKS blocks of memory that the device reaches */
};

static const struct lay_geometry *geo_of(const struct format *f)
{
    return &f->plan->geo;
}

static int format_interrupted(const struct format *f)
{
    return f->params->interrupted && f->params->interrupted() ? -EINTR : 0;
}

static int format_write_blocks(struct format *f, uint64_t block, uint64_t count)
{
    int err = format_interrupted(f);

    assert(count <= CHUNK_BLOCKS);
    if (err)
        return err;
    return bd_write(f->dev, block << LAY_BLOCK_SHIFT, f->buf, count << LAY_BLOCK_SHIFT, 0);
}

static int format_read_blocks(struct format *f, uint64_t block, uint64_t count)
{
    int err = format_interrupted(f);

    assert(count <= CHUNK_BLOCKS);
    if (err)
        return err;
    return bd_read(f->dev, block << LAY_BLOCK_SHIFT, f->buf, count << LAY_BLOCK_SHIFT);
}

/* Returns the first block of the buffer, zeroed and with its head set. */
static void *new_block(struct format *f, uint32_t magic, uint64_t block, uint64_t owner)
{
    memset(f->buf, 0, LAY_BLOCK_SIZE);
    lay_head_init((struct lay_head *)f->buf, magic, geo_of(f)->uuid, block, owner);
    return f->buf;
}

static int seal_and_write(struct format *f, uint64_t block)
{
    lay_seal(f->buf, 0);
    return format_write_blocks(f, block, 1);
}

/* True if a block is in use: a copy, or at the start. */
static bool in_use(const struct mkfs_plan *plan, uint64_t block)
{
    return block <= plan->root_node || block >= plan->geo.blocks || block == plan->geo.copies[0] ||
           block == plan->geo.copies[1];
}

static void fill_bitmap(const struct format *f, struct lay_bitmap *bm, uint64_t group)
{
    uint32_t free_bits = 0;

    for (uint32_t b = 0; b < LAY_GROUP_BLOCKS; b++) {
        if (in_use(f->plan, group * LAY_GROUP_BLOCKS + b))
            bm->bits[b / 8] |= (uint8_t)(1u << b % 8);
        else
            free_bits++;
    }
    bm->group = lay_put32((uint32_t)group);
    bm->free = lay_put32(free_bits);
}

/* Writes zeros in parts, so that an interruption is noticed. */
static int write_zeros(struct format *f, uint64_t block, uint64_t count)
{
    int err = 0;

    for (uint64_t n; count > 0 && !err; block += n, count -= n) {
        n = count < ZERO_BLOCKS ? count : ZERO_BLOCKS;
        err = format_interrupted(f);
        if (!err)
            err = bd_write_zeroes(f->dev, block << LAY_BLOCK_SHIFT, n << LAY_BLOCK_SHIFT);
    }
    return err;
}

static int write_bitmap(struct format *f, uint64_t group)
{
    uint64_t block = geo_of(f)->bitmap_start + group;

    fill_bitmap(f, new_block(f, LAY_MAGIC_BITMAP, block, 0), group);
    return seal_and_write(f, block);
}

/* A bitmap of zeros, like nearly all, represents a free group. */
static int write_bitmaps(struct format *f)
{
    const struct lay_geometry *geo = geo_of(f);
    int err = write_zeros(f, geo->bitmap_start, geo->bitmap_blocks);

    for (uint64_t group = 0; group < lay_groups(geo) && !err; group++) {
        if (!mkfs_group_is_free(f->plan, group))
            err = write_bitmap(f, group);
    }
    return err;
}

static void *unused_block(const struct format *f, uint64_t pos, uint64_t i)
{
    void *block = f->buf + (i << LAY_BLOCK_SHIFT);

    lay_journal_fill_unused(geo_of(f), geo_of(f)->journal_start + pos, block);
    return block;
}

static int write_unused(struct format *f)
{
    uint64_t last = lay_journal_unused_last(geo_of(f));
    int err = 0;

    for (uint64_t pos = 1, n; pos <= last && !err; pos += n) {
        n = last + 1 - pos < CHUNK_BLOCKS ? last + 1 - pos : CHUNK_BLOCKS;
        for (uint64_t i = 0; i < n; i++)
            unused_block(f, pos + i, i);
        err = format_write_blocks(f, geo_of(f)->journal_start + pos, n);
    }
    return err;
}

/* Old records with this UUID must not be replayed: writes the whole log. */
static int write_journal(struct format *f)
{
    const struct lay_geometry *geo = geo_of(f);
    struct lay_journal *j = new_block(f, LAY_MAGIC_JOURNAL, geo->journal_start, 0);

    j->tail_tid = lay_put64(1);
    j->tail_pos = lay_put64(1);
    uint64_t end = 1 + lay_journal_unused_last(geo);
    int err = seal_and_write(f, geo->journal_start);
    if (!err)
        err = write_unused(f);
    return err ? err : write_zeros(f, geo->journal_start + end, geo->journal_blocks - end);
}

/* A checksum block of zeros is valid and has no entries. */
static int write_sums(struct format *f)
{
    return write_zeros(f, geo_of(f)->sums_start, geo_of(f)->sums_blocks);
}

static void set_times(const struct format *f, struct lay_inode *inode)
{
    struct lay_time now = lay_time_make(f->params->time_sec, f->params->time_nsec);

    inode->atime = inode->mtime = inode->ctime = inode->btime = now;
}

static void fill_root(const struct format *f, struct lay_inode *root)
{
    root->mode = lay_put32(S_IFDIR | 0755);
    root->nlink = lay_put32(2);
    root->uid = lay_put32(f->params->root_uid);
    root->gid = lay_put32(f->params->root_gid);
    root->generation = lay_put32(1);
    root->size = lay_put64(LAY_BLOCK_SIZE);
    root->blocks = lay_put64(1);
    set_times(f, root);
    root->parent = lay_put64(LAY_INO_ROOT);
    root->version = lay_put64(1);
    root->map_kind = lay_put16(LAY_MAP_DIR);
    root->map_height = lay_put16(1);
    root->map.tree.root = lay_put64(f->plan->root_node);
    root->map.tree.blocks = lay_put64(1);
}

static int write_root(struct format *f)
{
    struct lay_inode_block *ib = new_block(f, LAY_MAGIC_INODES, f->plan->inode_block, 0);

    ib->next_free = lay_put64(LAY_NONE);
    ib->used = 1u | 1u << LAY_INO_ROOT;
    fill_root(f, &ib->inodes[LAY_INO_ROOT]);
    int err = seal_and_write(f, f->plan->inode_block);
    if (err)
        return err;
    new_block(f, LAY_MAGIC_DIR, f->plan->root_node, LAY_INO_ROOT);
    return seal_and_write(f, f->plan->root_node);
}

static void fill_inode_file(const struct format *f, struct lay_inode *inode)
{
    inode->mode = lay_put32(S_IFREG);
    inode->nlink = lay_put32(1);
    inode->size = lay_put64(LAY_BLOCK_SIZE);
    inode->blocks = lay_put64(1);
    set_times(f, inode);
    inode->map_kind = lay_put16(LAY_MAP_INLINE);
    inode->map_count = lay_put16(1);
    inode->map.extents[0].block = lay_put64(f->plan->inode_block);
    inode->map.extents[0].len = lay_put32(1);
}

static void fill_super(const struct format *f, struct lay_super *sb)
{
    const struct lay_geometry *geo = geo_of(f);

    sb->version_major = lay_put16(LAY_VERSION_MAJOR);
    sb->version_minor = lay_put16(LAY_VERSION_MINOR);
    sb->block_size = lay_put32(LAY_BLOCK_SIZE);
    sb->state = lay_put32(LAY_STATE_CLEAN);
    sb->device_count = lay_put32(1);
    sb->blocks = lay_put64(geo->blocks);
    sb->free_blocks = lay_put64(f->plan->free_blocks);
    sb->inodes = lay_put64(1);
    sb->bitmap_start = lay_put64(geo->bitmap_start);
    sb->bitmap_blocks = lay_put64(geo->bitmap_blocks);
    sb->journal_start = lay_put64(geo->journal_start);
    sb->journal_blocks = lay_put64(geo->journal_blocks);
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        sb->copies[i] = lay_put64(geo->copies[i]);
    sb->incompat = lay_put64(geo->incompat);
    sb->sums_start = lay_put64(geo->sums_start);
    sb->sums_blocks = lay_put64(geo->sums_blocks);
    sb->orphan = lay_put64(LAY_NONE);
    sb->created = lay_time_make(f->params->time_sec, f->params->time_nsec);
    memcpy(sb->hash_seed, geo->hash_seed, sizeof(sb->hash_seed));
    memcpy(sb->label, geo->label, sizeof(sb->label));
    fill_inode_file(f, &sb->inode_file);
    memcpy(sb->devices[0].uuid, geo->uuid, sizeof(sb->devices[0].uuid));
    sb->devices[0].blocks = lay_put64(geo->blocks);
}

static int write_super(struct format *f, uint64_t block)
{
    fill_super(f, new_block(f, LAY_MAGIC_SUPER, block, 0));
    return seal_and_write(f, block);
}

static int write_supers(struct format *f)
{
    const struct lay_geometry *geo = geo_of(f);
    int err = bd_flush(f->dev);

    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++)
        err = write_super(f, geo->copies[i]);
    if (!err)
        err = bd_flush(f->dev);
    if (!err)
        err = write_super(f, 0);
    return err ? err : bd_flush(f->dev);
}

/* Block 0, and older copies at their own or at the standard addresses. */
struct old_supers {
    uint64_t at[1 + 2 * LAY_SUPER_COPIES];
    size_t n;
};

static int find_old(struct format *f, struct old_supers *old)
{
    uint64_t device_blocks = f->dev->info.bytes >> LAY_BLOCK_SHIFT;
    uint64_t places[2 * LAY_SUPER_COPIES];
    const struct lay_super *sb = (const struct lay_super *)f->buf;
    struct lay_geometry geo;
    int err = format_read_blocks(f, 0, 1);

    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        places[i] = lay_get64(sb->copies[i]);
    lay_super_places(device_blocks, places + LAY_SUPER_COPIES);
    *old = (struct old_supers){.n = 1};
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]) && !err; i++) {
        if (places[i] >= device_blocks)
            continue;
        err = format_read_blocks(f, places[i], 1);
        if (!err && lay_check_super(sb, places[i], 0, &geo, NULL, NULL) == 0)
            old->at[old->n++] = places[i];
    }
    return err;
}

/*
 * Zeroes all old superblocks even if one write fails. Returns the first error.
 */
static int zero_old(struct format *f, const struct old_supers *old)
{
    int err = 0;

    memset(f->buf, 0, LAY_BLOCK_SIZE);
    for (size_t i = old->n; i-- > 0;) {
        int now = bd_write(f->dev, old->at[i] << LAY_BLOCK_SHIFT, f->buf, LAY_BLOCK_SIZE, 0);
        err = err ? err : now;
    }
    return err ? err : bd_flush(f->dev);
}

/*
 * Erases old superblocks, without a check for interruptions in between: first
 * the copies, then block 0, because a mount uses a copy if block 0 is zero. The
 * discard is a hint that spares the drive. It follows the erasure, so that no
 * superblock refers to discarded blocks. Discarded blocks have undefined
 * contents, so the places are zeroed again.
 */
static int erase_old(struct format *f)
{
    struct old_supers old;
    int err = find_old(f, &old);

    if (!err)
        err = zero_old(f, &old);
    if (!err)
        err = bd_discard(f->dev, 0, geo_of(f)->blocks << LAY_BLOCK_SHIFT);
    return err ? err : zero_old(f, &old);
}

static int format_flush(struct format *f)
{
    return bd_flush(f->dev);
}

/* Erases the superblocks after a failure or interruption. */
static void erase_supers(struct format *f)
{
    const struct lay_geometry *geo = geo_of(f);
    const uint64_t places[] = {0, geo->copies[0], geo->copies[1]};

    memset(f->buf, 0, LAY_BLOCK_SIZE);
    for (unsigned i = 0; i < 1 + LAY_SUPER_COPIES; i++)
        (void)bd_write(f->dev, places[i] << LAY_BLOCK_SHIFT, f->buf, LAY_BLOCK_SIZE, 0);
    (void)bd_flush(f->dev);
}

static int verify_supers(struct format *f)
{
    const struct lay_geometry *geo = geo_of(f);
    const uint64_t places[] = {0, geo->copies[0], geo->copies[1]};
    struct lay_geometry got;
    int err = 0;

    for (unsigned i = 0; i < 1 + LAY_SUPER_COPIES && !err; i++) {
        err = format_read_blocks(f, places[i], 1);
        if (!err && lay_check_super((void *)f->buf, places[i], 0, &got, NULL, NULL) != 0)
            err = -EUCLEAN;
        if (!err && memcmp(&got, geo, sizeof(got)) != 0)
            err = -EUCLEAN;
    }
    return err;
}

static bool format_is_zero(const void *data, size_t len)
{
    const uint8_t *bytes = data;

    return bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0;
}

static int verify_bitmap(const struct format *f, struct lay_bitmap *bm, uint64_t group)
{
    if (mkfs_group_is_free(f->plan, group))
        return format_is_zero(bm, sizeof(*bm)) ? 0 : -EUCLEAN;
    return lay_check_bitmap(geo_of(f), bm, group, NULL);
}

static int verify_bitmaps(struct format *f)
{
    const struct lay_geometry *geo = geo_of(f);
    int err = 0;

    for (uint64_t group = 0; group < lay_groups(geo) && !err; group += CHUNK_BLOCKS) {
        uint64_t left = lay_groups(geo) - group;
        uint64_t n = left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS;
        err = format_read_blocks(f, geo->bitmap_start + group, n);
        for (uint64_t i = 0; i < n && !err; i++)
            err = verify_bitmap(f, (void *)(f->buf + (i << LAY_BLOCK_SHIFT)), group + i);
    }
    return err;
}

static int verify_zeros(struct format *f, uint64_t block, uint64_t count)
{
    int err = 0;

    for (uint64_t n; count > 0 && !err; block += n, count -= n) {
        n = count < CHUNK_BLOCKS ? count : CHUNK_BLOCKS;
        err = format_read_blocks(f, block, n);
        if (!err && !format_is_zero(f->buf, n << LAY_BLOCK_SHIFT))
            err = -EUCLEAN;
    }
    return err;
}

/* Reads each block by a command of its own. */
static int format_read_singly(struct format *f, uint64_t block, uint64_t count)
{
    struct bd_io ios[SINGLE_BLOCKS];
    int err = format_interrupted(f);

    assert(count <= SINGLE_BLOCKS);
    for (uint64_t i = 0; i < count; i++)
        ios[i] = (struct bd_io){.op = BD_READ,
                                .offset = (block + i) << LAY_BLOCK_SHIFT,
                                .len = LAY_BLOCK_SIZE,
                                .buf = f->buf + (i << LAY_BLOCK_SHIFT)};
    return err ? err : bd_submit(f->dev, ios, count);
}

/*
 * Reads blocks by short commands that were written by long ones of up to
 * CHUNK_BLOCKS. A drive that permutes the pages of long commands does so in
 * both directions, so long reads would hide it.
 */
static int verify_unused(struct format *f)
{
    uint64_t last = lay_journal_unused_last(geo_of(f));
    int err = 0;

    for (uint64_t pos = 1, n; pos <= last && !err; pos += n) {
        n = last + 1 - pos < SINGLE_BLOCKS ? last + 1 - pos : SINGLE_BLOCKS;
        err = format_read_singly(f, geo_of(f)->journal_start + pos, n);
        for (uint64_t i = 0; i < n && !err; i++) {
            const void *got = f->buf + (i << LAY_BLOCK_SHIFT);
            if (memcmp(got, unused_block(f, pos + i, SINGLE_BLOCKS), LAY_BLOCK_SIZE) != 0)
                err = -EUCLEAN;
        }
    }
    return err;
}

static int verify_journal(struct format *f)
{
    const struct lay_geometry *geo = geo_of(f);
    uint64_t end = 1 + lay_journal_unused_last(geo);
    int err = format_read_blocks(f, geo->journal_start, 1);

    if (!err)
        err = lay_check_journal(geo, (void *)f->buf, NULL);
    if (!err)
        err = verify_unused(f);
    return err ? err : verify_zeros(f, geo->journal_start + end, geo->journal_blocks - end);
}

static int verify_sums(struct format *f)
{
    return verify_zeros(f, geo_of(f)->sums_start, geo_of(f)->sums_blocks);
}

static int verify_root(struct format *f)
{
    const struct lay_geometry *geo = geo_of(f);
    int err = format_read_blocks(f, f->plan->inode_block, 1);

    if (!err)
        err = lay_check_inode_block(geo, (void *)f->buf, 0, f->plan->inode_block, NULL);
    if (!err)
        err = format_read_blocks(f, f->plan->root_node, 1);
    if (err)
        return err;
    return lay_check_node(geo, (void *)f->buf, LAY_MAGIC_DIR, f->plan->root_node, LAY_INO_ROOT, 0,
                          0, UINT64_MAX, NULL);
}

typedef int (*step_fn)(struct format *f);

static int run_steps(struct format *f, const step_fn *steps, size_t n)
{
    int err = 0;

    for (size_t i = 0; i < n && !err; i++)
        err = steps[i](f);
    return err;
}

int mkfs_format(struct bd_dev *dev, const struct mkfs_params *params, struct mkfs_plan *plan)
{
    static const step_fn blocks[] = {erase_old,   write_bitmaps, write_journal,  write_sums,
                                     write_root,  format_flush,  verify_bitmaps, verify_journal,
                                     verify_sums, verify_root};
    static const step_fn supers[] = {write_supers, verify_supers};
    struct format f = {.dev = dev, .params = params, .plan = plan};
    int err = mkfs_lay_out(params, dev->info.bytes, plan);

    if (err)
        return err;
    f.buf = bd_dma_alloc(dev, (size_t)CHUNK_BLOCKS << LAY_BLOCK_SHIFT);
    if (!f.buf)
        return -ENOMEM;
    err = run_steps(&f, blocks, sizeof(blocks) / sizeof(blocks[0]));
    if (!err) {
        err = run_steps(&f, supers, sizeof(supers) / sizeof(supers[0]));
        if (err)
            erase_supers(&f);
    }
    bd_dma_free(dev, f.buf, (size_t)CHUNK_BLOCKS << LAY_BLOCK_SHIFT);
    return err;
}
