/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * In the place of libblkid's private header: as much of its interface as the
 * probe uses. Values are printed as "NAME=value" lines.
 */
#ifndef TESTS_INTEGRATIONS_SIGNATURE_SUPERBLOCKS_H
#define TESTS_INTEGRATIONS_SIGNATURE_SUPERBLOCKS_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>

#define le16_to_cpu le16toh
#define le32_to_cpu le32toh

#define BLKID_PROBE_OK         0
#define BLKID_PROBE_NONE       1
#define BLKID_USAGE_FILESYSTEM 2

typedef struct blkid_struct_probe *blkid_probe;

struct blkid_idmag {
    const char *magic;
    unsigned int len;
    long kboff;
    unsigned int sboff;
};

struct blkid_idinfo {
    const char *name;
    int usage;
    int flags;
    int minsz;
    int (*probefunc)(blkid_probe pr, const struct blkid_idmag *mag);
    struct blkid_idmag magics[2]; /* there: of any length */
};

extern const struct blkid_idinfo gpunvme_idinfo;

unsigned char *blkid_probe_get_buffer(blkid_probe pr, uint64_t off, uint64_t len);
int blkid_probe_verify_csum(blkid_probe pr, uint64_t csum, uint64_t expected);
int blkid_probe_set_label(blkid_probe pr, const unsigned char *label, size_t len);
int blkid_probe_set_uuid(blkid_probe pr, const unsigned char *uuid);
int blkid_probe_set_uuid_as(blkid_probe pr, const unsigned char *uuid, const char *name);
int blkid_probe_sprintf_version(blkid_probe pr, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
int blkid_probe_set_block_size(blkid_probe pr, unsigned block_size);

#endif
