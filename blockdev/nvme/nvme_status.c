/* SPDX-License-Identifier: BSD-2-Clause */
/* Maps an NVMe status to an errno, and decides whether another try can help. */
#include <errno.h>
#include <libnvme.h>

#include "blockdev/nvme/nvme_info.h"
#include "blockdev/nvme/nvme_spec.h"

#define STATUS_CODE_MASK 0x7ffu /* SCT and SC */

struct status_entry {
    uint16_t code; /* SCT << 8 | SC */
    int16_t error;
    bool command_fault; /* the same command will fail again */
};

/* In ascending order. Other codes map to -EIO and are retried. */
static const struct status_entry table[] = {
    {NVME_ERR_INVALID_OPCODE, -ENOTSUP, true},
    {NVME_ERR_INVALID_FIELD, -EINVAL, true},
    {NVME_ERR_ABORT_REQUESTED, -ECANCELED, false},
    {NVME_ERR_SQ_DELETED, -ECANCELED, false},
    {NVME_ERR_INVALID_NS, -ENODEV, true},
    {0x00c, -EINVAL, true}, /* command sequence error */
    {NVME_ERR_INVALID_SGL_SEGMENT, -EINVAL, true},
    {NVME_ERR_INVALID_SGL_COUNT, -EINVAL, true},
    {NVME_ERR_INVALID_SGL_LENGTH, -EINVAL, true},
    {0x010, -EINVAL, true}, /* metadata SGL length */
    {NVME_ERR_INVALID_SGL_TYPE, -EINVAL, true},
    {0x012, -EINVAL, true}, /* controller memory buffer */
    {NVME_ERR_INVALID_PRP_OFFSET, -EINVAL, true},
    {0x015, -EACCES, true}, /* operation denied */
    {0x020, -EROFS, true},  /* namespace is write protected */
    {NVME_ERR_LBA_RANGE, -ERANGE, true},
    {NVME_ERR_CAPACITY, -ENOSPC, true},
    {NVME_ERR_RESERVATION, -EACCES, true},
    {NVME_ERR_CQ_INVALID, -EINVAL, true},
    {NVME_ERR_QID_INVALID, -EINVAL, true},
    {NVME_ERR_QUEUE_SIZE, -EINVAL, true},
    {NVME_ERR_ABORT_LIMIT, -EBUSY, false},
    {NVME_ERR_QUEUE_DELETION, -EINVAL, true},
    {0x180, -EINVAL, true}, /* conflicting attributes */
    {0x182, -EROFS, true},  /* write to a read-only range */
    {0x286, -EACCES, true}, /* access denied */
    {NVME_ERR_ANA_LOST, -EIO, true},
};

static const struct status_entry *status_find(uint16_t status)
{
    uint16_t code = status & STATUS_CODE_MASK;

    for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (table[i].code == code)
            return &table[i];
    }
    return NULL;
}

int nvme_status_errno(uint16_t status)
{
    const struct status_entry *entry = status_find(status);

    if ((status & STATUS_CODE_MASK) == NVME_OK)
        return 0;
    return entry ? entry->error : -EIO;
}

bool nvme_status_retryable(uint16_t status)
{
    const struct status_entry *entry = status_find(status);

    if ((status & STATUS_CODE_MASK) == NVME_OK || status & NVME_STATUS_DNR)
        return false;
    return !entry || !entry->command_fault;
}

bool nvme_status_transition(uint16_t status)
{
    unsigned code = status & STATUS_CODE_MASK;

    return !(status & NVME_STATUS_DNR) &&
           (code == NVME_ERR_ANA_INACCESSIBLE || code == NVME_ERR_ANA_TRANSITION);
}

bool nvme_status_not_yet(uint16_t status)
{
    unsigned code = status & STATUS_CODE_MASK;

    if (nvme_status_transition(status))
        return true;
    return !(status & NVME_STATUS_DNR) &&
           (code == NVME_ERR_INTERRUPTED || code == NVME_ERR_TRANSPORT ||
            code == NVME_ERR_MEDIA_NOT_READY || code == NVME_ERR_NS_NOT_READY);
}

bool nvme_status_taken(uint16_t status)
{
    return (status & STATUS_CODE_MASK) == NVME_ERR_RESERVATION;
}

const char *nvme_status_text(uint16_t status)
{
    return nvme_status_to_string(status & 0x7ff, false);
}
