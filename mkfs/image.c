/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads the labels of an image, and blocks as they are after recovery. */
#include "mkfs/image.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "fusefs/core/ffs.h"
#include "layout/correct.h"
#include "support/array.h"
#include "support/minmax.h"

int image_read_raw(struct image *img, uint64_t block, union lay_block *out)
{
    assert(block < img->device_blocks);
    return bd_read(img->dev, block << LAY_BLOCK_SHIFT, out, LAY_BLOCK_SIZE);
}

struct image_patch *image_find_patch(const struct image *img, uint64_t addr)
{
    if (img->patch_count == 0)
        return NULL;
    return bsearch(&addr, img->patches, img->patch_count, sizeof(*img->patches), by_u64);
}

bool image_is_newer(const struct image *img, uint64_t addr)
{
    union lay_block b;

    return image_find_patch(img, addr) ||
           (img->changed && img->changed(img->changed_arg, addr, &b));
}

/* Checks a metadata block by what its own head says that it is. */
static int image_check_block(const struct lay_geometry *geo, const union lay_block *b,
                             uint64_t addr)
{
    unsigned level = lay_get16(b->node.level);
    const struct lay_expect want = {.magic = lay_get32(b->head.magic),
                                    .owner = lay_get64(b->head.owner),
                                    .level = level,
                                    .lo = level ? lay_get64(b->node.u.branches[0].key) : 0,
                                    .hi = UINT64_MAX};

    if (want.magic == 0 || (lay_addr_kind(addr) != LAY_KIND_CHUNK && !lay_home_ok(geo, addr)))
        return -EUCLEAN;
    return lay_check_block(geo, addr, b, &want, NULL);
}

/* Holds the age that is named for a block. */
struct image_named {
    uint32_t age;
    bool known;
    uint64_t tid; /* of the block that names it */
};

static enum image_age image_compare_age(const struct image *img, const struct image_named *named,
                                        const union lay_block *b)
{
    if (!named->known)
        return IMAGE_AGE_UNKNOWN;
    if (lay_age(b) == named->age)
        return IMAGE_AGE_RIGHT;
    return img->names_lost && lay_get64(b->head.tid) > named->tid ? IMAGE_AGE_UNKNOWN
                                                                  : IMAGE_AGE_STALE;
}

/* Corrects one flipped bit, if that makes the block pass all checks. */
static int image_correct(struct image *img, uint64_t addr, const struct image_named *named,
                         union lay_block *out)
{
    union lay_block b = *out;

    /* A flip leaves one of these as it was; most other content has neither. */
    if (lay_get64(out->head.block) != addr &&
        memcmp(out->head.uuid, img->geo.uuid, sizeof(img->geo.uuid)) != 0)
        return 0;
    if (lay_correct(img->geo.uuid, addr, &b) < 0 || image_check_block(&img->geo, &b, addr) != 0 ||
        image_compare_age(img, named, &b) == IMAGE_AGE_STALE)
        return 0;
    img->age = image_compare_age(img, named, &b);
    *out = b;
    return img->corrected(img->corrected_arg, addr, out);
}

int image_read_patch(struct image *img, const struct image_patch *p, union lay_block *out)
{
    if (!p->data)
        return image_read_raw(img, img->log_at[0] + p->pos, out);
    *out = *p->data;
    return 0;
}

/* Reads the first place of a block. Without a place it is zero, which no check accepts. */
static int image_read_home(struct image *img, uint64_t addr, union lay_block *out)
{
    uint64_t places[2];

    if (image_places(img, addr, places) > 0)
        return image_read_raw(img, places[0], out);
    memset(out, 0, sizeof(*out));
    return 0;
}

/* Gives zeros for an unreadable block, where that is asked for. `err` is that of the read. */
static int image_tolerate(struct image *img, int err, union lay_block *out)
{
    img->unreadable = err == -EIO && img->tolerant;
    img->age = err ? IMAGE_AGE_DAMAGED : IMAGE_AGE_RIGHT;
    if (!img->unreadable)
        return err;
    memset(out, 0, sizeof(*out));
    return 0;
}

/* Judges, and perhaps corrects, a block as it was read from its place. */
static int image_judge(struct image *img, uint64_t addr, const struct image_named *named,
                       union lay_block *out)
{
    if (lay_block_crc(img->geo.uuid, addr, out) == lay_get32(out->head.crc)) {
        img->age = image_compare_age(img, named, out);
        return 0;
    }
    img->age = IMAGE_AGE_DAMAGED;
    return img->corrected ? image_correct(img, addr, named, out) : 0;
}

/* --- Two places ------------------------------------------------------------------------------- */

/* Holds the contents of a block at one of its places. */
struct image_place {
    uint64_t block;
    bool unreadable;
    enum image_age age; /* age before any correction */
    union lay_block b;
};

static bool image_is_sound(enum image_age age)
{
    return age == IMAGE_AGE_RIGHT || age == IMAGE_AGE_UNKNOWN;
}

static int image_look(struct image *img, uint64_t addr, const struct image_named *named,
                      struct image_place *p)
{
    int err = image_read_raw(img, p->block, &p->b);

    p->unreadable = err == -EIO;
    p->age = IMAGE_AGE_DAMAGED;
    if (err)
        memset(&p->b, 0, sizeof(p->b));
    else if (lay_block_crc(img->geo.uuid, addr, &p->b) == lay_get32(p->b.head.crc))
        p->age = image_compare_age(img, named, &p->b);
    return p->unreadable ? 0 : err;
}

/*
 * Returns the index of the place to use, which is the sound one. If no age is
 * named and a crash came between the writes of the two places, both are sound,
 * and the later one is used.
 */
static unsigned image_choose(const struct image_place p[2])
{
    if (image_is_sound(p[0].age) != image_is_sound(p[1].age))
        return image_is_sound(p[1].age);
    if (image_is_sound(p[0].age))
        return lay_get64(p[1].b.head.tid) > lay_get64(p[0].b.head.tid);
    return p[0].unreadable;
}

/* Returns the contents of a place, corrected if they are not sound. */
static int image_take(struct image *img, uint64_t addr, const struct image_named *named,
                      const struct image_place *p, union lay_block *out)
{
    int err = image_tolerate(img, p->unreadable ? -EIO : 0, out);

    if (err || img->unreadable)
        return err;
    *out = p->b;
    return image_judge(img, addr, named, out);
}

/*
 * Called if neither place is sound. Returns the contents of the one that can be
 * corrected, otherwise those of the first.
 */
static int image_take_any(struct image *img, uint64_t addr, const struct image_named *named,
                          const struct image_place *p, const struct image_place *other,
                          union lay_block *out)
{
    int err = image_take(img, addr, named, p, out);
    enum image_age age = img->age;
    bool unreadable = img->unreadable;
    union lay_block b;

    if (err || image_is_sound(age) || other->unreadable)
        return err;
    err = image_take(img, addr, named, other, &b);
    if (!err && image_is_sound(img->age)) {
        *out = b;
        return 0;
    }
    img->age = age;
    img->unreadable = unreadable;
    return err;
}

static int image_read_two(struct image *img, uint64_t addr, const struct image_named *named,
                          const uint64_t places[2], union lay_block *out)
{
    struct image_place p[2] = {{.block = places[0]},
                               {.block = places[1], .age = IMAGE_AGE_DAMAGED}};
    int err = image_look(img, addr, named, &p[0]);

    if (!err && (img->differs || !image_is_sound(p[0].age)))
        err = image_look(img, addr, named, &p[1]);
    if (err)
        return err;
    unsigned use = image_choose(p);
    if (!image_is_sound(p[use].age))
        return image_take_any(img, addr, named, &p[use], &p[!use], out);
    err = image_take(img, addr, named, &p[use], out);
    bool differs = p[!use].unreadable || memcmp(&p[0].b, &p[1].b, sizeof(p[0].b)) != 0;
    return !err && img->differs && differs ? img->differs(img->differs_arg, addr, p[!use].block)
                                           : err;
}

static int image_find_age(struct image *img, uint64_t addr, struct image_named *named);

int image_read(struct image *img, uint64_t addr, union lay_block *out)
{
    const struct image_patch *p = image_find_patch(img, addr);
    struct image_named named;

    img->unreadable = false;
    img->age = IMAGE_AGE_RIGHT;
    if (img->changed && img->changed(img->changed_arg, addr, out))
        return 0;
    /* The reader of the log has checked its images already. */
    if (p)
        return image_tolerate(img, image_read_patch(img, p, out), out);
    int err = image_find_age(img, addr, &named);
    if (err)
        return err;
    if (named.known && named.age == 0 && lay_new_block(&img->geo, addr, out)) {
        img->unreadable = false;
        img->age = IMAGE_AGE_NEW;
        return 0;
    }
    uint64_t places[2];
    /*
     * The two superblocks are not compared here, but where the valid one is
     * chosen.
     */
    if (addr != LAY_ADDR_SUPER && image_places(img, addr, places) > 1)
        return image_read_two(img, addr, &named, places, out);
    err = image_tolerate(img, image_read_home(img, addr, out), out);
    return err || img->unreadable ? err : image_judge(img, addr, &named, out);
}

/* --- Ages ------------------------------------------------------------------------------------- */

#define IMAGE_ENTRIES 64u /* blocks of entries that are kept */

/* Keeps a naming block as it is after recovery. */
struct image_name {
    uint64_t addr; /* 0: none */
    bool sound;
    union lay_block b;
};

/* The last naming block of each level of each area, and some blocks of entries. */
struct image_names {
    struct image_name levels[LAY_KIND_SUMS + 1][LAY_MAX_LEVELS];
    struct image_name entries[IMAGE_ENTRIES];
};

static struct image_name *image_name_slot(struct image_names *names, uint64_t addr)
{
    if (lay_addr_kind(addr) == LAY_KIND_CHUNK)
        return &names->entries[lay_addr_segment(addr) % IMAGE_ENTRIES];
    assert(lay_addr_kind(addr) <= LAY_KIND_SUMS && lay_addr_level(addr) < LAY_MAX_LEVELS);
    return &names->levels[lay_addr_kind(addr)][lay_addr_level(addr)];
}

/*
 * Reads a naming block. What names it is read first, into other slots: each
 * level has its own.
 */
static int image_load_name(struct image *img, uint64_t addr, struct image_name *n)
{
    int err = image_read(img, addr, &n->b);

    if (err && err != -EIO)
        return err;
    n->addr = addr;
    n->sound = !err && img->age != IMAGE_AGE_STALE && img->age != IMAGE_AGE_DAMAGED &&
               image_check_block(&img->geo, &n->b, addr) == 0;
    return 0;
}

/*
 * Gets the naming block of an address, or NULL if it is damaged or stale. `b` is
 * space for one that a repair has changed. Returns 0 or -ENOMEM.
 */
static int image_get_name(struct image *img, uint64_t addr, union lay_block *b,
                          const union lay_block **name)
{
    *name = img->super_known ? &img->super : NULL;
    if (addr == LAY_ADDR_SUPER)
        return 0;
    *name = b;
    if (img->changed && img->changed(img->changed_arg, addr, b))
        return 0;
    if (!img->names)
        img->names = calloc(1, sizeof(*img->names));
    if (!img->names)
        return -ENOMEM;
    struct image_name *n = image_name_slot(img->names, addr);
    int err = n->addr == addr ? 0 : image_load_name(img, addr, n);
    *name = !err && n->sound ? &n->b : NULL;
    return err;
}

int image_read_name(struct image *img, uint64_t addr, union lay_block *out, bool *sound)
{
    union lay_block b;
    const union lay_block *name;
    int err = image_get_name(img, addr, &b, &name);

    *sound = !err && name;
    if (*sound)
        *out = *name;
    return err;
}

static int image_find_age(struct image *img, uint64_t addr, struct image_named *named)
{
    unsigned index;
    uint64_t places[2];
    union lay_block b;
    const union lay_block *name;

    *named = (struct image_named){0};
    if (image_places(img, addr, places) == 0)
        return 0;
    uint64_t above = lay_name_of(&img->geo, addr, &index);
    int err = above == LAY_NONE ? 0 : image_get_name(img, above, &b, &name);
    if (err || above == LAY_NONE || !name || lay_is_unnamed(name, addr))
        return err;
    *named =
        (struct image_named){lay_named_age(name, addr, index), true, lay_get64(name->head.tid)};
    return 0;
}

int image_named_age(struct image *img, uint64_t addr, uint32_t *age, bool *known)
{
    struct image_named named;
    int err = image_find_age(img, addr, &named);

    *age = named.age;
    *known = named.known;
    return err;
}

void image_forget_names(struct image *img)
{
    free(img->names);
    img->names = NULL;
}

/* --- Chunk map -------------------------------------------------------------------------------- */

size_t image_segment_index(const struct image *img, uint64_t segment)
{
    return array_lower(img->segments, img->segment_count, sizeof(*img->segments), segment);
}

struct image_segment image_find_segment(const struct image *img, uint64_t segment)
{
    const struct image_segment none = {segment, LAY_NONE, LAY_NONE};
    size_t i = image_segment_index(img, segment);

    return i < img->segment_count && img->segments[i].segment == segment ? img->segments[i] : none;
}

uint64_t image_segment_block(const struct image *img, uint64_t segment)
{
    return image_find_segment(img, segment).block;
}

int image_set_segment(struct image *img, uint64_t segment, uint64_t block, uint64_t copy)
{
    size_t i = image_segment_index(img, segment);
    bool found = i < img->segment_count && img->segments[i].segment == segment;
    size_t behind = img->segment_count - i - found;
    int err = 0;

    if (block == LAY_NONE && found) {
        memmove(&img->segments[i], &img->segments[i + 1], behind * sizeof(*img->segments));
        img->segment_count--;
    } else if (found) {
        img->segments[i] = (struct image_segment){segment, block, copy};
    } else if (block != LAY_NONE) {
        err = array_grow((void **)&img->segments, img->segment_count, sizeof(*img->segments));
        if (err)
            return err;
        memmove(&img->segments[i + 1], &img->segments[i], behind * sizeof(*img->segments));
        img->segments[i] = (struct image_segment){segment, block, copy};
        img->segment_count++;
    }
    return err;
}

unsigned image_places(const struct image *img, uint64_t addr, uint64_t places[2])
{
    struct image_segment s;
    struct lay_slot slot;

    if (lay_addr_kind(addr) != LAY_KIND_CHUNK)
        return lay_places(&img->geo, addr, places);
    s = image_find_segment(img, lay_addr_segment(addr));
    lay_slot_set(&slot, s.block, s.copy);
    return lay_slot_places(&slot, addr, places);
}

bool image_map_is_bad(const struct image *img, uint64_t segment)
{
    for (size_t i = 0; i < img->bad_map_count; i++) {
        if (img->bad_maps[i].index == segment / LAY_MAP_SLOTS)
            return true;
    }
    return false;
}

void image_drop_map(struct image *img)
{
    free(img->segments);
    free(img->bad_maps);
    img->segments = NULL;
    img->bad_maps = NULL;
    img->segment_count = img->bad_map_count = 0;
}

/* Remembers a damaged block of the map. Returns 0 or -ENOMEM. */
static int image_bad_map(struct image *img, uint64_t index, const char *why)
{
    int err = array_grow((void **)&img->bad_maps, img->bad_map_count, sizeof(*img->bad_maps));

    if (!err)
        img->bad_maps[img->bad_map_count++] = (struct image_bad_map){index, why};
    return err;
}

/* Maps the segments of one block of the map. */
static int image_read_map_block(struct image *img, uint64_t index)
{
    union lay_block b;
    const char *why = NULL;
    int err = image_read(img, LAY_ADDR(LAY_KIND_MAP, index), &b);

    if (err)
        return err;
    if (img->unreadable)
        return image_bad_map(img, index, "unreadable");
    if (img->age == IMAGE_AGE_STALE)
        return image_bad_map(img, index, IMAGE_STALE_WHY);
    if (lay_check_map_block(&img->geo, &b.map, index, &why) != 0)
        return image_bad_map(img, index, why);
    for (unsigned i = 0; i < LAY_MAP_SLOTS && !err; i++) {
        if (lay_slot_mapped(&b.map.slots[i]))
            err = image_set_segment(img, index * LAY_MAP_SLOTS + i,
                                    lay_get64(b.map.slots[i].places[0]),
                                    lay_get64(b.map.slots[i].places[1]));
    }
    return err;
}

int image_read_map(struct image *img, uint64_t chunks)
{
    uint64_t segments = chunks > LAY_MAX_CHUNKS ? UINT64_MAX : chunks << img->geo.chunk_shift;
    int err = 0;

    image_drop_map(img);
    image_forget_names(img);
    for (uint64_t i = 0; i < img->geo.map_blocks && img->segment_count < segments && !err; i++)
        err = image_read_map_block(img, i);
    return err;
}

/* --- Start and end ---------------------------------------------------------------------------- */

int image_start(struct image *img, struct bd_dev *dev, bool reclaim, struct lay_labels *labels)
{
    memset(img, 0, sizeof(*img));
    img->dev = dev;
    img->device_blocks = dev->info.bytes >> LAY_BLOCK_SHIFT;
    struct lay_io io = ffs_io(img->dev);
    if (img->device_blocks == 0)
        return -EINVAL;
    int err = lay_labels_read(&io, img->device_blocks, reclaim, labels);
    if (!err)
        lay_label_geometry(lay_labels_newest(labels), &img->geo);
    for (unsigned i = 0; i < lay_logs(&img->geo); i++)
        img->log_at[i] = lay_log_block(&img->geo, i, 0);
    return err;
}

void image_drop_patches(struct image *img)
{
    for (size_t i = 0; i < img->patch_count; i++)
        free(img->patches[i].data);
    free(img->patches);
    img->patches = NULL;
    img->patch_count = 0;
    image_forget_names(img);
}

void image_end(struct image *img)
{
    image_drop_patches(img);
    image_drop_map(img);
}
