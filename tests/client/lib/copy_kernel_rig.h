/*
 * A copy kernel (client/copy kernel.h) without a GPU or a daemon: the driver's functions are fakes,
 * a kernel is a thread that copies by memcpy(), and what the mount would be asked is answered here.
 */
#ifndef TESTS_CLIENT_LIB_COPY_KERNEL_RIG_H
#define TESTS_CLIENT_LIB_COPY_KERNEL_RIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpunvme/gpunvme_ioctl.h"

#ifdef __cplusplus
extern "C" {
#endif

struct copy_kernel_rig;

/* What the mount tells; fds are duplicated for each answer. */
struct copy_kernel_rig_mount {
    const char *transport;
    struct gpunvme_reply_copy_kernel reply;
    int fds[2];
    int refusal; /* not 0: the socket closes, and this is what the ioctl says */
};

/* 0 and a rig, whose copy kernel may be missing, or what copy_kernel_open() said. */
int copy_kernel_rig_open(const struct copy_kernel_rig_mount *mount, bool gpu,
                         struct copy_kernel_rig **out);
void copy_kernel_rig_close(struct copy_kernel_rig *r);
bool copy_kernel_rig_has_copy_kernel(const struct copy_kernel_rig *r);

int copy_kernel_rig_attach(struct copy_kernel_rig *r, uint64_t id);
void copy_kernel_rig_detach(struct copy_kernel_rig *r);
void copy_kernel_rig_add(struct copy_kernel_rig *r, uint64_t id, uint64_t base);
void copy_kernel_rig_remove(struct copy_kernel_rig *r, uint64_t id);

/* The COPY_KERNEL ioctls so far, and the last one. */
unsigned copy_kernel_rig_calls(const struct copy_kernel_rig *r,
                               struct gpunvme_ioc_copy_kernel *last);
/* Launches that worked. From now on launches fail, or not. */
unsigned copy_kernel_rig_launches(const struct copy_kernel_rig *r);
void copy_kernel_rig_fail(struct copy_kernel_rig *r, bool fail);
/*
 * Mailboxes are mapped twice, and ThreadSanitizer does not see what comes before what by them: it
 * does by this, called before posting and after polling, as the kernels do around their copies.
 */
void copy_kernel_rig_sync(struct copy_kernel_rig *r);
/* Mappings, streams and kernels that are there. */
int copy_kernel_rig_held(const struct copy_kernel_rig *r);

#ifdef __cplusplus
}
#endif

#endif
