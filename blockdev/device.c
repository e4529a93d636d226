/* SPDX-License-Identifier: BSD-2-Clause */
/* Parses device strings and opens the devices. */
#include "blockdev/device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
 * One region for the admin queue, and three for queues, commands and data of a
 * mount without the executor.
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

/* True, with a sentence in `why`, if a limit explains the error. */
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
