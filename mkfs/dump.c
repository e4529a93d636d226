/* SPDX-License-Identifier: BSD-2-Clause */
/* dump.gpunvme shows the objects of a file system as text or JSON. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/ffs.h"
#include "layout/layout.h"
#include "mkfs/dump_values.h"
#include "mkfs/image.h"
#include "mkfs/replay.h"
#include "mkfs/tool.h"
#include "mkfs/walk.h"
#include "support/minmax.h"
#include "support/number.h"

#define SCHEMA_VERSION 3
#define EXIT_USAGE     2
#define NOT_ASKED      UINT64_MAX

struct options {
    struct tool_device device;
    bool label, super, log, chunks, json;
    uint64_t inode, extents, directory; /* number of the inode to show, or NOT_ASKED */
    uint64_t segment;                   /* or NOT_ASKED */
};

/* Holds the device and the structures that lead to the requested object. */
struct dump {
    const struct options *o;
    struct image img;
    struct lay_labels labels;
    struct lay_supers supers;
    struct lay_super sb; /* after recovery */
    struct log log;
    struct dump_out out;
    bool map_damaged;
};

/*
 * Adds the address of a block in a chunk: KEY as "segment/block", KEY_place,
 * the block of the device, which is null if the segment is not mapped, and
 * KEY_copy if the block has a second place.
 */
static void dump_put_address(struct json_object *to, const char *key, const struct image *img,
                             uint64_t addr)
{
    char text[48], place[64];
    uint64_t places[2];

    snprintf(text, sizeof(text), "%" PRIu64 "/%" PRIu32, lay_addr_segment(addr),
             lay_addr_index(addr));
    dump_put_string(to, key, text);
    snprintf(place, sizeof(place), "%s_place", key);
    unsigned n = image_places(img, addr, places);
    dump_put_link(to, place, n > 0 ? places[0] : LAY_NONE);
    if (n > 1) {
        snprintf(place, sizeof(place), "%s_copy", key);
        dump_put_link(to, place, places[1]);
    }
}

static const char *type_name(unsigned type)
{
    static const char *const names[16] = {
        [DT_FIFO] = "fifo",     [DT_CHR] = "character device",
        [DT_DIR] = "directory", [DT_BLK] = "block device",
        [DT_REG] = "file",      [DT_LNK] = "symbolic link",
        [DT_SOCK] = "socket",
    };

    return type < 16 && names[type] ? names[type] : "unknown";
}

static const char *map_name(unsigned kind)
{
    static const char *const names[] = {
        [LAY_MAP_EMPTY] = "empty",   [LAY_MAP_INLINE] = "inline", [LAY_MAP_TREE] = "tree",
        [LAY_MAP_TARGET] = "target", [LAY_MAP_LINK] = "link",     [LAY_MAP_DIR] = "dir",
    };

    return kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "unknown";
}

static struct json_object *add_array(struct json_object *to, const char *key)
{
    struct json_object *array = json_object_new_array();

    json_object_object_add(to, key, array);
    return array;
}

static void dump_incarnation(struct json_object *to, const char *key,
                             const struct lay_incarnation *incarnation)
{
    struct json_object *object = json_object_new_object();

    dump_put_number(object, "counter", lay_get64(incarnation->counter));
    dump_put_number(object, "id", lay_get64(incarnation->id));
    json_object_object_add(to, key, object);
}

/* Adds places, of which the unused ones are none. */
static void dump_places(struct json_object *to, const char *key, const le64 *places, size_t n)
{
    struct json_object *array = add_array(to, key);

    for (size_t i = 0; i < n; i++) {
        if (lay_get64(places[i]) != LAY_NONE)
            json_object_array_add(array, json_object_new_uint64(lay_get64(places[i])));
    }
}

static int dump_label(struct dump *d, struct json_object *to)
{
    const struct lay_label *label = lay_labels_newest(&d->labels);

    dump_put_number(to, "version_major", lay_get16(label->version_major));
    dump_put_number(to, "version_minor", lay_get16(label->version_minor));
    dump_put_uuid(to, "uuid", label->uuid);
    dump_put_uuid(to, "sealing_uuid", label->head.uuid);
    dump_put_uuid(to, "member_uuid", label->members[0].uuid);
    dump_put_string(to, "label", label->label);
    dump_put_number(to, "block_size", lay_get32(label->block_size));
    dump_put_number(to, "blocks", lay_get64(label->members[0].blocks));
    dump_put_number(to, "compat", lay_get64(label->compat));
    dump_put_number(to, "ro_compat", lay_get64(label->ro_compat));
    dump_put_number(to, "incompat", lay_get64(label->incompat));
    dump_incarnation(to, "incarnation", &label->incarnation);
    dump_incarnation(to, "seen", &label->members[0].seen);
    dump_put_number(to, "log_id", lay_get64(label->log_id));
    dump_put_number(to, "log_blocks", lay_get64(label->log_blocks));
    dump_places(to, "logs", label->logs, 2);
    dump_places(to, "supers", label->supers, LAY_SUPER_COPIES);
    dump_put_time(to, "created", label->created);
    return 0;
}

/* Adds the place of a copy if there is one. */
static void dump_copy(struct json_object *to, const char *key, le64 place)
{
    if (lay_get64(place) != LAY_NONE && lay_get64(place) != 0)
        dump_put_number(to, key, lay_get64(place));
}

static void dump_area(const struct lay_area *area, struct json_object *to)
{
    dump_put_number(to, "blocks", lay_get64(area->blocks));
    dump_put_number(to, "free_blocks", lay_get64(area->free_blocks));
    dump_put_number(to, "bitmap_start", lay_get64(area->bitmaps[0]));
    dump_copy(to, "bitmap_copy", area->bitmaps[1]);
    dump_put_number(to, "bitmap_blocks", lay_groups_of(lay_get64(area->blocks)));
    dump_put_number(to, "bitmap_age", lay_get32(area->bitmap_age));
    dump_put_number(to, "sums_start", lay_get64(area->sums[0]));
    dump_copy(to, "sums_copy", area->sums[1]);
    dump_put_number(to, "sums_age", lay_get32(area->sums_age));
}

static int dump_super(struct dump *d, struct json_object *to)
{
    const struct lay_super *sb = &d->sb;

    dump_put_number(to, "tid", lay_get64(sb->head.tid));
    dump_put_number(to, "age", lay_age(sb));
    dump_put_flag(to, "clean", d->log.state == LOG_CLEAN);
    dump_put_flag(to, "error", (lay_get32(sb->state) & LAY_STATE_ERROR) != 0);
    dump_area(&sb->area, to);
    dump_put_number(to, "map_start", lay_get64(sb->map[0]));
    dump_copy(to, "map_copy", sb->map[1]);
    dump_put_number(to, "map_blocks", lay_get64(sb->map_blocks));
    dump_put_number(to, "map_age", lay_get32(sb->map_age));
    dump_put_number(to, "chunk_shift", lay_get32(sb->chunk_shift));
    dump_put_number(to, "chunks", lay_get64(sb->chunks));
    dump_put_number(to, "reserve", lay_get32(sb->reserve));
    dump_put_number(to, "inodes", lay_get64(sb->inodes));
    dump_put_number(to, "inode_file_blocks", lay_get64(sb->inode_file.size) >> LAY_BLOCK_SHIFT);
    dump_put_link(to, "free_inode_block", lay_get64(sb->free_inode_block));
    dump_put_link(to, "orphan", lay_get64(sb->orphan));
    dump_put_hex(to, "hash_seed", sb->hash_seed, sizeof(sb->hash_seed));
    dump_put_number(to, "mounts", lay_get64(sb->mounts));
    dump_put_time(to, "mounted", sb->mounted);
    dump_incarnation(to, "clean_incarnation", &sb->clean_incarnation);
    dump_put_number(to, "clean_tid", lay_get64(sb->clean_tid));
    dump_put_number(to, "clean_pos", lay_get64(sb->clean_pos));
    return 0;
}

static void dump_transactions(const struct log *log, struct json_object *array)
{
    for (size_t i = 0; i < log->transaction_count; i++) {
        const struct lay_log_tx *t = &log->transactions[i];
        struct json_object *row = json_object_new_object();
        dump_put_number(row, "tid", t->tid);
        dump_put_number(row, "pos", t->pos);
        dump_put_number(row, "blocks", t->blocks);
        dump_put_number(row, "images", t->images);
        dump_put_number(row, "incarnation", t->commit.counter);
        dump_put_number(row, "tail_tid", t->commit.tail_tid);
        dump_put_time(row, "time", t->commit.time);
        json_object_array_add(array, row);
    }
}

static void dump_images(const struct image *img, const struct log *log, struct json_object *array)
{
    for (size_t i = 0; i < log->image_count; i++) {
        struct json_object *row = json_object_new_object();
        uint64_t addr = log->images[i].addr;
        dump_put_number(row, "tid", log->images[i].tid);
        dump_put_number(row, "kind", lay_addr_kind(addr));
        dump_put_number(row, "level", lay_addr_level(addr));
        dump_put_number(row, "number", lay_addr_number(addr));
        dump_put_number(row, "pos", log->images[i].pos);
        if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
            dump_put_address(row, "address", img, addr);
        json_object_array_add(array, row);
    }
}

static int dump_log(struct dump *d, struct json_object *to)
{
    static const char *const states[] = {[LOG_WHOLE] = "whole",
                                         [LOG_CLEAN] = "clean",
                                         [LOG_DAMAGED] = "damaged",
                                         [LOG_LOST] = "lost"};
    const struct log *log = &d->log;
    const struct lay_log_mark *newest = &log->reader.newest;

    dump_put_string(to, "state", states[log->state]);
    dump_put_number(to, "newest_tid", newest->tid);
    dump_put_number(to, "newest_pos", newest->pos);
    dump_put_number(to, "tail_tid", newest->tail_tid);
    dump_put_number(to, "tail_pos", newest->tail_pos);
    dump_put_number(to, "super_age", newest->super_age);
    dump_put_number(to, "end_tid", log->reader.tid);
    dump_put_number(to, "end_pos", log->reader.pos);
    dump_transactions(log, add_array(to, "transactions"));
    dump_images(&d->img, log, add_array(to, "images"));
    return 0;
}

/* --- Chunks ----------------------------------------------------------------------------------- */

static const char *magic_name(uint32_t magic)
{
    switch (magic) {
    case LAY_MAGIC_ENTRIES:
        return "entries";
    case LAY_MAGIC_INODES:
        return "inodes";
    case LAY_MAGIC_EXTENTS:
        return "extents";
    case LAY_MAGIC_DIR:
        return "names";
    case LAY_MAGIC_XATTR:
        return "attributes";
    case LAY_MAGIC_SYMLINK:
        return "target";
    default:
        return "unknown";
    }
}

/* Reads a block. Returns 0, -EUCLEAN for an older version of it, or a device error. */
static int dump_read(struct image *img, uint64_t addr, union lay_block *b)
{
    int err = image_read(img, addr, b);

    return !err && img->age == IMAGE_AGE_STALE ? -EUCLEAN : err;
}

/* Reads the entries of a segment. Returns 0, -EUCLEAN or a device error. */
static int read_entries(struct image *img, uint64_t segment, union lay_block *b)
{
    int err = dump_read(img, LAY_ADDR_CHUNK(segment, 0), b);

    return err ? err : lay_check_entries(&img->geo, &b->entries, segment, NULL);
}

/* Adds each mapped segment. Damaged entries have no count of free blocks. */
static int dump_chunks(struct dump *d)
{
    struct image *img = &d->img;
    union lay_block b;
    int failed = 0;

    for (size_t i = 0; i < img->segment_count; i++) {
        const struct image_segment *s = &img->segments[i];
        struct json_object *row = json_object_new_object();
        int err = read_entries(img, s->segment, &b);
        dump_put_number(row, "segment", s->segment);
        dump_put_number(row, "chunk", s->segment >> img->geo.chunk_shift);
        dump_put_number(row, "place", s->block);
        if (s->copy != LAY_NONE)
            dump_put_number(row, "copy", s->copy);
        dump_put_link(row, "free", err ? LAY_NONE : lay_get32(b.entries.free));
        dump_out_row(&d->out, row);
        failed = err ? err : failed;
    }
    return failed;
}

/* Adds a block in use of a segment, by what its head says. */
static int add_block(struct image *img, uint64_t addr, struct dump_out *out)
{
    struct json_object *row = json_object_new_object();
    union lay_block b;
    int err = image_read(img, addr, &b);
    bool stale = img->age == IMAGE_AGE_STALE;

    dump_put_address(row, "address", img, addr);
    if (!err)
        err = lay_check_head(&b, lay_get32(b.head.magic), img->geo.uuid, addr, LAY_ANY_OWNER, NULL);
    dump_put_flag(row, "sound", !err && !stale);
    if (!err) {
        dump_put_flag(row, "stale", stale);
        dump_put_number(row, "age", lay_age(&b));
        dump_put_string(row, "holds", magic_name(lay_get32(b.head.magic)));
        dump_put_number(row, "owner", lay_get64(b.head.owner));
        dump_put_number(row, "tid", lay_get64(b.head.tid));
    }
    dump_out_row(out, row);
    return stale ? -EUCLEAN : err;
}

/* Adds the blocks in use of a segment. Returns -ENXIO if it is not mapped. */
static int dump_segment(struct dump *d)
{
    struct image *img = &d->img;
    uint64_t segment = d->o->segment;
    union lay_block b;
    bool mapped = image_segment_block(img, segment) != LAY_NONE;
    int failed = 0, err = mapped ? read_entries(img, segment, &b) : -ENXIO;

    if (err)
        return err;
    for (unsigned i = 0; i < LAY_SEGMENT_BLOCKS; i++) {
        if (b.entries.used[i / 8] >> i % 8 & 1)
            err = add_block(img, LAY_ADDR_CHUNK(segment, i), &d->out);
        failed = err ? err : failed;
    }
    return failed;
}

/* --- Inodes ----------------------------------------------------------------------------------- */

static int read_inode(struct dump *d, uint64_t ino, struct lay_inode *inode)
{
    if (ino == 0) {
        *inode = d->sb.inode_file;
        return 0;
    }
    int err = walk_read_inode(&d->img, &d->sb, ino, inode, NULL);
    return !err && lay_get32(inode->mode) == 0 ? -ENOENT : err;
}

static void dump_tree_put_attributes(const struct lay_inode *inode, struct json_object *to)
{
    dump_put_string(to, "type", type_name(lay_get32(inode->mode) >> 12));
    dump_put_octal(to, "mode", lay_get32(inode->mode));
    dump_put_flag(to, "gpu_bound", (lay_get32(inode->flags) & LAY_INODE_GPU_BOUND) != 0);
    dump_put_flag(to, "immutable", (lay_get32(inode->flags) & LAY_INODE_IMMUTABLE) != 0);
    dump_put_flag(to, "append", (lay_get32(inode->flags) & LAY_INODE_APPEND) != 0);
    dump_put_flag(to, "noatime", (lay_get32(inode->flags) & LAY_INODE_NOATIME) != 0);
    dump_put_number(to, "uid", lay_get32(inode->uid));
    dump_put_number(to, "gid", lay_get32(inode->gid));
    dump_put_number(to, "nlink", lay_get32(inode->nlink));
    dump_put_number(to, "generation", lay_get32(inode->generation));
    dump_put_number(to, "size", lay_get64(inode->size));
    dump_put_number(to, "blocks", lay_get64(inode->blocks));
    dump_put_time(to, "atime", inode->atime);
    dump_put_time(to, "mtime", inode->mtime);
    dump_put_time(to, "ctime", inode->ctime);
    dump_put_time(to, "btime", inode->btime);
    dump_put_number(to, "rdev", lay_get32(inode->rdev));
    dump_put_number(to, "parent", lay_get64(inode->parent));
    dump_put_number(to, "version", lay_get64(inode->version));
    dump_put_link(to, "next_orphan", lay_get64(inode->next_orphan));
}

static int put_target(struct image *img, uint64_t ino, const struct lay_inode *inode,
                      struct json_object *to)
{
    char target[LAY_SYMLINK_MAX + 1];
    uint64_t block = lay_get64(inode->map.link.block);
    size_t size = lay_get64(inode->size);
    size_t head = size < LAY_PAYLOAD ? size : LAY_PAYLOAD;
    union lay_block b;

    int err = dump_read(img, block, &b);
    if (!err)
        err = lay_check_symlink_block(&img->geo, &b.symlink, block, ino, NULL);
    if (err)
        return err;
    memcpy(target, b.symlink.bytes, head);
    memcpy(target + head, inode->map.link.tail, size - head);
    dump_put_address(to, "target_block", img, block);
    dump_put_bytes(to, "target", target, size);
    return 0;
}

static int dump_tree_put_map(struct image *img, uint64_t ino, const struct lay_inode *inode,
                             struct json_object *to)
{
    unsigned kind = lay_get16(inode->map_kind);

    dump_put_string(to, "map", map_name(kind));
    if (kind == LAY_MAP_INLINE)
        dump_put_number(to, "extents", lay_get16(inode->map_count));
    if (kind == LAY_MAP_TREE || kind == LAY_MAP_DIR) {
        dump_put_number(to, "height", lay_get16(inode->map_height));
        dump_put_address(to, "root", img, lay_get64(inode->map.tree.root));
        dump_put_number(to, "nodes", lay_get64(inode->map.tree.blocks));
        dump_put_number(to, "entries", lay_get64(inode->map.tree.entries));
    }
    if (kind == LAY_MAP_TARGET)
        dump_put_bytes(to, "target", inode->map.bytes, lay_get64(inode->size));
    return kind == LAY_MAP_LINK ? put_target(img, ino, inode, to) : 0;
}

static void add_xattr(void *arg, const struct lay_xattr *x)
{
    struct json_object *row = json_object_new_object();

    dump_put_bytes(row, "name", lay_xattr_name(x), x->name_len);
    dump_put_number(row, "bytes", lay_get32(x->value_len));
    json_object_array_add(arg, row);
}

static int dump_inode(struct dump *d, struct json_object *to)
{
    static const struct walk_ops ops = {.xattr = add_xattr};
    struct image *img = &d->img;
    struct lay_inode inode;
    uint64_t ino = d->o->inode;
    int err = read_inode(d, ino, &inode);

    if (err)
        return err;
    dump_put_number(to, "number", ino);
    dump_tree_put_attributes(&inode, to);
    if (lay_get64(inode.xattr) != 0)
        dump_put_address(to, "xattr_block", img, lay_get64(inode.xattr));
    err = dump_tree_put_map(img, ino, &inode, to);
    int xattr_err = walk_xattrs(img, ino, &inode, &ops, add_array(to, "xattrs"), NULL);
    return err ? err : xattr_err;
}

/* The extents of the inode file are in chunks. */
static void add_extent(void *arg, const struct lay_extent *e)
{
    struct dump *d = arg;
    struct json_object *row = json_object_new_object();

    dump_put_number(row, "file_block", lay_get64(e->file_block));
    if (d->o->extents == 0)
        dump_put_address(row, "address", &d->img, lay_get64(e->block));
    else
        dump_put_link(row, "block", lay_get64(e->block));
    dump_put_number(row, "blocks", lay_get32(e->len));
    dump_put_flag(row, "unwritten", (lay_get16(e->flags) & LAY_EXTENT_UNWRITTEN) != 0);
    dump_put_flag(row, "damaged", (lay_get16(e->flags) & LAY_EXTENT_DAMAGED) != 0);
    dump_out_row(&d->out, row);
}

static int dump_extents(struct dump *d)
{
    static const struct walk_ops ops = {.extent = add_extent};
    struct lay_inode inode;
    int err = read_inode(d, d->o->extents, &inode);

    return err ? err : walk_extents(&d->img, d->o->extents, &inode, &ops, d, NULL);
}

static void dump_tree_add_name(void *arg, const struct lay_dirent *d)
{
    struct json_object *row = json_object_new_object();

    dump_put_number(row, "key", lay_get64(d->key));
    dump_put_number(row, "inode", lay_get64(d->ino));
    dump_put_string(row, "type", type_name(d->type));
    dump_put_bytes(row, "name", d->name, d->name_len);
    dump_out_row(arg, row);
}

static int dump_directory(struct dump *d)
{
    static const struct walk_ops ops = {.name = dump_tree_add_name};
    struct lay_inode inode;
    int err = read_inode(d, d->o->directory, &inode);

    return err ? err : walk_names(&d->img, d->o->directory, &inode, &ops, &d->out, NULL);
}

static const char usage_text[] =
    "usage: dump.gpunvme [OPTION]... DEVICE\n"
    "Shows what is in the gpunvmefs file system on DEVICE, as it is after recovery. DEVICE\n"
    "is an image file, a block device, vfio:ADDRESS[/NSID] or vfio-user:SOCKET.\n"
    "\n"
    "  -l, --label            the label (shown by default)\n"
    "  -s, --superblock       the superblock (shown by default)\n"
    "  -i, --inode=INO        an inode and the names of its extended attributes\n"
    "  -e, --extents=INO      the extents of a file; inode 0 is the inode file\n"
    "  -d, --directory=INO    the names in a directory; inode 1 is the root\n"
    "  -j, --log              the transactions in the log\n"
    "  -c, --chunks           the segments of metadata and their free blocks\n"
    "  -g, --segment=NUMBER   the blocks in use of a segment\n"
    "  -o, --output=FORMAT    text or json\n" TOOL_USAGE TOOL_USAGE_END;

static int set_number(uint64_t *number, const char *what, const char *text)
{
    if (!number_parse(text, 10, NOT_ASKED - 1, number))
        return tool_error("options", "'%s' is not %s number", text, what);
    return 0;
}

static int set_inode(void *ino, char *text)
{
    return set_number(ino, "an inode", text);
}

static int set_segment(void *segment, char *text)
{
    return set_number(segment, "a segment", text);
}

static int set_output(void *json, char *text)
{
    *(bool *)json = strcmp(text, "json") == 0;
    if (!*(bool *)json && strcmp(text, "text") != 0)
        return tool_error("--output", "'%s' is not a format, use text or json", text);
    return 0;
}

static const struct tool_option dump_options[] = {
    {'l', "label", .at = offsetof(struct options, label)},
    {'s', "superblock", .at = offsetof(struct options, super)},
    {'i', "inode", .at = offsetof(struct options, inode), .take = set_inode},
    {'e', "extents", .at = offsetof(struct options, extents), .take = set_inode},
    {'d', "directory", .at = offsetof(struct options, directory), .take = set_inode},
    {'j', "log", .at = offsetof(struct options, log)},
    {'c', "chunks", .at = offsetof(struct options, chunks)},
    {'g', "segment", .at = offsetof(struct options, segment), .take = set_segment},
    {'o', "output", .at = offsetof(struct options, json), .take = set_output,
     .values = "text json"},
    {0},
};
static const struct tool_syntax syntax = {usage_text, dump_options, EXIT_USAGE};

/* Returns -1 to continue, or the exit status. */
static int dump_parse_arguments(int argc, char **argv, struct options *o)
{
    int status = tool_parse(&syntax, argc, argv, o, &o->device);
    bool any = o->label || o->super || o->log || o->chunks || o->inode != NOT_ASKED ||
               o->extents != NOT_ASKED || o->directory != NOT_ASKED || o->segment != NOT_ASKED;

    if (!any)
        o->label = o->super = true;
    return status;
}

/* Implements image.corrected. */
static int dump_corrected(void *arg, uint64_t addr, union lay_block *b)
{
    const struct dump *d = arg;
    uint64_t places[2] = {0, 0};

    (void)b;
    image_places(&d->img, addr, places);
    tool_error(d->o->device.text, "block %" PRIu64 ": one bit is wrong, shown as corrected",
               places[0]);
    return 0;
}

/* Sets *overlap if two segments have one place. Returns 0 or -ENOMEM. */
static int dump_overlaps(const struct image *img, bool *overlap)
{
    uint64_t *sorted = malloc((2 * img->segment_count + 1) * sizeof(*sorted));
    size_t n = 0;

    *overlap = false;
    if (!sorted)
        return -ENOMEM;
    for (size_t i = 0; i < img->segment_count; i++) {
        sorted[n++] = img->segments[i].block;
        if (img->segments[i].copy != LAY_NONE)
            sorted[n++] = img->segments[i].copy;
    }
    qsort(sorted, n, sizeof(*sorted), by_u64);
    for (size_t i = 1; i < n; i++)
        *overlap |= sorted[i] == sorted[i - 1];
    free(sorted);
    return 0;
}

/* Reports what is wrong with the chunk map. Returns 0 or -ENOMEM. */
static int dump_check_map(struct dump *d)
{
    const char *path = d->o->device.text;
    const struct image *img = &d->img;
    uint64_t segments = lay_get64(d->sb.chunks) << img->geo.chunk_shift;
    bool other = img->bad_map_count == 0 && img->segment_count != segments;
    bool overlap;
    int err = dump_overlaps(img, &overlap);

    for (size_t i = 0; i < img->bad_map_count; i++)
        tool_error(path, "chunk map, block %" PRIu64 ": damaged (%s), run fsck.gpunvme",
                   img->bad_maps[i].index, img->bad_maps[i].why);
    if (other)
        tool_error(path,
                   "chunk map: the number of segments is %zu instead of %" PRIu64
                   ", run fsck.gpunvme",
                   img->segment_count, segments);
    if (overlap)
        tool_error(path, "chunk map: segments overlap, run fsck.gpunvme");
    d->map_damaged = img->bad_map_count > 0 || other || overlap;
    return err;
}

/* An unreadable block of the map is reported like a damaged one. */
static int dump_read_map(struct dump *d)
{
    d->img.tolerant = true;
    int err = replay_map(&d->img, lay_get64(d->sb.chunks));
    d->img.tolerant = false;
    return err ? err : dump_check_map(d);
}

/*
 * Replays the log in memory, so that reads are as after recovery. A damaged log
 * is replayed up to the damage. Returns 0, or -1 after a message if the
 * superblock is lost, or a device error.
 */
static int dump_recover(struct dump *d)
{
    const char *path = d->o->device.text, *why = NULL;
    bool lost = false;
    struct lay_io io = ffs_io(d->img.dev);
    int err = lay_supers_read(&io, &d->img.geo, &d->supers);

    if (!err)
        err = replay_read(&d->img, &d->labels, &d->supers, &d->log);
    if (err)
        return err;
    if (d->log.state == LOG_DAMAGED || d->log.state == LOG_LOST)
        tool_error(path, "log: damaged (%s), shown as before the damage; run fsck.gpunvme",
                   d->log.why ? d->log.why : "no commit was found");
    err = replay_super(&d->img, &d->log, &d->supers, &d->sb, &lost, &why);
    if (err == -EUCLEAN)
        return tool_error(path, "superblock: damaged (%s), run fsck.gpunvme", why);
    if (lost)
        tool_error(path, "superblock: not the one that the log names, shown as it is");
    if (!err)
        err = replay_replay(&d->img, &d->log);
    return err ? err : dump_read_map(d);
}

static int dump_explain(const struct options *o, const char *what, int err)
{
    switch (err) {
    case 0:
        return 0;
    case -ENXIO:
        return tool_error(o->device.text, "%s: not mapped", what);
    case -ENOENT:
        return tool_error(o->device.text, "%s: no such inode in use", what);
    case -ENOTDIR:
        return tool_error(o->device.text, "%s: not a directory", what);
    case -EUCLEAN:
        return tool_error(o->device.text, "%s: damaged, run fsck.gpunvme", what);
    default:
        return tool_error(o->device.text, "%s: %s", what, tool_strerror(err));
    }
}

/* Prints an object, unless it is empty after an error. Reports the error. */
static int dump_object(struct dump *d, const char *key,
                       int (*fill)(struct dump *d, struct json_object *to))
{
    struct json_object *object = json_object_new_object();
    int err = fill(d, object);

    if (err && json_object_object_length(object) == 0)
        json_object_put(object);
    else
        dump_out_value(&d->out, key, object);
    return dump_explain(d->o, key, err);
}

/* Prints an array, unless it is empty after an error. Reports the error. */
static int dump_rows(struct dump *d, const char *key, int (*add)(struct dump *d))
{
    dump_out_begin_rows(&d->out, key);
    int err = add(d);
    dump_out_end_rows(&d->out, err != 0);
    return dump_explain(d->o, key, err);
}

static int dump_collect(struct dump *d)
{
    const struct options *o = d->o;
    int failed = 0;

    dump_out_head(&d->out, "schema_version", json_object_new_int(SCHEMA_VERSION));
    dump_out_head(&d->out, "device", json_object_new_string(o->device.text));
    dump_out_head(&d->out, "recovered_transactions",
                  json_object_new_uint64(d->log.transaction_count));
    if (o->label)
        failed |= dump_object(d, "label", dump_label);
    if (o->super)
        failed |= dump_object(d, "superblock", dump_super);
    if (o->inode != NOT_ASKED)
        failed |= dump_object(d, "inode", dump_inode);
    if (o->extents != NOT_ASKED)
        failed |= dump_rows(d, "extents", dump_extents);
    if (o->directory != NOT_ASKED)
        failed |= dump_rows(d, "directory", dump_directory);
    if (o->log)
        failed |= dump_object(d, "log", dump_log);
    if (o->chunks)
        failed |= dump_rows(d, "chunks", dump_chunks);
    if (o->segment != NOT_ASKED)
        failed |= dump_rows(d, "segment", dump_segment);
    return failed;
}

/* Reports a copy of the label that is not as it should be. */
static void dump_report_labels(const struct dump *d)
{
    const char *path = d->o->device.text;

    for (int i = 0; i < (int)LAY_LABEL_COPIES; i++) {
        const struct lay_label_copy *copy = &d->labels.copies[i];
        unsigned block = i ? LAY_LABEL_SECOND : 0, other = i ? 0 : LAY_LABEL_SECOND;
        if (copy->error)
            tool_error(path, "label in block %u: damaged (%s), using that in block %u", block,
                       copy->why, other);
        else if (copy->corrected)
            tool_error(path, "label in block %u: one bit is wrong, shown as corrected", block);
        else if (i != d->labels.newest && !lay_labels_equal(&d->labels))
            tool_error(path, "label in block %u: older than that in block %u, which is used", block,
                       other);
    }
}

static int dump_start(struct dump *d, struct bd_dev *dev)
{
    const char *path = d->o->device.text;
    struct reason why;

    if (ffs_ours(dev, false, &why) != 0)
        return tool_error(path, "%s", why.text);
    int err = image_start(&d->img, dev, false, &d->labels);
    if (err)
        return tool_no_file_system(path, &d->labels, err);
    d->img.corrected = dump_corrected;
    d->img.corrected_arg = d;
    dump_report_labels(d);
    return 0;
}

static int dump_device(const struct options *o, struct bd_dev *dev)
{
    struct dump *d = calloc(1, sizeof(*d));

    if (!d)
        return -1;
    d->o = o;
    dump_out_start(&d->out, o->json);
    int failed = dump_start(d, dev);
    if (!failed) {
        int err = dump_recover(d);
        failed = err && err != -1 ? dump_explain(o, "log", err) : err;
        if (!failed)
            failed = dump_collect(d) || d->log.state >= LOG_DAMAGED || d->map_damaged;
    }
    dump_out_end(&d->out);
    replay_free(&d->log);
    image_end(&d->img);
    free(d);
    return failed;
}

int main(int argc, char **argv)
{
    struct options o = {
        .inode = NOT_ASKED, .extents = NOT_ASKED, .directory = NOT_ASKED, .segment = NOT_ASKED};
    struct bd_opened opened;
    int status = dump_parse_arguments(argc, argv, &o);

    if (status >= 0)
        return status;
    if (tool_open(&o.device, BD_OPEN_READ_ONLY, &opened) != 0)
        return EXIT_FAILURE;
    int failed = dump_device(&o, opened.dev);
    bd_opened_close(&opened);
    return failed || fflush(stdout) != 0 || ferror(stdout) ? EXIT_FAILURE : EXIT_SUCCESS;
}
