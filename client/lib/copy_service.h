/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Small reads of the bounce path into GPU memory: read(2) into staging that the GPU reaches, and a
 * copy by the copy block, a persistent kernel (client/device/gd_copies.h). A read makes no call of
 * the CUDA driver, so threads do not wait for each other.
 *
 * The block is launched when reads follow one another. A read that finds no block takes the
 * pipeline. While the block runs, kernels of other processes take turns with it, so it is not used
 * for a second after a slow copy.
 *
 * Functions may be called from any thread, except open and close.
 */
#ifndef CLIENT_LIB_COPY_SERVICE_H
#define CLIENT_LIB_COPY_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/lib/cuda_driver.h"

#define COPY_SERVICE_BYTES 16384u /* longest copy */

struct copy_service;

/*
 * slow_ns: a copy of at least this time counts as slow. patience_ns: one of at least this time is
 * given up. 0 and *out NULL: the library has no device code. The driver must stay open until
 * copy_service_close().
 */
int copy_service_open(struct cuda_driver *cuda, int device, uint64_t slow_ns, uint64_t patience_ns,
                      struct copy_service **out);
/* No slot may be claimed. Waits until the block has ended. NULL does nothing. */
void copy_service_close(struct copy_service *s);
int copy_service_device(const struct copy_service *s);

/* A slot for one copy: its number, or -1 when there is none now. */
int copy_service_claim(struct copy_service *s);
void copy_service_release(struct copy_service *s, int slot);
/* The slot's staging, page-aligned, with room for a copy from any byte of its first page. */
char *copy_service_staging(const struct copy_service *s, int slot);
/*
 * Copies bytes [first, first + len) of the staging to dst in GPU memory; first is below 4096. 0, or
 * -errno with a sentence. The copy has ended when the call returns, except after -ETIMEDOUT: it was
 * given up, and may be made until copy_services_may_write() says otherwise. After an
 * error no slot can be claimed; threads that had one by then still copy.
 */
int copy_service_copy(struct copy_service *s, int slot, uint64_t dst, size_t first, size_t len);
/*
 * May a copy that was given up, by any service of this process, still be made to some of these
 * bytes of a GPU's memory? Takes a lock only after a copy was given up.
 */
bool copy_services_may_write(int device, uint64_t addr, size_t len);

#endif
