/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Makes mutated images pass every checksum: what a crafted image is to the file system, as opposed
 * to a damaged one.
 */
#ifndef TESTS_FUSEFS_IMAGE_REPAIR_H
#define TESTS_FUSEFS_IMAGE_REPAIR_H

#include <stdbool.h>
#include <sys/cdefs.h>

#include "layout/layout.h"

__BEGIN_DECLS

/* Does a metadata block begin here? Those of the log that nothing has used yet are none. */
bool image_is_metadata(const uint8_t *block);
/* Seals one block again, with the transaction and the address that its head names. */
void image_repair_block(uint8_t *block);
/*
 * Acts like image_repair_block(). It also enters the age of a block in place in the block that
 * names it, and so on up to the superblock and the newest commit. `image` is the first byte. `geo`
 * is its geometry.
 */
void image_seal_block(uint8_t *image, const struct lay_geometry *geo, uint8_t *block);
/* Stores the geometry of an image, from its first label and superblock. Returns 0 or -EUCLEAN. */
int image_geometry(const uint8_t *image, struct lay_geometry *geo);
/* Returns the newest commit of the log, sealed or not, or NULL. */
struct lay_log_commit *image_newest_commit(uint8_t *image, const struct lay_geometry *geo);
/*
 * Seals the changed superblock in its first place, copies it to the second one, and names its age
 * in the newest commit.
 */
void image_seal_super(uint8_t *image, const struct lay_geometry *geo);
/*
 * Seals the log's records and images from the tail on, with tags and chains, as far as there are
 * records. `geo` is the geometry of the sound image, `image` its first byte.
 */
void image_repair_log(uint8_t *image, const struct lay_geometry *geo);

__END_DECLS

#endif
