/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Describes statuses with libnvme's texts. This is a separate file because
 * nvme_status.c uses wire names that clash with libnvme's.
 */
#include <libnvme.h>

#include "blockdev/nvme/nvme_info.h"

const char *nvme_status_text(uint16_t status)
{
    return nvme_status_to_string(status & 0x7ff, false);
}
