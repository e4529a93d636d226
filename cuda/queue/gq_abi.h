/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Declares structs of the ioctl interface that queue code reads and writes in
 * the memory of programs. Each has the layout of a struct of gq_reads.h.
 */
#ifndef CUDA_QUEUE_GQ_ABI_H
#define CUDA_QUEUE_GQ_ABI_H

#include <assert.h>
#include <stddef.h>

#include "cuda/queue/gq_reads.h"
#include "gpunvme/gpunvme_ioctl.h"

static_assert(sizeof(struct gpunvme_piece) == sizeof(struct gq_read_desc) &&
                  offsetof(struct gpunvme_piece, file_offset) ==
                      offsetof(struct gq_read_desc, file_offset) &&
                  offsetof(struct gpunvme_piece, buffer_offset) ==
                      offsetof(struct gq_read_desc, at) &&
                  offsetof(struct gpunvme_piece, len) == offsetof(struct gq_read_desc, len) &&
                  offsetof(struct gpunvme_piece, result) == offsetof(struct gq_read_desc, result),
              "a piece is a read");
static_assert(sizeof(struct gpunvme_lease_extent) == sizeof(struct gq_file_extent) &&
                  offsetof(struct gpunvme_lease_extent, offset) ==
                      offsetof(struct gq_file_extent, offset) &&
                  offsetof(struct gpunvme_lease_extent, lba) ==
                      offsetof(struct gq_file_extent, lba) &&
                  GQ_LBA_ZERO == UINT64_MAX,
              "an extent of a lease is an extent of a file");

#endif
