/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Probes gpunvmefs for libblkid. In util-linux this file is
 * libblkid/src/superblocks/gpunvme.c.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

#include "crc32c.h"
#include "superblocks.h"

#define BLOCK_SIZE 4096
#define BLOCKS_MIN 4096

/* Block 0 in little-endian byte order. */
struct gpunvme_super_block {
	uint8_t magic[4];
	uint32_t crc;
	uint64_t block; /* address of the block itself: 0 */
	uint64_t owner;
	uint64_t tid;
	uint8_t uuid[16];
	uint16_t version_major;
	uint16_t version_minor;
	uint32_t block_size;
	uint32_t state;
	uint32_t device_count;
	uint8_t features[24];
	uint8_t geometry[136];
	uint8_t label[64]; /* UTF-8, zero-padded */
} __attribute__((packed));

/*
 * Returns the CRC32C of the UUID, the address of the block, and the block with
 * zeros in place of its checksum.
 */
static uint32_t checksum(const uint8_t *block)
{
	const struct gpunvme_super_block *sb = (const void *)block;
	const size_t at = offsetof(struct gpunvme_super_block, crc);
	const size_t behind = at + sizeof(sb->crc);
	static const uint8_t zeros[sizeof(sb->crc)];
	uint32_t crc = ~0U;

	crc = crc32c(crc, sb->uuid, sizeof(sb->uuid));
	crc = crc32c(crc, &block[offsetof(struct gpunvme_super_block, block)], sizeof(sb->block));
	crc = crc32c(crc, block, at);
	crc = crc32c(crc, zeros, sizeof(zeros));
	return ~crc32c(crc, block + behind, BLOCK_SIZE - behind);
}

static int probe_gpunvme(blkid_probe pr, const struct blkid_idmag *mag)
{
	const uint8_t *block = blkid_probe_get_buffer(pr, 0, BLOCK_SIZE);
	const struct gpunvme_super_block *sb = (const void *)block;

	(void)mag;
	if (!block)
		return errno ? -errno : BLKID_PROBE_NONE;
	if (sb->block || le32_to_cpu(sb->block_size) != BLOCK_SIZE)
		return BLKID_PROBE_NONE;
	if (!blkid_probe_verify_csum(pr, checksum(block), le32_to_cpu(sb->crc)))
		return BLKID_PROBE_NONE;
	if (sb->label[0])
		blkid_probe_set_label(pr, sb->label, sizeof(sb->label));
	blkid_probe_set_uuid(pr, sb->uuid);
	blkid_probe_sprintf_version(pr, "%u.%u", le16_to_cpu(sb->version_major),
				    le16_to_cpu(sb->version_minor));
	blkid_probe_set_block_size(pr, BLOCK_SIZE);
	return BLKID_PROBE_OK;
}

const struct blkid_idinfo gpunvme_idinfo = {
	.name = "gpunvme",
	.usage = BLKID_USAGE_FILESYSTEM,
	.probefunc = probe_gpunvme,
	.minsz = (uint64_t)BLOCKS_MIN * BLOCK_SIZE,
	.magics = {{.magic = "GNsb", .len = 4}, {.magic = NULL}},
};
