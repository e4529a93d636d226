/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks the conditions of the machine for driving any drive from user space.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "blockdev/pci/pci_sysfs.h"
#include "client/cli/check/cli_check.h"

#define MEMLOCK_ENOUGH (1ull << 30) /* queues, bounce memory, some buffers */

static int count_entries(const char *path, const char *root)
{
    struct sysfs_names names;

    if (pci_sysfs_names(&names, "%s%s", root, path) != 0)
        return 0;
    int n = names.n;
    pci_sysfs_names_free(&names);
    return n;
}

static void check_iommu(struct check *c, const char *root)
{
    int groups = count_entries("/sys/kernel/iommu_groups", root);
    int units = count_entries("/sys/class/iommu", root);

    if (groups && units)
        check_add(c, CHECK_OK, "iommu", NULL, "on: %d units, %d groups", units, groups);
    else
        check_add(c, CHECK_WARN, "iommu",
                  "switch VT-d or AMD-Vi on in the BIOS; on Intel boot with intel_iommu=on "
                  "(docs/hardware.md). Image files and vfio-user need none",
                  "off or absent: no drive can be handed to VFIO safely");
}

static void check_vfio(struct check *c, const char *root)
{
    bool group = pci_sysfs_exists("%s/dev/vfio/vfio", root);
    bool iommufd = pci_sysfs_exists("%s/dev/iommu", root);

    if (pci_sysfs_exists("%s/sys/bus/pci/drivers/vfio-pci", root))
        check_add(c, CHECK_OK, "vfio", NULL, "vfio-pci is loaded, interface: %s%s%s",
                  group ? "group" : "", group && iommufd ? " and " : "",
                  iommufd ? "iommufd"
                  : group ? ""
                          : "none in /dev");
    else
        check_add(
            c, CHECK_WARN, "vfio",
            "modprobe vfio-pci; at every boot: echo vfio-pci >/etc/modules-load.d/vfio-pci.conf",
            "vfio-pci is not loaded");
}

/* Root may lock memory beyond the limit. */
static void check_memlock(struct check *c)
{
    struct rlimit limit;

    if (geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) != 0 ||
        limit.rlim_cur == RLIM_INFINITY) {
        check_add(c, CHECK_OK, "memlock", NULL, "no limit for this user");
        return;
    }
    check_that(c, limit.rlim_cur >= MEMLOCK_ENOUGH, CHECK_WARN, "memlock",
               "raise it in /etc/security/limits.d, or LimitMEMLOCK= in a systemd unit: "
               "VFIO counts all memory that the drive can reach",
               "this user may lock %" PRIu64 " KiB", (uint64_t)limit.rlim_cur >> 10);
}

static void check_hugepages(struct check *c, const char *root)
{
    int64_t reserved = 0;

    pci_sysfs_number(&reserved, 10, "%s/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
                     root);
    check_add(c, CHECK_OK, "hugepages", NULL, "%" PRId64 " of 2 MiB reserved; none are needed",
              reserved);
}

/* Finds a program, also where packages put it: PATH may be short. */
static bool find_program(const char *name, char *path, size_t len)
{
    const char *search = getenv("PATH");
    char *dirs = NULL;
    bool found = false;

    if (asprintf(&dirs, "%s:/usr/bin:/bin:/usr/local/bin", search ? search : "") < 0)
        return false;
    for (char *rest = dirs, *dir; !found && (dir = strsep(&rest, ":"));) {
        snprintf(path, len, "%s/%s", dir, name);
        found = *dir && access(path, X_OK) == 0;
    }
    free(dirs);
    return found;
}

static void check_fusermount(struct check *c)
{
    char path[PATH_MAX];
    struct stat st;

    if (!find_program("fusermount3", path, sizeof(path)) || stat(path, &st) != 0)
        check_add(c, geteuid() == 0 ? CHECK_WARN : CHECK_FAIL, "fusermount3",
                  "install the package fuse3", "not found; without it only root can mount");
    else if (!(st.st_mode & S_ISUID) && geteuid() != 0)
        check_add(c, CHECK_FAIL, "fusermount3", "reinstall the package fuse3",
                  "%s is not setuid root, so only root can mount", path);
    else
        check_add(c, CHECK_OK, "fusermount3", NULL, "%s", path);
}

static void check_fuse(struct check *c, const char *root)
{
    char path[PATH_MAX];

    snprintf(path, sizeof(path), "%s/dev/fuse", root);
    if (access(path, R_OK | W_OK) == 0)
        check_add(c, CHECK_OK, "fuse", NULL, "/dev/fuse can be opened");
    else
        check_add(c, CHECK_FAIL, "fuse",
                  errno == ENOENT ? "modprobe fuse; a container needs --device /dev/fuse"
                                  : "give this user access to it",
                  "/dev/fuse: %s", strerror(errno));
    check_fusermount(c);
}

/* The mode in force is the word in brackets: "[none] integrity". */
static void check_lockdown(struct check *c, const char *root)
{
    char line[96];

    if (pci_sysfs_text(line, sizeof(line), "%s/sys/kernel/security/lockdown", root) != 0)
        return;
    check_that(c, strstr(line, "[none]") != NULL, CHECK_WARN, "lockdown",
               "VFIO works; gpunvme regs cannot read a drive of the kernel's driver, and "
               "unsigned kernel modules are refused (Secure Boot)",
               "kernel lockdown: %s", line);
}

void check_machine(struct check *c, const char *root)
{
    check_iommu(c, root);
    check_vfio(c, root);
    check_lockdown(c, root);
    check_memlock(c);
    check_hugepages(c, root);
    check_fuse(c, root);
}
