/* SPDX-License-Identifier: BSD-2-Clause */
/* Implements persistent reservations on the kernel's block devices (bd_pr.h). */
#include "blockdev/bd_pr.h"

#include <assert.h>
#include <errno.h>
#include <linux/pr.h>
#include <sys/ioctl.h>

#define PR_STEPS 4u /* attempts to reserve, each after what was in the way is gone */
/* These are results of ioctl(2) above 0. Kernels before 6.3 return the status of NVMe. */
#define PR_CONFLICT      0x18
#define PR_NVME_CONFLICT 0x83
#define PR_NVME_CODE     0x7ff

/* Headers before Linux 7.0 do not have this. */
struct pr_held {
    uint64_t key;
    uint32_t generation;
    uint32_t type; /* 0: not reserved */
};
static_assert(sizeof(struct pr_held) == 16, "the kernel's struct pr_read_reservation");
#define PR_READ_RESERVATION _IOR('p', 207, struct pr_held)

/* Returns 0, -EACCES for a conflict with another host, -ENOTSUP or another error. */
static int pr_call(int fd, unsigned long request, void *arg)
{
    int rc = ioctl(fd, request, arg);

    if (rc == 0)
        return 0;
    if (rc > 0)
        return rc == PR_CONFLICT || (rc & PR_NVME_CODE) == PR_NVME_CONFLICT ? -EACCES : -EIO;
    switch (errno) {
    case EBADE:
        return -EACCES;
    case EINVAL: /* a refused command */
    case ENOTTY:
    case EOPNOTSUPP:
        return -ENOTSUP;
    default:
        return -errno;
    }
}

static int pr_register(int fd, uint64_t old_key, uint64_t new_key, uint32_t flags)
{
    struct pr_registration r = {.old_key = old_key, .new_key = new_key, .flags = flags};

    return pr_call(fd, IOC_PR_REGISTER, &r);
}

/*
 * The host may have registered another key before. SCSI then replaces it in
 * any case, NVMe only if the old key is not 0, whose value is ignored.
 */
static int pr_join(int fd, uint64_t key)
{
    int rc = pr_register(fd, 0, key, PR_FL_IGNORE_KEY);

    return rc == -EACCES ? pr_register(fd, key, key, PR_FL_IGNORE_KEY) : rc;
}

static int pr_by_key(int fd, unsigned long request, uint64_t key, uint32_t type)
{
    struct pr_reservation r = {.key = key, .type = type};

    return pr_call(fd, request, &r);
}

int bd_pr_keep(int fd, uint64_t key)
{
    return pr_by_key(fd, IOC_PR_RESERVE, key, PR_WRITE_EXCLUSIVE);
}

/* One key stands for all hosts if all registrants hold the reservation. */
static uint64_t pr_victim(const struct pr_held *held)
{
    return held->type == PR_WRITE_EXCLUSIVE_ALL_REGS || held->type == PR_EXCLUSIVE_ACCESS_ALL_REGS
               ? 0
               : held->key;
}

/*
 * Takes the reservation away from the host that holds it. Returns 0 if no other
 * reservation remains. Contrary to the kernel's documentation, the kernel's
 * drivers use old_key as the caller's key and new_key as the key of the other
 * host.
 */
static int pr_displace(int fd, uint64_t key, const struct pr_held *held)
{
    struct pr_preempt preempt = {
        .old_key = key, .new_key = pr_victim(held), .type = PR_WRITE_EXCLUSIVE};
    struct pr_clear clear = {.key = key};

    if (held->type)
        return pr_call(fd, IOC_PR_PREEMPT_ABORT, &preempt);
    return pr_call(fd, IOC_PR_CLEAR, &clear);
}

int bd_pr_take(int fd, uint64_t key, bool preempt, uint64_t *holder)
{
    int rc = -EACCES;

    *holder = 0;
    for (unsigned i = 0; i < PR_STEPS && rc == -EACCES; i++) {
        struct pr_held held = {0};

        rc = pr_join(fd, key);
        if (rc)
            return rc;
        rc = bd_pr_keep(fd, key);
        if (rc != -EACCES)
            break;
        if (pr_call(fd, PR_READ_RESERVATION, &held))
            held = (struct pr_held){0};
        *holder = held.key;
        if (held.type && held.key == key) /* of another type, from before a crash */
            rc = pr_by_key(fd, IOC_PR_RELEASE, key, held.type) ? -EIO : -EACCES;
        else if (!preempt)
            rc = -EBUSY;
        else
            rc = pr_displace(fd, key, &held) ? -EIO : -EACCES;
    }
    if (rc)
        (void)pr_register(fd, key, 0, 0);
    return rc == -EACCES ? -EBUSY : rc;
}

int bd_pr_release(int fd, uint64_t key)
{
    int rc = pr_by_key(fd, IOC_PR_RELEASE, key, PR_WRITE_EXCLUSIVE);

    /* Some drivers keep the registration, which excludes no other host. */
    (void)pr_register(fd, key, 0, 0);
    return rc;
}
