/* SPDX-License-Identifier: BSD-2-Clause */
/* One sound object of each kind. */
#include "tests/layout/objects.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#define INODE_INDEX 3u /* the inode block holds inodes 24 to 31 */
#define DATA        3000u
#define META        LAY_ADDR(LAY_KIND_CHUNK, 3000)
#define SEGMENT     6u  /* of the block of entries */
#define POSITION    10u /* of the records of the log */

struct lay_geometry object_geometry(void)
{
    struct lay_geometry geo = {
        .blocks = OBJECT_BLOCKS,
        .incompat = LAY_INCOMPAT_DATA_CSUM | LAY_INCOMPAT_DRAFT,
        .supers = {2, OBJECT_BLOCKS / 2},
        .bitmap_start = 3,
        .bitmap_blocks = 2,
        .bitmap_len = 3,
        .sums_start = 6,
        .sums_blocks = 40,
        .sums_len = 41,
        .log_id = 0x1112131415161718,
        .log_start = 47,
        .log_blocks = 1024,
        .map_start = 1071,
        .map_blocks = 2,
        .map_len = 3,
        .chunk_shift = 1,
        .reserve = 1,
    };

    for (uint8_t i = 0; i < 16; i++)
        geo.uuid[i] = (uint8_t)(0xa0 + i);
    memcpy(geo.hash_seed, "a key of 16 byte", sizeof(geo.hash_seed));
    return geo;
}

static struct lay_extent extent(uint64_t file_block, uint64_t block, uint32_t len)
{
    struct lay_extent e = {
        .file_block = lay_put64(file_block), .block = lay_put64(block), .len = lay_put32(len)};

    return e;
}

static const struct lay_incarnation incarnation = {{5}, {0x77}};

static void make_label(const struct lay_geometry *geo, struct lay_label *l)
{
    struct lay_member *m = &l->members[0];

    l->version_major = lay_put16(LAY_VERSION_MAJOR);
    l->version_minor = lay_put16(LAY_VERSION_MINOR);
    l->block_size = lay_put32(LAY_BLOCK_SIZE);
    l->incompat = lay_put64(geo->incompat);
    l->incarnation = incarnation;
    l->log_id = lay_put64(geo->log_id);
    l->log_blocks = lay_put64(geo->log_blocks);
    memcpy(l->uuid, "a visible UUID!!", sizeof(l->uuid));
    l->logs[0] = lay_put64(geo->log_start);
    l->logs[1] = lay_put64(LAY_NONE);
    l->supers[0] = lay_put64(geo->supers[0]);
    l->supers[1] = lay_put64(geo->supers[1]);
    l->created = lay_time_make(1700000000, 1);
    memcpy(l->label,
           "l\xc3\xa4"
           "bel",
           6);
    m->uuid[15] = 1;
    m->blocks = lay_put64(geo->blocks);
    m->lba_size = lay_put32(512);
    m->state = lay_put16(LAY_MEMBER_LIVE);
    m->seen.counter = lay_put64(4);
    m->seen.id = lay_put64(0x66);
}

static void make_mmp(struct lay_mmp *mmp)
{
    mmp->sequence = lay_put64(3);
    mmp->interval = lay_put32(LAY_MMP_INTERVAL);
    mmp->state = lay_put32(LAY_MMP_MOUNTED);
    mmp->time = lay_time_make(1700000000, 1);
    memcpy(mmp->host, "host", 4);
}

static void make_super(const struct lay_geometry *geo, struct lay_super *sb)
{
    sb->chunk_shift = lay_put32(geo->chunk_shift);
    sb->inodes = lay_put64(3);
    sb->free_inode_block = lay_put64(1);
    sb->orphan = lay_put64(LAY_NONE);
    memcpy(sb->hash_seed, geo->hash_seed, 16);
    sb->reserve = lay_put32(geo->reserve);
    sb->clean_incarnation = incarnation;
    sb->clean_tid = lay_put64(OBJECT_TID);
    sb->clean_pos = lay_put64(POSITION);
    sb->map[0] = lay_put64(geo->map_start);
    sb->map[1] = lay_put64(LAY_NONE);
    sb->map_blocks = lay_put64(geo->map_blocks);
    sb->map_age = lay_put32(0x31);
    sb->chunks = lay_put64(2);
    sb->area.bitmaps[0] = lay_put64(geo->bitmap_start);
    sb->area.bitmaps[1] = lay_put64(LAY_NONE);
    sb->area.sums[0] = lay_put64(geo->sums_start);
    sb->area.sums[1] = lay_put64(LAY_NONE);
    sb->area.bitmap_age = lay_put32(0x32);
    sb->area.sums_age = lay_put32(0x33);
    sb->area.blocks = lay_put64(geo->blocks);
    sb->area.free_blocks = lay_put64(30000);
    sb->inode_file.mode = lay_put32(S_IFREG);
    sb->inode_file.nlink = lay_put32(1);
    sb->inode_file.size = lay_put64(2 * LAY_BLOCK_SIZE);
    sb->inode_file.map_kind = lay_put16(LAY_MAP_INLINE);
    sb->inode_file.map_count = lay_put16(1);
    sb->inode_file.map.extents[0] = extent(0, META, 2);
}

/* The last group: what lies past the end is used. */
static void make_bitmap(const struct lay_geometry *geo, struct lay_bitmap *bm)
{
    uint32_t blocks = lay_group_blocks(geo, 1);

    bm->group = lay_put32(1);
    bm->free = lay_put32(blocks - 1);
    bm->bits[0] = 1;
    for (uint32_t b = blocks; b < LAY_GROUP_BLOCKS; b++)
        bm->bits[b / 8] |= (uint8_t)(1u << b % 8);
}

/* The last one: not all of its entries stand for a block. */
static void make_sums(struct lay_sums *sums)
{
    sums->index = lay_put64(39);
    sums->sums[0] = lay_put32(0x12345678);
    sums->sums[OBJECT_BLOCKS - 39 * LAY_SUMS_ENTRIES - 1] = lay_put32(LAY_ZEROS_SUM);
}

/* Chunks 0 and 3 are mapped. */
static void make_map(struct lay_map_block *mb)
{
    for (unsigned i = 0; i < LAY_MAP_SLOTS; i++)
        lay_slot_set(&mb->slots[i], LAY_NONE, LAY_NONE);
    for (unsigned i = 0; i < 2; i++) {
        lay_slot_set(&mb->slots[i], (8 + i) * LAY_SEGMENT_BLOCKS, LAY_NONE);
        lay_slot_set(&mb->slots[SEGMENT + i], (21 + i) * LAY_SEGMENT_BLOCKS, LAY_NONE);
        mb->slots[SEGMENT + i].age = lay_put32(0x34);
    }
}

static void make_entries(struct lay_entries *entries)
{
    entries->used[0] = 0x03;
    entries->used[9] = 0x01;
    entries->free = lay_put32(LAY_SEGMENT_BLOCKS - 3);
    entries->ages[1] = lay_put32(UINT32_MAX);
}

/* Of the checksums, of which there are 40 blocks. */
static void make_ages(struct lay_ages *ages)
{
    ages->ages[0] = lay_put32(1);
    ages->ages[39] = lay_put32(UINT32_MAX);
}

static void make_inode(struct lay_inode *inode, uint32_t mode, enum lay_map_kind kind,
                       uint64_t blocks)
{
    inode->mode = lay_put32(mode);
    inode->nlink = lay_put32(S_ISDIR(mode) ? 2 : 1);
    inode->generation = lay_put32(4);
    inode->blocks = lay_put64(blocks);
    inode->atime = lay_time_make(-1, 999999999);
    inode->map_kind = lay_put16(kind);
}

static void make_trees(struct lay_inode *tree, struct lay_inode *dir)
{
    make_inode(tree, S_IFREG | 0644, LAY_MAP_TREE, 60);
    tree->size = lay_put64(1000000);
    tree->xattr = lay_put64(META + 500);
    tree->map_height = lay_put16(2);
    tree->map.tree.root = lay_put64(META + 600);
    tree->map.tree.blocks = lay_put64(3);
    tree->map.tree.entries = lay_put64(50);

    make_inode(dir, S_IFDIR | 0755, LAY_MAP_DIR, 0);
    dir->flags = lay_put32(LAY_INODE_GPU_BOUND);
    dir->size = lay_put64(LAY_BLOCK_SIZE);
    dir->parent = lay_put64(LAY_INO_ROOT);
    dir->map_height = lay_put16(1);
    dir->map.tree.root = lay_put64(META + 700);
    dir->map.tree.blocks = lay_put64(1);
}

static void make_links(struct lay_inode *target, struct lay_inode *link)
{
    make_inode(target, S_IFLNK | 0777, LAY_MAP_TARGET, 0);
    target->size = lay_put64(5);
    memcpy(target->map.bytes, "a/b/c", 5);

    make_inode(link, S_IFLNK | 0777, LAY_MAP_LINK, 0);
    link->size = lay_put64(LAY_PAYLOAD + 3);
    link->map.link.block = lay_put64(META + 800);
    memcpy(link->map.link.tail, "end", 3);
}

static void make_inodes(struct lay_inode_block *ib)
{
    struct lay_inode *slots = ib->inodes;

    ib->next_free = lay_put64(7);
    ib->used = 0xff & ~(1u << SLOT_FREE);
    make_inode(&slots[SLOT_INLINE], S_IFREG | 0600, LAY_MAP_INLINE, 30);
    slots[SLOT_INLINE].size = lay_put64(123456);
    slots[SLOT_INLINE].map_count = lay_put16(2);
    slots[SLOT_INLINE].map.extents[0] = extent(0, DATA + 10, 10);
    slots[SLOT_INLINE].map.extents[1] = extent(10, DATA + 50, 20);
    slots[SLOT_INLINE].map.extents[1].flags = lay_put16(LAY_EXTENT_UNWRITTEN);
    make_trees(&slots[SLOT_TREE], &slots[SLOT_DIR]);
    make_links(&slots[SLOT_TARGET], &slots[SLOT_LINK]);
    make_inode(&slots[SLOT_DEVICE], S_IFCHR | 0600, LAY_MAP_EMPTY, 0);
    slots[SLOT_DEVICE].rdev = lay_put32(1u << 20 | 3);
    make_inode(&slots[SLOT_ORPHAN], S_IFREG | 0600, LAY_MAP_INLINE, 0);
    slots[SLOT_ORPHAN].nlink = lay_put32(0);
    slots[SLOT_ORPHAN].next_orphan = lay_put64(LAY_NONE);
    slots[SLOT_FREE].generation = lay_put32(9);
}

static void make_extent_leaf(struct lay_node *node)
{
    node->count = lay_put16(3);
    node->used = lay_put32(3 * sizeof(struct lay_extent));
    node->u.extents[0] = extent(100, DATA, 10);
    node->u.extents[1] = extent(110, DATA + 20, 5);
    node->u.extents[2] = extent(200, DATA + 40, 1);
}

static void make_branches(struct lay_node *node)
{
    node->level = lay_put16(1);
    node->count = lay_put16(2);
    node->used = lay_put32(2 * sizeof(struct lay_branch));
    node->u.branches[0].child = lay_put64(META + 1);
    node->u.branches[1].key = lay_put64(1u << 20);
    node->u.branches[1].child = lay_put64(META + 2);
}

static void add_name(struct lay_node *node, const char *name, uint64_t key)
{
    uint32_t used = lay_get32(node->used);
    uint8_t len = (uint8_t)strlen(name);
    struct lay_dirent *d = (struct lay_dirent *)(node->u.bytes + used);

    d->key = lay_put64(key);
    d->ino = lay_put64(10);
    d->len = lay_put16(LAY_DIRENT_LEN(len));
    d->type = DT_REG;
    d->name_len = len;
    memcpy(node->u.bytes + used + offsetof(struct lay_dirent, name), name, len);
    node->count = lay_put16((uint16_t)(lay_get16(node->count) + 1));
    node->used = lay_put32(used + LAY_DIRENT_LEN(len));
}

static void make_dir_leaf(const struct lay_geometry *geo, struct lay_node *node)
{
    const char *names[2] = {"first name", "b"};
    uint64_t keys[2];

    for (int i = 0; i < 2; i++)
        keys[i] = lay_name_key(geo->hash_seed, names[i], strlen(names[i]));
    int low = keys[1] < keys[0];
    add_name(node, names[low], keys[low]);
    add_name(node, names[!low], keys[!low] + 1);
}

static void make_xattr(struct lay_xattr_block *xb)
{
    struct lay_xattr *x = (struct lay_xattr *)xb->bytes;

    xb->next = lay_put64(META + 900);
    xb->used = lay_put16(LAY_XATTR_LEN(6, 5));
    xb->count = lay_put16(1);
    x->len = lay_put16(LAY_XATTR_LEN(6, 5));
    x->name_len = 6;
    x->value_len = lay_put32(5);
    memcpy(x + 1, "user.avalue", 11);
}

static void make_symlink(struct lay_symlink_block *sl)
{
    sl->len = lay_put32(500);
    memset(sl->bytes, 'x', 500);
}

static void make_log(const struct lay_geometry *geo, enum object_kind kind, union lay_block *o)
{
    o->commit.log_id = lay_put64(geo->log_id);
    o->commit.incarnation = incarnation;
    if (kind == OBJECT_DESC) {
        o->desc.count = lay_put32(2);
        o->desc.tags[0].block = lay_put64(LAY_ADDR_SUPER);
        o->desc.tags[0].age = lay_put32(77);
        o->desc.tags[1].block = lay_put64(META);
        o->desc.tags[1].age = lay_put32(78);
    } else {
        o->commit.blocks = lay_put32(4);
        o->commit.crc = lay_put32(99);
        o->commit.tail_tid = lay_put64(OBJECT_TID - 1);
        o->commit.tail_pos = lay_put64(POSITION - 5);
        o->commit.super_age = lay_put32(79);
        o->commit.time = lay_time_make(1000, 5);
    }
}

static void fill(const struct lay_geometry *geo, enum object_kind kind, union lay_block *o)
{
    switch (kind) {
    case OBJECT_LABEL:
        make_label(geo, &o->label);
        break;
    case OBJECT_MMP:
        make_mmp(&o->mmp);
        break;
    case OBJECT_SUPER:
        make_super(geo, &o->super);
        break;
    case OBJECT_BITMAP:
        make_bitmap(geo, &o->bitmap);
        break;
    case OBJECT_SUMS:
        make_sums(&o->sums);
        break;
    case OBJECT_MAP:
        make_map(&o->map);
        break;
    case OBJECT_ENTRIES:
        make_entries(&o->entries);
        break;
    case OBJECT_AGES:
        make_ages(&o->ages);
        break;
    case OBJECT_INODES:
        make_inodes(&o->inodes);
        break;
    case OBJECT_EXTENT_LEAF:
        make_extent_leaf(&o->node);
        break;
    case OBJECT_DIR_LEAF:
        make_dir_leaf(geo, &o->node);
        break;
    case OBJECT_EXTENT_BRANCH:
    case OBJECT_DIR_BRANCH:
        make_branches(&o->node);
        break;
    case OBJECT_XATTR:
        make_xattr(&o->xattr);
        break;
    case OBJECT_SYMLINK:
        make_symlink(&o->symlink);
        break;
    default:
        make_log(geo, kind, o);
    }
}

static const struct {
    const char *name;
    uint32_t magic;
    uint64_t addr, owner;
} kinds[OBJECT_KINDS] = {
    [OBJECT_LABEL] = {"label", LAY_MAGIC_LABEL, LAY_ADDR_LABEL, 0},
    [OBJECT_MMP] = {"mount protection", LAY_MAGIC_MMP, LAY_ADDR_MMP, 0},
    [OBJECT_SUPER] = {"superblock", LAY_MAGIC_SUPER, LAY_ADDR_SUPER, 0},
    [OBJECT_BITMAP] = {"bitmap", LAY_MAGIC_BITMAP, LAY_ADDR(LAY_KIND_BITMAP, 1), 0},
    [OBJECT_SUMS] = {"checksum block", LAY_MAGIC_SUMS, LAY_ADDR(LAY_KIND_SUMS, 39), 0},
    [OBJECT_MAP] = {"map block", LAY_MAGIC_MAP, LAY_ADDR(LAY_KIND_MAP, 0), 0},
    [OBJECT_ENTRIES] = {"block of entries", LAY_MAGIC_ENTRIES, LAY_ADDR_CHUNK(SEGMENT, 0), 0},
    [OBJECT_AGES] = {"block of ages", LAY_MAGIC_AGES, LAY_ADDR_LEVEL(LAY_KIND_SUMS, 1, 0), 0},
    [OBJECT_INODES] = {"inode block", LAY_MAGIC_INODES, META, 8 * INODE_INDEX},
    [OBJECT_EXTENT_LEAF] = {"extent leaf", LAY_MAGIC_EXTENTS, META, OBJECT_OWNER},
    [OBJECT_EXTENT_BRANCH] = {"extent branch", LAY_MAGIC_EXTENTS, META, OBJECT_OWNER},
    [OBJECT_DIR_LEAF] = {"directory leaf", LAY_MAGIC_DIR, META, OBJECT_OWNER},
    [OBJECT_DIR_BRANCH] = {"directory branch", LAY_MAGIC_DIR, META, OBJECT_OWNER},
    [OBJECT_XATTR] = {"xattr block", LAY_MAGIC_XATTR, META, OBJECT_OWNER},
    [OBJECT_SYMLINK] = {"symlink block", LAY_MAGIC_SYMLINK, META, OBJECT_OWNER},
    [OBJECT_DESC] = {"descriptor", LAY_MAGIC_JDESC, LAY_ADDR(LAY_KIND_LOG, POSITION), 0},
    [OBJECT_COMMIT] = {"commit", LAY_MAGIC_JCOMMIT, LAY_ADDR(LAY_KIND_LOG, POSITION), 0},
};

void object_make(enum object_kind kind, union lay_block *o)
{
    struct lay_geometry geo = object_geometry();

    memset(o, 0, sizeof(*o));
    lay_head_init(&o->head, kinds[kind].magic, geo.uuid, kinds[kind].addr, kinds[kind].owner);
    fill(&geo, kind, o);
    lay_seal(o, object_tid(kind));
}

uint64_t object_tid(enum object_kind kind)
{
    return kind == OBJECT_LABEL || kind == OBJECT_MMP ? 0 : OBJECT_TID;
}

uint64_t object_addr(enum object_kind kind)
{
    return kinds[kind].addr;
}

uint32_t object_magic(enum object_kind kind)
{
    return kinds[kind].magic;
}

const char *object_name(enum object_kind kind)
{
    return kinds[kind].name;
}

int object_check(enum object_kind kind, const union lay_block *o, const char **why)
{
    uint64_t addr = kinds[kind].addr;
    struct lay_geometry geo = object_geometry(), got;

    switch (kind) {
    case OBJECT_LABEL:
        return lay_check_label(&o->label, NULL, why);
    case OBJECT_MMP:
        return lay_check_mmp(&geo, &o->mmp, why);
    case OBJECT_SUPER:
        return lay_check_super(&o->super, &geo, &got, why);
    case OBJECT_BITMAP:
        return lay_check_bitmap(&geo, &o->bitmap, 1, why);
    case OBJECT_SUMS:
        return lay_check_sums(&geo, &o->sums, 39, why);
    case OBJECT_MAP:
        return lay_check_map_block(&geo, &o->map, 0, why);
    case OBJECT_ENTRIES:
        return lay_check_entries(&geo, &o->entries, SEGMENT, why);
    case OBJECT_AGES:
        return lay_check_ages(&geo, &o->ages, addr, why);
    case OBJECT_INODES:
        return lay_check_inode_block(&geo, &o->inodes, INODE_INDEX, addr, why);
    case OBJECT_EXTENT_LEAF:
    case OBJECT_DIR_LEAF:
        return lay_check_node(&geo, &o->node, kinds[kind].magic, addr, OBJECT_OWNER, 0, 50,
                              INT64_MAX, why);
    case OBJECT_EXTENT_BRANCH:
    case OBJECT_DIR_BRANCH:
        return lay_check_node(&geo, &o->node, kinds[kind].magic, addr, OBJECT_OWNER, 1, 0,
                              UINT64_MAX, why);
    case OBJECT_XATTR:
        return lay_check_xattr_block(&geo, &o->xattr, addr, OBJECT_OWNER, why);
    case OBJECT_SYMLINK:
        return lay_check_symlink_block(&geo, &o->symlink, addr, OBJECT_OWNER, why);
    case OBJECT_DESC:
        return lay_check_descriptor(&geo, &o->desc, POSITION, OBJECT_TID, why);
    default:
        return lay_check_commit(&geo, &o->commit, POSITION, OBJECT_TID, why);
    }
}
