/* SPDX-License-Identifier: BSD-2-Clause */
/* Finds the device with a label or UUID. */
#include "fusefs/daemon/start/device_tag.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uuid/uuid.h>

#include "blockdev/device.h"
#include "blockdev/pci/pci.h"
#include "fusefs/core/ffs.h"
#include "layout/layout.h"
#include "support/child.h"
#include "support/confine.h"

#define BLOCK_FOLDER "/sys/class/block"
#define NSIDS_MAX    128u /* namespaces checked per drive */
#define PROBE_MS     3000u

/*
 * Holds the state of the search and its result, in memory that both processes
 * share.
 */
struct answer {
    unsigned steps;    /* atomic; devices that were begun */
    char at[PATH_MAX]; /* the last one of them */
    int err;
    struct reason why;     /* with an error */
    char device[PATH_MAX]; /* without one */
};

struct wanted {
    struct answer *answer;
    const char *label; /* NULL if the UUID is wanted */
    uuid_t uuid;
    char *found; /* device string, or NULL if none was found yet */
    char *second;
    struct reason foreign; /* a device that had it, and what it holds now */
    int err;
};

static const char *value_of(const char *text, const char *key)
{
    size_t len = strlen(key);

    return strncmp(text, key, len) == 0 ? text + len : NULL;
}

bool tag_is(const char *text)
{
    return value_of(text, "LABEL=") || value_of(text, "UUID=");
}

/* Reports the next device, which may not answer. */
static void device_tag_step(struct wanted *w, const char *device)
{
    snprintf(w->answer->at, sizeof(w->answer->at), "%s", device);
    __atomic_fetch_add(&w->answer->steps, 1, __ATOMIC_RELEASE);
}

/* --- One device ------------------------------------------------------------------------------- */

static bool device_tag_matches(const struct wanted *w, const struct lay_label *label)
{
    if (w->label)
        return strncmp(label->label, w->label, sizeof(label->label)) == 0;
    return memcmp(label->uuid, w->uuid, sizeof(label->uuid)) == 0;
}

static bool has_it(struct wanted *w, struct bd_dev *dev, const char *device)
{
    struct lay_label label;
    struct reason why;

    if (ffs_read_label(dev, &label) != 0 || !device_tag_matches(w, &label))
        return false;
    /* Partitioning tools leave the label of a former file system. */
    if (ffs_ours(dev, false, &why) == 0)
        return true;
    reason_set(&w->foreign, 0, "%.100s %s", device, why.text);
    return false;
}

static void device_tag_note(struct wanted *w, const char *device)
{
    char **place = w->found ? &w->second : &w->found;

    if (*place)
        return;
    *place = strdup(device);
    if (!*place)
        w->err = -ENOMEM;
}

/*
 * Checks a file or block device. One that cannot be read does not have the
 * label.
 */
static void look_at_path(struct wanted *w, const char *path)
{
    struct bd_dev *dev;

    device_tag_step(w, path);
    if (bd_file_open(path, BD_OPEN_READ_ONLY, 0, &dev) != 0)
        return;
    if (has_it(w, dev, path))
        device_tag_note(w, path);
    bd_close(dev);
}

static void look_at_namespace(struct wanted *w, struct nvme_ctrlr *c, const char *bdf,
                              uint32_t nsid)
{
    char device[64];
    struct bd_dev *dev;

    snprintf(device, sizeof(device), "vfio:%s/%u", bdf, nsid);
    device_tag_step(w, device);
    if (bd_nvme_open(c, nsid, 1, 2, &dev) != 0)
        return;
    if (has_it(w, dev, device))
        device_tag_note(w, device);
    bd_close(dev);
}

/*
 * Checks the namespaces of a drive. A drive that is mounted, or in use by a
 * virtual machine, cannot be opened.
 */
static void look_at_drive(struct wanted *w, const char *bdf)
{
    struct bd_open_opts opts = {.deadline_ms = PROBE_MS};
    struct nvme_opts ctrlr_opts = {.io_timeout_ms = PROBE_MS, .admin_timeout_ms = PROBE_MS};
    struct bd_name name = {.kind = BD_KIND_VFIO, .nsid = 1};
    uint32_t nsids[NSIDS_MAX];
    struct nvme_transport *t;
    struct nvme_ctrlr *c;
    struct reason why;

    snprintf(name.path, sizeof(name.path), "%s", bdf);
    device_tag_step(w, bdf);
    if (bd_open_transport(&name, &opts, &t, &why) != 0)
        return;
    if (nvme_ctrlr_open(t, &ctrlr_opts, &c) != 0) {
        t->ops->close(t);
        return;
    }
    int n = nvme_ns_list(c, nsids, NSIDS_MAX);
    for (int i = 0; i < n && i < (int)NSIDS_MAX; i++)
        look_at_namespace(w, c, bdf, nsids[i]);
    nvme_ctrlr_close(c);
}

/* --- All devices ------------------------------------------------------------------------------ */

/* Returns true if partitions, md, LVM or multipath use the device. */
static bool has_holders(const char *name)
{
    char path[PATH_MAX];
    bool any = false;

    snprintf(path, sizeof(path), BLOCK_FOLDER "/%s/holders", name);
    DIR *d = opendir(path);
    if (!d)
        return false;
    for (const struct dirent *e; (e = readdir(d)) != NULL;)
        any = any || e->d_name[0] != '.';
    closedir(d);
    return any;
}

static void look_at_block_devices(struct wanted *w)
{
    DIR *d = opendir(BLOCK_FOLDER);

    if (!d)
        return;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[PATH_MAX];
        if (e->d_name[0] == '.' || has_holders(e->d_name))
            continue;
        snprintf(path, sizeof(path), "/dev/%s", e->d_name);
        for (char *c = path + 5; *c; c++)
            *c = *c == '!' ? '/' : *c; /* sysfs writes / in names as ! */
        look_at_path(w, path);
    }
    closedir(d);
}

static void look_at_drives(struct wanted *w)
{
    struct pci_device *all;
    size_t n;

    if (pci_list("", pci_is_nvme, &all, &n) != 0)
        return;
    for (size_t i = 0; i < n; i++) {
        if (strcmp(all[i].driver, "vfio-pci") == 0 && all[i].iommu_group >= 0)
            look_at_drive(w, all[i].bdf);
    }
    free(all);
}

static void look_at_folder(struct wanted *w, const char *folder)
{
    DIR *d = opendir(folder);

    if (!d)
        return;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        char path[PATH_MAX];
        struct stat st;
        int n = snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (n > 0 && n < (int)sizeof(path) && lstat(path, &st) == 0 && S_ISREG(st.st_mode))
            look_at_path(w, path);
    }
    closedir(d);
}

static const char *image_folders(void)
{
    const char *given = getenv(TAG_IMAGES_ENV);

    return given ? given : TAG_IMAGES;
}

static void look_at_images(struct wanted *w)
{
    char *folders = strdup(image_folders()), *rest;

    if (!folders) {
        w->err = -ENOMEM;
        return;
    }
    for (char *f = strtok_r(folders, ":", &rest); f; f = strtok_r(NULL, ":", &rest))
        look_at_folder(w, f);
    free(folders);
}

/* --- The answer ------------------------------------------------------------------------------- */

static int device_tag_parse(const char *text, struct wanted *w, struct reason *why)
{
    const char *uuid = value_of(text, "UUID=");

    w->label = value_of(text, "LABEL=");
    if (w->label && w->label[0])
        return 0;
    if (uuid && uuid_parse(uuid, w->uuid) == 0)
        return 0;
    return reason_set(why, -EINVAL,
                      uuid ? "no UUID, give 32 digits with hyphens, as dump.gpunvme prints it"
                           : "no label, give what tune.gpunvme or gpunvme label shows");
}

static int judge(const struct wanted *w, struct reason *why)
{
    if (w->err)
        return reason_set(why, w->err, "out of memory");
    if (w->second)
        return reason_set(why, -EEXIST, "both %s and %s have it, name the device itself", w->found,
                          w->second);
    if (w->found)
        return 0;
    if (w->foreign.text[0])
        return reason_set(why, -ENODEV, "%s", w->foreign.text);
    return reason_set(
        why, -ENODEV,
        "found on no block device, no drive that is bound to vfio-pci and unused, and no "
        "image in " TAG_IMAGES " (" TAG_IMAGES_ENV "), name the device itself");
}

static int tag_search(const char *text, struct answer *a, char **device, struct reason *why)
{
    struct wanted w = {.answer = a};
    int err = device_tag_parse(text, &w, why);

    if (err)
        return err;
    look_at_block_devices(&w);
    look_at_images(&w);
    look_at_drives(&w);
    err = judge(&w, why);
    free(w.second);
    if (err)
        free(w.found);
    else
        *device = w.found;
    return err;
}

/* --- The process that searches ---------------------------------------------------------------- */

#define IMAGE_FOLDERS_MAX 16u

/*
 * Confines the process that reads all devices of this machine. It keeps the
 * right to read block devices and images, and to use PCI drives.
 */
static void tag_confine(void)
{
    const uint64_t kept =
        1ull << CAP_IPC_LOCK | 1ull << CAP_SYS_RESOURCE | 1ull << CAP_DAC_READ_SEARCH;
    struct confine_path paths[4 + IMAGE_FOLDERS_MAX] = {
        {"/sys", CONFINE_READ},
        {"/dev", CONFINE_READ},
        {"/dev/vfio", CONFINE_READ | CONFINE_WRITE},
        {"/dev/iommu", CONFINE_READ | CONFINE_WRITE}};
    char *folders = strdup(image_folders()), *rest;
    unsigned count = 4;

    for (char *f = folders ? strtok_r(folders, ":", &rest) : NULL;
         f && count < sizeof(paths) / sizeof(paths[0]); f = strtok_r(NULL, ":", &rest))
        paths[count++] = (struct confine_path){f, CONFINE_READ};
    confine_program(paths, count, kept);
    free(folders);
}

static _Noreturn void tag_serve(const char *text, struct answer *a)
{
    char *device = NULL;

    tag_confine();
    a->err = tag_search(text, a, &device, &a->why);
    if (!a->err)
        snprintf(a->device, sizeof(a->device), "%s", device);
    _exit(0);
}

static int tag_take_answer(const struct answer *a, char **device, struct reason *why)
{
    if (a->err)
        return reason_set(why, a->err, "%.*s", (int)sizeof(a->why.text) - 1, a->why.text);
    *device = strndup(a->device, sizeof(a->device) - 1);
    return *device ? 0 : -ENOMEM;
}

/*
 * Waits for the process until no device has been begun for TAG_SILENT_MS. Returns
 * 0, -ETIMEDOUT, or an error of the wait.
 */
static int tag_wait(int process, const struct answer *a)
{
    struct pollfd p = {.fd = process, .events = POLLIN};
    unsigned steps;
    int n;

    do {
        steps = __atomic_load_n(&a->steps, __ATOMIC_ACQUIRE);
        n = poll(&p, 1, TAG_SILENT_MS);
    } while ((n == 0 && __atomic_load_n(&a->steps, __ATOMIC_ACQUIRE) != steps) ||
             (n < 0 && errno == EINTR));
    if (n > 0)
        return 0;
    return n == 0 ? -ETIMEDOUT : -errno;
}

/* Waits for the process's answer, or stores one in its place. */
static void tag_await(pid_t pid, struct answer *a)
{
    int process = (int)syscall(SYS_pidfd_open, pid, 0);
    int err = process < 0 ? -errno : tag_wait(process, a);

    if (process >= 0)
        close(process);
    child_kill(pid);
    if (err != -ETIMEDOUT)
        return;
    a->err = reason_set(&a->why, err, "%.300s has not answered for %u s, name the device itself",
                        a->at, TAG_SILENT_MS / 1000);
}

int tag_find(const char *text, char **device, struct reason *why)
{
    struct answer *a =
        mmap(NULL, sizeof(*a), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int err;

    if (a == MAP_FAILED)
        return -ENOMEM;
    a->err = reason_set(&a->why, -EIO, "the process that searches has ended early");
    pid_t pid = fork();
    if (pid == 0)
        tag_serve(text, a);
    if (pid > 0)
        tag_await(pid, a);
    err = tag_take_answer(a, device, why);
    munmap(a, sizeof(*a));
    return err;
}
