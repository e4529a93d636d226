/*
 * A copier (client/copier.h) without a GPU or a daemon: the driver's functions are fakes, a kernel
 * is a thread that copies by memcpy(), and what the mount would be asked is answered here.
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

struct copier_rig;

/* What the mount tells; fds are duplicated for each answer. */
struct copier_rig_mount {
    const char *transport;
    struct gpunvme_told_copier told;
    int fds[2];
    int refusal; /* not 0: the socket closes, and this is what the ioctl says */
};

/* 0 and a rig, whose copier may be missing, or what copier_open() said. */
int copier_rig_open(const struct copier_rig_mount *mount, bool gpu, struct copier_rig **out);
void copier_rig_close(struct copier_rig *r);
bool copier_rig_has_copier(const struct copier_rig *r);

int copier_rig_attach(struct copier_rig *r, uint64_t id);
void copier_rig_detach(struct copier_rig *r);
void copier_rig_add(struct copier_rig *r, uint64_t id, uint64_t base);
void copier_rig_remove(struct copier_rig *r, uint64_t id);

/* The COPIER ioctls so far, and the last one. */
unsigned copier_rig_calls(const struct copier_rig *r, struct gpunvme_ioc_copier *last);
/* Launches that worked. From now on launches fail, or not. */
unsigned copier_rig_launches(const struct copier_rig *r);
void copier_rig_fail(struct copier_rig *r, bool fail);
/*
 * Mailboxes are mapped twice, and ThreadSanitizer does not see what comes before what by them: it
 * does by this, called before posting and after polling, as the kernels do around their copies.
 */
void copier_rig_sync(struct copier_rig *r);
/* Mappings, streams and kernels that are there. */
int copier_rig_held(const struct copier_rig *r);

#ifdef __cplusplus
}
#endif

#endif
