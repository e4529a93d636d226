/* SPDX-License-Identifier: BSD-2-Clause */
/* In the place of util-linux's header, for the probe. */
#ifndef TESTS_INTEGRATIONS_SIGNATURE_CRC32C_H
#define TESTS_INTEGRATIONS_SIGNATURE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Castagnoli's, without the inversions at the beginning and at the end. */
uint32_t crc32c(uint32_t crc, const void *buf, size_t size);

#endif
