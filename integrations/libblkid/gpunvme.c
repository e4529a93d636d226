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

/* Lays out the label in block 0, in little-endian byte order. */
struct gpunvme_label {
	uint8_t magic[4];
	uint32_t crc;
	uint64_t block; /* logical address: 0 */
	uint64_t owner;
	uint64_t tid;
	uint8_t seal[16]; /* the UUID in the heads of all blocks, which users do not see */
	uint16_t version_major;
	uint16_t version_minor;
	uint32_t block_size;
	uint8_t writer[64];
	uint8_t uuid[16];
	uint8_t places[48];
	uint8_t label[64]; /* UTF-8, zero-padded */
	uint8_t member[16];
} __attribute__((packed));

/*
 * Returns the CRC32C of the sealing UUID, the address of the block, and the block
 * with zeros in place of its checksum.
 */
static uint32_t checksum(const uint8_t *block)
{
	const struct gpunvme_label *l = (const void *)block;
	const size_t at = offsetof(struct gpunvme_label, crc);
	const size_t behind = at + sizeof(l->crc);
	static const uint8_t zeros[sizeof(l->crc)];
	uint32_t crc = ~0U;

	crc = crc32c(crc, l->seal, sizeof(l->seal));
	crc = crc32c(crc, &block[offsetof(struct gpunvme_label, block)], sizeof(l->block));
	crc = crc32c(crc, block, at);
	crc = crc32c(crc, zeros, sizeof(zeros));
	return ~crc32c(crc, block + behind, BLOCK_SIZE - behind);
}

static int probe_gpunvme(blkid_probe pr, const struct blkid_idmag *mag)
{
	const uint8_t *block = blkid_probe_get_buffer(pr, 0, BLOCK_SIZE);
	const struct gpunvme_label *l = (const void *)block;

	(void)mag;
	if (!block)
		return errno ? -errno : BLKID_PROBE_NONE;
	/* Version 2 had UUID and label in other places. */
	if (l->block || le32_to_cpu(l->block_size) != BLOCK_SIZE ||
	    le16_to_cpu(l->version_major) < 3)
		return BLKID_PROBE_NONE;
	if (!blkid_probe_verify_csum(pr, checksum(block), le32_to_cpu(l->crc)))
		return BLKID_PROBE_NONE;
	if (l->label[0])
		blkid_probe_set_label(pr, l->label, sizeof(l->label));
	blkid_probe_set_uuid(pr, l->uuid);
	blkid_probe_set_uuid_as(pr, l->member, "UUID_SUB");
	blkid_probe_sprintf_version(pr, "%u.%u", le16_to_cpu(l->version_major),
				    le16_to_cpu(l->version_minor));
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
