/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Returns the library's kernels as images for the CUDA driver. Each image is loaded at its first
 * use.
 */
#ifndef CLIENT_DEVICE_DEVICE_IMAGE_H
#define CLIENT_DEVICE_DEVICE_IMAGE_H

/* Returns NULL if the library was built without a CUDA compiler. */
const void *direct_image(void);
/*
 * Each returns the image of one kernel: of long staged reads and lists, of
 * checksums, of direct_service.h, and of tables.
 */
const void *list_image(void);
const void *compare_image(void);
const void *service_image(void);
const void *table_image(void);

#endif
