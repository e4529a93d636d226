/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * LABEL=... and UUID=... in place of a device string name the device whose file
 * system has that label or UUID.
 */
#ifndef FUSEFS_DAEMON_START_DEVICE_TAG_H
#define FUSEFS_DAEMON_START_DEVICE_TAG_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/cdefs.h>

#include "support/reason.h"

__BEGIN_DECLS

/* Folders in which images are searched, separated by colons. */
#define TAG_IMAGES_ENV "GPUNVMEFS_IMAGES"
#define TAG_IMAGES     "/var/lib/gpunvmefs"

/* Time that a healthy device may take, its controller's start included. */
#define TAG_SILENT_MS 60000u

bool tag_is(const char *text);
/*
 * Finds the device with a label or UUID. A process of its own, in a sandbox,
 * reads the labels of the kernel's block devices that no other device is built
 * on, of all namespaces of unused drives that are bound to vfio-pci, and of the
 * files in the folders of images. The caller has one thread. Stores the device
 * string in *device, which the caller frees. On failure stores a sentence in
 * why, and returns -EINVAL (invalid UUID), -ENODEV (no device has it, or the
 * device that had it now belongs to another file system), -EEXIST (two devices
 * have it), -ENOMEM, -EIO (that process has died), or -ETIMEDOUT (a device has
 * not answered for TAG_SILENT_MS to twice that time).
 */
int tag_find(const char *text, char **device, struct reason *why);

__END_DECLS

#endif
