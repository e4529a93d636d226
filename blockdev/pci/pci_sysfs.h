/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reading the kernel's text files (sysfs, proc). Their content comes from devices and from other
 * users: every text is bounded and made printable, every number checked.
 */
#ifndef BLOCKDEV_PCI_PCI_SYSFS_H
#define BLOCKDEV_PCI_PCI_SYSFS_H

#include <dirent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SYSFS_NAME \
    64 /* longest name of a device, its 0 included; longer ones do not fit anywhere */

#define SYSFS_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* Each takes the path as a printf format; the last parameters are its. All return 0 or -errno. */

/* The first line, cut to len - 1 bytes, without its newline; what cannot be printed becomes '?'. */
int pci_sysfs_text(char *out, size_t len, const char *path, ...) SYSFS_PRINTF(3, 4);
/* A number and nothing else: -EINVAL otherwise. base 0: with "0x" or decimal. */
int pci_sysfs_number(int64_t *out, int base, const char *path, ...) SYSFS_PRINTF(3, 4);
/* The last component of a symbolic link's target: -EINVAL when it does not fit. */
int pci_sysfs_link(char *out, size_t len, const char *path, ...) SYSFS_PRINTF(3, 4);
/* Writes text by one write(2), as attributes of sysfs want it. */
int pci_sysfs_write(const char *text, const char *path, ...) SYSFS_PRINTF(2, 3);
bool pci_sysfs_exists(const char *path, ...) SYSFS_PRINTF(1, 2);

/* The names in a folder, sorted, without those that start with '.' or are too long. */
struct sysfs_names {
    struct dirent **entries;
    int n;
};
int pci_sysfs_names(struct sysfs_names *out, const char *path, ...) SYSFS_PRINTF(2, 3);
void pci_sysfs_names_free(struct sysfs_names *names);

/* What cannot be printed becomes '?'. */
void pci_sysfs_printable(char *text);
/* Writes the sentence for the caller; returns rc. why may be NULL. */
int nvme_why(char *why, size_t len, int rc, const char *sentence, ...) SYSFS_PRINTF(4, 5);

#endif
