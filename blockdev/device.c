/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Parses device strings and opens the devices. Reserves namespaces for this
 * host, and derives the host identifier.
 */
#include "blockdev/device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "blockdev/bd_reserve.h"
#include "blockdev/pci/pci.h"
#include "blockdev/vfio/vfio.h"
#include "blockdev/vfio_user/vfio_user.h"
#include "support/number.h"

/* A tool has one thread, which keeps up to this many commands in flight. */
#define TOOL_QUEUES 1u
#define TOOL_DEPTH  128u

static bool strip(const char **text, const char *prefix)
{
    size_t len = strlen(prefix);

    if (strncmp(*text, prefix, len) != 0)
        return false;
    *text += len;
    return true;
}

static int take_path(const char *path, const char *usage, struct bd_name *out, struct reason *why)
{
    size_t len = strlen(path);

    if (len == 0)
        return reason_set(why, -EINVAL, "nothing is named, give %s", usage);
    if (len >= sizeof(out->path))
        return reason_set(why, -EINVAL, "longer than a path can be");
    memcpy(out->path, path, len + 1);
    return 0;
}

/* Accepts 1 to 0xfffffffe; 0xffffffff is the broadcast value. */
static int take_nsid(const char *digits, struct bd_name *out)
{
    uint64_t n;

    if (*digits == '0' || !number_parse(digits, 10, BD_NSID_MAX, &n))
        return -EINVAL;
    out->nsid = (uint32_t)n;
    out->nsid_given = true;
    return 0;
}

static int parse_pci(const char *text, struct bd_name *out, struct reason *why)
{
    const char *slash = strchr(text, '/');
    size_t len = slash ? (size_t)(slash - text) : strlen(text);
    char address[32];

    snprintf(address, sizeof(address), "%.*s", (int)(len < 31 ? len : 31), text);
    if (pci_parse(address, out->path) != 0)
        return reason_set(why, -EINVAL,
                          "no PCI address, one looks like vfio:0000:c1:00.0 or vfio:c1:00.0");
    if (slash && take_nsid(slash + 1, out) != 0)
        return reason_set(why, -EINVAL,
                          "no namespace id after the '/', one is a number from 1, as in "
                          "vfio:0000:c1:00.0/1");
    return 0;
}

static int parse_file(const char *text, struct bd_name *out, struct reason *why)
{
    char bdf[NVME_BDF_LEN];

    if (pci_parse(text, bdf) == 0 && access(text, F_OK) != 0)
        return reason_set(why, -EINVAL, "a PCI address; to use the drive there write vfio:%s", bdf);
    return take_path(text, "an image file, a block device, vfio:ADDRESS or vfio-user:SOCKET", out,
                     why);
}

int bd_name_parse(const char *text, struct bd_name *out, struct reason *why)
{
    *out = (struct bd_name){.nsid = 1};
    if (strip(&text, "vfio-user:")) {
        out->kind = BD_KIND_VFIO_USER;
        return take_path(text, "vfio-user:SOCKET", out, why);
    }
    if (strip(&text, "vfio:")) {
        out->kind = BD_KIND_VFIO;
        return parse_pci(text, out, why);
    }
    out->kind = BD_KIND_FILE;
    return parse_file(text, out, why);
}

bool bd_name_is_ctrlr(const struct bd_name *name)
{
    return name->kind == BD_KIND_VFIO || name->kind == BD_KIND_VFIO_USER;
}

int bd_open_transport(const struct bd_name *name, const struct bd_open_opts *opts,
                      struct nvme_transport **out, struct reason *why)
{
    uint8_t host_id[16];
    int err = -EINVAL;

    *why = (struct reason){0};
    bd_host_id(name, host_id);
    if (name->kind == BD_KIND_VFIO)
        err = vfio_open(name->path, opts, out, why);
    else if (name->kind == BD_KIND_VFIO_USER)
        err = vfio_user_open(name->path, opts, out, why);
    else
        return reason_set(why, err, "no controller");
    if (err && !why->text[0])
        reason_set(why, err, "%s", strerror(-err));
    if (!err)
        memcpy((*out)->host_id, host_id, sizeof(host_id));
    return err;
}

static int device_open_file(const struct bd_name *name, uint32_t flags, uint32_t lba_size,
                            const struct bd_open_opts *opts, struct bd_opened *out,
                            struct reason *why)
{
    uint8_t host_id[16];

    bd_host_id(name, host_id);
    int err = bd_file_open(name->path, flags, lba_size, &out->dev);

    switch (err) {
    case 0:
        err = bd_call_opened(opts, why);
        if (!err && !(flags & BD_OPEN_READ_ONLY))
            err = bd_reserve_disk(out->dev, host_id, BD_RESERVE_AUTO, why);
        if (err > 0)
            err = 0;
        if (err)
            bd_opened_close(out);
        return err;
    case -EBUSY:
        return reason_set(why, err,
                          "in use (mounted, or held by another program), unmount it first");
    case -ENOTBLK:
        return reason_set(why, err, "neither a regular file nor a block device");
    default:
        return reason_set(why, err, "%s", strerror(-err));
    }
}

static const char *unusable(struct nvme_ctrlr *c, uint32_t nsid)
{
    struct nvme_ns_info ns;
    const char *reason = nvme_ns_info(c, nsid, &ns) ? NULL : nvme_ns_unusable(&ns);

    return reason ? reason : "it cannot be used";
}

/*
 * A mount without the executor needs one region for the admin queue and three
 * for queues, commands and data.
 */
#define REGIONS_LEAST 4u

static bool has_few_regions(struct nvme_ctrlr *c)
{
    unsigned limit = nvme_ctrlr_transport(c)->max_regions;

    return limit && limit < REGIONS_LEAST;
}

static const char *limit_of_regions(const struct nvme_transport *t)
{
    return !strcmp(t->ops->name, "vfio") ? "dma_entry_limit of vfio_iommu_type1"
                                         : "the limit of the drive's server";
}

bool bd_lacks_regions(struct nvme_ctrlr *c, struct reason *why)
{
    struct nvme_dma_budget regions;

    nvme_dma_regions(c, &regions);
    if (!regions.refused && !has_few_regions(c))
        return false;
    reason_set(why, -ENOSPC, "%u DMA regions do not suffice: raise %s",
               regions.refused ? regions.refused_at : regions.limit,
               limit_of_regions(nvme_ctrlr_transport(c)));
    return true;
}

/* Returns true and stores a sentence in `why` if a limit explains the error. */
static bool lacks_memory(const struct nvme_transport *t, int err, struct reason *why)
{
    if (err != -ENOMEM)
        return false;
    if (t->physical)
        return vfio_no_large_page(why) != 0;
    return !strcmp(t->ops->name, "vfio") && vfio_memlock_low(why);
}

static const char *start_remedy(const struct nvme_transport *t, int err)
{
    if (err != -ETIMEDOUT && err != -EIO)
        return "";
    return !strcmp(t->ops->name, "vfio-user")
               ? "; start its server again, or give it more time (deadline)"
               : "; reset or power-cycle the drive";
}

int bd_refuse_ctrlr(const struct nvme_transport *t, int err, struct reason *why)
{
    if (lacks_memory(t, err, why))
        return err;
    if (err == -ENOSPC)
        return reason_set(why, err,
                          "the controller does not start for want of DMA regions: raise %s",
                          limit_of_regions(t));
    return reason_set(why, err, "the controller does not start: %s%s",
                      why->text[0] ? why->text : strerror(-err), start_remedy(t, err));
}

int bd_open_namespace(struct nvme_ctrlr *c, uint32_t nsid, unsigned queues, unsigned depth,
                      struct bd_dev **out, struct reason *why)
{
    int err = has_few_regions(c) ? -ENOSPC : bd_nvme_open(c, nsid, queues, depth, out);

    if ((err == -ENOSPC || err == -ENOMEM) && bd_lacks_regions(c, why))
        return -ENOSPC;
    if (lacks_memory(nvme_ctrlr_transport(c), err, why))
        return err;
    switch (err) {
    case 0:
        return 0;
    case -ENODEV:
        return reason_set(why, err,
                          "namespace %u: the controller has no such namespace, or it is not "
                          "attached",
                          nsid);
    case -ENOTSUP:
        return reason_set(
            why, err, "namespace %u: %s; %s", nsid, unusable(c, nsid),
            "format it with nvme-format(1) where that changes it, or name another one");
    case -ENOSPC:
        return reason_set(why, err, "namespace %u: the controller has no queue left", nsid);
    case -EPROTO:
        return reason_set(why, err, "namespace %u: its Identify data cannot be right, %s", nsid,
                          "gpunvme check shows why");
    default:
        return reason_set(why, err, "namespace %u: %s", nsid, strerror(-err));
    }
}

static void device_close_ctrlr(struct bd_opened *o)
{
    if (o->reserved_nsid)
        nvme_unreserve(o->ctrlr, o->reserved_nsid);
    nvme_ctrlr_close(o->ctrlr);
    *o = (struct bd_opened){0};
}

/* Multi-mount protection guards a namespace whose reservation fails. */
static int device_open_namespace(const struct bd_name *name, bool read_only, struct bd_opened *out,
                                 struct reason *why)
{
    int err = read_only ? 0 : bd_reserve(out->ctrlr, name->nsid, BD_RESERVE_AUTO, why);

    if (err < 0)
        return err;
    out->reserved_nsid = err ? name->nsid : 0;
    return bd_open_namespace(out->ctrlr, name->nsid, TOOL_QUEUES, TOOL_DEPTH, &out->dev, why);
}

static int open_ctrlr(const struct bd_name *name, bool read_only, const struct bd_open_opts *opts,
                      struct bd_opened *out, struct reason *why)
{
    struct nvme_opts nvme = {.io_queues = TOOL_QUEUES, .why = why};
    struct nvme_transport *t;
    int err = bd_open_transport(name, opts, &t, why);

    if (err)
        return err;
    if (opts->deadline_ms)
        nvme.admin_timeout_ms = nvme.io_timeout_ms = opts->deadline_ms;
    err = nvme_ctrlr_open(t, &nvme, &out->ctrlr);
    if (err) {
        bd_refuse_ctrlr(t, err, why);
        t->ops->close(t);
        return err;
    }
    err = device_open_namespace(name, read_only, out, why);
    if (err)
        device_close_ctrlr(out);
    return err;
}

int bd_open(const struct bd_name *name, uint32_t flags, uint32_t lba_size,
            const struct bd_open_opts *opts, struct bd_opened *out, struct reason *why)
{
    bool read_only = flags & BD_OPEN_READ_ONLY;
    int err;

    *out = (struct bd_opened){0};
    if (!bd_name_is_ctrlr(name))
        return device_open_file(name, flags, lba_size, opts, out, why);
    err = open_ctrlr(name, read_only, opts, out, why);
    if (!err && read_only)
        out->dev->info.read_only = true;
    return err;
}

void bd_opened_close(struct bd_opened *o)
{
    if (o->dev)
        bd_close(o->dev);
    if (o->ctrlr)
        device_close_ctrlr(o);
    *o = (struct bd_opened){0};
}

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
 * Converts err, the result of an attempt, to the result of bd_reserve(), and
 * stores a sentence that begins with `about`. `holder` names the host that has
 * the reservation. `missing` names what does not support reservations.
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
