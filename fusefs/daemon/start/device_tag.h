/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * LABEL=... and UUID=... in place of a device string name the device whose file
 * system has that label or UUID.
 */
#ifndef FUSEFS_DAEMON_START_DEVICE_TAG_H
#define FUSEFS_DAEMON_START_DEVICE_TAG_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Folders in which images are searched, separated by colons. */
#define TAG_IMAGES_ENV "GPUNVMEFS_IMAGES"
#define TAG_IMAGES     "/var/lib/gpunvmefs"

bool tag_is(const char *text);
/*
 * Reads the labels of the kernel's block devices that no other device is
 * built on, of all namespaces of unused drives that are bound to vfio-pci, and
 * of the files in the folders of images. Stores the device string in *device,
 * which the caller frees. A process of its own, in a sandbox, reads them; the
 * caller has one thread. Returns -EINVAL (invalid UUID), -ENODEV (no device
 * has it, or the device that had it belongs to another file system now),
 * -EEXIST (two have it), -ENOMEM or -EIO (that process has died), with a sentence in why.
 */
int tag_find(const char *text, char **device, char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
