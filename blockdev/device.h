/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Device strings, which name a device on the command lines of all programs, and opening the device.
 *
 *   IMAGE, sim:IMAGE            a file with a simulated controller before it
 *   /dev/nvme0n1                a block device of the kernel
 *   vfio:0000:c1:00.0[/NSID]    a PCI drive (vfio/vfio.h)
 *   vfio-user:SOCKET            a controller of another process (vfio_user/vfio_user.h)
 */
#ifndef BLOCKDEV_DEVICE_H
#define BLOCKDEV_DEVICE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"

#ifdef __cplusplus
extern "C" {
#endif

enum bd_kind { BD_KIND_FILE, BD_KIND_SIM, BD_KIND_VFIO, BD_KIND_VFIO_USER };

#define BD_NSID_MAX 0xfffffffeu

struct bd_name {
    enum bd_kind kind;   /* BD_KIND_FILE: no prefix; a file or a block device */
    char path[PATH_MAX]; /* the file, the socket, or the PCI address in its long form */
    uint32_t nsid;       /* as the string says, else 1 */
    bool nsid_given;
};

/* -EINVAL with a sentence in why: the error in the string, and the forms that exist. */
int bd_name_parse(const char *text, struct bd_name *out, char *why, size_t len);
/* Does the name mean a controller, which bd_open_transport() takes? */
bool bd_name_is_ctrlr(const struct bd_name *name);

struct bd_open_opts {
    bool noiommu;         /* vfio.h */
    unsigned deadline_ms; /* of admin and I/O commands; 0: nvme.h's */
    unsigned silence_ms;  /* vfio_user.h */
};

/* The transport of a controller: BD_KIND_VFIO and BD_KIND_VFIO_USER. opts may be NULL. */
int bd_open_transport(const struct bd_name *name, const struct bd_open_opts *opts,
                      struct nvme_transport **out, char *why, size_t len);

/*
 * Why a start has failed: the transport keeps too few DMA regions for a mount, or has refused one.
 * True with a sentence in why.
 */
bool bd_lacks_regions(struct nvme_ctrlr *c, char *why, size_t len);

/*
 * After nvme_ctrlr_open() failed with err and the text `said` (may be ""): puts a sentence in why.
 * Returns err.
 */
int bd_refuse_ctrlr(const struct nvme_transport *t, int err, const char *said, char *why,
                    size_t len);

/* bd_nvme_open() with a sentence in why when it fails. */
int bd_open_namespace(struct nvme_ctrlr *c, uint32_t nsid, unsigned queues, unsigned depth,
                      struct bd_dev **out, char *why, size_t len);

/*
 * For tools: what the name means as one block device, with all that is under it. Files and block
 * devices with the flags of bd_file_open() and lba_size; BD_KIND_SIM as its file. ctrlr is NULL for
 * those. One thread's worth of queues.
 */
struct bd_opened {
    struct bd_dev *dev;
    struct nvme_ctrlr *ctrlr;
};
int bd_open(const struct bd_name *name, uint32_t flags, uint32_t lba_size,
            const struct bd_open_opts *opts, struct bd_opened *out, char *why, size_t len);
void bd_opened_close(struct bd_opened *o);

#ifdef __cplusplus
}
#endif

#endif
