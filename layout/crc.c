/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Computes checksums, and checks the head at the start of every metadata block
 * (FORMAT.md 2).
 */
#include <assert.h>
#include <isa-l/crc.h>
#include <limits.h>
#include <string.h>

#include "layout/check.h"
#include "layout/layout.h"

uint32_t lay_crc32c(uint32_t crc, const void *data, size_t len)
{
    assert(len <= INT_MAX);
    /* The library inverts neither before nor after, and only reads its buffer. */
    return ~crc32_iscsi((unsigned char *)data, (int)len, ~crc);
}

uint32_t lay_sum_of(uint32_t crc)
{
    return crc == LAY_NO_SUM ? UINT32_MAX : crc;
}

uint32_t lay_data_sum(const void *data)
{
    return lay_sum_of(lay_crc32c(0, data, LAY_BLOCK_SIZE));
}

uint32_t lay_block_crc(const uint8_t uuid[16], uint64_t addr, const void *data)
{
    static const uint8_t no_crc[4];
    const uint8_t *bytes = data;
    le64 sealed = lay_put64(addr);
    const size_t after = offsetof(struct lay_head, block);

    uint32_t crc = lay_crc32c(0, uuid, 16);
    crc = lay_crc32c(crc, &sealed, sizeof(sealed));
    crc = lay_crc32c(crc, bytes, offsetof(struct lay_head, crc));
    crc = lay_crc32c(crc, no_crc, sizeof(no_crc));
    return lay_crc32c(crc, bytes + after, LAY_BLOCK_SIZE - after);
}

uint32_t lay_age(const void *block)
{
    uint32_t crc = lay_get32(((const struct lay_head *)block)->crc);

    return crc == 0 ? UINT32_MAX : crc;
}

void lay_head_init(struct lay_head *head, uint32_t magic, const uint8_t uuid[16], uint64_t addr,
                   uint64_t owner)
{
    head->magic = lay_put32(magic);
    head->block = lay_put64(addr);
    head->owner = lay_put64(owner);
    memcpy(head->uuid, uuid, sizeof(head->uuid));
}

void lay_seal(void *block, uint64_t tid)
{
    struct lay_head *head = block;

    head->tid = lay_put64(tid);
    head->crc = lay_put32(lay_block_crc(head->uuid, lay_get64(head->block), block));
}

int lay_check_head(const void *block, uint32_t magic, const uint8_t uuid[16], uint64_t addr,
                   uint64_t owner, const char **why)
{
    const struct lay_head *head = block;

    if (lay_get32(head->magic) != magic)
        return lay_bad(why, "magic");
    if (memcmp(head->uuid, uuid, sizeof(head->uuid)) != 0)
        return lay_bad(why, "uuid");
    if (lay_get64(head->block) != addr)
        return lay_bad(why, "block address");
    if (lay_get32(head->crc) != lay_block_crc(uuid, addr, block))
        return lay_bad(why, "checksum");
    if (owner != LAY_ANY_OWNER && lay_get64(head->owner) != owner)
        return lay_bad(why, "owner");
    return 0;
}

bool lay_is_zero(const void *data, size_t len)
{
    const uint8_t *bytes = data;

    return len == 0 || (bytes[0] == 0 && memcmp(bytes, bytes + 1, len - 1) == 0);
}
