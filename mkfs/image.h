/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads the blocks of a file system that is not mounted, with the log replayed
 * in memory. fsck and dump use this reader, because neither trusts the live
 * file system's code.
 */
#ifndef MKFS_IMAGE_H
#define MKFS_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/bdev.h"
#include "layout/label.h"
#include "layout/layout.h"

__BEGIN_DECLS

/* Describes the newest image of a block that is still in the log. */
struct image_patch {
    uint64_t addr; /* logical address */
    uint64_t pos;  /* log position of the image */
    uint64_t order;
    uint64_t tid;
    union lay_block *data; /* the image, if the first log does not have it as it is */
};

/* Describes a mapped segment of the chunk map (FORMAT.md 5.6). */
struct image_segment {
    uint64_t segment;
    uint64_t block; /* of the device: where the segment begins */
    uint64_t copy;  /* first block of its copy, or LAY_NONE */
};

/* Describes a damaged or stale block of the chunk map. */
struct image_bad_map {
    uint64_t index;
    const char *why;
};

/* Names the results of comparing a block with its age (FORMAT.md 2.4). */
enum image_age {
    /* The last version: changed by a repair, an image of the log, or of the named age. */
    IMAGE_AGE_RIGHT,
    IMAGE_AGE_NEW,     /* was never written: the device was not read */
    IMAGE_AGE_STALE,   /* sound by its own checksum, but of another age than the named one */
    IMAGE_AGE_UNKNOWN, /* sound, but no age is named for it: image_named_age(), names_lost */
    IMAGE_AGE_DAMAGED, /* does not match its own checksum, or is unreadable */
};
#define IMAGE_STALE_WHY "not the version that was last written"

struct image_names;

struct image {
    struct bd_dev *dev;
    struct lay_geometry geo;
    uint64_t device_blocks;
    uint64_t log_at[LAY_LOGS];   /* blocks of the device where the logs begin */
    struct image_patch *patches; /* sorted by address */
    size_t patch_count;
    struct image_segment *segments; /* mapped ones, sorted by segment */
    size_t segment_count;
    struct image_bad_map *bad_maps; /* sorted by index */
    size_t bad_map_count;
    /*
     * Returns true and fills *out if a repair has changed the block but not written
     * it. NULL means that there are no such blocks.
     */
    bool (*changed)(void *arg, uint64_t addr, union lay_block *out);
    void *changed_arg;
    /*
     * Called with a metadata block in which image_read() has corrected one flipped
     * bit (FORMAT.md 2.1); all checks of the block alone pass, and it has the age
     * that is named, if that is known. May change the block; an error ends the read.
     * NULL: no block is corrected.
     */
    int (*corrected)(void *arg, uint64_t addr, union lay_block *b);
    void *corrected_arg;
    /*
     * Called by image_read() for a place of a block that cannot be read or
     * differs from the place whose contents are returned. An error ends the
     * read. If NULL, the second place is read only if the first one is not
     * sound.
     */
    int (*differs)(void *arg, uint64_t addr, uint64_t place);
    void *differs_arg;
    /* Reads an unreadable block as zeros, which no check accepts. */
    bool tolerant;
    bool unreadable;    /* the block of the last image_read() was unreadable */
    enum image_age age; /* of the block of the last image_read() */
    /*
     * Names the ages of the tops of map, bitmaps and checksums. They are not known
     * if the superblock is not the one that the log names.
     */
    union lay_block super;
    bool super_known;
    /*
     * Part of the log is lost, which may have named the ages of blocks that are in
     * place: the age of a block that is later than what names it is not known.
     */
    bool names_lost;
    struct image_names *names; /* the naming blocks that were read last */
};

/*
 * Reads the labels, and sets the part of img->geo that they have. Returns 0, or
 * an error of lay_labels_read() with labels->why.
 */
int image_start(struct image *img, struct bd_dev *dev, bool reclaim, struct lay_labels *labels);
/* Frees the patches and the map. */
void image_end(struct image *img);

/*
 * Reads the metadata block of an address as after recovery, and sets img->age.
 * A stale block is given as it is. Returns 0 or an error.
 */
int image_read(struct image *img, uint64_t addr, union lay_block *out);
/*
 * Finds the age that is named for a block other than the superblock, as of the
 * last checkpoint, or as a repair has changed it. *known is false if the block
 * that names it is damaged or stale, or if entries have the block as unused.
 * Returns 0 or -ENOMEM.
 */
int image_named_age(struct image *img, uint64_t addr, uint32_t *age, bool *known);
/*
 * Reads a block that names ages. *sound is false, and *out unchanged, if it is
 * damaged or stale. Returns 0 or -ENOMEM.
 */
int image_read_name(struct image *img, uint64_t addr, union lay_block *out, bool *sound);
/* Forgets the naming blocks, after one of them has been written in place. */
void image_forget_names(struct image *img);
/* Returns the newest image in the log, or NULL; part of the patches. */
struct image_patch *image_find_patch(const struct image *img, uint64_t addr);
/* Reads the image of a patch. */
int image_read_patch(struct image *img, const struct image_patch *p, union lay_block *out);
/* Forgets the patches once they are in place. */
void image_drop_patches(struct image *img);
/* Returns true if the block on the device is older than the result of image_read(). */
bool image_is_newer(const struct image *img, uint64_t addr);
/* Reads a block as it is on the device. */
int image_read_raw(struct image *img, uint64_t block, union lay_block *out);

/* --- Chunk map -------------------------------------------------------------------------------- */

/*
 * Reads blocks of the chunk map, as after recovery, until `chunks` chunks are
 * found; UINT64_MAX reads them all. Segments of a damaged or stale block are not
 * mapped, and img->bad_maps has the block. Two segments may have one place, and a chunk
 * of 16 segments that lies in two blocks may be mapped in part: the caller looks
 * for that. Needs the complete geometry. Returns 0, -ENOMEM or a device error.
 */
int image_read_map(struct image *img, uint64_t chunks);
/* Forgets the map: no segment is mapped then. */
void image_drop_map(struct image *img);
/* Returns the index in img->segments of a mapped segment. */
size_t image_segment_index(const struct image *img, uint64_t segment);
/* Returns the block of the device where the segment begins, or LAY_NONE if it is not mapped. */
uint64_t image_segment_block(const struct image *img, uint64_t segment);
/*
 * Returns the places of a segment. Its block is LAY_NONE if it is not mapped.
 */
struct image_segment image_find_segment(const struct image *img, uint64_t segment);
/*
 * Maps a segment, and its copy unless `copy` is LAY_NONE, in memory. If both
 * are LAY_NONE, unmaps the segment. Returns 0 or -ENOMEM.
 */
int image_set_segment(struct image *img, uint64_t segment, uint64_t block, uint64_t copy);
/* Returns true if the block of the map that has the segment's slot is damaged. */
bool image_map_is_bad(const struct image *img, uint64_t segment);
/*
 * Stores the one or two blocks of the device that hold the metadata of any
 * address, and returns how many there are. Returns 0 if there is no such
 * address or its segment is not mapped.
 */
unsigned image_places(const struct image *img, uint64_t addr, uint64_t places[2]);

__END_DECLS

#endif
