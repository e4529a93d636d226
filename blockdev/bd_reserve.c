/* SPDX-License-Identifier: BSD-2-Clause */
/* Reserves namespaces for this host, and derives the host identifier. */
#include "blockdev/bd_reserve.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uuid/uuid.h>

/* Without machine-id(5), a host has another identifier after each boot. */
static const char *const reserve_machine_ids[] = {"/etc/machine-id",
                                                  "/proc/sys/kernel/random/boot_id"};

/* Reads an ID of 32 hexadecimal digits, with or without hyphens. */
static bool reserve_read_id(const char *path, uuid_t id)
{
    char text[UUID_STR_LEN] = "", plain[33];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);
    size_t digits = 0;

    if (fd >= 0)
        close(fd);
    for (ssize_t i = 0; i < n && digits < sizeof(plain) - 1; i++) {
        if (text[i] != '-')
            plain[digits++] = text[i];
    }
    if (digits < sizeof(plain) - 1)
        return false;
    snprintf(text, sizeof(text), "%.8s-%.4s-%.4s-%.4s-%.12s", plain, plain + 8, plain + 12,
             plain + 16, plain + 20);
    return uuid_parse(text, id) == 0;
}

void bd_host_id(const struct bd_name *name, uint8_t id[16])
{
    char *real = name->kind == BD_KIND_VFIO ? NULL : realpath(name->path, NULL);
    const char *path = real ? real : name->path;
    uuid_t machine = {0};
    bool found = false;

    for (size_t i = 0; i < sizeof(reserve_machine_ids) / sizeof(*reserve_machine_ids); i++)
        found = found || reserve_read_id(reserve_machine_ids[i], machine);
    memset(id, 0, sizeof(uuid_t));
    if (found)
        uuid_generate_sha1(id, machine, path, strlen(path));
    free(real);
}

static bool reserve_is_shared(struct nvme_ctrlr *c, uint32_t nsid)
{
    struct nvme_ns_info ns;

    return nvme_ctrlr_transport(c)->remote || nvme_ctrlr_info(c)->shared ||
           (nvme_ns_info(c, nsid, &ns) == 0 && ns.shared);
}

/*
 * Returns the result of bd_reserve() for an attempt that ended with err, and
 * stores the sentence. `about` precedes it, `holder` has the reservation, and
 * `missing` says what has no reservations.
 */
static int reserve_result(int err, enum bd_reserve how, const char *about, const char *holder,
                          const char *missing, struct reason *why)
{
    if (!err)
        return 1;
    if (err == -ENOTSUP && how == BD_RESERVE_AUTO)
        return 0;
    if (err == -EBUSY)
        reason_set(why, 0,
                   "%sreserved by %s: unmount it there first, or mount it once with "
                   "reservation=preempt if that host is dead",
                   about, holder);
    else if (err == -ENOTSUP)
        reason_set(why, 0, "%s%s; mount it with reservation=auto", about, missing);
    else
        reason_set(why, 0, "%sit cannot be reserved: %s", about, strerror(-err));
    return err != -EBUSY && how == BD_RESERVE_AUTO ? 0 : err;
}

int bd_reserve(struct nvme_ctrlr *c, uint32_t nsid, enum bd_reserve how, struct reason *why)
{
    char about[32], id[UUID_STR_LEN], host[96];
    struct nvme_holder holder = {0};

    *why = (struct reason){0};
    if (how == BD_RESERVE_OFF || (how == BD_RESERVE_AUTO && !reserve_is_shared(c, nsid)))
        return 0;
    int err = nvme_reserve(c, nsid, how == BD_RESERVE_PREEMPT, &holder);
    uuid_unparse(holder.host_id, id);
    snprintf(host, sizeof(host), "the host with the identifier %s", id);
    snprintf(about, sizeof(about), "namespace %u: ", nsid);
    return reserve_result(
        err, how, about, host,
        "the controller has no reservations (ONCS, RESCAP), or no host identifiers", why);
}

int bd_reserve_disk(struct bd_dev *dev, const uint8_t host_id[16], enum bd_reserve how,
                    struct reason *why)
{
    char host[64] = "another host";
    uint64_t key, holder = 0;

    *why = (struct reason){0};
    if (how == BD_RESERVE_OFF || (how == BD_RESERVE_AUTO && !dev->info.shared))
        return 0;
    memcpy(&key, host_id, sizeof(key));
    int err = key && dev->ops->reserve
                  ? dev->ops->reserve(dev, key, how == BD_RESERVE_PREEMPT, &holder)
                  : -ENOTSUP;
    if (holder)
        snprintf(host, sizeof(host), "the host with the key %#llx", (unsigned long long)holder);
    return reserve_result(
        err, how, "", host,
        "the device or the kernel's driver has no reservations (partitions have none)", why);
}
