/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Writes and verifies the metadata of an empty file system.
 *
 * Old labels are erased first. Then all other blocks are written, flushed and
 * verified. The labels come last, with block 0 at the end. A crash before that
 * leaves a device that no mount accepts.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "mkfs/mkfs_core.h"
#include "support/array.h"

/*
 * Returns a 64th of the device, within 1024 to 32768 blocks, but at most a 16th
 * and at least LAY_MIN_LOG.
 */
static uint64_t log_size(uint64_t blocks)
{
    uint64_t log = blocks / 64;

    if (log < 1024)
        log = 1024;
    if (log > 32768)
        log = 32768;
    if (log > blocks / 16)
        log = blocks / 16;
    return log < LAY_MIN_LOG ? LAY_MIN_LOG : log;
}

static uint64_t mkfs_chunk_blocks(const struct lay_geometry *geo)
{
    return (uint64_t)LAY_SEGMENT_BLOCKS << geo->chunk_shift;
}

uint64_t mkfs_segment_start(const struct mkfs_plan *plan, uint64_t segment)
{
    uint64_t in_chunk = segment % lay_chunk_segments(&plan->geo);

    return plan->chunk_starts[segment >> plan->geo.chunk_shift] + in_chunk * LAY_SEGMENT_BLOCKS;
}

/* Returns the first block of the segment's copy, or LAY_NONE without copies. */
static uint64_t format_segment_copy(const struct mkfs_plan *plan, uint64_t segment)
{
    uint64_t in_chunk = segment % lay_chunk_segments(&plan->geo);

    if (!lay_has_copies(&plan->geo))
        return LAY_NONE;
    return plan->chunk_copies[segment >> plan->geo.chunk_shift] + in_chunk * LAY_SEGMENT_BLOCKS;
}

/* Returns how many segments are mapped. */
static uint64_t mkfs_segments(const struct mkfs_plan *plan)
{
    return (uint64_t)plan->chunks << plan->geo.chunk_shift;
}

/* Returns true if a chunk has one of the blocks. */
static bool mkfs_in_chunk(const struct mkfs_plan *plan, uint64_t block, uint64_t len)
{
    uint64_t each = mkfs_chunk_blocks(&plan->geo);
    bool copies = lay_has_copies(&plan->geo);

    for (uint32_t i = 0; i < plan->chunks; i++) {
        uint64_t start = plan->chunk_starts[i], copy = plan->chunk_copies[i];
        if ((block + len > start && block < start + each) ||
            (copies && block + len > copy && block < copy + each))
            return true;
    }
    return false;
}

/* Returns true if the group is whole and free; its bitmap is then not written. */
static bool mkfs_group_is_free(const struct mkfs_plan *plan, uint64_t group)
{
    uint64_t first = group * LAY_GROUP_BLOCKS;

    return lay_range_ok(&plan->geo, first, LAY_GROUP_BLOCKS) &&
           !mkfs_in_chunk(plan, first, LAY_GROUP_BLOCKS);
}

/*
 * Derives an identifier from the parameters, so that they determine every byte.
 * The hash seed is random and secret, and so are the identifiers.
 */
static uint64_t mkfs_id(const struct mkfs_params *params, uint8_t number)
{
    struct {
        uint8_t uuid[16];
        le64 sec;
        le32 nsec, number;
    } from = {.sec = lay_put64((uint64_t)params->time_sec),
              .nsec = lay_put32(params->time_nsec),
              .number = lay_put32(number)};

    memcpy(from.uuid, params->uuid, sizeof(from.uuid));
    uint64_t id = lay_siphash(params->hash_seed, &from, sizeof(from));
    return id ? id : 1;
}

/* Derives a random UUID (version 4) from two identifiers. */
static void mkfs_uuid(const struct mkfs_params *params, uint8_t number, uint8_t uuid[16])
{
    le64 halves[2] = {lay_put64(mkfs_id(params, number)),
                      lay_put64(mkfs_id(params, (uint8_t)(number + 1)))};

    memcpy(uuid, halves, sizeof(halves));
    uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40);
    uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
}

/* Numbers of the derived identifiers; a UUID takes two. */
enum { ID_SEALING = 0, ID_MEMBER = 2, ID_INCARNATION = 4, ID_LOG = 5 };

/*
 * Returns the lowest range of len blocks from `from` on that no area has and
 * that begins at a multiple of `align`: the first one, or one behind an area.
 */
static uint64_t mkfs_lowest(const struct lay_geometry *geo, uint64_t from, uint64_t len,
                            uint64_t align)
{
    struct lay_range areas[LAY_AREAS + 1] = {{from, 0}};
    unsigned n = 1 + lay_areas(geo, areas + 1);
    uint64_t lowest = LAY_NONE;

    for (unsigned i = 0; i < n; i++) {
        uint64_t start = (areas[i].start + areas[i].len + align - 1) / align * align;
        if (start >= from && start < lowest && lay_range_ok(geo, start, len))
            lowest = start;
    }
    assert(lowest != LAY_NONE && "the smallest file system has room for all areas and chunks");
    return lowest;
}

static uint64_t mkfs_lowest_area(const struct lay_geometry *geo, uint64_t len)
{
    return mkfs_lowest(geo, LAY_MMP_BLOCK + 1, len, 1);
}

/* Places chunk 0 and the reserve in the lowest free segments from `from` on. */
static void mkfs_place_chunks(const struct mkfs_plan *plan, uint64_t from, uint64_t *starts)
{
    uint64_t len = mkfs_chunk_blocks(&plan->geo);

    for (uint32_t i = 0; i < plan->chunks; i++) {
        starts[i] = mkfs_lowest(&plan->geo, from, len, LAY_SEGMENT_BLOCKS);
        from = starts[i] + len;
    }
}

/*
 * Places the copies of areas and chunks in the second half of the device, by
 * the rule of the originals; copies of chunks follow those of areas.
 */
static void mkfs_place_copies(struct mkfs_plan *plan)
{
    struct lay_geometry *geo = &plan->geo;
    uint64_t from = geo->supers[1];

    if (!lay_has_copies(geo))
        return;
    geo->map_copy = mkfs_lowest(geo, from, geo->map_len, 1);
    geo->bitmap_copy = mkfs_lowest(geo, from, geo->bitmap_len, 1);
    if (geo->sums_len)
        geo->sums_copy = mkfs_lowest(geo, from, geo->sums_len, 1);
    geo->log_copy = mkfs_lowest(geo, from, geo->log_blocks, 1);
    mkfs_place_chunks(plan, geo->log_copy + geo->log_blocks, plan->chunk_copies);
}

/* Returns the number of blocks in neither an area nor a chunk. */
static uint64_t mkfs_free_blocks(const struct mkfs_plan *plan)
{
    const struct lay_geometry *geo = &plan->geo;
    unsigned places = lay_has_copies(geo) ? 2 : 1;
    struct lay_range areas[LAY_AREAS];
    unsigned n = lay_areas(geo, areas);
    uint64_t left = geo->blocks - places * plan->chunks * mkfs_chunk_blocks(geo);

    for (unsigned i = 0; i < n; i++)
        left -= areas[i].len;
    return left;
}

/* Places the areas one after the other, each in the lowest blocks that are free. */
static void place(struct mkfs_plan *plan, uint64_t log_blocks)
{
    struct lay_geometry *geo = &plan->geo;

    geo->supers[1] = geo->blocks / 2 > LAY_LABEL_SECOND ? geo->blocks / 2 : LAY_LABEL_SECOND + 1;
    geo->supers[0] = mkfs_lowest_area(geo, 1);
    geo->chunk_shift = lay_chunk_shift(geo->blocks);
    geo->reserve = lay_reserve(geo->blocks);
    uint64_t map = lay_map_blocks(lay_map_slots(geo->blocks, geo->chunk_shift));
    geo->map_start = mkfs_lowest_area(geo, lay_area_blocks(map));
    geo->map_blocks = map;
    geo->map_len = lay_area_blocks(map);
    uint64_t groups = lay_groups_of(geo->blocks);
    geo->bitmap_start = mkfs_lowest_area(geo, lay_area_blocks(groups));
    geo->bitmap_blocks = groups;
    geo->bitmap_len = lay_area_blocks(groups);
    if (geo->incompat & LAY_INCOMPAT_DATA_CSUM) {
        uint64_t sums = lay_sums_blocks(geo->blocks);
        geo->sums_start = mkfs_lowest_area(geo, lay_area_blocks(sums));
        geo->sums_blocks = sums;
        geo->sums_len = lay_area_blocks(sums);
    }
    geo->log_start = mkfs_lowest_area(geo, log_blocks);
    geo->log_blocks = log_blocks;
    plan->chunks = 1 + plan->geo.reserve;
    mkfs_place_chunks(plan, LAY_SEGMENT_BLOCKS, plan->chunk_starts);
    mkfs_place_copies(plan);
    plan->free_blocks = mkfs_free_blocks(plan);
}

static void identify(const struct mkfs_params *params, struct lay_geometry *geo)
{
    memcpy(geo->hash_seed, params->hash_seed, sizeof(geo->hash_seed));
    mkfs_uuid(params, ID_SEALING, geo->uuid);
    geo->log_id = mkfs_id(params, ID_LOG);
    geo->incompat = LAY_INCOMPAT_DRAFT | (params->data_csum ? LAY_INCOMPAT_DATA_CSUM : 0) |
                    (params->meta_copies ? LAY_INCOMPAT_META_COPIES | LAY_INCOMPAT_TWO_LOGS : 0);
}

int mkfs_lay_out(const struct mkfs_params *params, uint64_t device_bytes, struct mkfs_plan *plan)
{
    assert(!params->label || lay_label_ok(params->label, strlen(params->label)));
    uint64_t bytes = params->bytes ? params->bytes : device_bytes;
    uint64_t blocks = bytes >> LAY_BLOCK_SHIFT;
    uint64_t log = params->log_blocks ? params->log_blocks : log_size(blocks);

    if (bytes > device_bytes)
        return -ENOSPC;
    if (blocks < LAY_MIN_BLOCKS || log < LAY_MIN_LOG || log > LAY_MAX_LOG ||
        log > blocks / (params->meta_copies ? 8 : 4))
        return -EINVAL;
    if (blocks > LAY_MAX_BLOCKS)
        return -EFBIG;
    memset(plan, 0, sizeof(*plan));
    plan->geo.blocks = blocks;
    identify(params, &plan->geo);
    place(plan, log);
    return 0;
}

#define BATCH_BLOCKS  256u   /* per transfer: 1 MiB */
#define ZERO_BLOCKS   16384u /* zeroed by one command: 64 MiB */
#define SINGLE_BLOCKS 64u    /* read at once by one command each */

/* Describes a written block whose age another block names. */
struct format_aged {
    uint64_t addr;
    uint32_t age;
};

/* Describes a written block and the checksum of its contents. */
struct format_written {
    uint64_t block;
    uint32_t sum;
};

/* Holds the state that the steps of one format share. */
struct format {
    struct bd_dev *dev;
    const struct mkfs_params *params;
    const struct mkfs_plan *plan;
    uint8_t *buf; /* BATCH_BLOCKS blocks of memory that the device reaches */
    struct lay_incarnation incarnation;
    struct format_aged *aged; /* in the order in which they were written */
    size_t aged_count;
    struct format_written *written; /* all blocks but zeros */
    size_t written_count, verified; /* verified: how many were read back */
    uint32_t map_age, bitmap_age, super_age;
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

    assert(count <= BATCH_BLOCKS);
    for (uint64_t i = 0; i < count && !err; i++) {
        err = array_grow((void **)&f->written, f->written_count, sizeof(*f->written));
        if (!err)
            f->written[f->written_count++] =
                (struct format_written){block + i, lay_data_sum(f->buf + (i << LAY_BLOCK_SHIFT))};
    }
    if (err)
        return err;
    return bd_write(f->dev, block << LAY_BLOCK_SHIFT, f->buf, count << LAY_BLOCK_SHIFT, 0);
}

static int format_read_blocks(struct format *f, uint64_t block, uint64_t count)
{
    int err = format_interrupted(f);

    assert(count <= BATCH_BLOCKS);
    if (err)
        return err;
    return bd_read(f->dev, block << LAY_BLOCK_SHIFT, f->buf, count << LAY_BLOCK_SHIFT);
}

/* Zeroes a block and sets its head. */
static void format_init(const struct format *f, void *block, uint32_t magic, uint64_t addr,
                        uint64_t owner)
{
    memset(block, 0, LAY_BLOCK_SIZE);
    lay_head_init(block, magic, geo_of(f)->uuid, addr, owner);
}

/* Returns the first block of the buffer, zeroed and with its head set. */
static void *new_block(struct format *f, uint32_t magic, uint64_t addr, uint64_t owner)
{
    format_init(f, f->buf, magic, addr, owner);
    return f->buf;
}

static int seal_and_write(struct format *f, uint64_t block)
{
    lay_seal(f->buf, 0);
    return format_write_blocks(f, block, 1);
}

static bool in_use(const struct mkfs_plan *plan, uint64_t block)
{
    return !lay_range_ok(&plan->geo, block, 1) || mkfs_in_chunk(plan, block, 1);
}

static void format_make_bitmap(const struct format *f, struct lay_bitmap *bm, uint64_t group)
{
    uint32_t free_bits = 0;

    format_init(f, bm, LAY_MAGIC_BITMAP, LAY_ADDR(LAY_KIND_BITMAP, group), 0);
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

static int write_unused(struct format *f, uint64_t start)
{
    uint64_t last = lay_log_unused_last(geo_of(f));
    int err = 0;

    for (uint64_t pos = 1, n; pos <= last && !err; pos += n) {
        n = last + 1 - pos < BATCH_BLOCKS ? last + 1 - pos : BATCH_BLOCKS;
        for (uint64_t i = 0; i < n; i++)
            lay_log_fill_unused(geo_of(f), pos + i, (void *)(f->buf + (i << LAY_BLOCK_SHIFT)));
        err = format_write_blocks(f, start + pos, n);
    }
    return err;
}

/* The first commit is an empty transaction that names the superblock's age. */
static int write_commit(struct format *f, uint64_t start)
{
    struct lay_log_commit *c = (void *)f->buf;

    lay_log_init(c, LAY_MAGIC_JCOMMIT, geo_of(f), &f->incarnation, 0);
    c->blocks = lay_put32(1);
    c->tail_tid = lay_put64(1);
    c->super_age = lay_put32(f->super_age);
    c->time = lay_time_make(f->params->time_sec, f->params->time_nsec);
    lay_seal(c, 1);
    return format_write_blocks(f, start, 1);
}

/* Old records with this log id must not be replayed: writes the whole log. */
static int write_log(struct format *f, uint64_t start)
{
    const struct lay_geometry *geo = geo_of(f);
    uint64_t end = 1 + lay_log_unused_last(geo);
    int err = write_commit(f, start);

    if (!err)
        err = write_unused(f, start);
    return err ? err : write_zeros(f, start + end, geo->log_blocks - end);
}

typedef int (*log_fn)(struct format *f, uint64_t start);

static int each_log(struct format *f, log_fn body)
{
    int err = 0;

    for (unsigned i = 0; i < lay_logs(geo_of(f)) && !err; i++)
        err = body(f, lay_log_block(geo_of(f), i, 0));
    return err;
}

static int write_logs(struct format *f)
{
    return each_log(f, write_log);
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
    set_times(f, root);
    root->parent = lay_put64(LAY_INO_ROOT);
    root->version = lay_put64(1);
    root->map_kind = lay_put16(LAY_MAP_DIR);
    root->map_height = lay_put16(1);
    root->map.tree.root = lay_put64(MKFS_ROOT_NODE);
    root->map.tree.blocks = lay_put64(1);
}

static void format_make_inodes(const struct format *f, struct lay_inode_block *ib)
{
    format_init(f, ib, LAY_MAGIC_INODES, MKFS_INODE_BLOCK, 0);
    ib->next_free = lay_put64(LAY_NONE);
    ib->used = 1u | 1u << LAY_INO_ROOT;
    fill_root(f, &ib->inodes[LAY_INO_ROOT]);
}

static void format_make_entries(const struct format *f, struct lay_entries *entries,
                                uint64_t segment)
{
    uint64_t used = segment == 0 ? 1 + lay_addr_index(MKFS_ROOT_NODE) : 1;

    format_init(f, entries, LAY_MAGIC_ENTRIES, LAY_ADDR_CHUNK(segment, 0), 0);
    entries->used[0] = (uint8_t)((1u << used) - 1);
    entries->free = lay_put32((uint32_t)(LAY_SEGMENT_BLOCKS - used));
}

static void format_make_map(const struct format *f, struct lay_map_block *map, uint64_t index)
{
    format_init(f, map, LAY_MAGIC_MAP, LAY_ADDR(LAY_KIND_MAP, index), 0);
    map->index = lay_put64(index);
    for (unsigned i = 0; i < LAY_MAP_SLOTS; i++) {
        uint64_t segment = index * LAY_MAP_SLOTS + i;
        bool mapped = segment < mkfs_segments(f->plan);
        lay_slot_set(&map->slots[i], mapped ? mkfs_segment_start(f->plan, segment) : LAY_NONE,
                     mapped ? format_segment_copy(f->plan, segment) : LAY_NONE);
    }
}

/* --- Blocks with ages ------------------------------------------------------------------------- */

/* Makes the block of an address in the buffer, without the ages that it names. */
static void format_make(struct format *f, uint64_t addr)
{
    union lay_block *b = (void *)f->buf;

    if (lay_addr_kind(addr) == LAY_KIND_MAP && lay_addr_level(addr) == 0)
        format_make_map(f, &b->map, lay_addr_number(addr));
    else if (lay_addr_kind(addr) == LAY_KIND_BITMAP && lay_addr_level(addr) == 0)
        format_make_bitmap(f, &b->bitmap, lay_addr_number(addr));
    else if (addr == MKFS_INODE_BLOCK)
        format_make_inodes(f, &b->inodes);
    else if (addr == MKFS_ROOT_NODE)
        format_init(f, b, LAY_MAGIC_DIR, MKFS_ROOT_NODE, LAY_INO_ROOT);
    else if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        format_make_entries(f, &b->entries, lay_addr_segment(addr));
    else
        (void)lay_new_block(geo_of(f), addr, b);
}

static unsigned format_places(const struct format *f, uint64_t addr, uint64_t places[2])
{
    uint64_t segment = lay_addr_segment(addr);
    struct lay_slot slot;

    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return lay_places(geo_of(f), addr, places);
    lay_slot_set(&slot, mkfs_segment_start(f->plan, segment),
                 format_segment_copy(f->plan, segment));
    return lay_slot_places(&slot, addr, places);
}

/* Remembers the age of the sealed block in the buffer. Returns 0 or -ENOMEM. */
static int format_remember(struct format *f, uint64_t addr)
{
    int err = array_grow((void **)&f->aged, f->aged_count, sizeof(*f->aged));

    if (!err)
        f->aged[f->aged_count++] = (struct format_aged){addr, lay_age(f->buf)};
    return err;
}

static int format_write_aged(struct format *f, uint64_t addr)
{
    uint64_t places[2];
    unsigned n = format_places(f, addr, places);
    int err = 0;

    assert(n > 0 && "mkfs makes only blocks that the file system has");
    for (unsigned i = 0; i < n && !err; i++)
        err = seal_and_write(f, places[i]);
    return err ? err : format_remember(f, addr);
}

static int format_make_and_write(struct format *f, uint64_t addr)
{
    format_make(f, addr);
    return format_write_aged(f, addr);
}

static uint64_t format_name_of(const struct format *f, size_t i)
{
    unsigned index;

    assert(i < f->aged_count);
    return lay_name_of(geo_of(f), f->aged[i].addr, &index);
}

/*
 * Writes the block that names block *i of the list, with the ages of all blocks
 * before `end` that it names, and sets *i behind them.
 */
static int format_write_name(struct format *f, size_t *i, size_t end)
{
    uint64_t name = format_name_of(f, *i);

    format_make(f, name);
    for (; *i < end && format_name_of(f, *i) == name; (*i)++) {
        unsigned index;
        lay_name_of(geo_of(f), f->aged[*i].addr, &index);
        lay_set_named_age(f->buf, f->aged[*i].addr, index, f->aged[*i].age);
    }
    return format_write_aged(f, name);
}

/*
 * Writes the levels above the blocks of an area that are listed from i on, in
 * ascending order. *top becomes the age that the superblock names.
 */
static int format_write_names(struct format *f, size_t i, uint32_t *top)
{
    int err = 0;

    while (!err && format_name_of(f, i) != LAY_ADDR_SUPER) {
        size_t end = f->aged_count;
        while (i < end && !err)
            err = format_write_name(f, &i, end);
    }
    *top = err ? 0 : f->aged[i].age;
    return err;
}

static int format_write_chunks(struct format *f)
{
    size_t i = f->aged_count, entries = i + 2;
    int err = format_make_and_write(f, MKFS_INODE_BLOCK);

    if (!err)
        err = format_make_and_write(f, MKFS_ROOT_NODE);
    if (!err)
        err = format_write_name(f, &i, entries);
    for (uint64_t s = 1; s < mkfs_segments(f->plan) && !err; s++)
        err = format_make_and_write(f, LAY_ADDR_CHUNK(s, 0));
    return err ? err : format_write_names(f, entries, &f->map_age);
}

static int format_write_bitmaps(struct format *f)
{
    size_t first = f->aged_count;
    int err = 0;

    for (uint64_t group = 0; group < lay_groups(geo_of(f)) && !err; group++) {
        if (!mkfs_group_is_free(f->plan, group))
            err = format_make_and_write(f, LAY_ADDR(LAY_KIND_BITMAP, group));
    }
    return err ? err : format_write_names(f, first, &f->bitmap_age);
}

/* --- Superblock and labels -------------------------------------------------------------------- */

static void fill_inode_file(const struct format *f, struct lay_inode *inode)
{
    inode->mode = lay_put32(S_IFREG);
    inode->nlink = lay_put32(1);
    inode->size = lay_put64(LAY_BLOCK_SIZE);
    set_times(f, inode);
    inode->map_kind = lay_put16(LAY_MAP_INLINE);
    inode->map_count = lay_put16(1);
    inode->map.extents[0].block = lay_put64(MKFS_INODE_BLOCK);
    inode->map.extents[0].len = lay_put32(1);
}

static void fill_super(const struct format *f, struct lay_super *sb)
{
    const struct lay_geometry *geo = geo_of(f);

    lay_super_set_geometry(sb, geo);
    sb->inodes = lay_put64(1);
    fill_inode_file(f, &sb->inode_file);
    memcpy(sb->hash_seed, geo->hash_seed, sizeof(sb->hash_seed));
    sb->orphan = lay_put64(LAY_NONE);
    sb->clean_incarnation = f->incarnation;
    sb->clean_tid = lay_put64(1);
    sb->map_age = lay_put32(f->map_age);
    sb->chunks = lay_put64(f->plan->chunks);
    sb->area.bitmap_age = lay_put32(f->bitmap_age);
    sb->area.free_blocks = lay_put64(f->plan->free_blocks);
}

static int write_supers(struct format *f)
{
    int err = 0;

    fill_super(f, new_block(f, LAY_MAGIC_SUPER, LAY_ADDR_SUPER, 0));
    for (unsigned i = 0; i < LAY_SUPER_COPIES && !err; i++)
        err = seal_and_write(f, geo_of(f)->supers[i]);
    f->super_age = lay_age(f->buf);
    return err;
}

static int write_mmp(struct format *f)
{
    struct lay_mmp *mmp = new_block(f, LAY_MAGIC_MMP, LAY_ADDR_MMP, 0);

    mmp->interval = lay_put32(LAY_MMP_INTERVAL);
    return seal_and_write(f, LAY_MMP_BLOCK);
}

static void fill_member(const struct format *f, struct lay_member *m)
{
    mkfs_uuid(f->params, ID_MEMBER, m->uuid);
    m->lba_size = lay_put32(f->dev->info.lba_size);
    m->state = lay_put16(LAY_MEMBER_LIVE);
}

static void fill_label(const struct format *f, struct lay_label *label)
{
    const struct lay_geometry *geo = geo_of(f);

    label->version_major = lay_put16(LAY_VERSION_MAJOR);
    label->version_minor = lay_put16(LAY_VERSION_MINOR);
    label->block_size = lay_put32(LAY_BLOCK_SIZE);
    label->incompat = lay_put64(geo->incompat);
    label->incarnation = f->incarnation;
    lay_label_set_geometry(label, geo);
    memcpy(label->uuid, f->params->uuid, sizeof(label->uuid));
    label->created = lay_time_make(f->params->time_sec, f->params->time_nsec);
    if (f->params->label)
        memcpy(label->label, f->params->label, strlen(f->params->label));
    fill_member(f, &label->members[0]);
}

static int write_label(struct format *f, uint64_t block)
{
    fill_label(f, new_block(f, LAY_MAGIC_LABEL, LAY_ADDR_LABEL, 0));
    int err = seal_and_write(f, block);
    return err ? err : bd_flush(f->dev);
}

static int write_labels(struct format *f)
{
    int err = write_label(f, LAY_LABEL_SECOND);

    return err ? err : write_label(f, 0);
}

/*
 * Zeroes both labels even if one write fails, the second one first, because
 * block 0 decides whether the other counts. Returns the first error.
 */
static int zero_labels(struct format *f)
{
    static const uint64_t places[] = {LAY_LABEL_SECOND, 0};
    int err = 0;

    memset(f->buf, 0, LAY_BLOCK_SIZE);
    for (unsigned i = 0; i < LAY_LABEL_COPIES; i++) {
        int now = bd_write(f->dev, places[i] << LAY_BLOCK_SHIFT, f->buf, LAY_BLOCK_SIZE, 0);
        err = err ? err : now;
    }
    return err ? err : bd_flush(f->dev);
}

/*
 * Erases old labels, without a check for interruptions in between. The discard
 * is a hint that spares the drive. It follows the erasure, so that no label
 * refers to discarded blocks. Discarded blocks have undefined contents, so the
 * labels are zeroed again.
 */
static int erase_old(struct format *f)
{
    int err = zero_labels(f);

    if (!err)
        err = bd_discard(f->dev, 0, geo_of(f)->blocks << LAY_BLOCK_SHIFT);
    return err ? err : zero_labels(f);
}

static int format_flush(struct format *f)
{
    return bd_flush(f->dev);
}

/* --- Verification ----------------------------------------------------------------------------- */

static int verify_zeros(struct format *f, uint64_t block, uint64_t count)
{
    int err = 0;

    for (uint64_t n; count > 0 && !err; block += n, count -= n) {
        n = count < BATCH_BLOCKS ? count : BATCH_BLOCKS;
        err = format_read_blocks(f, block, n);
        if (!err && !lay_is_zero(f->buf, n << LAY_BLOCK_SHIFT))
            err = -EUCLEAN;
    }
    return err;
}

/* Reads n of the written blocks, each by a command of its own. */
static int format_read_singly(struct format *f, const struct format_written *w, size_t n)
{
    struct bd_io ios[SINGLE_BLOCKS];
    int err = format_interrupted(f);

    for (size_t i = 0; i < n; i++)
        ios[i] = (struct bd_io){.op = BD_READ,
                                .offset = w[i].block << LAY_BLOCK_SHIFT,
                                .len = LAY_BLOCK_SIZE,
                                .buf = f->buf + (i << LAY_BLOCK_SHIFT)};
    return err ? err : bd_submit(f->dev, ios, n);
}

/*
 * Reads what was written since the last call by short commands. A drive that
 * permutes the pages of long commands does so in both directions, so long reads
 * would hide it.
 */
static int verify_written(struct format *f)
{
    int err = 0;

    for (size_t n; f->verified < f->written_count && !err; f->verified += n) {
        const struct format_written *w = &f->written[f->verified];
        n = f->written_count - f->verified;
        n = n < SINGLE_BLOCKS ? n : SINGLE_BLOCKS;
        err = format_read_singly(f, w, n);
        for (size_t i = 0; i < n && !err; i++) {
            if (lay_data_sum(f->buf + (i << LAY_BLOCK_SHIFT)) != w[i].sum)
                err = -EUCLEAN;
        }
    }
    return err;
}

static int verify_rest_of_log(struct format *f, uint64_t start)
{
    const struct lay_geometry *geo = geo_of(f);
    uint64_t end = 1 + lay_log_unused_last(geo);

    return verify_zeros(f, start + end, geo->log_blocks - end);
}

static int verify_rest_of_logs(struct format *f)
{
    return each_log(f, verify_rest_of_log);
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
    static const step_fn blocks[] = {erase_old,           write_mmp,      format_write_bitmaps,
                                     format_write_chunks, write_supers,   write_logs,
                                     format_flush,        verify_written, verify_rest_of_logs};
    static const step_fn labels[] = {write_labels, verify_written};
    struct format f = {.dev = dev, .params = params, .plan = plan};
    int err = mkfs_lay_out(params, dev->info.bytes, plan);

    if (err)
        return err;
    f.buf = bd_dma_alloc(dev, (size_t)BATCH_BLOCKS << LAY_BLOCK_SHIFT);
    if (!f.buf)
        return -ENOMEM;
    f.incarnation =
        (struct lay_incarnation){lay_put64(1), lay_put64(mkfs_id(params, ID_INCARNATION))};
    err = run_steps(&f, blocks, sizeof(blocks) / sizeof(blocks[0]));
    if (!err) {
        err = run_steps(&f, labels, sizeof(labels) / sizeof(labels[0]));
        if (err)
            (void)zero_labels(&f);
    }
    free(f.aged);
    free(f.written);
    bd_dma_free(dev, f.buf, (size_t)BATCH_BLOCKS << LAY_BLOCK_SHIFT);
    return err;
}
