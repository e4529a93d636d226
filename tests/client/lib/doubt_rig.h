/* SPDX-License-Identifier: BSD-2-Clause */
/* A buffer in GPU memory to which the last copy that was given up may still be made. */
#ifndef TESTS_CLIENT_LIB_DOUBT_RIG_H
#define TESTS_CLIENT_LIB_DOUBT_RIG_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* On device 0, of the library's own memory, in a handle whose service is of `device`. */
struct gpunvme_buffer *doubt_rig_buffer(int device);
/* The mount has it, too; it is gone. */
void doubt_rig_share(struct gpunvme_buffer *b);
/* The copy may be made until so many checks have said so. */
void doubt_rig_settle_after(unsigned checks);
/* As the bounce path reads the buffer's first byte of fd. */
int doubt_rig_read(struct gpunvme_buffer *b, int fd);
/* Frees of GPU memory since doubt_rig_buffer(). */
unsigned doubt_rig_frees(void);

#ifdef __cplusplus
}
#endif

#endif
