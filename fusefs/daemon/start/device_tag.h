/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * LABEL=... and UUID=... in place of a device string: the device whose file system has that label
 * or UUID.
 */
#ifndef FUSEFS_DAEMON_START_DEVICE_TAG_H
#define FUSEFS_DAEMON_START_DEVICE_TAG_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Where images are sought: folders, separated by colons. */
#define TAG_IMAGES_ENV "GPUNVMEFS_IMAGES"
#define TAG_IMAGES     "/var/lib/gpunvmefs"

bool tag_is(const char *text);
/*
 * Reads the superblocks of the kernel's block devices that no other device is made of, of all
 * namespaces of drives that are bound to vfio-pci and not in use, and of the files in the folders
 * of images. *device: the device string, which the caller frees. -EINVAL: no UUID; -ENODEV: none
 * has it; -EEXIST: two have it; -ENOMEM. why: a sentence.
 */
int tag_find(const char *text, char **device, char *why, size_t len);

#ifdef __cplusplus
}
#endif

#endif
