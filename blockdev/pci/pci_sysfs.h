/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Reads and writes the kernel's text files (sysfs, proc). Their content comes
 * from devices and other users: every text is bounded and made printable, and
 * every number is checked.
 */
#ifndef BLOCKDEV_PCI_PCI_SYSFS_H
#define BLOCKDEV_PCI_PCI_SYSFS_H

#include <dirent.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SYSFS_NAME 64 /* longest name of a device, its terminating 0 included */

#define SYSFS_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/*
 * Each function takes the path as a printf format; its arguments come last. All
 * return 0 or -errno.
 */

/*
 * Reads the first line without its newline, cut to len - 1 bytes. Unprintable
 * characters become '?'. On an error out is "".
 */
int pci_sysfs_text(char *out, size_t len, const char *path, ...) SYSFS_PRINTF(3, 4);
/*
 * Reads a number. Returns -EINVAL if the line holds anything else. base 0
 * accepts decimal and "0x".
 */
int pci_sysfs_number(int64_t *out, int base, const char *path, ...) SYSFS_PRINTF(3, 4);
/*
 * Reads the last component of a symbolic link's target. Returns -EINVAL if it
 * does not fit.
 */
int pci_sysfs_link(char *out, size_t len, const char *path, ...) SYSFS_PRINTF(3, 4);
/* Writes text with a single write(2), as sysfs attributes require. */
int pci_sysfs_write(const char *text, const char *path, ...) SYSFS_PRINTF(2, 3);
/* Returns true if the path exists. */
bool pci_sysfs_exists(const char *path, ...) SYSFS_PRINTF(1, 2);

/*
 * The names in a folder, sorted, without those that start with '.' or are too
 * long. pci_sysfs_names_free() frees them.
 */
struct sysfs_names {
    struct dirent **entries;
    int n;
};
int pci_sysfs_names(struct sysfs_names *out, const char *path, ...) SYSFS_PRINTF(2, 3);
void pci_sysfs_names_free(struct sysfs_names *names);

/* Replaces each unprintable character by '?'. */
void pci_sysfs_printable(char *text);

#endif
