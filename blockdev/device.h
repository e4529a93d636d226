/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Device strings name a device on the command lines of all programs:
 *
 *   IMAGE                    a file, which a mount opens behind a controller of its own
 *   /dev/nvme0n1             a block device of the kernel
 *   vfio:0000:c1:00.0[/NSID] a PCI drive (vfio/vfio.h)
 *   vfio-user:SOCKET         a controller of another process (vfio_user/vfio_user.h)
 */
#ifndef BLOCKDEV_DEVICE_H
#define BLOCKDEV_DEVICE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/cdefs.h>

#include "blockdev/bdev.h"
#include "blockdev/nvme/nvme.h"
#include "support/reason.h"

__BEGIN_DECLS

enum bd_kind { BD_KIND_FILE, BD_KIND_VFIO, BD_KIND_VFIO_USER };

#define BD_NSID_MAX 0xfffffffeu

struct bd_name {
    enum bd_kind kind;   /* BD_KIND_FILE has no prefix: a file or a block device */
    char path[PATH_MAX]; /* the file, the socket, or the PCI address in its long form */
    uint32_t nsid;       /* 1 unless the string gives it */
    bool nsid_given;
};

/*
 * Parses a device string. Returns 0, or -EINVAL with a sentence in `why` that
 * names the error and the valid forms.
 */
int bd_name_parse(const char *text, struct bd_name *out, struct reason *why);
/* Returns true if the name means a controller, which bd_open_transport() opens. */
bool bd_name_is_ctrlr(const struct bd_name *name);

/*
 * Opens the transport of a controller (BD_KIND_VFIO or BD_KIND_VFIO_USER).
 * Returns 0, or -errno with a sentence in `why`.
 */
int bd_open_transport(const struct bd_name *name, const struct bd_open_opts *opts,
                      struct nvme_transport **out, struct reason *why);

/*
 * After a failed start: returns true with a sentence in `why` if the transport
 * has too few DMA regions for a mount, or has refused one.
 */
bool bd_lacks_regions(struct nvme_ctrlr *c, struct reason *why);

/*
 * Called after nvme_ctrlr_open() has failed with err. Completes the sentence in
 * `why`, in which nvme_ctrlr_open() may have stored a reason. Returns err.
 */
int bd_refuse_ctrlr(const struct nvme_transport *t, int err, struct reason *why);

/* Like bd_nvme_open(), with a sentence in `why` on an error. */
int bd_open_namespace(struct nvme_ctrlr *c, uint32_t nsid, unsigned queues, unsigned depth,
                      struct bd_dev **out, struct reason *why);

/*
 * Holds a device opened for a tool, with the controller below it. ctrlr is NULL
 * for files and block devices.
 */
struct bd_opened {
    struct bd_dev *dev;
    struct nvme_ctrlr *ctrlr;
    uint32_t reserved_nsid; /* the namespace if it is reserved for this host, or 0 */
};
/*
 * Opens the named device with queues for one thread. Files and block devices
 * are opened by bd_file_open() with flags and lba_size. A namespace that others
 * may reach is reserved for this host (bd_reserve.h) unless it is opened
 * read-only. Returns 0, or -errno with a sentence in `why`.
 */
int bd_open(const struct bd_name *name, uint32_t flags, uint32_t lba_size,
            const struct bd_open_opts *opts, struct bd_opened *out, struct reason *why);
/* Closes the device and its controller. */
void bd_opened_close(struct bd_opened *o);

__END_DECLS

#endif
