/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes inodes valid. The checks in layout/ decide: the field that a check
 * names is corrected until no check fails, so nothing is accepted here that a
 * mount would refuse.
 */
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "mkfs/fsck/fsck.h"

#define MAX_STEPS 64 /* corrections of one inode; a valid one needs none */

/* Holds the inode that is being corrected. */
struct fit {
    struct fsck *f;
    struct lay_inode *inode;
    uint64_t ino;
    uint64_t nowhere; /* address of no tree node: a tree with this root is rebuilt empty */
    uint16_t marks;   /* FIX_*: repairs that the passes cannot detect again */
};

static uint32_t mode_of(const struct fit *fit)
{
    return lay_get32(fit->inode->mode);
}

static unsigned kind_of(const struct fit *fit)
{
    return lay_get16(fit->inode->map_kind);
}

static void clear_map(struct lay_inode *inode, unsigned kind)
{
    memset(&inode->map, 0, sizeof(inode->map));
    inode->map_kind = lay_put16((uint16_t)kind);
    inode->map_count = inode->map_height = lay_put16(0);
}

static void empty_directory(struct fit *fit)
{
    struct lay_inode *inode = fit->inode;

    clear_map(inode, LAY_MAP_DIR);
    inode->map_height = lay_put16(1);
    inode->map.tree.root = lay_put64(fit->nowhere);
    inode->map.tree.blocks = lay_put64(1);
    inode->size = lay_put64(LAY_BLOCK_SIZE);
    inode->blocks = lay_put64(0);
    fit->marks |= FIX_MAP;
}

/* Returns the type that a map belongs to; S_IFIFO for types without a map. */
static uint32_t type_of_map(unsigned kind)
{
    switch (kind) {
    case LAY_MAP_INLINE:
    case LAY_MAP_TREE:
        return S_IFREG;
    case LAY_MAP_TARGET:
    case LAY_MAP_LINK:
        return S_IFLNK;
    case LAY_MAP_DIR:
        return S_IFDIR;
    default:
        return S_IFIFO;
    }
}

static void fit_mode(struct fit *fit)
{
    fit->inode->mode = lay_put32((mode_of(fit) & 07777) | type_of_map(kind_of(fit)));
}

static void fit_kind(struct fit *fit)
{
    uint32_t mode = mode_of(fit);
    unsigned kind = kind_of(fit);

    /* The map is more reliable than the bits of the type. */
    if (kind >= LAY_MAP_INLINE && kind <= LAY_MAP_DIR)
        fit->inode->mode = lay_put32((mode & 07777) | type_of_map(kind));
    else if (S_ISDIR(mode))
        empty_directory(fit);
    else if (S_ISREG(mode))
        clear_map(fit->inode, LAY_MAP_INLINE);
    else
        clear_map(fit->inode, LAY_MAP_EMPTY);
}

static void fit_flags(struct fit *fit)
{
    uint32_t mode = mode_of(fit);
    uint32_t known = S_ISREG(mode) || S_ISDIR(mode) ? LAY_INODE_FLAGS : 0;

    fit->inode->flags = lay_put32(lay_get32(fit->inode->flags) & known);
}

static struct lay_time valid_time(struct lay_time t)
{
    return lay_get32(t.nsec) < 1000000000 ? t : lay_time_make(0, 0);
}

static void fit_times(struct fit *fit)
{
    struct lay_inode *inode = fit->inode;

    inode->atime = valid_time(inode->atime);
    inode->mtime = valid_time(inode->mtime);
    inode->ctime = valid_time(inode->ctime);
    inode->btime = valid_time(inode->btime);
}

static void fit_rdev(struct fit *fit)
{
    fit->inode->rdev = lay_put32(0);
}

static size_t used_map_bytes(const struct fit *fit)
{
    uint64_t size = lay_get64(fit->inode->size);
    size_t tail = size > LAY_PAYLOAD ? size - LAY_PAYLOAD : 0;

    switch (kind_of(fit)) {
    case LAY_MAP_INLINE:
        return lay_get16(fit->inode->map_count) * sizeof(struct lay_extent);
    case LAY_MAP_TREE:
    case LAY_MAP_DIR:
        return sizeof(struct lay_map_tree);
    case LAY_MAP_TARGET:
        return size;
    case LAY_MAP_LINK:
        return offsetof(struct lay_map_link, tail) + tail;
    default:
        return 0;
    }
}

static void fit_reserved(struct fit *fit)
{
    size_t used = used_map_bytes(fit);

    fit->inode->policy = fit->inode->unit = 0;
    fit->inode->set = lay_put16(0);
    fit->inode->project = fit->inode->key = lay_put32(0);
    memset(fit->inode->reserved, 0, sizeof(fit->inode->reserved));
    fit->inode->map_reserved = lay_put16(0);
    if (kind_of(fit) != LAY_MAP_INLINE)
        fit->inode->map_count = lay_put16(0);
    if (used <= LAY_MAP_BYTES)
        memset(fit->inode->map.bytes + used, 0, LAY_MAP_BYTES - used);
}

static void fit_count(struct fit *fit)
{
    uint16_t most = kind_of(fit) == LAY_MAP_INLINE ? LAY_INLINE_EXTENTS : 0;

    if (lay_get16(fit->inode->map_count) > most)
        fit->inode->map_count = lay_put16(most);
}

/*
 * Makes an invalid extent a damaged one, if its range is in the file. Returns
 * false if not.
 */
static bool slots_make_damaged(const struct fit *fit, struct lay_extent *e)
{
    e->block = lay_put64(LAY_NONE);
    e->flags = lay_put16(LAY_EXTENT_DAMAGED);
    e->device = lay_put16(0);
    return lay_check_extent(&fit->f->img.geo, e, NULL) == 0 &&
           lay_get64(e->file_block) < lay_get64(fit->inode->size) >> LAY_BLOCK_SHIFT;
}

/* Keeps the extents that are in order. */
static void fit_extents(struct fit *fit)
{
    struct lay_extent *e = fit->inode->map.extents;
    unsigned count = lay_get16(fit->inode->map_count), kept = 0;
    uint64_t end = 0;

    for (unsigned i = 0; i < count; i++) {
        uint64_t first = lay_get64(e[i].file_block);
        bool valid = lay_check_extent(&fit->f->img.geo, &e[i], NULL) == 0;
        if (first < end || (!valid && !slots_make_damaged(fit, &e[i])))
            continue;
        end = first + lay_get32(e[i].len);
        e[kept++] = e[i];
    }
    fit->inode->map_count = lay_put16((uint16_t)kept);
    memset(&e[kept], 0, (LAY_INLINE_EXTENTS - kept) * sizeof(*e));
    fit->marks |= FIX_COUNTS;
}

static uint64_t inline_blocks(const struct fit *fit, uint64_t *end)
{
    const struct lay_extent *e = fit->inode->map.extents;
    uint64_t sum = 0;

    for (unsigned i = 0; i < lay_get16(fit->inode->map_count); i++) {
        sum += lay_extent_has_blocks(&e[i]) ? lay_get32(e[i].len) : 0;
        *end = lay_get64(e[i].file_block) + lay_get32(e[i].len);
    }
    return sum;
}

static void fit_target_size(struct fit *fit)
{
    struct lay_inode *inode = fit->inode;
    size_t len = strnlen((const char *)inode->map.bytes, LAY_MAP_BYTES);

    if (kind_of(fit) == LAY_MAP_LINK)
        len = LAY_PAYLOAD + strnlen((const char *)inode->map.link.tail, LAY_LINK_TAIL - 1);
    inode->size = lay_put64(len);
    fit->marks |= FIX_SIZE;
    fit_reserved(fit);
}

static void fit_size(struct fit *fit)
{
    struct lay_inode *inode = fit->inode;
    uint64_t end = 0;

    switch (kind_of(fit)) {
    case LAY_MAP_INLINE:
        inline_blocks(fit, &end);
        inode->size = lay_put64(end < LAY_MAX_FILE_BLOCKS ? end << LAY_BLOCK_SHIFT : INT64_MAX);
        break;
    case LAY_MAP_TREE: /* known after the tree has been walked */
        inode->size = lay_put64(0);
        fit->marks |= FIX_SIZE;
        break;
    case LAY_MAP_DIR:
        inode->size = lay_put64(lay_get64(inode->map.tree.blocks) << LAY_BLOCK_SHIFT);
        break;
    case LAY_MAP_TARGET:
    case LAY_MAP_LINK:
        fit_target_size(fit);
        break;
    default:
        inode->size = lay_put64(0);
    }
}

/* Sets a count that the checks accept; the walk over the map finds the right one. */
static void fit_blocks(struct fit *fit)
{
    uint64_t end, blocks = kind_of(fit) == LAY_MAP_INLINE ? inline_blocks(fit, &end) : 0;

    fit->inode->blocks = lay_put64(blocks);
    fit->marks |= FIX_COUNTS;
}

static void fit_tree(struct fit *fit)
{
    struct lay_inode *inode = fit->inode;
    struct lay_map_tree *tree = &inode->map.tree;
    bool is_tree = kind_of(fit) == LAY_MAP_TREE || kind_of(fit) == LAY_MAP_DIR;

    if (!is_tree) {
        inode->map_height = lay_put16(0);
        return;
    }
    if (lay_get16(inode->map_height) < 1 || lay_get16(inode->map_height) > LAY_MAX_HEIGHT)
        inode->map_height = lay_put16(1);
    if (!lay_chunk_addr_ok(&fit->f->img.geo, lay_get64(tree->root)))
        tree->root = lay_put64(fit->nowhere);
    tree->blocks = lay_put64(lay_get16(inode->map_height));
    if (lay_get64(tree->entries) > fit->f->img.geo.blocks)
        tree->entries = lay_put64(0);
    if (kind_of(fit) == LAY_MAP_DIR)
        fit_size(fit);
    fit_blocks(fit);
    fit->marks |= FIX_MAP;
}

static void fit_xattr(struct fit *fit)
{
    fit->inode->xattr = lay_put64(0);
}

static void fit_nlink(struct fit *fit)
{
    struct lay_inode *inode = fit->inode;
    bool is_dir = S_ISDIR(mode_of(fit));

    if (lay_get32(inode->nlink) < (is_dir ? 2 : 1) &&
        (lay_get64(inode->next_orphan) == 0 || lay_get32(inode->nlink) > 0))
        inode->nlink = lay_put32(is_dir ? 2 : 1);
    if (is_dir && lay_get32(inode->nlink) > 0)
        inode->next_orphan = lay_put64(0);
}

static void fit_next_orphan(struct fit *fit)
{
    fit->inode->next_orphan = lay_put64(lay_get32(fit->inode->nlink) == 0 ? LAY_NONE : 0);
}

static void fit_parent(struct fit *fit)
{
    fit->inode->parent = lay_put64(S_ISDIR(mode_of(fit)) ? LAY_INO_ROOT : 0);
}

static void fit_root(struct fit *fit)
{
    struct lay_inode *inode = fit->inode;

    if (!S_ISDIR(mode_of(fit)) && kind_of(fit) == LAY_MAP_DIR) {
        fit_mode(fit);
    } else if (!S_ISDIR(mode_of(fit))) {
        memset(inode, 0, offsetof(struct lay_inode, xattr));
        inode->xattr = lay_put64(0);
        inode->mode = lay_put32(S_IFDIR | 0755);
        empty_directory(fit);
    }
    if (lay_get32(inode->nlink) < 2)
        inode->nlink = lay_put32(2);
    inode->next_orphan = lay_put64(0);
    inode->parent = lay_put64(LAY_INO_ROOT);
}

static const struct {
    const char *why; /* prefix of the check's text */
    enum problem problem;
    void (*fit)(struct fit *fit);
} corrections[] = {
    {"inode.mode", PROBLEM_INODE_MODE, fit_mode},
    {"inode.flags", PROBLEM_INODE_FLAGS, fit_flags},
    {"inode.size", PROBLEM_INODE_SIZE, fit_size},
    {"inode.blocks", PROBLEM_INODE_BLOCKS, fit_blocks},
    {"inode times", PROBLEM_INODE_TIME, fit_times},
    {"inode.rdev", PROBLEM_INODE_RDEV, fit_rdev},
    {"inode.policy", PROBLEM_INODE_RESERVED, fit_reserved},
    {"inode.project", PROBLEM_INODE_RESERVED, fit_reserved},
    {"inode.reserved", PROBLEM_INODE_RESERVED, fit_reserved},
    {"inode.xattr", PROBLEM_INODE_XATTR, fit_xattr},
    {"inode.nlink", PROBLEM_INODE_NLINK, fit_nlink},
    {"inode.next_orphan", PROBLEM_INODE_NEXT_ORPHAN, fit_next_orphan},
    {"inode.parent", PROBLEM_INODE_PARENT, fit_parent},
    {"root directory", PROBLEM_ROOT, fit_root},
    {"inode.map_kind", PROBLEM_INODE_KIND, fit_kind},
    {"inode.map_count", PROBLEM_INODE_EXTENT, fit_count},
    {"inode.map_height", PROBLEM_INODE_TREE, fit_tree},
    {"inode.map_reserved", PROBLEM_INODE_RESERVED, fit_reserved},
    {"inode.map: unused", PROBLEM_INODE_RESERVED, fit_reserved},
    {"inode.map: target", PROBLEM_INODE_TARGET, fit_target_size},
    {"extent.", PROBLEM_INODE_EXTENT, fit_extents},
    {"map.tree.", PROBLEM_INODE_TREE, fit_tree},
};
#define CORRECTIONS (sizeof(corrections) / sizeof(corrections[0]))

static size_t find_correction(const char *why)
{
    size_t i = 0;

    while (i < CORRECTIONS && strncmp(why, corrections[i].why, strlen(corrections[i].why)) != 0)
        i++;
    return i;
}

/* Corrects an inode. Returns false if it makes no sense. */
static bool fit_inode(struct fit *fit, bool report, bool *save)
{
    const char *why = NULL;

    for (unsigned step = 0; step < MAX_STEPS; step++) {
        if (lay_check_inode(&fit->f->img.geo, fit->inode, fit->ino, &why) == 0)
            return true;
        size_t i = find_correction(why);
        if (i == CORRECTIONS)
            return false;
        if (report && fsck_report(fit->f, corrections[i].problem, why, "inode %" PRIu64, fit->ino))
            *save = true;
        struct lay_inode before = *fit->inode;
        corrections[i].fit(fit);
        if (memcmp(&before, fit->inode, sizeof(before)) == 0)
            return false;
    }
    return false;
}

void fsck_free_slot(struct lay_inode_block *ib, unsigned slot)
{
    le32 generation = ib->inodes[slot].generation;

    memset(&ib->inodes[slot], 0, sizeof(ib->inodes[slot]));
    ib->inodes[slot].generation = generation;
    ib->used = (uint8_t)(ib->used & ~(1u << slot));
}

static bool slots_want(struct fit *fit, enum problem problem, bool report)
{
    return report && fsck_report(fit->f, problem, NULL, "inode %" PRIu64, fit->ino);
}

/* If bit and mode disagree, a valid inode counts as in use. */
static void fit_use(struct fit *fit, struct lay_inode_block *ib, unsigned slot, bool report,
                    bool *save)
{
    bool bit = ib->used >> slot & 1;
    bool is_root = fit->ino == LAY_INO_ROOT;

    if (bit == (mode_of(fit) != 0) && (bit || !is_root))
        return;
    bool valid = lay_check_inode(&fit->f->img.geo, fit->inode, fit->ino, NULL) == 0;
    if (slots_want(fit, is_root && !valid ? PROBLEM_ROOT : PROBLEM_INODE_USED, report))
        *save = true;
    if (is_root && mode_of(fit) == 0)
        fit_root(fit);
    if (valid || is_root)
        ib->used = (uint8_t)(ib->used | 1u << slot);
    else
        fsck_free_slot(ib, slot);
}

static void fit_free_slot(struct fit *fit, struct lay_inode_block *ib, unsigned slot, bool report,
                          bool *save)
{
    struct lay_inode rest = *fit->inode;

    rest.generation = lay_put32(0);
    if (lay_is_zero(&rest, sizeof(rest)))
        return;
    if (slots_want(fit, PROBLEM_INODE_FREE, report))
        *save = true;
    fsck_free_slot(ib, slot);
}

static void fit_slot(struct fit *fit, struct lay_inode_block *ib, unsigned slot, bool report,
                     bool *save)
{
    fit_use(fit, ib, slot, report, save);
    if (!(ib->used >> slot & 1)) {
        fit_free_slot(fit, ib, slot, report, save);
        return;
    }
    if (fit_inode(fit, report, save))
        return;
    if (slots_want(fit, PROBLEM_INODE_LOST, report))
        *save = true;
    if (report)
        fsck_lose(fit->f, fit->ino, LOSS_FILE);
    fsck_free_slot(ib, slot);
}

/* Corrects the slot of inode 0 in the first block. */
static void fit_slot_zero(struct fit *fit, struct lay_inode_block *ib, bool report, bool *save)
{
    if (ib->used & 1 && lay_is_zero(fit->inode, sizeof(*fit->inode)))
        return;
    if (slots_want(fit, PROBLEM_INODE_USED, report))
        *save = true;
    ib->used |= 1;
    memset(fit->inode, 0, sizeof(*fit->inode));
}

static void fit_rest(struct fsck *f, struct lay_inode_block *ib, uint64_t index, bool report,
                     bool *save)
{
    uint64_t next = lay_get64(ib->next_free);

    if (!lay_is_zero(ib->reserved, sizeof(ib->reserved))) {
        if (report &&
            fsck_report(f, PROBLEM_INODE_RESERVED, NULL, "inode-file block %" PRIu64, index))
            *save = true;
        memset(ib->reserved, 0, sizeof(ib->reserved));
    }
    if (next == LAY_NONE || (next < f->img.geo.blocks && next != index && ib->used != 0xff))
        return;
    if (report && fsck_report(f, PROBLEM_INODE_NEXT_FREE, NULL, "inode-file block %" PRIu64, index))
        *save = true;
    ib->next_free = lay_put64(LAY_NONE);
}

/* Returns how many fields of the block's head are wrong, the checksum aside. */
static unsigned slots_wrong_fields(const struct fsck *f, const struct lay_inode_block *ib,
                                   uint64_t index, uint64_t addr)
{
    const struct lay_head *head = &ib->head;

    return (lay_get32(head->magic) != LAY_MAGIC_INODES) + (lay_get64(head->block) != addr) +
           (lay_get64(head->owner) != index * LAY_INODES_PER_BLOCK) +
           (memcmp(head->uuid, f->img.geo.uuid, sizeof(head->uuid)) != 0);
}

/*
 * Returns true if the block is sound but belongs at another place. In this case
 * a write went astray.
 */
static bool slots_is_foreign(const struct fsck *f, const struct lay_inode_block *ib)
{
    return lay_check_head(ib, lay_get32(ib->head.magic), f->img.geo.uuid, lay_get64(ib->head.block),
                          LAY_ANY_OWNER, NULL) == 0;
}

/*
 * Keeps the slots that are valid inodes, since the inode file says that they are
 * here, whatever the head of the block has become.
 */
static void slots_keep_valid(struct fsck *f, struct lay_inode_block *ib, uint64_t index)
{
    memset(ib->reserved, 0, sizeof(ib->reserved));
    ib->next_free = lay_put64(LAY_NONE);
    ib->used = index == 0;
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK; slot++) {
        uint64_t ino = index * LAY_INODES_PER_BLOCK + slot;
        if (ino != 0 && lay_check_inode(&f->img.geo, &ib->inodes[slot], ino, NULL) == 0)
            ib->used = (uint8_t)(ib->used | 1u << slot);
        else
            memset(&ib->inodes[slot], 0, sizeof(ib->inodes[slot]));
    }
}

/*
 * Returns true if the content of the block, which image_read() has just read,
 * is kept though its checksum is wrong, or though it is stale.
 */
static bool fit_head(struct fsck *f, struct lay_inode_block *ib, uint64_t index, uint64_t addr,
                     bool report, bool *save)
{
    uint64_t first = index * LAY_INODES_PER_BLOCK;
    const char *why = NULL;
    bool sound = lay_check_head(ib, LAY_MAGIC_INODES, f->img.geo.uuid, addr, first, &why) == 0;

    if (sound && f->img.age == IMAGE_AGE_STALE) {
        if (report && fsck_report(f, PROBLEM_STALE, NULL, "inodes %" PRIu64 " to %" PRIu64, first,
                                  first + LAY_INODES_PER_BLOCK - 1))
            *save = true;
        return true;
    }
    if (sound)
        return false;
    if (report && fsck_report(f, PROBLEM_INODE_BLOCK, why, "inodes %" PRIu64 " to %" PRIu64, first,
                              first + LAY_INODES_PER_BLOCK - 1))
        *save = true;
    if (slots_is_foreign(f, ib)) {
        memset(ib, 0, sizeof(*ib));
        ib->next_free = lay_put64(LAY_NONE);
        ib->used = index == 0;
    } else if (slots_wrong_fields(f, ib, index, addr) > 1) {
        slots_keep_valid(f, ib, index);
    }
    for (unsigned slot = 0; report && slot < LAY_INODES_PER_BLOCK; slot++) {
        if (!(ib->used >> slot & 1) && slots_wrong_fields(f, ib, index, addr) > 1)
            fsck_lose(f, first + slot, LOSS_INODE);
    }
    lay_head_init(&ib->head, LAY_MAGIC_INODES, f->img.geo.uuid, addr, first);
    return true;
}

/*
 * Marks the inodes of a block whose checksum failed, or that is stale: the maps of regular files
 * need proof, and the counts of blocks help to give it.
 */
static void slots_doubt(struct fsck *f, const struct lay_inode_block *ib, uint64_t index)
{
    f->inode_blocks[index].reseal = true;
    f->incomplete = true;
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK; slot++) {
        uint64_t ino = index * LAY_INODES_PER_BLOCK + slot;
        if (ino == 0 || !(ib->used >> slot & 1))
            continue;
        const struct fsck_doubt doubt = {ino, lay_get64(ib->inodes[slot].blocks)};
        f->no_memory |= fsck_append(&f->doubts, &doubt, sizeof(doubt)) != 0;
        f->inodes[ino].flags |= INODE_DOUBTED;
        fsck_lose(f, ino, LOSS_FIELDS);
        if (S_ISREG(lay_get32(ib->inodes[slot].mode)))
            fsck_mark(f, ino, FIX_MAP);
    }
}

void fsck_fit_block(struct fsck *f, struct lay_inode_block *ib, uint64_t index, uint64_t addr,
                    bool report, bool *save)
{
    if (fit_head(f, ib, index, addr, report, save) && report && *save)
        slots_doubt(f, ib, index);
    for (unsigned slot = 0; slot < LAY_INODES_PER_BLOCK; slot++) {
        uint64_t ino = index * LAY_INODES_PER_BLOCK + slot;
        struct fit fit = {.f = f, .inode = &ib->inodes[slot], .ino = ino, .nowhere = addr};
        if (ino == 0)
            fit_slot_zero(&fit, ib, report, save);
        else
            fit_slot(&fit, ib, slot, report, save);
        if (report && *save)
            fsck_mark(f, ino, fit.marks);
    }
    fit_rest(f, ib, index, report, save);
}

int fsck_load_block(struct fsck *f, uint64_t index, union lay_block *b)
{
    uint64_t addr = f->inode_blocks[index].addr;
    bool save;
    int err = image_read(&f->img, addr, b);

    if (!err)
        fsck_fit_block(f, &b->inodes, index, addr, false, &save);
    return err;
}

int fsck_each_inode(struct fsck *f, const char *pass, uint8_t type, uint16_t fix,
                    fsck_inode_fn each, void *arg)
{
    union lay_block b;
    int err = 0;

    for (uint64_t ino = 0, loaded = UINT64_MAX; ino < fsck_inode_limit(f) && !err; ino++) {
        const struct inode_info *info = &f->inodes[ino];
        uint64_t index = ino / LAY_INODES_PER_BLOCK;
        if (pass && ino % LAY_INODES_PER_BLOCK == 0)
            fsck_progress(f, pass, index, f->inode_block_count);
        if (info->type == 0 || (type && info->type != type) || (fix && !(info->fix & fix)))
            continue;
        if (index != loaded)
            err = fsck_load_block(f, index, &b);
        loaded = index;
        if (!err)
            err = each(arg, ino, &b.inodes.inodes[ino % LAY_INODES_PER_BLOCK]);
    }
    if (pass)
        fsck_progress(f, pass, f->inode_block_count, f->inode_block_count);
    return err;
}
