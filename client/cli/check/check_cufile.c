/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * Checks the conditions of NVIDIA's cuFile on this machine, which refuses files
 * with 5027 (or 5008, 5030) and no reason. The libcufile.so of gpunvme-run
 * needs none of them.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "blockdev/pci/pci_sysfs.h"
#include "client/cli/check/cli_check.h"
#include "client/cli/common/mounts.h"
#include "support/mount_find.h"
#include <json-c/json.h>

#define OURS "gpunvme-run PROGRAM needs none"

static void check_module(struct check *c, const char *root)
{
    if (!pci_sysfs_exists("%s/proc/driver/nvidia-fs", root)) {
        check_add(c, CHECK_WARN, "nvidia-fs",
                  "modprobe nvidia-fs, where it is built for this "
                  "kernel; " OURS,
                  "not loaded: cuFile refuses every file with 5027, or copies "
                  "through host memory (compat mode) without a word");
        return;
    }
    check_add(c, CHECK_OK, "nvidia-fs", NULL, "loaded");
    if (pci_sysfs_exists("%s/dev/nvidia-fs0", root))
        check_add(c, CHECK_OK, "nvidia-fs-dev", NULL, "/dev/nvidia-fs0 is there");
    else
        check_add(c, CHECK_WARN, "nvidia-fs-dev",
                  "give the container the host's /dev/nvidia-fs* (docker run --device)",
                  "/dev/nvidia-fs0 is missing, as in containers: cuFileDriverOpen() fails");
}

/* Returns "true", "false" or the default. */
static const char *compat_mode(struct json_object *config)
{
    struct json_object *properties, *value;

    if (json_object_object_get_ex(config, "properties", &properties) &&
        json_object_object_get_ex(properties, "allow_compat_mode", &value))
        return json_object_get_boolean(value) ? "true" : "false";
    return "true (by default)";
}

static void check_cufile_check_config(struct check *c, const char *root)
{
    char path[PATH_MAX];
    const char *given = getenv("CUFILE_ENV_PATH_JSON");

    snprintf(path, sizeof(path), "%s%s", given ? "" : root, given ? given : "/etc/cufile.json");
    if (!pci_sysfs_exists("%s", path)) {
        check_add(c, CHECK_WARN, "cufile.json",
                  "KvikIO makes its asynchronous calls by POSIX "
                  "without one: install NVIDIA's, or use gpunvme-run, which brings its own",
                  "%s: not there", given ? given : "/etc/cufile.json");
        return;
    }
    struct json_object *config = json_object_from_file(path);
    if (config)
        check_add(c, CHECK_OK, "cufile.json", NULL, "%s, allow_compat_mode is %s",
                  given ? given : "/etc/cufile.json", compat_mode(config));
    else
        check_add(c, CHECK_WARN, "cufile.json", "correct it, or unset CUFILE_ENV_PATH_JSON",
                  "%s: not JSON", given ? given : "/etc/cufile.json");
    json_object_put(config);
}

static void check_udev(struct check *c, const char *root)
{
    if (pci_sysfs_exists("%s/run/udev", root))
        check_add(c, CHECK_OK, "udev", NULL, "/run/udev is there");
    else
        check_add(c, CHECK_WARN, "udev",
                  "docker run -v /run/udev:/run/udev:ro; gpunvme-run needs it "
                  "for KvikIO alone",
                  "/run/udev is missing, as in containers: cuFile does not find drives, and KvikIO "
                  "goes by POSIX");
}

/* --- The file system ------------------------------------------------------------------------- */

static void judge_mount(struct check *c, const char *path, const struct mntent *m)
{
    if (cli_mount_is_ours(m->mnt_type))
        check_add(c, CHECK_OK, "file-system", NULL,
                  "%s: of gpunvmefs; gpunvme-run takes its GPU path, NVIDIA's library refuses it",
                  path);
    else if (strcmp(m->mnt_type, "xfs") == 0 ||
             (strcmp(m->mnt_type, "ext4") == 0 && hasmntopt(m, "data")))
        check_add(c, CHECK_OK, "file-system", NULL, "%s: %s, %s", path, m->mnt_type, m->mnt_opts);
    else if (strcmp(m->mnt_type, "ext4") == 0)
        check_add(c, CHECK_WARN, "file-system", "mount it with -o data=ordered",
                  "%s: ext4 without data=ordered among its options, which cuFile asks for", path);
    else
        check_add(c, CHECK_WARN, "file-system",
                  "use ext4 or xfs on NVMe for NVIDIA's library; "
                  "gpunvme-run takes files of any file system through pinned memory",
                  "%s: %s, for which cuFile has no driver: it refuses files with 5027 or 5030",
                  path, m->mnt_type);
}

static void check_file_system(struct check *c, const char *root, const char *path)
{
    char full[PATH_MAX], table[PATH_MAX];
    struct mount_found m;

    snprintf(table, sizeof(table), "%s/proc/self/mountinfo", root);
    if (!realpath(path, full))
        check_add(c, CHECK_FAIL, "file-system", "name a file or a folder that is there", "%s: %s",
                  path, strerror(errno));
    else if (mount_find(table, full, &m))
        judge_mount(c, path, &m.entry);
    else
        check_add(c, CHECK_WARN, "file-system", "mount /proc", "%s: its mount cannot be found",
                  path);
}

/* --- The library ----------------------------------------------------------------------------- */

static void check_library(struct check *c)
{
    struct link_map *map = NULL;
    void *library = dlopen("libcufile.so.0", RTLD_LAZY | RTLD_LOCAL);

    if (library && dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map)
        check_add(c, CHECK_OK, "libcufile", NULL, "%s%s", map->l_name,
                  strstr(map->l_name, "/gpunvme/") ? ", of gpunvmefs" : "");
    else
        check_add(c, CHECK_WARN, "libcufile",
                  "programs bring it as the wheel nvidia-cufile; "
                  "gpunvme-run preloads that of gpunvmefs",
                  "the loader finds no libcufile.so.0");
    if (library)
        dlclose(library);
}

void check_cufile(struct check *c, const char *root, const char *path)
{
    check_module(c, root);
    check_cufile_check_config(c, root);
    check_udev(c, root);
    check_library(c);
    if (path)
        check_file_system(c, root, path);
}
