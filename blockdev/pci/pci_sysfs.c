/* SPDX-License-Identifier: BSD-2-Clause */
/* Reads and writes the kernel's text files. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "blockdev/pci/pci_sysfs.h"

#define NUMBER_TEXT 32 /* longest text of a number */

static int format_path(char path[PATH_MAX], const char *format, va_list args)
{
    int n = vsnprintf(path, PATH_MAX, format, args);

    return n < 0 || n >= PATH_MAX ? -ENAMETOOLONG : 0;
}

/*
 * Formats the caller's variable arguments after `format` as a path; rc is the
 * error.
 */
#define FORMAT_PATH(path, rc, format)            \
    do {                                         \
        va_list args_;                           \
        va_start(args_, format);                 \
        (rc) = format_path(path, format, args_); \
        va_end(args_);                           \
    } while (0)

void pci_sysfs_printable(char *text)
{
    for (; *text; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

static int sysfs_read_line(char *out, size_t len, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n;

    if (fd < 0)
        return -errno;
    n = read(fd, out, len - 1);
    if (n < 0)
        n = -errno;
    close(fd);
    if (n < 0)
        return (int)n;
    out[n] = 0;
    out[strcspn(out, "\n")] = 0;
    pci_sysfs_printable(out);
    return 0;
}

int pci_sysfs_text(char *out, size_t len, const char *path, ...)
{
    char full[PATH_MAX];
    int rc;

    FORMAT_PATH(full, rc, path);
    if (!rc)
        rc = sysfs_read_line(out, len, full);
    if (rc)
        out[0] = 0;
    return rc;
}

int pci_sysfs_number(int64_t *out, int base, const char *path, ...)
{
    char full[PATH_MAX], text[NUMBER_TEXT], *end;
    int rc;

    FORMAT_PATH(full, rc, path);
    if (!rc)
        rc = sysfs_read_line(text, sizeof(text), full);
    if (rc)
        return rc;
    errno = 0;
    *out = strtoll(text, &end, base);
    return errno || end == text || *end ? -EINVAL : 0;
}

int pci_sysfs_link(char *out, size_t len, const char *path, ...)
{
    char full[PATH_MAX], target[PATH_MAX];
    const char *base;
    ssize_t n;
    int rc;

    out[0] = 0;
    FORMAT_PATH(full, rc, path);
    if (rc)
        return rc;
    n = readlink(full, target, sizeof(target) - 1);
    if (n < 0)
        return -errno;
    target[n] = 0;
    base = strrchr(target, '/');
    base = base ? base + 1 : target;
    if (strlen(base) >= len)
        return -EINVAL;
    snprintf(out, len, "%s", base);
    pci_sysfs_printable(out);
    return 0;
}

int pci_sysfs_write(const char *text, const char *path, ...)
{
    char full[PATH_MAX];
    int rc, fd;

    FORMAT_PATH(full, rc, path);
    if (rc)
        return rc;
    fd = open(full, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (write(fd, text, strlen(text)) < 0)
        rc = -errno;
    close(fd);
    return rc;
}

bool pci_sysfs_exists(const char *path, ...)
{
    char full[PATH_MAX];
    int rc;

    FORMAT_PATH(full, rc, path);
    return !rc && access(full, F_OK) == 0;
}

static int is_name(const struct dirent *e)
{
    return e->d_name[0] != '.' && strlen(e->d_name) < SYSFS_NAME;
}

int pci_sysfs_names(struct sysfs_names *out, const char *path, ...)
{
    char full[PATH_MAX];
    int rc;

    *out = (struct sysfs_names){NULL, 0};
    FORMAT_PATH(full, rc, path);
    if (rc)
        return rc;
    out->n = scandir(full, &out->entries, is_name, alphasort);
    if (out->n >= 0)
        return 0;
    *out = (struct sysfs_names){NULL, 0};
    return -errno;
}

void pci_sysfs_names_free(struct sysfs_names *names)
{
    for (int i = 0; i < names->n; i++)
        free(names->entries[i]);
    free(names->entries);
    *names = (struct sysfs_names){NULL, 0};
}
