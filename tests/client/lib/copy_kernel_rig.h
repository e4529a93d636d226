/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * The copy kernel of the library without a GPU or a daemon: functions of the
 * driver are fakes, a kernel is a thread that copies by memcpy(), and requests
 * to the mount are answered here.
 */
#ifndef TESTS_CLIENT_LIB_COPY_KERNEL_RIG_H
#define TESTS_CLIENT_LIB_COPY_KERNEL_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/gpu/sim_copy_ioctl.h"

#ifdef __cplusplus
extern "C" {
#endif

struct copy_kernel_rig;

/* Reply of the mount; fds are duplicated for each reply. */
struct copy_kernel_rig_mount {
    const char *transport;
    struct gpunvme_reply_copy_kernel reply;
    int fds[2];
    int refusal; /* not 0: the socket closes, and the ioctl returns this */
};

/*
 * 0 and a rig, whose copy kernel may be NULL, or the result of
 * copy_kernel_open().
 */
int copy_kernel_rig_open(const struct copy_kernel_rig_mount *mount, bool gpu,
                         struct copy_kernel_rig **out);
void copy_kernel_rig_close(struct copy_kernel_rig *r);
bool copy_kernel_rig_has_copy_kernel(const struct copy_kernel_rig *r);

int copy_kernel_rig_attach(struct copy_kernel_rig *r, uint64_t id);
void copy_kernel_rig_detach(struct copy_kernel_rig *r);
void copy_kernel_rig_add(struct copy_kernel_rig *r, uint64_t id, uint64_t base);
void copy_kernel_rig_remove(struct copy_kernel_rig *r, uint64_t id);

/* Number of COPY_KERNEL ioctls, and the last one. */
unsigned copy_kernel_rig_calls(const struct copy_kernel_rig *r,
                               struct gpunvme_ioc_copy_kernel *last);
/* Number of successful launches. Makes later launches fail, or succeed. */
unsigned copy_kernel_rig_launches(const struct copy_kernel_rig *r);
void copy_kernel_rig_fail(struct copy_kernel_rig *r, bool fail);
/*
 * ThreadSanitizer does not know that mailboxes are mapped twice: this call,
 * before posting and after polling, shows it the order. Kernels make it around
 * their copies.
 */
void copy_kernel_rig_sync(struct copy_kernel_rig *r);
/* Number of mappings, streams and loaded kernels. */
int copy_kernel_rig_held(const struct copy_kernel_rig *r);

#ifdef __cplusplus
}
#endif

#endif
