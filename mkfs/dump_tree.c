/* SPDX-License-Identifier: BSD-2-Clause */
/* Converts objects of the file system to JSON trees. */
#include "mkfs/dump_tree.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>

#include "mkfs/walk.h"

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

static void super_shape(const struct lay_super *sb, struct json_object *to)
{
    dump_put_number(to, "version_major", lay_get16(sb->version_major));
    dump_put_number(to, "version_minor", lay_get16(sb->version_minor));
    dump_put_uuid(to, "uuid", sb->head.uuid);
    dump_put_string(to, "label", sb->label);
    dump_put_number(to, "block_size", lay_get32(sb->block_size));
    dump_put_number(to, "blocks", lay_get64(sb->blocks));
    dump_put_number(to, "compat", lay_get64(sb->compat));
    dump_put_number(to, "ro_compat", lay_get64(sb->ro_compat));
    dump_put_number(to, "incompat", lay_get64(sb->incompat));
    dump_put_number(to, "bitmap_start", lay_get64(sb->bitmap_start));
    dump_put_number(to, "bitmap_blocks", lay_get64(sb->bitmap_blocks));
    dump_put_number(to, "journal_start", lay_get64(sb->journal_start));
    dump_put_number(to, "journal_blocks", lay_get64(sb->journal_blocks));
    dump_put_number(to, "sums_start", lay_get64(sb->sums_start));
    dump_put_number(to, "sums_blocks", lay_get64(sb->sums_blocks));
    struct json_object *copies = add_array(to, "copies");
    for (unsigned i = 0; i < LAY_SUPER_COPIES; i++)
        json_object_array_add(copies, json_object_new_uint64(lay_get64(sb->copies[i])));
    dump_put_hex(to, "hash_seed", sb->hash_seed, sizeof(sb->hash_seed));
    dump_put_time(to, "created", sb->created);
}

void dump_super(const struct lay_super *sb, struct json_object *to)
{
    uint32_t state = lay_get32(sb->state);

    dump_put_number(to, "address", lay_get64(sb->head.block));
    dump_put_number(to, "tid", lay_get64(sb->head.tid));
    super_shape(sb, to);
    dump_put_flag(to, "clean", (state & LAY_STATE_CLEAN) != 0);
    dump_put_flag(to, "error", (state & LAY_STATE_ERROR) != 0);
    dump_put_number(to, "free_blocks", lay_get64(sb->free_blocks));
    dump_put_number(to, "inodes", lay_get64(sb->inodes));
    dump_put_number(to, "inode_file_blocks", lay_get64(sb->inode_file.size) >> LAY_BLOCK_SHIFT);
    dump_put_link(to, "free_inode_block", lay_get64(sb->free_inode_block));
    dump_put_link(to, "orphan", lay_get64(sb->orphan));
    dump_put_number(to, "mounts", lay_get64(sb->mounts));
    dump_put_time(to, "mounted", sb->mounted);
}

void dump_journal(const struct lay_journal *header, const struct log *log, struct json_object *to)
{
    dump_put_number(to, "tail_tid", lay_get64(header->tail_tid));
    dump_put_number(to, "tail_pos", lay_get64(header->tail_pos));
    dump_put_number(to, "end_tid", log->end_tid);
    dump_put_number(to, "end_pos", log->end_pos);
    struct json_object *array = add_array(to, "transactions");
    for (size_t i = 0; i < log->transaction_count; i++) {
        const struct lay_log_tx *t = &log->transactions[i];
        struct json_object *row = json_object_new_object();
        dump_put_number(row, "tid", t->tid);
        dump_put_number(row, "pos", t->pos);
        dump_put_number(row, "blocks", t->blocks);
        dump_put_number(row, "images", t->images);
        dump_put_number(row, "revokes", t->revokes);
        dump_put_time(row, "time", t->time);
        json_object_array_add(array, row);
    }
    array = add_array(to, "images");
    for (size_t i = 0; i < log->image_count; i++) {
        struct json_object *row = json_object_new_object();
        dump_put_number(row, "tid", log->images[i].tid);
        dump_put_number(row, "block", log->images[i].block);
        dump_put_number(row, "log_block", log->images[i].log_block);
        json_object_array_add(array, row);
    }
}

static int read_inode(struct image *img, const struct lay_super *sb, uint64_t ino,
                      struct lay_inode *inode)
{
    if (ino == 0) {
        *inode = sb->inode_file;
        return 0;
    }
    int err = image_read_inode(img, sb, ino, inode, NULL);
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

    int err = image_read(img, block, &b);
    if (!err)
        err = lay_check_symlink_block(&img->geo, &b.symlink, block, ino, NULL);
    if (err)
        return err;
    memcpy(target, b.symlink.bytes, head);
    memcpy(target + head, inode->map.link.tail, size - head);
    dump_put_number(to, "target_block", block);
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
        dump_put_number(to, "root", lay_get64(inode->map.tree.root));
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

int dump_inode(struct image *img, const struct lay_super *sb, uint64_t ino, struct json_object *to)
{
    static const struct walk_ops ops = {.xattr = add_xattr};
    struct lay_inode inode;
    int err = read_inode(img, sb, ino, &inode);

    if (err)
        return err;
    dump_put_number(to, "number", ino);
    dump_tree_put_attributes(&inode, to);
    err = dump_tree_put_map(img, ino, &inode, to);
    int xattr_err = walk_xattrs(img, ino, &inode, &ops, add_array(to, "xattrs"), NULL);
    return err ? err : xattr_err;
}

static void add_extent(void *arg, const struct lay_extent *e)
{
    struct json_object *row = json_object_new_object();

    dump_put_number(row, "file_block", lay_get64(e->file_block));
    dump_put_number(row, "block", lay_get64(e->block));
    dump_put_number(row, "blocks", lay_get32(e->len));
    dump_put_flag(row, "unwritten", (lay_get16(e->flags) & LAY_EXTENT_UNWRITTEN) != 0);
    json_object_array_add(arg, row);
}

int dump_extents(struct image *img, const struct lay_super *sb, uint64_t ino,
                 struct json_object *to)
{
    static const struct walk_ops ops = {.extent = add_extent};
    struct lay_inode inode;
    int err = read_inode(img, sb, ino, &inode);

    return err ? err : walk_extents(img, ino, &inode, &ops, to, NULL);
}

static void dump_tree_add_name(void *arg, const struct lay_dirent *d)
{
    struct json_object *row = json_object_new_object();

    dump_put_number(row, "key", lay_get64(d->key));
    dump_put_number(row, "inode", lay_get64(d->ino));
    dump_put_string(row, "type", type_name(d->type));
    dump_put_bytes(row, "name", d->name, d->name_len);
    json_object_array_add(arg, row);
}

int dump_directory(struct image *img, const struct lay_super *sb, uint64_t ino,
                   struct json_object *to)
{
    static const struct walk_ops ops = {.name = dump_tree_add_name};
    struct lay_inode inode;
    int err = read_inode(img, sb, ino, &inode);

    return err ? err : walk_names(img, ino, &inode, &ops, to, NULL);
}
